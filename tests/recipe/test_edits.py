"""The edit of a fault, made in the text: the rest of the recipe stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import composer
from blocks.core.fixes import write
from composer.errors import Edit, Fault
from composer.recipe.recipe import load
from tests.errors.snapshots import FILES, read
from verify.repairs import FixFailed, apply, repair

RECIPE = """recipe: 1
data: {generate: copy}
model:
  width: 8
  decoder:
    - norm
    - rnn: {cell: lstm, layers: 2}  # deep
    - self_attention:
        heads: 2
    - residual: [{linear: {width: 8}}]
"""

EDITS = [
    # what the recipe says, and after the edit of its only fault
    ("    - norm\n", "    - nomr\n", "    - norm\n"),
    ("    - norm\n", "    - lstm\n", "    - {rnn: {cell: lstm}}\n"),
    ("heads: 2", "haeds: 2", "heads: 2"),
    ("heads: 2", '"haeds": 2', '"heads": 2'),
    ("heads: 2", "heads: 2\n        x: 1  # what", "heads: 2"),
    (
        "heads: 2",
        "x:\n          - y: 1\n            z: 2\n        # after\n        heads: 2",
        "# after\n        heads: 2",
    ),
    ("heads: 2", "x: |\n          y\n        heads: 2", "heads: 2"),
    ("{cell: lstm, layers: 2}", "{x: [1, 2], cell: lstm}", "{cell: lstm}"),
    ("{cell: lstm, layers: 2}", "{cell: lstm, x: {y: 1}}", "{cell: lstm}"),
    ("{cell: lstm, layers: 2}", "{x: 1}", "{}"),
    (
        "{cell: lstm, layers: 2}",
        "{cell: lstm,\n        x: 1,\n        layers: 2}",
        "{cell: lstm,\n        layers: 2}",
    ),
    ("heads: 2", "heads: '2'", "heads: 2"),
    ("heads: 2", "heads: 0", "heads: 1"),
    ("heads: 2", "heads:", "heads: 8"),
    ("{cell: lstm, layers: 2}", "{layers, cell: lstm}", "{layers: 1, cell: lstm}"),
    ("{width: 8}", "{bias: yes}", "{bias: true}"),
    ("[{linear: {width: 8}}]", "norm", "[norm]"),
    ("recipe: 1\n", "", "recipe: 1\n"),
    (
        "data: {generate: copy}\n",
        "data: {generate: copy, text: {train: a}}\n",
        "data: {generate: copy}\n",
    ),
    # of a block, and of what other sections say
    ("cell: lstm, layers: 2", "cell: lstm, bidirectional: true", "cell: lstm"),
    ("heads: 2", "heads: 3", "heads: 2"),
    # one name of several
    (
        "[{linear: {width: 8}}]",
        "[{linear: {as: first}}, {add: [input, firts]}]",
        "[{linear: {as: first}}, {add: [input, first]}]",
    ),
    # of the syntax
    ("  width: 8\n", "  width:8\n", "  width: 8\n"),
    ("    - norm\n", "    -norm\n", "    - norm\n"),
    ("model:", "model\uff1a", "model:"),
]


@pytest.mark.parametrize(("right", "wrong", "mended"), EDITS)
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_an_edit_mends_its_fault_and_nothing_else(
    tmp_path: Path, right: str, wrong: str, mended: str, line_break: str
) -> None:
    file, text = tmp_path / "r.yaml", RECIPE.replace(right, wrong, 1)
    file.write_bytes(text.replace("\n", line_break).encode())
    (fault,) = composer.check(file, any_machine=True)
    assert fault.edit
    after = apply(file.read_bytes().decode(), fault.edit)
    assert after.replace(line_break, "\n") == RECIPE.replace(right, mended, 1)
    file.write_bytes(after.encode())
    assert composer.check(file, any_machine=True) == []


def test_an_edit_of_an_override_is_one_of_the_override(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    (fault,) = composer.check(tmp_path / "r.yaml", ["training.max_stesp=3"])
    assert fault.edit == Edit("<command line>", "training.max_stesp", (1, 10), (1, 19), "max_steps")


def test_an_edit_of_a_base_is_one_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(RECIPE.replace("heads", "haeds"))
    (tmp_path / "r.yaml").write_text("extends: base.yaml\nrecipe: 1\n")
    (fault,) = composer.check(tmp_path / "r.yaml")
    assert fault.edit
    assert (fault.edit.file, fault.edit.start) == (fault.file, (9, 9))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("heads: 2", "heads: true"),
        ("heads: 2", "heads: many"),
        ("cell: lstm", "cell: transformer"),
        ("data: {generate: copy}\n", "data: {generate: copy}\ntrainer: {devices: true}\n"),
        ("data: {generate: copy}\n", "data: {generate: copy}\ntraining: {label_smoothing: 1.5}\n"),
    ],
)
def test_no_edit_writes_a_default_in_place_of_what_is_written(
    tmp_path: Path, right: str, wrong: str
) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE.replace(right, wrong, 1))
    (fault,) = composer.check(tmp_path / "r.yaml", any_machine=True)
    assert fault.edit is None


def test_a_fix_in_words_alone_has_no_edit(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    recipe, at = load(tmp_path / "r.yaml"), ("model", "decoder", 2, "self_attention", "heads")
    assert recipe.fault("width", at, "too many", "write `heads: 1`").edit is None
    fault = recipe.fault("width", at, "too many", write(at, 1))
    assert (fault.hint, fault.edit and fault.edit.replacement) == ("write `heads: 1`", "1")


def test_a_key_is_not_renamed_to_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE.replace("heads: 2", "heads: 2\n        haeds: 4"))
    (fault,) = composer.check(tmp_path / "r.yaml", any_machine=True)
    assert fault.edit
    assert apply((tmp_path / "r.yaml").read_text(), fault.edit) == RECIPE


def test_two_edits_that_undo_each_other_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("a: 1\n")

    def check(_: Path) -> list[Fault]:
        old, new = ("1", "2") if "1" in file.read_text() else ("2", "1")
        edit = Edit(str(file), "a", (1, 4), (1, 5), new)
        return [
            Fault(str(file), 1, 4, "value", "a", f"`{old}` is not", f"write `{new}`", edit=edit)
        ]

    monkeypatch.setattr("verify.repairs.composer.check", check)
    with pytest.raises(FixFailed, match="undone"):
        repair(file)


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(4, marks=pytest.mark.slow, id="some"),
        pytest.param(1, marks=pytest.mark.exhaustive, id="all"),
    ],
)
@pytest.mark.parametrize("cases", FILES, ids=lambda file: file.stem)
def test_edits_of_the_snapshots_help(
    cases: Path, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = composer.check
    monkeypatch.setattr(
        "verify.repairs.composer.check",
        lambda file: check(file, any_machine=True, without_data=True),
    )
    for case in read(cases)[::every]:
        text = case["recipe"]
        (tmp_path / "r.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        repair(tmp_path / "r.yaml")

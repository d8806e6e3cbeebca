"""A loaded recipe: its parts, its faults at the place where something was written, and its text."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import composer
from composer.errors import RecipeError, RunError
from composer.inference.methods import Greedy
from composer.recipe.recipe import Recipe, load, load_text, source_path
from tests.samples import sampled
from tests.small_recipes import SMALL, loaded, refused

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    file
    for file in (ROOT / "recipes").rglob("*.yaml")
    if not {"fragments", "sweeps"} & set(file.parts)
)

TEXT = """recipe: 1
data: {generate: copy}
model:
  width: 64
  dropout: 0.1
  residual: {norm: pre}
  self_attention: 4
  encoder: [norm]
  decoder:
    - norm
    - dropout
    - positions: learned
    - rnn: {cell: gru, bidirectional: true, initial_state: encoder}
    - residual: [self_attention, {cross_attention: {from: enc}}]
    - concat: x
    - parallel: [[norm], [{linear: 3}]]
  output: {tie: [target]}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return loaded(tmp_path, TEXT)


@pytest.mark.parametrize(
    ("path", "place", "shown"),
    [
        # a block: its key, or its bare name
        ("decoder 0 norm", "10:7+4", "decoder[0]"),
        ("decoder 3 rnn", "13:7+3", "decoder[3].rnn"),
        ("decoder 4 residual", "14:7+8", "decoder[4].residual"),
        (
            "decoder 4 residual stack 1 cross_attention",
            "14:35+15",
            "decoder[4].residual[1].cross_attention",
        ),
        # a value at itself, a switch at its key, a list at its key
        ("decoder 3 rnn cell", "13:19+3", "decoder[3].rnn.cell"),
        ("decoder 3 rnn bidirectional", "13:24+13", "decoder[3].rnn.bidirectional"),
        ("decoder 3 rnn initial_state", "13:60+7", "decoder[3].rnn.initial_state"),
        (
            "decoder 4 residual stack 1 cross_attention from",
            "14:59+3",
            "decoder[4].residual[1].cross_attention.from",
        ),
        ("decoder 4 residual stack", "14:7+8", "decoder[4].residual"),
        ("output tie", "17:12+3", "output.tie"),
        ("output tie 0", "17:18+6", "output.tie[0]"),
        # shorthand
        ("decoder 2 positions kind", "12:18+7", "decoder[2].positions"),
        ("decoder 5 concat of", "15:15+1", "decoder[5].concat"),
        ("decoder 5 concat of 0", "15:15+1", "decoder[5].concat"),
        (
            "decoder 6 parallel branches 1 0 linear width",
            "16:36+1",
            "decoder[6].parallel[1][0].linear",
        ),
        # defaults that are written under `model`
        ("decoder 4 residual norm", "6:20+3", "residual.norm"),
        ("decoder 4 residual dropout", "5:12+3", "dropout"),
        ("decoder 4 residual stack 0 self_attention heads", "7:19+1", "self_attention"),
        ("decoder 1 dropout rate", "5:12+3", "dropout"),
        # what is written nowhere: the nearest thing around it
        ("decoder 3 rnn layers", "13:7+3", "decoder[3].rnn"),
        ("decoder 0 norm kind", "10:7+4", "decoder[0]"),
        ("stacks a", "3:1+5", ""),
    ],
)
def test_a_fault_points_at_the_source_of_a_setting(
    recipe: Recipe, path: str, place: str, shown: str
) -> None:
    steps = ("model", *(int(step) if step.isdigit() else step for step in path.split()))
    fault = recipe.fault("some", steps, "wrong", "mend it")
    assert f"{fault.line}:{fault.column}+{fault.length}" == place
    assert fault.path == ".".join(filter(None, ("model", shown)))
    assert source_path(recipe, steps) == fault.path


def test_a_default_under_model_that_fits_no_block_is_reported_once(tmp_path: Path) -> None:
    stack = "[self_attention, residual: [self_attention]]"
    model = f"{{width: 10, self_attention: 4, encoder: {stack}, decoder: {stack}}}"
    text = f"recipe: 1\ndata: {{generate: copy}}\nmodel: {model}"
    with pytest.raises(RecipeError) as caught:
        loaded(tmp_path, text).plan()
    (fault,) = caught.value.faults
    assert (fault.code, fault.path, fault.line) == ("width", "model.self_attention", 3)


def test_a_block_in_the_wrong_place_is_pointed_at_by_its_key(recipe: Recipe) -> None:
    fault = recipe.fault("causality", ("model", "decoder", 3, "rnn", "cell"), "no", "no")
    assert (fault.line, fault.column) == (13, 13)


def test_a_fault_points_at_the_name_that_its_message_quotes(tmp_path: Path) -> None:
    text = SMALL.replace(
        "[norm]", "[{concat: [a, enc]}, {rnn: {initial_state: {copy: encoder.x}}}]"
    )
    recipe = loaded(tmp_path, text)
    fault = recipe.fault(
        "name", ("model", "decoder", 0, "concat", "of"), "nothing here is called `enc`"
    )
    assert (fault.column, fault.length) == (26, 3)
    fault = recipe.fault(
        "name", ("model", "decoder", 1, "rnn", "initial_state"), "nothing is called `encoder.x`"
    )
    assert (fault.column, fault.length) == (62, 9)


def test_a_fault_of_a_default_section_points_at_the_nearest_source(recipe: Recipe) -> None:
    fault = recipe.fault("run", ("training", "seed"), "no", "no")
    assert (fault.line, fault.column, fault.length, fault.path) == (1, 1, 1, "")


def test_a_fault_of_an_override_points_into_the_command_line(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, TEXT, ["model.decoder.3.rnn.layers=2"])
    fault = recipe.fault("some", ("model", "decoder", 3, "rnn", "layers"), "no")
    assert (fault.file, fault.line, fault.column, fault.excerpt) == (
        "<command line>",
        1,
        28,
        "model.decoder.3.rnn.layers=2",
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Übung 2.yaml", "Ubung-2"),
        ("straße.yaml", "stra-e"),
        ("日本.yaml", "recipe"),
        (f"{'x' * 150}.yaml", "x" * 100),
    ],
)
def test_a_recipe_called_as_its_file_loads_from_its_text(file: str, name: str) -> None:
    recipe = load_text(SMALL, file)
    assert recipe.name == load_text(recipe.dump()).name == name


def test_a_recipe_has_named_parts(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, SMALL, name="my recipe.yaml")
    assert recipe.name == "my-recipe"
    task = recipe.data.generate
    assert task is not None
    assert {task.word: task.as_data()} == recipe.canonical["data"]["generate"]
    assert recipe.decoding == Greedy()
    assert (recipe.trainer.devices, recipe.trainer.at) == ("auto", ("trainer",))
    assert (recipe.logging.wandb, recipe.joint) == (None, False)
    assert recipe.folders() == [tmp_path]
    (data := tmp_path / "d").mkdir()
    assert recipe.folders(data) == [data, tmp_path]
    assert load(tmp_path / "my recipe.yaml", data_dir=data).folders() == [data, tmp_path]
    with pytest.raises(RunError, match=r"/none: .*no such folder"):
        recipe.folders(tmp_path / "none")
    with pytest.raises(RunError, match=r"recipe.yaml: .*this is a file, and no folder"):
        recipe.folders(tmp_path / "my recipe.yaml")


@pytest.mark.parametrize(
    "file", sampled(RECIPES, 40, slow=40), ids=lambda file: str(file.relative_to(ROOT))
)
def test_every_recipe_dumps_to_one_that_means_the_same(file: Path, tmp_path: Path) -> None:
    recipe = load(file)
    again = loaded(tmp_path, recipe.dump(), name="elsewhere.yaml")
    assert again.canonical == recipe.canonical
    assert again.fingerprints == recipe.fingerprints
    assert again.explicit == recipe.explicit
    assert "extends" not in again.explicit
    assert "${" not in recipe.dump()


def test_a_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(composer.RecipeError) as raised:
        load(tmp_path / "none.yaml")
    assert [fault.code for fault in raised.value.faults] == ["file"]


@pytest.mark.parametrize(
    "name", ["x\0y", "\udcff\ud800", "x" * 5000, "loop", "socket", "fifo", "folder", "r.yaml/x"]
)
def test_a_file_that_is_no_recipe_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    Path("r.yaml").write_text(SMALL, encoding="utf-8")
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as open_socket:
        open_socket.bind("socket")
        with pytest.raises(composer.RecipeError) as raised:
            load(name)
    assert [(fault.line, fault.column, fault.code) for fault in raised.value.faults] == [
        (1, 1, "file")
    ]
    assert raised.value.render().isprintable() or "\n" in raised.value.render()


@pytest.fixture
def nobody() -> Iterator[None]:
    """Takes the right to read everything away from root."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    yield
    os.seteuid(user)


@pytest.mark.parametrize("whole", [False, True])
def test_a_recipe_without_read_permission_is_refused(
    whole: bool, request: pytest.FixtureRequest
) -> None:
    """The file alone, or the folder that it lies in."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "in", "r.yaml")
        file.parent.mkdir()
        file.write_text(SMALL, encoding="utf-8")
        file.with_name("own.yaml").write_text("extends: r.yaml\n", encoding="utf-8")
        (file.parent if whole else file).chmod(0)
        request.getfixturevalue("nobody")
        reported = {}
        for name in ("r.yaml", "own.yaml"):
            with pytest.raises(composer.RecipeError) as raised:
                load(file.with_name(name))
            reported[name] = [
                (Path(fault.file).name, fault.message) for fault in raised.value.faults
            ]
        os.seteuid(os.getuid())
        file.parent.chmod(0o755)
    denied = "this file cannot be read: permission denied"
    assert reported == {
        "r.yaml": [("r.yaml", denied)],
        "own.yaml": [("own.yaml" if whole else "r.yaml", denied)],
    }


def test_a_misspelt_file_of_a_recipe_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipes").mkdir()
    Path("recipes/lm.yaml").write_text(SMALL)
    Path("recipes/lm.txt").write_text("some text\n")
    for name, meant in (
        ("recipes/lm.yml", "recipes/lm.yaml"),
        ("recipe/lm.yaml", "recipes/lm.yaml"),
    ):
        with pytest.raises(composer.RecipeError) as raised:
            load(name)
        (fault,) = raised.value.faults
        assert (
            fault.message
            == f"this file cannot be read: no such file or directory; did you mean `{meant}`?"
        )
        assert fault.hint == f"write `{meant}`"


def test_composer_exports_load(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(SMALL)
    assert composer.load(tmp_path / "r.yaml", ["model.width=32"]).model.width == 32
    assert "load" in dir(composer)
    with pytest.raises(AttributeError, match="nothing"):
        composer.nothing  # noqa: B018


def test_an_error_is_rendered_with_place_excerpt_and_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(SMALL.replace("[norm]", "\n    - norm: {kind: rsm}"))
    with pytest.raises(composer.RecipeError) as raised:
        load("r.yaml")
    assert (
        raised.value.render()
        == """\
r.yaml:6:20: error[value]: `kind` takes one of `layer`, `rms`; `rsm` is not; did you mean `rms`?
   at model.decoder[0].norm.kind
   6 |     - norm: {kind: rsm}
     |                    ^^^
   fix: write `rms`
1 error"""
    )


def test_a_recipe_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    refused(tmp_path, SMALL.replace("norm", "nrm"))
    assert [path.name for path in tmp_path.iterdir()] == ["r.yaml"]

"""`check` without data, of sweeps and of parts of recipes; the exit status of a dry run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import composer
from composer.cli import main
from composer.sweeps import progress
from composer.sweeps.progress import with_progress
from tests.sweeps.small_sweeps import BASE, write

PAIRS = """recipe: 1
data: {parallel: {train: {source: a.en, target: a.de}, val: {source: b.en, target: b.de}}}
model: {width: 16, encoder: [{rnn: {cell: gru}}], decoder: [{rnn: {cell: gru}}, cross_attention]}
training: {max_steps: 10}
"""
HEADS = "  heads: {set: vars.heads, values: [2, 3]}"


@pytest.fixture(autouse=True)
def in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main.main(["check", *words])
    return int(left.value.code or 0), *capsys.readouterr()


def codes(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    status, out, _ = checked(capsys, *words, "--json")
    return status, [f"{fault['code']} {fault['path']}" for fault in json.loads(out)]


# -------------------------------------------------------------------------------------------
# without data


def test_a_recipe_is_checked_without_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.yaml").write_text(PAIRS, encoding="utf-8")
    status, faults = codes(capsys, "r.yaml")
    assert (status, len(faults)) == (2, 4)
    status, out, _ = checked(capsys, "r.yaml", "--without-data")
    assert status == 0
    assert "its data were not read" in out
    assert composer.check("r.yaml", without_data=True) == []
    assert codes(capsys, "r.yaml", "--without-data", "model.encoder.0.rnn.cell=gre") == (
        2,
        ["value model.encoder[0].rnn.cell"],
    )


def test_data_that_are_there_are_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.yaml").write_text(PAIRS, encoding="utf-8")
    for name in ("a.en", "a.de", "b.en", "b.de"):
        Path(name).write_bytes(b"\xff\xfe not UTF-8\n")
    assert codes(capsys, "r.yaml")[0] == 2
    assert codes(capsys, "r.yaml", "--without-data")[0] == 0


def test_a_tokenizer_that_is_not_there_has_a_size_that_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tokenizer = "data.tokenizer={file: {path: t.json}}"
    Path("r.yaml").write_text(PAIRS, encoding="utf-8")
    status, out, _ = checked(capsys, "r.yaml", tokenizer, "--without-data")
    assert status == 0
    assert "nor its tokenizer: a vocabulary counts 32,000 words" in out


# ------------------------------------------------------------------------------------------- sweeps


def test_an_impossible_point_that_nothing_excludes_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(tmp_path, HEADS))
    status, faults = codes(capsys, file)
    assert status == 2
    assert faults
    assert checked(capsys, file, "heads=2")[0] == 0
    assert checked(capsys, file, "heads=3")[0] == 2
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit, match="2"):
            main.main(["sweep", file, "--dry-run", *more])
    assert [fault.path for fault in composer.check(file)] == [
        fault.partition(" ")[2] for fault in faults
    ]


def test_a_point_that_a_condition_excludes_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write(tmp_path, HEADS, "where: heads < 3"))
    status, out, _ = checked(capsys, file)
    assert status == 0
    assert "no errors; 1 point, and 1 excluded" in out
    assert f"next: seqcomposer sweep {file}" in out
    with pytest.raises(SystemExit, match="0"):
        main.main(["sweep", file, "--dry-run"])


def test_the_data_of_a_sweep_are_checked_in_each_way_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(
        tmp_path,
        "  length: {set: data.max_length, values: [100, 50]}\n  width: {set: vars.width, values:"
        " [8, 16]}",
    )
    (tmp_path / "base.yaml").write_text(
        PAIRS.replace("width: 16", "width: $width") + "vars: {width: 8}\n", encoding="utf-8"
    )
    status, faults = codes(capsys, str(file))
    assert (status, len(faults)) == (2, 4)
    status, out, _ = checked(capsys, str(file), "--without-data")
    assert status == 0
    assert "4 points; their data were not read" in out


def test_a_sample_of_a_search_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.sweeps.points.MAX_STRUCTURES", 2)
    file = write(
        tmp_path, "  width: {set: vars.width, values: [8, 16, 32]}", "search: {tpe: {trials: 2}}"
    )
    status, out, _ = checked(capsys, str(file))
    assert status == 0
    assert "2 points; these are a sample, the first of 3 structures" in out


def test_a_grid_that_is_too_large_is_refused_before_its_values_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.sweeps.spec.value_faults", lambda _: pytest.fail("they are read"))
    values = ", ".join(map(str, range(1, 5002)))
    file = write(tmp_path, f"  steps: {{set: training.max_steps, values: [{values}]}}\n{HEADS}")
    assert codes(capsys, str(file)) == (2, ["size axes"])


def test_what_takes_long_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [*with_progress(range(3), "points")] == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "NOTE_SECONDS", 0.0)
    assert [*with_progress(range(3), "points")] == [0, 1, 2]
    assert capsys.readouterr().err.splitlines()[-1] == "points: 2 of 3"


MIXERS = """  mixer:
    replace: model.encoder..self_attention
    with: {attention: {self_attention: 2}, ATTENTION_LIKE, none: identity}"""


@pytest.mark.parametrize(
    ("other", "dropout", "warned"),
    [
        ("delta: {gated_delta_net: {heads: 2}}", 0.2, ["axes.mixer.with.delta"]),
        ("delta: {gated_delta_net: {heads: 2}}", 0, []),
        ("delta: [{gated_delta_net: {heads: 2}}, dropout]", 0.2, []),
        ("more: {self_attention: 1}", 0.2, []),
        ("same: {self_attention: {dropout: 0}}", 0.2, ["axes.mixer.with.same"]),
        ("same: {residual: {stack: [norm], dropout: 0}}", 0.2, ["axes.mixer.with.same"]),
        ("two: {parallel: {branches: {a: [norm], b: [self_attention]}}}", 0.2, []),
    ],
)
def test_a_default_that_reaches_one_alternative_alone_is_warned_of(
    other: str,
    dropout: float,
    warned: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(tmp_path, MIXERS.replace("ATTENTION_LIKE", other))
    base = tmp_path / "base.yaml"
    base.write_text(BASE.replace("model:\n", f"model:\n  dropout: {dropout}\n"), encoding="utf-8")
    status, faults = codes(capsys, str(file))
    assert status == 0
    assert [fault.partition(" ")[2] for fault in faults if fault.startswith("default ")] == warned


# ------------------------------------------------------------------------------------------- parts
# of recipes


def part(text: str, name: str = "fragments/part.yaml") -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


def test_a_part_may_leave_open_what_others_give(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "vars: {deep: $layers}\nmodel: {width: $width, encoder: [{repeat: {times: $deep, stack:"
        " [norm]}}]}\n"
    )
    status, out, _ = checked(capsys, part(text))
    assert status == 0
    assert "no errors in YAML, keys and types" in out
    assert "must set `layers`, `width`" in out
    assert "next:" not in out


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("model: {widht: 8}", "unknown model.widht"),
        ("model: {width: wide}", "type model.width"),
        ("model: {encoder: [{repeat: {stack: [norm]}}]}", "missing model.encoder[0].repeat"),
        ("training: {max_steps: -1}", "bound training.max_steps"),
        ("modell: {width: 8}", "unknown modell"),
        ("model: {width: 8", "syntax "),
        (
            "model: {encoder: [{rnn: {cell: $cell, heads: 2}}]}",
            "unknown model.encoder[0].rnn.heads",
        ),
        ("model: {encoder: [{rnn: {cell: gre}}]}", "value model.encoder[0].rnn.cell"),
    ],
)
def test_what_is_wrong_in_a_part_is_an_error(
    text: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert codes(capsys, part(text)) == (2, [fault])


def test_what_others_extend_is_a_part_if_it_is_no_recipe(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    decoder = "model: {decoder: [{rnn: {cell: gru}}, cross_attention]}\n"
    part(decoder, "decoder.yaml")
    part(BASE, "base.yaml")
    part("extends: [base.yaml, decoder.yaml]\n", "whole.yaml")
    assert codes(capsys, "decoder.yaml")[0] == 2
    status, out, _ = checked(capsys, "base.yaml", "decoder.yaml", "whole.yaml")
    assert status == 0, out
    assert "decoder.yaml: no errors in YAML" in out
    assert "base.yaml: no errors; " in out
    sweep = write(tmp_path, "  decoder: {extend: {gru: decoder.yaml}}")
    assert checked(capsys, "decoder.yaml", str(sweep))[0] == 0


@pytest.mark.parametrize("name", ["fragments/whole.yaml", "fragments/project/whole.yaml"])
def test_a_whole_recipe_is_checked_as_one_wherever_it_lies(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text(BASE, encoding="utf-8")
    status, out, _ = checked(capsys, str(file))
    assert status == 0
    assert "parameters" in out
    heads = "model: {encoder: [{self_attention: {heads: 3}}]}\n"
    impossible = file.with_name("impossible.yaml")
    impossible.write_text(f"extends: {file.name}\n{heads}", encoding="utf-8")
    status, faults = codes(capsys, str(impossible))
    assert status == 2
    assert [fault for fault in faults if fault.startswith("width ")]


def test_every_part_of_the_recipes_is_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    files = sorted(map(str, Path("recipes").rglob("fragments/*.yaml")))
    assert files
    assert codes(capsys, "--without-data", "--any-machine", *files)[0] == 0


def test_check_prints_the_notes_of_a_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for split, lines in (("a", ["one two"] * 3 + ["one"]), ("b", ["one two"])):
        for side in ("en", "de"):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "r.yaml").write_text(PAIRS.replace("data: {", "data: {max_length: 2, "))
    status, _, err = checked(capsys, "r.yaml")
    assert status == 0
    assert "left out 3 of 4 training pairs longer than 2 tokens" in err


def test_a_goal_that_the_references_leave_out_is_refused_before_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("r.yaml").write_text(PAIRS, encoding="utf-8")
    for name in ("a.en", "a.de", "b.en", "b.de"):
        Path(name).write_text("".join(f"{name}{number}\n" for number in range(9)), encoding="utf-8")
    axis = "  width: {set: model.width, values: [16, 32]}"
    text = f"sweep: 1\nbase: r.yaml\naxes:\n{axis}\nrank: [{{val/bleu: max}}]\n"
    Path("s.yaml").write_text(text, encoding="utf-8")
    for words in (["check"], ["sweep", "--dry-run"], ["sweep"]):
        with pytest.raises(SystemExit) as left:
            main.main([*words, "s.yaml"])
        assert left.value.code == 2
        assert (
            "s.yaml:5:9: error[metric]: `val/bleu` is never measured: most references of val have"
            " fewer than four words by its tokenizer `13a`\n" in (err := capsys.readouterr().err)
        )
        fix = "rank by one of exact_match, character_error_rate, chrf, or write"
        assert f"   fix: {fix} `evaluation: {{metrics: [bleu, ...]}}` in the base\n" in err
    assert not Path("runs").exists()
    assert codes(capsys, "s.yaml", "--without-data") == (0, [])
    Path("s.yaml").write_text(text.replace("bleu", "exact_match"), encoding="utf-8")
    assert codes(capsys, "s.yaml")[0] == 0

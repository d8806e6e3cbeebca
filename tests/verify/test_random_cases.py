"""Random cases: the same for a number, of the whole language; a journal; failures are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer.errors import Edit, Fault
from composer.recipe.yaml_reader import parse, to_data
from verify.random_cases import FAILED, Outcome, options, run_cases
from verify.random_recipes import SECTIONS, whole_recipes
from verify.random_settings import definitions, values_of
from verify.repairs import FixFailed, repair
from verify.scene import draw_case
from verify.whole_runs import run_commands

CHOICES = (
    "tasks",
    "tokenizers",
    "optimizers",
    "schedules",
    "initializations",
    "decoders",
    "embeddings",
    "outputs",
)


def test_a_case_is_drawn_alike_for_a_number_and_differs_for_others() -> None:
    first, again, other = (
        draw_case(whole_recipes(), number) for number in ("1, 3", "1, 3", "1, 4")
    )
    assert first == again != other


@pytest.mark.parametrize(
    "name", [name for name in sorted(definitions()) if name.startswith(CHOICES)]
)
def test_every_setting_of_the_language_has_values(name: str) -> None:
    for key, setting in definitions()[name].get("properties", {}).items():
        assert name in CHOICES or values_of(name, key, setting)


@pytest.mark.parametrize("name", SECTIONS.values())
def test_every_setting_of_the_training_has_values(name: str) -> None:
    assert all(
        values_of(name, key, setting) for key, setting in definitions()[name]["properties"].items()
    )


def test_a_recipe_is_repaired_as_its_faults_say(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\n" * 9)
    recipe: dict[str, Any] = {
        "recipe": 1,
        "data": {"text": {"train": "a.txt"}, "tokenizer": {"word": {"joint": True}}},
    }
    recipe["model"] = {"width": 4, "decoder": ["norm", "linear"]}
    recipe["training"] = {
        "carry": True,
        "window": 3,
        "schedule": {"plateau": {}},
        "tokens_per_batch": 2,
    }
    (tmp_path / "random.yaml").write_text(json.dumps(recipe))
    assert repair(tmp_path / "random.yaml") == []
    left = to_data(parse((tmp_path / "random.yaml").read_text(), "random.yaml"))
    # what changes nothing is a warning, which refuses nothing
    assert left["data"] == recipe["data"]
    assert left["training"] == {**recipe["training"], "tokens_per_batch": 60}


def test_a_fix_that_does_not_help_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "random.yaml"
    edit = Edit(str(file), "model.width", (1, 21), (1, 22), "3")
    fault = Fault(
        str(file), 1, 21, "unused", "model.width", "too wide", "write `width: 3`", edit=edit
    )
    monkeypatch.setattr("verify.repairs.composer.check", lambda _: [fault])
    file.write_text('{"model": {"width": 4}}')
    with pytest.raises(FixFailed, match="too wide"):
        repair(file)
    assert json.loads(file.read_text()) == {"model": {"width": 3}}


def test_a_refusal_after_check_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run_commands.__globals__["STEPS"], "check", lambda _: None)
    (tmp_path / "random.yaml").write_text(
        "recipe: 1\ndata: {generate: copy}\nmodel: {width: 4, decoder: [norms]}\n"
    )
    monkeypatch.setitem(run_commands.__globals__, "traits", lambda _: ())
    outcome = run_commands(tmp_path / "random.yaml")
    assert (outcome.word, outcome.subject.partition(":")[0]) == (FAILED, "train")
    assert "did you mean" in outcome.details


def write_number(number: str, folder: Path) -> Path:
    (folder / "number").write_text(number)
    return folder / "number"


def fail_odd_numbers(file: Path) -> Outcome:
    number = int(file.read_text().split()[1])
    return (
        Outcome(FAILED, "odd", "it is odd")
        if number % 2
        else Outcome("refused" if number == 2 else "even")
    )


def test_the_journal_goes_on_and_failures_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(count: int) -> int:
        chosen = options("", count).parse_args(["--folder", str(tmp_path)])
        return run_cases(chosen, write_number, fail_odd_numbers, uncounted="refused")

    assert run(1) == 0
    assert run(3) == 1
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["00001", "00003", "journal.jsonl"]
    assert (tmp_path / "00001" / "failure.txt").read_text() == "odd\n\nit is odd\n"
    rows = map(json.loads, (tmp_path / "journal.jsonl").read_text().splitlines())
    assert [(row["case"], row["word"]) for row in rows] == [
        (0, "even"),
        (1, FAILED),
        (2, "refused"),
        (3, FAILED),
    ]
    assert "failed           2  50.0 %" in capsys.readouterr().out

"""`diff` of recipes, runs and points of sweeps as text and JSON; refused references."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from composer.cli.main import app
from composer.comparison.diff import LINE_WIDTH, diff
from composer.comparison.outputs import Comparison, compare_trials
from composer.comparison.tables import format_change, model_costs, scores_table
from composer.errors import ComposerError
from composer.run_dir import RunDir
from tests.inference.untrained import GRU, made, record_hashes
from tests.run_records import change_record
from tests.sweeps.leaderboard_dirs import begun, trial

ROOT = Path(__file__).parents[2]
LADDER = ROOT / "recipes" / "ladder"
SMALL = """recipe: 1
data: {generate: copy, tokenizer: word}
model: {width: 16, decoder: [rnn, {residual: {stack: [{self_attention: {heads: 4, dropout: DROPOUT}}]}}, norm]}
"""


def write_recipe(folder: Path, name: str, text: str = SMALL, dropout: str = "0.1") -> Path:
    (folder / name).write_text(text.replace("DROPOUT", dropout), encoding="utf-8")
    return folder / name


def test_equal_recipes_have_no_difference(tmp_path: Path) -> None:
    one = write_recipe(tmp_path, "a.yaml")
    other = write_recipe(
        tmp_path,
        "b.yaml",
        f"# {SMALL.splitlines()[0]}\nvars: {{h: 4}}\n"
        + SMALL.replace("heads: 4", 'heads: "${h}"').replace("- rnn", "- rnn: lstm"),
    )
    result = diff(one, other)
    assert result.same
    assert result.text().endswith("fingerprints: model, data and run the same")
    assert not diff(one, write_recipe(tmp_path, "c.yaml", dropout="0.2")).same


def test_costs_of_an_ablation_are_those_of_what_it_removes() -> None:
    domhan = ROOT / "recipes" / "domhan"
    result = diff(
        domhan / "table5_self_attention_to_self_attention.yaml",
        domhan / "table5_self_attention_to_none.yaml",
    )
    one, other = (model_costs(item.recipe, {}) for item in (result.one, result.other))
    assert [change.text() for change in result.changes] == [
        (
            "decoder[2].repeat.stack[0]: removed residual(norm=pre,"
            " dropout=0.1)[self_attention(heads=8, dropout=0.1)]"
        )
    ]
    assert f"  {format_change(one.parameters, other.parameters)}\n" in result.text()
    assert other.parameters == one.parameters - (one.parts["decoder"] - other.parts["decoder"])
    assert one.parts["encoder"] == other.parts["encoder"]
    assert sum(one.parts.values()) == one.parameters


def test_a_change_shared_by_many_blocks_is_printed_once() -> None:
    papers = ROOT / "recipes" / "papers"
    text = diff(papers / "vaswani2017_base.yaml", papers / "vaswani2017_big.yaml").text()
    model = text.partition("\nmodel\n")[2].partition("\n\n")[0].splitlines()
    assert [line.strip() for line in model] == [
        "width: 512 -> 1024",
        "dropout: 0.1 -> 0.3",
        "rate 0.1 -> 0.3, in 2 places:",
        "encoder[1].dropout",
        "decoder[1].dropout",
        "dropout 0.1 -> 0.3, in 5 places:",
        "encoder[2].repeat.stack[0].residual",
        "encoder[2].repeat.stack[1].residual",
        "decoder[2].repeat.stack[0].residual",
        "decoder[2].repeat.stack[1].residual",
        "decoder[2].repeat.stack[2].residual",
        "heads 8 -> 16, in 3 places:",
        "encoder[2].repeat.stack[0].residual[0].self_attention",
        "decoder[2].repeat.stack[0].residual[0].self_attention",
        "decoder[2].repeat.stack[1].residual[0].cross_attention",
        "hidden 2048 -> 4096, in 2 places:",
        "encoder[2].repeat.stack[1].residual[0].feed_forward",
        "decoder[2].repeat.stack[2].residual[0].feed_forward",
    ]
    assert "optimizer.adam.learning_rate: 0.0007 -> 0.00049" in text


def test_files_of_one_name_with_other_lines_differ(tmp_path: Path) -> None:
    text = SMALL.replace("generate: copy", "parallel: {train: {target: t}}").replace(
        "DROPOUT", "0.0"
    )
    for name, line in (("a", "eins zwei"), ("b", "eins drei"), ("c", "eins zwei")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t").write_text(f"{line}\n" * 3, encoding="utf-8")
        (tmp_path / name / "r.yaml").write_text(text, encoding="utf-8")
    one, other, third = (tmp_path / name / "r.yaml" for name in "abc")
    result = diff(one, other)
    assert not result.same
    assert "the lines in the files: " in result.text()
    assert diff(one, third).same
    (tmp_path / "c" / "t").write_bytes(b"\xff\n")
    assert "by the names of their files" in diff(one, third).text()
    (tmp_path / "c" / "t").unlink()
    assert "by the names of their files" in diff(one, third).text()


# ------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("two")
    one = made(home / "one", GRU, decoding="greedy")
    other = made(
        home / "other", GRU.replace("heads: 2", "heads: 4"), decoding="greedy", seed=1, like=one
    )
    for run, bleu in ((one, 12.5), (other, 14.0)):
        record = {
            "scores": {"test/bleu": bleu, "test/loss": 2.0},
            "vocabularies": {"source": 13, "target": 14},
            "versions": {"torch": str(bleu)},
            "planned_steps": {1: int(bleu)},  # which follow from others
            "recipe_budget": {"max_steps": int(bleu)},
        }
        change_record(RunDir(run), **record)
    return one, other


def test_two_runs_are_compared_by_scores_and_paired_tests(two: tuple[Path, Path]) -> None:
    messages: list[str] = []
    result = diff(*two, log=messages.append)
    assert isinstance(result.tested, Comparison)
    assert result.tested == compare_trials(*two)
    assert len(messages) == 1
    assert [change.text() for change in result.changes] == [
        "decoder[1].residual[0].cross_attention.heads: 2 -> 4",
        "versions.torch: 12.5 -> 14.0",
    ]
    assert result.costs[0].vocabularies == {"source": 13, "target": 14}
    assert (
        result.costs[0].parameters
        == model_costs(result.one.recipe, {"source": 13, "target": 14}).parameters
    )
    row = next(line for line in result.text().splitlines() if "test/bleu" in line)
    assert row.split() == ["test/bleu", "12.50", "14.00", "+1.50"]
    assert f"p = {result.tested.metrics[0].p_value:.3f}" in result.text()


def test_what_is_written_in_percent_differs_by_points() -> None:
    one = {"test/word_error_rate": 0.4, "test/exact_match": 0.25, "test/loss": 2.0}
    other = {"test/word_error_rate": 1.25, "test/exact_match": 0.125, "test/loss": 1.5}
    _, *rows, _ = scores_table(one, other, "")
    assert [" ".join(row.split()) for row in rows] == [
        "test/word_error_rate 40.0% 125.0% +85.00 points",
        "test/exact_match 25.0% 12.5% -12.50 points",
        "test/loss 2.000 1.500 -0.50",
    ]


def test_quick_translates_nothing(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "composer.comparison.tables.compare_trials", lambda *_: pytest.fail("translated")
    )
    assert diff(*two, quick=True).tested == ""
    assert diff(two[0], two[0]).tested == "the weights of both are the same, to the last bit"


def test_a_trial_is_named_by_its_rank_and_verified(two: tuple[Path, Path], tmp_path: Path) -> None:
    sweep = begun(tmp_path / "sweep")
    run = Path(shutil.copytree(two[0], trial(sweep, 1) / "seed-1"))
    change_record(RunDir(run), scores={"val/bleu": 12.5})
    assert diff(f"{sweep}#1", two[1], quick=True).one.name == f"{sweep}#1, seed-1"
    (run / "tokenizer.json").write_bytes((run / "tokenizer.json").read_bytes() + b"\n")
    with pytest.raises(ComposerError, match="not the one that the training wrote"):
        diff(f"{sweep}#1", two[1], quick=True)


def test_the_same_weights_with_another_tokenizer_translate_otherwise(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    other = Path(shutil.copytree(two[0], tmp_path / "other"))
    assert "the same" in str(diff(two[0], other).tested)
    (other / "tokenizer.json").write_bytes((other / "tokenizer.json").read_bytes() + b"\n")
    record_hashes(other)
    assert isinstance(diff(two[0], other).tested, Comparison)


def test_a_long_line_is_folded(tmp_path: Path) -> None:
    tower = (
        "{residual: [{self_attention: {heads: 4, dropout: 0.1}}, {feed_forward: {hidden: 64,"
        " dropout: 0.1}}]}"
    )
    one = write_recipe(tmp_path, "a.yaml", SMALL)
    other = write_recipe(
        tmp_path, "b.yaml", SMALL.replace("norm]", f"{tower[:-2]}, {tower}, {tower}]}}, norm]")
    )
    result = diff(one, other)
    change = next(change for change in result.changes if change.kind == "inserted")
    section = result.text().partition("\nmodel\n")[2].partition("\n\n")[0]
    assert max(map(len, section.splitlines())) <= LINE_WIDTH
    assert change.text() in " ".join(section.split())


def test_a_missing_test_comes_with_its_reason(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = made(tmp_path / "run", GRU, decoding="greedy", seed=1)
    file = tmp_path / "data" / "test.1"
    file.write_text(file.read_text(encoding="utf-8").replace("eins", "zwei"), encoding="utf-8")
    assert "different test lines" in str(diff(two[0], other).tested)
    change_record(RunDir(other), status="running")
    assert "not finished" in str(diff(two[0], other).tested)


def test_a_recipe_takes_the_vocabulary_of_a_run_on_the_same_data(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes((two[0] / "recipe.yaml").read_bytes())
    result = diff(file, two[0])
    assert result.costs[0] == result.costs[1]
    assert result.tested == ""


# ------------------------------------------------------------------------------------------- the
# command


def test_json_has_all_parts(two: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(app, ["diff", *map(str, two), "--json", "--quick"])
    assert done.exit_code == 0
    read = json.loads(done.stdout)
    assert (read["a"], read["same"], read["fingerprints"]["same"]["model"]) == (
        str(two[0]),
        False,
        False,
    )
    assert read["changes"][0] | {"text": ""} == {
        "kind": "set",
        "section": "model",
        "path": "decoder[1].residual[0]",
        "other_path": "decoder[1].residual[0]",
        "word": "cross_attention",
        "setting": "heads",
        "before": 2,
        "after": 4,
        "text": "",
    }
    assert read["costs"]["a"]["parameters"] == read["costs"]["b"]["parameters"]
    assert read["scores"]["b"]["test/bleu"] == 14.0


def test_faults_of_both_sides_are_reported(tmp_path: Path) -> None:
    one = write_recipe(tmp_path, "a.yaml", SMALL.replace("heads", "haeds"))
    other = write_recipe(tmp_path, "b.yaml", SMALL.replace("heads: 4", "heads: 3"))
    with pytest.raises(ComposerError) as raised:
        diff(one, tmp_path / "nothing.yaml")
    assert {Path(fault.file).name for fault in raised.value.faults} == {"a.yaml", "nothing.yaml"}
    with pytest.raises(ComposerError, match="3 does not divide"):
        diff(other, other)


@pytest.mark.slow
def test_a_point_of_a_sweep_is_named_by_its_axes() -> None:
    sweep = ROOT / "recipes" / "sweeps" / "attention_scores.yaml"
    result = diff(f"{sweep}#score=dot", f"{sweep}#score=general", quick=True)
    (change,) = result.changes
    assert (change.setting, change.before, change.after) == ("score", "dot", "general")


def test_an_ambiguous_reference_is_refused(tmp_path: Path) -> None:
    sweep = ROOT / "recipes" / "sweeps" / "attention_scores.yaml"
    one = write_recipe(tmp_path, "a.yaml")
    seeds = tmp_path / "seeds"
    made(seeds / "seed-1", GRU)
    empty = tmp_path / "empty"
    empty.mkdir()
    for named, message in (
        (sweep, "many recipes"),
        (seeds, "one run for each seed"),
        (empty, "not a run folder"),
        (f"{sweep}#score=dit", "never"),
    ):
        with pytest.raises(ComposerError, match=message):
            diff(one, named)

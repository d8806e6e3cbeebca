"""Named test sets and several references of each line, in the recipe; text without spaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sacrebleu

import composer
from composer.errors import DataError, RunError
from composer.evaluation.by_length import bleu_by_length
from composer.evaluation.scores import evaluate
from composer.inference.run import open_run
from composer.metrics.bleu import suggest_bleu_tokenizer
from composer.metrics.choice import choose_metrics
from composer.run_dir import RunDir
from composer.training.preflight import check_recipe
from composer.training.train import train

RECIPE = """recipe: 1
data:
  parallel:
    train: {source: a.0, target: a.1}
    val: {source: b.0, target: [b.1, c.1]}
    test: {source: b.0, target: [b.1, c.1]}
    test_sets: {news: {source: c.0, target: c.1}, both: {source: b.0, target: [c.1, b.1]}}
model: {width: 8, encoder: [rnn], decoder: [{rnn: {initial_state: encoder}}]}
training: {max_steps: 3}
decoding: {greedy: {max_length: 6}}
logging: {wandb: false}
"""
JAPANESE, CHINESE = "昨日は東京で友達と寿司を食べました", "昨天我和朋友在东京吃了寿司"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for name, shift in (("a", 0), ("b", 1), ("c", 2)):
        rows = [[f"w{(row * 3 + at + shift) % 7}" for at in range(5)] for row in range(12)]
        for side, step in enumerate((1, -1)):
            text = "".join(" ".join(row[::step]) + "\n" for row in rows)
            (folder / f"{name}.{side}").write_text(text, encoding="utf-8")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return train(composer.load(folder / "recipe.yaml"), folder / "run").run_dir


def test_named_test_sets_are_measured_at_the_end_and_by_evaluate(run: Path) -> None:
    record = RunDir(run).read()
    assert record.data.pairs == {"train": 12, "val": 12, "test": 12, "both": 12, "news": 12}
    for split in ("test", "news", "both"):
        scores = {
            key: value for key, value in evaluate(run, split).items() if isinstance(value, float)
        }
        assert f"{split}/bleu" in scores
        recorded = {
            key: value for key, value in record.scores.items() if key.startswith(f"{split}/")
        }
        assert recorded == pytest.approx(scores)
    assert "both/bleu" in (run / "metrics.jsonl").read_text(encoding="utf-8")


def test_scores_are_of_all_references(run: Path, folder: Path) -> None:
    opened = open_run(run)
    outputs = opened.translate((folder / "b.0").read_text().splitlines())
    references = [(folder / name).read_text().splitlines() for name in ("b.1", "c.1")]
    scores = evaluate(opened)
    assert scores["test/bleu"] == pytest.approx(sacrebleu.corpus_bleu(outputs, references).score)
    assert scores["test/bleu_signature"].startswith("nrefs:2|")
    assert set(scores["test/measured"]["sha256"]) == {"source", "target", "target-2"}
    assert evaluate(opened, "both")["both/chrf"] == pytest.approx(scores["test/chrf"])
    by_length = scores["test/bleu_by_source_length"]
    assert [(row["words"], row["bleu"]) for row in by_length] == [
        ("1-10", pytest.approx(scores["test/bleu"]))
    ]


def test_the_files_of_a_test_set_are_not_measured_under_another_split(
    run: Path, folder: Path
) -> None:
    files = {"sources": [folder / "b.0"], "targets": [folder / "b.1"]}
    assert "news2/chrf" in evaluate(run, name="news2", **files)
    for options, message in (
        ({"name": "news"}, "`news` is the name of a split"),
        ({"split": "news"}, "are for the recipe's own data"),
        ({"data": folder}, "are for the recipe's own data"),
    ):
        with pytest.raises(RunError, match=message):
            evaluate(run, **files, **options)


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        (
            "[b.1, c.1]}\n    test_sets",
            "[b.1, d.1]}\n    test_sets",
            "test.target[1]",
            "no file `d.1`",
        ),
        (
            "source: c.0, target: c.1",
            "source: c.0, target: d.1",
            "test_sets.news.target",
            "no file `d.1`",
        ),
        ("news: {", "val: {", "test_sets.val", "is reserved"),
        ("source: c.0, target: c.1", "target: c.1", "test_sets.news", "`news` needs `source`"),
        (
            "source: c.0, target: c.1",
            "sorce: c.0, target: c.1",
            "test_sets.news.sorce",
            "did you mean `source`",
        ),
        (
            "train: {source: a.0, target: a.1}",
            "train: {source: a.0, target: [a.1, b.1]}",
            "train.target",
            "list",
        ),
    ],
)
def test_faults_are_at_their_place(
    folder: Path, old: str, new: str, place: str, message: str
) -> None:
    assert old in RECIPE
    recipe = folder / "faulty.yaml"
    recipe.write_text(RECIPE.replace(old, new), encoding="utf-8")
    (fault,) = composer.check(recipe)
    assert fault.path == f"data.parallel.{place}"
    assert message in fault.message


def test_text_without_spaces_is_recognised() -> None:
    assert suggest_bleu_tokenizer([JAPANESE]) == "ja-mecab"
    assert suggest_bleu_tokenizer([CHINESE]) == "zh"
    assert suggest_bleu_tokenizer(["ฉันกินข้าวกับเพื่อนเมื่อวานนี้"]) == "char"
    spaced = " ".join(JAPANESE)
    assert {
        suggest_bleu_tokenizer([text])
        for text in ("siebenhundertvierundfünfzig", spaced, "東京", "")
    } == {"13a"}


def test_lengths_without_spaces_are_in_characters() -> None:
    rows = bleu_by_length(
        [CHINESE, CHINESE * 2], ["a", "b"], [["a", "b"]], choose_metrics([], ["bleu"], "char")
    )
    assert [(row["characters"], row["lines"]) for row in rows] == [("11-20", 1), ("21-30", 1)]


def test_check_warns_that_bleu_needs_another_tokenizer(folder: Path) -> None:
    (folder / "zh").write_text(f"{CHINESE}\n" * 12, encoding="utf-8")
    recipe = folder / "chinese.yaml"
    recipe.write_text(
        RECIPE.replace("b.1", "zh").replace("c.1", "zh").replace("a.1", "zh"), encoding="utf-8"
    )
    (warning,) = (it for it in check_recipe(composer.load(recipe)).warnings if it.code == "script")
    assert warning.hint == "write `evaluation: {bleu_tokenizer: zh}`"
    warnings = check_recipe(composer.load(recipe, ["evaluation.bleu_tokenizer=zh"])).warnings
    assert "script" not in {warning.code for warning in warnings}


def test_another_metric_and_all_references_of_a_finished_run(
    run: Path, folder: Path, tmp_path: Path
) -> None:
    scores = evaluate(run, "news", overrides=["evaluation.metrics=[bleu,ter]"])
    assert "news/ter" in scores
    assert "news/chrf" not in scores
    files = {"sources": [folder / "b.0"], "targets": [folder / "b.1", folder / "c.1"]}
    evaluate(run, **files, name="two", hypotheses=tmp_path / "two.jsonl")
    row = json.loads((tmp_path / "two.jsonl").read_text(encoding="utf-8").splitlines()[0])
    first = [(folder / name).read_text(encoding="utf-8").splitlines()[0] for name in ("b.1", "c.1")]
    assert (row["ref"], row["refs"]) == (first[0], first)


def test_one_file_as_source_and_target_is_not_evaluated(run: Path, folder: Path) -> None:
    with pytest.raises(DataError, match="this file is the source and the target"):
        evaluate(run, sources=[folder / "b.0"], targets=[folder / "b.0"], name="same")

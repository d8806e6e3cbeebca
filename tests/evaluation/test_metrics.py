"""The table of metrics: one entry is all that a metric needs to be computed, ranked by and shown
everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from composer.cli.runs import print_evaluation
from composer.evaluation.scores import evaluate, recipe_metrics
from composer.hub.model_card import model_card
from composer.metrics.choice import choose_metrics
from composer.metrics.references import compare
from composer.metrics.table import (
    METRICS,
    Metric,
    as_maximised,
    format_scores,
    text_metrics,
    token_scores,
)
from composer.recipe import schema_generator
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.sweeps.goals import rank_metrics
from composer.training.train import train
from composer.viz.report import report
from tests.docs.fenced import ROOT
from tests.sweeps.leaderboard_dirs import begun, read_board, trial
from tests.training.tiny_recipes import TINY

SUMS = {"loss": 12.0, "right": 3.0, "tokens": 8.0}


@pytest.fixture
def word_ratio(monkeypatch: pytest.MonkeyPatch) -> Metric:
    """A made-up metric: output words per reference word; less is better."""

    def ratio(hypotheses: list[str], references: list[list[str]]) -> float:
        words = [sum(len(text.split()) for text in texts) for texts in (hypotheses, references[0])]
        return words[0] / words[1]

    metric = Metric(
        label="word ratio",
        meaning="words written for each word of the references",
        unit="words",
        format="{:.3f} w".format,
        from_texts=ratio,
        needs="translations",
        lower_is_better=True,
        hub="words",
    )
    monkeypatch.setitem(METRICS, "word_ratio", metric)
    monkeypatch.setitem(
        schema_generator.KINDS, "text_metrics", {"type": "array", "items": {"enum": text_metrics()}}
    )
    schema = schema_generator.generate()
    monkeypatch.setattr(schema_generator, "load", lambda: schema)
    return metric


def test_one_entry_makes_a_metric(
    tmp_path: Path, word_ratio: Metric, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    run = RunDir(tmp_path / "run")
    record = train(
        load(tmp_path / "tiny.yaml", ["evaluation.metrics=[word_ratio]"]), run=run.path
    ).record
    rows = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    assert sum("val_sample/word_ratio" in row for row in rows) == 3
    shown = word_ratio.format(record.scores["test/word_ratio"])
    assert f"word ratio {shown}" in capsys.readouterr().out
    scores = evaluate(run.path)
    assert scores["test/word_ratio"] == record.scores["test/word_ratio"]
    print_evaluation(scores)
    printed = capsys.readouterr().out
    assert shown in printed
    assert word_ratio.meaning[:20] in printed
    html = report(run.path).read_text(encoding="utf-8")
    assert word_ratio.meaning in html
    assert shown in html
    assert "val_sample/word_ratio" in html  # its learning curve
    text = model_card(load(run.recipe), run.read())
    assert "type: words" in text
    assert "| word ratio |" in text


def test_one_entry_makes_a_metric_to_rank_by(tmp_path: Path, word_ratio: Metric) -> None:
    assert {"val/word_ratio", "test/word_ratio"} <= set(rank_metrics())
    folder = begun(tmp_path, [{"val/word_ratio": "min"}])
    for number, value in enumerate((1.5, 0.5)):
        trial(folder, number, [value], metric="val/word_ratio")
    board = read_board(folder)
    assert [entry.trial.number for entry in board.results] == [1, 0]
    assert "0.500 w" in board.text()


def test_scores_come_from_sums_or_from_texts() -> None:
    assert set(token_scores(SUMS)) == {"loss", "perplexity", "token_accuracy"}
    assert token_scores(SUMS | {"bits": 6.0, "rows": 4.0})["bits_per_sequence"] == 1.5
    texts = ["a man sleeps in the sun", "and so did I ."]
    metrics = choose_metrics(texts, None, "13a")
    assert metrics.scores(texts, [texts]) == pytest.approx(
        {"bleu": 100.0, "chrf": 100.0, "exact_match": 1.0}
    )
    assert metrics.scores(["a man sleeps in the sun ", "no"], [texts])["exact_match"] == 0.5
    assert metrics.scores([], [[]]) == {}
    assert [*metrics.signatures(2)] == ["bleu_signature", "chrf_signature"]
    assert "nrefs:2" in metrics.signatures(2)["bleu_signature"]


CHOICES = {
    "sentences": (["ein Mann schläft in der Sonne"], ("bleu", "chrf", "exact_match"), ""),
    "words": (
        ["1234", "99"],
        ("exact_match", "character_error_rate", "chrf"),
        "fewer than four words",
    ),
    "sounds": (
        ["AH1 B", "K AE1 T"],
        ("exact_match", "word_error_rate", "chrf"),
        "fewer than four words",
    ),
    "Japanese": (
        ["日本語の文には空白がない。"],
        ("exact_match", "character_error_rate", "chrf"),
        "tokenizer: ja-mecab",
    ),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_metrics_suit_the_references(kind: str) -> None:
    references, names, reason = CHOICES[kind]
    metrics = choose_metrics(references * 3, None, "13a")
    assert metrics.names == names
    assert reason in metrics.left_out
    assert bool(reason) == bool(metrics.left_out)


def test_bleu_of_a_script_without_spaces_counts_characters() -> None:
    references, wrong = (
        ["日本語の文には空白がない。", "私は本を読みます。"],
        ["日本語の文には空白がある。", "私は本を読みました。"],
    )
    metrics = choose_metrics(references, None, "char")
    assert metrics.names[0] == "bleu"
    assert metrics.scores(wrong, [references])["bleu"] > 60
    assert "tok:char" in metrics.signatures()["bleu_signature"]


def test_the_closest_of_several_references_counts() -> None:
    metrics = choose_metrics(
        [], ["exact_match", "word_error_rate", "character_error_rate", "ter"], "13a"
    )
    scores = metrics.scores(["a b", "c"], [["a x", "d"], ["a b", "c"]])
    assert scores == {
        "exact_match": 1.0,
        "word_error_rate": 0.0,
        "character_error_rate": 0.0,
        "ter": 0.0,
    }
    half = metrics.scores(["a b", "c"], [["a x", "c"]])
    assert half == pytest.approx(
        {"exact_match": 0.5, "word_error_rate": 1 / 3, "character_error_rate": 0.25, "ter": 100 / 3}
    )


ERRORS = {
    # of 15 words one was changed, one added and one left out: `the` to `a`, `big ` and `a `
    "words": (
        ["a man sleeps in the sun", "two dogs run", "he is on a red bicycle"],
        ["a man sleeps in a sun", "two big dogs run", "he is on red bicycle"],
        {"word_error_rate": 3 / 15, "character_error_rate": (3 + 4 + 2) / (23 + 12 + 22)},
    ),
    # k to s, e to i, and a g; a space is a character, and without it two words are wrong
    "characters": (
        ["kitten", "a b"],
        ["sitting", "ab"],
        {"word_error_rate": (1 + 2) / (1 + 2), "character_error_rate": (3 + 1) / (6 + 3)},
    ),
    "a longer output": (
        ["ab"],
        ["ab cd ef"],
        {"word_error_rate": 2.0, "character_error_rate": 3.0},
    ),
    "no output": (
        ["ab cd", "ef"],
        ["", "ef"],
        {"word_error_rate": 2 / 3, "character_error_rate": 5 / 7},
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_error_rates_are_those_counted_by_hand(kind: str) -> None:
    references, outputs, rates = ERRORS[kind]
    assert choose_metrics([], [*rates], "13a").scores(outputs, [references]) == pytest.approx(rates)


def test_characters_are_compared_where_a_model_writes_characters() -> None:
    sentences = ["ein Mann schläft in der Sonne"] * 3
    spelled = ("bleu", "chrf", "exact_match", "character_error_rate")
    assert choose_metrics(sentences, None, "13a", by_characters=True).names == spelled
    assert (
        choose_metrics(["zwei Hunde"], None, "13a", by_characters=True).names[1]
        == "character_error_rate"
    )
    for tokenizer, names in {"char": spelled, "word": spelled[:3]}.items():
        recipe = load(
            ROOT / "recipes/papers/chan2016_las.yaml",
            [f"data.tokenizer={tokenizer}", "evaluation={}"],
        )
        assert recipe_metrics(recipe, sentences).names == names


def test_lines_without_a_reference_are_no_matches_and_no_errors() -> None:
    metrics = choose_metrics([], ["exact_match", "word_error_rate", "character_error_rate"], "13a")
    full = metrics.scores(["a b", "c"], [["a x", "c"]])
    blank = metrics.scores(["a b", "", "many words", "c"], [["a x", " ", "", "c"]])
    assert blank == full
    assert metrics.scores(["a b", "c", ""], [["a x", "c", "y"], ["", "", ""]])[
        "exact_match"
    ] == pytest.approx(1 / 3)
    assert metrics.scores(["", "a"], [["", " "]]) == {}


@pytest.mark.parametrize("name", text_metrics())
def test_a_blank_reference_is_none_in_every_metric(name: str) -> None:
    metrics, outputs = (
        choose_metrics([], [name], "13a"),
        ["a man sleeps in it", "two big dogs run on", "no"],
    )
    first, second = (
        ["a man sleeps in the sun", "two dogs run on", ""],
        ["he sleeps in it now", "", ""],
    )
    one = metrics.scores(outputs[:2], [first[:2]])
    assert metrics.scores(outputs, [first]) == one
    assert metrics.scores(outputs, [first, [" ", "", "\u00a0"]]) == one
    assert metrics.scores(outputs, [["", "", ""], first]) == one
    both = metrics.scores(outputs, [first, second])
    assert both == metrics.scores(outputs, [["", *first[1:]], [first[0], "", ""], second])
    compared = compare(outputs, [first, second])
    assert (compared.rows, compared.per_line) == ([0, 1], None)
    assert compare(outputs, [first, ["", "", ""]]).per_line == 1
    assert all("nrefs:var" in text for text in metrics.signatures(compared.per_line).values())


def test_the_direction_is_that_of_the_table() -> None:
    scores = {"val/loss": 2.0, "val/bleu": 30.0, "minutes": 4.0}
    assert [as_maximised(key, scores) for key in (*scores, "val/chrf")] == [
        -2.0,
        30.0,
        4.0,
        float("-inf"),
    ]
    assert as_maximised("test/perplexity", {"test/perplexity": float("nan")}) == float("-inf")


@pytest.mark.parametrize("name", METRICS)
def test_every_entry_says_how_it_is_computed_and_shown(name: str) -> None:
    metric = METRICS[name]
    ways: list[Callable[..., float] | str | None] = [
        metric.from_sums,
        metric.from_texts,
        metric.sacrebleu,
    ]
    assert sum(map(bool, ways)) == 1
    assert format_scores({f"val/{name}": 0.5}).startswith(f"{metric.label} ")
    assert metric.meaning


def test_bleu_that_is_watched_is_not_said_to_be_left_out() -> None:
    overrides = ["evaluation={}", "training.early_stopping={metric: val/bleu}"]
    recipe = load(ROOT / "recipes/quickstart.yaml", overrides)
    metrics = recipe_metrics(recipe, ["21"] * 3)
    assert metrics.names[-1] == "bleu"
    assert metrics.left_out == ""
    assert recipe_metrics(
        load(ROOT / "recipes/quickstart.yaml", overrides[:1]), ["21"] * 3
    ).left_out

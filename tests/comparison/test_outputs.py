"""Two runs compared: the bootstrap beside one written by hand, and what cannot be compared."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from composer.atomic_io import sha256_of_file
from composer.comparison.diff import diff
from composer.comparison.outputs import compare_outputs, compare_trials, comparison_text, sign_test
from composer.errors import RunError
from composer.evaluation.scores import run_metrics
from composer.inference.run import open_run
from composer.metrics.choice import TextMetrics
from composer.metrics.references import compare
from composer.metrics.table import text_metrics
from composer.run_dir import RunDir
from tests.inference.untrained import GRU, LANGUAGE, made
from tests.run_records import change_record

BLEU_ALONE = TextMetrics(("bleu",), "13a")
WORDS = ["der", "die", "das", "ein", "eine", "haus", "hund", "katze", "läuft", "schläft"]


def corpus(lines: int, seed: int, wrong: float) -> tuple[list[str], list[str]]:
    """References, and hypotheses in which so large a share of the words is another."""
    dice = random.Random(seed)
    references = [[dice.choice(WORDS) for _ in range(8)] for _ in range(lines)]
    answers = [
        [dice.choice(WORDS) if dice.random() < wrong else word for word in line]
        for line in references
    ]
    return [" ".join(line) for line in references], [" ".join(line) for line in answers]


def p_value(outputs: list[list[str]], references: list[list[str]]) -> float:
    """The p-value of two runs' BLEU."""
    return compare_outputs(["a", "b"], outputs, references, BLEU_ALONE).metrics[0].p_value


@pytest.fixture(autouse=True)
def usual_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)


def test_the_p_value_is_that_of_a_bootstrap_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Koehn 2004: of B draws of n lines with replacement, how many differ from their mean by more
    than the real two do;
    (count + 1) / (B + 1)."""
    count = 250
    monkeypatch.setattr("composer.comparison.outputs.RESAMPLES", count)
    references, one = corpus(40, 1, 0.30)
    _, other = corpus(40, 1, 0.34)
    draws = np.random.default_rng(12345).choice(40, size=(count, 40), replace=True)
    bleu = BLEU(force=True)

    def score(lines: list[str], rows: np.ndarray) -> float:
        return bleu.corpus_score(
            [lines[row] for row in rows], [[references[row] for row in rows]]
        ).score

    apart = np.array([abs(score(other, rows) - score(one, rows)) for rows in draws])
    every = np.arange(40)
    real = abs(score(other, every) - score(one, every))
    result = compare_outputs(["a", "b"], [one, other], [references], BLEU_ALONE)
    (tested,) = result.metrics
    # sacreBLEU sums in 32 bits, but no draw is at the very edge
    assert tested.p_value == pytest.approx(
        ((apart - apart.mean() > real).sum() + 1) / (count + 1), abs=2e-3
    )
    assert 0.01 < tested.p_value < 0.99
    assert tested.scores[0] == pytest.approx(score(one, every))
    assert f"bs:{count}" in result.signatures[0]


def test_a_clear_difference_is_significant_and_none_is_not() -> None:
    references, good = corpus(80, 2, 0.1)
    _, bad = corpus(80, 2, 0.8)
    assert p_value([good, bad], [references]) < 0.01
    same = compare_outputs(["a", "b"], [good, good], [references], BLEU_ALONE)
    assert (same.metrics[0].p_value, same.same_lines) == (1.0, 80)
    nothing = compare_outputs(["a", "b"], [["x"] * 80, ["y"] * 80], [references], BLEU_ALONE)
    assert (nothing.metrics[0].scores, nothing.metrics[0].p_value) == ((0.0, 0.0), 1.0)


@pytest.mark.parametrize("pair", [(0, 0), (1, 0), (3, 3), (5, 1), (2, 9), (40, 20)])
def test_the_sign_test_is_that_of_a_fair_coin(pair: tuple[int, int]) -> None:
    """All outcomes of the tosses that are no likelier than what was seen, each with its
    probability.
    """
    tosses = sum(pair)
    chances = [math.comb(tosses, heads) / 2**tosses for heads in range(tosses + 1)]
    wanted = sum(item for item in chances if item <= chances[pair[0]] * (1 + 1e-9))
    assert sign_test(*pair) == pytest.approx(wanted)
    assert sign_test(*pair) == sign_test(*reversed(pair))


def test_lines_too_short_for_bleu_are_compared_too() -> None:
    references = [str(number) for number in range(30)]
    one, other = [*references[:20], *["x"] * 10], [*["x"] * 2, *references[2:30]]
    result = compare_outputs(["a", "b"], [one, other], [references], BLEU_ALONE)
    assert (result.metrics[0].scores, result.metrics[0].p_value) == ((0.0, 0.0), 1.0)
    assert [(item.right, item.right_alone) for item in (result.one, result.other)] == [
        (20, 2),
        (28, 10),
    ]
    assert result.right_p_value == sign_test(2, 10) < 0.05
    assert "BLEU needs lines of four words" in comparison_text(result)


def test_the_p_value_does_not_depend_on_the_order_of_the_runs() -> None:
    references, one = corpus(40, 3, 0.3)
    _, other = corpus(40, 3, 0.4)
    assert p_value([one, other], [references]) == p_value([other, one], [references])


@pytest.mark.parametrize("name", [name for name in text_metrics() if name != "exact_match"])
def test_the_metrics_of_the_recipe_are_compared(name: str) -> None:
    references, good = corpus(60, 5, 0.1)
    _, bad = corpus(60, 5, 0.6)
    metrics = TextMetrics((name, "exact_match"), "13a")
    (tested,) = compare_outputs(["a", "b"], [good, bad], [references], metrics).metrics
    assert tested.metric == name
    columns = [[*references]]
    for texts, score in zip((good, bad), tested.scores, strict=True):
        assert score == pytest.approx(metrics.score(name, compare(texts, columns)))
    assert tested.p_value < 0.01
    assert all(
        0 < interval < abs(tested.scores[1] - tested.scores[0]) for interval in tested.intervals
    )


def test_error_rates_are_drawn_as_sacrebleu_draws_its_metrics() -> None:
    """TER of texts without shifts is the word error rate in percent."""
    references, one = corpus(40, 6, 0.30)
    _, other = corpus(40, 6, 0.34)
    metrics = TextMetrics(("ter", "word_error_rate"), "13a")
    ter, rate = compare_outputs(["a", "b"], [one, other], [references], metrics).metrics
    assert rate.p_value == pytest.approx(ter.p_value, abs=0.1)
    assert rate.intervals == pytest.approx([interval / 100 for interval in ter.intervals], rel=0.2)


def test_of_several_references_the_closest_counts() -> None:
    lines = ["a b c d"] * 4
    metrics = TextMetrics(("word_error_rate",), "13a")
    both = [["x y"] * 4, ["a b c x"] * 4]
    (tested,) = compare_outputs(["a", "b"], [lines, ["a b c x"] * 4], both, metrics).metrics
    assert tested.scores == (0.25, 0.0)
    text = comparison_text(compare_outputs(["a", "b"], [lines, both[1]], both, metrics))
    assert "word error rate: 25.0% ± 0.0% and 0.0% ± 0.0%, -25.00 points: p = " in text
    assert "BLEU" not in text


def test_any_reference_of_a_line_is_right() -> None:
    references, other_references = corpus(20, 3, 0.5)
    result = compare_outputs(
        ["a", "b"], [references, other_references], [references, other_references], BLEU_ALONE
    )
    assert (result.one.right, result.other.right, result.lines) == (20, 20, 20)
    assert result.metrics[0].scores == pytest.approx((100, 100))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs on the same text, with other weights."""
    home = tmp_path_factory.mktemp("two")
    one = made(home / "one", GRU, decoding="greedy")
    return one, made(home / "other", GRU, decoding="greedy", seed=1, like=one)


def test_two_runs_are_compared_by_their_translations(two: tuple[Path, Path]) -> None:
    result = compare_trials(*two)
    references = (two[0].parent / "data" / "test.1").read_text(encoding="utf-8").splitlines()
    sources = (two[0].parent / "data" / "test.0").read_text(encoding="utf-8").splitlines()
    answers = [open_run(run).translate(sources) for run in two]
    chosen = run_metrics(open_run(two[0]), references)
    assert result == compare_outputs([str(run) for run in two], answers, [references], chosen)
    assert result.lines == 12
    text = comparison_text(result)
    assert f"p = {result.right_p_value:.2g}" in text
    assert "not reliable" in text
    assert "\nBLEU|nrefs:1|" in text


def test_runs_with_other_test_lines_are_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = made(tmp_path / "run", GRU, decoding="greedy")
    file = tmp_path / "data" / "test.1"
    file.write_text(file.read_text(encoding="utf-8").replace("eins", "zwei"), encoding="utf-8")
    with pytest.raises(RunError, match="different test lines"):
        compare_trials(two[0], other)


def test_runs_that_measure_bleu_otherwise_are_refused(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    other = shutil.copytree(two[1].parent, tmp_path / "other") / two[1].name
    recipe = other / "recipe.yaml"
    recipe.write_text(
        recipe.read_text(encoding="utf-8") + "evaluation: {bleu_tokenizer: char}\n",
        encoding="utf-8",
    )
    change_record(RunDir(other), recipe_sha256=sha256_of_file(recipe))
    with pytest.raises(RunError, match="by different tokenizers \\(`13a` and `char`\\)"):
        compare_trials(two[0], other)


def test_a_language_model_is_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(RunError, match="a language model translates nothing"):
        compare_trials(two[0], made(tmp_path / "run", LANGUAGE))


def test_nothing_is_announced_where_nothing_is_translated(tmp_path: Path) -> None:
    runs, said = (
        [made(tmp_path / name, LANGUAGE, seed=seed) for seed, name in enumerate("ab")],
        list[str](),
    )
    for run in runs:
        change_record(RunDir(run), scores={"test/loss": 1.0})
    result = diff(*runs, log=said.append)
    assert said == []
    assert (
        "no p: a language model translates nothing, and its scores are those of its own training"
        in result.text()
    )

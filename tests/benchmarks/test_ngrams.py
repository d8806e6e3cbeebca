"""N-grams: bits per line of a run, and the optimum on the same lines."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks import ngrams
from composer.data.tasks.sequences import DynamicNgrams
from composer.recipe.recipe import load
from composer.training.train import train

RECIPE = """
recipe: 1
name: predicted
data:
  generate: {dynamic_ngrams: {context: 2, min_length: 12, max_length: 12, train: 40, val: 5,
    test: 30}}
  tokenizer: {bits: {size: 1}}
model:
  width: 4
  embedding: linear
  output: {kind: sigmoid}
  decoder: [rnn]
training: {max_steps: 1, tokens_per_batch: 100}
logging: {wandb: false}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ngrams")
    (folder / "t.yaml").write_text(RECIPE, encoding="utf-8")
    train(load(folder / "t.yaml"), run=folder / "run")
    return folder / "run"


def test_the_optimum_is_that_of_the_test_lines_of_the_run(run: Path) -> None:
    row = ngrams.read_run(run)
    lines = DynamicNgrams(context=2, min_length=12, max_length=12, test=30).generate("test").target
    assert row.least == ngrams.ngrams_optimum(lines, 2)
    assert (
        row.bits == json.loads((run / "run.json").read_text())["scores"]["test/bits_per_sequence"]
    )
    assert row.least < row.bits < 24


def beta_integral(ones: int, zeros: int) -> float:
    """The probability of so many ones and zeros in this order, p drawn from Beta(1/2, 1/2): a
    quotient of Betas.
    """
    log = math.lgamma(ones + 0.5) + math.lgamma(zeros + 0.5) - math.lgamma(ones + zeros + 1)
    return math.exp(log - 2 * math.lgamma(0.5))


@pytest.mark.parametrize("context", [0, 1, 3])
def test_the_optimum_is_the_bayesian_probability_of_the_line(context: int) -> None:
    lines = (
        DynamicNgrams(train=20, min_length=2, max_length=40, context=context)
        .generate("train")
        .target
    )
    for line in lines:
        bits = line.split()
        counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for at in range(context, len(bits)):
            counts[tuple(bits[at - context : at])][bits[at]] += 1
        likely = 0.5 ** min(context, len(bits)) * math.prod(
            beta_integral(c["1"], c["0"]) for c in counts.values()
        )
        assert ngrams.ngrams_optimum([line], context) == pytest.approx(-math.log2(likely))
    assert ngrams.ngrams_optimum(lines, context) == pytest.approx(
        sum(ngrams.ngrams_optimum([line], context) for line in lines) / len(lines)
    )


def test_the_optimum_equals_a_product_of_fractions() -> None:
    # after one even bit: 0 0 is 1/2, then 0 0 again 3/4, then 0 1 is 1/6, then 1 0 is 1/2
    assert ngrams.ngrams_optimum(["0 0 0 1 0"], 1) == pytest.approx(
        -math.log2(
            Fraction(1, 2) * Fraction(1, 2) * Fraction(3, 4) * Fraction(1, 6) * Fraction(1, 2)
        )
    )


def test_the_probabilities_of_all_lines_add_up_to_one() -> None:
    lines = [" ".join(bits) for bits in itertools.product("01", repeat=7)]
    assert sum(2 ** -ngrams.ngrams_optimum([line], 2) for line in lines) == pytest.approx(1.0)

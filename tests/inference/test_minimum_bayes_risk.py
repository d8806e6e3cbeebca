"""`mbr`: the sample that scores best against all samples, by cases that are computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from composer.errors import RunError
from composer.inference.decoders.minimum_bayes_risk import best_by_utility
from composer.inference.decoders.search import Hypothesis, Options, RowBatch, Search
from composer.inference.methods import Beam, Mbr
from composer.metrics.table import METRICS
from tests.inference.small_models import Written, decode, model_of, sized

SOURCES = [[5, 6, 7], [4, 5], [9], [8, 8, 8, 8, 8, 10], []]
TEXTS = {4: "the cat sat down", 5: "the cat sat up", 6: "no"}


def choose(samples: list[int], metric: str, n_best: int = 1) -> list[Hypothesis]:
    options = Options(n_best, lambda rows: [TEXTS[ids[0]] for ids in rows])
    search = Search([], RowBatch({}, [[]], [0]), options)
    hypotheses = [Hypothesis([token], -at, -at, True) for at, token in enumerate(samples)]
    return best_by_utility(search, hypotheses, metric)


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_the_sample_that_is_most_like_the_others(metric: str) -> None:
    """`no` is twice there and the most probable, yet the two sentences, which are alike, score more
    on the mean.
    """
    ranked = choose([6, 4, 6, 5, 4], metric, n_best=3)
    assert [best.ids for best in ranked] == [[4], [5], [6]]
    scorer = METRICS[metric].scorer(of_sentences=True)
    alike = scorer.sentence_score(TEXTS[4], [TEXTS[5]]).score
    unlike = scorer.sentence_score(TEXTS[4], [TEXTS[6]]).score
    assert ranked[0].normalised == pytest.approx((2 * 100 + alike + 2 * unlike) / 5)
    assert ranked[0].score == -1  # of two equal samples the more probable


def test_bleu_of_a_sentence_counts_the_n_grams_that_it_can_have() -> None:
    assert choose([6, 6], "bleu")[0].normalised == pytest.approx(100)


def test_a_common_answer_wins_against_a_more_probable_one() -> None:
    """Answers `4 x` share half of their words; each is less probable than `5 5`."""

    def table(tokens: tuple[int, ...]) -> dict[int, float]:
        if not tokens:
            return {4: 0.8, 5: 0.2}
        if len(tokens) == 1:
            return {5: 1.0} if tokens[0] == 5 else dict.fromkeys(range(6, 14), 0.125)
        return {2: 1.0}

    model: Any = Written(table, vocabulary=14)
    (beam,), (mbr,) = (
        decode([model], {}, how, [[]]) for how in (Beam(size=9), Mbr(samples=32, metric="bleu"))
    )
    assert beam[0].ids == [5, 5]
    assert mbr[0].ids[0] == 4


def test_answers_depend_on_the_number_and_the_seed_and_not_on_the_batch() -> None:
    model = model_of("mixed", target=9)
    how = Mbr(samples=6, max_length=12)
    together = decode([model], {"source": SOURCES}, how, n_best=2)
    alone = [
        decode([model], {"source": [ids]}, how, n_best=2, numbers=[at])[0]
        for at, ids in enumerate(SOURCES)
    ]
    assert [[best.ids for best in row] for row in together] == [
        [best.ids for best in row] for row in alone
    ]
    assert all(row[0].normalised >= row[-1].normalised for row in together)
    assert all(row[0].ids != row[1].ids for row in together if len(row) == 2)
    other = decode([model], {"source": SOURCES}, replace(how, seed=2), n_best=2)
    assert [row[0].ids for row in other] != [row[0].ids for row in together]


def test_answers_of_several_lengths_are_compared_by_their_probability() -> None:
    row = decode([sized("plain")], {"source": [[5, 6]]}, Mbr(samples=4), n_best=4)[0]
    assert [best.normalised for best in row] == [best.score for best in row]


def test_more_answers_than_samples_are_refused() -> None:
    with pytest.raises(RunError, match="4 samples have no 5 best answers"):
        decode([model_of("lstm")], {"source": SOURCES}, Mbr(samples=4), n_best=5)

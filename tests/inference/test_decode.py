"""Greedy search, beam search, sampling and ensembles: what is true of them for every model."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import composer.inference.decode as decoding
from composer.errors import RunError
from composer.inference import freed_memory
from composer.inference.decoders.sampling import truncate
from composer.inference.decoders.search import Hypothesis, Search
from composer.inference.methods import Beam, Greedy, Sample
from tests.inference.small_models import (
    DECODERS,
    Written,
    decode,
    every_answer,
    forward_score,
    model_of,
)

SOURCES = [
    [5, 6, 7],
    [4, 5],
    [9],
    [8, 8, 8, 8, 8, 10],
    [],
    [11, 4, 6, 7],
    [5],
    [10, 9, 8, 7, 6, 5, 4],
]
SHORT = {"max_length": 12}


def answers(model: Any, decoding: dict[str, Any], **more: Any) -> list[list[Hypothesis]]:
    models = model if isinstance(model, list) else [model]
    return decode(models, {"source": more.pop("sources", SOURCES)}, decoding, **more)


def texts(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[best.ids for best in row] for row in results]


def flat(results: list[list[Hypothesis]]) -> Tensor:
    return torch.tensor([best.score for row in results for best in row])


EVERY = [Greedy(**SHORT), Beam(size=4, **SHORT), Sample(temperature=1.3, seed=3, **SHORT)]


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("how", EVERY, ids=lambda how: how.word)
def test_scores_are_those_of_forward(kind: str, how: dict[str, Any]) -> None:
    model = model_of(kind)
    n_best = 1 if how.one_answer else 3
    for source, row in zip(SOURCES, answers(model, how, n_best=n_best), strict=True):
        assert len(row) == n_best
        for best in row:
            assert best.score == pytest.approx(
                forward_score(model, source, best.ids, best.ended), abs=2e-4
            )


@pytest.mark.parametrize("how", EVERY, ids=lambda how: how.word)
def test_a_forced_prefix_begins_the_answer_and_counts_in_its_score(how: dict[str, Any]) -> None:
    model = model_of("mixed")
    prefixes = [[4, 5], [], [6, 6, 6, 3], [3], [5, 4, 3], [], [4], [4, 4]]
    for source, prefix, (best, *_) in zip(
        SOURCES, prefixes, answers(model, how, prefixes=prefixes), strict=True
    ):
        assert best.ids[: len(prefix)] == prefix
        assert best.score == pytest.approx(
            forward_score(model, source, best.ids, best.ended), abs=2e-4
        )


def test_a_prefix_of_the_best_answer_changes_nothing() -> None:
    model = model_of("mixed", sharp=3.0)
    free = answers(model, Greedy(**SHORT))
    prefixes = [row[0].ids[:2] for row in free]
    longer = Greedy(max_length=12)
    for (one,), (other,) in zip(free, answers(model, longer, prefixes=prefixes), strict=True):
        assert other.ids[: len(one.ids)] == one.ids


@pytest.mark.parametrize("kind", DECODERS)
def test_a_beam_of_one_is_greedy(kind: str) -> None:
    for seed in range(5):
        model = model_of(kind, seed)
        greedy = answers(model, Greedy(**SHORT))
        single = answers(model, Beam(size=1, length_penalty=1.0, **SHORT))
        assert texts(single) == texts(greedy)
        torch.testing.assert_close(flat(single), flat(greedy))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_as_wide_as_everything_is_exhaustive(alpha: float) -> None:
    length, vocabulary = 4, 6
    for seed in range(4):
        model = model_of("mixed", seed, target=vocabulary, sharp=4.0)
        source = [5, 6, 7]
        best = every_answer(model, source, length, alpha=alpha)[:5]
        settings = {"size": 4**length, "length_penalty": alpha, "max_length": length}
        results = answers(model, Beam(**settings), sources=[source], n_best=5)[0]
        assert [best.ids for best in results] == [ids for _, ids in best]
        assert [best.normalised for best in results] == pytest.approx(
            [rank for rank, _ in best], abs=1e-4
        )


@pytest.mark.parametrize("how", EVERY, ids=lambda how: how.word)
def test_neither_order_nor_batch_changes_an_answer(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("mixed")
    together = answers(model, how)
    alone = [
        answers(model, how, sources=[source], numbers=[at])[0] for at, source in enumerate(SOURCES)
    ]
    assert texts(alone) == texts(together)
    monkeypatch.setattr(decoding, "MAX_ROWS", 3)
    assert texts(answers(model, how)) == texts(together)
    torch.testing.assert_close(flat(alone), flat(together), atol=1e-4, rtol=0)
    if not how.draws:
        assert texts(answers(model, how, sources=SOURCES[::-1])) == texts(together)[::-1]


@pytest.mark.parametrize("how", EVERY, ids=lambda how: how.word)
def test_rows_that_leave_late_change_nothing(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an accelerator, which is asked rarely which rows are done."""
    model = model_of("mixed", sharp=3.0)
    n_best = 1 if how.one_answer else 3
    at_once = answers(model, how, n_best=n_best)
    monkeypatch.setattr(Search, "is_check_due", lambda search, step: step % 8 == 0)
    late = answers(model, how, n_best=n_best)
    assert texts(late) == texts(at_once)
    torch.testing.assert_close(flat(late), flat(at_once), atol=1e-4, rtol=0)


@pytest.mark.parametrize("how", EVERY, ids=lambda how: how.word)
def test_a_model_twice_is_the_model(how: dict[str, Any]) -> None:
    model = model_of("mixed")
    alone, twice = answers(model, how), answers([model, model], how)
    assert texts(alone) == texts(twice)
    torch.testing.assert_close(flat(alone), flat(twice), atol=1e-4, rtol=0)


def test_an_ensemble_votes_with_the_mean_of_the_probabilities() -> None:
    models = [model_of("attention", 1), model_of("lstm", 2)]
    for source, (best,) in zip(SOURCES, answers(models, Beam(size=3, **SHORT)), strict=True):
        answer = [*best.ids, 2] if best.ended else best.ids
        score = 0.0
        for at, token in enumerate(answer):
            before = torch.tensor([[1, *answer[:at]]])
            with torch.no_grad():
                votes = [
                    model({"source": torch.tensor([[*source, 2]])}, before)[0, -1].softmax(-1)
                    for model in models
                ]
            score += math.log(sum(float(vote[token]) for vote in votes) / 2)
        assert best.score == pytest.approx(score, abs=2e-4)


def test_greedy_search_refuses_n_best() -> None:
    with pytest.raises(RunError, match="`greedy` finds one answer"):
        answers(model_of(), Greedy(), n_best=2)
    with pytest.raises(RunError, match="a beam of 2"):
        answers(model_of(), Beam(size=2), n_best=3)


def test_n_best_are_ranked_and_distinct() -> None:
    for row in answers(model_of(sharp=4.0), Beam(size=6, **SHORT), n_best=6):
        assert len({(tuple(best.ids), best.ended) for best in row}) == 6
        ended = [best.normalised for best in row if best.ended]
        assert ended == sorted(ended, reverse=True)
        assert [best.ended for best in row] == sorted((best.ended for best in row), reverse=True)


def test_batches_have_similar_lengths_and_a_limited_size() -> None:
    lengths = [3, 900, 3, 4, 3, 5000, 20_000]
    assert decoding.batches(lengths) == [[6], [5], [1, 3, 0, 2, 4]]
    assert [len(batch) for batch in decoding.batches([5] * 300)] == [64, 64, 64, 64, 44]
    assert [len(batch) for batch in decoding.batches([5] * 30, hypotheses=100)] == [10, 10, 10]
    assert [len(batch) for batch in decoding.batches([5] * 2, hypotheses=10_000)] == [1, 1]


def test_batches_have_prompts_of_similar_length() -> None:
    """A batch is as wide as its longest prompt, and has logits of all tokens at each position."""
    shares: list[float] = []
    prompts = [[4] * 5000, [5], [4] * 5000, [6]]
    decode(
        [model_of([{"rnn": {}}], source=False)],
        {},
        Greedy(max_length=1),
        prompts,
        on_batch=shares.append,
    )
    assert shares == [0.25, 0.5, 1.0]


def test_training_mode_is_left_as_it_was() -> None:
    model = model_of([{"dropout": {"rate": 0.5}}, {"rnn": {}}]).train()
    first, second = answers(model, Greedy(**SHORT)), answers(model, Greedy(**SHORT))
    assert texts(first) == texts(second)
    assert model.training


# ------------------------------------------------------------------------------------------- the
# stop rule


def from_table(
    table: dict[tuple[int, ...], dict[int, float]], **settings: Any
) -> tuple[list[Hypothesis], int]:
    model = Written(lambda tokens: table.get(tokens, {2: 1.0}), 8)
    n_best = settings.pop("n_best", 1)
    return decode([model], {}, Beam(**settings), prefixes=[[]], n_best=n_best)[0], model.steps  # type: ignore[list-item]


LATE = {(): {2: 0.5, 3: 0.5 - 1e-3, 4: 1e-3}, (3,): {4: 1.0}, (3, 4): {5: 1.0}, (3, 4, 5): {6: 1.0}}
"""Ends at once with p = 0.5, or after four tokens more with almost as much."""


def test_the_first_finished_hypothesis_need_not_be_the_best() -> None:
    (best,), _ = from_table(LATE, size=3, length_penalty=1.0)
    assert best.ids == [3, 4, 5, 6]
    assert best.score == pytest.approx(math.log(0.499))
    assert best.normalised == pytest.approx(math.log(0.499) / (10 / 6))


def test_without_a_length_penalty_the_search_stops_at_the_first_finished_best() -> None:
    (best,), steps = from_table(LATE, size=3, length_penalty=0.0)
    assert best.ids == []
    assert steps == 1


def test_the_search_stops_when_no_growing_hypothesis_can_win() -> None:
    table = {(): {2: 0.9, 3: 0.1}} | {(3,) * n: {3: 1.0} for n in range(1, 40)}
    (best,), steps = from_table(table, size=2, length_penalty=1.0, max_length=30)
    assert best.ids == []
    assert steps == 1  # log 0.1 / (35 / 6) is below log 0.9


def test_an_answer_without_eos_is_truncated() -> None:
    table = {(3,) * n: {3: 1.0} for n in range(100)}
    (best,), steps = from_table(table, size=2, max_length=10)
    assert (best.ids, best.ended, steps) == ([3] * 10, False, 10)


def test_finished_hypotheses_rank_before_truncated_ones() -> None:
    table = {(3,) * n: {3: 0.99, 2: 0.01} for n in range(100)}
    first, second, *_ = from_table(table, size=3, n_best=3, max_length=5, length_penalty=0.0)[0]
    assert first.ended
    assert second.score < first.score


def test_a_beam_that_starts_narrow_widens() -> None:
    table = {
        (): {3: 1.0},
        (3,): {4: 0.6, 5: 0.4},
        (3, 4): {2: 0.1, 3: 0.9},
        (3, 4, 3): {5: 0.5, 6: 0.5},
        (3, 5): {2: 1.0},
    }
    (best, *_), _ = from_table(table, size=4, length_penalty=0.0, n_best=2)
    assert best.ids == [3, 5]


def test_a_token_costs_one_step() -> None:
    table = {(3,) * n: {3: 1.0} for n in range(20)}
    model = Written(lambda tokens: table.get(tokens, {2: 1.0}), 8)
    for how in (Greedy(), Beam(size=1), Sample()):
        model.steps = 0
        (best,) = decode([model], {}, how, prefixes=[[3, 3, 3]])[0]  # type: ignore[list-item]
        assert best.ids == [3] * 20
        assert model.steps == 18  # 17 tokens and eos


# -------------------------------------------------------------------------------------------
# sampling


def test_samples_follow_the_probabilities() -> None:
    model = Written(lambda tokens: {2: 1.0} if tokens else {3: 0.5, 4: 0.3, 5: 0.2}, 8)
    results = decode([model], {}, Sample(), prefixes=[[]], n_best=2000)[0]  # type: ignore[list-item]
    shares = [sum(best.ids == [token] for best in results) / 2000 for token in (3, 4, 5)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.04)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {3, 4}),
        ({"top_p": 0.6}, {3, 4}),
        ({"top_p": 0.5}, {3}),
        ({"top_k": 100, "top_p": 1.0}, {3, 4, 5}),
        ({"temperature": 0.01}, {3}),
        ({"temperature": 1e-40}, {3}),
    ],
)
def test_top_k_and_top_p_restrict_sampling(settings: dict[str, Any], allowed: set[int]) -> None:
    model = Written(lambda tokens: {2: 1.0} if tokens else {3: 0.5, 4: 0.3, 5: 0.2}, 8)
    results = decode([model], {}, Sample(**settings), prefixes=[[]], n_best=200)[0]  # type: ignore[list-item]
    assert {best.ids[0] for best in results} == allowed


def test_samples_differ_by_seed_and_by_row_number() -> None:
    model = model_of(sharp=0.5)
    one, same, other = (answers(model, Sample(seed=seed, **SHORT), n_best=2) for seed in (1, 1, 2))
    assert texts(one) == texts(same)
    assert texts(one) != texts(other)
    twice = answers(model, Sample(**SHORT), sources=[[5, 6]] * 2)
    assert texts(twice)[0] != texts(twice)[1]


def test_freed_memory_is_given_back_where_the_process_has_doubled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = iter([100, 150, 200, 201, 90, 180, 181])
    monkeypatch.setattr(freed_memory, "resident_memory", lambda: next(sizes))
    before, is_trimmed = 0, []
    for _ in range(7):
        before = freed_memory.trim_if_doubled(before)
        is_trimmed.append(before == 0)
    assert is_trimmed == [False, False, False, True, False, False, True]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's memory")
def test_what_is_given_back_is_no_longer_in_memory() -> None:
    freed_memory.keep_freed_memory()
    buffers = [torch.ones(1 << 20) for _ in range(25)]  # 4 MiB each
    full = freed_memory.resident_memory()
    buffers.clear()
    assert freed_memory.trim_if_doubled(1) == 0
    assert freed_memory.resident_memory() < full - (75 << 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("top_k", [1, 2, 3, 5])
def test_top_k_keeps_no_more_than_k_where_scores_are_equal(top_k: int, dtype: torch.dtype) -> None:
    values = torch.tensor(
        [[0, -1, 0, -1, 0, -1], [0, 0, 0, 0, 0, 0], [-2, -1, 0, -3, -4, -5]], dtype=dtype
    )
    inside = truncate(values, top_k, None, None).isfinite()
    assert inside.sum(1).tolist() == [top_k] * 3
    columns = [row.nonzero()[:, 0].tolist() for row in inside]
    assert columns[0] == sorted([0, 2, 4, 1, 3, 5][:top_k])  # of equal ones those with smaller ids
    assert columns[1] == [*range(top_k)]
    alone = truncate(values[2:], top_k, None, None)  # without a tie
    assert alone.equal(truncate(values, top_k, None, None)[2:])
    inside = [2, 1, 0, 3, 4][:top_k]
    assert alone[0].isfinite().nonzero()[:, 0].tolist() == sorted(inside)
    assert alone[0, inside].equal(values[2, inside])

"""The search over sizes, beside every answer that can be written, and the rule about where an
answer of a size ends.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import composer.inference.decode as decoding
from composer.inference.answers import SourceLines
from composer.inference.decode import Row, length_queries, make_rows
from composer.inference.decoders.search import Hypothesis, Search
from composer.inference.methods import Beam, Greedy, Sample, Viterbi
from composer.inference.target_lengths import (
    LengthConstraint,
    LengthQuery,
    length_constraint,
    token_limit,
)
from composer.model.encoder_decoder import EncoderDecoder
from composer.testing import LawError
from composer.testing.model_laws import searching
from composer.training.validation_decoder import MAX_QUERIES, ValidationDecoder
from tests.inference.small_models import (
    SIZED,
    TARGET,
    decode,
    every_answer,
    forward_score,
    model_of,
    sized,
)

SOURCES = [[5, 6], [4, 7, 9, 10], [], [11, 4, 6]]
FREE = {"max_length": 64}
EVERY = [Greedy(**FREE), Beam(size=3, **FREE), Sample(temperature=1.3, **FREE)]
CHAINS = ["plain", "markov"]


def answers(model: EncoderDecoder, how: dict[str, Any], **more: Any) -> list[list[Hypothesis]]:
    return decode([model], {"source": more.pop("sources", SOURCES)}, how, **more)


def texts(results: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.ids for hypothesis in row] for row in results]


# ------------------------------------------------------------------------------------------- every
# answer


@pytest.mark.parametrize("kind", SIZED)
@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_beam_as_wide_as_everything_finds_the_best_of_all_sizes(kind: str, alpha: float) -> None:
    chosen = set()
    for seed in range(3):
        model = sized(kind, seed, target=5, sharp=4.0)
        best = every_answer(model, [5, 6], most=6, alpha=alpha)[:5]
        how = Beam(size=64, length_penalty=alpha)
        results = answers(model, how, sources=[[5, 6]], n_best=5)[0]
        assert [hypothesis.ids for hypothesis in results] == [ids for _, ids in best]
        assert [hypothesis.normalised for hypothesis in results] == pytest.approx(
            [rank for rank, _ in best], abs=1e-4
        )
        chosen |= {max(3, len(ids) + 1) for _, ids in best}
    assert len(chosen) > 1, "one size was always the best, so nothing was chosen"


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("prefix", [(), (4,), (3, 4, 3), (4, 4, 4, 4)])
def test_viterbi_finds_the_best_of_all_sizes(kind: str, prefix: tuple[int, ...]) -> None:
    for seed in range(4):
        model = sized(kind, seed, target=5, sharp=4.0)
        score, ids = every_answer(model, [5, 6], 6 - len(prefix), prefix)[0]
        (best,) = answers(model, Viterbi(), sources=[[5, 6]], prefixes=[prefix])[0]
        assert best.ids == ids
        assert best.score == pytest.approx(score, abs=1e-4)


# ------------------------------------------------------------------------------------------- what
# holds of each answer


@pytest.mark.parametrize("kind", SIZED)
@pytest.mark.parametrize("how", EVERY, ids=lambda how: how.word)
def test_scores_are_those_of_forward_at_the_size_of_the_answer(
    kind: str, how: dict[str, Any]
) -> None:
    model = sized(kind)
    prefixes = [(), (3, 4), (5, 6), ()]
    for forced in (None, prefixes):
        results = answers(model, how, prefixes=forced, n_best=1 if how.one_answer else 3)
        for source, prefix, row in zip(SOURCES, forced or [()] * 4, results, strict=True):
            for hypothesis in row:
                assert hypothesis.ended
                assert len(hypothesis.ids) + 1 <= max(2 * (len(source) + 1), len(prefix) + 1)
                assert hypothesis.ids[: len(prefix)] == [*prefix]
                assert hypothesis.score == pytest.approx(
                    forward_score(model, source, hypothesis.ids, True), abs=2e-4
                )


@pytest.mark.parametrize("kind", SIZED)
@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_the_law_of_searching_holds(kind: str, ratio: float) -> None:
    searching(sized(kind, target=8, ratio=ratio))


def test_the_law_of_searching_catches_an_eos_that_comes_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = sized("plain", target=8)
    monkeypatch.setattr(LengthConstraint, "allowed", lambda sizes, log_p, rows, length: log_p)
    with pytest.raises(LawError, match="searching"):
        searching(model)


def test_a_length_constraint_allows_eos_at_the_right_steps() -> None:
    """Three questions of a source of two words: of its own size, of a larger one, and after a
    prefix of two words.
    """
    queries = [LengthQuery(0, 3, 3), LengthQuery(0, 4, 3), LengthQuery(1, 4, 3)]
    sizes = length_constraint(queries, [(), (), (5, 6)], model_of().output.weight.device)
    assert sizes is not None
    assert sizes.target_mask().sum(1).tolist() == [3, 4, 4]
    log_p = sizes.left.new_zeros(3, 2).float()  # eos and a word
    can = [
        (sizes.allowed(log_p, sizes.left.new_tensor([0, 1, 2]), length) == 0).tolist()
        for length in range(4)
    ]
    assert [step[0] for step in can] == [[True, True], [True, True], [True, False], [True, False]]
    assert [step[1] for step in can] == [[False, True], [False, True], [False, True], [True, False]]
    assert [step[2] for step in can][:2] == [[False, True], [True, False]]


# ------------------------------------------------------------------------------------------- which
# sizes are asked


def stand_in(**ratios: float) -> Any:
    readers = {key: SimpleNamespace(max_target_ratio=ratio) for key, ratio in ratios.items()}
    ratio = max(ratios.values())
    return SimpleNamespace(
        max_target_ratio=ratio, readers=lambda: readers, encoders=readers, vocabulary=9
    )


def sizes_asked(model: Any, lengths: dict[str, int], prefix: int = 0, limit: int = 99) -> list[int]:
    row = Row({key: [5] * (length - 1) for key, length in lengths.items()}, (4,) * prefix)
    queries = length_queries([model], [row], Greedy(max_length=limit, max_ratio=99.0))
    return [query.size for query in queries]


def test_sizes_go_from_the_source_to_its_room() -> None:
    assert sizes_asked(stand_in(source=2.0), {"source": 4}) == [4, 5, 6, 7, 8]
    assert sizes_asked(stand_in(source=1.5), {"source": 3}) == [3, 4, 5]
    assert sizes_asked(stand_in(source=1.1), {"source": 10}) == [10, 11]
    assert sizes_asked(stand_in(source=1.0), {"source": 7}) == [7]
    assert sizes_asked(stand_in(source=0.0), {"source": 7}) == [0]


def test_a_prefix_leaves_room_for_itself() -> None:
    assert sizes_asked(stand_in(source=2.0), {"source": 3}, prefix=4) == [5, 6]
    assert sizes_asked(stand_in(source=2.0), {"source": 3}, prefix=9) == [10]
    assert sizes_asked(stand_in(source=2.0), {"source": 3}, prefix=2) == [3, 4, 5, 6]


def test_a_limit_cuts_sizes_but_the_first() -> None:
    assert sizes_asked(stand_in(source=2.0), {"source": 4}, limit=6) == [4, 5, 6]
    assert sizes_asked(stand_in(source=2.0), {"source": 4}, limit=2) == [4]
    assert sizes_asked(stand_in(source=2.0), {"source": 4}, prefix=3, limit=2) == [4, 5]
    assert [token_limit(*arguments) for arguments in ((0, 9, 3.0), (4, 500, 2.5), (4, 9, 2.5))] == [
        9,
        60,
        9,
    ]


def test_of_two_sources_the_shorter_begins_and_the_larger_room_ends() -> None:
    assert sizes_asked(stand_in(a=1.0, b=2.0), {"a": 5, "b": 3}) == [3, 4, 5, 6]
    assert sizes_asked(stand_in(a=2.0, b=0.0), {"a": 3, "b": 9}) == [3, 4, 5, 6]


def test_a_row_without_extra_room_has_one_query() -> None:
    for model in (sized("plain", ratio=1.0), model_of()):
        rows = make_rows({"source": [[5, 6], [5] * 4, []]})
        queries = length_queries([model], rows, Greedy())
        assert [query.row for query in queries] == [0, 1, 2]


def of_lines(sources: list[list[int]], part: str) -> ValidationDecoder:
    unused: Any = None
    lines = SourceLines(len(sources), range(len(sources)), make_rows({"source": sources}))
    return ValidationDecoder([], lines, unused, unused, part, Greedy(), unused)


def test_validation_decodes_fewer_sentences_where_rows_have_many_lengths() -> None:
    sample, whole = (of_lines([[5] * 9] * 200, part) for part in ("val_sample", "val"))
    for ratio, many in ((1.0, 200), (2.0, MAX_QUERIES // 11)):
        assert sample.count_lines(sized("plain", ratio=ratio)) == many
        assert whole.count_lines(sized("plain", ratio=ratio)) == 200
    assert of_lines([[5] * 899] * 2, "val_sample").count_lines(sized("plain")) == 2
    assert of_lines([], "val_sample").count_lines(model_of()) == 0


def test_an_answer_that_may_not_reach_the_size_of_its_source_is_cut() -> None:
    how = Greedy(max_length=2)
    models = [sized("plain", seed, sharp=4.0) for seed in range(8)]
    cut = [answers(model, how, sources=[[4, 5, 6, 7, 8, 9]])[0][0] for model in models]
    assert {hypothesis.ended for hypothesis in cut} == {True, False}
    assert all(len(hypothesis.ids) == 2 for hypothesis in cut if not hypothesis.ended)


# -------------------------------------------------------------------------------------------
# batches


@pytest.mark.parametrize("how", [*EVERY, Viterbi(**FREE)], ids=lambda how: how.word)
def test_neither_order_nor_batch_changes_an_answer(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sized("markov")
    together = answers(model, how)
    assert texts(
        [
            answers(model, how, sources=[source], numbers=[at])[0]
            for at, source in enumerate(SOURCES)
        ]
    ) == texts(together)
    if not how.draws:
        assert texts(answers(model, how, sources=SOURCES[::-1])) == texts(together)[::-1]
    searches: list[Search] = []
    monkeypatch.setattr(
        decoding,
        "Search",
        lambda *fields, **more: searches.append(Search(*fields, **more)) or searches[-1],
    )
    monkeypatch.setattr(decoding, "MAX_TOKENS", 24)
    assert texts(answers(model, how)) == texts(together)
    lengths = [search.batch.lengths for search in searches]
    sizes = [length.size for length in lengths if length is not None]
    # from |x| + 1 to twice that
    assert sum(map(len, sizes)) == sum(len(source) + 2 for source in SOURCES)
    assert all(len(size) * int(size.max()) <= 24 for size in sizes)


def test_one_batch_gives_the_same_answers_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    model = sized("recurrent")
    how = Beam(size=2, **FREE)
    together = texts(answers(model, how, n_best=2))
    monkeypatch.setattr(decoding, "MAX_ROWS", 1)
    assert texts(answers(model, how, n_best=2)) == together


def test_a_truncated_answer_is_returned_once() -> None:
    one, two = (LengthQuery(0, size, 2) for size in (2, 3))
    cut, ended = Hypothesis([4], -1.0, -1.0, False), Hypothesis([4, 5], -2.0, -2.0, True)
    results = [[cut, cut], [replace(cut, normalised=-0.5), ended]]
    assert decoding.best_over_lengths([one, two], results, 3) == [
        [ended, replace(cut, normalised=-0.5)]
    ]


def test_a_model_of_sizes_and_one_without_vote() -> None:
    model, other = sized("markov", target=TARGET), model_of("attention", target=TARGET)
    (best,) = decode([model, other], {"source": [[5, 6]]}, Greedy(**FREE))[0]
    assert best.ended
    assert len(best.ids) < 6

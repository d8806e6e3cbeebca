"""`no_repeat_ngram`: no n-gram occurs twice in an answer, and nothing else changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from composer.inference.decoders.token_scores import exclude_repeated_ngrams
from composer.inference.methods import DECODERS as DECODING
from composer.inference.methods import Beam
from composer.recipe.recipe import load_text
from tests.inference.small_models import DECODERS, Written, decode, forward_score, model_of

SOURCES = [[5, 6, 7], [4, 5], [9], [8, 8, 8, 8, 8, 10], []]
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("greedy", {}),
    ("beam", {"size": 3}),
    ("sample", {"seed": 2}),
]


def answers(
    models: list[Any], name: str, settings: dict[str, Any], *args: Any, **more: Any
) -> list[list[Any]]:
    return decode(
        models, {"source": SOURCES}, DECODING[name](**{"max_length": 20, **settings}), *args, **more
    )


def repeats(ids: Sequence[int], size: int) -> bool:
    ngrams = [tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


@pytest.mark.parametrize(
    ("history", "size", "excluded"),
    [
        ([4, 5, 4], 2, [5]),  # 4 was followed by 5
        ([4, 5, 4, 6, 4], 2, [5, 6]),
        ([4, 5, 6, 4, 5], 3, [6]),
        ([4, 5, 6, 3, 5], 3, []),
        ([4, 5], 3, []),
        ([4, 5, 4], 1, [4, 5]),
        ([0, 0, 4], 3, []),  # padding of a shorter prefix
        ([0, 0, 0], 2, []),
        ([], 1, []),
    ],
)
def test_the_tokens_that_are_excluded(history: list[int], size: int, excluded: list[int]) -> None:
    log_p = torch.full((1, 5), 0.2).log()  # eos and the tokens 3 to 6
    result = exclude_repeated_ngrams(log_p, torch.tensor([history], dtype=torch.long), size)
    assert [token + 2 for token in range(5) if result[0, token] == -math.inf] == excluded
    assert result[result > -math.inf].tolist() == log_p[result > -math.inf].tolist()


def test_where_every_token_would_repeat_all_are_allowed() -> None:
    # eos is forbidden, as before the end of a known length
    log_p = torch.tensor([[-math.inf, 0.0, -math.inf]])
    assert torch.equal(exclude_repeated_ngrams(log_p, torch.tensor([[3, 3]]), 2), log_p)


@pytest.mark.parametrize(("name", "settings"), METHODS)
@pytest.mark.parametrize("size", [1, 3])
def test_no_answer_repeats_and_scores_are_those_of_the_model(
    name: str, settings: dict[str, Any], size: int
) -> None:
    n_best, repeated = 1 if name == "greedy" else 3, 0
    for kind in DECODERS:
        model = model_of(kind, target=6)
        with torch.no_grad():
            model.output.bias[2] = -3.0  # answers are long enough to repeat
        free = answers([model], name, settings, n_best=n_best)
        repeated += sum(repeats(best.ids, size) for row in free for best in row)
        limited = answers([model], name, {**settings, "no_repeat_ngram": size}, n_best=n_best)
        for source, row in zip(SOURCES, limited, strict=True):
            for best in row:
                assert not repeats(best.ids, size)
                assert best.score == pytest.approx(
                    forward_score(model, source, best.ids, best.ended), abs=2e-4
                )
    assert repeated


@pytest.mark.parametrize(("name", "settings"), METHODS)
def test_a_forced_prefix_counts_and_rows_are_independent(
    name: str, settings: dict[str, Any]
) -> None:
    model, prefixes = model_of("mixed", target=9), [[4, 5, 6, 4], [], [3], [5, 6, 5], [4]]
    settings = {**settings, "no_repeat_ngram": 2}
    together = answers([model], name, settings, prefixes)
    assert not any(repeats(best.ids, 2) for row in together for best in row)
    for at, source in enumerate(SOURCES):
        alone = decode(
            [model],
            {"source": [source]},
            DECODING[name](**{"max_length": 20, **settings}),
            [prefixes[at]],
            numbers=[at],
        )
        assert alone[0][0].ids == together[at][0].ids


def test_a_beam_of_one_is_greedy_and_an_n_larger_than_answers_changes_nothing() -> None:
    for seed in range(2):
        model = model_of("mixed", seed)
        for size in (1, 2, 30):
            greedy = answers([model, model], "greedy", {"no_repeat_ngram": size})
            beam = answers([model, model], "beam", {"size": 1, "no_repeat_ngram": size})
            assert [row[0].ids for row in beam] == [row[0].ids for row in greedy]
        for name, settings in METHODS:
            free = answers([model], name, settings)
            assert free == answers([model], name, {**settings, "no_repeat_ngram": 30})


def test_a_beam_finds_the_best_of_all_answers_that_do_not_repeat() -> None:
    """Without the setting, 4 4 and 4 4 4 would be among them."""

    def table(tokens: tuple[int, ...]) -> dict[int, float]:
        return {4: 0.5, 5: 0.1, 2: 0.4} if tokens else {4: 0.6, 5: 0.3, 2: 0.1}

    model: Any = Written(table, vocabulary=6)
    settings = {"size": 4, "length_penalty": 0.0, "max_length": 4}
    assert decode([model], {}, Beam(**settings), [[]], n_best=2)[0][1].ids == [4, 4]
    found = decode([model], {}, Beam(**settings, no_repeat_ngram=1), [[]], n_best=4)
    expected = {(4,): 0.6 * 0.4, (5, 4): 0.3 * 0.5 * 0.4, (): 0.1, (5,): 0.3 * 0.4}
    best = sorted(expected, key=lambda ids: -expected[ids])
    assert [tuple(answer.ids) for answer in found[0]] == best
    assert [answer.score for answer in found[0]] == pytest.approx(
        [math.log(expected[ids]) for ids in best]
    )


def test_recipes_without_it_keep_their_fingerprints(tmp_path: Any) -> None:
    text = (
        "recipe: 1\ndata: {generate: {copy: {}}}\nmodel: {width: 8, encoder: [rnn], decoder:"
        " [rnn]}\n"
    )
    absent, null, other = (
        load_text(text + decoding, tmp_path / "a.yaml").fingerprints["run"]
        for decoding in (
            "",
            "decoding: {greedy: {no_repeat_ngram: null}}",
            "decoding: {greedy: {no_repeat_ngram: 3}}",
        )
    )
    assert absent == null != other

"""A decoding method is one function with a decorator: the recipe language and every check know it from there."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch

from blocks.core.contract import Count, Positive
from composer.errors import RunError
from composer.inference.decode import decode_all
from composer.inference.decoders import (
    DECODERS,
    Hypothesis,
    Search,
    beam_search,
    decoder,
    prefill,
    reorder_state,
)
from composer.model.encoder_decoder import EOS
from composer.recipe.registry import CHOICES
from composer.recipe.schema_generator import choice_schema
from tests.inference.small_models import PLACES, model_of


@pytest.fixture(autouse=True)
def new_method() -> Iterator[None]:
    """Register a method that writes the most probable first token, and nothing after it."""

    @decoder(first_order=True, one_answer=True)
    def first_token(search: Search, *, max_length: Count = 1, max_ratio: Positive = 3.0) -> list[list[Hypothesis]]:
        """Write one token.

        Settings:
            max_length: is 1
            max_ratio: is not used
        """
        log_p, _, _ = prefill(search)
        score, token = log_p.max(-1)
        pairs = zip((token + EOS).tolist(), score.tolist(), strict=True)
        return [[Hypothesis([index], value, value, False)] for index, value in pairs]

    yield
    del DECODERS["first_token"]


def test_the_schema_has_the_method_with_its_settings() -> None:
    assert CHOICES["decoders"].constructors()["first_token"] is DECODERS["first_token"]
    schema = choice_schema("decoders", DECODERS, "", "decoding method")
    (method,) = [branch for name, branch in schema.items() if name == "decoders.first_token"]
    assert method["description"] == "Write one token."
    assert list(method["properties"]) == ["max_length", "max_ratio"]


def test_the_method_decodes_and_is_checked_by_its_traits() -> None:
    model, stateless = model_of("lstm"), model_of([PLACES])
    answers = decode_all([stateless], {"source": [[5], [6, 7]]}, {"first_token": {}})
    assert [len(best.ids) for (best,) in answers] == [1, 1]
    with pytest.raises(RunError, match="`first_token` needs a decoder whose next token depends on the last one alone"):
        decode_all([model], {"source": [[5]]}, {"first_token": {}})
    with pytest.raises(RunError, match="`first_token` finds one answer, and 3 are requested"):
        decode_all([stateless], {"source": [[5]]}, {"first_token": {}}, n_best=3)


@pytest.mark.parametrize(("vocabulary", "count"), [(8000, 1), (8000, 5), (8010, 5), (700, 5), (90, 2)])
def test_the_largest_numbers_are_those_of_topk(vocabulary: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_search, "LARGE", 0)
    numbers = torch.randn(20, vocabulary + 3)[:, 3:]
    numbers[::2, -4:] += 9  # what is behind the last block
    for ours, expected in zip(beam_search.top_k(numbers, count), numbers.topk(count), strict=True):
        assert torch.equal(ours, expected)


def test_a_state_is_freed_when_nobody_holds_it() -> None:
    """At once, not when Python looks for cycles: states are the largest part of a search's memory."""
    gc.disable()
    try:
        state = (torch.ones(3, 4), (torch.ones(3),))
        after = reorder_state(state, torch.tensor([0, 0, 2]))
        leaf = weakref.ref(after[0])
        del after
        assert leaf() is None
    finally:
        gc.enable()

"""A way of decoding is one class: the recipe language and every check know it from there."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from blocks.core.settings import Count, Positive
from composer.errors import RunError
from composer.inference.decoders import token_scores
from composer.inference.decoders.decoder_state import prefill, reorder_state
from composer.inference.decoders.search import Hypothesis, Search
from composer.inference.methods import DECODERS
from composer.model.special_tokens import EOS
from composer.recipe.choices import Decoder
from composer.recipe.schema_generator import choice_schema
from tests.inference.small_models import PLACES, decode, model_of


class FirstToken(Decoder):
    """Write one token.

    Settings:
        max_length: is 1
        max_ratio: is not used
    """

    word = "first_token"
    first_order = True
    one_answer = True
    max_length: Count = 1
    max_ratio: Positive = 3.0

    def decode(self, search: Search) -> list[list[Hypothesis]]:
        """Write the most probable first token, and nothing after it."""
        score, token = prefill(search).log_p.max(-1)
        pairs = zip((token + EOS).tolist(), score.tolist(), strict=True)
        return [[Hypothesis([index], value, value, False)] for index, value in pairs]


def test_the_schema_has_a_way_of_decoding_with_its_settings() -> None:
    schema = choice_schema(
        "decoders", {**DECODERS, "first_token": FirstToken}, "", "way of decoding"
    )
    way = schema["decoders.first_token"]
    assert way["description"] == "Write one token."
    assert list(way["properties"]) == ["max_length", "max_ratio"]


def test_it_decodes_and_is_checked_by_its_traits() -> None:
    model, stateless = model_of("lstm"), model_of([PLACES])
    answers = decode([stateless], {"source": [[5], [6, 7]]}, FirstToken())
    assert [len(best.ids) for (best,) in answers] == [1, 1]
    with pytest.raises(
        RunError,
        match="`first_token` needs a decoder whose next token depends on the last one alone",
    ):
        decode([model], {"source": [[5]]}, FirstToken())
    with pytest.raises(RunError, match="`first_token` finds one answer, and 3 are requested"):
        decode([stateless], {"source": [[5]]}, FirstToken(), n_best=3)


@pytest.mark.parametrize(
    ("vocabulary", "count"), [(8000, 1), (8000, 5), (8010, 5), (700, 5), (90, 2)]
)
def test_the_largest_numbers_are_those_of_topk(
    vocabulary: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_scores, "LARGE", 0)
    numbers = torch.randn(20, vocabulary + 3)[:, 3:]
    numbers[::2, -4:] += 9  # what is behind the last block
    for ours, expected in zip(token_scores.top_k(numbers, count), numbers.topk(count), strict=True):
        assert torch.equal(ours, expected)


def test_a_state_is_freed_when_nobody_holds_it() -> None:
    """At once, not by Python's cycle collector: states are most of a search's memory."""
    gc.disable()
    try:
        state = (torch.ones(3, 4), (torch.ones(3),))
        after = reorder_state(state, torch.tensor([0, 0, 2]))
        leaf = weakref.ref(after[0])
        del after
        assert leaf() is None
    finally:
        gc.enable()

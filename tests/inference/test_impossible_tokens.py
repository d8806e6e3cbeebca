"""What a model makes impossible is no answer: it takes no place in a beam, and no sampling draws
it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from composer.inference.decoders.token_scores import exclude_impossible
from composer.inference.drafts import Draft
from composer.inference.methods import Beam, Greedy, Sample, Viterbi
from composer.model.builder import build
from composer.model.encoder_decoder import NEVER, is_impossible
from composer.model.special_tokens import EOS
from composer.recipe.recipe import load_text
from tests.inference.small_models import decode

VOCABULARY, LENGTH = 5, 3
WORDS = (3, 4)
ALL = set(itertools.product(WORDS, repeat=LENGTH))
MODEL = "recipe: 1\ndata: {generate: copy}\nmodel: {width: 16, encoder: [rnn], "
DECODER = "decoder: [rnn, cross_attention], "
OF_LENGTH = MODEL + DECODER + f"output: {{length: {LENGTH}}}}}\n"
FIRST_ORDER = MODEL + f"decoder: [positions, cross_attention], output: {{length: {LENGTH}}}}}\n"
TWO_FRAMES = {(), (3,), (4,), (3, 4), (4, 3)}
"""What CTC can spell with two frames: a repetition needs a blank between, and so a third."""


def model_of(text: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build(load_text(text), {"source": 12, "target": VOCABULARY}).eval()


def answers(
    models: list[Any], decoding: dict[str, Any], n_best: int, source: tuple[int, ...] = (5, 6)
) -> list[Any]:
    return decode(models, {"source": [source]}, decoding, n_best=n_best)[0]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_beam_has_all_answers_of_a_length(seeds: tuple[int, ...]) -> None:
    best = answers([model_of(OF_LENGTH, seed) for seed in seeds], Beam(size=8), 8)
    assert {tuple(one.ids) for one in best} == ALL
    assert all(one.ended and one.score > -100 for one in best)


def test_there_are_no_more_answers_than_are_possible() -> None:
    model = model_of(OF_LENGTH.replace(f"length: {LENGTH}", "length: 1"))
    assert {tuple(one.ids) for one in answers([model], Beam(size=6), 6)} == {(3,), (4,)}


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.001])
def test_ctc_spells_what_its_frames_have_room_for(weight: float) -> None:
    text = MODEL + (DECODER if weight < 1 else "") + f"output: {{ctc: {{weight: {weight}}}}}}}\n"
    settings = {"size": 12, "max_length": 4, "length_penalty": 0.0}
    best = answers([model_of(text)], Beam(**settings), 12, (5,))
    assert {tuple(one.ids) for one in best} == TWO_FRAMES
    assert all(one.ended and one.score > -100 for one in best)


@pytest.mark.parametrize("drafts", [False, True])
def test_no_temperature_draws_what_is_impossible(drafts: bool) -> None:
    decoding, model = Sample(temperature=1e6), model_of(OF_LENGTH)
    draft = Draft(model_of(OF_LENGTH, 1)) if drafts else None
    for number in range(20):
        (one,) = decode([model], {"source": [[5, 6]]}, decoding, numbers=[number], draft=draft)[0]
        assert tuple(one.ids) in ALL


def test_the_most_probable_answer_that_cannot_end_in_time_has_no_probability() -> None:
    model = model_of(FIRST_ORDER)
    (in_time,) = answers([model], Viterbi(max_length=LENGTH + 1), 1)
    assert tuple(in_time.ids) in ALL
    (cut,) = answers([model], Viterbi(max_length=LENGTH), 1)
    assert (cut.score, cut.ended) == (-math.inf, False)


def test_a_forced_prefix_may_be_impossible() -> None:
    model = model_of(MODEL + "output: {ctc: {weight: 1}}}\n")
    for decoding in (Greedy(), Beam(size=3), Sample()):
        (one,) = decode([model], {"source": [[5]]}, decoding, [[3, 3, 3]])[0]
        assert one.ids == [3, 3, 3]
        assert math.isfinite(one.score)


HEADS = {
    "linear": DECODER,
    "adaptive": DECODER + "output: {kind: {adaptive: [4]}}",
    "sampled": DECODER + "output: {kind: {sampled: 2}}",
    "length": DECODER + f"output: {{length: {LENGTH}}}",
    "ctc": "output: {ctc: {weight: 1}}",
    "ctc beside a decoder": DECODER + "output: {ctc: {weight: 0.5}}",
}


@pytest.mark.parametrize("head", HEADS)
def test_a_model_says_whether_it_makes_tokens_impossible(head: str) -> None:

    model = model_of(MODEL + HEADS[head] + "}\n")
    log_p = model.log_probs(
        model({"source": torch.tensor([[5, 6, 2]])}, torch.tensor([[1, 3, 3, 3, 3]]))
    )
    assert bool(is_impossible(log_p[..., EOS:]).any()) == model.has_impossible_tokens


def test_where_all_is_impossible_nothing_is_excluded() -> None:
    log_p = torch.tensor([[NEVER, -torch.inf, NEVER - 1], [NEVER, -3.0, 0.0]])
    assert exclude_impossible(log_p).tolist() == [log_p[0].tolist(), [-math.inf, -3.0, 0.0]]

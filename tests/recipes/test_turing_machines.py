"""The recipes of Graves et al. 2014: what their controllers and heads hear, position by position,
in plain loops.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import Context
from composer.inference.decode import decode_all, make_rows
from composer.inference.methods import Beam
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import EOS
from composer.recipe.recipe import load
from composer.testing.model_laws import source_rows
from tests.recipes.paper_models import PAPERS, all_of, expect

RECIPES = ("graves2014_lstm", "graves2014_feed_forward", "graves2014_lstm_baseline")
SOURCE = {"source": torch.tensor([[70, 9, 200, 31, 2], [259, 5, 2, 0, 0]])}
TARGET = torch.tensor([[1, 70, 9, 200, 31], [1, 259, 4, 0, 0]])


def model_of(name: str) -> EncoderDecoder:
    """With the vocabulary of 8 digits, whose vectors are ids 4 to 259."""
    torch.manual_seed(1)
    model = build(load(PAPERS / f"{name}.yaml"), {"source": 260, "target": 260})
    for parameter in model.parameters():
        parameter.data = 0.2 * torch.randn_like(parameter)
    return model.eval()


def controlled(model: EncoderDecoder, part: str, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """One row through controller and heads, one step after another. x: (1, T, D), state: h, c and
    the ntm's.
    """
    (ntm,) = all_of(model, "ntm", part)
    (hidden, cell), tape = state
    context, outputs = Context(torch.ones(1, 1, dtype=torch.bool), {}, {}), []
    for one in x.unbind(1):
        heard = torch.cat((one, tape[2]), -1)
        if rnn := all_of(model, "rnn", part):
            hidden, cell = torch.lstm_cell(heard, (hidden, cell), *rnn[0].layers[0].weights())
        else:
            hidden = torch.tanh(all_of(model, "linear", part)[0].map(heard))
        read, tape = ntm(hidden[:, None], tape, context)
        outputs.append(torch.cat((read[:, 0], hidden), -1))
    return torch.stack(outputs, 1), ((hidden, cell), tape)


@pytest.mark.parametrize("name", RECIPES[:2])
def test_the_decoder_continues_with_the_encoder_memory_and_reads_no_input(name: str) -> None:
    model = model_of(name)
    (ntm,) = all_of(model, "ntm", "encoder")
    logits = model(SOURCE, TARGET)
    for row, (read, written) in enumerate(((5, 5), (3, 3))):
        x = model.readers()["source"].embedding(SOURCE["source"][row : row + 1, :read])
        first = ntm.start(x[:, :1], Context(torch.ones(1, 1, dtype=torch.bool), {}, {}))
        _, state = controlled(model, "encoder", x, ((x.new_zeros(1, 100),) * 2, first))
        y, _ = controlled(model, "decoder", x.new_zeros(1, written, 1), state)
        expect(logits[row, :written], model.output(y)[0])


@pytest.mark.parametrize("name", RECIPES)
def test_an_answer_depends_on_the_question_alone(name: str) -> None:
    model, other = model_of(name), torch.where(TARGET > 3, 303 - TARGET.clamp(min=44), TARGET)
    expect(model(SOURCE, other)[0], model(SOURCE, TARGET)[0])
    assert not torch.equal(
        model({"source": SOURCE["source"].flip(0)}, TARGET)[0], model(SOURCE, TARGET)[0]
    )


def test_a_turing_machine_and_an_lstm_form_an_ensemble() -> None:
    """Members of an ensemble keep their own states; the ensemble gives their mean."""
    models = [model_of("graves2014_lstm"), model_of("graves2014_lstm_baseline")]
    beam = Beam(size=2, length_penalty=0.0, max_length=4)
    result = decode_all(models, make_rows(source_rows(SOURCE)), beam)
    for row, (best, *_) in enumerate(result):
        written = [*best.ids, EOS] if best.ended else best.ids
        before = torch.tensor([[1, *written[:-1]]])
        alone = {"source": SOURCE["source"][row : row + 1, : (5, 3)[row]]}
        votes = torch.stack([model(alone, before)[0].softmax(-1) for model in models]).mean(0)
        score = votes.gather(1, torch.tensor(written)[:, None]).log().sum().item()
        assert best.score == pytest.approx(score, abs=1e-3)


def test_sizes_equal_those_of_the_paper() -> None:
    for name in RECIPES[:2]:
        for ntm in all_of(model_of(name), "ntm", "encoder") + all_of(model_of(name), "ntm"):
            assert (ntm.slots, ntm.slot_width, ntm.reading, ntm.writing, ntm.shift) == (
                128,
                20,
                1,
                1,
                1,
            )
    for rnn in all_of(model_of(RECIPES[2]), "rnn", "encoder") + all_of(model_of(RECIPES[2]), "rnn"):
        assert [layer.sizes for layer in rnn.layers] == [(256, 256)] * 3

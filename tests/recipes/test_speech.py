"""The recipe of Chan et al. 2016 against a loop over its equations: outputs, and gradients of all
parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer.model.encoder_decoder import EncoderDecoder
from tests.recipes.paper_models import (
    REAL,
    TARGET,
    all_of,
    expect_same_function,
    lstm_cell,
    model_of,
)


def test_las_equals_its_equations() -> None:
    model = model_of("chan2016_las", width=6)
    # 11, 6 and 3 positions: at each level one frame has no neighbour
    sounds = torch.rand(2, 21, 40)
    sounds[1, 9:] = torch.nan
    words = [model.embedding(row[real]) for row, real in zip(TARGET, REAL, strict=True)]
    theirs = [
        spell(model, listen(model, sound), y)
        for sound, y in zip((sounds[0], sounds[1, :9]), words, strict=True)
    ]
    expect_same_function(model, model({"source": sounds}, TARGET)[REAL], torch.cat(theirs))


def listen(model: EncoderDecoder, x: Tensor) -> Tensor:
    """Section 3.1: a BLSTM, then three that read pairs. (S, F) -> (S / 8, D)"""
    for level, rnn in enumerate(all_of(model, "rnn", "encoder")):
        if level:
            x = torch.cat((x, x.new_zeros(len(x) % 2, x.shape[1])))
            x = torch.cat((x[::2], x[1::2]), 1)
        sides = []
        for layer, frames in zip(rnn.layers, (x, x.flip(0)), strict=True):
            h = c = x.new_zeros(rnn.out.width // 2)
            states = []
            for frame in frames:
                h, c = lstm_cell(layer, frame, h, c)
                states.append(h)
            sides.append(torch.stack(states))
        x = torch.cat((sides[0], sides[1].flip(0)), 1)
    return x


def spell(model: EncoderDecoder, h: Tensor, words: Tensor) -> Tensor:
    """Equations 6 to 11; the characters are read off an MLP of s_i and c_i. h: (U, D), words: (T,
    D) -> (T, V)
    """
    (attention,), (rnn,), (mlp,) = (
        all_of(model, word) for word in ("cross_attention", "rnn", "linear")
    )
    states = [(words.new_zeros(6), words.new_zeros(6)) for _ in rnn.layers]
    context, logits = words.new_zeros(h.shape[1]), []
    for y in words:
        s = torch.cat((y, context))
        for index, layer in enumerate(rnn.layers):
            states[index] = lstm_cell(layer, s, *states[index])
            s = states[index][0]
        e = torch.stack([s @ attention.project(h_u) for h_u in h])
        context = sum(a_u * h_u for a_u, h_u in zip(e.exp() / e.exp().sum(), h, strict=True))
        logits.append(model.output(torch.tanh(mlp.map(torch.cat((context, s))))))
    return torch.stack(logits)

"""The recipe of Xu et al. 2015 against a loop over its equations: outputs, the penalty, and
gradients of both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.core.contract import Penalties, reduce_penalties
from composer.model.encoder_decoder import EncoderDecoder, StepInputs
from tests.recipes.paper_models import (
    REAL,
    TARGET,
    all_of,
    expect,
    expect_same_function,
    lstm_cell,
    model_of,
)


def test_xu_equals_its_equations() -> None:
    model = model_of("xu2015_soft", "model.decoder.0.recurrent.stack.2.rnn.width=5", width=6)
    for block in all_of(model, "conv2d", "encoder"):
        for parameter in block.parameters():
            parameter.data *= 0.3  # or the annotations would be so large that every sigmoid is flat
    images = torch.rand(2, 40, 33, 3)
    images[1, 20:] = images[1, :, 17:] = torch.nan  # 3 x 3 annotations, and 2 x 2
    penalties: Penalties = {}
    logits = model({"source": images}, TARGET, StepInputs(penalties=penalties))
    annotations = model.encode({"source": images})["encoder.annotations"].states
    words = [model.embedding(row[real]) for row, real in zip(TARGET, REAL, strict=True)]
    rows = [caption(model, annotations[row, :size], words[row]) for row, size in enumerate((9, 4))]
    theirs = torch.cat([rows[0][0], rows[1][0]])
    expect(logits[REAL], theirs)
    (mine,), penalty = reduce_penalties(penalties).values(), 0.08 * (rows[0][1] + rows[1][1]) / 2
    assert penalty > 0.01
    expect_same_function(
        model,
        torch.stack((logits[REAL].logsumexp(-1).sum(), mine)),
        torch.stack((theirs.logsumexp(-1).sum(), penalty)),
    )


def caption(model: EncoderDecoder, a: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of one picture's words (T, V), and the penalty of equation 14. a: (S, D),
    words: (T, E)
    """
    (attention,), (lstm,), (deep,) = (
        all_of(model, word) for word in ("cross_attention", "rnn", "linear")
    )
    (hidden,) = all_of(model, "linear", "encoder")
    h, c = torch.tanh(lstm.initial.project(torch.relu(hidden.map(a.mean(0))))).chunk(2)
    seen, logits = torch.zeros(len(a)), []
    for word in words:
        e = [
            attention.score.vectors[0] @ torch.tanh(attention.query(h) + attention.project(a_i))
            for a_i in a
        ]
        alpha = torch.stack(e).exp() / torch.stack(e).exp().sum()  # equations 4 and 5
        beta = torch.sigmoid(attention.gate(h))
        z = beta * sum(alpha_i * a_i for alpha_i, a_i in zip(alpha, a, strict=True))
        h, c = lstm_cell(lstm.layers[0], torch.cat((z, word)), h, c)
        logits.append(model.output(torch.tanh(word + deep.map(torch.cat((h, z))))))
        seen = seen + alpha
    return torch.stack(logits), ((1 - seen) ** 2).sum()

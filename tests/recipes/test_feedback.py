"""The recipes with feedback, and Gehring's: each decoder against an independent loop over its
paper's equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import functional_call

from blocks.core.contract import Block, Context, Output, Records
from composer.model.encoder_decoder import StepInputs
from tests.recipes.paper_models import (
    REAL,
    SOURCE,
    TARGET,
    all_of,
    expect,
    expect_same_function,
    model_of,
)


def test_luong_with_input_feeding_is_a_loop_of_lstm_cells() -> None:
    model = model_of("luong2015_input_feeding", width=6, layers=2)
    encoder = torch.nn.LSTM(6, 6, 2, batch_first=True)
    (read,), (fed,) = all_of(model, "rnn", "encoder"), all_of(model, "rnn")
    weights_of_encoder = dict(zip(dict(encoder.named_parameters()), read.parameters(), strict=True))
    (attention,), (last,) = all_of(model, "cross_attention"), all_of(model, "linear")
    x = model.readers()["source"].embedding(SOURCE["source"])
    outputs = torch.zeros_like(TARGET, dtype=x.dtype)[..., None].repeat(1, 1, 11)
    for row, length in enumerate((5, 3)):
        memory, (h, c) = functional_call(
            encoder, weights_of_encoder, (x[row : row + 1, :length].flip(1),)
        )
        h, c, attended = list(h), list(c), torch.zeros(1, 6)
        for t in range(int(REAL[row].sum())):
            one = torch.cat((model.embedding(TARGET[row : row + 1, t]), attended), -1)
            for layer in range(2):
                h[layer], c[layer] = torch.lstm_cell(
                    one, (h[layer], c[layer]), *fed.layers[layer].weights()
                )
                one = h[layer]
            weights = (attention.query(one)[0] @ attention_keys(attention, memory).T).softmax(0)
            attended = torch.tanh(last.map(torch.cat((weights @ memory[0], one[0]))))[None]
            outputs[row, t] = model.output(attended)[0]
    expect_same_function(model, model(SOURCE, TARGET)[REAL], outputs[REAL])


def attention_keys(attention: Any, memory: Tensor) -> Tensor:
    """Luong's W m_s or m_s: the block may multiply the query by W instead. (S, D)"""
    return cast(Tensor, attention.start(memory[:, :1], context_over(memory))[0])[0, 0]


def context_over(memory: Tensor) -> Context:
    mask = torch.ones(memory.shape[:2], dtype=torch.bool)
    return Context(mask[:, :1], {}, {"encoder": Output(memory, mask)})


def test_only_the_lowest_layer_of_rnmt_plus_waits_for_the_attention() -> None:
    model = model_of("rnmt_plus", width=8, both_ways=8, heads=2, times=2)
    loops = {
        item.path[-1]: item.loops
        for item in model.modules()
        if isinstance(item, Block) and item.loops
    }
    assert loops == {
        "concat": "reads prev.context",
        "rnn": "lies between two such blocks",
        "cross_attention": "makes prev.context",
    }
    assert len(all_of(model, "rnn")) == 4


def test_luongs_window_as_wide_as_the_sentence_fades_only() -> None:
    model = model_of("luong2015_local", width=6, layers=1)
    records: Records = {}
    model(SOURCE, TARGET, StepInputs(records=records))
    (weights,) = next(
        value for key, value in records.items() if key.name == "weights"
    )  # (B, T, H, S)
    sums = weights[..., 0, :].sum(-1)[REAL]
    assert sums.max() < 1
    assert sums.min() > 0.5  # exp(-2 (s - p)^2 / 100), for s and p within five positions


def at_each(block: Any) -> Callable[[Tensor], Tensor]:
    """A block without state as a function."""
    return lambda x: cast(Tensor, block(x, (), context_over(x))[0])


def test_two_sources_are_combined_by_attention() -> None:
    model = model_of(
        "two_sources", "model.decoder.1.recurrent.stack.3.rnn.width=5", width=6, both_ways=8
    )
    sources = {"english": SOURCE["source"], "french": SOURCE["source"].flip(1).clamp(min=3)}
    memories = model.encode(sources)
    (parallel,), (rnn,) = all_of(model, "parallel"), all_of(model, "rnn")
    state = rnn.initial(torch.zeros(2, 1), Context(REAL[:, :1], {}, memories))[0][0]
    x = torch.cat(
        (model.embedding(TARGET[:, :1]), state[:, None]), -1
    )  # (B, 1, D), the first position's
    context = Context(REAL[:, :1], {}, memories)
    read = [at_start(branch.inner()[0], x, context) for branch in parallel.branches]
    choice = parallel.gate
    keys, values = zip(
        *(project(y).chunk(2, -1) for project, y in zip(choice.project, read, strict=True)),
        strict=True,
    )
    scores = torch.cat(
        [choice.score(torch.tanh(choice.query(x) + key)) for key in keys], -1
    )  # (B, 1, K)
    expected = sum(
        weight[..., None] * value
        for weight, value in zip(scores.softmax(-1).unbind(-1), values, strict=True)
    )
    records: Records = {}
    expect(at_start(parallel, x, context._replace(records=records)), expected)
    shares = next(value[0] for key, value in records.items() if key.name == "branches")
    expect(shares, scores.softmax(-1))


def at_start(block: Any, x: Tensor, context: Context) -> Tensor:
    """A block over positions that follow nothing."""
    return cast(Tensor, block(x, block.start(x, context), context)[0])

"""Whole models against loops that follow their authors' code line by line, outputs and gradients of
every parameter.

Each loop takes one sentence, without padding, batches or kernels; the weights are the recipe's own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from composer.model.builder import build
from composer.recipe.recipe import load
from tests.recipes.paper_models import PAPERS, WORDS, all_of, by_rows, model_of
from tests.recipes.test_domhan import HOME


def reversed_layer(step: Any, layer: Any, x: Tensor, width: int) -> Tensor:
    """Run a layer from the last position to the first. x: (S, D) -> (S, width)"""
    return unrolled(step, layer, x.flip(0), width).flip(0)


def unrolled(step: Any, layer: Any, x: Tensor, width: int) -> Tensor:
    """Run `step(layer, x_t, state)` over the positions, from a state of zeros. x: (S, D) -> (S,
    width)
    """
    state, outputs = (torch.zeros(width), torch.zeros(width)), []
    for one in x:
        state = step(layer, one, state)
        outputs.append(state[0])
    return torch.stack(outputs)


# ------------------------------------------------------------------------------------------- RNMT+,
# as in lingvo


def lingvo_cell(layer: Any, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """One step of lingvo's LayerNormalizedLSTMCellSimple with output_nonlinearity=False."""
    m, c = state
    gates = (layer.arriving @ x + layer.recurrent @ m).split(len(m))
    normalised = []
    for gate, gain, bias in zip(gates, layer.gain, layer.bias, strict=True):
        deviation = gate - gate.mean()
        normalised.append(deviation / (deviation.square().mean() + 1e-5).sqrt() * gain + bias)
    i, f, candidate, o = normalised
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(candidate)
    return torch.sigmoid(o) * c, c


def lingvo_attention(attention: Any, query: Tensor, source: Tensor) -> Tensor:
    """Additive attention with heads, whose values are the source itself. query: (D,), source: (S,
    D) -> (D,)
    """
    heads = len(attention.score.vectors)
    hidden = torch.tanh(attention.query(query) + attention.project(source)).chunk(heads, -1)
    weights = [
        (part @ vector).softmax(0)
        for part, vector in zip(hidden, attention.score.vectors, strict=True)
    ]
    return torch.cat(
        [weight @ part for weight, part in zip(weights, source.chunk(heads, -1), strict=True)]
    )


def test_rnmt_plus_is_lingvo_s() -> None:
    model = model_of("rnmt_plus", width=8, both_ways=16, heads=2, times=2)
    reads, writes = all_of(model, "rnn", "encoder"), all_of(model, "rnn")
    (project,), (attention,) = all_of(model, "linear", "encoder"), all_of(model, "cross_attention")

    def row(source: Tensor, target: Tensor) -> Tensor:
        xs = source
        for i, rnn in enumerate(reads):
            forward = unrolled(lingvo_cell, rnn.layers[0], xs, 8)
            ys = torch.cat((forward, reversed_layer(lingvo_cell, rnn.layers[1], xs, 8)), -1)
            xs = xs + ys if i >= 2 else ys
        source = project.map(xs)
        context, state, lowest, contexts = torch.zeros(8), (torch.zeros(8), torch.zeros(8)), [], []
        for y in target:
            state = lingvo_cell(writes[0].layers[0], torch.cat((y, context)), state)
            context = lingvo_attention(attention, state[0], source)
            lowest.append(state[0])
            contexts.append(context)
        atten_ctxs, xs = torch.stack(contexts), torch.stack(lowest)
        for i, rnn in enumerate(writes[1:]):
            # the second layer's input is the other way round in the recipe: context, then state
            pair = (xs, atten_ctxs) if i else (atten_ctxs, xs)
            ys = unrolled(lingvo_cell, rnn.layers[0], torch.cat(pair, -1), 8)
            xs = xs + ys if 1 + i >= 2 else ys
        return model.output(torch.cat((xs, atten_ctxs), -1))

    by_rows(model, row)


# -------------------------------------------------------------------------------------------
# ConvS2S, as in fairseq


def fairseq_linear(block: Any, x: Tensor) -> Tensor:
    """A linear layer with weight normalisation. x: (T, D)"""
    return x @ normed(block.map.weight, block.gain).T + block.map.bias


def normed(direction: Tensor, gain: Tensor) -> Tensor:
    """g v / |v| of each output."""
    flat = direction.flatten(1)
    return (gain.view(-1, 1) * flat / flat.norm(dim=1, keepdim=True)).view_as(direction)


def fairseq_conv(conv: Any, x: Tensor, left: int) -> Tensor:
    """A convolution of three positions and its gate. x: (T, D) -> (T, D')"""
    window = F.pad(x, (0, 0, left, 2 - left)).unfold(0, 3, 1)  # (T, D, 3)
    return F.glu(
        torch.einsum("tik,oik->to", window, normed(conv.weight, conv.gain)) + conv.bias, -1
    )


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    return x * factor + x.detach() * (1 - factor)


def test_convs2s_is_fairseq_s() -> None:
    model = model_of("gehring2017", width=6, hidden=4, layers=2)
    half = math.sqrt(0.5)
    (source_places,), (target_places,) = (
        all_of(model, "positions", "encoder"),
        all_of(model, "positions"),
    )
    fc1, fc2 = all_of(model, "linear", "encoder")
    first, *around, last = all_of(model, "linear")

    def row(source: Tensor, target: Tensor) -> Tensor:
        embedded = 0.1 * source + source_places.table.weight[: len(source)]
        x = fairseq_linear(fc1, embedded)
        for conv in all_of(model, "conv", "encoder"):
            x = (x + fairseq_conv(conv, x, left=1)) * half
        x = scale_gradient(fairseq_linear(fc2, x), 1 / (2 * 2))
        keys, values = x, (x + embedded) * half
        embedded = 0.1 * target + target_places.table.weight[: len(target)]
        x = fairseq_linear(first, embedded)
        for conv, into, out in zip(all_of(model, "conv"), around[::2], around[1::2], strict=True):
            residual, x = x, fairseq_conv(conv, x, left=2)
            query = (fairseq_linear(into, x) + embedded) * half
            read = (
                (query @ keys.T).softmax(-1) @ values * (len(source) * math.sqrt(1 / len(source)))
            )
            x = (fairseq_linear(out, read) + x) * half
            x = (x + residual) * half
        return model.output(fairseq_linear(last, x))

    by_rows(model, row)


def test_convs2s_begins_with_the_deviations_of_its_paper() -> None:
    model = build(load(PAPERS / "gehring2017.yaml"), {"source": WORDS, "target": WORDS})
    first, *_ = all_of(model, "linear", "encoder")
    for conv in all_of(model, "conv"):
        assert abs(conv.weight.std() / math.sqrt(4 * 0.8 / (3 * 512)) - 1) < 0.01
    assert abs(first.map.weight.std() / math.sqrt(0.8 / 512) - 1) < 0.01
    assert abs(all_of(model, "linear")[-1].map.weight.std() / math.sqrt(1 / 512) - 1) < 0.01
    torch.testing.assert_close(first.gain.flatten(), first.map.weight.norm(dim=1))


# -------------------------------------------------------------------------------------------
# dl4mt's conditional GRU


def dl4mt_gru(layer: Any, x: Tensor, h: Tensor) -> Tensor:
    """A GRU with the reset gate after the product; `recurrent_bias`: dl4mt's b_nl, bx_nl."""
    r, u, n = (layer.arriving @ x + layer.arriving_bias).split(len(h))
    of_r, of_u, of_n = (layer.recurrent @ h + layer.recurrent_bias).split(len(h))
    r, u = torch.sigmoid(r + of_r), torch.sigmoid(u + of_u)
    return u * h + (1 - u) * torch.tanh(n + r * of_n)


def test_the_conditional_gru_is_dl4mt_s() -> None:
    model = model_of("sennrich2017", width=8, hidden=6, both_ways=10)
    (reads,), (one, two) = all_of(model, "rnn", "encoder"), all_of(model, "rnn_cell")
    (attention,), (readout,) = all_of(model, "cross_attention"), all_of(model, "linear")

    def step(layer: Any, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return dl4mt_gru(layer, x, state[0]), state[1]

    def row(source: Tensor, target: Tensor) -> Tensor:
        forward, backward = (
            unrolled(step, reads.layers[0], source, 5),
            reversed_layer(step, reads.layers[1], source, 5),
        )
        ctx = torch.cat((forward, backward), -1)
        h, logits = torch.tanh(two.initial.project(ctx.mean(0))), []
        for emb in target:
            h1 = dl4mt_gru(one.layer, emb, h)
            alpha = (
                torch.tanh(attention.project(ctx) + attention.query(h1))
                @ attention.score.vectors[0]
            ).softmax(0)
            ctx_t = alpha @ ctx
            h = dl4mt_gru(two.layer, ctx_t, h1)
            logits.append(model.output(torch.tanh(readout.map(torch.cat((h, emb, ctx_t))))))
        return torch.stack(logits)

    by_rows(model, row)


# -------------------------------------------------------------------------------------------
# Domhan's row in Sockeye


def sockeye_attention(
    project: Tensor, bias: Tensor, merge: Any, query: Tensor, source: Tensor, mask: Tensor
) -> Tensor:
    """Multi-head dot attention; `project` has the rows of queries, keys and values. -> (T, D)"""
    of_q, of_k, of_v = (w.chunk(2) for w in project.chunk(3))
    b_q, b_k, b_v = (b.chunk(2) for b in bias.chunk(3))
    heads = []
    for h in range(2):
        q, k, v = (
            query @ of_q[h].T + b_q[h],
            source @ of_k[h].T + b_k[h],
            source @ of_v[h].T + b_v[h],
        )
        scores = (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
        heads.append(scores.softmax(-1) @ v)
    return merge(torch.cat(heads, -1))


def lstm_cell(layer: Any, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    h, c = torch.lstm_cell(x[None], (state[0][None], state[1][None]), *layer.weights())
    return h[0], c[0]


def test_self_attention_to_rnn_is_sockeye_s() -> None:
    recipe = load(
        HOME / "table5_self_attention_to_rnn.yaml",
        [
            *("model.width=8", "vars.layers=2", "model.feed_forward.hidden=6"),
            "model.output.tie=[target]",
        ]
        + [f"model.{block}.heads=2" for block in ("self_attention", "cross_attention")],
    )
    model = build(recipe, {"source": WORDS, "target": WORDS}).eval()
    for parameter in model.parameters():
        parameter.data = 0.4 * torch.randn_like(parameter)

    def positions(x: Tensor) -> Tensor:
        angles = torch.arange(len(x))[:, None] / 10000 ** (2 * torch.arange(4) / 8)
        return x + torch.cat((angles.sin(), angles.cos()), -1)

    def add(residual: Any, x: Tensor, inner: Any) -> Tensor:
        return x + inner(F.layer_norm(x, (8,), residual.norm.weight, residual.norm.bias))

    def feed_forward(block: Any) -> Any:
        return lambda x: block.contract(torch.relu(block.expand(x)))

    def row(source: Tensor, target: Tensor) -> Tensor:
        source, all_of_source = (
            positions(source),
            torch.ones(len(source), len(source), dtype=torch.bool),
        )
        residuals = iter(all_of(model, "residual", "encoder"))
        networks = iter(all_of(model, "feed_forward", "encoder"))
        for block in all_of(model, "self_attention", "encoder"):
            weights = block.project.weight, block.project.bias, block.merge

            def read_source(x: Tensor, weights: Any = weights) -> Tensor:
                return sockeye_attention(*weights, x, x, all_of_source)

            source = add(next(residuals), source, read_source)
            source = add(next(residuals), source, feed_forward(next(networks)))
        source = all_of(model, "norm", "encoder")[0].normalise(source)
        target, residuals = positions(target), iter(all_of(model, "residual"))
        networks, seen = (
            iter(all_of(model, "feed_forward")),
            torch.ones(len(target), len(source), dtype=torch.bool),
        )
        for rnn, attention in zip(
            all_of(model, "rnn"), all_of(model, "cross_attention"), strict=True
        ):
            target = add(
                next(residuals), target, lambda x, rnn=rnn: unrolled(lstm_cell, rnn.layers[0], x, 8)
            )
            project = torch.cat((attention.query.weight, attention.project.weight))
            bias = torch.cat((attention.query.bias, attention.project.bias))

            def read_target(x: Tensor, weights: Any = (project, bias, attention.merge)) -> Tensor:
                return sockeye_attention(*weights, x, source, seen)

            target = add(next(residuals), target, read_target)
            target = add(next(residuals), target, feed_forward(next(networks)))
        return model.output(all_of(model, "norm")[0].normalise(target))

    by_rows(model, row)

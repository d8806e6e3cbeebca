"""The recipes without feedback, and the variants of Bahdanau's: an identity, or an independent loop
over equations.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from blocks.core.contract import Block
from composer.inference.decode import decode_all, make_rows
from composer.inference.decoders.search import Options
from composer.inference.methods import Beam
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.recipe import load
from composer.testing.model_laws import source_rows
from tests.recipes.paper_models import (
    PAPERS,
    SOURCE,
    WORDS,
    Row,
    all_of,
    by_rows,
    expect,
    model_of,
    planned,
)


def gru(layer: Any, x: Tensor, h: Tensor) -> Tensor:
    """Cho et al. 2014, equations 5 to 8, for one vector."""
    width = len(h)
    of_r, of_z, of_n = (layer.arriving.weight @ x + layer.arriving.bias).split(width)
    u_r, u_z = layer.gates.weight.split(width)
    r, z = torch.sigmoid(of_r + u_r @ h), torch.sigmoid(of_z + u_z @ h)
    return z * h + (1 - z) * torch.tanh(of_n + layer.candidate.weight @ (r * h))


def maxout(block: Any, x: Tensor) -> Tensor:
    first, second = (block.map.weight @ x + block.map.bias).chunk(2)
    return torch.maximum(first, second)


# ------------------------------------------------------------------------------------------- one
# vector for a sentence


def test_cho_equals_its_equations() -> None:
    model = model_of("cho2014", width=4, hidden=6)
    (reads,), (v,) = all_of(model, "rnn", "encoder"), all_of(model, "linear", "encoder")
    (writes,), (readout,) = all_of(model, "rnn"), all_of(model, "maxout")

    def row(source: Tensor, target: Tensor) -> Tensor:
        h = torch.zeros(6)
        for x in source:
            h = gru(reads.layers[0], x, h)
        c = torch.tanh(v.map(h))
        h, logits = torch.tanh(writes.initial.project(c)), []
        for y in target:
            h = gru(writes.layers[0], torch.cat((y, c)), h)
            logits.append(model.output(maxout(readout, torch.cat((h, y, c)))))
        return torch.stack(logits)

    by_rows(model, row)


def test_sutskever_is_torch_s_lstm_on_the_reversed_source() -> None:
    model = model_of("sutskever2014", width=6, layers=3)
    lstm = torch.nn.LSTM(6, 6, 3)
    reads, writes = (
        dict(
            zip(
                dict(lstm.named_parameters()),
                all_of(model, "rnn", part)[0].parameters(),
                strict=True,
            )
        )
        for part in ("encoder", "decoder")
    )

    def row(source: Tensor, target: Tensor) -> Tensor:
        _, state = functional_call(lstm, reads, (source.flip(0),))
        return model.output(functional_call(lstm, writes, (target, state))[0])

    by_rows(model, row)


def test_an_ensemble_of_a_model_with_itself_gives_the_same_translations() -> None:
    model = model_of("sutskever2014", width=6, layers=2)
    beam = Beam(size=3, length_penalty=1.0, max_length=6, max_ratio=2.0)
    alone, twice = (
        decode_all(models, make_rows(source_rows(SOURCE)), beam, Options(n_best=3))
        for models in ([model], [model, model])
    )
    for one, two in zip(chain(*alone), chain(*twice), strict=True):
        assert one.ids == two.ids
        assert one.score == pytest.approx(two.score)


def test_kalchbrenner_and_blunsom_equals_its_equations() -> None:
    model = model_of("kalchbrenner_blunsom2013", width=4)
    (sentence,), (writes,) = all_of(model, "pool_hierarchical", "encoder"), all_of(model, "rnn")
    (layer,) = writes.layers

    def convolved(columns: list[Tensor], kernel: Tensor) -> list[Tensor]:
        pieces = (columns[at : at + len(kernel)] for at in range(len(columns) - len(kernel) + 1))
        return [
            torch.tanh(sum(k * column for k, column in zip(kernel, piece, strict=True)))
            for piece in pieces
        ]

    def row(source: Tensor, target: Tensor) -> Tensor:
        columns = convolved(list(source), sentence.kernels[:2])  # K^2
        if len(columns) >= 3:
            columns = convolved(columns, sentence.kernels[2:5])  # K^3
        (s,) = convolved(columns, sentence.last_kernels[:2])  # L^2, for either length
        h, logits = torch.zeros(4), []
        for v in target:
            inside = layer.arriving @ torch.cat((v, s)) + layer.arriving_bias
            h = torch.tanh(inside + layer.recurrent @ h + layer.recurrent_bias)
            logits.append(model.output(h))
        return torch.stack(logits)

    by_rows(model, row)


# -------------------------------------------------------------------------------------------
# Transformers


@pytest.mark.parametrize(("name", "width", "hidden"), [("base", 512, 2048), ("big", 1024, 4096)])
def test_vaswani_has_the_parameter_count_of_the_formula(name: str, width: int, hidden: int) -> None:
    norm, attention = 2 * width, 4 * (width * width + width)
    feed_forward = 2 * width * hidden + hidden + width
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    words = 37_000
    assert planned(f"vaswani2017_{name}", words=words) == words * width + words + 6 * (
        encoder + decoder
    )


@pytest.mark.parametrize(
    ("name", "words", "published"),
    [
        ("vaswani2017_big", 37_000, 213e6),  # Vaswani et al. 2017, table 3
        ("rnmt_plus", 32_000, 378.9e6),  # Chen et al. 2018, table 1
    ],
)
def test_a_model_has_the_parameter_count_of_its_paper(
    name: str, words: int, published: float
) -> None:
    assert planned(name, words=words) == pytest.approx(published, rel=0.01)


def test_layers_of_the_base_transformer_have_the_parameter_counts_of_table_3() -> None:
    # its 65 million in all need a vocabulary of 41,000, and the paper's has 37,000: only
    # differences can be compared
    two, eight = (planned("vaswani2017_base", layers=layers) for layers in (2, 8))
    assert eight - two == pytest.approx(80e6 - 36e6, rel=0.01)


@pytest.mark.parametrize(("name", "heads", "dropout"), [("base", 8, 0.1), ("big", 16, 0.3)])
def test_vaswani_has_the_settings_of_the_paper(name: str, heads: int, dropout: float) -> None:
    recipe = load(PAPERS / f"vaswani2017_{name}.yaml")
    stack = recipe.model.encoder[-1].settings["stack"]
    assert [next(iter(item["residual"]["stack"][0])) for item in stack] == [
        "self_attention",
        "feed_forward",
    ]
    assert {item["residual"]["norm"] for item in stack} == {"post"}
    assert {item["residual"]["dropout"] for item in stack} == {dropout}
    assert stack[0]["residual"]["stack"][0]["self_attention"]["heads"] == heads
    adam, schedule = recipe.training.optimizer, recipe.training.schedule
    # of the paper's 100,000 steps
    peak = (recipe.model.width * schedule.warmup_steps * 100_000) ** -0.5
    assert (schedule.word, adam.learning_rate) == ("inverse_sqrt", pytest.approx(peak, rel=0.02))


def test_a_universal_transformer_has_the_parameters_of_one_layer() -> None:
    sizes = {"width": 8, "hidden": 12, "heads": 2}
    assert planned("universal_transformer", layers=1, **sizes) == planned(
        "universal_transformer", layers=5, **sizes
    )


def test_a_universal_encoder_equals_its_iterations() -> None:
    model = model_of("universal_transformer", width=8, hidden=12, heads=2, layers=3)
    (attention,), (feed_forward,) = (
        all_of(model, word, "encoder") for word in ("self_attention", "feed_forward")
    )
    around = all_of(model, "residual", "encoder")

    def sinusoid(at: int) -> Tensor:
        rates = 10_000.0 ** -(torch.arange(4) / 4)
        return torch.cat((torch.sin(at * rates), torch.cos(at * rates)))

    h = model.readers()["source"].embedding(SOURCE["source"][0])  # (S, D)
    for time in range(3):
        h = h + torch.stack([sinusoid(at) + sinusoid(time) for at in range(5)])
        q, k, v = (
            item.unflatten(1, (2, 4)).transpose(0, 1) for item in attention.project(h).chunk(3, -1)
        )
        # a head is 4 wide
        read = ((q @ k.transpose(1, 2) / 2).softmax(-1) @ v).transpose(0, 1).flatten(1)
        h = around[0].norm(h + attention.merge(read))
        h = around[1].norm(h + feed_forward.contract(torch.relu(feed_forward.expand(h))))
    # float32 sinusoids
    torch.testing.assert_close(model.encode(SOURCE)["encoder"].states[0], h, rtol=1e-5, atol=1e-5)


# -------------------------------------------------------------------------------------------
# hybrids

HYBRID = {"width": 8, "hidden": 12, "layers": 2, "heads": 2}
ONE_LAYER = "model.decoder.6.repeat.times=1"


def lstm(arriving: int, width: int) -> int:
    return 4 * (width * arriving + width * width + 2 * width)


def test_a_transformer_encoder_with_lstm_decoder_has_the_parameter_count_of_the_formula() -> None:
    width, hidden, norm = 8, 12, 16
    layer = 4 * (width * width + width) + 2 * width * hidden + hidden + width + 2 * norm
    asks = 2 * width * width + width + width  # the query's and the keys' map, one bias, the vectors
    decoder = lstm(width, width) + asks + 2 * lstm(2 * width, width) + norm
    output = 2 * width * WORDS + WORDS
    assert (
        planned("transformer_to_rnn", ONE_LAYER, **HYBRID)
        == 2 * WORDS * width + 2 * layer + norm + decoder + output
    )


def test_a_cascade_adds_recurrent_layers_to_the_transformer_s_encoder() -> None:
    below, above = (
        planned("transformer_to_rnn", ONE_LAYER, **HYBRID),
        planned("cascaded", ONE_LAYER, **HYBRID),
    )
    assert above - below == 3 * (2 * lstm(8, 4) + 2 * 8) + 2 * 8


def test_a_cascade_with_zero_layers_equals_the_transformer_encoder() -> None:
    model = model_of("cascaded", ONE_LAYER, **HYBRID)
    for block in all_of(model, "rnn", "encoder"):
        for parameter in block.parameters():
            parameter.data.zero_()
    *_, last = all_of(model, "norm", "encoder")
    memories = model.encode(SOURCE)
    expect(memories["encoder"].states, last.normalise(memories["encoder.attentive"].states))


def test_columns_are_concatenated() -> None:
    model = model_of("multi_column", ONE_LAYER, **HYBRID)
    (merge,) = all_of(model, "linear", "encoder")
    before = model.encode(SOURCE)
    columns = [before[f"encoder.{name}"].states for name in ("attentive", "recurrent")]
    expect(before["encoder"].states, merge.map(torch.cat(columns, -1)))
    for block in all_of(model, "rnn", "encoder"):
        for parameter in block.parameters():
            parameter.data.add_(0.1)
    after = model.encode(SOURCE)
    expect(after["encoder.attentive"].states, columns[0])
    assert not torch.allclose(after["encoder.recurrent"].states, columns[1])


# ------------------------------------------------------------------------------------------- other
# attentions


def bahdanau(model: EncoderDecoder, read: Callable[[Any, Tensor, Tensor], Tensor]) -> Row:
    """A row's logits, where `read(attention, state, annotations)` is the context vector."""
    (reads,), (writes,) = all_of(model, "rnn", "encoder"), all_of(model, "rnn")
    (attention,), (readout,) = all_of(model, "cross_attention"), all_of(model, "maxout")

    def row(source: Tensor, target: Tensor) -> Tensor:
        zero = torch.zeros(reads.layers[0].sizes[0])
        forward, backward = [zero], [zero]
        for x, y in zip(source, source.flip(0), strict=True):
            forward.append(gru(reads.layers[0], x, forward[-1]))
            backward.append(gru(reads.layers[1], y, backward[-1]))
        annotations = torch.cat(
            (torch.stack(forward[1:]), torch.stack(backward[1:]).flip(0)), -1
        )  # (S, D)
        state, logits = torch.tanh(writes.initial.project(annotations.mean(0))), []
        for y in target:
            context = read(attention, state, annotations)
            state = gru(writes.layers[0], torch.cat((context, y)), state)
            logits.append(model.output(maxout(readout, torch.cat((state, y, context)))))
        return torch.stack(logits)

    return row


def hidden(attention: Any, state: Tensor, annotations: Tensor) -> Tensor:
    """tanh(W s + U h_j + b) for each annotation: (S, model.width)"""
    return torch.tanh(attention.query(state) + attention.project(annotations))


BAHDANAU = (
    "model.width=8",
    "model.rnn.width=6",
    "model.encoder.0.rnn.width=10",
    "model.decoder.1.maxout.width=4",
)


def test_bahdanau_equals_its_equations() -> None:
    model = model_of("bahdanau2015", *BAHDANAU)

    def read(attention: Any, state: Tensor, annotations: Tensor) -> Tensor:
        return (hidden(attention, state, annotations) @ attention.score.vectors[0]).softmax(
            0
        ) @ annotations

    by_rows(model, bahdanau(model, read))


def test_heads_average_their_weights() -> None:
    model = model_of("averaged_heads", *BAHDANAU, heads=4)

    def read(attention: Any, state: Tensor, annotations: Tensor) -> Tensor:
        shares = hidden(attention, state, annotations).split(2, -1)
        scores = [
            share @ vector for share, vector in zip(shares, attention.score.vectors, strict=True)
        ]
        weights = sum(score.softmax(0) for score in scores) / 4
        return sum(
            weight * annotation for weight, annotation in zip(weights, annotations, strict=True)
        )

    by_rows(model, bahdanau(model, read))


def test_each_feature_has_weights_of_its_own() -> None:
    model = model_of("fine_grained", *BAHDANAU)

    def read(attention: Any, state: Tensor, annotations: Tensor) -> Tensor:
        inner = hidden(attention, state, annotations)
        weights = [
            (inner @ vector).softmax(0) for vector in attention.score.vectors
        ]  # (S,) for each feature
        return torch.stack(
            [weight @ annotations[:, feature] for feature, weight in enumerate(weights)]
        )

    by_rows(model, bahdanau(model, read))


# -------------------------------------------------------------------------------------------
# embeddings


def test_a_word_concatenates_its_factors() -> None:
    model = model_of("factored_embeddings", width=8, hidden=12, layers=1, heads=2, factor=3)
    sources = {
        "word": torch.tensor([[5, 6, 7, 2], [9, 4, 2, 0]]),
        "lemma": torch.tensor([[8, 3, 4, 2], [5, 6, 2, 0]]),
        "tag": torch.tensor([[3, 4, 2, 0], [3, 3, 2, 0]]),  # the first row lacks a tag
    }
    factored = model.encode(sources)["word.factored"].states
    table = {key: encoder.embedding for key, encoder in model.readers().items()}
    narrow = {key: all_of_encoder(model, key, "linear")[0].map for key in ("lemma", "tag")}
    (merge,) = all_of_encoder(model, "word", "linear")
    for row, at in ((0, 0), (0, 2), (0, 3), (1, 1)):
        ids = {key: sources[key][row, at] for key in sources}
        parts = [table["word"](ids["word"])]
        parts += [
            narrow[key](table[key](ids[key])) if ids[key] else torch.zeros(3)
            for key in ("lemma", "tag")
        ]
        expect(factored[row, at], merge.map(torch.cat(parts)))


def all_of_encoder(model: EncoderDecoder, name: str, word: str) -> list[Any]:
    """The blocks with this word in the encoder of this name."""
    return [
        item
        for item in model.modules()
        if isinstance(item, Block)
        and item.path[1:3] == ("encoders", name)
        and item.path[-1] == word
    ]


def test_a_bottleneck_is_as_narrow_as_the_model() -> None:
    model = model_of("factored_decomposition", width=3, hidden=8)
    first, *_ = all_of(model, "linear", "encoder")
    table = first.map(model.embedding(torch.arange(WORDS)))  # (V, hidden)
    logits = (
        model({"source": torch.randint(4, WORDS, (6, 5))}, torch.randint(4, WORDS, (6, 7)))
        - model.output.bias
    )
    assert torch.linalg.matrix_rank(table) == 3
    assert torch.linalg.matrix_rank(logits.flatten(0, 1)) == 3


def test_another_word_adds_one_narrow_embedding_row() -> None:
    sizes = {"width": 20, "hidden": 30}
    few, many = (planned("factored_decomposition", words=words, **sizes) for words in (1000, 2000))
    assert many - few == 1000 * (20 + 1)  # one narrow row, and the output's bias, for each word

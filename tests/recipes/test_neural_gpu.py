"""The Neural GPUs of the papers: each model against the lecture's equations, one row at a time, in
plain loops.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import PAD
from tests.recipes.paper_models import (
    REAL,
    SOURCE,
    TARGET,
    all_of,
    expect_same_function,
    model_of,
    planned,
)

SIZES = {"width": 6, "columns": 3}
ONE_SET = "model.encoder.1.repeat.relaxation=null"


def convolved(weight: Tensor, bias: Tensor, s: Tensor) -> Tensor:
    """U * s + B, an entry at a time from the definition. s: (n, w, m) -> (n, w, m')"""
    length, columns, _ = s.shape
    padded = F.pad(s, (0, 0, 1, 1, 1, 1))
    rows = [
        [
            torch.einsum("uvc,icuv->i", padded[x : x + 3, y : y + 3], weight) + bias
            for y in range(columns)
        ]
        for x in range(length)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def cutoff(z: Tensor) -> Tensor:
    return (1.2 * torch.sigmoid(z) - 0.1).clamp(0, 1)


def step(cgru: Any, s: Tensor, p: Tensor | None = None) -> Tensor:
    """u s + (1 - u) tanh(U * (r s) + W * p + B)."""
    maps = s.shape[-1]
    (wr, wu), (br, bu) = cgru.both.weight.chunk(2), cgru.both.bias.chunk(2)

    def beside(reset: Tensor) -> Tensor:
        return reset if p is None else torch.cat((reset, p), -1)

    r, u = cutoff(convolved(wr, br, beside(s))), cutoff(convolved(wu, bu, beside(s)))
    assert cgru.new.weight.shape[0] == maps
    return u * s + (1 - u) * torch.tanh(convolved(cgru.new.weight, cgru.new.bias, beside(r * s)))


def image(model: EncoderDecoder, row: int, blocks: list[Any], sets: int = 1) -> Tensor:
    """s_n of one sentence: n of the larger of both sizes, the words in column 0, the rest zeros."""
    ids = SOURCE["source"][row]
    ids = ids[ids != PAD]
    size = max(len(ids), int(REAL[row].sum()))
    s = torch.zeros(size, SIZES["columns"], SIZES["width"])
    s[: len(ids), 0] = model.readers()["source"].embedding(ids)
    layers = len(blocks) // sets
    for at in range(size):
        for cgru in blocks[at % sets * layers : (at % sets + 1) * layers]:
            s = step(cgru, s)
    return s


def expect_rows(model: EncoderDecoder, rows: list[Tensor]) -> None:
    logits = model(SOURCE, TARGET)
    mine = torch.cat([logits[row, : len(theirs)] for row, theirs in enumerate(rows)])
    expect_same_function(model, mine, torch.cat(rows))


def test_the_neural_gpu_reads_its_answer_from_the_last_image() -> None:
    model = model_of("kaiser_sutskever2016", sets=2, **SIZES)
    assert model.embedding is None
    blocks = all_of(model, "cgru", "encoder")
    expect_rows(
        model,
        [
            model.output(image(model, row, blocks, sets=2)[:count, 0])
            for row, count in enumerate(REAL.sum(1))
        ],
    )


def test_a_longer_target_needs_a_longer_image() -> None:
    model = model_of("kaiser_sutskever2016", ONE_SET, "model.encoder.1.repeat.share=true", **SIZES)
    longer = torch.cat((TARGET, torch.full((2, 3), 6)), 1)
    longer[1, 3] = 5
    logits, first = model(SOURCE, longer), model(SOURCE, TARGET)
    assert not torch.allclose(logits[0, :4], first[0])


def test_the_markovian_neural_gpu_reads_the_previous_token() -> None:
    model = model_of("kaiser_bengio2016_markovian", **SIZES)
    assert model.embedding is not None
    blocks, rows = all_of(model, "cgru", "encoder"), []
    for row, count in enumerate(REAL.sum(1)):
        before = model.embedding(TARGET[row, :count])
        rows.append(model.output(torch.cat((image(model, row, blocks)[:count, 0], before), -1)))
    expect_rows(model, rows)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("kaiser_bengio2016_extended", slice(0, 1)),
        ("kaiser_bengio2016_code", slice(None)),
    ],
)
def test_the_extended_neural_gpu_writes_to_a_tape_and_reads_image_rows(
    name: str, columns: slice
) -> None:
    model = model_of(name, **SIZES)
    assert model.embedding is not None
    blocks, written, rows = all_of(model, "cgru", "encoder"), all_of(model, "cgru"), []
    for row, count in enumerate(REAL.sum(1)):
        d = (
            first_of_code(model, row, blocks)
            if name.endswith("code")
            else image(model, row, blocks)
        )
        tape, read = [torch.zeros_like(d[0])] * len(d), []
        for k in range(count):
            if k:
                tape[k - 1] = torch.zeros_like(d[0])
                tape[k - 1][columns] = model.embedding(TARGET[row, k])
            p = torch.stack(tape)
            for cgru in written:
                d = step(cgru, d, p)
            read.append(d[k, 0])
        rows.append(model.output(torch.stack(read)))
    expect_rows(model, rows)


def first_of_code(model: EncoderDecoder, row: int, blocks: list[Any]) -> Tensor:
    """s_n as the authors' code has it: each cell is mapped and normalised, and a CGRU of its own
    comes first.
    """
    (linear,), (norm,) = all_of(model, "linear", "encoder"), all_of(model, "norm", "encoder")
    ids = SOURCE["source"][row]
    size = max(int((ids != PAD).sum()), int(REAL[row].sum()))
    words = model.readers()["source"].embedding(ids[:size]) * (ids[:size, None] != PAD)
    s = torch.zeros(size, SIZES["columns"], SIZES["width"])
    s[:, 0] = words
    s = step(blocks[0], norm.normalise(linear.map(s)))
    for _ in range(size):
        for cgru in blocks[1:]:
            s = step(cgru, s)
    return s


def test_parameter_counts_equal_those_of_the_papers() -> None:
    words, maps = 11, 24
    cgru = 3 * (9 * maps * maps + maps)
    assert planned("kaiser_sutskever2016", words=words) == 6 * 2 * cgru + words * maps + words * (
        maps + 1
    )
    maps = 512
    with_tape = 3 * (9 * 2 * maps * maps + maps)
    assert planned("kaiser_bengio2016_extended", words=words) == (
        2 * 3 * (9 * maps * maps + maps) + 2 * with_tape + 2 * words * maps + words * (maps + 1)
    )

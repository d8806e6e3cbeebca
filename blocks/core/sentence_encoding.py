"""Sentences in a memory: the words of each as one vector, and how many sentences came after it."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import BlockError, Output, Site, Stream, write

Encoding = Literal["position", "position_code", "bag"]
"""How the place of a word in its sentence counts: as in the paper, as in its authors' code, or not
at all.
"""

INIT_STD = 0.1
"""The deviation of what every matrix is at first (Sukhbaatar et al. 2015, section 4.2)."""


def question_stream(site: Site, name: str) -> Stream:
    """Return the stream of the memory that holds the question. Raises BlockError for a grid or an
    unknown one.
    """
    stream = site.memories[site.memory(name, "query")].stream
    if stream.grid:
        message = f"`{name}` is a grid, and a question is a sequence of words"
        fix = "name an encoder that leaves a sequence, or end that one with `sum_columns`"
        raise BlockError("query", message, code="kind", fix=fix)
    return stream


def required_question(site: Site, name: str | None) -> str:
    """Return the name of the memory that holds the question. Raises BlockError without one."""
    if name is None:
        message = "`query` is missing: the memory that holds the question"
        fix = write("query", site.encoders[0], ", or another memory")
        raise BlockError("query", message, code="memory", fix=fix)
    return name


def story_stream(site: Site, name: str) -> Stream:
    """Return the stream of the memory that holds the story. Raises BlockError for one vector."""
    stream = site.memories[name].stream
    if stream.length_ratio == 0:
        message = f"`{name}` has one position for a whole story, and a fact is one of its sentences"
        raise BlockError(
            "from", message, code="length", fix="name a memory that keeps the sentences"
        )
    return stream


def as_story(memory: Output) -> Output:
    """Return a memory as sentences of words, (B, N, W, D): a position of a sequence is a sentence
    of one word.
    """
    states, mask = memory.states, memory.mask
    return memory if states.ndim == 4 else Output(states[:, :, None], mask[:, :, None], memory.last)


def as_sentence(memory: Output) -> Output:
    """Return a sequence as one sentence: (B, 1, W, D)"""
    return Output(memory.states[:, None], memory.mask[:, None])


def normal_matrix(rows: int, columns: int) -> nn.Parameter:
    """Return a matrix of normal numbers."""
    return nn.Parameter(nn.init.normal_(torch.empty(rows, columns), std=INIT_STD))


def embed_sentences(
    story: Output, maps: Tensor, encoding: Encoding, width: int, longest: int
) -> Tensor:
    """Encode sentences as sum_j l_j * M x_j over their words, for each map M: (B, N, M, d)

    `maps` is (M d, D), and * multiplies feature by feature. With feature k of d and word j, l_kj is

        position        (1 - j / J) - (k / d) (1 - 2 j / J)   J words in the sentence (section 4.1)
        position_code   1 + 4 (k - (d + 1) / 2) (j - (J + 1) / 2) / (d J)   J = `longest` (its code)
        bag             1

    The first two are c + a_k b_j, so words are summed before they are mapped: c M sum_j x_j + a * M
    sum_j b_j x_j.
    """
    precise = torch.promote_types(maps.dtype, torch.float32)
    weights = word_weights(story.mask, encoding, longest, precise).to(
        story.states.dtype
    )  # (B, N, P, W)
    summed = weights @ story.states  # (B, N, P, D)
    if encoding != "bag":
        slope = feature_slope(width, encoding, precise, maps.device).to(maps.dtype)
        tilted = maps.unflatten(0, (-1, width)) * slope[:, None]  # (M, d, D)
        maps = torch.cat([maps, tilted.flatten(0, 1)], 1)  # (M d, 2 D)
    return F.linear(summed.flatten(2), maps).unflatten(-1, (-1, width))


def word_weights(mask: Tensor, encoding: Encoding, longest: int, dtype: torch.dtype) -> Tensor:
    """Return the weight of each word in its sentence: c, and for a position b_j: (B, N, P, W)"""
    real = mask.to(dtype)
    word = real.cumsum(-1)  # (B, N, W), 1 for the first
    if encoding == "bag":
        return real[:, :, None]
    if encoding == "position_code":
        return torch.stack([real, real * 4 * (word - (longest + 1) / 2) / longest], 2)
    count = real.sum(-1, keepdim=True).clamp(min=1)
    return torch.stack([real / 2, real * (2 * word / count - 1)], 2)


def feature_slope(
    width: int, encoding: Encoding, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return a_k for each feature k of d: (d,)"""
    feature = torch.arange(1, width + 1, device=device, dtype=dtype)
    return (
        (feature - (width + 1) / 2) / width
        if encoding == "position_code"
        else feature / width - 0.5
    )


def last_word_weight(width: int, longest: int, like: Tensor) -> Tensor:
    """Return l_kJ of `position_code`, the weight of the word at place J = `longest`: (d,)"""
    slope = feature_slope(
        width, "position_code", torch.promote_types(like.dtype, torch.float32), like.device
    )
    return (1 + slope * 2 * (longest - 1) / longest).to(like.dtype)


def labelled_fact(facts: Tensor, hop: int, real: Tensor) -> Tensor:
    """Return the sentence that the data give for a hop, -1 where the memory has none. (B, F), real:
    (B, N) -> (B,)

    Facts are counted in the story, and a memory may have fewer positions than it has sentences.
    """
    fact = facts[:, hop] if hop < facts.shape[1] else facts.new_full((facts.shape[0],), -1)
    place = torch.arange(real.shape[1], device=real.device)
    return fact.where((real & (place == fact[:, None])).any(1), -1)


def sentence_ages(real: Tensor) -> Tensor:
    """Count the real sentences after each one: (B, N) -> (B, N) long, 0 for the last."""
    return (real.sum(1, keepdim=True) - real.cumsum(1)).clamp(min=0)


def randomly_aged(age: Tensor, real: Tensor, noise: float) -> Tensor:
    """Age sentences as if up to noise times as many empty ones stood between them. (B, N) -> (B, N)

    The n ages of a row become n of 0 .. n + blanks - 1 drawn without order, and put in order
    (section 4.1).
    """
    count, rows = real.sum(1, keepdim=True), real.shape[0]  # (B, 1)
    blanks = torch.ceil(noise * count)  # (B, 1)
    blanks = (torch.rand(rows, 1, device=age.device) * (blanks + 1)).floor()
    places = torch.arange(real.shape[1] + math.ceil(noise * real.shape[1]), device=age.device)
    lots = torch.rand(rows, len(places), device=age.device).masked_fill(
        places >= count + blanks, 2.0
    )
    is_sentence = lots.argsort(1).argsort(1) < count  # (B, places)
    return is_sentence.logical_not().to(torch.uint8).argsort(dim=1, stable=True).gather(1, age)

"""`memory_network`: reads a memory several times over, each time asking with what it has read."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import (
    Block,
    Context,
    Count,
    Few,
    Memory,
    NoEffect,
    NonNegativeInt,
    Proportion,
    Rate,
    Site,
    State,
)
from blocks.core.sentence_encoding import (
    Encoding,
    as_sentence,
    as_story,
    embed_sentences,
    last_word_weight,
    normal_matrix,
    question_stream,
    randomly_aged,
    sentence_ages,
)

NOISE = 0.1
"""The noise that the paper has."""


class MemoryNetwork(Block):
    """End-to-end memory network over sentences (Sukhbaatar et al. 2015, sections 2 and 4.1).

    m_i = sum_j l_j * A x_ij + T_A(i), c_i likewise with C and T_C, u_1 = sum_j l_j * B q_j, and in
    each hop k p_i = softmax_i(u_k.m_i), o_k = sum_i p_i c_i, u_(k+1) = u_k + o_k. Here x_ij is word
    j of sentence i, * multiplies feature by feature, l_kj = (1 - j / J) - (k / d) (1 - 2 j / J) for
    feature k of d and word j of a sentence of J, and i of T counts from the last sentence back.
    With embeddings `one_hot`, A, B and C are the embedding matrices. What is masked is never read.
    The authors' code differs: `position_code` below.

    Settings:
        from: The memory to read: a grid's positions are sentences and its columns their words; the
            positions of a sequence are sentences of one word. The only encoder where there is one.
        query: The memory whose words are the question, a sequence; all positions then get the same
            answer, and the stream is not read. Without it each position of the stream asks, x_t B.
        hops: How often the memory is read, 1 or more.
        width: Features of u; `model.width` by default.
        tying: adjacent: A of a hop is C of the hop before, and B is the first A where the words of
            both are equally wide. layer_wise: all hops have the same A and C, and u_(k+1) = H u_k +
            o_k.
        encoding: position | position_code | bag. l as above; as in the authors' code, about twice
            as large, l_kj = 1 + 4 (k - (d + 1) / 2) (j - (J + 1) / 2) / (d J) with one J for
            sentences and question, the room for words and one more for T(i), which is weighted as
            the last word; or 1.
        time: For how many sentences back T has a row, those before share the last; 0 is without T.
        noise: In training up to this share of empty sentences is put between the others in T, 0 <=
            noise < 1.
        linear_start: The share of the training, 0 to 1, in which p has no softmax.
        slots: How many sentences the softmax has before it at least, the missing ones empty, u.0 =
            0 (the authors' code has 50): a hop may then read next to nothing. 0 is none but the
            story's own.
        answer: state | words. What leaves: the last u, or u C of the last hop's C, a score for each
            word where words are `one_hot`; with the output `identity` this is the paper's tie of
            the output to C.

    Shapes: (B, T, .) reads (B, N, W, D) or (B, N, D) -> (B, T, width), for words (B, T, D).
    State: the embedded sentences (B, N, maps, width), their mask (B, N), and the question
    (B, 1, width).
    Raises BlockError where a grid arrives, where there is no memory, or several and no `from`, and
    where the question is a grid.
    """

    family = "memory"
    not_packed = "it answers a question about a story, of which a row has one"

    linear: Tensor

    layouts: ClassVar = dict.fromkeys(("maps", "question_map", "between", "times"), "own")

    def __init__(
        self,
        site: Site,
        *,
        from_: Memory | None = None,
        query: Memory | None = None,
        hops: Few = 3,
        width: Count | None = None,
        tying: Literal["adjacent", "layer_wise"] = "adjacent",
        encoding: Encoding = "position",
        time: NonNegativeInt = 50,
        noise: Rate = NOISE,
        linear_start: Proportion = 0.0,
        slots: NonNegativeInt = 0,
        answer: Literal["state", "words"] = "state",
    ) -> None:
        super().__init__()
        stream = site.sequence("memory_network")
        self.memory, self.question = site.memory(from_), query
        if slots == 1:
            raise NoEffect("slots", "a story has a sentence at least")
        if noise != NOISE and site.memories[self.memory].stream.length_ratio == 0:
            raise NoEffect(
                "noise", f"`{self.memory}` is one sentence, and no other stands before it"
            )
        if noise != NOISE and time < 2:
            raise NoEffect(
                "noise",
                f"with `time: {time}` T is the same for all sentences",
                fix="remove `noise`, or write `time: 50`",
            )
        asking = stream.width if query is None else question_stream(site, query).width
        words, self.width = site.memories[self.memory].stream.width, width or site.width
        self.hops, self.encoding, self.noise = hops, encoding, noise
        self.longest = max(1, site.memories[self.memory].stream.columns) + bool(time)
        self.linear_start, self.slots, self.answer = linear_start, slots, answer
        self.reads_stream = query is None
        adjacent = tying == "adjacent"
        self.count = hops + 1 if adjacent else 2
        self.maps = normal_matrix(self.count * self.width, words)
        self.question_map = (
            None if query and adjacent and asking == words else normal_matrix(self.width, asking)
        )
        self.between = None if adjacent else normal_matrix(self.width, self.width)
        self.times = normal_matrix(time, self.count * self.width) if time else None
        if linear_start:
            self.register_buffer("linear", torch.ones((), dtype=torch.bool))
        self.out = stream._replace(width=words if answer == "words" else self.width)

    def set_progress(self, progress: float) -> None:
        if self.linear_start:
            self.linear.fill_(progress < self.linear_start)

    def start(self, x: Tensor, context: Context) -> State:
        story = as_story(context.memories[self.memory])
        real = story.mask.any(-1)  # (B, N)
        made = embed_sentences(
            story, self.maps, self.encoding, self.width, self.longest
        )  # (B, N, maps, d)
        if self.times is not None:
            times = self._times(self.times, real).unflatten(-1, (-1, self.width))
            if self.encoding == "position_code":
                times = times * last_word_weight(self.width, self.longest, times)
            made = made + times
        made = made * real[..., None, None].to(made.dtype)
        if self.question is None:
            return made, real
        maps = self.maps[: self.width] if self.question_map is None else self.question_map
        question = as_sentence(context.memories[self.question])
        embedded = embed_sentences(
            question, maps, self.encoding, self.width, self.longest
        )  # (B, 1, 1, d)
        return made, real, embedded[:, 0]

    def _times(self, times: Tensor, real: Tensor) -> Tensor:
        """Return the row of T for each sentence: (B, N, maps d)"""
        age = sentence_ages(real)
        if self.training and self.noise:
            age = randomly_aged(age, real, self.noise)
        return F.embedding(age.clamp(max=times.shape[0] - 1), times)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        made, real, *question = state
        u = (
            question[0] if self.question_map is None or question else F.linear(x, self.question_map)
        )  # (B, T, d)
        looked = []
        for hop in range(self.hops):
            keys, values = self._pair(made, hop)  # (B, N, d)
            looked.append(self._look(u @ keys.transpose(1, 2), real))  # (B, T, N)
            u = (u if self.between is None else F.linear(u, self.between)) + looked[-1] @ values
        if context.records is not None:
            context.record("hops", torch.stack(looked, 2).expand(-1, x.shape[1], -1, -1))
        if self.answer == "words":
            u = u @ self.maps[-self.width :]  # (B, T, D)
        return u.expand(-1, x.shape[1], -1), state

    def _pair(self, made: Tensor, hop: int) -> tuple[Tensor, Tensor]:
        """Return the vectors that a hop compares and those that it reads: (B, N, d) each."""
        first = hop if self.between is None else 0
        return made[:, :, first], made[:, :, first + 1]

    def _look(self, scores: Tensor, real: Tensor) -> Tensor:
        """Return the attention weights of the sentences: (B, T, N)"""
        real = real[:, None]  # (B, 1, N)
        weights = self._softmax(scores, real)
        if not self.linear_start:
            return weights
        return torch.where(self.linear, scores.masked_fill(~real, 0.0), weights)

    def _softmax(self, scores: Tensor, real: Tensor) -> Tensor:
        """Normalise over the real sentences, and over empty ones where there are fewer than
        `slots`: (B, T, N)
        """
        if not self.slots:
            return scores.masked_fill(~(real | ~real.any(-1, keepdim=True)), -math.inf).softmax(-1)
        empty = (
            (self.slots - real.sum(-1, keepdim=True)).clamp(min=0).to(scores.dtype).log()
        )  # (B, 1, 1)
        beside = torch.cat(
            (scores.masked_fill(~real, -math.inf), empty.expand(-1, scores.shape[1], -1)), -1
        )
        return beside.softmax(-1)[..., :-1]

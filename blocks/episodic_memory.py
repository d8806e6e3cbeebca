"""`episodic_memory`: reads facts in order, several times over, through gates that ask with what it
has read.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import (
    Block,
    Context,
    Count,
    Few,
    Memory,
    NoEffect,
    NonNegative,
    Output,
    Site,
    State,
    Stream,
)
from blocks.core.loops import over_positions
from blocks.core.recurrence import init_per_gate
from blocks.core.sentence_encoding import (
    Encoding,
    as_sentence,
    as_story,
    embed_sentences,
    labelled_fact,
    normal_matrix,
    question_stream,
    required_question,
    story_stream,
)


class EpisodicMemory(Block):
    """Episodic memory of a dynamic memory network (Kumar et al. 2016, arXiv 1506.07285).

    Section 2.3: each hop i reads all facts c_t in their order, and remembers an episode; of the
    question q, m_0 = q and h_0 = 0: g_t = sigmoid(W_2 tanh(W_1 z(c_t, m, q) + b_1) + b_2), with m
    of the hop before and z(c, m, q) = [c, m, q, c * q, c * m, |c - q|, |c - m|, c.W q, c.W m];
    h_t = g_t GRU(c_t, h_(t-1)) + (1 - g_t) h_(t-1), m_i = GRU(h_T, m_(i-1)), each GRU with weights
    of its own: r, z = sigmoid(W x + U h + b), h' = (1 - z) tanh(W_n x + r * U_n h + b_n) + z h
    (section 2.1). What leaves is the last m. Where the data give supporting facts, the gates of hop
    i learn to open at fact i alone (section 2.5).

    Settings:
        from: The memory to read: the positions of a sequence are facts; a grid's are sentences, and
            its columns their words. The only encoder where there is one.
        query: The memory of the question: one vector (an encoder that ends with `pool`), or a
            sequence of words.
        hops: How often the facts are read, 1 or more.
        width: Features of c, q and m; `model.width` by default. What is as wide already is taken as
            it is.
        encoding: position | position_code | bag. How words become a sentence, as in
            `memory_network`.
        gate: sigmoid | softmax. Whether gates open each by itself, or share 1 among the facts (as
            Xiong et al. 2016, arXiv 1603.01417, section 3.3).
        supervision: What the cross-entropy of gates and supporting facts counts in the loss of a
            training (alpha of section 2.5); 0 is without.

    Shapes: (B, T, .) reads (B, N, W, D) or (B, N, D) -> (B, T, width), the same at all positions.
    State: the last m (B, 1, width), the gates before sigmoid or softmax (B, 1, hops, N), and the
    mask of the facts (B, N).
    Raises BlockError where a grid arrives, where there is no memory, or several and no `from`,
    where that is one vector of a story, and where the question is missing or a grid.
    """

    family = "memory"
    not_packed = "it answers a question about a story, of which a row has one"

    reads_stream = False

    layouts: ClassVar = {"fact_map": "own", "question_map": "own"}

    def __init__(
        self,
        site: Site,
        *,
        from_: Memory | None = None,
        query: Memory | None = None,
        hops: Few = 3,
        width: Count | None = None,
        encoding: Encoding = "position",
        gate: Literal["sigmoid", "softmax"] = "sigmoid",
        supervision: NonNegative = 1.0,
    ) -> None:
        super().__init__()
        stream = site.sequence("episodic_memory")
        self.memory = site.memory(from_)
        query = required_question(site, query)
        asking, story = question_stream(site, query), story_stream(site, self.memory)
        self.asks_words = asking.length_ratio != 0
        if encoding != "position" and not (story.grid or self.asks_words):
            raise NoEffect(
                "encoding", "facts and question are vectors here, and no words are put together"
            )
        self.question, self.hops, self.width, self.gate = query, hops, width or site.width, gate
        self.supervision, self.longest = supervision, max(1, story.columns)
        self.story_encoding: Encoding = encoding if story.grid else "bag"
        self.question_encoding: Encoding = encoding if self.asks_words else "bag"
        self.fact_map = self._map(story, story.grid)
        self.question_map = self._map(asking, self.asks_words)
        self.bilinear = nn.Linear(self.width, self.width, bias=False)
        self.hidden = nn.Linear(7 * self.width + 2, self.width)
        # before a softmax, a bias of all is none
        self.score = nn.Linear(self.width, 1, bias=gate == "sigmoid")
        for linear in (self.bilinear, self.hidden, self.score):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.hidden.bias)
        self.episode, self.update = GRUCell(self.width), GRUCell(self.width)
        self.out = stream._replace(width=self.width)

    def _map(self, stream: Stream, has_words: bool) -> nn.Parameter | None:
        """Return the map of words, or of vectors of another width; None if no map is needed."""
        needs_none = not has_words and stream.width == self.width
        return None if needs_none else normal_matrix(self.width, stream.width)

    def start(self, x: Tensor, context: Context) -> State:
        story, question = as_story(context.memories[self.memory]), context.memories[self.question]
        question = as_sentence(question) if self.asks_words else as_story(question)
        facts, real = (
            self._embed(story, self.fact_map, self.story_encoding),
            story.mask.any(-1),
        )  # (B, N, d), (B, N)
        q = self._embed(question, self.question_map, self.question_encoding)[:, 0]  # (B, d)
        arriving = self.episode.arriving(facts)  # (B, N, 3 d)
        m, scores = q, []
        for _ in range(self.hops):
            scores.append(self._scores(facts, m, q))  # (B, N)
            read = self._read(arriving, self._gates(scores[-1], real), torch.zeros_like(q))
            m = self.update(self.update.arriving(read), m)
        return m[:, None], torch.stack(scores, 1)[:, None], real

    def _embed(self, sentences: Output, map: Tensor | None, encoding: Encoding) -> Tensor:
        """Return sentences (B, N, W, D) as vectors, those of one word as they are without a map:
        (B, N, d)
        """
        if map is None:
            return (sentences.states * sentences.mask[..., None].to(sentences.states.dtype))[
                :, :, 0
            ]
        return embed_sentences(sentences, map, encoding, self.width, self.longest)[:, :, 0]

    def _scores(self, facts: Tensor, m: Tensor, q: Tensor) -> Tensor:
        """Return the inputs of the gates. facts: (B, N, d), m and q: (B, d) -> (B, N)"""
        m, q = (vector[:, None].expand_as(facts) for vector in (m, q))
        mapped = self.bilinear(facts)
        products = [(mapped * vector).sum(-1, keepdim=True) for vector in (q, m)]  # (B, N, 1)
        z = [facts, m, q, facts * q, facts * m, (facts - q).abs(), (facts - m).abs(), *products]
        return self.score(torch.tanh(self.hidden(torch.cat(z, -1))))[..., 0]

    def _gates(self, scores: Tensor, real: Tensor) -> Tensor:
        """Return the gate of each fact, 0 where not `real` (B, N): (..., N) -> (..., N)"""
        if self.gate == "sigmoid":
            return torch.sigmoid(scores).masked_fill(~real, 0.0)
        return (
            scores.masked_fill(~(real | ~real.any(-1, keepdim=True)), -math.inf)
            .softmax(-1)
            .masked_fill(~real, 0.0)
        )

    def _read(self, arriving: Tensor, gates: Tensor, h: Tensor) -> Tensor:
        """Return the episode: the GRU's state after all facts. arriving: (B, N, 3 d), gates: (B, N)
        -> (B, d)
        """

        def step(h: Tensor, one: Tensor, gate: Tensor) -> tuple[Tensor, tuple[()]]:
            return h + gate[:, None] * (self.episode(one, h) - h), ()

        last: Tensor = over_positions(step, h, (arriving, gates))[0]
        return last

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        m, scores, real = state
        if self.supervision and context.facts is not None:
            facts = [
                labelled_fact(context.facts, hop, real) for hop in range(self.hops)
            ]  # (B,) each
            costs = [
                self._cost(of_hop, real, fact)
                for of_hop, fact in zip(scores[:, 0].unbind(1), facts, strict=True)
            ]
            context.penalty("gates", self.supervision * torch.stack(costs).sum(0))
        if context.records is not None:
            gates = self._gates(scores, real[:, None, None])  # (B, 1, hops, N)
            context.record("hops", gates.expand(-1, x.shape[1], -1, -1))
        return m.expand(-1, x.shape[1], -1), state

    def _cost(self, scores: Tensor, real: Tensor, fact: Tensor) -> Tensor:
        """Return the cross-entropy of one hop's gates, 0 in a row without a fact. (B, N), (B, N),
        (B,) -> (B,)
        """
        is_fact = F.one_hot(fact.clamp(min=0), scores.shape[1]).to(scores.dtype)  # (B, N)
        if self.gate == "sigmoid":
            costs = F.binary_cross_entropy_with_logits(scores, is_fact, reduction="none") * real
        else:
            costs = (
                -scores.masked_fill(~real, torch.finfo(scores.dtype).min).log_softmax(-1) * is_fact
            )
        return torch.where(fact >= 0, costs.sum(1), 0.0)


class GRUCell(nn.Module):
    """r, z = sigmoid(W x + U h + b); h' = (1 - z) tanh(W_n x + r * U_n h + b_n) + z h, of W x + b =
    `arriving(x)`.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.arriving, self.recurrent = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, 3 * width, bias=False),
        )
        init_per_gate(self.arriving.weight, width, nn.init.xavier_uniform_)
        init_per_gate(self.recurrent.weight, width, nn.init.orthogonal_)
        nn.init.zeros_(self.arriving.bias)

    def forward(self, arriving: Tensor, h: Tensor) -> Tensor:
        """Return the state after h. arriving: (B, 3 d), h: (B, d) -> (B, d)"""
        width = h.shape[-1]
        gates, candidate = arriving.split((2 * width, width), -1)
        recurrent, inner = self.recurrent(h).split((2 * width, width), -1)
        r, z = torch.sigmoid(gates + recurrent).chunk(2, -1)
        n = torch.tanh(candidate + r * inner)
        return n + z * (h - n)

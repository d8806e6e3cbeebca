"""Reference implementations in plain PyTorch: a Transformer with a key-value cache, and a GRU with
attention.

Baselines of the other benchmarks. Sizes, dropout sites and the order of the norms are those of
`recipes/multi30k/transformer.yaml` and `gru_attention.yaml`, so that both sides do the same
arithmetic. Both decode by `begin`, `step` and the `reorder` of their states.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAD, BOS, EOS = 0, 1, 2
Pair = tuple[Tensor, Tensor]
"""Keys and values, (B, H, S, D/H) each."""


class TransformerState(NamedTuple):
    """Keys and values of the memory and of the positions so far, for each layer."""

    memory: list[Pair]
    mask: Tensor  # (B, 1, 1, S)
    cache: list[Pair] | None = None

    def reorder(self, rows: Tensor) -> TransformerState:
        """Move the hypotheses of each sentence; its memory is the same for all of them."""
        return self._replace(cache=[(keys[rows], values[rows]) for keys, values in self.cache])


class GRUState(NamedTuple):
    """Keys and values of the memory, and the two hidden states."""

    memory: Pair
    mask: Tensor  # (B, 1, 1, S)
    first: Tensor  # (B, D)
    second: Tensor  # (B, D)

    def reorder(self, rows: Tensor) -> GRUState:
        return self._replace(first=self.first[rows], second=self.second[rows])


def repeat_rows(x: Tensor, copies: int) -> Tensor:
    """Repeat each row for the hypotheses of a beam."""
    return x if copies == 1 else x.repeat_interleave(copies, 0)


def sinusoids(length: int, width: int) -> Tensor:
    """Return the position embeddings: (T, D)"""
    rates = torch.exp(torch.arange(width // 2) * (-math.log(10_000.0) / (width // 2)))
    angles = torch.arange(length)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), -1)


class Attention(nn.Module):
    """Multi-head attention with separate entry points for keys and values and for queries.

    `dropout` is of attention weights.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.pair, self.merge = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def read(self, x: Tensor, copies: int = 1) -> Pair:
        keys, values = self.pair(x).chunk(2, -1)
        return repeat_rows(self.split(keys), copies), repeat_rows(self.split(values), copies)

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        query, dropout = self.split(self.query(x)), self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
        return self.merge(y.transpose(1, 2).flatten(2))


class SeparateAttention(Attention):
    """The same in separate operations, as before fused kernels: product, mask, softmax, product."""

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        scores = self.split(self.query(x)) @ keys.mT / math.sqrt(keys.shape[-1])  # (B, H, T, S)
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = F.dropout(scores.softmax(-1).to(values.dtype), self.dropout, self.training)
        return self.merge((weights @ values).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Pre-norm Transformer layer: self-attention, cross-attention in a decoder, feed-forward."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        dropout: float,
        cross: Attention | None,
        attention: type[Attention] = Attention,
    ) -> None:
        super().__init__()
        self.attention, self.norm = attention(width, heads), nn.LayerNorm(width)
        self.cross, self.cross_norm = cross, None if cross is None else nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Pair | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        y = self.norm(x)
        x = x + self.dropout(self.attention(y, *self.attention.read(y), mask, causal=mask is None))
        if self.cross is not None and memory is not None:
            x = x + self.dropout(self.cross(self.cross_norm(x), *memory, memory_mask))
        return x + self.dropout(self.feed_forward(x))

    def step(
        self,
        x: Tensor,
        cache: Pair | None,
        memory: Pair | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, Pair]:
        """Run one position x (B, 1, D), with the keys and values of those before it, or the first
        ones together.
        """
        y = self.norm(x)
        keys, values = self.attention.read(y)
        if cache is not None:
            keys, values = torch.cat((cache[0], keys), 2), torch.cat((cache[1], values), 2)
        x = x + self.attention(y, keys, values, causal=x.shape[1] > 1)
        if self.cross is not None and memory is not None:
            x = x + self.cross(self.cross_norm(x), *memory, memory_mask)
        return x + self.feed_forward(x), (keys, values)


class Transformer(nn.Module):
    """Vaswani et al. 2017, pre-norm, with one matrix for both embeddings and the output."""

    def __init__(
        self,
        vocabulary: int,
        width: int = 256,
        heads: int = 4,
        hidden: int = 1024,
        layers: int = 3,
        dropout: float = 0.2,
        attention: type[Attention] = Attention,
        cross_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.register_buffer("positions", sinusoids(512, width), persistent=False)
        sizes = (width, heads, hidden, dropout)
        self.encoder = nn.ModuleList(Layer(*sizes, None, attention) for _ in range(layers))
        crosses = [attention(width, heads, cross_dropout) for _ in range(layers)]
        self.decoder = nn.ModuleList(Layer(*sizes, cross, attention) for cross in crosses)
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.dropout = nn.Dropout(dropout)

    def embed(self, ids: Tensor, first: int = 0) -> Tensor:
        return self.dropout(
            self.embedding(ids) * self.scale + self.positions[first : first + ids.shape[1]]
        )

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        mask = (source != PAD)[:, None, None, :]
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(self.decoder_norm(x), self.embedding.weight, self.bias)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, mask = self.encode(source)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory=layer.cross.read(memory), memory_mask=mask)
        return self.logits(x)

    def begin(self, source: Tensor, copies: int = 1) -> TransformerState:
        """Encode, and return the state before the first position: `copies` rows for each of source
        (B, S).
        """
        memory, mask = self.encode(source)
        return TransformerState(
            [layer.cross.read(memory, copies) for layer in self.decoder], repeat_rows(mask, copies)
        )

    def step(
        self, ids: Tensor, position: int, state: TransformerState
    ) -> tuple[Tensor, TransformerState]:
        """Run one position for all rows: ids (B, 1) -> logits (B, V)."""
        x, after = self.embed(ids, position), []
        for index, layer in enumerate(self.decoder):
            cache = None if state.cache is None else state.cache[index]
            x, after_layer = layer.step(x, cache, state.memory[index], state.mask)
            after.append(after_layer)
        return self.logits(x[:, -1]), state._replace(cache=after)


class GRU(nn.Module):
    """The plain PyTorch equivalent of `recipes/multi30k/gru_attention.yaml`."""

    def __init__(
        self,
        vocabulary: int,
        width: int = 256,
        heads: int = 4,
        hidden: int = 1024,
        dropout: float = 0.2,
        cross_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.below = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.above = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.encoder_norm, self.middle_norm, self.decoder_norm = (
            nn.LayerNorm(width) for _ in range(3)
        )
        self.initial = nn.Linear(width, width)
        self.state, self.second = (
            nn.GRU(width, width, batch_first=True),
            nn.GRU(width, width, batch_first=True),
        )
        self.cross = Attention(width, heads, cross_dropout)
        self.expand, self.contract = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * self.scale)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the memory, its mask, and the decoder's first state: (B, S, D), (B, 1, 1, S), (B,
        D)
        """
        mask = source != PAD  # (B, S)
        lengths = mask.sum(1).cpu()
        x = self.dropout(self.packed(self.below, self.embed(source), lengths))
        memory = self.encoder_norm(x + self.dropout(self.packed(self.above, x, lengths)))
        mean = (memory * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return memory, mask[:, None, None, :], torch.tanh(self.initial(mean))

    def attend(self, y: Tensor, memory: Pair, mask: Tensor) -> Tensor:
        return self.middle_norm(y + self.dropout(self.cross(y, *memory, mask)))

    def logits(self, y: Tensor) -> Tensor:
        y = y + self.dropout(self.contract(torch.tanh(self.expand(y))))
        return F.linear(self.decoder_norm(y), self.embedding.weight, self.bias)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, mask, initial = self.encode(source)
        y = self.attend(
            self.state(self.embed(target), initial[None])[0], self.cross.read(memory), mask
        )
        return self.logits(y + self.dropout(self.second(y)[0]))

    def begin(self, source: Tensor, copies: int = 1) -> GRUState:
        """Encode, and return the state before the first position: `copies` rows for each of source
        (B, S).
        """
        memory, mask, initial = self.encode(source)
        first = repeat_rows(initial, copies)
        return GRUState(
            self.cross.read(memory, copies),
            repeat_rows(mask, copies),
            first,
            torch.zeros_like(first),
        )

    def step(self, ids: Tensor, position: int, state: GRUState) -> tuple[Tensor, GRUState]:
        """Run one position for all rows: ids (B, 1) -> logits (B, V). A cell is faster than its
        layer, for one step.
        """
        first = torch.gru_cell(self.embed(ids[:, 0]), state.first, *self.state.all_weights[0])
        y = self.attend(first[:, None], state.memory, state.mask)[:, 0]
        second = torch.gru_cell(y, state.second, *self.second.all_weights[0])
        return self.logits(y + second), state._replace(first=first, second=second)

    @staticmethod
    def packed(rnn: nn.GRU, x: Tensor, lengths: Tensor) -> Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(
            rnn(rows)[0], batch_first=True, total_length=x.shape[1]
        )[0]

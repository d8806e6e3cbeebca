"""The model of a recipe: any number of encoders, one decoder, and the two calls that everything else is made of.

`forward` is training, all positions at once; `step` continues from a state by any number of positions. Both run the
same blocks: a decoder that trains is a decoder that decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, Context, Output, Records, State
from blocks.core.stack import Stack
from composer.model.embeddings import Embedding, LinearEmbedding, OneHot
from composer.model.output_heads import IdentityOutput, LinearOutput, SigmoidOutput, ended
from composer.model.vocabulary import PAD

AnyEmbedding = Embedding | LinearEmbedding | OneHot
AnyOutput = LinearOutput | SigmoidOutput | IdentityOutput


class StepInputs(NamedTuple):
    """What a caller asks for beside the logits: see `Context`, whose fields of these names these are."""

    records: Records | None = None
    penalties: dict[str, list[Tensor]] | None = None
    progress: Tensor | None = None
    facts: Tensor | None = None


NOTHING = StepInputs()


class Encoder(nn.Module):
    """An embedding and a stack that sees the whole source. `memory` is the name under which others read it.

    `room` is how many times as long as the source an answer may be, where the stack makes room for it; else 0.
    `columns` is how many words each sentence of a story has room for; 0 where the source is no story.
    """

    def __init__(self, memory: str, embedding: AnyEmbedding, stack: Stack, columns: int = 0) -> None:
        super().__init__()
        self.memory, self.embedding, self.stack, self.columns = memory, embedding, stack, columns
        self.room = max_target_ratio(stack)

    def forward(
        self, ids: Tensor, memories: Mapping[str, Output], context: Context, room: Tensor | None = None
    ) -> dict[str, Output]:
        """ids: (B, S), of a story (B, N, W) -> what is left to read: the encoder, and `NAME.x` for each named output.

        room: (B, T) bool, the positions of the answer; a stack that makes room for it reads blanks up to its end.
        """
        x = self.embedding(ids)  # (B, S, D) or (B, N, W, D)
        if self.room and room is not None:
            x, mask = pad_with_blanks(x, context.mask, room)
            context = context._replace(mask=mask)
        board = {"input": Output(x, context.mask)}
        context = context._replace(board=board, memories=memories)
        states, last = self.stack(x, self.stack.start(x[:, :1], context), context)
        whole = Output(states, self.stack.mask(context.mask), last)
        return {self.memory: whole} | {f"{self.memory}.{name}": output for name, output in board.items()}


def max_target_ratio(stack: nn.Module) -> float:
    """How many times as long as the source an answer may be; 0 where the stack makes no room for one."""
    return max((each.room for each in stack.modules() if isinstance(each, Block)), default=0.0)


def pad_with_blanks(x: Tensor, mask: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """The embedded source with zeros after it, real ones up to the end of the answer. -> (B, N, D), (B, N)"""
    length = max(x.shape[1], room.shape[1])
    x = F.pad(x * mask[..., None].to(x.dtype), (0, 0, 0, length - x.shape[1]))
    return x, F.pad(mask, (0, length - mask.shape[1])) | F.pad(room, (0, length - room.shape[1]))


class EncoderDecoder(nn.Module):
    """Encoders by their key in the data, a decoder, and the map to the vocabulary.

    Pad is id 0 in every vocabulary: masks are made from the ids. `embedding` is None where the decoder reads no tokens;
    zeros of `width` arrive there then. `room` is that of the encoders: not 0 where an answer's size is part of the
    question. `length`: every answer has exactly so many tokens; None where it ends when the model says so.
    """

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        embedding: AnyEmbedding | None,
        decoder: Stack,
        output: AnyOutput,
        width: int,
        length: int | None = None,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict(encoders)
        self.embedding, self.decoder, self.output, self.width = embedding, decoder, output, width
        self.length = length
        self.room = max((encoder.room for encoder in encoders.values()), default=0.0)

    @property
    def vocabulary(self) -> int:
        """How many ids an answer is made of, the special ones included."""
        return self.output.out_features

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def readers(self) -> dict[str, Encoder]:
        """The encoders by their key in the data, in the order in which they read."""
        return cast("dict[str, Encoder]", dict(self.encoders.items()))

    def encode(
        self, sources: Mapping[str, Tensor], beside: StepInputs = NOTHING, room: Tensor | None = None
    ) -> dict[str, Output]:
        """What the encoders leave to read. sources: ids (B, S), or of a story (B, N, W), by their keys in the data.

        room: (B, T) bool, the positions that the answer has, its eos counted; a model without `room` needs none.
        """
        memories: dict[str, Output] = {}
        for key, encoder in self.readers().items():
            mask = sources[key] != PAD  # (B, S)
            memories |= encoder(sources[key], memories, Context(mask, {}, memories, *beside), room)
        return memories

    def start(self, memories: Mapping[str, Output], batch: int) -> State:
        """The decoder's state before the first position, for `batch` rows."""
        x = self._zeros(batch, 1, self.output.in_features)
        mask = torch.ones(batch, 1, dtype=torch.bool, device=x.device)
        state = self.decoder.start(x, Context(mask, {}, memories))
        return state if self.length is None else (state, mask.new_zeros(batch, dtype=torch.long))

    def step(self, ids: Tensor, state: State, memories: Mapping[str, Output]) -> tuple[Tensor, State]:
        """Any number of positions from a state. ids: (B, T), padded on the right -> logits (B, T, V), state after."""
        return self._decode(ids, state, Context(ids != PAD, {}, memories))

    def forward(self, sources: Mapping[str, Tensor], target: Tensor, beside: StepInputs = NOTHING) -> Tensor:
        """Training: all positions at once. target: bos and the answer, (B, T) -> logits (B, T, V)."""
        memories = self.encode(sources, beside, target != PAD)
        context = Context(target != PAD, {}, memories, *beside)
        state = self.start(memories, target.shape[0])
        return self._decode(target, state, context)[0]

    def _decode(self, ids: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        if self.length is None:
            return self._written(ids, state, context)
        inner, before = state
        logits, inner = self._written(ids, inner, context)
        written = before[:, None] + context.mask.cumsum(1) - 1  # (B, T)
        return ended(logits, written, self.length), (inner, before + context.mask.sum(1))

    def _written(self, ids: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        x = self._embedded(ids)  # (B, T, D)
        context.board["input"] = Output(x, context.mask)
        x, state = self.decoder(x, state, context)
        return self.output(x), state  # (B, T, V)

    def _embedded(self, ids: Tensor) -> Tensor:
        if self.embedding is None:
            return self._zeros(*ids.shape, self.width)
        embedded: Tensor = self.embedding(ids)
        return embedded

    def _zeros(self, *size: int) -> Tensor:
        """A plain tensor like the parameters, which may themselves be sharded."""
        like = next(self.parameters())
        return torch.zeros(size, dtype=like.dtype, device=like.device)

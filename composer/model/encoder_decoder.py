"""Encoder-decoder model: embeddings, any number of encoders and one decoder.

`forward` trains, on all positions at once; `step` decodes, any number of positions from a state.
Both run the same blocks, so whatever trains also decodes.

Every embedding has `embedding_dim`, its width, and `num_embeddings`, the number of ids; every
output head has `in_features`, the width that arrives, and `out_features`, the size of the
vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Block, Context, Output, Penalties, State
from blocks.core.functional import apply_dropout
from blocks.core.stack import Stack
from composer.model.special_tokens import BOS, EOS, NUM_SPECIAL, PAD
from composer.model.step_inputs import NO_INPUTS as NO_INPUTS
from composer.model.step_inputs import StepInputs as StepInputs

ROUNDING = 1e-9
"""What a product of a ratio and a length may be too large by."""


def source_mask(source: Tensor) -> Tensor:
    """Return a mask of an encoder's real inputs: ids but padding, features but NaN.

    ids (B, S) or (B, N, W), features (B, S, F) or (B, S, W, F) -> the same without F, bool
    """
    return ~source[..., 0].isnan() if source.is_floating_point() else source != PAD


class TokenEmbedding(nn.Module):
    """Vectors of tokens, from ids (B, T) to (B, T, D), or those of a story's grid of words.

    `reads_features`: what it reads are no tokens but numbers, of images, sounds, ...; then
    `num_embeddings` is 0, and `columns` are those of an image.
    """

    num_embeddings: int
    embedding_dim: int
    dropout = 0.0
    reads_features = False
    columns = 0

    def embed(self, ids: Tensor) -> Tensor:
        """Return the vectors of tokens; in training dropped words are zeros in the batch."""
        x: Tensor = self(ids)  # (B, T, D)
        if not self.training or not self.dropout:
            return x
        factors = apply_dropout(
            x.new_ones(self.num_embeddings), self.dropout, training=True
        )  # (V,)
        return x * factors[ids][..., None]


class Embedding(nn.Embedding, TokenEmbedding):
    """Learned vector for each token, with entries of variance 1: sqrt(D) E, E ~ N(0, 1/D).

    scale: Whether it is multiplied by sqrt(D).
    """

    def __init__(self, vocabulary: int, width: int, scale: bool = True) -> None:
        super().__init__(vocabulary, width)
        self.factor = math.sqrt(width) if scale else 1.0

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        vectors = super().forward(ids)  # (B, T, D)
        return vectors if self.factor == 1.0 else vectors * self.factor


class OneHotEmbedding(TokenEmbedding):
    """Unit vector for each token, zeros for the special ones."""

    table: Tensor

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = vocabulary, vocabulary - NUM_SPECIAL
        words = vocabulary - NUM_SPECIAL
        table = torch.cat([torch.zeros(NUM_SPECIAL, words), torch.eye(words)])
        self.register_buffer("table", table, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]  # (B, T, V - 4)


NEVER = -1e4
"""Logit of an impossible token: its probability is 0 in every precision, and sums of it stay
finite.
"""


def is_impossible(log_p: Tensor) -> Tensor:
    """Return a mask of tokens with the logit `NEVER`; log p of others is far above half of it."""
    return log_p < NEVER / 2


class OutputHead(nn.Module):
    """Output head: logits of the vocabulary from the decoder's last outputs.

    `trains_on_cost`: it trains on its own `cost`, not on the cross-entropy of all logits, which
    `draws_samples` or not. `evaluates_on_cost`: given targets are measured by it too, without the
    logits of other tokens. `has_impossible_tokens`: some logits are `NEVER`.
    """

    in_features: int
    out_features: int
    trains_on_cost = False
    has_impossible_tokens = False
    draws_samples = False
    evaluates_on_cost = False

    @property
    def returns_cost(self) -> bool:
        """True if, in this mode, targets count by the head's `cost`, not its logits."""
        return self.trains_on_cost if self.training else self.evaluates_on_cost

    def cost(self, y: Tensor, target: Tensor) -> Tensor:
        """Return the cost of each position in nats. y: (B, T, D), target: ids (B, T) -> (B, T)"""
        raise NotImplementedError

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log p of each token, from logits. -> of 32 bits or more"""
        return logits.log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))

    def measure(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the terms of an evaluation per position, by the names in `metrics.table.Sums`.

        outputs: what the model returned with the target as `answer`, logits (B, T, V) or costs (B,
        T); target: (B, T) -> (B, T) each, of any value where the target is padding.
        """
        log_p = outputs.log_softmax(
            -1, torch.promote_types(outputs.dtype, torch.float32)
        )  # (B, T, V)
        return {
            "loss": -log_p.gather(-1, target[..., None])[..., 0],
            "right": outputs.argmax(-1) == target,
        }


class Encoder(nn.Module):
    """Embedding and stack of one encoder. `memory` is the name under which other stacks read it.

    `max_target_ratio` is how many times as long as the source an answer may be, 0 where the stack
    makes no room for it. `columns` is how many words each sentence of a story has room for, or how
    many columns an image has; else 0.
    """

    def __init__(
        self, memory: str, embedding: TokenEmbedding, stack: Stack, columns: int = 0
    ) -> None:
        super().__init__()
        self.memory, self.embedding, self.stack, self.columns = memory, embedding, stack, columns
        blocks = (block for block in stack.modules() if isinstance(block, Block))
        self.max_target_ratio = max((block.max_target_ratio for block in blocks), default=0.0)

    @property
    def reads_story(self) -> bool:
        """Whether the source is a story, a grid of sentences by words."""
        return self.columns > 0 and not self.embedding.reads_features

    def forward(
        self,
        ids: Tensor,
        memories: Mapping[str, Output],
        context: Context,
        target_mask: Tensor | None = None,
    ) -> dict[str, Output]:
        """Encode ids or features; return the outputs `MEMORY` and `MEMORY.x` of named blocks.

        target_mask: (B, T) bool; a stack that makes room for the answer reads blanks up to its end.
        """
        x = self.embedding.embed(ids)  # (B, S, D) or (B, N, W, D)
        if self.max_target_ratio and target_mask is not None:
            x, mask = pad_with_blanks(x, context.mask, target_mask)
            context = context._replace(mask=mask)
        outputs = {"input": Output(x, context.mask)}
        context = context._replace(named_outputs=outputs, memories=memories)
        states, last, named = self.stack(x, self.stack.start(x[:, :1], context), context)
        outputs |= named
        memories = {self.memory: Output(states, self.stack.mask(context.mask), last)}
        memories |= {f"{self.memory}.{name}": output for name, output in outputs.items()}
        if context.documents is None:
            return memories
        return {
            name: output._replace(documents=context.documents) for name, output in memories.items()
        }


def pad_with_blanks(x: Tensor, mask: Tensor, target_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Append zeros to the embedded source up to the answer's end. -> (B, N, D), (B, N)"""
    length = max(x.shape[1], target_mask.shape[1])
    x = F.pad(x * mask[..., None].to(x.dtype), (0, 0, 0, length - x.shape[1]))
    return x, F.pad(mask, (0, length - mask.shape[1])) | F.pad(
        target_mask, (0, length - target_mask.shape[1])
    )


class EncoderDecoder(nn.Module):
    """Encoders by their key in the data, a decoder, and the output head.

    Pad is id 0 in every vocabulary, and NaN among features: masks are made from the sources.
    `embedding` is None where the decoder reads no tokens; zeros of `width` arrive there then.
    `max_target_ratio` is that of the encoders: not 0 where an answer's size is part of the
    question. `length`: every answer has exactly so many tokens; None where it ends when the model
    says so. `decoder_share` is what the decoder's cross-entropy is multiplied by in the loss.
    `begins_after_end`: bos is read as eos, so that what a model is asked begins as a document does
    in the windows of its text: after the end of another. `has_programs`: another engine runs it.
    """

    decoder_share = 1.0
    begins_after_end = False
    has_programs = False

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        embedding: TokenEmbedding | None,
        decoder: Stack,
        output: OutputHead,
        width: int,
        length: int | None = None,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict(encoders)
        self.embedding, self.decoder, self.output, self.width = embedding, decoder, output, width
        self.length = length
        self.max_target_ratio = max(
            (encoder.max_target_ratio for encoder in encoders.values()), default=0.0
        )

    @property
    def vocabulary(self) -> int:
        """Number of target ids, the special ones included."""
        return self.output.out_features

    @property
    def has_impossible_tokens(self) -> bool:
        """True if a step may give tokens the logit `NEVER`, which a search must leave out."""
        return self.length is not None or self.output.has_impossible_tokens

    @property
    def max_positions(self) -> int | None:
        """Number of positions that the decoder can tell apart; None where there is no limit."""
        blocks = (block for block in self.decoder.modules() if isinstance(block, Block))
        return min(
            (block.max_positions for block in blocks if block.max_positions is not None),
            default=None,
        )

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.parameters()).device

    def readers(self) -> dict[str, Encoder]:
        """Return the encoders by their key in the data, in the order in which they run."""
        return cast("dict[str, Encoder]", dict(self.encoders.items()))

    def encode(
        self,
        sources: Mapping[str, Tensor],
        inputs: StepInputs = NO_INPUTS,
        target_mask: Tensor | None = None,
    ) -> dict[str, Output]:
        """Return the outputs of all encoders.

        sources: ids or features by data key, see `source_mask`.

        target_mask: (B, T) bool, the answer's positions, eos counted; needed where
        `max_target_ratio` is not 0.
        """
        memories: dict[str, Output] = {}
        for key, encoder in self.readers().items():
            mask = source_mask(sources[key])  # (B, S) or (B, S, W)
            memories |= encoder(
                sources[key], memories, inputs.context(mask, memories, key), target_mask
            )
        return memories

    def start(self, memories: Mapping[str, Output], batch: int) -> State:
        """Return the decoder's state before the first position, for `batch` rows."""
        x = self._zeros(batch, 1, self.output.in_features)
        mask = torch.ones(batch, 1, dtype=torch.bool, device=x.device)
        state = self.decoder.start(x, Context(mask, {}, memories, memo={}))
        return state if self.length is None else (state, mask.new_zeros(batch, dtype=torch.long))

    def step(
        self,
        ids: Tensor,
        state: State | None,
        memories: Mapping[str, Output],
        inputs: StepInputs = NO_INPUTS,
        answer: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Decode any number of positions from a state, None at the start; `answer` as in `forward`.

        ids: (B, T), padded on the right -> logits (B, T, V), the state after them.
        """
        state = self.start(memories, len(ids)) if state is None else state
        return self._decode(ids, state, inputs.context(ids != PAD, memories), answer)

    def forward(
        self,
        sources: Mapping[str, Tensor],
        target: Tensor,
        inputs: StepInputs = NO_INPUTS,
        answer: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of all positions. target: bos and answer, (B, T) -> (B, T, V)

        answer: what follows each token, (B, T); with it, where the head's own cost is what counts,
        that is returned, (B, T).
        """
        memories = self.encode(sources, inputs, target != PAD)
        context, batch = inputs.context(target != PAD, memories), target.shape[0]
        if context.starts is None:
            return self._decode(target, self.start(memories, batch), context, answer)[0]
        state = self.decoder.start(self._zeros(batch, 1, self.width), context)
        return self._decode(target, state, context, answer)[0]

    def with_ctc_weight(self, weight: float) -> EncoderDecoder:
        """Return the model with another weight of CTC; itself without CTC and a decoder."""
        return self

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return log p of each token, from a step's logits. -> of 32 bits or more"""
        return self.output.log_probs(logits)

    def _decode(
        self, ids: Tensor, state: State, context: Context, answer: Tensor | None = None
    ) -> tuple[Tensor, State]:
        ids = ids.masked_fill(ids == BOS, EOS) if self.begins_after_end else ids
        if self.embedding is None:
            x = self._zeros(*ids.shape, self.width)
        else:
            x = self.embedding.embed(ids)  # (B, T, D)
        inner = state if self.length is None else state[0]
        # this context ends with the call: a local one would keep x in memory until the loss
        x, inner, _ = self.decoder(
            x, inner, context.with_outputs({"input": Output(x, context.mask)})
        )
        if answer is not None and self.output.returns_cost:
            return self.output.cost(x, answer), inner
        logits = self.output(x)  # (B, T, V)
        if self.length is None:
            return logits, inner
        before = state[1][:, None] + context.mask.cumsum(1) - 1  # (B, T)
        return force_length(logits, before, self.length), (inner, state[1] + context.mask.sum(1))

    def _zeros(self, *size: int) -> Tensor:
        # a plain tensor of the parameters' type and device: `new_zeros` of a sharded parameter
        # would be sharded
        like = next(self.parameters())
        return torch.zeros(size, dtype=like.dtype, device=like.device)


def force_length(logits: Tensor, before: Tensor, length: int) -> Tensor:
    """Return logits of answers of `length` tokens: eos is certain then, impossible before.

    logits: (B, T, V), before: (B, T) the number of tokens before each position.
    """
    over = (before >= length)[..., None]  # (B, T, 1)
    is_eos = torch.arange(logits.shape[-1], device=logits.device) == EOS
    return logits.masked_fill(over != is_eos, NEVER).masked_fill(over & is_eos, 0.0)


EXAMPLE_LENGTH = 4
"""Tokens of a pair that is long enough to see which parameters the loss reaches; a loop over more
takes seconds.
"""


def example_ids(model: EncoderDecoder, tokens: int) -> Tensor:
    """Return the ids of one sentence of `tokens` tokens, (1, T), on the model's device."""
    return torch.ones(1, tokens, dtype=torch.long, device=model.device)


def example_sources(model: EncoderDecoder, tokens: int) -> dict[str, Tensor]:
    """Return such ids for each encoder, (1, T); for a story (1, T, W); zeros as features."""
    return {
        key: example_source(encoder, example_ids(model, tokens))
        for key, encoder in model.readers().items()
    }


def example_source(encoder: Encoder, ids: Tensor) -> Tensor:
    """Return a source of one sentence of these ids, (1, T); of a story or image, (1, T, ...)."""
    shape = (*ids.shape, encoder.columns) if encoder.columns else ids.shape
    if encoder.embedding.reads_features:
        return torch.zeros(*shape, encoder.embedding.embedding_dim, device=ids.device)
    return ids[..., None].expand(shape) if encoder.columns else ids


def training_logits(model: EncoderDecoder, penalties: Penalties) -> Tensor:
    """Return the logits of one short pair, as in a training step; penalties are added."""
    has_stories = any(encoder.reads_story for encoder in model.readers().values())
    facts = torch.zeros(
        1, EXAMPLE_LENGTH if has_stories else 0, dtype=torch.long, device=model.device
    )
    inputs = StepInputs(None, penalties, torch.zeros((), device=model.device), facts)
    return model(example_sources(model, EXAMPLE_LENGTH), example_ids(model, EXAMPLE_LENGTH), inputs)


def has_state(model: EncoderDecoder) -> bool:
    """True if the next token depends on more than the last one: a step changes the state.

    Whole numbers count positions, and what a step leaves as it was is the same tensor.
    """
    with torch.no_grad():
        ids = example_ids(model, EXAMPLE_LENGTH)
        memories = model.encode(example_sources(model, EXAMPLE_LENGTH), target_mask=ids != PAD)
        before = model.start(memories, 1)
        after = model.step(ids[:, :1], before, memories)[1]
    return any(
        new is not old and new.is_floating_point() and new.numel() > 0
        for old, new in zip(state_leaves(before), state_leaves(after), strict=True)
    )


def state_leaves(state: State) -> Iterator[Tensor]:
    """Yield the tensors of a state, in order."""
    if isinstance(state, tuple):
        for part in state:
            yield from state_leaves(part)
    else:
        yield state


def map_leaves(state: State, change: Callable[[Tensor], Tensor]) -> State:
    """Return the state with every tensor changed."""
    if isinstance(state, tuple):
        return tuple(map_leaves(part, change) for part in state)
    return change(state)


def state_bytes(state: State) -> int:
    """Return the bytes of all tensors of a state."""
    return sum(leaf.numel() * leaf.element_size() for leaf in state_leaves(state))


def is_state(state: object) -> bool:
    """Return True for a tensor or a tuple of states."""
    return isinstance(state, Tensor) or (isinstance(state, tuple) and all(map(is_state, state)))

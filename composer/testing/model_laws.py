"""The laws of a whole model, from ids to logits: what every recipe that `check` accepts keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from blocks.core.contract import Output, State
from composer.model.encoder_decoder import Encoder, EncoderDecoder, StepInputs
from composer.model.vocabulary import BOS, EOS, PAD, UNK
from composer.testing.harness import LawError, distance, each_leaf, reorder

TOLERANCE = 1e-7
FACTS = 4
SOURCES = (4, 6, 1, 5)
"""Tokens of each row of a source, its eos counted."""
TARGETS = (6, 2, 4, 5)
"""Positions of each row of a target, its bos counted."""
CUTS = ((1,) * 6, (2, 1, 3), (5, 1))
RAGGED = ((2, 0, 1, 3), (0, 1, 3, 1), (4, 1, 0, 1))
"""How many real positions each row has in each chunk; they add up to TARGETS."""


class Pairs(NamedTuple):
    """A batch of random sentences, for every encoder and for the target."""

    sources: dict[str, Tensor]  # ids (B, S) by the encoders' keys in the data, of a story (B, N, W)
    target: Tensor  # ids (B, T), bos first


def sentences(
    model: EncoderDecoder, seed: int = 1, sources: Sequence[int] = SOURCES, targets: Sequence[int] = TARGETS
) -> Pairs:
    """Random sentences of the given lengths: each source ends with eos, each target begins with bos.

    A story has as many sentences as a source has tokens, each of one word or more.
    """
    made = torch.Generator().manual_seed(seed)

    def random(lengths: Sequence[int], vocabulary: int) -> Tensor:
        ids = torch.randint(UNK, vocabulary, (len(lengths), max(lengths)), generator=made)
        return ids.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)

    def source(encoder: Encoder) -> Tensor:
        vocabulary, columns = encoder.embedding.num_embeddings, encoder.columns
        if not columns:
            return random(sources, vocabulary).scatter(1, torch.tensor(sources)[:, None] - 1, EOS)
        words = torch.randint(1, columns + 1, (len(sources) * max(sources),), generator=made).tolist()
        story = F.pad(random(words, vocabulary), (0, columns - max(words))).unflatten(0, (len(sources), -1))
        gone = torch.arange(max(sources)) >= torch.tensor(sources)[:, None]  # (B, N)
        return story.masked_fill(gone[..., None], PAD)

    made_of = {key: source(encoder) for key, encoder in model.readers().items()}
    target = random(targets, model.vocabulary)
    target[:, 0] = BOS
    return Pairs(made_of, target)


# ------------------------------------------------------------------------------------------- the laws


def chunks(model: EncoderDecoder) -> None:
    """Decoding in any chunks, single positions included, gives the logits of training."""
    pairs = sentences(model, targets=(6,) * len(SOURCES))
    whole, memories = model(pairs.sources, pairs.target), read(model, pairs)
    for cut in CUTS:
        state, outputs, at = model.start(memories, len(SOURCES)), [], 0
        for size in cut:
            logits, state = model.step(pairs.target[:, at : at + size], state, memories)
            outputs.append(logits)
            at += size
        told = "chunks of " + " + ".join(map(str, cut))
        expect_equal("chunks", torch.cat(outputs, 1), whole, f"{told}, against all positions at once")


def ragged_chunks(model: EncoderDecoder) -> None:
    """Chunks in which each row is padded differently, some rows empty, give what each row gives alone."""
    pairs = sentences(model)
    memories = read(model, pairs)
    state, done = model.start(memories, len(TARGETS)), torch.zeros(len(TARGETS), dtype=torch.long)
    pieces: list[tuple[Tensor, Tensor]] = []
    for sizes in map(torch.tensor, RAGGED):
        where = done[:, None] + torch.arange(int(sizes.max()) + 1)
        real = torch.arange(where.shape[1]) < sizes[:, None]
        ids = pairs.target.gather(1, where.clamp(max=max(TARGETS) - 1)).masked_fill(~real, PAD)
        logits, state = model.step(ids, state, memories)
        pieces.append((logits, real))
        done = done + sizes
    for row, length in enumerate(TARGETS):
        single = model(*rows(pairs, row))
        mine = torch.cat([logits[row][real[row]] for logits, real in pieces])
        expect_equal("ragged_chunks", mine, single[0], f"row {row} of {length} positions, cut raggedly")


def causality(model: EncoderDecoder) -> None:
    """No logits depend on a later token of the target."""
    full = (6,) * len(SOURCES)
    pairs, other = sentences(model, targets=full), sentences(model, seed=2, targets=full)
    logits = model(pairs.sources, pairs.target)
    for t in (1, 3, 5):
        changed = torch.cat((pairs.target[:, :t], other.target[:, t:]), 1)
        mine = model(pairs.sources, changed)[:, :t]
        expect_equal("causality", mine, logits[:, :t], f"after a change of the tokens from {t} on")


def padding(model: EncoderDecoder) -> None:
    """Each row alone, without padding, gives what it gives in a padded batch."""
    pairs = sentences(model)
    wider = Pairs({key: longer(ids, 2) for key, ids in pairs.sources.items()}, longer(pairs.target, 3))
    logits = model(wider.sources, wider.target)
    for row, length in enumerate(TARGETS):
        single = model(*rows(pairs, row))
        expect_equal("padding", logits[row, :length], single[0], f"row {row} of {length} positions, against it alone")


def reordering(model: EncoderDecoder) -> None:
    """The state of a decoder survives the reordering of a beam search."""
    pairs, index = sentences(model), torch.tensor([1, 0, 0, 3])
    memories = read(model, pairs)
    _, state = model.step(pairs.target, model.start(memories, len(TARGETS)), memories)
    after = sentences(model, seed=3).target.clamp(min=UNK)
    straight, _ = model.step(after, state, memories)
    mine, _ = model.step(after[index], reorder(state, index), reordered(memories, index))
    expect_equal("reordering", mine, straight[index], "after a reordering of the rows")


def training(model: EncoderDecoder) -> None:
    """A step of training has a finite loss, reaches every parameter and leaves a finite loss."""
    pairs = sentences(model)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-3)
    for _ in range(2):
        loss = training_loss(model, pairs)
        if not math.isfinite(loss.item()):
            broken("training", f"the loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                broken("training", f"`{name}` gets no gradient")
            if not parameter.grad.isfinite().all():
                broken("training", f"the gradient of `{name}` is not finite")
        optimizer.step()


def bfloat16(model: EncoderDecoder) -> None:
    """In bfloat16 and under autocast the logits are finite, position by position too."""
    pairs = sentences(model)
    with torch.autocast("cpu", torch.bfloat16):
        _expect_finite(model, pairs, "under autocast")
    _expect_finite(model.bfloat16(), pairs, "in bfloat16")


def _expect_finite(model: EncoderDecoder, pairs: Pairs, told: str) -> None:
    logits = model(pairs.sources, pairs.target)
    memories = read(model, pairs)
    first, state = model.step(pairs.target[:, :1], model.start(memories, len(TARGETS)), memories)
    second, _ = model.step(pairs.target[:, 1:2], state, memories)
    if not all(each.isfinite().all() for each in (logits, first, second)):
        broken("bfloat16", f"{told} the logits are not finite")


def saving(model: EncoderDecoder) -> None:
    """A model that is saved, spoilt and loaded gives the same logits."""
    pairs = sentences(model)
    with torch.no_grad():
        logits = model(pairs.sources, pairs.target)
        saved = safetensors.torch.save({key: value.clone().contiguous() for key, value in model.state_dict().items()})
        for parameter in model.parameters():
            parameter.add_(1.0)
        try:
            model.load_state_dict(safetensors.torch.load(saved))
        except RuntimeError as error:
            broken("saving", " ".join(str(error).split())[:300])
        expect_equal("saving", model(pairs.sources, pairs.target), logits, "after saving and loading")


# ------------------------------------------------------------------------------------------- parts


def read(model: EncoderDecoder, pairs: Pairs) -> dict[str, Output]:
    """What the encoders leave of the sources, with room for the targets where they make it."""
    return model.encode(pairs.sources, room=pairs.target != PAD)


def training_loss(model: EncoderDecoder, pairs: Pairs) -> Tensor:
    """Nats per token of the target, eos counted, and what blocks add in training; of a story a sentence is the fact."""
    following = torch.cat((pairs.target[:, 1:], torch.full_like(pairs.target[:, :1], PAD)), 1)
    last = (pairs.target != PAD) & (following == PAD)
    answer = following.masked_fill(last, EOS)
    told = FACTS if any(encoder.columns for encoder in model.readers().values()) else 0
    penalties: dict[str, list[Tensor]] = {}
    facts = torch.zeros(len(answer), told, dtype=torch.long)
    logits = model(pairs.sources, pairs.target, StepInputs(None, penalties, torch.zeros(()), facts))
    nats = F.cross_entropy(logits.float().flatten(0, 1), answer.flatten(), ignore_index=PAD)
    return torch.stack([nats, *(each.float() for name in penalties for each in penalties[name])]).sum()


def rows(pairs: Pairs, row: int) -> Pairs:
    """One row without its padding."""
    sources = {key: without_padding(ids[row : row + 1]) for key, ids in pairs.sources.items()}
    return Pairs(sources, without_padding(pairs.target[row : row + 1]))


def without_padding(ids: Tensor) -> Tensor:
    """One row of ids cut to its length."""
    real = ids != PAD
    return ids[:, : int(real.any(-1).sum() if ids.dim() == 3 else real.sum())]


def longer(ids: Tensor, count: int) -> Tensor:
    """Ids with so many positions of padding after them."""
    return torch.cat((ids, ids.new_full((ids.shape[0], count, *ids.shape[2:]), PAD)), 1)


def reordered(memories: Mapping[str, Output], index: Tensor) -> dict[str, Output]:
    """The rows of `index` of all that the encoders left."""

    def take(part: State) -> State:
        return each_leaf(part, lambda leaf: leaf.index_select(0, index))

    return {
        name: Output(take(output.states), take(output.mask), take(output.last)) for name, output in memories.items()
    }


def expect_equal(law: str, mine: Tensor, theirs: Tensor, told: str) -> None:
    """Raises LawError where two tensors differ."""
    gap = distance(mine, theirs)
    if gap > TOLERANCE:
        broken(law, f"{told}: the logits differ by {gap:.3g}")


def broken(law: str, detail: str) -> NoReturn:
    """Raises LawError about a model."""
    raise LawError(law, "the model", "", {}, detail)

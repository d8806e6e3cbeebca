"""Laws of a whole model, from ids to logits and through decoding: true of every recipe that `check`
accepts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, get_args

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from blocks.core.contract import Output, Penalties, reduce_penalties
from composer.errors import one_line_error
from composer.inference.decode import Row, decode_all, make_rows
from composer.inference.decoders.decoder_state import reorder_state
from composer.inference.decoders.search import Hypothesis
from composer.inference.methods import Beam, Greedy
from composer.model.encoder_decoder import Encoder, EncoderDecoder, StepInputs, source_mask
from composer.model.special_tokens import BOS, EOS, PAD, UNK
from composer.recipe.choices import Decoder, Precision
from composer.testing.harness import LawError, max_difference

MODEL_TOLERANCE = 1e-7
FACTS = 4
SOURCES = (4, 6, 1, 5)
"""Tokens of each row of a source, its eos counted."""
TARGETS = (6, 2, 4, 5)
"""Positions of each row of a target, its bos counted."""
CUTS = ((1,) * 6, (2, 1, 3), (5, 1))
RAGGED = ((2, 0, 1, 3), (0, 1, 3, 1), (4, 1, 0, 1))
"""How many real positions each row has in each chunk; they add up to TARGETS."""


class RandomPairs(NamedTuple):
    """A batch of random sentences, for every encoder and for the target."""

    sources: dict[str, Tensor]  # ids (B, S) by the encoders' keys in the data, of a story (B, N, W)
    target: Tensor  # ids (B, T), bos first


def random_pairs(
    model: EncoderDecoder, seed: int = 1, targets: Sequence[int] = TARGETS
) -> RandomPairs:
    """Draw random sentences: sources of SOURCES tokens, each ends with eos, and targets, each
    begins with bos.

    A story has as many sentences as a source has tokens, each of one word or more.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(lengths: Sequence[int], vocabulary: int) -> Tensor:
        ids = torch.randint(UNK, vocabulary, (len(lengths), max(lengths)), generator=generator)
        return ids.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], PAD)

    def source(encoder: Encoder) -> Tensor:
        vocabulary, columns = encoder.embedding.num_embeddings, encoder.columns
        if encoder.embedding.reads_features:
            return random_features(generator, columns, encoder.embedding.embedding_dim)
        if not columns:
            return random(SOURCES, vocabulary).scatter(1, torch.tensor(SOURCES)[:, None] - 1, EOS)
        words = torch.randint(
            1, columns + 1, (len(SOURCES) * max(SOURCES),), generator=generator
        ).tolist()
        story = F.pad(random(words, vocabulary), (0, columns - max(words))).unflatten(
            0, (len(SOURCES), -1)
        )
        absent = torch.arange(max(SOURCES)) >= torch.tensor(SOURCES)[:, None]  # (B, N)
        return story.masked_fill(absent[..., None], PAD)

    ids = {key: source(encoder) for key, encoder in model.readers().items()}
    target = random(targets, model.vocabulary)
    target[:, 0] = BOS
    return RandomPairs(ids, target)


def random_features(generator: torch.Generator, columns: int, width: int) -> Tensor:
    """Draw features, NaN where there are none: SOURCES positions, of images with one to all columns
    each.
    """
    shape = (columns, width) if columns else (width,)
    features = torch.rand(
        len(SOURCES), max(SOURCES), *shape, generator=generator
    )  # (B, S, F) or (B, S, W, F)
    real = torch.arange(max(SOURCES)) < torch.tensor(SOURCES)[:, None]  # (B, S)
    if columns:
        wide = torch.randint(1, columns + 1, (len(SOURCES), 1, 1), generator=generator)
        real = real[..., None] & (torch.arange(columns) < wide)  # (B, S, W)
    return features.masked_fill(~real[..., None], torch.nan)


def source_rows(sources: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Return padded sources as `make_rows` takes them: without padding and eos."""

    def rows(source: Tensor) -> list[Any]:
        if source.is_floating_point():
            real = source_mask(source).reshape(len(source), source.shape[1], -1).any(2)  # (B, S)
            return [row[mask] for row, mask in zip(source, real, strict=True)]
        if source.ndim == 3:  # a story, without eos
            return [row[row.any(1)].tolist() for row in source]
        return [row[row != PAD][:-1].tolist() for row in source]

    return {key: rows(source) for key, source in sources.items()}


def chunks(model: EncoderDecoder) -> None:
    """Check that decoding in chunks of any size gives the logits of training."""
    pairs = random_pairs(model, targets=(6,) * len(SOURCES))
    all_at_once, memories = model(pairs.sources, pairs.target), encode_sources(model, pairs)
    for cut in CUTS:
        state, outputs, at = model.start(memories, len(SOURCES)), [], 0
        for size in cut:
            logits, state = model.step(pairs.target[:, at : at + size], state, memories)
            outputs.append(logits)
            at += size
        detail = "chunks of " + " + ".join(map(str, cut))
        expect_equal_logits(
            "chunks", torch.cat(outputs, 1), all_at_once, f"{detail}, against all positions at once"
        )


def ragged_chunks(model: EncoderDecoder) -> None:
    """Check that chunks in which each row is padded differently, some rows empty, give what each
    row gives alone.
    """
    pairs = random_pairs(model)
    memories = encode_sources(model, pairs)
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
        expect_equal_logits(
            "ragged_chunks", mine, single[0], f"row {row} of {length} positions, cut raggedly"
        )


def causality(model: EncoderDecoder) -> None:
    """Check that no logits depend on a later token of the target."""
    full = (6,) * len(SOURCES)
    pairs, other = random_pairs(model, targets=full), random_pairs(model, seed=2, targets=full)
    logits = model(pairs.sources, pairs.target)
    for t in (1, 3, 5):
        changed = torch.cat((pairs.target[:, :t], other.target[:, t:]), 1)
        mine = model(pairs.sources, changed)[:, :t]
        expect_equal_logits(
            "causality", mine, logits[:, :t], f"after a change of the tokens from {t} on"
        )


def padding(model: EncoderDecoder) -> None:
    """Check that each row alone, without padding, gives what it gives in a padded batch."""
    pairs = random_pairs(model)
    wider = {}
    for key, source in pairs.sources.items():
        sides = (*[0] * 2 * (source.ndim - 2), 0, 2)  # two more positions
        wider[key] = F.pad(source, sides, value=padding_of(source))
    logits = model(wider, F.pad(pairs.target, (0, 3), value=PAD))
    for row, length in enumerate(TARGETS):
        single, detail = (
            model(*rows(pairs, row)),
            f"row {row} of {length} positions, against it alone",
        )
        expect_equal_logits("padding", logits[row, :length], single[0], detail)


def reordering(model: EncoderDecoder) -> None:
    """Check that the state of a decoder survives the reordering of a beam search."""
    pairs, index = random_pairs(model), torch.tensor([1, 0, 0, 3])
    memories = encode_sources(model, pairs)
    _, state = model.step(pairs.target, model.start(memories, len(TARGETS)), memories)
    after = random_pairs(model, seed=3).target.clamp(min=UNK)
    straight, _ = model.step(after, state, memories)
    reordered = {name: Output(*reorder_state(output, index)) for name, output in memories.items()}
    mine, _ = model.step(after[index], reorder_state(state, index), reordered)
    expect_equal_logits("reordering", mine, straight[index], "after a reordering of the rows")


def training(model: EncoderDecoder) -> None:
    """Check that a step of training has a finite loss, reaches every parameter and leaves a finite
    loss.
    """
    pairs = random_pairs(model)
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-3)
    for _ in range(2):
        loss = training_loss(model, pairs)
        if not math.isfinite(loss.item()):
            fail("training", f"the loss is {loss.item()}")
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                fail("training", f"`{name}` gets no gradient")
            if not parameter.grad.isfinite().all():
                fail("training", f"the gradient of `{name}` is not finite")
        optimizer.step()


def idle_rows(model: EncoderDecoder) -> None:
    """Check that rows of padding alone, of a device without work, count nowhere and have finite
    gradients.
    """
    pairs = random_pairs(model.train())
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    nothing = {side: torch.full_like(ids, padding_of(ids)) for side, ids in pairs.sources.items()}
    target = torch.full_like(pairs.target, PAD)
    penalties: Penalties = {}
    facts = (
        torch.full((len(target), FACTS), -1)
        if any(it.reads_story for it in model.readers().values())
        else None
    )
    logits = model(nothing, target, StepInputs(None, penalties, torch.zeros(()), facts))
    costs = [logits.sum(), *reduce_penalties(penalties).values()]
    torch.stack([cost.float() * 0.0 for cost in costs]).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not all(tensor.isfinite().all() for tensor in (logits, *gradients)):
        fail("idle_rows", "logits or gradients are not finite")
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            fail("idle_rows", f"`{name}` has changed")


def bfloat16(model: EncoderDecoder) -> None:
    """Check that in bfloat16 and under autocast the logits are finite, position by position too."""
    pairs = random_pairs(model)
    with torch.autocast("cpu", torch.bfloat16):
        _expect_finite(model, pairs, "under autocast")
    _expect_finite(model.bfloat16(), pairs, "in bfloat16")


def _expect_finite(model: EncoderDecoder, pairs: RandomPairs, detail: str) -> None:
    logits = model(pairs.sources, pairs.target)
    memories = encode_sources(model, pairs)
    first, state = model.step(pairs.target[:, :1], model.start(memories, len(TARGETS)), memories)
    second, _ = model.step(pairs.target[:, 1:2], state, memories)
    if not all(tensor.isfinite().all() for tensor in (logits, first, second)):
        fail("bfloat16", f"{detail} the logits are not finite")


def saving(model: EncoderDecoder) -> None:
    """Check that a model that is saved, overwritten and loaded gives the same logits."""
    pairs = random_pairs(model)
    with torch.no_grad():
        logits = model(pairs.sources, pairs.target)
        saved = safetensors.torch.save(
            {key: value.clone().contiguous() for key, value in model.state_dict().items()}
        )
        for parameter in model.parameters():
            parameter.add_(1.0)
        try:
            model.load_state_dict(safetensors.torch.load(saved))
        except RuntimeError as error:
            fail("saving", one_line_error(error))
        expect_equal_logits(
            "saving", model(pairs.sources, pairs.target), logits, "after saving and loading"
        )


def encode_sources(model: EncoderDecoder, pairs: RandomPairs) -> dict[str, Output]:
    """Return the memories of the encoders, with room for the targets where they make it."""
    return model.encode(pairs.sources, target_mask=pairs.target != PAD)


def training_loss(model: EncoderDecoder, pairs: RandomPairs) -> Tensor:
    """Return nats per target token, eos counted, and what blocks add in training; of a story a
    sentence is the fact.
    """
    following = F.pad(pairs.target[:, 1:], (0, 1), value=PAD)
    last = (pairs.target != PAD) & (following == PAD)
    answer = following.masked_fill(last, EOS)
    detail = FACTS if any(encoder.reads_story for encoder in model.readers().values()) else 0
    penalties: Penalties = {}
    facts = torch.zeros(len(answer), detail, dtype=torch.long)
    logits = model(pairs.sources, pairs.target, StepInputs(None, penalties, torch.zeros(()), facts))
    nats = F.cross_entropy(logits.float().flatten(0, 1), answer.flatten(), ignore_index=PAD)
    return torch.stack(
        [nats, *(penalty.float() for penalty in reduce_penalties(penalties).values())]
    ).sum()


def padding_of(source: Tensor) -> float:
    """Return the value of padding: NaN among features, PAD among ids."""
    return torch.nan if source.is_floating_point() else PAD


def rows(pairs: RandomPairs, row: int) -> RandomPairs:
    """Return one row without its padding."""
    sources = {key: strip_padding(ids[row : row + 1]) for key, ids in pairs.sources.items()}
    return RandomPairs(sources, strip_padding(pairs.target[row : row + 1]))


def strip_padding(ids: Tensor) -> Tensor:
    """Return one row of ids cut to its length."""
    real = source_mask(ids)  # (1, T) or (1, T, W)
    return ids[:, : int(real.flatten(2).any(2).sum() if real.dim() == 3 else real.sum())]


def expect_equal_logits(law: str, mine: Tensor, theirs: Tensor, detail: str) -> None:
    """Raise LawError where two tensors differ by more than rounding: of large logits, that of the
    largest.
    """
    gap, largest = max_difference(mine, theirs), max(1.0, *theirs.detach().abs().flatten().tolist())
    if not math.isfinite(gap) or gap > MODEL_TOLERANCE * largest:
        fail(law, f"{detail}: the logits differ by {gap:.3g}")


def fail(law: str, detail: str) -> NoReturn:
    """Raise LawError about a model."""
    raise LawError(law, "the model", "", {}, detail)


SEARCH_TOLERANCE = 1e-3
"""Decoders add up single precision."""
PREFIXES: tuple[tuple[int, ...], ...] = ((), (4, 3), (5,), ())
MAX_DECODED = 7
DECODERS: tuple[Decoder, ...] = (
    Greedy(max_length=MAX_DECODED),
    Beam(size=1, length_penalty=0.0, max_length=MAX_DECODED),
    Beam(size=3, max_length=MAX_DECODED),
)


def best_answers(
    model: EncoderDecoder, pairs: Sequence[Row], decoding: Decoder
) -> list[Hypothesis]:
    """Return the best answer to each row."""
    return [best for best, *_ in decode_all([model], pairs, decoding)]


def searching(model: EncoderDecoder) -> None:
    """Check that greedy search and a beam of 1 write the most probable tokens of `forward`, with
    `forward`'s scores.
    """
    sources = {key: rows * 2 for key, rows in source_rows(random_pairs(model).sources).items()}
    prefixes = ((),) * len(PREFIXES) + PREFIXES
    pairs = make_rows(sources, prefixes)
    greedy, narrow, wide = (best_answers(model, pairs, decoding) for decoding in DECODERS)
    by_forward = LogitsByForward(model)
    for at, prefix in enumerate(prefixes):
        row = at % len(PREFIXES)
        expect_argmax(by_forward, row, greedy[at], len(prefix))
        if narrow[at].ids != greedy[at].ids:
            fail(
                "searching",
                f"a beam of 1 writes {narrow[at].ids}, and greedy search {greedy[at].ids}",
            )
        for hypothesis in (greedy[at], narrow[at], wide[at]):
            expect_prefix_and_score(by_forward, row, hypothesis, prefix)


def precisions(model: EncoderDecoder) -> None:
    """Check that greedy search writes an answer in every precision, whose score is a number."""
    pairs = make_rows(source_rows(random_pairs(model).sources), PREFIXES)
    for precision in get_args(Precision):
        decoding = Greedy(max_length=MAX_DECODED, precision=precision)
        for best, *_ in decode_all([model], pairs, decoding):
            if not math.isfinite(best.score):
                fail("precisions", f"in {precision} an answer has the score {best.score}")


class LogitsByForward:
    """The logits of answers in a training pass, computed once for each."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model, self.pairs = model, random_pairs(model)
        self.known: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def of(self, row: int, hypothesis: Hypothesis) -> tuple[Tensor, Tensor]:
        """Return the tokens of an answer, eos counted, and their logits: (T,), (T, V)"""
        key = (row, tuple(hypothesis.ids))
        if key not in self.known:
            with torch.no_grad():
                read = torch.tensor([[BOS, *hypothesis.ids]])
                self.known[key] = self.model(rows(self.pairs, row).sources, read)[0].float()
        tokens = torch.tensor(
            [*hypothesis.ids, *([EOS] if hypothesis.ended else [])], dtype=torch.long
        )
        return tokens, self.known[key][: len(tokens)]


def expect_argmax(
    by_forward: LogitsByForward, row: int, hypothesis: Hypothesis, known: int
) -> None:
    """Raise LawError where a token after the `known` ones is not the most probable one of those
    that it can be.
    """
    tokens, logits = by_forward.of(row, hypothesis)
    logits = logits.index_fill(1, torch.tensor([PAD, BOS]), float("-inf"))
    if by_forward.model.max_target_ratio:
        logits = constrain_length(logits, SOURCES[row])
    for at, token in enumerate(tokens.tolist()[known:], known):
        if logits[at, token] < logits[at].max() - SEARCH_TOLERANCE:
            message = (
                f"greedy search writes {token} at position {at} of row {row}, and by `forward` "
            )
            fail("searching", f"{message}{int(logits[at].argmax())} is more probable")


def constrain_length(logits: Tensor, own: int) -> Tensor:
    """Mask tokens that cannot be there where an answer has a length: at a source's `own` length it
    ends at the latest.

    A longer one is of its own size: it ends there, and not before. logits: (T, V), one for each
    token of the answer.
    """
    size = max(len(logits), own)
    end, last = torch.arange(logits.shape[1]) == EOS, torch.arange(len(logits)) == size - 1
    early = ~last & (size > own)
    return logits.masked_fill((last[:, None] & ~end) | (early[:, None] & end), float("-inf"))


def expect_prefix_and_score(
    by_forward: LogitsByForward, row: int, hypothesis: Hypothesis, prefix: Sequence[int]
) -> None:
    """Raise LawError where the forced prefix is missing, or where the score is not what `forward`
    says.
    """
    if hypothesis.ids[: len(prefix)] != list(prefix):
        fail("searching", f"row {row} must begin with {list(prefix)}, and is {hypothesis.ids}")
    tokens, logits = by_forward.of(row, hypothesis)
    score = by_forward.model.log_probs(logits).gather(1, tokens[:, None]).sum().item()
    if abs(score - hypothesis.score) > SEARCH_TOLERANCE * max(1.0, abs(score)):
        scores_of = f"the score of {hypothesis.ids} in row {row}"
        fail("searching", f"{scores_of} is {hypothesis.score:.5g}, and by `forward` {score:.5g}")

"""CTC: a cost over an encoder's frames, and a next-token model, alone or with a decoder.

Graves et al. 2006 sum over all paths, a label or a blank for each frame, that spell an answer when
repetitions are merged and blanks removed. The same sums over prefixes (Graves 2008, section 7.5.3)
give p(token | prefix), so that CTC decodes as any decoder does: token by token, from a state. The
blank is id 0, pad.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import Output, State, Stream
from blocks.core.linear_recurrence import log_linear_recurrence
from blocks.core.stack import Stack
from composer.model.encoder_decoder import (
    NEVER,
    NO_INPUTS,
    Encoder,
    EncoderDecoder,
    OutputHead,
    StepInputs,
    TokenEmbedding,
    is_impossible,
)
from composer.model.special_tokens import BOS, EOS, PAD

BLANK = PAD
IMPOSSIBLE = -1e30
"""Logarithm of the probability of what cannot be; sums and differences of it stay finite."""


class Ctc(OutputHead):
    """Probabilities of labels and the blank per frame, p_s = softmax(W h_s + b), and of answers.

    Args:
        memory: The name of the memory whose positions are the frames.
        frames: What is known of them.
    """

    trains_on_cost = True
    has_impossible_tokens = True

    def __init__(self, memory: str, frames: Stream, vocabulary: int) -> None:
        super().__init__()
        self.memory, self.frames = memory, frames
        self.in_features, self.out_features = frames.width, vocabulary
        self.map = nn.Linear(frames.width, vocabulary)
        nn.init.normal_(self.map.weight, std=frames.width**-0.5)
        nn.init.zeros_(self.map.bias)
        no_labels = torch.zeros(vocabulary).index_fill(0, torch.tensor([BOS, EOS]), NEVER)
        self.register_buffer("no_labels", no_labels, persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Return log p of each frame. (B, S, D) -> (B, S, V)"""
        logits = self.map(frames) + self.no_labels
        return logits.log_softmax(-1, torch.promote_types(logits.dtype, torch.float32))

    def path_cost(self, memory: Output, labels: Tensor) -> Tensor:
        """Return -log p of answers, 0 for too few frames. labels: (B, L), padded -> (B,)

        On a GPU it waits for the device: PyTorch wants the lengths on the CPU.
        """
        log_p = self(memory.states).transpose(0, 1)  # (S, B, V)
        if log_p.is_meta:  # PyTorch has no such kernel there: whatever depends on all frames does
            return -log_p.sum((0, 2))
        lengths = memory.mask.sum(1), (labels != PAD).sum(1)
        return F.ctc_loss(log_p, labels, *lengths, BLANK, "none", zero_infinity=True)

    def start(self, memory: Output) -> State:
        """Return the state of the empty prefix.

        It is p of each frame (B, S, V), and which frames are real (B, S); log p of the paths of the
        first 0 to S frames that spell the prefix, and end with its last label or with a blank (B, S
        + 1, 2); that label (B,); and log p of all answers that begin with the prefix (B,).
        """
        log_p = self(memory.states)
        # sums of thousands of logarithms
        log_p = log_p if log_p.device.type == "mps" else log_p.double()
        blanks = F.pad(log_p[..., BLANK].cumsum(1), (1, 0))  # (B, S + 1)
        paths = torch.stack((torch.full_like(blanks, IMPOSSIBLE), blanks), -1)
        last = torch.full_like(memory.mask[:, 0], PAD, dtype=torch.long)
        return log_p.exp(), memory.mask, paths, last, torch.zeros_like(blanks[:, 0])

    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Return log p of each next token, and the state. ids: (B, T) -> (B, T, V)"""
        frames, real, paths, last, log_p = state
        results = []
        for token in ids.unbind(1):
            is_label = token > EOS  # (B,)
            longer, of_longer = extend(frames, real, paths, last, token)
            paths = torch.where(is_label[:, None, None], longer, paths)
            last = torch.where(is_label, token, last)
            log_p = torch.where(is_label, of_longer, log_p)
            results.append(next_log_probs(frames, real, paths, last, log_p))
        return torch.stack(results, 1), (frames, real, paths, last, log_p)


def extend(
    frames: Tensor, real: Tensor, paths: Tensor, last: Tensor, token: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the paths of a prefix and one more token (B,), and log p of answers that begin so.

    With n_s and b_s of the prefix in p, n'_s = (n'_{s-1} + b_{s-1} + [token is not the last]
    n_{s-1}) p_s(token) and b'_s = (b'_{s-1} + n'_{s-1}) p_s(blank).
    """
    entering = torch.where(
        (token == last)[:, None], paths[:, :-1, 1], paths[:, :-1].logsumexp(-1)
    )  # (B, S)
    index = token[:, None, None].expand(-1, frames.shape[1], 1)  # (B, S, 1)
    smallest = torch.finfo(frames.dtype).tiny  # whose logarithm is finite
    gain = frames.gather(2, index)[..., 0].clamp(min=smallest).log()  # (B, S)
    labels = F.pad(
        log_linear_recurrence(gain, entering + gain), (1, 0), value=IMPOSSIBLE
    )  # (B, S + 1)
    blank = frames[..., BLANK].clamp(min=smallest).log()  # (B, S)
    blanks = F.pad(
        log_linear_recurrence(blank, labels[:, :-1] + blank), (1, 0), value=IMPOSSIBLE
    )  # (B, S + 1)
    log_p = (entering + gain).masked_fill(~real, IMPOSSIBLE).logsumexp(1)  # (B,)
    return torch.stack((labels, blanks), -1), log_p


def next_log_probs(
    frames: Tensor, real: Tensor, paths: Tensor, last: Tensor, log_p: Tensor
) -> Tensor:
    """Return log p of the token after a prefix, from its state. -> (B, V)

    p(prefix, token, ...) is the sum over frames of p of the paths up to the one before that can go
    on with the token, times p_s(token); p(prefix, eos) is that of the paths up to the end.
    """
    before = paths[:, :-1].masked_fill(~real[..., None], IMPOSSIBLE)  # (B, S, 2)
    largest = before.amax((1, 2))[:, None]  # (B, 1)
    weights = (before - largest[..., None]).exp()  # (B, S, 2)
    sums = (weights.sum(-1)[:, None] @ frames)[:, 0]  # (B, V)
    repeated = (
        weights[..., 1]
        * frames.gather(2, last[:, None, None].expand(-1, frames.shape[1], 1))[..., 0]
    ).sum(1)
    sums = sums.scatter(1, last[:, None], repeated[:, None])
    ends = paths.gather(1, real.sum(1)[:, None, None].expand(-1, 1, 2)).logsumexp((1, 2))  # (B,)
    sums = sums[:, EOS + 1 :]  # (B, V - 3)
    smallest = torch.finfo(sums.dtype).tiny
    log_sums = sums.clamp(min=smallest).log().masked_fill(sums < smallest, IMPOSSIBLE)
    labels = log_sums + largest - log_p[:, None]
    # what follows a prefix that no path spells, its end, costs nothing more
    lost = (log_p < IMPOSSIBLE / 2)[:, None]
    labels = labels.clamp(min=NEVER).masked_fill(lost, NEVER)
    end = (ends - log_p)[:, None].clamp(min=NEVER).masked_fill(lost, 0.0)  # (B, 1)
    never = torch.full_like(end, NEVER)
    return torch.cat((never, never, end, labels), 1)


class CtcModel(EncoderDecoder):
    """Encoders with CTC as the only output: tokens depend on others only by the order of frames."""

    output: Ctc

    def __init__(
        self, encoders: Mapping[str, Encoder], decoder: Stack, ctc: Ctc, width: int
    ) -> None:
        super().__init__(encoders, None, decoder, ctc, width)

    def start(self, memories: Mapping[str, Output], batch: int) -> State:
        return self.output.start(memories[self.output.memory])

    def step(
        self,
        ids: Tensor,
        state: State | None,
        memories: Mapping[str, Output],
        inputs: StepInputs = NO_INPUTS,
        answer: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        return self.output.step(ids, self.start(memories, len(ids)) if state is None else state)

    def forward(
        self,
        sources: Mapping[str, Tensor],
        target: Tensor,
        inputs: StepInputs = NO_INPUTS,
        answer: Tensor | None = None,
    ) -> Tensor:
        """In training return the cost at an answer's last position, 0 elsewhere; else log p."""
        memories = self.encode(sources, inputs, target != PAD)
        if answer is None or not self.output.returns_cost:
            return self.step(target, None, memories)[0]
        cost = self.output.path_cost(
            memories[self.output.memory], answer.masked_fill(answer == EOS, PAD)
        )  # (B,)
        return cost[:, None] * (answer == EOS)


class JointModel(EncoderDecoder):
    """Encoders, a decoder, and CTC (Watanabe et al. 2017, IEEE JSTSP 11 (8), section III).

    It trains on (1 - w) times the cross-entropy of the decoder plus w times the cost of CTC, and a
    search adds up (1 - w) log p of the decoder and w log p of CTC. w: `weight`, above 0 and below
    1.
    """

    def __init__(
        self,
        encoders: Mapping[str, Encoder],
        embedding: TokenEmbedding | None,
        decoder: Stack,
        output: OutputHead,
        width: int,
        ctc: Ctc,
        weight: float,
    ) -> None:
        super().__init__(encoders, embedding, decoder, output, width)
        self.ctc, self.weight, self.decoder_share = ctc, weight, 1.0 - weight

    @property
    def has_impossible_tokens(self) -> bool:
        return True

    def with_ctc_weight(self, weight: float) -> EncoderDecoder:
        """Return the same model with another weight: 0 is the decoder alone, 1 is CTC alone.

        For each w it is one model, for as long as the modules are the same: what is kept of it in
        another precision is found again.
        """
        if weight == self.weight:
            return self
        parts = self.readers(), self.embedding, self.decoder, self.output, self.width, self.ctc
        models = _derived.setdefault(self, {})
        if weight not in models or models[weight][0] != parts:
            models[weight] = parts, self._derive(weight)
        return models[weight][1].train(self.training)

    def _derive(self, weight: float) -> EncoderDecoder:
        if weight == 1:
            return CtcModel(self.readers(), self.decoder, self.ctc, self.width)
        parts = self.readers(), self.embedding, self.decoder, self.output, self.width
        return JointModel(*parts, self.ctc, weight) if weight else EncoderDecoder(*parts)

    def log_probs(self, logits: Tensor) -> Tensor:
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def start(self, memories: Mapping[str, Output], batch: int) -> State:
        return super().start(memories, batch), self.ctc.start(memories[self.ctc.memory])

    def step(
        self,
        ids: Tensor,
        state: State | None,
        memories: Mapping[str, Output],
        inputs: StepInputs = NO_INPUTS,
        answer: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Decode as `EncoderDecoder.step`, but return scores that sum to at most 1 in p."""
        decoder, prefix = self.start(memories, len(ids)) if state is None else state
        logits, decoder = super().step(ids, decoder, memories, inputs)
        log_p, prefix = self.ctc.step(ids, prefix)
        log_q = super().log_probs(logits)  # (B, T, V)
        log_p = log_p.to(log_q.dtype)  # (B, T, V)
        mixed = (1.0 - self.weight) * log_q + self.weight * log_p  # (B, T, V)
        # times a small weight `NEVER` could be mistaken for what is improbable
        return mixed.masked_fill(is_impossible(log_q) | is_impossible(log_p), NEVER), (
            decoder,
            prefix,
        )

    def forward(
        self,
        sources: Mapping[str, Tensor],
        target: Tensor,
        inputs: StepInputs = NO_INPUTS,
        answer: Tensor | None = None,
    ) -> Tensor:
        """In training return logits or costs, with CTC's cost as a penalty; else as `step`."""
        memories = self.encode(sources, inputs, target != PAD)
        if not self.training:
            return self.step(target, None, memories, inputs)[0]
        if inputs.penalties is not None:
            labels = target[:, 1:] if answer is None else answer.masked_fill(answer == EOS, PAD)
            # not so of a device without rows
            has_answer = (target if answer is None else answer)[:, 0] != PAD
            cost = self.ctc.path_cost(memories[self.ctc.memory], labels) * has_answer  # (B,)
            inputs.penalties.setdefault(("ctc", "tokens"), []).append(self.weight * cost.sum())
        return super().step(target, super().start(memories, len(target)), memories, inputs, answer)[
            0
        ]


_derived: WeakKeyDictionary[JointModel, dict[float, tuple[object, EncoderDecoder]]] = (
    WeakKeyDictionary()
)
"""Of each model those with other weights, and the modules that they were made of."""


def ctc_of(model: EncoderDecoder) -> Ctc | None:
    """Return the CTC of a model, alone or beside a decoder; None of others."""
    if isinstance(model, JointModel):
        return model.ctc
    return model.output if isinstance(model, CtcModel) else None


def ctc_frames(model: EncoderDecoder) -> tuple[str, Stream] | None:
    """Return the key of the encoder with CTC's frames, and their stream; None without CTC."""
    ctc = ctc_of(model)
    if ctc is None:
        return None
    keys = {encoder.memory: key for key, encoder in model.readers().items()}
    return keys[ctc.memory.partition(".")[0]], ctc.frames

"""Distillation: a frozen teacher, the divergence from its probabilities, and its hidden outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from blocks.core.contract import Output
from composer.inference.decode import evaluation_mode
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import EncoderDecoder, StepInputs, training_logits
from composer.model.named_outputs import NamedOutputs, keep_named_outputs
from composer.model.special_tokens import PAD
from composer.recipe.training_sections import Distillation, HiddenPair


def open_frozen(path: Path) -> Run:
    """Open a run whose random weights do not move the stream of the training."""
    with torch.random.fork_rng(devices=[]):
        return open_run(path)


class DistillationLoss(NamedTuple):
    """Parts of a loss that come from a teacher, without `weight`.

    divergence: T^2 KL, summed over the real tokens of a batch. hidden: Sum of the mean squared
    differences of all pairs, of the batch.
    """

    divergence: Tensor
    hidden: Tensor | None


class Teacher:
    """A trained model that gives targets to a student: frozen, in evaluation mode.

    It is no module, so no parameter of it is in a checkpoint, an average or an optimizer. It is on
    each device whole, in the precision of the training.
    """

    def __init__(
        self, model: EncoderDecoder, student: EncoderDecoder, settings: Distillation
    ) -> None:
        self.settings = settings
        self.model = model.eval().requires_grad_(False)
        self.outputs: NamedOutputs | None = None
        self.student_outputs: NamedOutputs | None = None
        if settings.hidden:
            self.outputs, self.student_outputs = NamedOutputs(model), NamedOutputs(student)

    def move_to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move it to a device, in a precision."""
        self.model.to(device, dtype)

    @torch.no_grad()
    def logits(self, sources: Mapping[str, Tensor], read: Tensor, packed: Any) -> Tensor:
        """Return its logits for what the student's decoder reads. read: (B, T) -> (B, T, V)"""
        logits: Tensor = self.model(sources, read, StepInputs(packed=packed))
        return logits

    def loss(
        self, logits: Tensor, teacher: Tensor, target: Tensor, projections: nn.ModuleList
    ) -> DistillationLoss:
        """Return the loss of a batch. logits, teacher: (B, T, V), target: (B, T)"""
        divergence = softened_divergence(logits, teacher, target, self.settings.temperature)
        if self.outputs is None or self.student_outputs is None:
            return DistillationLoss(divergence, None)
        own, theirs = self.student_outputs.outputs, self.outputs.outputs
        terms = []
        for pair, projection in zip(self.settings.hidden, projections, strict=True):
            terms.append(squared_difference(own[pair.student], theirs[pair.teacher], projection))
        return DistillationLoss(divergence, torch.stack(terms).sum())


def softened_divergence(
    logits: Tensor, teacher: Tensor, target: Tensor, temperature: float
) -> Tensor:
    """Return T^2 KL(p_teacher || p_student) in nats, summed over the real tokens.

    p = softmax(logits / T); T^2 keeps the gradients as large as at T = 1 (Hinton et al. 2015,
    section 2). logits, teacher: (B, T, V), target: ids (B, T) -> scalar of 32 bits or more.
    """
    real = target.flatten() != PAD  # (N,)
    return SoftenedDivergence.apply(logits.flatten(0, 1), teacher.flatten(0, 1), real, temperature)


class SoftenedDivergence(torch.autograd.Function):
    """Autograd function of `softened_divergence`; keeps its gradient alone, T (p_s - p_t)."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, teacher: Tensor, real: Tensor, temperature: float
    ) -> Tensor:
        """logits, teacher: (N, V), real: (N,) -> scalar"""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_p = torch.log_softmax(logits.to(dtype) / temperature, -1)  # (N, V)
        log_q = torch.log_softmax(teacher.to(dtype) / temperature, -1)  # of the teacher
        q = log_q.exp()
        divergence = (q * log_q.sub_(log_p)).sum(-1).masked_fill(~real, 0.0)  # (N,)
        gradient = log_p.exp_().sub_(q).mul_((temperature * real)[:, None])
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return temperature**2 * divergence.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the logits."""
        (gradient,) = ctx.saved_tensors
        return (gradient * gradients[0]).to(ctx.dtype), None, None, None


def squared_difference(own: Output, theirs: Output, projection: nn.Module) -> Tensor:
    """Return the mean over real positions and features of a squared difference. -> scalar

    (B, T, D) each, or (B, T, W, D); `projection` maps the student's width to the teacher's.
    """
    mapped = projection(own.states)
    exact = torch.promote_types(mapped.dtype, torch.float32)
    squares = (mapped.to(exact) - theirs.states.to(exact)).square().mean(-1)  # (B, T)
    return squares.masked_fill(~own.mask, 0.0).sum() / own.mask.sum().clamp(min=1)


def build_projections(
    pairs: Sequence[HiddenPair], student: EncoderDecoder, teacher: EncoderDecoder
) -> nn.ModuleList:
    """Return for each pair a linear map from the student's width to the teacher's (FitNets).

    The identity, where they are the same. The widths are those of the outputs for a short pair.
    """
    outputs = []
    for model in (student, teacher):
        with evaluation_mode([model], for_training=True), keep_named_outputs(model) as named:
            training_logits(model, {})
        outputs.append(named)
    own, theirs = outputs
    projections = nn.ModuleList()
    for pair in pairs:
        width = own[pair.student].states.shape[-1]
        wanted = theirs[pair.teacher].states.shape[-1]
        projections.append(nn.Identity() if width == wanted else nn.Linear(width, wanted))
    return projections

"""CUDA graphs of training steps and of decoding steps: the same values, and the time.

Of a decoding step there is a graph where the state's shapes stay the same from step to step; else
this says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu import FAILED, OK, Outcome, Row, Settings
from benchmarks.gpu.compare import relative_error, without_chance
from benchmarks.gpu.graphs import Tensors, capture, median_milliseconds
from benchmarks.gpu.models import FULL, MODELS, SMALL, Size, build_model, random_ids
from composer.model.encoder_decoder import EncoderDecoder, state_leaves
from composer.training.loss import sum_loss

ROUNDS, SMALL_ROUNDS = 30, 2
BATCH, LENGTH = 64, 24
SMALL_BATCH, SMALL_LENGTH = 3, 4
TOLERANCE = 1e-5


def cases(settings: Settings) -> list[str]:
    return [f"{step}, {model}" for step in ("training step", "decoding step") for model in MODELS]


def run(case: str, settings: Settings) -> Outcome:
    step, _, name = case.partition(", ")
    size = SMALL if settings.small else FULL._replace(vocabulary=8000)
    torch.manual_seed(1)
    model = without_chance(build_model(name, size)).to(settings.device)
    make = training_step if step == "training step" else decoding_step
    function = make(model, size, settings)
    if isinstance(function, str):
        return Outcome(OK, rows=(Row(case, function),))
    expected = [tensor.detach().clone() for tensor in function()]
    graphed = capture(function, settings.device)
    error = relative_error(list(graphed()), expected)
    rounds = SMALL_ROUNDS if settings.small else ROUNDS
    times = [median_milliseconds(call, settings.device, rounds) for call in (function, graphed)]
    graph = "graph" if settings.is_cuda else "no graphs on a CPU"
    value = (
        f"{times[0]:.2f} ms, {graph} {times[1]:.2f} ms: {times[0] / times[1]:.2f}; values differ by"
        f" {error:.2g}"
    )
    return Outcome(OK, rows=(Row(case, value),)) if error <= TOLERANCE else Outcome(FAILED, value)


def sentences(size: Size, settings: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (SMALL_BATCH, SMALL_LENGTH) if settings.small else (BATCH, LENGTH)
    return tuple(random_ids(size, *shape, seed=seed).to(settings.device) for seed in (1, 2))


def training_step(model: EncoderDecoder, size: Size, settings: Settings) -> Callable[[], Tensors]:
    """Return a function that computes the loss of a batch and its gradients."""
    source, target = sentences(size, settings)
    parameters = list(model.train().parameters())

    def step() -> Tensors:
        loss = sum_loss(model({"source": source}, target[:, :-1]), target[:, 1:])
        return [loss, *torch.autograd.grad(loss, parameters)]

    return step


def decoding_step(
    model: EncoderDecoder, size: Size, settings: Settings
) -> Callable[[], Tensors] | str:
    """Return a function that computes the logits and the state after one more token; else why there
    is no graph.
    """
    source, target = sentences(size, settings)
    model.eval()
    with torch.no_grad():
        memories = model.encode({"source": source})
        before = model.step(target[:, :1], model.start(memories, len(source)), memories)[1]
        after = model.step(target[:, 1:2], before, memories)[1]
    grown = [pair for pair in zip(shapes(before), shapes(after), strict=True) if pair[0] != pair[1]]
    if grown:
        return f"no graph: the state grows from step to step, {grown[0][0]} to {grown[0][1]}"

    def step() -> Tensors:
        with torch.no_grad():
            logits, state = model.step(target[:, 1:2], before, memories)
        return [logits, *(leaf for leaf in state_leaves(state) if leaf.is_floating_point())]

    return step


def shapes(state: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in state_leaves(state)]

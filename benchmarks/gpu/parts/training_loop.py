"""Training of a GRU with attention and input feeding, a loop over positions: as it is, compiled,
and in CUDA graphs.

The graph is of loss and gradients of one batch, without Lightning, clipping and optimizer: what a
training could reach.
"""

from __future__ import annotations

import torch

from benchmarks.gpu import OK, Outcome, Row, Settings
from benchmarks.gpu.graphs import capture, median_milliseconds
from benchmarks.gpu.loops import Loop, Side, compare, ours, ours_compiled, size_of
from benchmarks.gpu.models import Size, build_model, random_ids
from composer.training.loss import sum_loss

RECIPE = "GRU with attention and input feeding"
TARGET = 5.0
SIDES: dict[str, Side] = {"ours": ours, "ours compiled": ours_compiled}
ROUNDS = 20


def cases(settings: Settings) -> list[str]:
    return ["graph", "ours"] if settings.small else ["graph", "reduce-overhead", "ours"]


def run(case: str, settings: Settings) -> Outcome:
    size = size_of(settings)
    if case == "ours":
        sides = {"ours": ours} if settings.small else SIDES
        targets = {} if settings.small else {("ours compiled", "ours"): TARGET}
        # each length would be compiled for minutes
        one_length = size._replace(words=(size.words[1],) * 2)
        return compare(Loop(RECIPE, one_length, "bf16-mixed", settings), sides, targets)
    return faster_step(case, size, settings)


def faster_step(case: str, size: Size, settings: Settings) -> Outcome:
    """Measure loss and gradients of one batch as they are, and as a CUDA graph or compiled with
    such graphs.
    """
    torch.manual_seed(1)
    model = build_model(RECIPE, size).to(settings.device).train()
    rows = max(1, size.tokens // (size.words[1] + 1))
    source, target = (
        random_ids(size, rows, size.words[1], seed).to(settings.device) for seed in (1, 2)
    )
    parameters = list(model.parameters())
    called = model if case == "graph" else torch.compile(model, mode=case)

    def step(forward: object = model) -> list[torch.Tensor]:
        with torch.autocast(torch.device(settings.device).type, torch.bfloat16):
            logits = forward({"source": source}, target[:, :-1])
        loss = sum_loss(logits, target[:, 1:])
        return [loss, *torch.autograd.grad(loss, parameters)]

    faster = capture(step, settings.device) if case == "graph" else lambda: step(called)
    times = [
        median_milliseconds(call, settings.device, 2 if settings.small else ROUNDS)
        for call in (step, faster)
    ]
    ratio = times[0] / times[1]
    text = f"{times[0]:.1f} ms as it is, {times[1]:.1f} ms: {ratio:.2f}"
    note = "" if settings.is_cuda else " (no graphs on a CPU)"
    row = Row(f"{RECIPE}, loss and gradients of {rows} rows, {case}{note}", text, f"{TARGET:g}")
    return Outcome(OK, rows=(row,))

"""Training speed of one loop over generated texts: ours under Lightning, or a plain one around any
model.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pytorch_lightning import Callback
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import FAILED, MISSING, OK, Outcome, Row, Settings
from benchmarks.gpu.graphs import now
from benchmarks.gpu.models import (
    FULL,
    SMALL,
    WINDOWS,
    Size,
    plain_transformer,
    recipe_text,
    write_texts,
)
from composer.data.collate import Batch, BatchLoader
from composer.data.sources import DataSource
from composer.model.special_tokens import PAD
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.training.claim import ClaimedRun
from composer.training.loggers import ProgressDisplay
from composer.training.setup import TrainingSetup, setup
from composer.training.trainer import silence_lightning

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
"""Dense bf16 operations per second of a device, by what is in its name."""
PRECISIONS = {"32": None, "bf16-mixed": torch.bfloat16}
GIB = float(1 << 30)


class Speed(NamedTuple):
    """Target tokens per second, padding not counted: median, least and most of the windows; peak
    memory in GiB.
    """

    tokens: float
    least: float
    most: float
    gib: float

    def __str__(self) -> str:
        memory = f", {self.gib:.1f} GiB" if self.gib else ""
        return f"{self.tokens:,.0f} tokens/s ({self.least:,.0f} to {self.most:,.0f}){memory}"


class Clock(Callback):
    """Tokens and seconds of each window after the warm-up."""

    def __init__(self, size: Size, device: str) -> None:
        self.device, self.warm_up, self.length = device, size.warm_up, max(1, size.steps // WINDOWS)
        self.last = size.warm_up + size.steps
        self.seen, self.tokens, self.began = 0, 0.0, 0.0
        self.windows: list[float] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if self.count(batch):
            trainer.should_stop = True

    def count(self, batch: Batch) -> bool:
        """Count a batch; return whether it was the last."""
        self.seen += 1
        self.tokens += batch["tokens"]
        if self.seen >= self.warm_up and (self.seen - self.warm_up) % self.length == 0:
            time = now(self.device)
            if self.seen > self.warm_up:
                self.windows.append(self.tokens / (time - self.began))
            self.tokens, self.began = 0.0, time
        return self.seen >= self.last

    def speed(self) -> Speed:
        memory = torch.cuda.max_memory_allocated() / GIB if self.device.startswith("cuda") else 0.0
        return Speed(statistics.median(self.windows), min(self.windows), max(self.windows), memory)


class Loop(NamedTuple):
    """What one measurement needs. recipe: the name of a recipe of `models`, of which the data and
    batches are.
    """

    recipe: str
    size: Size
    precision: str
    settings: Settings

    def session(self, folder: Path, compiled: bool) -> TrainingSetup:
        """Return a training that never validates and writes nothing."""
        silence_lightning()
        (folder / "measured.yaml").write_text(recipe_text(self.recipe, self.size), encoding="utf-8")
        overrides = [
            f"training.precision={self.precision}",
            f"training.compile={str(compiled).lower()}",
            f"trainer={{accelerator: {'gpu' if self.settings.is_cuda else 'cpu'}, devices: 1}}",
        ]
        recipe = load(folder / "measured.yaml", overrides, folder)
        source = DataSource(recipe, recipe.folders(folder))
        return setup(
            ClaimedRun(recipe, RunDir(folder / "run")), source, ProgressDisplay(quiet=True)
        )


Side = Callable[[Loop, Path], Speed]
"""Measures one way to train."""


def ours(loop: Loop, folder: Path, compiled: bool = False) -> Speed:
    """Measure the recipe under Lightning, with everything that `train` does in a step."""
    session, clock = loop.session(folder, compiled), Clock(loop.size, loop.settings.device)
    session.trainer.callbacks.append(clock)
    session.trainer.fit(session.module, datamodule=session.data)
    return clock.speed()


def ours_compiled(loop: Loop, folder: Path) -> Speed:
    """Measure the recipe with `training.compile: true`."""
    return ours(loop, folder, compiled=True)


def plain(
    loop: Loop, folder: Path, build: Callable[[Size], nn.Module], compiled: bool = False
) -> Speed:
    """Measure a loop by hand around a model of source and target ids, with the recipe's batches and
    settings.
    """
    session, device = loop.session(folder, False), loop.settings.device
    model = build(loop.size).to(device).train()
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), fused=True)
    clock = Clock(loop.size, device)
    loader = BatchLoader(session.data.train, session.data.resumable)
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        source, read, answer = (
            tensor.to(device, non_blocking=True)
            for tensor in (batch["sources"]["source"], batch["target_in"], batch["target_out"])
        )
        dtype = PRECISIONS[loop.precision]
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype is not None):
            logits = called(source, read)
        loss = label_smoothed(logits, answer)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if clock.count(batch):
            break
    return clock.speed()


def label_smoothed(logits: Tensor, answer: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1).float(), answer.flatten(), ignore_index=PAD, label_smoothing=0.1
    )


# -------------------------------------------------------------------------------------------
# several sides


def size_of(settings: Settings) -> Size:
    return SMALL if settings.small else FULL


def measure(loop: Loop, side: Side) -> Speed | str:
    """Return the speed of a side; else why there is none: one that breaks is a line, and the others
    go on.
    """
    torch.compiler.reset()
    gc.collect()
    if loop.settings.is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder), loop.size)
        try:
            return side(loop, Path(folder))
        except ModuleNotFoundError as error:
            return f"{MISSING}: {error.name} is not installed"
        except (
            Exception
        ) as error:  # a peer's fault, or one of ours on this device: both are what is to be known
            return f"{FAILED}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def compare(
    loop: Loop, sides: dict[str, Side], targets: dict[tuple[str, str], float], flops: float = 0.0
) -> Outcome:
    """Measure every side; return their speeds, and the ratios that `targets` has, with what each
    should be.
    """
    speeds = {name: measure(loop, side) for name, side in sides.items()}
    what = f"{loop.recipe} {loop.precision}"
    rows = [Row(f"{what}: {name}", describe(speed, loop, flops)) for name, speed in speeds.items()]
    for (one, other), target in targets.items():
        mine, theirs = speeds[one], speeds[other]
        known = isinstance(mine, Speed) and isinstance(theirs, Speed)
        ratio = f"{mine.tokens / theirs.tokens:.2f}" if known else "not measured"
        rows.append(Row(f"{what}: {one} to {other}", ratio, f"{target:g}"))
    return outcome_of(
        {name: speed for name, speed in speeds.items() if isinstance(speed, str)}, rows
    )


def outcome_of(trouble: Mapping[str, str], rows: Sequence[Row]) -> Outcome:
    """Return the outcome of several sides; `trouble` says by name why a side has no figure."""
    missing = all(text.startswith(MISSING) for text in trouble.values())
    text = "; ".join(f"{name} {reason}" for name, reason in trouble.items())
    return Outcome((MISSING if missing else FAILED) if trouble else OK, text, tuple(rows))


def describe(speed: Speed | str, loop: Loop, flops: float) -> str:
    """Return a speed with its share of the device's peak, where that is known."""
    if isinstance(speed, str) or not loop.settings.is_cuda or loop.precision == "32":
        return str(speed)
    name = torch.cuda.get_device_name(loop.settings.device)
    peak = next((peak for word, peak in PEAKS.items() if word in name), 0.0)
    return (
        f"{speed}, {100 * flops * speed.tokens / peak:.0f} % of the peak"
        if peak and flops
        else str(speed)
    )


def transformer_flops(size: Size) -> float:
    """Return the operations per target token of a training step of the plain Transformer, by
    counting one.
    """
    with torch.device("meta"):
        model = plain_transformer(size)
        length = sum(size.words) // 2 + 1
        ids = torch.zeros(4, length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(ids, ids).sum().backward()
    return counter.get_total_flops() / ids.numel()

"""Training speed against a plain PyTorch loop: same batches, sizes, dropout sites, optimizer,
clipping and device.

    python -m benchmarks.training --data DIR [--rounds 5] [--steps 30] [--precision 32 bf16-mixed]
    [--memory] python -m benchmarks.training --data DIR --accelerator gpu --compile
    python -m benchmarks.training --data DIR --models transformer --precision 32

The sides alternate in one process, in another order every round: ours and bare (the plain loop) in
each precision, with --compile also compiled (`training.compile: true`, and `torch.compile` of the
plain model), after a longer warm-up. Tokens are target tokens without padding. Seconds on a CPU are
processor time per thread, in which other programs do not count; OMP_NUM_THREADS=1 is the least
noisy. Prints every round and the median ratios; with --memory the peak of each side in a process of
its own, on a CPU above what the process had before its first step. The plain GRU packs its
sequences, which breaks its graph and waits for the GPU; ours does neither.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pytorch_lightning import Callback
from torch import Tensor, nn

from benchmarks.bare import GRU, PAD, Transformer
from composer.data.collate import Batch, BatchLoader
from composer.data.sources import DataSource
from composer.inference.freed_memory import keep_freed_memory
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.training.claim import ClaimedRun
from composer.training.loggers import ProgressDisplay
from composer.training.setup import TrainingSetup, setup
from composer.training.trainer import silence_lightning

RECIPES = Path(__file__).parent.parent / "recipes" / "multi30k"
MODELS: dict[str, type[nn.Module]] = {"transformer": Transformer, "gru_attention": GRU}
WARM_UP, COMPILING = 5, 25
"""Steps before the clock starts; with compilation, more shapes are recompiled at first."""
MIB = float(1 << 20)


class Config(NamedTuple):
    """What is measured, the same for every side."""

    model: str
    data: Path
    accelerator: str
    steps: int
    warm_up: int


class Side(NamedTuple):
    """One of the loops that are compared, in a precision."""

    loop: Literal["ours", "bare"]
    precision: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.loop} {self.precision}{' compiled' if self.compiled else ''}"


class Stopwatch(Callback):
    """Time and tokens from the end of the warm-up to the end."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.warm_up, self.last, self.device = config.warm_up, config.warm_up + config.steps, device
        self.tokens, self.seen, self.began, self.seconds = 0.0, 0, 0.0, 0.0

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.count(batch)
        if self.seconds:
            trainer.should_stop = True

    def count(self, batch: Batch) -> None:
        self.seen += 1
        if self.seen > self.warm_up:
            self.tokens += batch["tokens"]
        if self.seen == self.warm_up:
            self.began = self.now()
        if self.seen == self.last:
            self.seconds = self.now() - self.began

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return time.perf_counter()
        return time.process_time() / torch.get_num_threads()

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


class Measurement(NamedTuple):
    """Tokens per second, and the peak memory in MiB, of which that on a CPU is right in a process
    of its own alone.
    """

    speed: float
    memory: float


# ------------------------------------------------------------------------------------------- the
# sides


def build_session(config: Config, folder: Path, side: Side) -> TrainingSetup:
    """Build a training that never validates and writes nothing."""
    settings = [
        f"training.max_steps={config.warm_up + config.steps + 1}",
        "training.max_minutes=null",
        f"training.precision={side.precision}",
        f"training.compile={str(side.compiled and side.loop == 'ours').lower()}",
        f"trainer={{accelerator: {config.accelerator}, devices: 1, limit_val_batches: 0}}",
    ]
    recipe = load(
        RECIPES / f"{config.model}.yaml",
        [*settings, "training.validate_every=1000000"],
        config.data,
    )
    source = DataSource(recipe, recipe.folders(config.data))
    return setup(ClaimedRun(recipe, RunDir(folder)), source, ProgressDisplay(quiet=True))


def run_ours(config: Config, session: TrainingSetup) -> Measurement:
    """Train the recipe under Lightning, with everything that `train` does per step."""
    watch = Stopwatch(config, session.trainer.strategy.root_device)
    session.trainer.callbacks.append(watch)
    memory = PeakMemory(watch.device)
    session.trainer.fit(session.module, datamodule=session.data)
    return Measurement(watch.speed, memory.peak())


def run_bare(config: Config, session: TrainingSetup, side: Side) -> Measurement:
    """Train the plain model in a plain loop."""
    training, device = session.recipe.training, session.trainer.strategy.root_device
    rate = session.recipe.model.dropout
    model = MODELS[config.model](
        session.data.tokenizers.sizes["target"], dropout=rate, cross_dropout=rate
    )
    model.to(device).train()
    called = torch.compile(model) if side.compiled else model
    optimizer = torch.optim.Adam(
        model.parameters(), training.optimizer.learning_rate, betas=(0.9, 0.98)
    )
    watch, memory = Stopwatch(config, device), PeakMemory(device)
    for batch in BatchLoader(session.data.train, session.data.resumable):
        source, read, answer = to_device(
            device, batch["sources"]["source"], batch["target_in"], batch["target_out"]
        )
        with precision_context(device, side.precision):
            logits = called(source, read)
        loss = F.cross_entropy(
            logits.flatten(0, 1).float(),
            answer.flatten(),
            ignore_index=PAD,
            label_smoothing=training.label_smoothing,
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
        watch.count(batch)
        if watch.seconds:
            return Measurement(watch.speed, memory.peak())
    raise SystemExit("the data has fewer batches than steps")


def to_device(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Move tensors to the device without waiting."""
    return [tensor.to(device, non_blocking=True) for tensor in tensors]


def precision_context(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the autocast context of the forward pass."""
    return (
        torch.autocast(device.type, torch.bfloat16) if precision == "bf16-mixed" else nullcontext()
    )


class PeakMemory:
    """The peak of used MiB since its creation; on a CPU above the use at that time (Linux)."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, 0.0
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        else:
            Path("/proc/self/clear_refs").write_text("5")  # the peak is what is in use now
            self.before = self.resident()

    def peak(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / MIB
        return self.resident() - self.before

    @staticmethod
    def resident() -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def run_side(config: Config, side: Side) -> Measurement:
    """Run one side from the beginning."""
    silence_lightning()
    keep_freed_memory()  # for both sides
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder:
        session = build_session(config, Path(folder, "run"), side)
        return run_ours(config, session) if side.loop == "ours" else run_bare(config, session, side)


def run_alone(config: Config, side: Side) -> Measurement:
    """Run one side in a process of its own: what another side has freed is not used again there."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(run_side, config, side).result()


# ------------------------------------------------------------------------------------------- rounds


def compare(config: Config, options: argparse.Namespace) -> None:
    """Print the rounds of one model, and its memory."""
    pairs = list_pairs(options.precision, options.compile)
    sides, ratios = (
        list(dict.fromkeys(side for pair in pairs for side in pair)),
        dict[str, list[float]](),
    )
    for number in range(options.rounds):
        measured = {side: run_side(config, side) for side in (sides if number % 2 else sides[::-1])}
        for one, other in pairs:
            ratios.setdefault(f"{one} to {other}", []).append(
                measured[one].speed / measured[other].speed
            )
        speeds = "; ".join(f"{side} {measured[side].speed:,.0f} tokens/s" for side in sides)
        print(
            f"{config.model} round {number + 1}: {speeds};"
            f" {format_ratios(ratios, slice(-1, None))}",
            flush=True,
        )
    print(
        f"{config.model}: {format_ratios(ratios, slice(None))}, median of {options.rounds} rounds",
        flush=True,
    )
    if options.memory:
        memory = "; ".join(f"{side} {run_alone(config, side).memory:,.0f} MiB" for side in sides)
        print(f"{config.model}: peak memory above the start: {memory}", flush=True)


def list_pairs(precisions: Sequence[str], compiled: bool) -> list[tuple[Side, Side]]:
    """Return what is compared: ours with bare in each precision, lower precisions with the first,
    compiled with not.
    """
    pairs = [(Side("ours", precision), Side("bare", precision)) for precision in precisions]
    pairs += [
        (Side("ours", precision), Side("ours", precisions[0])) for precision in precisions[1:]
    ]
    if compiled:
        pairs += [
            (ours._replace(compiled=True), bare._replace(compiled=True))
            for ours, bare in pairs[: len(precisions)]
        ]
        pairs += [
            (side._replace(compiled=True), side)
            for pair in pairs[: len(precisions)]
            for side in pair
        ]
    return pairs


def format_ratios(ratios: dict[str, list[float]], which: slice) -> str:
    """Return the median of some rounds of each ratio."""
    return ", ".join(
        f"{name} {statistics.median(values[which]):.3f}" for name, values in ratios.items()
    )


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--precision", nargs="+", choices=["32", "bf16-mixed"], default=["32", "bf16-mixed"]
    )
    parser.add_argument("--accelerator", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument(
        "--compile", action="store_true", help="also measure both compiled; takes minutes more"
    )
    parser.add_argument(
        "--memory", action="store_true", help="also measure the peak memory of each side"
    )
    return parser.parse_args(argv)


def main() -> None:
    options = parse_arguments()
    warm_up = COMPILING if options.compile else WARM_UP
    for model in options.models:
        compare(Config(model, options.data, options.accelerator, options.steps, warm_up), options)


if __name__ == "__main__":
    main()

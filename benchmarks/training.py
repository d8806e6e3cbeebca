"""Training speed against a plain PyTorch loop: same batches, sizes, dropout sites, optimizer, clipping and device.

    python benchmarks/training.py --data DIR [--rounds 5] [--steps 30] [--precision 32] [--accelerator auto]
    python benchmarks/training.py --data DIR --accelerator gpu --precision 32 bf16-mixed --compile
    python benchmarks/training.py --data DIR --models transformer

The sides alternate in one process, in another order every round: ours and bare (the plain loop), with --compile each
also compiled (`training.compile: true`, and `torch.compile` of the plain model), after a longer warm-up. Tokens are
target tokens without padding. Prints every round, on a GPU with the peak memory of each side, and the median ratios.
The plain GRU packs its sequences, which breaks its graph and waits for the GPU; ours does neither.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from bare import GRU, PAD, Transformer
from pytorch_lightning import Callback
from torch import Tensor, nn

from composer.data.collate import Batch, BatchLoader
from composer.data.sources import DataSource
from composer.inference.decode import keep_freed_memory
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.training.loggers import ProgressDisplay
from composer.training.setup import TrainingSetup, setup, silence_lightning

RECIPES = Path(__file__).parent.parent / "recipes" / "multi30k"
MODELS: dict[str, type[nn.Module]] = {"transformer": Transformer, "gru_attention": GRU}
WARM_UP, COMPILING = 5, 25
"""Steps before the clock starts; with compilation, more shapes are recompiled at first."""
GIB = float(1 << 30)


class Config(NamedTuple):
    """What is measured, the same for every side."""

    model: str
    data: Path
    accelerator: str
    precision: str
    steps: int
    warm_up: int


class Stopwatch(Callback):
    """Time and tokens from the end of the warm-up to the end."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.warm_up, self.last, self.device = config.warm_up, config.warm_up + config.steps, device
        self.tokens, self.seen, self.began, self.seconds = 0.0, 0, 0.0, 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
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

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


class Measurement(NamedTuple):
    """Tokens per second, and the peak memory in bytes on a GPU, else 0."""

    speed: float
    memory: int

    def __str__(self) -> str:
        return f"{self.speed:,.0f} tokens/s" + (f" in {self.memory / GIB:.2f} GiB" if self.memory else "")


# ------------------------------------------------------------------------------------------- the sides


def build_session(config: Config, folder: Path, compiled: bool) -> TrainingSetup:
    """Build a training that never validates and writes nothing."""
    settings = [
        f"training.max_steps={config.warm_up + config.steps + 1}",
        "training.max_minutes=null",
        f"training.precision={config.precision}",
        f"training.compile={str(compiled).lower()}",
        f"trainer={{accelerator: {config.accelerator}, devices: 1}}",
    ]
    recipe = load(RECIPES / f"{config.model}.yaml", [*settings, "training.validate_every=1000000"], config.data)
    return setup(DataSource(recipe, recipe.folders(config.data)), RunDir(folder), {}, None, ProgressDisplay(quiet=True))


def run_ours(config: Config, session: TrainingSetup) -> float:
    """Return the tokens per second of the recipe under Lightning, with everything that `train` does per step."""
    watch = Stopwatch(config, session.trainer.strategy.root_device)
    session.trainer.callbacks.append(watch)
    session.trainer.fit(session.module, datamodule=session.data)
    return watch.speed


def run_bare(config: Config, session: TrainingSetup, compiled: bool) -> float:
    """Return the tokens per second of a plain loop."""
    training, device = session.recipe.training, session.trainer.strategy.root_device
    model = MODELS[config.model](session.data.tokenizers.sizes["target"], dropout=session.recipe.model["dropout"])
    model.to(device).train()
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), training["optimizer"]["adam"]["learning_rate"], betas=(0.9, 0.98))
    watch = Stopwatch(config, device)
    for batch in BatchLoader(session.data.train, session.data.resumable):
        source, read, answer = to_device(device, batch["sources"]["source"], batch["target_in"], batch["target_out"])
        with precision_context(device, config.precision):
            logits = called(source, read)
        loss = F.cross_entropy(
            logits.flatten(0, 1).float(),
            answer.flatten(),
            ignore_index=PAD,
            label_smoothing=training["label_smoothing"],
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training["clip_norm"])
        optimizer.step()
        watch.count(batch)
        if watch.seconds:
            return watch.speed
    raise SystemExit("the data has fewer batches than steps")


def to_device(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """Move tensors to the device without waiting."""
    return [tensor.to(device, non_blocking=True) for tensor in tensors]


def precision_context(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return the autocast context of the forward pass."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16-mixed" else nullcontext()


def run_side(config: Config, side: str) -> Measurement:
    """Run one side from the beginning, after freeing the memory of the previous one."""
    torch.compiler.reset()
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        compiled = side.endswith("compiled")
        session = build_session(config, Path(folder, "run"), compiled and side.startswith("ours"))
        device = session.trainer.strategy.root_device
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        speed = run_ours(config, session) if side.startswith("ours") else run_bare(config, session, compiled)
    return Measurement(speed, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0)


# ------------------------------------------------------------------------------------------- rounds


def compare(config: Config, rounds: int, compiled: bool) -> None:
    """Print the rounds of one model in one precision."""
    pairs = [("ours", "bare"), *([("ours compiled", "bare compiled")] if compiled else [])]
    sides = [side for pair in pairs for side in pair]
    title, ratios = f"{config.model} {config.precision}", dict[str, list[float]]()
    for number in range(rounds):
        measurements = {side: run_side(config, side) for side in (sides if number % 2 else sides[::-1])}
        compared = [*pairs, *((f"{side} compiled", side) for side in ("ours", "bare") if compiled)]
        for one, other in compared:
            ratios.setdefault(f"{one} to {other}", []).append(measurements[one].speed / measurements[other].speed)
        speeds = "; ".join(f"{side} {measurements[side]}" for side in sides)
        print(f"{title} round {number + 1}: {speeds}; {format_ratios(ratios, slice(-1, None))}", flush=True)
    print(f"{title}: {format_ratios(ratios, slice(None))}, median of {rounds} rounds", flush=True)


def format_ratios(ratios: dict[str, list[float]], which: slice) -> str:
    """Return the median of some rounds of each ratio."""
    return ", ".join(f"{name} {statistics.median(values[which]):.3f}" for name, values in ratios.items())


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", nargs="+", choices=["32", "bf16-mixed"], default=["32"])
    parser.add_argument("--accelerator", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument("--compile", action="store_true", help="also measure both compiled; takes minutes more")
    return parser.parse_args(argv)


def main() -> None:
    options = parse_arguments()
    silence_lightning()
    keep_freed_memory()  # for both sides
    for precision in options.precision:
        for model in options.models:
            warm_up = COMPILING if options.compile else WARM_UP
            config = Config(model, options.data, options.accelerator, precision, options.steps, warm_up)
            compare(config, options.rounds, options.compile)


if __name__ == "__main__":
    main()

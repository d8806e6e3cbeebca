"""Our training against a bare PyTorch loop: the same batches, sizes, dropout sites, optimizer, clipping and device.

    python benchmarks/training.py --data DIR [--rounds 5] [--steps 30] [--precision 32] [--accelerator auto]
    python benchmarks/training.py --data DIR --accelerator gpu --precision 32 bf16-mixed --compile
    python benchmarks/training.py --data DIR --models transformer

The sides take turns in one process, in another order every round: ours and bare, with --compile each of them compiled
too (`training.compile: true`, and `torch.compile` of the bare model), after a longer warm-up. Tokens are real target
tokens. Prints every round, on a GPU with the most memory that each side held, and the median of the ratios. The bare
GRU packs its sequences, which breaks its graph and waits for the GPU; ours does neither.
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

from composer.data.collate import Batch, data_loader
from composer.data.sources import DataSource
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.training.progress import ProgressDisplay
from composer.training.setup import TrainingSetup, keep_freed_memory, setup, silence_lightning

RECIPES = Path(__file__).parent.parent / "recipes" / "multi30k"
MODELS: dict[str, type[nn.Module]] = {"transformer": Transformer, "gru_attention": GRU}
WARM_UP, COMPILING = 5, 25
"""Steps before the clock starts; the first shapes are compiled again and again."""
GIB = float(1 << 30)


class Race(NamedTuple):
    """What is measured, the same for every side."""

    model: str
    data: Path
    accelerator: str
    precision: str
    steps: int
    warm_up: int


class Stopwatch(Callback):
    """The time from the end of the warm-up to the end, and the tokens in between."""

    def __init__(self, race: Race, device: torch.device) -> None:
        self.warm_up, self.last, self.device = race.warm_up, race.warm_up + race.steps, device
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


class Measured(NamedTuple):
    """Tokens per second, and on a GPU the most bytes that were held at once; else 0."""

    speed: float
    memory: int

    def __str__(self) -> str:
        return f"{self.speed:,.0f} tokens/s" + (f" in {self.memory / GIB:.2f} GiB" if self.memory else "")


# ------------------------------------------------------------------------------------------- the sides


def session_of(race: Race, folder: Path, compiled: bool) -> TrainingSetup:
    """A training that is ready to begin, validates never and writes nothing."""
    settings = [
        f"training.max_steps={race.warm_up + race.steps + 1}",
        "training.max_minutes=null",
        f"training.precision={race.precision}",
        f"training.compile={str(compiled).lower()}",
        f"trainer={{accelerator: {race.accelerator}, devices: 1}}",
    ]
    recipe = load(RECIPES / f"{race.model}.yaml", [*settings, "training.validate_every=1000000"], race.data)
    return setup(DataSource(recipe, recipe.folders(race.data)), RunDir(folder), {}, None, ProgressDisplay(quiet=True))


def ours(race: Race, session: TrainingSetup) -> float:
    """Tokens per second of the recipe under Lightning, with everything that `train` does at a step."""
    watch = Stopwatch(race, session.trainer.strategy.root_device)
    session.trainer.callbacks.append(watch)
    session.trainer.fit(session.module, datamodule=session.data)
    return watch.speed


def bare(race: Race, session: TrainingSetup, compiled: bool) -> float:
    """Tokens per second of a loop as a person would write it."""
    training, device = session.recipe.training, session.trainer.strategy.root_device
    model = MODELS[race.model](session.data.tokenizers.size("target"), dropout=session.recipe.model["dropout"])
    model.to(device).train()
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), training["optimizer"]["adam"]["learning_rate"], betas=(0.9, 0.98))
    watch = Stopwatch(race, device)
    for batch in data_loader(session.data.train, session.data.resumable):
        source, read, answer = on(device, batch["sources"]["source"], batch["target_in"], batch["target_out"])
        with arithmetic(device, race.precision):
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
    raise SystemExit("the data ended before the steps did")


def on(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    """The tensors on the device; nobody waits for them."""
    return [each.to(device, non_blocking=True) for each in tensors]


def arithmetic(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """What the forward pass runs in."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16-mixed" else nullcontext()


def run(race: Race, side: str) -> Measured:
    """One side from the beginning, with nothing left of those before it."""
    torch.compiler.reset()
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        compiled = side.endswith("compiled")
        session = session_of(race, Path(folder, "run"), compiled and side.startswith("ours"))
        device = session.trainer.strategy.root_device
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        speed = ours(race, session) if side.startswith("ours") else bare(race, session, compiled)
    return Measured(speed, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0)


# ------------------------------------------------------------------------------------------- rounds


def compare(race: Race, rounds: int, compiled: bool) -> None:
    """Prints the rounds of one model in one precision."""
    pairs = [("ours", "bare"), *([("ours compiled", "bare compiled")] if compiled else [])]
    sides = [side for pair in pairs for side in pair]
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        found = {side: run(race, side) for side in (sides if number % 2 else sides[::-1])}
        compared = [*pairs, *((f"{side} compiled", side) for side in ("ours", "bare") if compiled)]
        for one, other in compared:
            ratios.setdefault(f"{one} to {other}", []).append(found[one].speed / found[other].speed)
        told = "; ".join(f"{side} {found[side]}" for side in sides)
        print(f"{race.model} {race.precision} round {number + 1}: {told}; {shown(ratios, slice(-1, None))}", flush=True)
    print(f"{race.model} {race.precision}: {shown(ratios, slice(None))}, median of {rounds} rounds", flush=True)


def shown(ratios: dict[str, list[float]], which: slice) -> str:
    """The median of some rounds of each ratio."""
    return ", ".join(f"{name} {statistics.median(values[which]):.3f}" for name, values in ratios.items())


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", nargs="+", choices=["32", "bf16-mixed"], default=["32"])
    parser.add_argument("--accelerator", choices=["auto", "cpu", "gpu"], default="auto")
    parser.add_argument("--compile", action="store_true", help="measure both compiled too; takes minutes more")
    return parser.parse_args(given)


def main() -> None:
    given = arguments()
    silence_lightning()
    keep_freed_memory()  # for both sides
    for precision in given.precision:
        for model in given.models:
            warm_up = COMPILING if given.compile else WARM_UP
            race = Race(model, given.data, given.accelerator, precision, given.steps, warm_up)
            compare(race, given.rounds, given.compile)


if __name__ == "__main__":
    main()

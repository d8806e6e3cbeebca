"""Our training against a bare PyTorch loop: the same batches, sizes, dropout sites, optimizer and clipping.

    python benchmarks/training.py --data DIR [--rounds 5] [--steps 30] [--precision 32]

Interleaved rounds in one process; tokens are real target tokens. Prints every round, and the median of the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bare import GRU, PAD, Transformer
from pytorch_lightning import Callback
from torch import nn

from composer.data.batches import Batch, loader
from composer.recipe import load
from composer.training.allocator import keep_freed_memory
from composer.training.progress import Display
from composer.training.run_folder import RunFolder
from composer.training.session import Session, prepare
from composer.training.trainer import quieten

RECIPES = Path(__file__).parent.parent / "recipes" / "multi30k"
MODELS: dict[str, type[nn.Module]] = {"transformer": Transformer, "gru_attention": GRU}
WARM_UP = 5


class Stopwatch(Callback):
    """The time from the end of the warm-up to the end, and the tokens in between."""

    def __init__(self, steps: int) -> None:
        self.steps, self.tokens, self.seen, self.began, self.seconds = steps, 0.0, 0, 0.0, 0.0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.count(batch)
        if self.seen == WARM_UP + self.steps:
            trainer.should_stop = True

    def count(self, batch: Batch) -> None:
        self.seen += 1
        if self.seen > WARM_UP:
            self.tokens += batch["tokens"]
        if self.seen == WARM_UP:
            self.began = time.perf_counter()
        if self.seen == WARM_UP + self.steps:
            self.seconds = time.perf_counter() - self.began

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def session_of(name: str, data: Path, folder: Path, steps: int, precision: str) -> Session:
    """A training that is ready to begin, validates never and writes nothing."""
    settings = [
        f"training.max_steps={WARM_UP + steps + 1}",
        "training.max_minutes=null",
        f"training.precision={precision}",
    ]
    recipe = load(RECIPES / f"{name}.yaml", [*settings, "training.validate_every=1000000"], data)
    return prepare(recipe, RunFolder(folder), recipe.folders(data), {}, None, Display(quiet=True))


def ours(session: Session, steps: int) -> float:
    """Tokens per second of the recipe under Lightning, with everything that `train` does at a step."""
    watch = Stopwatch(steps)
    session.trainer.callbacks.append(watch)
    session.trainer.fit(session.module, loader(session.train, session.course.order))
    return watch.speed


def bare(session: Session, steps: int, precision: str, model: nn.Module) -> float:
    """Tokens per second of a loop as a person would write it."""
    training = session.recipe.training
    optimizer = torch.optim.Adam(model.parameters(), training["optimizer"]["adam"]["learning_rate"], betas=(0.9, 0.98))
    watch = Stopwatch(steps)
    session.course.order.epoch, session.course.order.done = 0, 0
    model.train()
    for batch in loader(session.train, session.course.order):
        with torch.autocast("cpu", torch.bfloat16) if "bf16" in precision else nullcontext():
            logits = model(batch["sources"]["source"], batch["target_in"])
        loss = F.cross_entropy(
            logits.flatten(0, 1).float(),
            batch["target_out"].flatten(),
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


def compare(name: str, data: Path, rounds: int, steps: int, precision: str) -> None:
    """Prints the rounds of one model."""
    ratios = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            session = session_of(name, data, Path(folder, "run"), steps, precision)
            dropout = session.recipe.model["dropout"]
            yardstick = MODELS[name](session.data.tokenizers.size("target"), dropout=dropout)
            sides = {
                "ours": lambda s=session: ours(s, steps),
                "bare": lambda s=session, y=yardstick: bare(s, steps, precision, y),
            }
            order = ("ours", "bare") if number % 2 else ("bare", "ours")
            speed = {side: sides[side]() for side in order}
        ratios.append(speed["ours"] / speed["bare"])
        print(f"{name} {precision} round {number + 1}: ours {speed['ours']:,.0f} tokens/s, bare {speed['bare']:,.0f}, "
              f"ratio {ratios[-1]:.3f}", flush=True)  # fmt: skip
    print(f"{name} {precision}: median ratio {statistics.median(ratios):.3f} of {rounds} rounds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--precision", default="32")
    given = parser.parse_args()
    quieten()
    keep_freed_memory()  # for both sides
    for name in MODELS:
        compare(name, given.data, given.rounds, given.steps, given.precision)


if __name__ == "__main__":
    main()

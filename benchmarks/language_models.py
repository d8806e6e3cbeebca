"""Training speed of language models against plain PyTorch loops: an LSTM with a carried state, a
small Transformer.

    OMP_NUM_THREADS=1 python -m benchmarks.language_models --data DIR [--rounds 7] [--steps 60]
    [--models lstm]

The LSTM is that of `zaremba2014_small`, on the Penn Treebank; the Transformer that of
`shakespeare_small`, in characters. A plain loop has the ids in one tensor, from which it takes its
batches as the training scripts of such models do; it has our sizes, optimizer, schedule and
clipping. The sides alternate in one process, in another order every round, each from the beginning.
Prints tokens per second of processor time in every round, after a warm-up, and the median ratio.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.training import Config, Measurement, PeakMemory, Stopwatch, run_ours
from composer.data.sources import DataSource
from composer.inference.freed_memory import keep_freed_memory
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.training.claim import ClaimedRun
from composer.training.loggers import ProgressDisplay
from composer.training.optimizers import AdamW
from composer.training.setup import TrainingSetup, setup
from composer.training.trainer import silence_lightning

RECIPES = Path(__file__).parent.parent / "recipes" / "language_models"
NAMES = {"lstm": "zaremba2014_small", "transformer": "shakespeare_small"}
WARM_UP = 10


class PlainLSTM(nn.Module):
    def __init__(self, vocabulary: int, width: int = 200, layers: int = 2) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)

    def forward(
        self, ids: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(self.embedding(ids), state)
        return self.output(y), state


class PlainLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.project(self.norm(x)).chunk(3, -1)
        )
        x = x + self.merge(
            F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2)
        )
        return x + self.contract(F.gelu(self.expand(self.second(x))))


class PlainTransformer(nn.Module):
    def __init__(
        self, vocabulary: int, width: int = 128, heads: int = 4, layers: int = 4, length: int = 64
    ) -> None:
        super().__init__()
        self.embedding, self.positions = (
            nn.Embedding(vocabulary, width),
            nn.Embedding(length, width),
        )
        self.layers, self.norm = (
            nn.Sequential(*(PlainLayer(width, heads) for _ in range(layers))),
            nn.LayerNorm(width),
        )
        self.output = nn.Linear(width, vocabulary)
        self.output.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def forward(self, ids: Tensor, state: None) -> tuple[Tensor, None]:
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        x = x + self.positions(torch.arange(ids.shape[1]))
        return self.output(self.norm(self.layers(x))), None


PLAIN: dict[str, Callable[[int], nn.Module]] = {"lstm": PlainLSTM, "transformer": PlainTransformer}


def batches(model: str, ids: Tensor, rows: int, window: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is read and what follows, (B, N) each: windows of streams side by side, or random
    windows.
    """
    if model == "lstm":
        streams = ids[: len(ids) // rows * rows].view(rows, -1)
        for at in range(0, streams.shape[1] - window - 1, window):
            yield streams[:, at : at + window], streams[:, at + 1 : at + window + 1]
    while True:
        starts = torch.randint(len(ids) - window - 1, (rows,)).tolist()
        read = torch.stack([ids[at : at + window] for at in starts])
        yield read, torch.stack([ids[at + 1 : at + window + 1] for at in starts])


def run_bare(config: Config, session: TrainingSetup) -> Measurement:
    """Train the plain model in a plain loop."""
    training, data = session.recipe.training, session.data.train
    window = training.window
    rows = training.tokens_per_batch // window
    model = PLAIN[config.model](session.data.tokenizers.sizes["target"]).train()
    chosen = training.optimizer
    if not isinstance(chosen, AdamW):
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), chosen.learning_rate)
        for weights in model.parameters():
            nn.init.uniform_(weights, -0.1, 0.1)
    else:
        betas = chosen.beta1, chosen.beta2
        optimizer = torch.optim.AdamW(
            model.parameters(), chosen.learning_rate, betas=betas, weight_decay=chosen.weight_decay
        )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    ids = torch.from_numpy(data.target.values[:1_000_000].astype("int64"))
    watch, memory, state, losses = (
        Stopwatch(config, torch.device("cpu")),
        PeakMemory(torch.device("cpu")),
        None,
        0.0,
    )
    for read, answer in batches(config.model, ids, rows, window):
        logits, state = model(read, state)
        state = None if state is None else tuple(part.detach() for part in state)
        loss = F.cross_entropy(logits.flatten(0, 1), answer.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip_norm)
        optimizer.step()
        schedule.step()
        losses += loss.item()
        watch.count({"tokens": answer.numel()})
        if watch.seconds:
            return Measurement(watch.speed, memory.peak())
    raise SystemExit("the data has fewer batches than steps")


def run_side(config: Config, side: str) -> Measurement:
    """Run one side from the beginning; ours never validates and writes nothing."""
    silence_lightning()
    keep_freed_memory()  # for both sides
    settings = [
        f"training.max_steps={config.warm_up + config.steps + 1}",
        "training.max_epochs=null",
        "training.validate_every=1000000",
        "trainer={accelerator: cpu, devices: 1, limit_val_batches: 0}",
    ]
    recipe = load(RECIPES / f"{NAMES[config.model]}.yaml", settings, config.data)
    with tempfile.TemporaryDirectory() as folder:
        source = DataSource(recipe, recipe.folders(config.data))
        session = setup(
            ClaimedRun(recipe, RunDir(Path(folder, "run"))), source, ProgressDisplay(quiet=True)
        )
        return run_ours(config, session) if side == "ours" else run_bare(config, session)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=[*NAMES], default=[*NAMES])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args(arguments)
    for model in options.models:
        config, ratios = Config(model, options.data, "cpu", options.steps, WARM_UP), []
        for number in range(options.rounds):
            speeds = {
                side: run_side(config, side).speed
                for side in ("ours", "by hand")[:: 1 if number % 2 else -1]
            }
            ratios.append(speeds["ours"] / speeds["by hand"])
            listed = "; ".join(
                f"{side} {speeds[side]:,.0f} tokens/s" for side in ("ours", "by hand")
            )
            print(f"{model} round {number + 1}: {listed}; ratio {ratios[-1]:.3f}", flush=True)
        spread = f"({min(ratios):.3f} to {max(ratios):.3f})"
        print(
            f"{model}: {statistics.median(ratios):.3f} {spread}, median of {options.rounds} rounds",
            flush=True,
        )


if __name__ == "__main__":
    main()

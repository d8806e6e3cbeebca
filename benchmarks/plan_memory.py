"""What `plan` says that a training takes of memory, beside what steps of it take on a CPU.

    OMP_NUM_THREADS=1 python -m benchmarks.plan_memory [--data DATA] [RECIPE ...]

Of each recipe the largest batch, with random tokens: that of its data if they are under DATA or are
generated, else one of pairs as long as `max_length` allows. In a process of its own, Lightning
makes two steps on it; in the second, the optimizer's memory is there. Measured is the peak of the
bytes that PyTorch's allocator hands out, from the building of the model on, by its profiler: those
of all tensors, and what its operations put aside. That is what `torch.cuda.max_memory_allocated`
counts on a GPU, it is the same in every run, and Python, data and the holes of malloc are not in
it. `process` is by how much the process has grown, at its peak, from before the model was built:
with these holes, what the profiler itself keeps of each operation, and oneDNN's compiled kernels.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset

from composer.data.largest_batch import BatchSize
from composer.model.encoder_decoder import EncoderDecoder, example_source
from composer.model.weights import initialize
from composer.recipe.recipe import Recipe, load
from composer.training.memory_estimate import MemoryEstimate
from composer.training.module import Batch, Seq2SeqModule
from composer.training.trainer import silence_lightning
from composer.training.training_plan import plan_training
from composer.training.trial_run import LARGEST_STEPS, TrialMeter, run_trial

RECIPES = Path(__file__).parent.parent / "recipes"
KINDS = {
    "multi30k/transformer": "attention",
    "multi30k/gru_attention": "GRU with attention",
    "multi30k/convolutional": "convolution",
    "active_memory/neural_gpu": "Neural GPU",
    "mixers/mamba": "Mamba",
    "mixers/gated_delta_net": "gated delta net",
    "mixers/jamba": "mixture of experts",
    "language_models/zaremba2014_medium": "LSTM, language model",
    "papers/graves2014_lstm": "Neural Turing Machine",
    "babi/dynamic_memory_network": "memory network",
    "pictures/scenes_xu": "pictures",
    "speech/strings_joint": "sound, CTC",
}
ON_CPU = "trainer.accelerator=cpu"


def random_batch(model: EncoderDecoder, size: BatchSize) -> Batch:
    """Return a batch of this size with random tokens and features, without padding."""
    readers = model.readers()
    sources = {}
    for key, length in size.sources.items():
        source = example_source(
            readers[key], torch.ones(size.rows, length, dtype=torch.long)
        ).contiguous()
        is_token = not source.is_floating_point()
        sources[key] = (
            source.random_(4, readers[key].embedding.num_embeddings)
            if is_token
            else source.uniform_()
        )
    target = torch.randint(4, model.vocabulary, (size.rows, size.target))
    has_stories = any(encoder.reads_story for encoder in readers.values())
    return {
        "sources": sources,
        "target_in": target,
        "target_out": target,
        "tokens": float(target.numel()),
        "part": 1.0,
        "facts": torch.zeros(size.rows, int(has_stories), dtype=torch.long),
        "graded": torch.ones(size.rows, dtype=torch.bool),
        "window": -1,
        "turn": 0,
    }


def measure_peak(recipe: Recipe, estimate: MemoryEstimate, vocabularies: dict[str, int]) -> int:
    """Return the peak bytes of two steps on batches of the estimated size."""
    meter = TrialMeter("cpu", steps=0)
    tokenizers: Any = SimpleNamespace(
        sizes=vocabularies, vocabulary=lambda side: [""] * vocabularies[side]
    )
    module = Seq2SeqModule(recipe.dump(), "", (recipe, tokenizers))
    initialize(module.model, recipe.training.initialization)
    batch = random_batch(module.model, estimate.batch)
    turns = [dict(batch, turn=turn) for turn in range(recipe.training.accumulate)]
    windows = range(LARGEST_STEPS)
    steps = [
        dict(one, window=at if recipe.carries_state else -1) for at in windows for one in turns
    ]
    loader: DataLoader[Any] = DataLoader(cast("Dataset[Any]", steps), batch_size=None)
    run_trial(module, loader, meter)
    return meter.peak_bytes


def compare(recipe: Recipe) -> dict[str, Any]:
    """Return the estimate of a recipe that trains on a CPU, and what was measured, in bytes."""
    planned = plan_training(recipe)
    estimate = planned.memory
    silence_lightning()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = measure_peak(recipe, estimate, dict(planned.vocabularies))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return {
        "batch": estimate.batch.describe(),
        "estimate": estimate.bytes,
        "peak": peak,
        "process": grown,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recipes",
        nargs="*",
        metavar="RECIPE",
        help="such as multi30k/transformer; by default twelve",
    )
    parser.add_argument("--data", type=Path, help="the folder with multi30k/, shakespeare/ ...")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(compare(load(RECIPES / f"{options.one}.yaml", [ON_CPU], options.data))))
        return
    print(
        "| recipe | kind | largest batch | estimate, MiB | measured, MiB | estimate / measured |"
        " process, MiB |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    data = ["--data", str(options.data)] if options.data else []
    for name in options.recipes or KINDS:
        command = [sys.executable, "-m", "benchmarks.plan_memory", "--one", name, *data]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        row = json.loads(output.splitlines()[-1])
        sizes = [f"{row[key] / 2**20:,.1f}" for key in ("estimate", "peak")]
        cells = [
            f"`{name}`",
            KINDS.get(name, ""),
            row["batch"],
            *sizes,
            f"{row['estimate'] / row['peak']:.2f}",
        ]
        print(f"| {' | '.join(cells)} | {row['process'] / 2**20:,.1f} |", flush=True)


if __name__ == "__main__":
    main()

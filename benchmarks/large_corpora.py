"""Train on texts that need not fit into memory: seconds to the first step, cold and from a warm
cache, and memory.

    python -m benchmarks.large_corpora --folder DIR --pairs 10000000

Generates the pairs, sentences of 8 to 24 words of a Zipf vocabulary of 2,000 with every other word
as the target, and trains on them for a few steps: pairs with filters, then the source alone as a
text. `anonymous` is the peak of the memory that no file backs (RssAnon), beside that of the same
recipe on 1,000 pairs. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml
from pytorch_lightning import Callback

from benchmarks.anonymous_memory import watch_memory

VOCABULARY, BLOCK, FEW, HELD_OUT = 2_000, 10_000, 1_000, 100
TOKENIZER = {"word": {"size": VOCABULARY, "split": "spaces"}}
STEPS = 20
BRIEF = {"max_steps": STEPS, "validate_every": STEPS}


def write_pairs(folder: Path, count: int) -> None:
    """Write `train.source` and `train.target`, unless they exist, and the validation text."""
    if (folder / "train.target").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    letters = random.choice(list("abcdefghijklmnopqrstuvwxyz"), (2 * VOCABULARY, 10))
    lengths = random.integers(3, 11, 2 * VOCABULARY)
    words = [
        *dict.fromkeys("".join(word[:size]) for word, size in zip(letters, lengths, strict=True))
    ][:VOCABULARY]
    shares = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    with (
        (folder / "train.source").open("w") as sources,
        (folder / "train.part").open("w") as targets,
    ):
        for at in range(0, count, BLOCK):
            sizes = random.integers(8, 25, min(BLOCK, count - at))
            ids = iter(np.searchsorted(shares, random.random(sizes.sum()) * shares[-1]).tolist())
            for size in sizes.tolist():
                sentence = [words[next(ids)] for _ in range(size)]
                sources.write(" ".join(sentence) + "\n")
                targets.write(" ".join(sentence[::2]) + "\n")
    (folder / "train.part").rename(folder / "train.target")


def head(folder: Path, count: int) -> Path:
    """Return a folder with the first pairs."""
    small = folder / "few"
    small.mkdir(exist_ok=True)
    for side in ("source", "target"):
        with (folder / f"train.{side}").open() as lines:
            (small / f"train.{side}").write_text(
                "".join(line for line, _ in zip(lines, range(count), strict=False))
            )
    return small


def write_recipes(folder: Path) -> None:
    """Write the recipes of pairs and of a text, with small models, beside the data."""
    parallel = {
        "train": {"source": "train.source", "target": "train.target"},
        "val": HELD_OUT,
        "test": HELD_OUT,
    }
    filters = {"max_ratio": 4.0, "deduplicate": True, "decontaminate": True}
    pairs = {
        "data": {"parallel": {**parallel, **filters}, "tokenizer": TOKENIZER},
        "model": {"width": 64, "encoder": ["rnn"], "decoder": ["rnn", "cross_attention"]},
        "training": {**BRIEF, "validation_sample": {"lines": 10}},
    }
    with (folder / "train.source").open() as lines:
        (folder / "val.txt").write_text(
            "".join(line for line, _ in zip(lines, range(HELD_OUT), strict=False))
        )
    text = {
        "data": {"text": {"train": "train.source", "val": "val.txt"}, "tokenizer": TOKENIZER},
        "model": {"width": 64, "decoder": [{"rnn": {"cell": "lstm"}}]},
        "training": {**BRIEF, "window": 35, "carry": True, "tokens_per_batch": 700},
    }
    for name, sections in (("pairs", pairs), ("text", text)):
        recipe = {"recipe": 1, "name": name, **sections, "logging": {"wandb": False}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))


class FirstStep(Callback):
    """Notes when the first step has been made."""

    def __init__(self) -> None:
        self.at = 0.0

    def on_train_batch_end(self, *_: object) -> None:
        """Note the time of the first."""
        self.at = self.at or time.time()


def train_here(recipe: Path, began: float) -> dict[str, float]:
    """Train a recipe in this process, which was started at `began`, and return what it took."""
    first = FirstStep()
    with watch_memory() as peak:
        import composer

        composer.train(composer.load(recipe), run=recipe.with_suffix(".run"), callbacks=[first])
    return {
        "first step, seconds": first.at - began,
        "anonymous, GB": peak.bytes / 1e9,
        "CPU seconds": time.process_time(),
    }


def measurements(folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Train each recipe on few pairs, on all with a cold cache, and with a warm one; yield what
    each took.
    """
    os.environ["SEQCOMPOSER_STORE"] = str(folder / "store")
    shutil.rmtree(folder / "store", ignore_errors=True)
    few = head(folder, FEW)
    for place in (few, folder):
        write_recipes(place)
    for name in ("pairs", "text"):
        for state, place in (("few", few), ("cold", folder), ("warm", folder)):
            shutil.rmtree(place / f"{name}.run", ignore_errors=True)
            command = [
                sys.executable,
                "-m",
                "benchmarks.large_corpora",
                "--train",
                str(place / f"{name}.yaml"),
            ]
            printed = subprocess.run(
                [*command, "--began", str(time.time())], capture_output=True, text=True, check=True
            )
            yield f"{name}, {state}", json.loads(printed.stdout.splitlines()[-1])


def main() -> None:
    """Measure, and print each as it comes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("large_corpora"))
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        print(json.dumps(train_here(arguments.train, arguments.began)))
        return
    write_pairs(arguments.folder, arguments.pairs)
    for name, measured in measurements(arguments.folder.absolute()):
        print(
            f"{name:12}",
            "  ".join(f"{key} {value:.1f}" for key, value in measured.items()),
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Train twelve kinds of models for a moment, export them, and compare `run.py` with this project.

    python -m verify.exported_runner [--kinds transformer ntm ...] [--lines 200] [--folder DIR]

Each is a recipe of this package, made small, on a generated task, or on sounds and pictures that
are made here. Printed are the lines whose best answers differ, the largest difference of this
project's own scores of both answers, and the seconds that both take. Exit status 1 if scores differ
by more than 1e-4, or a kind cannot be exported. A quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

import composer
from composer.data.audio import wav_file
from composer.data.sources import DataSource
from composer.errors import ComposerError
from composer.exporters.onnx_export import export_onnx
from composer.exporters.runner import Runner
from composer.inference.run import Run, open_run, translate_lines

RECIPES = Path(__file__).parents[1] / "recipes"
CLOSE = 1e-4
"""Difference of the scores of two answers that are equally good."""
SPLITS = {"val": 20, "test": 200}
REVERSE = {
    "generate": {"reverse": {"symbols": 10, "max_length": 12, "train": 4000, **SPLITS}},
    "tokenizer": {"word": {"split": "spaces", "joint": True}},
}
BITS = {
    "generate": {"vector_copy": {"bits": 4, "max_length": 8, "train": 4000, **SPLITS}},
    "tokenizer": {"bits": {"size": 4, "marks": []}},
}
TEXT = {
    "text": {"train": "train.txt", "test": "test.txt"},
    "tokenizer": {"word": {"split": "spaces"}},
}
RECALL = {"generate": {"multi_query_recall": {"keys": 8, "values": 8, "max_length": 6, **SPLITS}}}
SUM = {"generate": {"modular_sum": {"modulus": 3, "min_length": 3, "max_length": 20, **SPLITS}}}


def files(name: str, **column: object) -> dict[str, object]:
    """Return the data of files that are made here."""
    source = {"column": "file", **column}
    table = {"train": f"train-{name}", "test": f"test-{name}", "source": source, "target": "text"}
    return {"table": table, "tokenizer": "word"}


class Kind(NamedTuple):
    """A recipe whose model is taken, what makes it small, its data, and steps of training."""

    recipe: str
    overrides: Sequence[str]
    data: Mapping[str, object]
    steps: int = 150


KINDS = {
    "transformer": Kind("algorithms/transformer_reverse", ["model.width=64"], REVERSE),
    "conv_s2s": Kind(
        "papers/gehring2017", ["vars.hidden=48", "vars.layers=3", "model.width=48"], REVERSE
    ),
    "gru_attention": Kind("active_memory/gru_attention", ["model.width=64"], REVERSE),
    "lstm_language_model": Kind("language_models/zaremba2014_small", ["model.width=48"], TEXT),
    "mamba2": Kind(
        "mixers/multi30k_mamba2",
        ["vars.heads=2", "vars.mixers=1", "vars.hidden=64", "model.width=64"],
        REVERSE,
    ),
    "gated_deltanet": Kind("algorithms/gated_delta_net_recall", [], RECALL),
    "rwkv7": Kind("algorithms/rwkv7_modular_sum", [], SUM),
    "ntm": Kind(
        "papers/graves2014_feed_forward",
        ["model.ntm.slots=20", "model.ntm.slot_width=10"],
        BITS,
        60,
    ),
    "neural_stack": Kind("papers/grefenstette2015_stack", [], REVERSE, 60),
    "neural_gpu": Kind("algorithms/neural_gpu_reverse", [], REVERSE, 80),
    "las": Kind(
        "speech/strings_las",
        ["model.width=48"],
        files("sounds.tsv", kind="audio", rate=8000),
        80,
    ),
    "captions": Kind(
        "pictures/scenes_xu",
        ["model.width=48"],
        files("pictures.tsv", kind="image", size=[84, 84]),
        80,
    ),
}
WORDS = ["one", "two", "three", "four", "five", "six"]


class Row(NamedTuple):
    """What is printed of a kind."""

    lines: int
    differing: int
    difference: float
    native: float
    exported: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="where the runs stay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        make_data(folder)
        print("kind                 lines  differ  difference  native s  run.py s", flush=True)
        equal = [report(kind, folder, options.lines) for kind in options.kinds]
    sys.exit(0 if all(equal) else 1)


def report(kind: str, folder: Path, lines: int) -> bool:
    """Print how a kind compares; return whether its answers are as good."""
    try:
        row = compare(trained(kind, folder), folder / f"{kind}-onnx", folder, lines)
    except ComposerError as error:
        print(f"{kind:20} {str(error).splitlines()[0][:150]}", flush=True)
        return False
    times = f"{row.native:9.2f} {row.exported:9.2f}"
    numbers = f"{row.lines:5} {row.differing:7} {row.difference:11.1e} {times}"
    print(f"{kind:20} {numbers}", flush=True)
    return row.difference <= CLOSE


def trained(kind: str, folder: Path) -> Run:
    """Train a kind, unless its run is there."""
    run = folder / kind
    if not (run / "model.safetensors").exists():
        chosen, recipe = KINDS[kind], folder / f"{kind}.yaml"
        model = composer.load(RECIPES / f"{chosen.recipe}.yaml", chosen.overrides).canonical[
            "model"
        ]
        training = {"max_steps": chosen.steps, "optimizer": {"adam": {"learning_rate": 3e-3}}}
        parts = {
            "recipe": 1,
            "name": kind,
            "data": chosen.data,
            "model": model,
            "training": {**training, "tokens_per_batch": 400, "clip_norm": 1.0},
            "decoding": {"beam": {"size": 4}},
            "logging": {"wandb": False},
        }
        recipe.write_text(json.dumps(parts), encoding="utf-8")
        log = (folder / f"{kind}.log").open("w", encoding="utf-8")
        with log, redirect_stdout(log), redirect_stderr(log):
            composer.train(recipe, run, data=folder)
    return open_run(run)


def compare(run: Run, export: Path, folder: Path, count: int) -> Row:
    """Compare the best answers of both on the lines of the test set."""
    if not export.exists():
        export_onnx(run, export)
    runner = Runner(export)
    lines = test_lines(run, folder)[:count]
    begun = time.perf_counter()
    native = [row[0].text for row in translate_lines([run], lines, run.recipe.decoding)]
    middle = time.perf_counter()
    answers = [row[0].text for row in runner.translate(lines)]
    end = time.perf_counter()
    differing = [at for at, text in enumerate(native) if text != answers[at]]
    difference = 0.0
    if differing:
        ours = scores(run, lines, native, differing)
        theirs = scores(run, lines, answers, differing)
        difference = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    return Row(len(lines), len(differing), difference, middle - begun, end - middle)


def test_lines(run: Run, folder: Path) -> list[str]:
    """Return the sources of a run's test set; of a language model the beginnings of its texts."""
    pairs = DataSource(run.recipe, [folder]).pairs("test")
    if not run.recipe.sources:
        texts = [line for text in pairs.sides["target"] for line in text.splitlines()]
        return [" ".join(line.split()[: 1 + at % 4]) for at, line in enumerate(texts)]
    return [*pairs.sides["source"]]


def scores(run: Run, lines: list[str], answers: list[str], places: list[int]) -> list[float]:
    """Return this project's scores of answers."""
    texts = [answers[at] for at in places]
    if not run.recipe.sources:
        return [score.total for score in run.score(texts)]
    return [score.total for score in run.score([lines[at] for at in places], texts)]


# ---------------------------------------------------------------------------------- data of its own


def make_data(folder: Path) -> None:
    """Write a text, sounds of tones and pictures of squares, with words for each."""
    chance = random.Random(1)
    for split in ("train", "test"):
        text = []
        for _ in range(400):
            words = [WORDS[chance.randrange(6)]]
            while len(words) < 9:
                following = WORDS.index(words[-1]) + chance.choice([1, 1, 1, 2])
                words.append(WORDS[following % 6])
            text.append(" ".join(words))
        (folder / f"{split}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")
    (folder / "files").mkdir(exist_ok=True)
    for split in ("train", "test"):
        make_files(folder, split, chance)


def make_files(folder: Path, split: str, chance: random.Random) -> None:
    """Write tables of a split with 200 sounds and 200 pictures."""
    sounds, pictures = ["file\ttext"], ["file\ttext"]
    for number in range(200):
        places = [chance.randrange(6) for _ in range(1 + number % 4)]
        words = " ".join(WORDS[place] for place in places)
        tones = [np.sin(np.arange(1200) * (0.1 + 0.2 * place)) * 0.3 for place in places]
        file = folder / "files" / f"{split}{number}"
        noise = 0.01 * np.random.default_rng(number).normal(size=1200 * len(places))
        file.with_suffix(".wav").write_bytes(wav_file(np.concatenate(tones) + noise, 8000))
        pixels = np.zeros((84, 84), np.uint8)
        for at, place in enumerate(places):
            pixels[21 * at : 21 * at + 18, 14 * place : 14 * place + 12] = 255
        Image.fromarray(pixels).save(file.with_suffix(".png"))
        sounds.append(f"{file}.wav\t{words}")
        pictures.append(f"{file}.png\t{words}")
    for name, rows in (("sounds", sounds), ("pictures", pictures)):
        content = "\n".join(rows) + "\n"
        (folder / f"{split}-{name}.tsv").write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()

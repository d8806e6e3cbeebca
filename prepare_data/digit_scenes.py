"""Scenes of handwritten digits with captions, from the test images of MNIST: a folder of tables and
images.

    python -m prepare_data.digit_scenes --mnist DATA/mnist --folder DIR [--questions]
        [--train 20000] [--seed 1]

A scene is a grid of 3 x 3 cells of 28 pixels with one to three digits; its caption relates the
first of them, from left to right and from above, to the others: `a seven above a three, left of a
nine`. With --questions it has two or three digits, and in place of the caption a question and its
answer, a digit's name: `above and right of the seven`. The 10,000 images are split by image, 8,000
to 1,000 to 1,000: no digit of a test scene was ever in a training scene. All numbers on them are on
made data.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from itertools import permutations
from pathlib import Path

import numpy as np
from PIL import Image

from prepare_data.media_tables import write_examples

CELLS, PIXELS = 3, 28
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SPLITS = {"train": (0, 8_000), "val": (8_000, 9_000), "test": (9_000, 10_000)}
"""The images of each split, by number."""
MEASURED = 1_000
"""Scenes of val and of test."""


def read_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and labels of the test set: (10000, 28, 28) and (10000,) uint8"""
    with gzip.open(folder / "t10k-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, PIXELS, PIXELS)
    with gzip.open(folder / "t10k-labels-idx1-ubyte.gz") as file:
        return images, np.frombuffer(file.read(), np.uint8, offset=8)


def relate(one: int, two: int) -> str:
    """Return how a cell lies to another one, by their numbers row by row."""
    (row, column), (other_row, other_column) = divmod(one, CELLS), divmod(two, CELLS)
    across = "left of" if column < other_column else "right of" if column > other_column else ""
    down = "above" if row < other_row else "below" if row > other_row else ""
    return " and ".join(filter(None, (down, across)))


def caption(cells: list[int], digits: list[int]) -> str:
    """Return the caption of a scene: its cells in order, and the digit of each."""
    first, *others = zip(cells, digits, strict=True)
    parts = [f"{relate(first[0], cell)} a {NAMES[digit]}" for cell, digit in others]
    return f"a {NAMES[first[1]]}" + "".join(
        f"{',' if at else ''} {part}" for at, part in enumerate(parts)
    )


def question(cells: list[int], digits: list[int], random: np.random.Generator) -> tuple[str, ...]:
    """Return a question about a scene that one of its digits answers, and the answer; nothing where
    there is none.
    """
    pairs = permutations(zip(cells, digits, strict=True), 2)
    answers = [
        (f"{relate(one, two)} the {NAMES[named]}", NAMES[digit])
        for (one, digit), (two, named) in pairs
    ]
    times = Counter(relation for relation, _ in answers)
    fair = [pair for pair in answers if times[pair[0]] == 1]
    return fair[int(random.integers(len(fair)))] if fair else ()


def draw_scene(cells: list[int], digits: list[np.ndarray]) -> bytes:
    """Return the PNG of a scene: its cells, and the image of each."""
    scene = np.zeros((CELLS * PIXELS, CELLS * PIXELS), np.uint8)
    for cell, image in zip(cells, digits, strict=True):
        row, column = (PIXELS * part for part in divmod(cell, CELLS))
        scene[row : row + PIXELS, column : column + PIXELS] = image
    file = BytesIO()
    Image.fromarray(scene).save(file, "PNG")
    return file.getvalue()


def make_scenes(
    split: str, count: int, images: np.ndarray, labels: np.ndarray, seed: int, asks: bool
) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Yield scenes of a split: PNG, texts and cells, by which attention is judged."""
    low, high = SPLITS[split]
    random = np.random.default_rng([seed, low])
    while count:
        cells = sorted(
            random.choice(
                CELLS * CELLS, int(random.integers(2 if asks else 1, 4)), replace=False
            ).tolist()
        )
        chosen = random.integers(low, high, len(cells)).tolist()
        digits = labels[chosen].tolist()
        texts = question(cells, digits, random) if asks else (caption(cells, digits),)
        if texts:  # there are none of three equal digits in a row
            count -= 1
            yield draw_scene(cells, [*images[chosen]]), (*texts, json.dumps(cells))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--questions", action="store_true")
    parser.add_argument("--train", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    header = (
        ("image", "question", "answer", "cells")
        if options.questions
        else ("image", "caption", "cells")
    )
    images, labels = read_mnist(options.mnist)
    for split in SPLITS:
        count = options.train if split == "train" else MEASURED
        scenes = make_scenes(split, count, images, labels, options.seed, options.questions)
        write_examples(options.folder / f"{split}.tsv", header, "png", scenes)


if __name__ == "__main__":
    main()

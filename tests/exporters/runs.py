"""Untrained runs of every kind of source, and their exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from composer.data.audio import wav_file
from composer.data.encoding import load_data
from composer.data.media_files import SUFFIXES
from composer.exporters.onnx_export import export_onnx
from composer.exporters.runner import Runner
from composer.inference.run import Run, open_run
from composer.model.builder import build
from composer.model.weights import save_weights
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from tests.inference.test_story_runs import write_recipe
from tests.inference.untrained import WORDS, record_hashes
from tests.run_records import write_record

TABLE = """
recipe: 1
name: files
data:
  table: {train: table.tsv, source: COLUMN, target: text}
  tokenizer: char
model:
  width: 12
  encoder: ENCODER
  decoder: [{rnn: {cell: lstm}}, {residual: [{cross_attention: {heads: 1}}]}]
decoding: {beam: {size: 3, max_length: 12}}
"""
SOURCES = {
    "vectors": ("{column: file, kind: vectors, width: 5}", "[linear, {rnn: {cell: gru}}]"),
    "image": (
        "{column: file, kind: image, size: [9, 12], positions: columns}",
        "[{conv2d: {width: 4}}, {conv2d: {width: 4, activation: tanh}}, flatten]",
    ),
    "strides": (
        "{column: file, kind: image, size: [75, 12]}",
        "[{conv2d: {width: 4, stride: [30, 2]}}, flatten]",
    ),
    "audio": ("{column: file, kind: audio, rate: 8000}", "[pyramid, {rnn: {cell: gru}}]"),
}
"""The column and the encoder of each kind of file."""
SIZES = """
recipe: 1
name: sizes
data: {generate: {copy: {max_length: 8}}}
model:
  width: 8
  encoder:
  - grid: {columns: 3, max_length_ratio: 2}
  - repeat: {times: length, share: true, stack: [cgru]}
  - select_column: 0
  decoder: [source_state]
decoding: {beam: {size: 3}}
"""


def untrained(folder: Path, recipe: Path, gain: float = 4.0) -> Run:
    """A run of a recipe with random weights; its data lie beside the recipe."""
    loaded = load(recipe)
    tokenizers = load_data(loaded, [recipe.parent]).tokenizers
    folder.mkdir()
    (folder / "recipe.yaml").write_text(loaded.dump(), encoding="utf-8")
    tokenizers.save(folder / "tokenizer.json")
    torch.manual_seed(1)
    model = build(loaded, tokenizers.sizes)
    with torch.no_grad():
        model.output.weight.mul_(gain)
    save_weights(model, folder / "model.safetensors")
    data = {"folders": [str(recipe.parent)]}
    write_record(RunDir(folder), {"name": loaded.name, "status": "finished", "data": data})
    return open_run(record_hashes(folder))


def story_run(folder: Path) -> Run:
    return untrained(folder / "run", write_recipe(folder))


def file_run(folder: Path, kind: str) -> tuple[Run, list[str]]:
    """A run that reads files, and lines that name some."""
    random = np.random.default_rng(0)
    names = []
    for at in range(12):
        name = folder / f"{at}{SUFFIXES.get(kind, SUFFIXES['image'])[0]}"
        names.append(str(name))
        if kind == "vectors":
            np.save(name, random.normal(size=(1 + at, 5)))
        elif kind == "audio":
            samples = 0.3 * np.sin(np.arange(800 + 300 * at) * (0.05 + 0.02 * at))
            name.write_bytes(wav_file(samples + 0.01 * random.normal(size=len(samples)), 8000))
        else:
            height = 3 + (6 if kind == "strides" else 1) * at
            pixels = random.integers(0, 256, (height, 4 + at, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(name)
    rows = [f"{name}\t{WORDS[at % 10]}" for at, name in enumerate(names)]
    (folder / "table.tsv").write_text("\n".join(["file\ttext", *rows]) + "\n", encoding="utf-8")
    column, encoder = SOURCES[kind]
    recipe = folder / "files.yaml"
    recipe.write_text(TABLE.replace("COLUMN", column).replace("ENCODER", encoder), encoding="utf-8")
    return untrained(folder / "run", recipe), names


def size_run(folder: Path) -> Run:
    """A run whose answers may have several sizes."""
    (folder / "sizes.yaml").write_text(SIZES, encoding="utf-8")
    return untrained(folder / "run", folder / "sizes.yaml")


def exported(run: Run, folder: Path) -> Runner:
    return Runner(export_onnx(run, folder))

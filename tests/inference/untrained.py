"""Run folders with random weights: all that a training leaves, in no time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from composer.atomic_io import sha256_of_file
from composer.data.encoding import load_data
from composer.model.builder import build
from composer.model.weights import save_weights
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.runs.record import HASHED
from tests.run_records import change_record, write_record

GRU = """
encoder: [{rnn: {cell: gru, bidirectional: true}}]
decoder: [{rnn: {cell: gru}}, {residual: [{cross_attention: {heads: 2}}]}, norm]
"""
ATTENTION = """
encoder: [positions, {residual: [{self_attention: {heads: 2}}]}]
decoder:
- positions
- {residual: [{self_attention: {heads: 2}}]}
- {residual: [{cross_attention: {heads: 2}}]}
- norm
"""
LANGUAGE = """
decoder: [{rnn: {cell: gru}}]
"""
TWO = """
encoders: {left: [{rnn: {cell: gru}}], right: [{rnn: {cell: gru}}]}
decoder:
- cross_attention: {from: left}
- residual: [cross_attention: {from: right}]
- rnn: {cell: gru}
"""
SWAPPED = TWO.replace("{left: [{rnn: {cell: gru}}], right:", "{right: [{rnn: {cell: gru}}], left:")
"""The same with its encoders in the other order: a line has the text of `right` first."""
WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


def made(
    folder: Path,
    model: str = GRU,
    tokenizer: str = "word",
    seed: int = 0,
    like: Path | None = None,
    decoding: str = "{beam: {size: 3, max_length: 20}}",
    task: str = "",
) -> Path:
    """A run of a model with random weights, on text that lies beside it, or on a generated `task`.

    With the tokenizer of the run `like`.
    """
    data = folder.parent / "data"
    sides = ["left", "right"] if "encoders" in model else ["source"] if "encoder" in model else []
    splits = {
        split: text(data, split, size, sides) for split, size in (("train", 60), ("test", 12))
    }
    folder.mkdir(parents=True)
    inner = model.strip().replace("\n", "\n  ")
    parallel = "".join(f"\n    {split}: {{{', '.join(files)}}}" for split, files in splits.items())
    pairs = f"generate: {task}" if task else f"parallel:{parallel}"
    recipe = f"""recipe: 1
name: untrained
data:
  {pairs}
  tokenizer: {tokenizer}
model:
  width: 16
  {inner}
decoding: {decoding}
"""
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    return with_weights(folder, data, seed, like)


def with_weights(folder: Path, data: Path, seed: int = 0, like: Path | None = None) -> Path:
    """Make a run of the folder of a recipe: a tokenizer and random weights."""
    loaded = load(folder / "recipe.yaml")
    tokenizers = load_data(loaded, [data]).tokenizers
    if like:
        tokenizers = type(tokenizers).load(RunDir(like).tokenizer)
    tokenizers.save(folder / "tokenizer.json")
    torch.manual_seed(seed)
    built = build(loaded, tokenizers.sizes)
    with torch.no_grad():
        built.output.weight.mul_(4.0)
    save_weights(built, folder / "model.safetensors")
    write_record(
        RunDir(folder),
        {"name": "untrained", "status": "finished", "data": {"folders": [str(data)]}},
    )
    return record_hashes(folder)


def record_hashes(folder: Path) -> Path:
    """Let run.json say of the files of a run that its training wrote them as they are."""
    change_record(
        RunDir(folder), **{key: sha256_of_file(folder / name) for key, name in HASHED.items()}
    )
    return folder


def text(data: Path, split: str, lines: int, sides: Sequence[str]) -> list[str]:
    """Files of a split, and how the recipe names them."""
    data.mkdir(parents=True, exist_ok=True)
    files = []
    for place, side in enumerate([*sides, "target"]):
        name = f"{split}.{place}"
        rows = [
            " ".join(WORDS[(at * 7 + place + n) % 10] for n in range(1 + at % 14))
            for at in range(lines)
        ]
        (data / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
        files.append(f"{side}: {name}")
    return files

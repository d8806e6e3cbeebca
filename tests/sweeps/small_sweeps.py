"""Sweeps over one small recipe, written where a test wants them."""

from __future__ import annotations

from pathlib import Path

from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import Sweep

BASE = """recipe: 1
vars: {width: 8, heads: 2}
data:
  generate: {reverse: {symbols: 6, min_length: 2, max_length: 6, train: 90, val: 12, test: 8}}
  tokenizer: {char: {joint: true}}
model:
  width: ${width}
  encoder: [{residual: [{self_attention: {heads: "${heads}"}}]}, norm]
  decoder: [{residual: [{self_attention: {heads: "${heads}"}}]}, {cross_attention: {heads: 2, as: attended}}, norm]
training: {optimizer: {adam: {learning_rate: 0.5}}, max_steps: 4, seed: 7}
"""
HEAD = "sweep: 1\nbase: base.yaml\n"
ENCODER = (
    "  encoder: {replace: model.encoder..self_attention, with: {same: {self_attention: 2}, rnn:"
    " rnn, none: identity}}"
)


def write(folder: Path, axes: str, rest: str = "", head: str = HEAD) -> Path:
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    file = folder / "tried.yaml"
    file.write_text(f"{head}axes:\n{axes}\n{rest}\n", encoding="utf-8")
    return file


def sweep(folder: Path, axes: str, rest: str = "") -> Sweep:
    return read_sweep(write(folder, axes, rest))

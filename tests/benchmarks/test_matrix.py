"""The matrix of run folders: what a cell shows, and what the claims are computed from."""

from __future__ import annotations

import json
from pathlib import Path

import matrix
import pytest


def run(folder: Path, name: str, bleu: float | None = None, perplexity: float = 8.0) -> None:
    told = {"status": "running"}
    if bleu is not None:
        told = {"status": "finished", "scores": {"test/bleu": bleu, "test/perplexity": perplexity}}
    (folder / name).mkdir()
    (folder / name / "run.json").write_text(json.dumps(told), encoding="utf-8")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run(tmp_path, "self_attention_to_self_attention-1", 30.0, 7.0)
    run(tmp_path, "self_attention_to_self_attention-2", 32.0, 9.0)
    run(tmp_path, "rnn_to_self_attention-1", 25.0)
    run(tmp_path, "self_attention_to_rnn-2", 31.5, 123.4)
    run(tmp_path, "self_attention_to_rnn-1")
    run(tmp_path, "cnn_to_none-1")
    run(tmp_path, "cnn_to_cnn", 99.0)
    run(tmp_path, "self_attention_to_none-1-old", 99.0)
    return tmp_path


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_a_cell_shows_its_mean_and_its_seeds(runs):
    title, _, best, rnn, cnn = rows(matrix.table("test BLEU", matrix.read(runs), 1))
    assert title[1:] == ["self-attention", "RNN", "CNN", "none", "combined"]
    assert best == ["self-attention", "31.0 (30.0, 32.0)", "31.5 (half-run, 31.5)", "not run", "not run", "not run"]
    assert rnn == ["RNN", "25.0", *["not run"] * 4]
    assert cnn == ["CNN", "not run", "not run", "not run", "half-run", "not run"]
    assert rows(matrix.table("", matrix.read(runs), 2))[2][1:3] == ["8.00 (7.00, 9.00)", "123.4 (half-run, 123.4)"]


def test_claims_are_differences_of_means_beside_the_range_of_seeds(runs):
    told = matrix.claims(matrix.read(runs))
    assert "up to 2.0 BLEU of difference: the largest range within a cell, over 1 cell." in told
    assert "RNN to self-attention, less self-attention to self-attention: -6.0 BLEU (seeds: 1 and 2; beyond" in told
    assert "self-attention to RNN, less self-attention to self-attention: +0.5 BLEU (seeds: 1 and 2; within" in told
    assert "less its cost in the decoder: +6.5 BLEU (6.0 and -0.5, means over 1 of 2 blocks)" in told
    assert "self-attention to none, less self-attention to self-attention: not known" in told


def test_without_seeds_nothing_is_said_of_them(tmp_path):
    run(tmp_path, "self_attention_to_self_attention-1", 30.0)
    run(tmp_path, "cnn_to_cnn-1", 29.0)
    told = matrix.claims(matrix.read(tmp_path))
    assert told.startswith("No cell has two finished seeds")
    assert "CNN to CNN, less self-attention to self-attention: -1.0 BLEU (seeds: 1 and 1)" in told

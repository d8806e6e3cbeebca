"""Biases that balance experts change once a step, alike however a batch is dealt out; checkpoints
hold no counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from composer.run_dir import checkpoint_weights, list_checkpoints, read_metrics
from composer.training.train import train
from tests.training.test_kills import DDP, FSDP
from tests.training.tiny_recipes import TINY, Tiny

EXPERTS = (
    (
        "model.decoder=[rnn, cross_attention, {residual: [{mixture_of_experts: {stack: [linear],"
        " experts: 3, top_k: 1}}]}]"
    ),
    "model.dropout=0",
    "training.optimizer={sgd: {}}",  # Adam would make a step of a rounding
    "training.max_steps=4",
    "training.validate_every=2",
)


def biases(run: Path) -> list[Tensor]:
    """The biases in each checkpoint of a run, in steps; no counts stand beside them."""
    states = [checkpoint_weights(path) for path in list_checkpoints(run / "checkpoints")]
    assert all(
        not value.any()
        for state in states
        for name, value in state.items()
        if name.endswith(".counts")
    )
    return [value for state in states for name, value in state.items() if name.endswith(".moves")]


def losses(run: Path) -> list[float]:
    return [row["train/loss"] for row in read_metrics(run / "metrics.jsonl") if "train/loss" in row]


@pytest.mark.parametrize("packing", ["false", pytest.param("true", marks=pytest.mark.slow)])
def test_parts_of_a_step_change_the_biases_as_the_whole_does(
    packing: str, tiny: Tiny, tmp_path: Path
) -> None:
    """Where a batch has fewer rows than there are parts, some parts have none."""
    settings = (*EXPERTS, f"data.packing={packing}")
    train(tiny(*settings), tmp_path / "1")
    one_batch = biases(tmp_path / "1")
    assert all(0 < value.abs().max() <= step for step, value in zip((2, 4), one_batch, strict=True))
    for parts in (2, 3, 40):
        train(tiny(*settings, f"training.accumulate={parts}"), tmp_path / str(parts))
        assert torch.equal(torch.stack(one_batch), torch.stack(biases(tmp_path / str(parts))))
        assert losses(tmp_path / str(parts)) == pytest.approx(losses(tmp_path / "1"), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "packing"), [(DDP, "false"), (FSDP, "true")], ids=["ddp", "fsdp, packed"]
)
def test_two_devices_learn_as_one_does(
    trainer: str, packing: str, tiny: Tiny, tmp_path: Path
) -> None:
    """The same losses and biases; packed rows are dealt out like padded ones."""
    settings = (*EXPERTS, f"data.packing={packing}", "trainer.log_every_n_steps=1")
    train(tiny(*settings), tmp_path / "one")
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "composer.cli.main",
        "train",
        str(tmp_path / "tiny.yaml"),
        trainer,
        *settings,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--run", str(tmp_path / "two")], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.stack(biases(tmp_path / "two")), torch.stack(biases(tmp_path / "one")))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)

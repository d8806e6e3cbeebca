"""Where two processes share every parameter, they train as one does, and write what one would."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from composer.model.builder import build
from composer.recipe.recipe import Recipe
from composer.run_dir import read_metrics
from composer.training.optimizers import OPTIMIZERS
from composer.training.sharding import fsdp_units
from tests.training.test_kills import DDP, FSDP, KILLED, attempts, case
from tests.training.tiny_recipes import TINY, Tiny

HERE = Path(__file__).parent
# Adam would make a step of the noise in a gradient that is zero
SAME = (
    "training.optimizer={sgd: {momentum: 0.9}}",
    "model.dropout=0",
    "training.max_steps=6",
    "training.validate_every=2",
    "training.gradient_noise={scale: 0.01}",
)
ONE = "trainer={accelerator: cpu}"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]),
    "OMP_NUM_THREADS": "1",
}


def said(folder: Path) -> dict[str, Any]:
    """What two processes say that have the model whole as well as sharded."""
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    command = [sys.executable, str(HERE / "two_sharded.py")]
    both = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "tiny.yaml"), str(folder / "place")],
            env=ENVIRONMENT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        told, errors = both[0].communicate(timeout=300)
        assert both[0].returncode == 0, errors
    finally:
        for each in both:
            each.kill()
            each.communicate()
    read: dict[str, Any] = json.loads(told)
    return read


@pytest.mark.slow
def test_a_sharded_model_trains_saves_loads_and_copies_as_an_unsharded_one(tmp_path: Path) -> None:
    found = said(tmp_path)
    assert math.isclose(found["share"], 0.5, abs_tol=0.05)
    sharding = {name for name, kind in OPTIMIZERS.items() if kind.shards}
    assert found["optimizers"].keys() == sharding
    assert all(difference < 1e-6 for difference in found["ema"].values()), found["ema"]
    for name, told in found["optimizers"].items():
        assert told["moments apart"] < 1e-6, name
        # Muon orthogonalizes in bfloat16, and two processes round other sums
        assert told["weights apart"] < (2e-4 if name == "muon" else 1e-6), name
        assert told["weights lost"] == told["moments lost"] == 0.0, name
        assert told["groups are the same"], name
    assert found["copy"] == {
        "plain": True,
        "weights": 0.0,
        "draws nothing": True,
        "evaluates": True,
    }


@pytest.mark.slow
def test_two_sharded_processes_then_one_then_two_replicas_train_as_one_process(
    tmp_path: Path,
) -> None:
    """Of one training; each reads what those before it have written."""
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    one = case(tmp_path, "one", SAME)
    mixed = case(tmp_path, "mixed", SAME, [["step", 3], ["step", 3]]) | {
        "machines": [FSDP, ONE, DDP]
    }
    reference, resumed = attempts([one, mixed])
    assert reference["ended"] == [0], reference["output"]
    # of two processes the one that started them says that one was killed
    assert resumed["ended"] == [1, KILLED, 0], resumed["output"]
    sharded, single, two = resumed["output"]
    assert sharded.count("validation at step 2") == 1
    assert "view tensor" not in sharded
    assert "1 process in place of 2 processes: the batches are the same" in single
    assert "2 processes in place of 1 process: the batches are the same" in two
    expect_same(tmp_path / "one", tmp_path / "mixed")
    ours, theirs = global_batches(tmp_path / "one"), global_batches(tmp_path / "mixed")
    assert {at[1:] for at in ours} == {at[1:] for at in theirs}
    assert {at[0] for at in theirs} == {1, 2}
    for (_, *at), (numbers, loss) in theirs.items():
        assert numbers == ours[1, *at][0]
        assert loss == pytest.approx(ours[1, *at][1], rel=1e-4)


def global_batches(run: Path) -> dict[tuple[int, ...], tuple[list[int], float]]:
    """By number of processes, epoch and batch: the numbers of all rows, and the mean of the
    processes' losses.
    """
    parts: dict[tuple[int, ...], dict[int, Any]] = {}
    for line in Path(f"{run}.steps.jsonl").read_text().splitlines():
        told = json.loads(line)
        rank, *at = told["at"]
        parts.setdefault((told["world"], *at), {})[rank] = told
    return {at: (rows_of(each.values()), loss_of(each.values())) for at, each in parts.items()}


def rows_of(parts: Iterable[Any]) -> list[int]:
    return sorted(row for each in parts for row in each["rows"] if row >= 0)


def loss_of(parts: Iterable[Any]) -> float:
    return fmean(float.fromhex(each["loss"]) for each in parts)


def expect_same(one: Path, two: Path) -> None:
    """Two runs came to the same weights and the same metrics, but for rounding."""
    theirs = load_file(two / "model.safetensors")
    for name, value in load_file(one / "model.safetensors").items():
        torch.testing.assert_close(theirs[name], value, atol=1e-5, rtol=1e-4)
    rows, others = (read_metrics(folder / "metrics.jsonl") for folder in (one, two))
    for row, other in zip(rows, others, strict=True):
        for name in ("train/loss", "val/loss", "val/token_accuracy", "epoch"):
            assert row.get(name, 0) == pytest.approx(other.get(name, 0), rel=1e-4)


# ------------------------------------------------------------------------------------------- what
# is gathered as one


def paths(recipe: Recipe) -> list[str]:
    """Where the units of a recipe's model stand in it."""
    model = build(recipe, {"source": 11, "target": 11})
    names = {id(each): name for name, each in model.named_modules()}
    return [names[id(each)].removeprefix("encoders.source.stack.") for each in fsdp_units(model)]


def encoder(text: str) -> tuple[str, ...]:
    """The changes that give the recipe this encoder, and a decoder without parameters."""
    return f"model.encoder={text}", "model.decoder=[identity]"


def test_blocks_with_parameters_are_sharding_units_and_a_repetition_is_one(tiny: Tiny) -> None:
    assert paths(tiny(*encoder("[linear, dropout, {rnn: {cell: gru}}]"))) == [
        "blocks.0",
        "blocks.2",
    ]
    repeated = "[{repeat: {times: 2, stack: [linear, norm]}}]"
    assert paths(tiny(*encoder(repeated))) == ["blocks.0.stacks.0", "blocks.0.stacks.1"]


def test_a_loop_is_one_sharding_unit(tiny: Tiny) -> None:
    assert paths(tiny(*encoder("[{repeat: {times: 3, share: true, stack: [linear]}}]"))) == [
        "blocks.0"
    ]
    assert paths(tiny(*encoder("[{recurrent: {stack: [linear, norm]}}]"))) == ["blocks.0"]


def test_shared_or_named_blocks_are_not_sharding_units(tiny: Tiny) -> None:
    named = "[{residual: [{linear: {as: inside}}]}, linear, {add: {of: [inside]}}]"
    assert paths(tiny(*encoder(named))) == ["blocks.1"]
    assert paths(
        tiny("model.stacks={s: [linear]}", *encoder("[{use: s}, linear, {residual: [{use: s}]}]"))
    ) == ["blocks.1"]

"""What is opened is what a training wrote: damaged, exchanged and hostile files end in one error
that names them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from composer.api import translate
from composer.comparison.diff import diff
from composer.errors import ComposerError, RunError
from composer.hub.pack import pack
from composer.inference.run import open_run
from composer.recipe.recipe import load
from composer.run_dir import UNVERIFIED, RunDir, read_metrics
from composer.sweeps.leaderboard.board import open_leaderboard
from composer.viz.architecture import draw
from composer.viz.report import report
from tests.inference.untrained import record_hashes
from tests.run_records import change_record
from tests.sweeps.leaderboard_dirs import begun, trial


@pytest.fixture
def run(gru: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gru, tmp_path / "run"))


def flip(path: Path, at: int = -3) -> None:
    """Flip a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


OPENED: dict[str, Callable[[Path, Path], Any]] = {
    "open_run": lambda run, _: open_run(run),
    "an ensemble": lambda run, gru: translate([gru, run], ["eins"]),
    "report": lambda run, _: report(run),
    "diff": lambda run, gru: diff(gru, run, quick=True),
    "pack": lambda run, _: pack(run, run.parent / "packed"),
    "draw": lambda run, _: draw(run),
}


@pytest.mark.parametrize("how", OPENED)
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "recipe.yaml"])
def test_a_file_that_the_training_did_not_write_is_refused(
    name: str, how: str, run: Path, gru: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "model.safetensors":
        flip(run / name)
    else:  # as valid as it was
        (run / name).write_bytes((run / name).read_bytes() + b"\n")
    with pytest.raises(ComposerError, match="not the one that the training wrote") as raised:
        OPENED[how](run, gru)
    assert str(run / name) in raised.value.render()
    assert UNVERIFIED in raised.value.render()
    monkeypatch.setenv(UNVERIFIED, "1")
    if how != "pack" and (how, name) != ("an ensemble", "tokenizer.json"):
        OPENED[how](run, gru)


@pytest.mark.parametrize("key", ["weights_sha256", "tokenizer_sha256", "recipe_sha256"])
def test_a_run_json_without_a_hash_vouches_for_nothing(key: str, run: Path) -> None:
    change_record(RunDir(run), **{key: None})
    with pytest.raises(RunError, match=f"no SHA-256 of this file, `{key}`"):
        open_run(run)


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "device"])
@pytest.mark.parametrize("name", ["run.json", "model.safetensors", "tokenizer.json"])
def test_what_is_no_file_is_refused_at_once(
    name: str, kind: str, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (run / name).unlink()
    if kind == "fifo":
        os.mkfifo(run / name)
    elif kind == "folder":
        (run / name).mkdir()
    elif kind == "device":
        (run / name).symlink_to("/dev/zero")
    else:
        monkeypatch.chdir(run)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(name)
    for unverified in ("0", "1"):
        monkeypatch.setenv(UNVERIFIED, unverified)
        with pytest.raises(RunError, match="cannot be read"):
            open_run(run)


def safetensors(header: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 100_000) + b'{"a":' * 20_000,
        safetensors({"a": None}),
        safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
        safetensors({"a": {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, bytes(1)),
        safetensors({"a": {"dtype": "X\x1b[31m", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [8, 0]}}, bytes(8)),
        safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    ],
)
def test_weights_that_lie_are_one_error(content: bytes, run: Path) -> None:
    (run / "model.safetensors").write_bytes(content)
    record_hashes(run)
    with pytest.raises(RunError, match=r"weights cannot be read|weights do not fit") as raised:
        open_run(run)
    assert "\x1b" not in raised.value.render()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(value: float, run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    name = sorted(weights)[0]
    weights[name] = torch.full_like(weights[name], value)
    save_file(weights, run / "model.safetensors")
    record_hashes(run)
    with pytest.raises(RunError, match="not finite"):
        open_run(run)


def test_weights_of_another_type_are_refused(run: Path) -> None:
    weights = load_file(run / "model.safetensors")
    name = next(name for name, value in sorted(weights.items()) if value.dtype == torch.float32)
    save_file(weights | {name: weights[name].view(torch.int32)}, run / "model.safetensors")
    record_hashes(run)
    with pytest.raises(
        RunError, match=f"weights do not fit the model: {name} is .* of torch.int32 there"
    ):
        open_run(run)


def test_rows_of_metrics_that_lie_are_passed_over(tmp_path: Path) -> None:
    lines = [
        '{"step": ' * 100_000,
        '{"step": true}',
        '{"step": 1, "train/loss": "x"}',
        "7",
        '{"step": 2, "a": null}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 2, "a": None}]


def test_scores_that_are_not_finite_are_null_in_run_json(run: Path) -> None:
    scores = {"test/loss": float("nan"), "test/perplexity": float("inf"), "val/loss": 1.0}
    RunDir(run).write(replace(RunDir(run).read(), scores=scores))
    text = (run / "run.json").read_text(encoding="utf-8")
    record = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record["scores"] == {"test/loss": None, "test/perplexity": None, "val/loss": 1.0}
    assert open_run(run).run_dir.read().scores == record["scores"]


@pytest.mark.parametrize("name", ["trial.json", "sweep.json", "recipe.yaml"])
def test_a_fifo_in_a_sweep_is_refused_at_once(name: str, tmp_path: Path) -> None:
    sweep = begun(tmp_path / "sweep")
    home = trial(sweep, 1, [0.5])
    (tmp_path / "recipe.yaml").touch()
    file = {"trial.json": home, "sweep.json": sweep, "recipe.yaml": tmp_path}[name] / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ComposerError, match="cannot be read"):
        load(file) if name == "recipe.yaml" else open_leaderboard(sweep)


@pytest.mark.parametrize("name", ["trial.json", "sweep.json"])
def test_a_file_of_a_sweep_that_is_nested_too_deeply_is_refused(name: str, tmp_path: Path) -> None:
    sweep = begun(tmp_path / "sweep")
    folder = {"trial.json": trial(sweep, 1, [0.5]), "sweep.json": sweep}[name]
    (folder / name).write_text('{"name": ' * 100_000)
    words = {"trial.json": "recursion limit exceeded", "sweep.json": "nested too deeply"}[name]
    with pytest.raises(RunError, match=words):
        open_leaderboard(sweep)

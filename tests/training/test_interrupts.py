"""Signals, full disks, NaN losses and too little memory: the error and what the run directory has
afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import atomic_io, run_dir
from composer.errors import ComposerError, RunError, RunFailed
from composer.model.trained_parameters import TrainedParameters
from composer.run_dir import (
    RunDir,
    checkpoint_weights,
    is_intact,
    list_checkpoints,
    read_checkpoint,
)
from composer.training import checkpointing
from composer.training.module import Seq2SeqModule
from composer.training.optimizers import OPTIMIZERS
from composer.training.train import train
from tests.run_records import change_record
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

ROOT = Path(__file__).parents[2]
ENDLESS = ("training.max_steps=100000", "training.validate_every=50000")


def start(folder: Path, run: Path, *words: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "composer.cli.main",
        "train",
        str(folder / "recipes" / "tiny.yaml"),
        *words,
    ]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
    }
    return subprocess.Popen(
        [*command, "--run", str(run)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until_rows(process: subprocess.Popen[str], run: Path, rows: int) -> None:
    """Waits until a training has written so many rows."""
    for _ in range(3000):
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count(
            "\n"
        ) >= rows:
            return
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.1)
    process.kill()
    raise AssertionError("no rows")


def test_a_signal_leaves_a_checkpoint(tiny: Tiny, tmp_path: Path) -> None:
    tiny()
    run = tmp_path / "run"
    process = start(tmp_path, run, *ENDLESS)
    until_rows(process, run, 2)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 143, said
    assert "Traceback" not in said
    assert RunDir(run).read().status == "interrupted"
    (kept,) = list_checkpoints(run / "checkpoints")
    assert is_intact(kept)


def test_an_interrupted_training_resumes_bit_for_bit(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = undisturbed(tiny())
    real = Seq2SeqModule.training_step
    seen = []

    def at_the_sixth(self: Seq2SeqModule, *given: Any) -> Any:
        seen.append(0)
        if len(seen) == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *given)

    monkeypatch.setattr(Seq2SeqModule, "training_step", at_the_sixth)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "cut")
    assert [path.name for path in list_checkpoints(tmp_path / "cut" / "checkpoints")] == [
        "step-00000004.ckpt",
        "step-00000006.ckpt",
    ]
    train(tiny(), tmp_path / "cut", resume=True)
    assert same_weights(reference, tmp_path / "cut")


def test_a_loss_that_is_no_number_ends_the_run(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Seq2SeqModule.training_step
    seen = []

    def bad_from_the_sixth(self: Seq2SeqModule, *given: Any) -> Any:
        seen.append(0)
        return real(self, *given) * (float("nan") if len(seen) > 5 else 1.0)

    monkeypatch.setattr(Seq2SeqModule, "training_step", bad_from_the_sixth)
    with pytest.raises(RunFailed, match="loss is nan") as raised:
        train(tiny(), tmp_path / "run")
    assert raised.value.status == 1
    assert RunDir(tmp_path / "run").read().status == "failed"
    (kept,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert kept.name == "step-00000004.ckpt"
    assert all(value.isfinite().all() for value in checkpoint_weights(kept).values())


def test_a_gradient_that_is_infinite_spoils_no_checkpoint(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the very step after which a checkpoint is due, when the loss has not told yet, and nothing
    is validated.
    """
    (tmp_path / "a.txt").write_text("".join(f"{number}\n" for number in range(90)))
    data = (
        "data={parallel: {train: {source: a.txt, target: a.txt}}, tokenizer: {char: {joint: true}}}"
    )
    real = Seq2SeqModule.on_before_optimizer_step

    def bad_at_the_eighth(self: Seq2SeqModule, optimizer: torch.optim.Optimizer) -> None:
        real(self, optimizer)
        if self.global_step == 7:
            next(p for p in self.parameters() if p.grad is not None).grad.view(-1)[0] = float("inf")  # type: ignore[union-attr]

    monkeypatch.setattr(Seq2SeqModule, "on_before_optimizer_step", bad_at_the_eighth)
    with pytest.raises(RunFailed, match="NaN or infinite") as raised:
        train(tiny(data, "training.clip_norm=null"), tmp_path / "run", data=tmp_path)
    assert raised.value.status == 1
    assert RunDir(tmp_path / "run").read().status == "failed"
    kept = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert [path.name for path in kept] == ["step-00000004.ckpt"]


def test_the_out_of_memory_error_names_the_batch(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs_too_much(self: Seq2SeqModule, batch: Any, index: int) -> Any:
        self.last_batch = batch
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Seq2SeqModule, "training_step", needs_too_much)
    with pytest.raises(
        RunFailed, match=r"batch of source \d+ x \d+, target \d+ x \d+ .*`tokens_per_batch` 100"
    ):
        train(tiny(), tmp_path / "run")


def test_too_little_main_memory_is_an_error(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs_too_much(self: Seq2SeqModule, batch: Any, index: int) -> Any:
        self.last_batch = batch
        raise MemoryError

    monkeypatch.setattr(Seq2SeqModule, "training_step", needs_too_much)
    with pytest.raises(RunFailed, match="out of memory on a batch"):
        train(tiny(), tmp_path / "run")


def test_a_permission_error_has_its_own_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*arguments: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(RunError, match="permission denied") as raised:
        run_dir.locked(RunDir(tmp_path))
    assert "check its permissions" in raised.value.faults[0].hint
    with pytest.raises(RunError, match=r"cannot be read: permission denied\n") as raised:
        RunDir(tmp_path).read()
    assert "check its permissions" in raised.value.faults[0].hint


def test_a_full_disk_is_an_error_with_its_fix(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(self: checkpointing.HashingWriter, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpointing.HashingWriter, "write", is_full)
    with pytest.raises(RunFailed, match="no space left") as raised:
        train(tiny(), tmp_path / "run")
    (fault,) = raised.value.faults
    assert fault.file == str(tmp_path / "run" / "checkpoints" / "step-00000004.ckpt")
    assert "make room" in fault.hint
    assert os.listdir(tmp_path / "run" / "checkpoints") == []


def test_a_folder_that_cannot_be_created_is_an_error(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError):
        train(tiny(), tmp_path / "file" / "run")
    with pytest.raises(RunError, match="a file"):
        train(tiny(), tmp_path / "file")


def test_two_trainings_in_one_folder_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    with (
        run_dir.locked(RunDir(tmp_path / "run")),
        pytest.raises(RunError, match="another training"),
    ):
        train(tiny(), tmp_path / "run")


def test_a_look_at_the_lock_disturbs_nobody(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    run_dir.locked(folder).close()
    with (tmp_path / run_dir.LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as `is_locked` does for a moment
        assert run_dir.is_locked(folder) is False
        threading.Timer(
            atomic_io.PROBE_SECONDS / 4, lambda: fcntl.flock(file, fcntl.LOCK_UN)
        ).start()
        with run_dir.locked(folder):
            assert run_dir.is_locked(folder) is True


def test_a_forked_process_does_not_hold_the_lock_of_the_folder(tmp_path: Path) -> None:
    heard, says = os.pipe()
    with run_dir.locked(RunDir(tmp_path)):
        process = os.fork()
        if not process:
            os.write(says, b"here")
            time.sleep(60)
            os._exit(0)
    try:
        os.read(heard, 4)
        run_dir.locked(RunDir(tmp_path)).close()
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_partial_files_of_a_killed_training_are_removed(tiny: Tiny, tmp_path: Path) -> None:
    inner = tmp_path / "run" / "checkpoints"
    inner.parent.mkdir()
    drafts = [
        tmp_path / "run" / ".run.json.71.part",
        tmp_path / "run" / ".tokenizer.json.71",
        inner / ".step-1.71.part",
    ]
    for draft in drafts[:2]:
        draft.write_text("{")
    mine = tmp_path / "run" / ".gitignore"
    train(tiny("training.max_steps=2"), tmp_path / "run")  # the folder counts as empty
    assert not any(draft.exists() for draft in drafts)
    change_record(RunDir(tmp_path / "run"), status="interrupted")
    for path in (drafts[2], mine, inner / "step-00000001.ckpt.sha256"):
        path.write_text("half")
    train(tiny("training.max_steps=2"), tmp_path / "run", resume=True)
    assert {path.name for path in inner.iterdir()} == {
        "step-00000002.ckpt",
        "step-00000002.ckpt.sha256",
    }
    assert mine.exists()


def test_a_folder_on_a_read_only_disk_is_an_error(tiny: Tiny) -> None:
    """As /proc is, for whoever."""
    with pytest.raises(RunError, match="cannot be written"):
        train(tiny(), Path("/proc/run"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_states_are_plain_data(name: str, tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = OPTIMIZERS[name]().build(TrainedParameters([weight]))
    weight.grad = torch.ones(2, 3)
    optimizer.step()
    checkpointing.AtomicCheckpointIO().save_checkpoint(
        {"state": optimizer.state_dict()}, tmp_path / "a"
    )
    assert (
        read_checkpoint(tmp_path / "a")["state"]["param_groups"]
        == optimizer.state_dict()["param_groups"]
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ("{}", "has no `status`"),
        ('{"name": "\\ud800"}', "cannot be read"),
        ('{"canonical": ' + '{"a":' * 300 + "1" + "}" * 301, "cannot be read"),
        ('{"data": ' * 100_000, "nested too deeply"),
        (" " * (1 << 24) + "{}", "more than 16,777,216 bytes"),
        ({"fingerprints": {}}, "`fingerprints` is not what"),
        ({"data": None}, "`data` is not what"),
        ({"data": {"folders": {}}}, "`data` is not what"),
        ({"scores": {"test/bleu": "1"}}, "`scores` is not what"),
        ({"by_length": {"test": {}}}, "`by_length` is not what"),
        ({"checkpoints_used": {"how": "best"}}, "`checkpoints_used` is not what"),
    ],
)
def test_a_damaged_run_json_is_an_error(
    tiny: Tiny, tmp_path: Path, content: Any, told: str
) -> None:
    whole = {
        "status": "failed",
        "fingerprints": dict.fromkeys(("model", "data", "run", "recipe"), "0" * 64),
        "data": {},
        "tokenizer_sha256": "0" * 64,
        "vocabularies": {},
        "parameters": 1,
        "wandb_id": "",
    }
    (tmp_path / "run").mkdir()
    text = content if isinstance(content, str) else json.dumps(whole | content)
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(RunError, match=told) as raised:
        train(tiny(), tmp_path / "run", resume=True)
    assert raised.value.faults[0].hint


def test_a_checkpoint_without_weights_and_a_lock_that_is_a_fifo_are_refused(tmp_path: Path) -> None:
    checkpointing.AtomicCheckpointIO().save_checkpoint({"step": 1}, tmp_path / "a")
    with pytest.raises(RunError, match="it has no `state_dict`"):
        checkpoint_weights(tmp_path / "a")
    os.mkfifo(tmp_path / run_dir.LOCK)
    with pytest.raises(RunError, match="cannot be written"):
        run_dir.locked(RunDir(tmp_path))


def test_a_refused_recipe_writes_nothing(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ComposerError):
        train(tiny("model.width=9"), tmp_path / "run")
    with pytest.raises(RunError):
        train(tiny(), tmp_path / "run", start_from=tmp_path / "nothing")
    assert not (tmp_path / "run").exists()


def test_a_signal_received_during_an_import_is_not_lost(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.training.distributed.EARLY_SIGNALS", [signal.SIGTERM])
    with pytest.raises(SystemExit) as raised:
        train(tiny(*ENDLESS), tmp_path / "run")
    assert raised.value.code == 143
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1


def test_weights_that_were_changed_are_neither_resumed_nor_started_from(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    first = Path(shutil.copytree(undisturbed(tiny()), tmp_path / "first"))
    weights = bytearray((first / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (first / "model.safetensors").write_bytes(weights)
    with pytest.raises(RunError, match="not the one that the training wrote"):
        train(tiny(), first, resume=True)
    with pytest.raises(RunError, match="not the one that the training wrote"):
        train(tiny(), tmp_path / "second", start_from=first)
    (first / "tokenizer.json").write_text("{")
    with pytest.raises(RunError, match="not the one that the training wrote"):
        train(tiny(), tmp_path / "second", start_from=first)
    assert not (tmp_path / "second").exists()


def test_weights_of_a_run_without_a_tokenizer_of_its_own_are_verified(
    tiny: Tiny, tmp_path: Path
) -> None:
    numbers = (
        "data={generate: {ram_copy: {train: 20, val: 3, test: 3}}, tokenizer: {integers: {below:"
        " 64}}}"
    )
    recipe = tiny(numbers, "model.output={}", "training.max_steps=2", "training.validate_every=2")
    first = train(recipe, tmp_path / "first").run_dir
    (first / "model.safetensors").write_bytes(
        (first / "model.safetensors").read_bytes()[:-1] + b"x"
    )
    with pytest.raises(RunError, match="not the one that the training wrote"):
        train(recipe, tmp_path / "second", start_from=first)

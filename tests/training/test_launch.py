"""torchrun, SLURM, processes that die, hang or are told to end: all of them end, or go on as if
nothing had been.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from composer.errors import Edit, Fault, RecipeError, RunError, RunFailed
from composer.processes.signals import interrupt, terminate
from composer.recipe.recipe import load
from composer.run_dir import RunDir, is_intact, list_checkpoints
from composer.training import claim, datamodule, devices, distributed, finalize, launch
from composer.training.devices import resolve_devices
from composer.training.lightning import Callback
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.training.launcher_stubs import (
    CPU,
    LAUNCH,
    SHORT,
    SRUN,
    TWO,
    environment,
    group,
    start,
    stubs,
)
from tests.training.tiny_recipes import TINY, Tiny, Undisturbed, same_weights

LIMIT = 300
DATA_ERROR = "there.txt:3:1: error[data]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("launch")
    (result / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return result


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have been launched."""
    for name in (
        "RANK",
        "LOCAL_RANK",
        "NODE_RANK",
        "TORCHELASTIC_RUN_ID",
        "SLURM_STEP_ID",
        "SLURM_PROCID",
    ):
        monkeypatch.delenv(name, raising=False)


def test_a_notebook_has_one_device(
    tiny: Tiny, plain: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.sys, "ps1", ">>> ", raising=False)
    with pytest.raises(RecipeError, match="what a notebook or a console defines"):
        resolve_devices(tiny("trainer.devices=2"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    machine = resolve_devices(tiny("trainer.accelerator=gpu"))
    assert (machine.devices, machine.strategy) == (1, "auto")


# -------------------------------------------------------------------------------------------
# several machines


@pytest.fixture(scope="module")
def run_on_two_machines(folder: Path) -> Path:
    """Return an uninterrupted run of two processes, each on its own machine."""
    environment = stubs(folder / "machines") | {
        "MACHINES": "2",
        "PROCESSES": "1",
        "ADDRESS": "127.0.0.1",
    }
    environment["HEAD"] = f"127.0.0.1:{distributed.LightningEnvironment().main_port}"
    run = folder / "two_machines"
    words = [str(LAUNCH / "torchrun.sh"), str(folder / "tiny.yaml"), str(run), *SHORT, CPU]
    machines = [
        subprocess.Popen(words, env=environment, text=True, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    outputs = [machine.communicate(timeout=LIMIT)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0]
    assert "".join(outputs).count("evaluating on the test split") == 1
    return run


@pytest.mark.slow
def test_torchrun_restarts_all_processes_after_a_kill(
    folder: Path, run_on_two_machines: Path
) -> None:
    environment = stubs(folder / "restarted") | {"PROCESSES": "2", "FAULT": "SIGKILL:1:7"}
    run = folder / "restarted_run"
    words = [str(LAUNCH / "torchrun.sh"), str(folder / "tiny.yaml"), str(run), *SHORT, CPU]
    done = subprocess.run(words, env=environment, text=True, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert Path(environment["FAULT_ONCE"]).exists()
    assert f"resuming from {run}/checkpoints/step-00000004.ckpt" in done.stdout
    assert same_weights(run, run_on_two_machines)


@pytest.mark.slow
def test_a_job_that_gets_sigterm_resumes_in_the_next_job(
    folder: Path, run_on_two_machines: Path
) -> None:
    log = folder / "requeued"
    environment = stubs(
        folder / "slurm",
        srun=SRUN,
        squeue="#!/bin/sh\necho RUNNING\n",
        scontrol=f'#!/bin/sh\necho "$@" >> {log}\n',
    )
    environment |= {"SLURM_JOB_ID": "77", "FAULT": "SIGTERM:0:3"}
    run = folder / "slurm_run"
    words = [str(LAUNCH / "slurm.sh"), str(folder / "tiny.yaml"), str(run), *SHORT, CPU]
    first = subprocess.run(words, env=environment, text=True, capture_output=True, timeout=LIMIT)
    assert first.returncode == 143, first.stderr
    assert log.read_text() == "requeue 77\n"
    assert RunDir(run).read().status == "interrupted"
    assert all(is_intact(path) for path in list_checkpoints(run / "checkpoints"))
    second = subprocess.run(words, env=environment, text=True, capture_output=True, timeout=LIMIT)
    assert (second.returncode, second.stderr) == (0, "")
    assert log.read_text() == "requeue 77\n"
    assert not list(run.rglob("hpc_ckpt*"))
    assert same_weights(run, run_on_two_machines)


@pytest.mark.parametrize("name", ["torchrun.sh", "slurm.sh"])
def test_a_launch_script_prints_its_usage(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(LAUNCH / name), "recipe.yaml"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "usage")
    words = [str(LAUNCH / "torchrun.sh"), "recipe.yaml", str(tmp_path / "run")]
    done = subprocess.run(
        words, env=os.environ | {"MACHINES": "2"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "HEAD=HOST:PORT" in done.stderr


# ------------------------------------------------------------------------------------------- a
# process that is lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "minutes", "status", "message", "hint"),
    [
        ("SIGSTOP:1:6", 0.5, 1, "another process does not answer", "`trainer.timeout_minutes`"),
        ("data:1:6", 2, 2, f"{DATA_ERROR}: process 1: this file has another", "look at it"),
        ("data:1:0", 2, 2, f"{DATA_ERROR}: process 1: this file has another", "look at it"),
        ("SIGKILL:0:6", 2, 1, "process 0 was ended by SIGKILL", "`--resume`"),
        ("bug:1:6", 2, 1, "process 1: ValueError: nobody has thought of this", "`--resume`"),
        ("network:1:6", 2, 1, "gloo: unable to resolve", "`--resume`"),
        ("exit:0:6", 2, 1, "something in the training has called exit", ""),
    ],
)
def test_all_processes_end_if_one_is_lost(
    folder: Path, tmp_path: Path, fault: str, minutes: float, status: int, message: str, hint: str
) -> None:
    two = f"trainer={{accelerator: cpu, devices: 2, strategy: ddp, timeout_minutes: {minutes}}}"
    run = tmp_path / "run"
    command = start(
        tmp_path, ["train", str(folder / "tiny.yaml"), *SHORT, two, "--run", str(run)], fault
    )
    _, said = command.communicate(timeout=LIMIT)
    assert command.returncode == status, said
    until = time.monotonic() + 10.0  # Python's tracker of semaphores ends a moment later
    while group(command.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert group(command.pid) == []
    assert message in said
    assert hint in said
    assert said.count("error[") == 1
    assert said.count("Traceback") == (1 if fault.startswith("bug") else 0)
    # a process that was killed writes nothing, and one that waits for a peer ends with it
    ends_early = fault.endswith(":0") or fault.startswith("SIGKILL:0")
    expected = "running" if ends_early else "failed"
    assert RunDir(run).read().status == ("interrupted" if fault.startswith("exit") else expected)


def test_errors_of_the_communication_library_are_peer_errors() -> None:
    broken = RuntimeError(
        "[/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"
    )
    for error in (
        broken,
        distributed.distributed.DistBackendError("NCCL error"),
        distributed.distributed.DistStoreError("x"),
    ):
        assert distributed.is_peer_error(error)
    for error in (
        RuntimeError("shapes"),
        OSError("gloo"),
        distributed.torch.OutOfMemoryError("NCCL"),
        RunFailed.of("gloo"),
    ):
        assert not distributed.is_peer_error(error)


def test_a_rank_reports_its_error_whole(tmp_path: Path) -> None:
    edit = Edit("a.yaml", "model.width", (3, 5), (3, 7), "64")
    fault = Fault("a.yaml", 3, 5, "value", "model.width", "is odd", "write 64", "width: 63", 2)
    error = RecipeError([replace(fault, edit=edit)])
    faults = [asdict(fault) for fault in error.faults]
    text = json.dumps({"kind": "RecipeError", "faults": faults})
    same, other = launch.read_error(text, 0), launch.read_error(text, 1)
    assert type(same) is RecipeError
    assert same.render() == error.render()
    assert same.faults[0].edit == edit
    assert other.faults[0].message == "process 1: is odd"


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [True, False])
def test_a_script_trains_on_two_devices_below_a_guard(
    folder: Path, tmp_path: Path, guarded: bool
) -> None:
    guard = 'if __name__ == "__main__":\n    ' if guarded else ""
    words = ["training.max_steps=2", TWO]
    train_it = f"run = composer.train({str(folder / 'tiny.yaml')!r}, 'run', overrides={words!r})"
    script = f"import composer\n{guard}{train_it}; print('trained', run.record.status)\n"
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if guarded:
        assert done.stdout.count("trained finished") == 1, done.stderr
    else:
        assert 'call `train` below `if __name__ == "__main__":`' in done.stderr
        assert done.stderr.count("Traceback") == 1
        assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("plain")
def test_what_cannot_be_sent_to_a_rank_is_an_error(tiny: Tiny, tmp_path: Path) -> None:
    class Local(Callback):
        """A callback that no other process can import."""

    with pytest.raises(RunError, match="callbacks and loggers are sent to other processes"):
        train(tiny(TWO), tmp_path / "run", callbacks=[Local()])
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("plain")
def test_several_machines_need_a_launcher(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"torchrun\.sh"):
        train(tiny("trainer={accelerator: cpu, num_nodes: 2}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------------
# signals


@pytest.mark.slow
def test_a_signal_during_the_final_evaluation_leaves_it_to_the_resumed_run(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = undisturbed(tiny())
    real = finalize.evaluate_pairs
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        monkeypatch.setattr(
            finalize, "evaluate_pairs", lambda *given: os.kill(os.getpid(), signal.SIGTERM)
        )
        with pytest.raises(SystemExit) as left:
            train(tiny(), tmp_path / "cut")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 143
    assert RunDir(tmp_path / "cut").read().status == "interrupted"
    monkeypatch.setattr(finalize, "evaluate_pairs", real)
    done = train(tiny(), tmp_path / "cut", resume=True)
    assert done.record.status == "finished"
    assert same_weights(reference, tmp_path / "cut")
    assert done.scores == pytest.approx(dict(RunDir(reference).read().scores))


def test_a_signal_while_the_data_are_read_ends_at_once(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        monkeypatch.setattr(
            datamodule, "encode_data", lambda *given: os.kill(os.getpid(), signal.SIGTERM)
        )
        with pytest.raises(SystemExit) as left:
            train(tiny(), tmp_path / "run")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 143
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_at_once(
    tiny: Tiny,
    tmp_path: Path,
    undisturbed: Undisturbed,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    status: int,
) -> None:
    real = Seq2SeqModule.training_step

    def twice(self: Seq2SeqModule, *given: Any) -> Any:
        if self.trainer.global_step == 5:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            raise AssertionError("it goes on")
        return real(self, *given)

    before = {item: signal.getsignal(item) for item in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(Seq2SeqModule, "training_step", twice)
    monkeypatch.setattr(distributed, "SAME_SIGNAL_SECONDS", -1.0)
    with pytest.raises(SystemExit) as left:
        train(tiny(), tmp_path / "run")
    assert left.value.code == status
    assert {item: signal.getsignal(item) for item in before} == before
    assert RunDir(tmp_path / "run").read().status == "interrupted"
    monkeypatch.setattr(Seq2SeqModule, "training_step", real)
    train(tiny(), tmp_path / "run", resume=True)
    assert same_weights(undisturbed(tiny()), tmp_path / "run")


def test_a_rank_is_interrupted_once() -> None:
    """A second SIGINT, the launcher's beside the terminal's, must not end what the first began."""
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_two_send_at_once_counts_once() -> None:
    """A terminal and a launcher do: the process writes its checkpoint."""
    handler = distributed.SignalHandler()
    try:
        handler.listen()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert handler.received == signal.SIGINT
    finally:
        handler.restore()


def test_a_signal_during_a_validation_waits_for_its_checkpoint(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Seq2SeqModule.validation_step

    def told(self: Seq2SeqModule, *given: Any) -> Any:
        if self.trainer.global_step == 4 and not self.trainer.callbacks[0].signals.received:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(self, *given)

    monkeypatch.setattr(Seq2SeqModule, "validation_step", told)
    with pytest.raises(SystemExit) as left:
        train(tiny(), tmp_path / "run")
    assert left.value.code == 143
    (kept,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert kept.name == "step-00000004.ckpt"
    assert is_intact(kept)


# ------------------------------------------------------------------------------------------- who
# starts what


def told(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("plain")
def test_a_process_that_torchrun_ends_does_not_blame_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torchrun signals a process with its data workers; whoever runs out of memory is killed."""

    def explain(end: str) -> str:
        return str(
            distributed.explain_worker_death(
                RuntimeError(f"DataLoader worker (pid(s) 1, 2) {end}. ")
            )
        )

    assert "more memory" in explain("is killed by signal: Killed")
    assert "`training.workers` exited unexpectedly" in explain("exited unexpectedly")
    assert "ended from outside (SIGTERM)" in explain("is killed by signal: Terminated")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert "ended by its launcher, as all are where one has ended (SIGTERM)" in explain(
        "is killed by signal: Terminated"
    )
    assert "memory" not in explain("is killed by signal: Terminated")
    handler = distributed.SignalHandler()
    try:
        handler.listen()
        signal.raise_signal(signal.SIGTERM)
        assert "ended by its launcher" in explain("exited unexpectedly")
    finally:
        handler.restore()


def test_torchrun_sets_the_number_of_processes(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    told(
        monkeypatch,
        TORCHELASTIC_RUN_ID="a",
        LOCAL_WORLD_SIZE="2",
        WORLD_SIZE="6",
        RANK="3",
        LOCAL_RANK="1",
    )
    assert (
        distributed.external_launcher(),
        distributed.launched_world(),
        distributed.is_main_process(),
    ) == (
        "torchrun",
        (2, 3),
        False,
    )
    result = resolve_devices(tiny("trainer={accelerator: cpu}"))
    assert (result.devices, result.num_nodes, result.strategy) == (2, 3, "ddp")
    sharded = tiny("trainer={accelerator: cpu, devices: 2, num_nodes: 3, strategy: fsdp}")
    assert resolve_devices(sharded).strategy == "fsdp"
    with pytest.raises(
        RecipeError, match="torchrun has started 2 processes on each machine, and `devices` is 4"
    ):
        resolve_devices(tiny("trainer={accelerator: cpu, devices: 4}"))
    with pytest.raises(RecipeError, match="torchrun has started 3 machines, and `num_nodes` is 2"):
        resolve_devices(tiny("trainer={accelerator: cpu, num_nodes: 2}"))
    with pytest.raises(RecipeError, match=r"and `devices` is \[0, 1, 2\]"):
        resolve_devices(tiny("trainer={accelerator: gpu, devices: [0, 1, 2]}"))


@pytest.mark.usefixtures("plain")
def test_slurm_sets_the_number_of_processes(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    told(
        monkeypatch,
        SLURM_NTASKS="8",
        SLURM_NNODES="2",
        SLURM_PROCID="0",
        SLURM_JOB_NAME="train",
        SLURM_LOCALID="0",
    )
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    assert distributed.external_launcher() == ""  # inside an allocation, without srun
    assert resolve_devices(tiny("trainer={accelerator: cpu}")).devices == 1
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert (
        distributed.external_launcher(),
        distributed.launched_world(),
        distributed.is_main_process(),
    ) == (
        "srun",
        (4, 2),
        True,
    )
    assert resolve_devices(tiny("trainer={accelerator: cpu}")).devices == 4
    result = distributed.cluster_environment()
    assert isinstance(result, distributed.SLURMEnvironment)
    assert not result.auto_requeue
    monkeypatch.setenv("SLURM_JOB_NAME", "bash")
    assert distributed.external_launcher() == ""


@pytest.mark.usefixtures("plain")
def test_several_devices_use_ddp_by_default(tiny: Tiny) -> None:
    def strategy(trainer: str) -> str:
        return resolve_devices(tiny(f"trainer={trainer}")).strategy

    assert strategy("{accelerator: cpu}") == "auto"
    assert strategy("{accelerator: cpu, devices: 2}") == "ddp"
    assert strategy("{accelerator: cpu, num_nodes: 2}") == "ddp"
    assert strategy("{accelerator: gpu, devices: [0, 3]}") == "ddp"
    assert strategy("{accelerator: gpu, devices: [3]}") == "auto"
    assert strategy("{accelerator: cpu, devices: 2, strategy: fsdp}") == "fsdp"
    assert strategy("{accelerator: mps, devices: 1}") == "auto"


WRONG_SETTINGS = [
    ("{devices: 0}", "bound", "`0` is too small", 20),
    ("{devices: []}", "value", "`devices` is an empty list", 11),
    ("{devices: [1, 1]}", "duplicate", "`1` is listed twice", 24),
    ("{accelerator: cpu, devices: [0, 1]}", "value", "CPUs have no numbers", 29),
    ("{devices: two}", "value", "`two` is not", 20),
    ("{devices: true}", "type", "`true` is a boolean", 20),
    ("{devices: 2.0}", "type", "`2.0` is not a whole number", 20),
    ("{accelerator: gpoo}", "value", "`gpoo` is not", 24),
    ("{accelerator: mps, strategy: ddp}", "conflict", "has one device", 39),
    ("{strategy: deepspeed}", "value", "`deepspeed` is not", 21),
    ("{num_nodes: 0}", "bound", "`0` is too small", 22),
    ("{timeout_minutes: 0}", "bound", "`0` is too small", 28),
    ("{timeout_minutes: soon}", "type", "`soon` is text", 28),
    ("{plugins: [x]}", "unknown", "`plugins`", 11),
    ("{deterministic: perhaps}", "value", "`perhaps` is not", 26),
]


@pytest.mark.parametrize(
    ("written", "code", "message", "column"), WRONG_SETTINGS, ids=[lie[0] for lie in WRONG_SETTINGS]
)
def test_devices_and_machines_are_checked(
    tmp_path: Path, written: str, code: str, message: str, column: int
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY + f"trainer: {written}\n", encoding="utf-8")
    with pytest.raises(RecipeError) as raised:
        load(file)
    (fault,) = raised.value.faults
    assert (fault.code, fault.line, fault.column) == (code, TINY.count("\n") + 1, column)
    assert message in fault.message
    assert fault.hint


def test_a_folder_that_is_not_shared_is_an_error(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "TOKENIZER_SECONDS", 0.0)
    with pytest.raises(RunError, match="share"):
        claim.wait_for_record(RunDir(tmp_path / "elsewhere"))

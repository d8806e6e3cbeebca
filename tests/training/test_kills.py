"""SIGKILL at every point of a training, with data workers and with two processes: it ends as if
nothing had been.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from composer.atomic_io import is_temporary
from composer.errors import RunFailed
from composer.run_dir import RunDir, is_intact, list_checkpoints, read_metrics
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.training.tiny_recipes import TINY, Tiny, Undisturbed, same_weights

KILLED = -9
OFTEN = (
    "training.validate_every=2",
    "training.average_checkpoints=2",
    "data.generate.reverse.test=3",
)
DDP, FSDP = (
    f"trainer={{accelerator: cpu, devices: 2, strategy: {name}}}" for name in ("ddp", "fsdp")
)
UNVALIDATED = (
    "data={parallel: {train: {source: a.txt, target: a.txt}}, tokenizer: {char: {joint: true}}}"
)
EVERYWHERE = [
    # what a run folder holds from its first moment
    ["before run.json", 1],
    ["after run.json", 1],
    ["before recipe.yaml", 1],
    ["after recipe.yaml", 1],
    ["before tokenizer.json", 1],
    ["after tokenizer.json", 1],
    # in an epoch, and while a checkpoint is made; an epoch ends with step 9
    ["step", 1],
    ["update", 2],
    ["bytes", 30],
    ["digest", 1],
    ["after step-00000002.ckpt", 1],
    ["step", 1],
    ["validation", 1],
    ["decoding", 1],
    ["row", 1],
    ["row", 2],
    ["kept", 1],
    ["before metrics.jsonl", 1],
    ["removing", 1],
    ["step", 3],
    ["step", 4],
    # at the very end
    ["kept", 1],
    ["after model.safetensors", 1],
    ["measuring", 1],
    ["measured", 1],
    ["before run.json", 2],
]
ON_ANOTHER_DISK = Path("/dev/shm")


def attempts(plan: list[dict[str, Any]], *inside: str) -> list[dict[str, Any]]:
    """What came of the trainings of a plan, whose temporary folder is on another file system if
    there is one.
    """
    room = {"TMPDIR": str(ON_ANOTHER_DISK)} if ON_ANOTHER_DISK.is_dir() else {}
    done = subprocess.run(
        [*inside, sys.executable, str(Path(__file__).with_name("kills.py")), json.dumps(plan)],
        env=os.environ | room | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    actual: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return actual


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return tmp_path


def case(
    folder: Path, name: str, overrides: Sequence[str], kills: Sequence[Any] = ()
) -> dict[str, Any]:
    """One training of the tiny recipe, as kills.py takes it."""
    return {
        "recipe": str(folder / "tiny.yaml"),
        "overrides": overrides,
        "run": str(folder / name),
        "kills": kills,
    }


def rows(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics, without what a clock has told."""
    clocks = ("minutes", "train/tokens_per_second")
    return [
        {key: row[key] for key in row if key not in clocks}
        for row in read_metrics(run / "metrics.jsonl")
    ]


def steps(run: Path) -> dict[tuple[int, ...], set[tuple[str, ...]]]:
    """Of each process, epoch and batch: what it was trained on and its loss, in however many
    attempts.
    """
    actual: dict[tuple[int, ...], set[tuple[str, ...]]] = {}
    for line in Path(f"{run}.steps.jsonl").read_text().splitlines():
        output = json.loads(line)
        actual.setdefault(tuple(output["at"]), set()).add((str(output["rows"]), output["loss"]))
    return actual


def result(run: Path) -> dict[str, Any]:
    """What run.json says of the end."""
    record = RunDir(run).read()
    keys = ("status", "steps", "epochs", "checkpoints_used", "scores", "by_length")
    return {key: getattr(record, key) for key in keys}


def names(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*")}


def must_be_alike(one: Path, other: Path) -> None:
    assert same_weights(one, other)
    assert rows(one) == rows(other)
    assert steps(one) == steps(other)
    assert all(len(item) == 1 for item in steps(other).values()), (
        "a batch was trained on twice, and differently"
    )
    assert result(one) == result(other)
    assert names(one) == names(other)
    assert not any(is_temporary(path) for path in other.rglob("*"))
    assert all(is_intact(path) for path in list_checkpoints(other / "checkpoints"))


@pytest.mark.slow
def test_a_training_killed_anywhere_resumes_bit_for_bit(folder: Path) -> None:
    """Data workers outlive a training that was killed by some seconds; they hold nothing, and
    change nothing.
    """
    fetching = [["bytes", 30], ["validation", 2], ["step", 4]]
    reference, everywhere, with_workers = attempts(
        [
            case(folder, "whole", OFTEN),
            case(folder, "everywhere", OFTEN, EVERYWHERE),
            case(folder, "with workers", (*OFTEN, "training.workers=2"), fetching),
        ]
    )
    assert reference["ended"] == [0], reference["output"]
    assert everywhere["ended"] == [*[KILLED] * len(EVERYWHERE), 0], everywhere["output"][-1]
    assert with_workers["ended"] == [*[KILLED] * len(fetching), 0], with_workers["output"]
    assert not any("damaged" in text for text in everywhere["output"]), (
        "a checkpoint was there before it was whole"
    )
    must_be_alike(folder / "whole", folder / "everywhere")
    must_be_alike(folder / "whole", folder / "with workers")


@pytest.mark.slow
def test_two_processes_resume_after_one_crashes_or_is_terminated(folder: Path) -> None:
    """The interrupted run has data workers. Both processes know of a signal in ten steps."""
    two, kills = (
        ("training.max_steps=24", DDP),
        [["step", 5, 0, "SIGTERM"], ["update", 4, 1, "SIGSEGV"]],
    )
    plan = [case(folder, "whole", two), case(folder, "cut", (*two, "training.workers=2"), kills)]
    reference, cut = attempts(plan)
    assert reference["ended"] == [0], reference["output"]
    assert cut["ended"] == [143, 1, 0], cut["output"]
    assert cut["left"] == []
    assert not any("Traceback" in text for text in cut["output"]), cut["output"]
    crashed = cut["output"][1]
    assert crashed.count("process 1 was ended by SIGSEGV") == crashed.count("error[") == 1
    assert "Fatal Python error: Segmentation fault" in crashed
    assert "`--resume` (in Python `resume=True`) continues" in crashed
    must_be_alike(folder / "whole", folder / "cut")
    assert {rank for rank, *_ in steps(folder / "cut")} == {0, 1}


@pytest.mark.slow
def test_two_sharded_processes_resume_after_a_kill_or_a_bad_gradient(folder: Path) -> None:
    """Nothing is validated, so that no loss tells of the gradient before a checkpoint is due."""
    (folder / "a.txt").write_text("".join(f"{number}\n" for number in range(90)), encoding="utf-8")
    two = ("training.validate_every=2", "training.clip_norm=null", UNVALIDATED, FSDP)
    reference, cut = attempts(
        [
            case(folder, "whole", two),
            case(folder, "cut", two, [["bytes", 30], ["spoiling", 4, 1]]),
        ]
    )
    assert reference["ended"] == [0], reference["output"]
    assert cut["ended"] == [1, 1, 0], cut["output"]
    assert cut["left"] == []
    killed = cut["output"][0]
    assert killed.count("process 0 was ended by SIGKILL") == killed.count("error[") == 1
    assert "Traceback" not in killed, "process 1 did not end quietly when process 0 was gone"
    assert "after 4 steps a weight" in cut["output"][1]
    assert "process 1" not in cut["output"][1], "the process whose part is good did not know"
    assert "resuming from" in cut["output"][2]
    must_be_alike(folder / "whole", folder / "cut")
    assert {rank for rank, *_ in steps(folder / "cut")} == {0, 1}


def test_a_killed_data_worker_is_an_error_and_training_resumes(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Seq2SeqModule.training_step

    def alone(self: Seq2SeqModule, *given: Any) -> Any:
        if self.global_step == 6:
            multiprocessing.active_children()[0].kill()
            time.sleep(60)  # until a signal tells of it
        return real(self, *given)

    reference = undisturbed(tiny())
    monkeypatch.setattr(Seq2SeqModule, "training_step", alone)
    with pytest.raises(RunFailed, match=r"`training\.workers` is killed"):
        train(tiny("training.workers=2"), tmp_path / "cut")
    monkeypatch.setattr(Seq2SeqModule, "training_step", real)
    assert RunDir(tmp_path / "cut").read().status == "failed"
    train(tiny("training.workers=2"), tmp_path / "cut", resume=True)
    assert same_weights(reference, tmp_path / "cut")
    assert rows(reference) == rows(tmp_path / "cut")


@pytest.mark.slow
def test_training_resumes_after_a_full_disk(folder: Path) -> None:
    """A real one, without room for all checkpoints; when there is room again, nothing has been
    lost.
    """
    disk = folder / "disk"
    disk.mkdir()
    mount = [
        "unshare",
        "-Urm",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1m none "$1" && shift && "$@"',
        "sh",
        str(disk),
    ]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*mount, "true"], capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    full = case(disk, "run", OFTEN, [["before nothing", 1]]) | {
        "recipe": str(folder / "tiny.yaml"),
        "beside": str(folder / "full"),
        "kept": str(folder / "kept"),
        "ballast": str(disk / "ballast"),
    }
    reference, actual = attempts([case(folder, "whole", OFTEN), full], *mount)
    assert reference["ended"] == [0], reference["output"]
    assert actual["ended"] == [1, 0], actual["output"]
    assert "no space left on device" in actual["output"][0]
    assert "Traceback" not in actual["output"][0]
    (folder / "full.steps.jsonl").rename(folder / "kept.steps.jsonl")
    must_be_alike(folder / "whole", folder / "kept")

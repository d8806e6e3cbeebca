"""Trainings that kill themselves at a named point, again and again, and are continued: python
kills.py PLAN

PLAN is JSON: [{"recipe": FILE, "overrides": [...], "run": FOLDER, "kills": [["step", 3], ["bytes",
40], ...]}, ...]. Each attempt is a process of its own; a kill is a SIGKILL when its point has been
passed so many times in that attempt, in the process of rank 0 or of that which a third item names;
a fourth one names another signal. The last attempt of each run is left alone. Printed as JSON is
how the attempts ended, what they printed and which processes they have left behind; every batch
that was trained on is told in BESIDE.steps.jsonl, where `beside` is FOLDER if it is not given.
`machines` has for each attempt one override more. A `ballast` is a file that fills the disk during
the first attempt;
the run is copied to `kept`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from composer.errors import ComposerError
from composer.formatting import to_json
from composer.recipe.recipe import load
from composer.training import checkpointing, finalize, validation_decoder
from composer.training.callback import TrainingLoopCallback
from composer.training.loggers import JsonLinesWriter
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.training.launcher_stubs import group

PATIENCE = 120.0
"""Seconds after which an attempt has hung."""
GONE_WITHIN = 30.0
"""Seconds in which all that an attempt has started has ended by itself."""
Kill = list[Any]
Case = dict[str, Any]

BEFORE: dict[str, tuple[Any, str]] = {
    "step": (TrainingLoopCallback, "on_train_batch_end"),
    "update": (Seq2SeqModule, "on_before_optimizer_step"),
    "validation": (Seq2SeqModule, "validation_step"),
    "decoding": (validation_decoder, "answer_lines"),
    "removing": (checkpointing.AtomicCheckpointIO, "remove_checkpoint"),
    "measuring": (finalize, "evaluate_pairs"),
}
"""Points that lie before a function: where it is called by this name."""
AFTER: dict[str, tuple[Any, str]] = {
    "digest": (checkpointing, "atomic_write"),
    "kept": (checkpointing.AtomicCheckpointIO, "save_checkpoint"),
    "measured": (finalize, "evaluate_pairs"),
}


def die(how: str = "SIGKILL") -> None:
    os.kill(os.getpid(), signal.Signals[how])


def spoil(module: Seq2SeqModule) -> None:
    """Makes one number none, in this process's part of the gradients alone."""
    gradient: Any = next(p.grad for p in module.parameters() if p.grad is not None)
    getattr(gradient, "to_local", lambda: gradient)().view(-1)[0] = float("nan")


def rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def arm(point: str, times: int, at: int = 0, how: str = "SIGKILL") -> None:
    """Has the process of rank `at` die when it passes a point for the so many-th time."""
    left = [times]

    def passed() -> bool:
        if rank() != at:
            return False
        left[0] -= 1
        return left[0] == 0

    if point in BEFORE or point in AFTER:
        owner, name = BEFORE.get(point) or AFTER[point]
        setattr(owner, name, guarded(getattr(owner, name), passed, point in AFTER, how))
    elif point == "spoiling":
        Seq2SeqModule.on_before_optimizer_step = spoiling(
            Seq2SeqModule.on_before_optimizer_step, passed
        )  # type: ignore[method-assign]
    elif point == "bytes":
        checkpointing.HashingWriter.write = partial_write(checkpointing.HashingWriter.write, passed)  # type: ignore[method-assign]
    elif point == "row":
        JsonLinesWriter.write = partial_row(JsonLinesWriter.write, passed)  # type: ignore[method-assign]
    else:
        when, name = point.split()
        os.replace = replacing(os.replace, passed, name, when)


def guarded(
    real: Callable[..., Any], passed: Callable[[], bool], after: bool, how: str
) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        if not after and passed():
            die(how)
        result = real(*given, **named)
        if after and passed():
            die(how)
        return result

    return call


def spoiling(real: Callable[..., None], passed: Callable[[], bool]) -> Callable[..., None]:
    def call(self: Seq2SeqModule, *given: Any) -> None:
        real(self, *given)
        if passed():
            spoil(self)

    return call


def partial_write(real: Callable[..., int], passed: Callable[[], bool]) -> Callable[..., int]:
    def write(self: checkpointing.HashingWriter, data: Any) -> int:
        if passed():
            self.file.write(bytes(data)[: max(1, len(data) // 2)])
            self.file.flush()
            die()
        return real(self, data)

    return write


def partial_row(real: Callable[..., None], passed: Callable[[], bool]) -> Callable[..., None]:
    def write(self: JsonLinesWriter, row: Any) -> None:
        if passed():
            line = f"{to_json(row, None)}\n".encode()
            self.file.write(line[: len(line) // 2])
            die()
        real(self, row)

    return write


def replacing(
    real: Callable[..., None], passed: Callable[[], bool], name: str, when: str
) -> Callable[..., None]:
    def replace(source: Any, target: Any, **named: Any) -> None:
        hit = Path(target).name == name and passed()
        if hit and when == "before":
            die()
        real(source, target, **named)
        if hit:
            die()

    return replace


def told(beside: str) -> None:
    """Has every batch that is trained on written down, with its loss to the last bit."""
    real = Seq2SeqModule.training_step

    def step(self: Seq2SeqModule, batch: Any, index: int) -> Any:
        order = next(
            item for item in self.trainer.callbacks if isinstance(item, TrainingLoopCallback)
        ).sampler  # type: ignore[attr-defined]
        loss = real(self, batch, index)
        line = {
            "at": [rank(), order.epoch, order.done],
            "world": self.trainer.world_size,
            "rows": batch["rows"].tolist(),
            "loss": loss.item().hex(),
        }
        with open(f"{beside}.steps.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        return loss

    Seq2SeqModule.training_step = step  # type: ignore[method-assign]


def prepare(beside: str, kill: Kill | None) -> None:
    """Has this process tell its steps, and die where it shall."""
    torch.set_num_threads(1)
    told(beside)
    if kill:
        arm(*kill)


def attempt(case: Case, kill: Kill | None) -> int:
    """One attempt, in this process; its exit status."""
    orders = (case.get("beside", case["run"]), kill)
    os.environ["KILLS"] = json.dumps(orders)
    prepare(*orders)
    try:
        train(load(Path(case["recipe"]), case["overrides"]), case["run"], resume=True)
    except ComposerError as error:
        sys.stdout.write(error.render())
        return error.status
    except SystemExit as left:
        return int(left.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def forked(act: Callable[[], int], output: Path) -> tuple[int, int]:
    """A process that does this, and its status, negative where a signal ended it; what it starts is
    not waited for.
    """
    process = os.fork()
    if not process:
        os.setsid()
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        status = act()
        sys.stdout.flush()
        os._exit(status)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return process, os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return process, 999


def has_left_some(leader: int) -> bool:
    """True if processes of an attempt did not end by themselves; ends them."""
    until = time.monotonic() + GONE_WITHIN
    while (there := group(leader)) and time.monotonic() < until:
        time.sleep(0.2)
    for process in there:
        os.kill(process, signal.SIGKILL)
    return bool(there)


def attempts(case: Case) -> dict[str, Any]:
    """All attempts at one run."""
    leaders, ended, output = [], [], []
    if "ballast" in case:
        fill(Path(case["ballast"]))
    for at, kill in enumerate([*case["kills"], None]):
        file = Path(f"{case.get('beside', case['run'])}.output")
        here = case | {"overrides": [*case["overrides"], *case.get("machines", [])[at : at + 1]]}
        leader, status = forked(partial(attempt, here, kill), file)
        leaders.append(leader)
        ended.append(status)
        output.append(file.read_text(errors="replace"))
        if "ballast" in case:
            Path(case["ballast"]).unlink(missing_ok=True)
    if "kept" in case:
        shutil.copytree(case["run"], case["kept"])
    left = [at for at, leader in enumerate(leaders) if has_left_some(leader)]
    return {"run": case["run"], "ended": ended, "output": output, "left": left}


def fill(path: Path, left: int = 150_000) -> None:
    """Fills the disk but for some bytes: so many that a first checkpoint or two have room, and not
    all of them.
    """
    path.write_bytes(bytes(shutil.disk_usage(path.parent).free - left))


if __name__ == "__mp_main__":  # a rank, which imports this file
    prepare(*json.loads(os.environ["KILLS"]))
elif __name__ == "__main__":
    sys.stdout.write(json.dumps([attempts(case) for case in json.loads(sys.argv[1])]))

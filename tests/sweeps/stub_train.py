"""A training that takes no time: it does what the plan says for its learning rate, which is also
its loss.

STUB names a folder: in `plan.json` what happens at which rate; every start is a line in `starts`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer.run_dir import RunDir, locked, read_metrics
from composer.runs.record import Fingerprints, RunRecord

STEPS = 5


def main() -> int:
    output = sys.argv[sys.argv.index("train") + 1 :]
    run = RunDir(Path(output[output.index("--run") + 1]))
    seed = next(int(item.partition("=")[2]) for item in output if item.startswith("training.seed="))
    result = re.search(r"learning_rate: ([0-9.e+-]+)", Path(output[0]).read_text(encoding="utf-8"))
    rate = float(result[1]) if result else 0.0
    home = Path(os.environ["STUB"])
    with (home / "starts").open("a") as file:
        file.write(f"{rate} {seed}\n")
    plans = json.loads((home / "plan.json").read_text(encoding="utf-8"))
    plan = plans.get(str(rate), plans.get("all", {}))
    with locked(run):
        return train(run, seed, rate, plan, home)


def train(run: RunDir, seed: int, rate: float, plan: dict[str, Any], home: Path) -> int:
    if run.record.exists() and run.read().status == "finished":
        return 0
    nothing = "0" * 64
    fingerprints = Fingerprints(model=nothing, data=nothing, run=nothing, recipe=nothing)
    record = RunRecord(status="running", seed=seed, fingerprints=fingerprints)
    run.write(record)
    signal.signal(signal.SIGTERM, lambda *_: end(run, "interrupted", 143))
    if plan.get("fails") == seed and starts_of(home, rate) <= plan.get("times", 1000):
        sys.stderr.write("step 1\nerror[run]: the loss is NaN\n   fix: a lower rate\n1 error\n")
        end(run, "failed", plan.get("status", 1))
    begun = len(read_metrics(run.metrics)) if run.metrics.exists() else 0
    for step in range(begun + 1, plan.get("steps", STEPS) + 1):
        row = {"step": 100 * step, "epoch": 1.0, "val/loss": rate + seed / 100}
        # the writer of a real training would import torch, which takes seconds
        with run.metrics.open("ab") as log:
            log.write(f"{json.dumps(row)}\n".encode())
        if plan.get("saves"):
            run.checkpoints.mkdir(exist_ok=True)
            (run.checkpoints / f"step-{100 * step:08d}.ckpt").touch()
        if step == begun + 1 and must_die(plan, home, rate):
            os.kill(os.getpid(), signal.SIGKILL)
        if step >= plan.get("from", 1):
            time.sleep(plan.get("pause", 0.0))
    run.write(
        replace(record, status="finished", minutes=0.1, scores={"val/loss": rate + seed / 100})
    )
    return 0


def must_die(plan: dict[str, Any], home: Path, rate: float) -> bool:
    """Whether this start is one of those that are killed."""
    return starts_of(home, rate) <= plan.get("kills", 0)


def starts_of(home: Path, rate: float) -> int:
    """How often a rate was started, this time included."""
    lines = (home / "starts").read_text(encoding="utf-8").split("\n")
    return sum(line.startswith(f"{rate} ") for line in lines)


def end(run: RunDir, status: str, number: int) -> None:
    run.write(replace(run.read(), status=status))
    os._exit(number)


if __name__ == "__main__":
    sys.exit(main())

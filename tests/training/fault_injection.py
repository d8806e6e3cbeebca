"""The command `seqcomposer` with a fault in one of its processes: FAULT is `what:rank:step`, once
per folder.

With `where:rank:0` it happens before the processes have met. `FAULT_ONCE` names a file whose
absence says that it has not happened yet.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from composer.cli.main import main
from composer.errors import DataError, Fault
from composer.training import train as training
from composer.training.module import Seq2SeqModule


def happen(what: str) -> None:
    once = Path(os.environ["FAULT_ONCE"])
    if once.exists():
        return
    once.touch()
    if what.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[what])
    elif what == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 EiB")
    elif what == "data":
        raise DataError(
            [
                Fault(
                    "there.txt", 3, 1, "data", "", "this file has another length here", "look at it"
                )
            ]
        )
    elif what == "bug":
        raise ValueError("nobody has thought of this")
    elif what == "network":
        raise RuntimeError("gloo: unable to resolve the interface")
    elif what == "exit":
        sys.exit()


def arrange(what: str, rank: int, step: int) -> None:
    real, setup = Seq2SeqModule.training_step, training.setup
    seen = [0]

    def at_step(self: Seq2SeqModule, *given: Any) -> Any:
        seen[0] += 1
        if seen[0] == step and self.trainer.global_rank == rank:
            happen(what)
        return real(self, *given)

    def at_start(*given: Any) -> Any:
        if int(os.environ.get("LOCAL_RANK", "0")) == rank:
            happen(what)
        return setup(*given)

    Seq2SeqModule.training_step = at_step  # type: ignore[method-assign]
    if step == 0:
        training.setup = at_start


# at the import: the processes of a training import this file, and do not run it
if "FAULT" in os.environ:
    kind, process, when = os.environ["FAULT"].split(":")
    arrange(kind, int(process), int(when))

if __name__ == "__main__":
    main()

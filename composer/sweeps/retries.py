"""Retries: when a trial's training is started again, and what trial.json and the terminal say of it.

A training that was killed goes on from its last checkpoint, however often: on machines that are taken away that is no
fault of its own. Only where it was killed MAX_KILLS times in a row without a new checkpoint has it failed. A failed
one is tried again as often as the sweep's `retries` say, and once more for each `sweep --retry`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

from composer.run_dir import RunDir, checkpoint_step, utc_now

Retry = Mapping[str, Any]
"""Why a training was started again: `cause`, `seed`, `step` (of the last checkpoint), `error`, `at` (UTC)."""
RETRY_TYPES: Mapping[str, Any] = {"cause": str, "seed": int | None, "step": int, "error": str, "at": str}
Cause = Literal["killed", "failed", "requested"]

KILLED = (130, 137, 143)
"""Exit statuses of a training that somebody else ended; a negative one says the same."""
MAX_KILLS = 5
"""Kills in a row without a new checkpoint after which a training has failed: too little memory kills it for ever."""


def killed_by(status: int) -> str:
    """Return the signal that ended a training, by its exit status; "" if none did."""
    if status >= 0 and status not in KILLED:
        return ""
    number = -status if status < 0 else status - 128
    return signal.Signals(number).name if number in list(signal.Signals) else f"exit status {status}"


def retry_record(cause: Cause, error: str, run: RunDir | None = None, seed: int | None = None) -> Retry:
    """Return what trial.json says of a retry; `run` is the run folder of the seed that is started again."""
    steps = [checkpoint_step(path) or 0 for path in run.checkpoints.glob("step-*.ckpt")] if run is not None else []
    return {"cause": cause, "seed": seed, "step": max(steps, default=0), "error": error, "at": utc_now()}


def kills_in_place(retries: Sequence[Retry]) -> int:
    """Return how often in a row, up to now, a training was killed without a new checkpoint in between."""
    places = [(retry["cause"], retry["seed"], retry["step"]) for retry in reversed(retries)]
    here = ("killed", *places[0][1:]) if places else ()
    return sum(1 for _ in takewhile(lambda place: place == here, places))


def failures(retries: Iterable[Retry]) -> int:
    """Return how many retries of the sweep's `retries` are used up; `--retry` gives all of them again."""
    count = 0
    for retry in retries:
        count = 0 if retry["cause"] == "requested" else count + (retry["cause"] == "failed")
    return count


def describe_retry(retries: Sequence[Retry], allowed: int) -> str:
    """Say in words why a training is started again, by the last of its retries."""
    last = retries[-1]
    lines = str(last["error"]).splitlines() or [""]
    if last["cause"] == "requested":
        return f"tried again; it had failed: {lines[0]}"
    place = f"from step {last['step']:,}" if last["step"] else "from its beginning"
    if last["cause"] == "failed":
        return f"failed, retry {failures(retries)} of {allowed}, {place}: {lines[0]}"
    count = kills_in_place(retries)
    limit = f", {count} times there, of at most {MAX_KILLS}" if count > 1 else ""
    return f"killed by {lines[0]}, goes on {place}{limit}"

"""`train --seeds`: the same recipe with several seeds, one run after another, and a summary.

Each seed's training is a command of its own, so that its folder is a run like any other, and
nothing is left in this process of one that failed. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from composer import run_dir
from composer.atomic_io import atomic_write
from composer.errors import RunError
from composer.fingerprint import is_recorded
from composer.metrics.table import as_maximised, metric_name
from composer.processes.python import python_environment, seqcomposer_command
from composer.recipe.own_blocks import refuse_own_blocks
from composer.recipe.recipe import load
from composer.run_dir import RunDir, read_metrics, seed_dirs
from composer.runs.record import RunRecord

SIGNAL_STATUSES = {signal.SIGINT: 130, signal.SIGTERM: 143}
MAX_SEEDS = 1000
"""Seeds at once; who writes a larger number means the seed itself."""


@dataclass(frozen=True)
class SeedRun:
    """Result of one seed.

    The scores of a run that did not finish are those of its last validation.
    """

    seed: int
    folder: str
    status: str
    steps: int
    minutes: float
    scores: Mapping[str, float]


@dataclass(frozen=True)
class SeedRuns:
    """All seeds in a folder, in order; `best` has the best `metric`, then the lowest loss."""

    metric: str
    best: int | None
    seeds: Sequence[SeedRun]


def train_seeds(
    recipe: Path,
    seeds: str,
    folder: Path,
    say: Callable[[str], None],
    overrides: Sequence[str] = (),
    data: Path | None = None,
    resume: bool = False,
    start_from: Path | None = None,
) -> tuple[SeedRuns, int]:
    """Train one seed after another; return results and exit status, 0 if any seed has finished.

    Raises RecipeError and RunError, with nothing written, where the recipe, the seeds or the folder
    are not fit.
    """
    check_single_process()
    loaded = load(recipe, overrides, data)
    refuse_own_blocks(loaded, "the training of each seed is a process of its own")
    training = loaded.training
    wanted = parse_seeds(seeds, training.seed)
    recipes = {seed: load(recipe, [*overrides, f"training.seed={seed}"], data) for seed in wanted}
    if not resume or folder.is_file():
        run_dir.check_writable(RunDir(folder), resume=False)
    if RunDir(folder).record.exists():
        raise RunError.of(
            "this folder is a run of one seed", "name another with `--run DIR`", str(folder)
        )
    # a finished run has no score of a sample
    metric = f"val/{metric_name(training.selection_metric)}"
    options: list[str | Path] = ["--resume"] if resume else []
    options += ["--data", data] if data is not None else []
    options += ["--from", start_from] if start_from is not None else []
    for seed in wanted:
        run = RunDir(folder / f"seed-{seed}")
        record = run.read() if resume and run.record.exists() else RunRecord()
        is_same = record.fingerprints is None or is_recorded(recipes[seed], record)
        if record.is_finished and is_same:
            say(f"seed {seed}: already finished")
            status = 0
        else:
            say(f"seed {seed}: {run.path}")
            status = train_seed(run, [recipe, *overrides, f"training.seed={seed}", *options])
        results = seed_runs(folder, metric)
        if results.seeds:
            atomic_write(
                folder / "seeds.json", (json.dumps(asdict(results), indent=2) + "\n").encode()
            )
        if status in (2, *SIGNAL_STATUSES.values()):  # what is refused for one seed is for the next
            return results, status
    return results, int(all(seed.status != "finished" for seed in results.seeds))


def train_seed(run: RunDir, arguments: Sequence[str | Path]) -> int:
    """Train one seed by a command with these arguments, and return its exit status."""
    command = seqcomposer_command("train", *map(str, arguments), "--run", str(run.path))
    # ignored in a shell's background job; a training listens
    signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen(command, env=python_environment(os.environ), process_group=0)
    status = wait_forwarding_signals(child)
    # killed, and could not say so itself
    if run.record.exists() and (record := run.read()).status == "running":
        run.write(replace(record, status="failed"))
    return status


def wait_forwarding_signals(child: subprocess.Popen[bytes]) -> int:
    """Wait for a training and forward signals; return its status, after them 130 or 143."""
    passed: signal.Signals | None = None
    while True:
        try:
            status = child.wait()
            return status if passed is None else SIGNAL_STATUSES[passed]
        except KeyboardInterrupt:
            passed = signal.SIGINT
        except SystemExit:
            passed = signal.SIGTERM
        child.send_signal(passed)


def parse_seeds(text: str, first: int) -> list[int]:
    """Return the seeds of `--seeds`: `3` means three from `first` on, `1,2,5` means these."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    results = (
        list(range(first, first + min(numbers[0], MAX_SEEDS + 1))) if len(numbers) == 1 else numbers
    )
    if not 0 < len(results) <= MAX_SEEDS or len(set(results)) < len(results):
        fix = (
            "write how many, `--seeds 3`, or different ones with commas between them, `--seeds"
            " 1,2,5`"
        )
        raise RunError.of(f"`--seeds {text}` is not a list of seeds", fix)
    return results


def check_single_process() -> None:
    """Raise RunError in one of several processes that a launcher has started."""
    one_of_srun = "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_NTASKS", "1") != "1"
    if one_of_srun or "LOCAL_RANK" in os.environ or "RANK" in os.environ:
        message = (
            "`--seeds` starts each training itself, and a launcher has started this process among"
            " others"
        )
        fix = (
            "start it without the launcher and set `trainer: {devices: N}`, or train each seed with"
            " `training.seed=N`"
        )
        raise RunError.of(message, fix)


def seed_runs(folder: Path, metric: str) -> SeedRuns:
    """Return the results of every seed in `folder`."""
    seeds = [seed_run(seed, run) for seed, run in seed_dirs(folder).items()]
    finished = [run for run in seeds if run.status == "finished"]
    measured = [run for run in finished if metric in run.scores]

    def rank(run: SeedRun) -> tuple[float, float]:
        return as_maximised(metric, run.scores), as_maximised("val/loss", run.scores)

    best = max(measured, key=rank, default=None)
    return SeedRuns(metric, best.seed if best is not None else None, seeds)


def seed_run(seed: int, run: RunDir) -> SeedRun:
    """Return the result of one seed."""
    record = run.read() if run.record.exists() else RunRecord(status="failed")
    rows = read_metrics(run.metrics)
    scores = {name: value for name, value in record.scores.items() if value is not None}
    if not record.scores:
        for row in rows:
            scores = {key: row[key] for key in row if key.startswith("val/")} or scores
    last = rows[-1] if rows else {"step": 0, "minutes": 0.0}
    steps = int(last["step"]) if record.steps is None else record.steps
    minutes = last.get("minutes", 0.0) if record.minutes is None else record.minutes
    return SeedRun(seed, run.path.name, record.status, steps, minutes, scores)

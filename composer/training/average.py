"""`average`: the mean of a finished run's last checkpoints, as a new run folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from composer.atomic_io import atomic_directory, require_absent, sha256_of_file
from composer.errors import RunError
from composer.fingerprint import averaged_sha256, check_checkpoint
from composer.formatting import count_noun
from composer.inference.run import open_untrained
from composer.model.weights import save_weights
from composer.run_dir import (
    RunDir,
    checkpoint_history,
    checkpoint_path,
    find_run,
    is_intact,
    latest_checkpoint,
)
from composer.runs.record import Averaged, UsedCheckpoints
from composer.training.weight_average import average_weights


def average(run: str | Path, last: int, output: str | Path | None = None) -> Path:
    """Write a new run folder with the mean of the weights of the last validations, and return it.

    It has the recipe, tokenizer and metrics of the run, and no scores yet: `evaluate` computes
    them. Its fingerprint `run` is its own. The run stays as it is.

    Args:
        run: A run that has finished, by its folder or as SWEEP#RANK.
        last: How many checkpoints, 2 or more, of the last validations.
        output: The new folder; by default the run's with `-average-N` behind its name.

    Raises RunError where the run has not finished, or keeps fewer checkpoints.
    """
    run_dir = RunDir(find_run(run))
    target = (
        Path(output)
        if output is not None
        else run_dir.path.with_name(f"{run_dir.path.name}-average-{last}")
    )
    opened, record = open_untrained(run_dir.path), run_dir.read()
    if not record.is_finished:
        fix = "finish it by `train ... --resume`, or `--finish` to end it with its best weights"
        raise RunError.of("this run has not finished", fix, str(run_dir.path))
    paths = last_checkpoints(run_dir, last)
    require_absent(target)
    for path in paths:
        check_checkpoint(opened.recipe, opened.tokenizers, path)
    opened.model.load_state_dict(average_weights(paths))
    with atomic_directory(target) as draft:
        new = RunDir(draft)
        for file in (run_dir.recipe, run_dir.tokenizer, run_dir.metrics):
            if file.is_file():
                shutil.copy(file, draft / file.name)
        save_weights(opened.model, new.weights)
        made = replace(
            record,
            weights_sha256=sha256_of_file(new.weights),
            checkpoints_used=UsedCheckpoints("average", tuple(path.name for path in paths)),
            averaged=Averaged(str(run_dir.path), record.weights_sha256),
            # what follows is of the weights that the training chose
            hypotheses_sha256={},
            reproduces=None,
            scores={},
            signatures={},
            by_length={},
        )
        if prints := record.fingerprints:
            made = replace(
                made, fingerprints={**prints, "run": averaged_sha256(prints["run"], made)}
            )
        new.write(made)
    return target


def last_checkpoints(run_dir: RunDir, count: int) -> list[Path]:
    """Return the checkpoints of the last validations, oldest first. Raises RunError."""
    if count < 2:
        raise RunError.of(
            f"the mean of {count} is none",
            "name two checkpoints or more: `--last 2`",
            str(run_dir.path),
        )
    recent: list[Path] = []
    newest = latest_checkpoint(run_dir.checkpoints, lambda _: None)
    steps = (
        [int(scores["step"]) for scores in checkpoint_history(newest)] if newest is not None else []
    )
    for step in reversed(steps):
        path = checkpoint_path(run_dir.checkpoints, step)
        if not is_intact(path):
            break
        recent.insert(0, path)
    if count > len(recent):
        message = (
            f"of the last validations {count_noun(len(recent), 'checkpoint')} are kept, and {count}"
            " are to be averaged"
        )
        message = message.replace("1 checkpoint are", "1 checkpoint is")
        fix = f"write `--last {len(recent)}`; " if len(recent) > 1 else ""
        fix += (
            "a training keeps as many as `training.average_checkpoints` says, or `checkpoints_gib`"
            " has room for"
        )
        raise RunError.of(message, fix, str(run_dir.checkpoints))
    return recent[-count:]

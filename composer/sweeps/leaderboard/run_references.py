"""Runs named by a sweep and a trial: `SWEEP#RANK`, or the beginning of a trial's fingerprint."""

from __future__ import annotations

import os
from pathlib import Path

from composer.errors import RunError
from composer.run_dir import seed_dirs
from composer.sweeps.leaderboard.board import Leaderboard, open_leaderboard


def split_reference(text: str) -> tuple[Path, str] | None:
    """Split `SWEEP#2` into the sweep and the trial's name; None for a path or a missing sweep."""
    sweep, mark, name = text.rpartition("#")
    if not mark or os.path.exists(text) or not os.path.exists(sweep):
        return None
    return Path(sweep), name


def find_trial_run(reference: str) -> Path | None:
    """Return the run folder that `SWEEP#RANK` names; None if there is no such sweep.

    Says on stderr which seed that is, if the trial has several. Raises RunError and RecipeError.
    """
    if (split := split_reference(reference)) is None:
        return None
    sweep, name = split
    run = find_run(open_leaderboard(sweep), name)
    seeds = seed_dirs(run.parent).values()
    others = [seed.path.name for seed in seeds if seed.record.exists() and seed.path != run]
    if others:
        # late: it takes torch, and most words are paths
        from composer.inference.lines import write_note

        write_note(f"{reference} is {run}; the trial also has {', '.join(others)}")
    return run


def find_run(board: Leaderboard, word: str) -> Path:
    """Return the run of a trial's first finished seed, by rank or the beginning of a fingerprint.

    Raises RunError if the word names no trial or several.
    """
    rank, prefix = word.removeprefix("#"), word.lower()
    trials = [result.trial for result in board.results]
    if rank.isdecimal() and len(rank) <= 4:  # all else is the beginning of a fingerprint
        trials = [result.trial for result in board.results if result.rank == int(rank)]
    else:
        trials = [trial for trial in trials if prefix and trial.fingerprint.startswith(prefix)]
    if len(trials) != 1:
        problem = f"{len(trials)} trials are called" if trials else "no trial is called"
        hint = "write a rank as the table has it, or the beginning of a trial's fingerprint"
        raise RunError.of(f"{problem} `{word}`", hint, str(board.folder))
    (trial,) = trials
    if not trial.finished_seeds:
        raise RunError.of("this trial has no finished seed", "name one that has", str(trial.folder))
    return trial.run(trial.finished_seeds[0])

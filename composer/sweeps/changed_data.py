"""Trials of one sweep that were trained on different contents of the same data files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from composer.recipe.yaml_reader import read, to_data
from composer.sweeps.trial import Trial


def changed_data(trials: Iterable[Trial]) -> list[str]:
    """Return a sentence if data have changed between trainings whose recipes have the same `data`.

    Raises RecipeError if a trial's recipe cannot be read.
    """
    runs: dict[str, list[tuple[Trial, Path]]] = defaultdict(list)
    for trial in trials:
        for seed, record in trial.records.items():
            if record.fingerprints:
                runs[record.fingerprints["data"]].append((trial, trial.run(seed)))
    if len(runs) < 2:
        return []
    earlier: dict[str, Path] = {}
    for members in runs.values():
        same_lines: dict[str, Path] = {}
        for trial, run in members:
            same_lines.setdefault(data_settings(trial), run)
        for settings in same_lines.keys() & earlier.keys():
            both = f"{earlier[settings]} and {same_lines[settings]}"
            message = f"The data have changed during this sweep: {both} were trained on different"
            return [f"{message} lines, so their scores cannot be compared."]
        earlier |= same_lines
    return []


def data_settings(trial: Trial) -> str:
    """Return the section `data` of a trial's recipe."""
    data = to_data(read(trial.recipe, str(trial.recipe)))["data"]
    return json.dumps(data, sort_keys=True)

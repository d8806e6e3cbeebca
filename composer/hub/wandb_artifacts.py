"""Weights & Biases: an artifact as a place to pull from. The other door to it is the log of a training."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from composer.errors import RunError, one_line_error
from composer.hub.fetch import ANSWERS, Place
from composer.hub.pack_contents import REGULAR, Entry
from composer.hub.urls import Artifact
from composer.training.wandb_logger import is_logged_in


def artifact_place(ref: Artifact, origin: str) -> Place:
    """What an artifact holds. Raises RunError, also where this user has given W&B no key: it would ask for one."""
    if not is_logged_in(os.environ):
        raise RunError.of("Weights & Biases knows nobody here", "say `wandb login`, or set WANDB_API_KEY", origin)
    import wandb

    try:
        found = wandb.Api(timeout=ANSWERS).artifact(ref.name).manifest.entries
    except Exception as error:  # what goes wrong on the way here has many classes, and one answer
        raise unreachable(origin, error) from None
    entries = {str(name): Entry(str(name), kind(each), each.size or 0) for name, each in found.items()}
    return Place(origin, origin, entries, partial(fetch, dict(found), origin))


def kind(entry: Any) -> str:
    """A reference's file lies elsewhere: W&B would take it from there, be it this very machine."""
    return REGULAR if entry.ref is None else "reference to another place"


def fetch(entries: dict[str, Any], origin: str, name: str, target: Path) -> None:
    """Downloads one file of the artifact."""
    with tempfile.TemporaryDirectory(prefix=".wandb-", dir=target.parent) as place:
        try:
            found = entries[name].download(root=place, skip_cache=True)
        except Exception as error:  # as above
            raise unreachable(origin, error) from None
        shutil.move(found, target)


def unreachable(origin: str, error: Exception) -> RunError:
    """Why W&B did not give it."""
    return RunError.of(
        f"Weights & Biases does not give it: {one_line_error(error)}",
        "look at the network, the name and the version, as its page has them",
        origin,
    )

"""Python as another process: its environment, and the command that runs seqcomposer in one.

A folder with somebody else's recipe may have a `torch.py`, too. `python -m` and an empty element of
PYTHONPATH would import it from the current folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PATH, SAFE = "PYTHONPATH", "PYTHONSAFEPATH"


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python imports nothing from the current folder."""
    others = {name: value for name, value in environment.items() if name != PATH}
    path = absolute_elements(environment.get(PATH, ""))
    return {**others, **({PATH: path} if path else {}), SAFE: "1"}


def absolute_elements(path: str) -> str:
    """Return a list like PATH without empty and relative elements."""
    return os.pathsep.join(element for element in path.split(os.pathsep) if os.path.isabs(element))


def seqcomposer_command(*words: str) -> list[str]:
    """Return the command that runs `seqcomposer` with these words."""
    return [sys.executable, "-P", "-m", "composer.cli.main", *words]


def secure_this_process() -> None:
    """Give this process `python_environment`, for what libraries start from it."""
    own = python_environment(os.environ)
    os.environ.pop(PATH, None)
    os.environ.update(own)


@contextmanager
def secure_children() -> Iterator[None]:
    """Give what a library starts meanwhile `python_environment`; this process is left as it was."""
    before = {name: os.environ.get(name) for name in (PATH, SAFE)}
    secure_this_process()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

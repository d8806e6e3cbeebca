"""How large a model may be: what would take for ever to build, or more memory than there is, is refused in words."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import nn

from blocks.core.contract import Path

MOST_BLOCKS = 10_000
"""Blocks that are built for one model; those count too that only show how wide something is."""
MOST_PARAMETERS = 100_000
"""Matrices and vectors that one model learns."""
NO_MEMORY = "a single matrix here takes more memory than there is"


class ModelTooLarge(Exception):
    """A model that would take for ever to build, or more memory than there is. `path` is the block that is too much."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.message, self.path = message, path


@dataclass
class ModelSizeGuard:
    """What has been built so far of one model, with all that was built for it and thrown away."""

    blocks: int = 0
    parameters: int = 0
    octets: int = 0
    held: list[weakref.ref[torch.Tensor]] = field(default_factory=list)

    def block(self, path: Path) -> None:
        """Counts a block. Raises TooLarge."""
        self.blocks += 1
        if self.blocks > MOST_BLOCKS:
            raise ModelTooLarge(f"the model has more than {MOST_BLOCKS:,} blocks", outermost(path))

    @contextmanager
    def limits(self) -> Iterator[None]:
        """While entered, every parameter of a module is counted. Raises TooLarge, before a parameter has its values."""
        hook = nn.modules.module.register_module_parameter_registration_hook(self._parameter)
        try:
            yield
        finally:
            hook.remove()

    def _parameter(self, module: nn.Module, name: str, parameter: torch.Tensor) -> None:
        self.parameters += 1
        if self.parameters > MOST_PARAMETERS:
            raise ModelTooLarge(f"the model has more than {MOST_PARAMETERS:,} matrices and vectors")
        if parameter.device.type == "cpu":
            self.octets += parameter.nbytes
            self.held.append(weakref.ref(parameter))
        if self.octets > memory() and self._recounted() > memory():
            raise ModelTooLarge(
                f"the model's parameters take more than the {memory() / 2**30:.3g} GiB of memory that this machine has"
            )

    def _recounted(self) -> int:
        """The bytes of what is still there: tied and shared parameters have given way to others."""
        there = {id(each): each for ref in self.held if (each := ref()) is not None}
        self.held = [weakref.ref(each) for each in there.values()]
        self.octets = sum(each.nbytes for each in there.values())
        return self.octets


@contextmanager
def oom_as_too_large() -> Iterator[None]:
    """While entered, memory that nobody could give is told as TooLarge."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ModelTooLarge(NO_MEMORY) from error


@cache
def memory() -> float:
    """The bytes of memory of this machine, or of the container that this runs in; infinitely many where unknown."""
    try:
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(found, float(file.read()))
    except (OSError, ValueError):  # no container, or one without a limit: `max`
        return found


def outermost(path: Path) -> Path:
    """The block of an encoder, a decoder or a named stack in which a path ends."""
    return next((path[: at + 2] for at, step in enumerate(path) if isinstance(step, int)), path)


def is_out_of_memory(error: Exception) -> bool:
    """Whether so much memory was asked for that there is no use in asking."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "not enough memory" in str(error)

"""Named outputs of which few are read, and each of those is changed first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

Before = TypeVar("Before")
After = TypeVar("After")


class LazyOutputs(Mapping[str, After], Generic[Before, After]):
    """Named outputs or memories, changed by a function when a block reads them: once, if at all."""

    def __init__(self, outputs: Mapping[str, Before], change: Callable[[Before], After]) -> None:
        self.outputs, self.change = outputs, change
        self.read: dict[str, After] = {}

    def __getitem__(self, name: str) -> After:
        if name not in self.read:
            self.read[name] = self.change(self.outputs[name])
        return self.read[name]

    def __contains__(self, name: object) -> bool:
        return name in self.outputs

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

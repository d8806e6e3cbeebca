"""Source locations: nodes of plain data in which every key and value has its file, line and column; faults at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from composer.errors import Fault, RecipeError

COMMAND_LINE = "<command line>"
MAX_MESSAGE = 2000  # characters: a name in a message may be as long as the file


Steps = tuple[str | int, ...]
"""A path to a value: keys and list indices, as `("model", "encoder", 0)`."""


class Mark(NamedTuple):
    """A source location. `line` and `column` count from 1; `text` is the line, `length` how much of it is meant."""

    file: str
    line: int
    column: int
    length: int
    text: str


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its source location. `value` is a scalar, a list of nodes or a dictionary of nodes.

    `key` is the location of the key that leads to it, `text` a scalar as it was typed, `quoted` True if in quotes.
    """

    value: Any
    mark: Mark
    key: Mark | None = None
    text: str = ""
    quoted: bool = False

    @property
    def place(self) -> Mark:
        """The location to show: that of its key, or its own if it has none."""
        return self.key or self.mark

    @property
    def value_mark(self) -> Mark:
        """The location of its value; that of its key if nothing is written."""
        return self.place if self.value is None and not self.text else self.mark


def fault_at(mark: Mark, code: str, path: str, message: str, hint: str = "") -> Fault:
    """Return a fault at a source location."""
    texts = (_shorten(path), _shorten(message), _shorten(hint))
    return Fault(mark.file, mark.line, mark.column, code, *texts, mark.text, mark.length)


def error_at(mark: Mark, code: str, path: str, message: str, hint: str = "") -> RecipeError:
    """Return the error for one fault at a source location."""
    return RecipeError([fault_at(mark, code, path, message, hint)])


def _shorten(text: str) -> str:
    """Return a text on one line, without its middle if it is very long: what was meant is at the end."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE // 2]} ... {line[-MAX_MESSAGE // 4 :]}"


def to_data(node: Node) -> Any:
    """Return the data of a node without locations."""
    if isinstance(node.value, dict):
        return {key: to_data(value) for key, value in node.value.items()}
    if isinstance(node.value, list):
        return [to_data(value) for value in node.value]
    return node.value


def strings_in(data: Any) -> Iterator[str]:
    """Yield every string that is a value somewhere in plain data."""
    if isinstance(data, str):
        yield data
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from strings_in(value)


def nesting_depth(node: Node) -> int:
    """Return how many lists and mappings lie inside each other; 0 for a scalar."""
    if not isinstance(node.value, (dict, list)):
        return 0
    inner = node.value.values() if isinstance(node.value, dict) else node.value
    return 1 + max(map(nesting_depth, inner), default=0)

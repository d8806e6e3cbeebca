"""Text that is changed where its syntax tree says, so that comments and line breaks stay as they were."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

RAISES = re.compile(r"(?<=\s)Raises \w*Error\b[^.]*\.[ ]?|;\s+raises \w*Error\b[^.]*(?=\.)")
"""What a docstring says of errors that cannot come any more."""


class Edit(NamedTuple):
    """Bytes from `start` to `stop` of a text become `text`."""

    start: int
    stop: int
    text: str = ""


class Places:
    """Where the nodes of a tree stand in the bytes of their text."""

    def __init__(self, text: str) -> None:
        self.lines = text.encode().splitlines(keepends=True)
        self.starts = [0, *accumulate(map(len, self.lines))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The bytes of a node itself."""
        return self.starts[node.lineno - 1] + node.col_offset, self.end(node)

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Where a node ends."""
        return self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def rows(self, first: int, last: int, text: str = "") -> Edit:
        """Whole lines, from `first` to `last`, which count from 1, become `text`."""
        return Edit(self.starts[first - 1], self.starts[last], text)

    def line(self, number: int) -> str:
        """A line, which counts from 1."""
        return self.lines[number - 1].decode()

    def first_line(self, node: ast.stmt) -> int:
        """Where a statement begins, with its decorators and the comments right above it."""
        decorators = getattr(node, "decorator_list", [])
        first: int = min([node.lineno, *(each.lineno for each in decorators)])
        while first > 1 and self._is_remark(self.line(first - 1), node.col_offset):
            first -= 1
        return first

    def dedented(self, first: int, last: int, columns: int) -> str:
        """Lines with so many spaces less before each."""
        return "".join(self.line(number)[columns:] or "\n" for number in range(first, last + 1))

    def _is_remark(self, line: str, column: int) -> bool:
        return line[column : column + 1] == "#" and not line[:column].strip() and not line.strip().startswith("# ---")


def edited(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits that do not overlap."""
    content = text.encode()
    for start, stop, new in sorted(edits, reverse=True):
        content = content[:start] + new.encode() + content[stop:]
    return content.decode()


def docstring_of(body: Sequence[ast.stmt]) -> ast.Constant | None:
    """The docstring with which a body begins, or an attribute's below it."""
    return _text(body[0]) if body else None


def _text(node: ast.stmt) -> ast.Constant | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value
    return None


def without_raises(text: str) -> str:
    """A docstring's source without what it says of errors."""
    said = RAISES.sub("", text).removesuffix('"""').rstrip()
    lines = [line.rstrip() for line in said.split("\n")]
    return "\n".join(lines) + ('"""' if len(lines) == 1 else f"\n{text.rpartition(chr(10))[2]}")

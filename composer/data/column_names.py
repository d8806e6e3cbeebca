"""Names of columns: finding one, also `a.b` in a structure, and problems with names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer.data.text_files import Problem
from composer.recipe.interpolation import recipe_text
from composer.suggest import closest_word, did_you_mean

MAX_NAMES = 20
"""Columns of a file that a fault lists."""


def get_nested(row: Mapping[str, Any], name: str) -> Any:
    """Return the value called `name`; `a.b` reaches into a mapping unless a key is `a.b`.

    Raises KeyError.
    """
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    if not dot or not isinstance(row[head], Mapping):
        raise KeyError(name)
    return get_nested(row[head], rest)


def check_names(
    names: Sequence[str],
    columns: Mapping[str, str],
    origin: str = "the file",
    texts: Sequence[str] | None = None,
) -> Iterator[Problem]:
    """Yield problems for missing columns and ambiguous names.

    texts: The columns of text; None for all.
    """
    for key, name in columns.items():
        if (count := names.count(name)) > 1:
            yield Problem(
                "column",
                f"the file has {count} columns called `{name}`",
                "give them different names",
                key,
            )
        elif not count:
            yield unknown_name(
                key, f"{origin} has no column", name, names if texts is None else texts
            )


def unknown_name(key: str, message: str, name: str, texts: Sequence[str]) -> Problem:
    """Return the problem of a column that is not there, among columns of text that are."""
    message = f"{message} `{name}`{did_you_mean(name, texts)}"
    return Problem("column", message, name_hint(name, texts), key, is_name=True)


def name_hint(name: str, texts: Sequence[str]) -> str:
    """Return advice on the columns of text to name instead, as a recipe has them."""
    listed = ", ".join(f"`{recipe_text(text)}`" for text in texts[:MAX_NAMES])
    if closest := closest_word(name, texts):
        close = recipe_text(closest)
        return f"write `{close}`; there are {listed}" if len(texts) > 1 else f"write `{close}`"
    return f"name one of {listed}" if listed else "name a file with a column of text"

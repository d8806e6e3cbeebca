"""`new`: write a recipe for two parallel texts, two columns of a table, or one text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from composer.cli import new_recipe
from composer.errors import RunError

Targets = str | Path | Sequence[str | Path]


def new(
    source: str | Path | None,
    target: Targets,
    output: str | Path | None = None,
    table: str | Path | None = None,
    column: str | None = None,
) -> Path:
    """Write a recipe for two line-aligned texts, or two columns of a table, and return its path.

    Args:
        source: None for a language model of the text `target`: files, patterns and folders.
        column: The key of its JSON lines, or the column of its Parquet, with the text.
        output: By default a name made from those of the files.

    Raises:
        DataError: If the texts or the table cannot be used.
        RunError: If the file exists already.
    """
    return write_new(source, target, output, table, column)[0]


def write_new(
    source: str | Path | None,
    target: Targets,
    output: str | Path | None = None,
    table: str | Path | None = None,
    column: str | None = None,
) -> tuple[Path, list[str]]:
    """Write a recipe as `new`; return its path, and the lines to print about it."""
    path = None if output is None else Path(output)
    targets = [str(target)] if isinstance(target, str | Path) else [*map(str, target)]
    if table is not None and source is None:
        fix = "name the column of its files: `--source COLUMN`"
        raise RunError.of("a table needs a source", fix, str(table))
    if source is not None and (len(targets) > 1 or column is not None):
        fix = "name one `--target` and no `--column`, or leave out `--source` for a language model"
        raise RunError.of("a source has one target", fix, str(table or source))
    if table is not None:
        from composer.cli import new_table  # late: it imports torch

        facts = new_table.inspect_table(Path(table), str(source), targets[0])
        # the folder `.` has none itself
        name = new_recipe.clean_name(Path(os.path.abspath(facts.table)).stem)
        path = new_recipe.write_recipe(
            f"{name}.yaml", path, partial(new_table.fill_table_template, facts)
        )
        return path, new_table.table_steps(facts, path)
    if source is None:
        from composer.cli import new_text

        text = new_text.inspect_text(targets, column)
        name = new_text.text_name(targets[0])
        path = new_recipe.write_recipe(
            f"{name}.yaml", path, partial(new_text.fill_text_template, text)
        )
        return path, new_text.text_steps(text, path)
    corpus = new_recipe.inspect(Path(source), Path(targets[0]))
    name = new_recipe.recipe_name(corpus.source, corpus.target)
    path = new_recipe.write_recipe(f"{name}.yaml", path, partial(new_recipe.fill_template, corpus))
    return path, new_recipe.next_steps(corpus, path)

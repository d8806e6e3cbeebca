"""Fragments, parts of recipes that others extend: finding them, and checking them alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from os.path import realpath
from pathlib import Path

from composer.errors import Fault, RecipeError, format_path
from composer.recipe import schema_generator
from composer.recipe.extends_and_overrides import extend
from composer.recipe.interpolation import substitute_known
from composer.recipe.recipe import load
from composer.recipe.validation import empty_keys, schema_faults
from composer.recipe.yaml_reader import Node, read, to_data

FOLDER = "fragments"
"""The folder of parts of recipes."""
INCOMPLETE = ("missing", "unused")
"""Codes of errors that a fragment may have: other files may give the key, or read the variable."""


def is_fragment(file: Path, root: Node, extended: Iterable[str] = ()) -> bool:
    """True if a file is a fragment: it lacks something, and is in FOLDER or among `extended`.

    What a recipe needs may be the file's own or of what it extends. A file that has all of it is a
    recipe wherever it lies.
    extended: Real paths of what the other files of a check extend.
    """
    is_meant = file.absolute().parent.name == FOLDER or realpath(file) in extended
    return is_meant and "sweep" not in root.value and _lacks_something(file, root)


def _lacks_something(file: Path, root: Node) -> bool:
    """True if others must give a variable or a key, or read a variable."""
    try:
        if substitute_known(extend(file, root))[1]:
            return True
        load(file)
    except RecipeError as error:
        return any(fault.code in INCOMPLETE for fault in error.faults)
    return False


def extended_files(files: Iterable[Path]) -> set[str]:
    """Return the real paths of the readable files that recipes and sweeps name as bases."""
    extended = set()
    for file in files:
        with suppress(RecipeError):
            names = _base_names(to_data(read(file, str(file))))
            extended |= {realpath(file.parent / name) for name in names}
    return extended


def _base_names(data: dict[str, object]) -> Iterator[str]:
    """Yield the paths in `extends` of a recipe, or in `base` and in the axes of a sweep."""
    extends, axes = data.get("extends"), data.get("axes")
    names = [*extends] if isinstance(extends, list) else [extends]
    names.append(data.get("base"))
    for axis in axes.values() if isinstance(axes, dict) else ():
        recipes = axis.get("extend") if isinstance(axis, dict) else None
        if isinstance(recipes, dict):
            names += recipes.values()
    yield from (name for name in names if isinstance(name, str))


def _is_final(fault: Fault) -> bool:
    """False for a missing key that another part may have; a list is replaced as it is."""
    return fault.code != "missing" or "[" in fault.path


def check_fragment(file: Path, root: Node) -> list[str]:
    """Check the YAML, keys and types of a fragment; return the variables that it needs.

    What it lacks may be in another part. Raises RecipeError with every fault.
    """
    part, missing = substitute_known(extend(file, root))
    rules = schema_generator.load()
    # what a whole recipe needs
    partial = {key: rule for key, rule in rules.items() if key not in ("if", "then", "else")}
    unknown_values = {format_path(path) for path in missing}
    faults = [fault for fault in schema_faults(part, partial) if fault.path not in unknown_values]
    faults = [fault for fault in faults if _is_final(fault)]
    if faults := faults or [*empty_keys(part)]:
        raise RecipeError(faults)
    return sorted(set().union(*missing.values()))

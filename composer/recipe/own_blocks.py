"""Own blocks: classes of a script or a notebook, registered as blocks of this process."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import textwrap
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from composer.errors import RecipeError, RunError
from composer.recipe import registry, schema_generator
from composer.recipe.canonical_form import block_paths
from composer.recipe.recipe import Recipe

if TYPE_CHECKING:
    from blocks.core.contract import Block
    from composer.runs.record import RunRecord

Kind = TypeVar("Kind", bound="type[Block]")
GUIDE = "docs/extending.md"


def block(word: str | Kind = "") -> Any:
    """Make a Block class a block of this process, for every recipe: `@composer.block("shift")`.

    word: What recipes call it; by default, with `@composer.block` alone, that of the class:
    `TokenShift` is
        `token_shift`.

    A class takes the place of an earlier one with its word, as when a notebook's cell runs again. A
    run records where the class is and the SHA-256 of its source; who opens the run needs the same
    class. Raises RunError where the word is taken, or the settings or the source cannot be read.
    """
    if not isinstance(word, str):
        return block()(word)

    def register(kind: Kind) -> Kind:
        if not registry.is_block(kind):
            raise TypeError(
                f"a block is a class that derives from blocks.core.contract.Block, not {kind!r:.80}"
            )
        name = word or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
        own, before = describe_class(kind), registry.OWN.get(name)
        is_taken = before is None and name in registry.blocks()
        if is_taken or not re.fullmatch("[a-z][a-z0-9_]*", name):
            message = f"`{name}` is no word for a block"
            if is_taken:
                message = f"there is a block called `{name}` already"
            raise RunError.of(
                message, "write another, of small letters, digits and `_`", own.origin
            )
        _set_own(name, own)
        try:
            schema_generator.generate()
        except Exception as error:  # annotations may be anything
            _set_own(name, before)
            raise RunError.of(
                f"this block cannot be used: {error}", f"see {GUIDE}", own.origin
            ) from error
        return kind

    return register


def _set_own(name: str, own: registry.OwnBlock | None) -> None:
    if own is None:
        registry.OWN.pop(name, None)
    else:
        registry.OWN[name] = own
    for cached in (registry.blocks, registry.block_class, schema_generator.load):
        cached.cache_clear()


def describe_class(kind: type[Block]) -> registry.OwnBlock:
    """Return the place of a class, and the hash of its source without decorators.

    Raises RunError if Python does not have the source.
    """
    known = _own_function(kind) or kind
    try:
        (lines, index), file = inspect.findsource(known), Path(inspect.getfile(known))
        node = _class_at("".join(lines), kind.__name__, index + 1)
    except (OSError, TypeError, ValueError):
        message = "the source of this class cannot be read, and runs record its SHA-256"
        raise RunError.of(
            message, "write the class in a file or in a notebook", kind.__qualname__
        ) from None
    text = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).rstrip()
    origin = f"{file if file.is_file() else 'a notebook'}:{kind.__qualname__}"
    return registry.OwnBlock(kind, origin, hashlib.sha256(text.encode()).hexdigest())


def _own_function(kind: type) -> FunctionType | None:
    """Return a function of a class: in a notebook Python knows the source of functions alone."""
    for value in vars(kind).values():
        # `forward = Other.forward` is elsewhere
        own_name = f"{kind.__qualname__}.{getattr(value, '__name__', '')}"
        if isinstance(value, FunctionType) and value.__qualname__ == own_name:
            return value
    return None


def _class_at(source: str, name: str, line: int) -> ast.ClassDef:
    """Return the innermost class of a name around a line. Raises ValueError if there is none."""
    starts = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if start <= line <= (node.end_lineno or 0):
                starts[start] = node
    return starts[max(starts)]


def refuse_own_blocks(recipe: Recipe, reason: str) -> None:
    """Raise RecipeError if a recipe has blocks that only this process knows."""
    faults = []
    for path in block_paths(recipe.canonical["model"], ("model",)):
        if own := registry.OWN.get(word := str(path[-1])):
            message = f"`{word}` is a block of this process alone, from {own.origin}, and {reason}"
            point = (
                f'[project.entry-points."{registry.GROUP}"] {word} ='
                f' "my_package.{word}:{own.kind.__name__}"'
            )
            hint = (
                f"make it a package with the entry point `{point}` and install it; the guide is"
                f" {GUIDE}"
            )
            faults.append(recipe.fault("block", path, message, hint))
    if faults:
        raise RecipeError(faults)


def check_recorded_blocks(record: RunRecord, run: Path, verify: bool = True) -> None:
    """Raise RunError if a block of a run.json is missing, or, to `verify`, has another source."""
    recorded_blocks = record.plug_ins
    installed = {point.name for point in registry.plug_ins()} if recorded_blocks else set()
    for word, recorded in recorded_blocks.items():
        here, sha256 = registry.OWN.get(word), recorded.get("sha256") or "unknown"
        trained = f"{recorded.get('from')} with the SHA-256 {sha256}"
        if here is None and word not in installed and recorded.get("from"):
            message = f"nothing here defines the block `{word}` of this run, which was {trained}"
            fix = (
                f'define the class in this process, under `@composer.block("{word}")`; or install'
                " it as a package"
            )
            raise RunError.of(message, fix, str(run))
        if verify and here is not None and here.sha256 != sha256:
            message = (
                f"the block `{word}` has another source than in this run's training: it was"
                f" {trained}, and here"
            )
            fix = "take the class as it was, or set SEQCOMPOSER_UNVERIFIED=1 to use this one"
            raise RunError.of(f"{message} it is {here.origin} with {here.sha256}", fix, str(run))

"""Registry of a recipe's words: blocks (`blocks/`, plug-ins, `OWN`), choices, refused words.

Importing this module imports no block and no torch.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

import blocks as block_package
from blocks.core.fixes import write
from composer.errors import KeyPath

if TYPE_CHECKING:
    from blocks.core.contract import Block

GROUP = "seqcomposer.blocks"
"""The entry-point group through which installed packages add blocks."""


class Choice(NamedTuple):
    """One kind of choice: a name, or a name with settings, that stands at one key of a recipe."""

    noun: str
    """What one of them is called in messages."""
    key: tuple[str, ...]
    """Where it stands in a recipe."""
    entries: str
    """`module:TABLE`, a mapping of names to classes; its module imports no torch."""
    stays_bare: bool = False
    """True if a name without settings is a bare name also in canonical form."""

    def constructors(self) -> Mapping[str, Callable[..., Any]]:
        """Import the table of names and classes."""
        return pkgutil.resolve_name(self.entries)


_EMBEDDINGS = "composer.model.embedding_kinds:EMBEDDINGS"
_OUTPUTS = "composer.model.output_kinds:OUTPUTS"
_INITIALIZATIONS = "composer.model.initializations:INITIALIZATIONS"
CHOICES = {
    "optimizers": Choice(
        "optimizer", ("training", "optimizer"), "composer.training.optimizers:OPTIMIZERS"
    ),
    "decoders": Choice("way of decoding", ("decoding",), "composer.inference.methods:DECODERS"),
    "schedules": Choice(
        "schedule", ("training", "schedule"), "composer.training.schedules:SCHEDULES"
    ),
    "tasks": Choice("task", ("data", "generate"), "composer.data.tasks:TASKS"),
    "tokenizers": Choice("tokenizer", ("data", "tokenizer"), "composer.data.tokenizer:TOKENIZERS"),
    "initializations": Choice("initialization", ("training", "initialization"), _INITIALIZATIONS),
    "embeddings": Choice("embedding", ("model", "embedding"), _EMBEDDINGS, stays_bare=True),
    "outputs": Choice("output head", ("model", "output", "kind"), _OUTPUTS, stays_bare=True),
}
"""The kinds of choice besides blocks. Schema, defaults, messages and overrides all derive from
this.
"""
CHOICE_KEYS: dict[KeyPath, str] = {
    **{choice.key: table for table, choice in CHOICES.items()},
    ("training", "validation_sample", "decoding"): "decoders",
}
"""Every key at which one of them is chosen, and from which table."""


def word_and_settings(choice: str | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name that a canonical recipe chooses, and its settings."""
    return (choice, {}) if isinstance(choice, str) else next(iter(choice.items()))


REMOVED_FROM_DECODING = {"compile": "a decoding step is not compiled any more"}
"""Settings that ways of decoding had in an earlier version, and why they are no more."""

RUN_FACTS = ("parameters", "vocabularies", "pairs", "fingerprints")
"""What the config of a run at Weights & Biases has beside the recipe: no axis of a sweep may be
called so.
"""

CPU_REFUSES_16 = (
    "a CPU does not train in `16-mixed`",
    write(("training", "precision"), "bf16-mixed", ", or `32`"),
)
"""Message and fix where nothing but a CPU is to train in half precision."""


class OwnBlock(NamedTuple):
    """A block class of a script or a notebook, its place `FILE:CLASS`, and its source's SHA-256."""

    kind: type[Block]
    origin: str
    sha256: str


OWN: dict[str, OwnBlock] = {}
"""The blocks of this process alone, by their names in a recipe; see `composer.recipe.own_blocks`.
"""


class RegistryError(Exception):
    """A plug-in gives something that is not a block, or a name that is taken."""


@cache
def blocks() -> dict[str, type[Block]]:
    """Return every block class by its name in a recipe, in alphabetical order. Imports torch.

    Raises RegistryError if a file or a plug-in does not give exactly one block with a name of its
    own.
    """
    files = [
        module.name for module in pkgutil.iter_modules(block_package.__path__) if not module.ispkg
    ]
    classes = {name: _block_in_file(name) for name in files}
    for point in plug_ins():
        if point.name in classes:
            message = (
                f"the plug-in {point.value} gives a block called `{point.name}`, and there is one"
                " already"
            )
            raise RegistryError(message)
        classes[point.name] = _block_of_plug_in(point)
    classes |= {name: own.kind for name, own in OWN.items()}
    return dict(sorted(classes.items()))


@cache
def block_class(name: str) -> type[Block]:
    """Return the block class of a name in a recipe, importing no other block.

    Raises KeyError if there is no such block, and RegistryError as `blocks`.
    """
    if name in OWN:
        return OWN[name].kind
    if any(module.name == name for module in pkgutil.iter_modules(block_package.__path__)):
        return _block_in_file(name)
    return {point.name: _block_of_plug_in(point) for point in plug_ins() if point.name == name}[
        name
    ]


def plug_ins() -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages that add blocks, without importing them."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _block_in_file(name: str) -> type[Block]:
    module = importlib.import_module(f"blocks.{name}")
    defined = [value for value in vars(module).values() if is_block(value)]
    classes: list[type[Block]] = [block for block in defined if block.__module__ == module.__name__]
    if len(classes) != 1:
        raise RegistryError(
            f"blocks/{name}.py must define one block, and it defines {len(classes)}"
        )
    return classes[0]


def _block_of_plug_in(point: EntryPoint) -> type[Block]:
    try:
        block: type[Block] = point.load()
    except (Exception, SystemExit) as error:  # whatever a plug-in does when it is imported
        raise RegistryError(
            f"the plug-in {point.value} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not is_block(block):
        raise RegistryError(f"the plug-in {point.value} gives `{point.name}`, which is not a Block")
    return block


def is_block(value: object) -> bool:
    """True for the class of a block."""
    from blocks.core.contract import Block

    return isinstance(value, type) and issubclass(value, Block) and value is not Block

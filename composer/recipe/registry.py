"""Which blocks there are: the files of the folder `blocks/`, and what plug-ins add through an entry point."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import blocks as folder
from blocks.core.contract import Block

GROUP = "seqcomposer.blocks"


class RegistryError(Exception):
    """A plug-in gives what is not a block, or a name that is taken."""


@cache
def blocks() -> dict[str, type[Block]]:
    """Every block by its word in a recipe, in alphabetical order."""
    found = {name: _in_file(name) for name in own_names()}
    for point in plug_ins():
        if point.name in found:
            raise RegistryError(
                f"the plug-in {point.value} gives a block called `{point.name}`, and there is one already"
            )
        found[point.name] = _in_plug_in(point)
    return dict(sorted(found.items()))


def own_names() -> list[str]:
    """The names of the blocks that the project brings: its files."""
    return sorted(module.name for module in pkgutil.iter_modules(folder.__path__) if not module.ispkg)


def plug_ins() -> tuple[EntryPoint, ...]:
    """The entry points through which installed packages add blocks; importing nothing."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _in_file(name: str) -> type[Block]:
    module = importlib.import_module(f"blocks.{name}")
    here = [each for each in vars(module).values() if _is_block(each) and each.__module__ == module.__name__]
    if len(here) != 1:
        raise RegistryError(f"blocks/{name}.py must define one block, and it defines {len(here)}")
    return here[0]


def _in_plug_in(point: EntryPoint) -> type[Block]:
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # whatever a plug-in does when it is imported
        raise RegistryError(f"the plug-in {point.value} cannot be imported: {type(error).__name__}: {error}") from error
    if not _is_block(loaded):
        raise RegistryError(f"the plug-in {point.value} gives `{point.name}`, which is not a Block")
    return loaded


def _is_block(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Block) and thing is not Block

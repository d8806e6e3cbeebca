"""Settings without effect: faults where the recipe itself writes them, warnings where they come from elsewhere.

Elsewhere is a fragment (`extends`), a default under `model`, an override or a sweep's axis.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import torch

from blocks.core.contract import Path, Site, Stream
from blocks.core.scope import Scope
from composer.errors import Fault, RecipeError
from composer.model.builder import Builder, RecordingBuilder, output_names
from composer.recipe.recipe import Recipe

DEPENDS_ON_PLACE = ("name", "memory", "kind", "causality", "pace")
"""Codes of faults that a stack may have in one place and not in another."""


def no_effect_faults(builder: RecordingBuilder, vocabularies: Mapping[str, int]) -> list[Fault]:
    """Return a fault or a warning for all that changes nothing in the model that has been built."""
    recipe = builder.recipe
    faults = [*builder_faults(builder)]
    before = recipe.before_overrides() if any(fault.severity == "error" for fault in faults) else None
    if before is None:
        return faults
    first = RecordingBuilder(before)
    try:
        with torch.device("meta"):
            first.model(defaultdict(lambda: max(vocabularies.values()), vocabularies))
    except RecipeError:
        return [fault.as_warning() for fault in faults]
    known = set(builder_faults(first))
    # what changes nothing only since an override or an axis has its value is no fault of the recipe
    return [fault if fault in known else fault.as_warning() for fault in faults]


def builder_faults(builder: RecordingBuilder) -> Iterator[Fault]:
    """Yield the faults and warnings of settings, named stacks and defaults under `model`."""
    recipe, effective = builder.recipe, effective_defaults(builder)
    reported: set[Path] = set()
    for path, (message, fix) in builder.no_effects.items():
        _, steps, _ = recipe.locate(path)
        if steps not in effective | reported:  # a default may change something at another block
            yield recipe.no_effect(path, message, fix)
        reported.add(steps)
    for name, uses in builder.uses.items():
        if len(uses) == 1 and uses[0][1]:
            message = f"this is the only use of `{name}`, so it shares with none"
            yield recipe.no_effect((*uses[0][0], "copy"), message, "remove `copy`")
    for name in recipe.model["stacks"] or {}:
        if name not in builder.uses:
            path = ("model", "stacks", name)
            yield recipe.no_effect(path, "no `use` names this stack", f"write `- use: {name}`, or remove it")
            yield from unused_stack_faults(builder, name)
    for path in written_defaults(recipe):
        if path not in effective and path not in reported:
            message = f"no block takes this default, `{path[-1]}`"
            fix = "remove it, or write it at a block"
            yield recipe.fault("unused", path, message, fix).as_warning()


def effective_defaults(builder: RecordingBuilder) -> set[Path]:
    """Return the paths, as written, of all that changes something at a block."""
    recipe = builder.recipe
    return {
        recipe.locate((*path, setting))[1]
        for path in builder.names
        for setting in recipe.settings_at(path)
        if (*path, setting) not in builder.no_effects
    }


def written_defaults(recipe: Recipe) -> Iterator[Path]:
    """Yield the paths of the defaults of blocks, and of `dropout`, that `model` has."""
    for name, node in recipe.root.value["model"].value.items():
        path: Path = ("model", name)
        if f"defaults.{name}" not in recipe.rules["$defs"]:
            yield from [path] if name == "dropout" else []
        elif isinstance(node.value, dict):
            yield from ((*path, setting) for setting in node.value)
        else:
            yield path


def unused_stack_faults(builder: RecordingBuilder, name: str) -> list[Fault]:
    """Return the faults that a named stack would have wherever it was used."""
    recipe, faults = builder.recipe, []
    stack, width = recipe.model["stacks"][name], recipe.model["width"]
    for stream, causal in ((Stream(width), ""), (Stream(width), "a decoder"), (Stream(width, True, columns=4), "")):
        scratch = Builder(recipe, open_stacks=[name], size=builder.size)
        names = Scope.root(stream, declared=set(output_names(stack)))
        site = Site(stream, width, names, {}, [], causal, ("model", "stacks", name))
        with torch.device("meta"):
            scratch.stack(site, stack)
        faults.append(scratch.faults)
    best = min(faults, key=lambda some: (sum(fault.code in DEPENDS_ON_PLACE for fault in some), len(some)))
    return [fault for fault in best if fault.code not in DEPENDS_ON_PLACE]

"""What differs in two recipes beside their stacks: data, training, decoding, and what decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from composer.comparison.changes import Change
from composer.comparison.tree import CHOICE, STACKS, TreeNode
from composer.errors import format_path
from composer.recipe.json_schema import Schema, dereference
from composer.recipe.recipe import Recipe

SECTIONS = ("model", "data", "training", "decoding", "trainer", "logging")


def setting_changes(one: Recipe, other: Recipe) -> list[Change]:
    """Every setting outside the stacks that differs, section by section."""
    found: list[Change] = []
    for section in SECTIONS:
        schema = one.rules["properties"][section]
        before, after = (_without_stacks(each.frozen[section], section) for each in (one, other))
        walker = Walker(one, section)
        found += walker.between(before, after, schema, () if section != "decoding" else ("decoding",))
    return found


def _without_stacks(value: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    left_out = STACKS if section == "model" else ()
    return {key: each for key, each in value.items() if key not in left_out}


class Walker:
    """Follows two values and their schema side by side."""

    def __init__(self, recipe: Recipe, section: str) -> None:
        self.defs, self.section = recipe.rules["$defs"], section

    def between(self, before: Any, after: Any, schema: Schema, path: tuple[str | int, ...]) -> Iterator[Change]:
        """The changes from one value to the other."""
        if before == after:
            return
        rules = dereference(self.defs, schema)
        table = rules.get("x-choice")
        if table and before is not None and after is not None:
            yield from self.choice(before, after, str(table), path)
        elif isinstance(before, Mapping) and isinstance(after, Mapping):
            known, more = rules.get("properties", {}), rules.get("additionalProperties")
            for key in dict.fromkeys((*before, *after)):
                inner = known.get(key, more if isinstance(more, Mapping) else {})
                yield from self.between(before.get(key), after.get(key), inner, (*path, key))
        else:
            told = (self.told(each, str(table or "")) for each in (before, after))
            yield Change("set", self.section, "", "", "", format_path(path), *told)

    def choice(self, before: Any, after: Any, table: str, path: tuple[str | int, ...]) -> Iterator[Change]:
        """Two single-key mappings: one choice with other settings, or another choice."""
        ((one, settings),), ((other, others),) = before.items(), after.items()
        if one == other:
            yield from self.between(settings, others, self.defs.get(f"{table}.{one}", {}), (*path, one))
        else:
            told = (self.told(each, table) for each in (before, after))
            yield Change("replaced", self.section, format_path(path), format_path(path), "", "", *told)

    def told(self, value: Any, table: str) -> Any:
        """A choice as people write it; anything else as it is."""
        if not table or value is None:
            return value
        ((word, settings),) = value.items()
        entry = self.defs.get(f"{table}.{word}", {})
        usual = {key: each.get("default") for key, each in entry.get("properties", {}).items()}
        return TreeNode(CHOICE, word, (), settings, (), usual, entry.get("x-first")).here()

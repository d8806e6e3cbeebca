"""Canonical form of a recipe: every default filled in, every block with all its settings.

And its size.

All defaults are the schema's. What is written at a block comes first, then `model.BLOCK`, then
`model.dropout`, then the constructor's default. Mappings of names that the user chose (branches,
encoders, stacks) are in alphabetical order, but for an encoder that reads another and comes after
it: a recipe means the same whatever the order of its keys. Only a line with the texts of several
encoders has them in the order that is written (`Recipe.sources`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from composer.errors import Fault, KeyPath, RecipeError
from composer.recipe.registry import CHOICES
from composer.recipe.schema_reader import (
    Schema,
    dereference,
    is_block_path,
    ref_name,
    select_branch,
)
from composer.recipe.yaml_reader import MAX_DEPTH, items_of, reachable, strings_in

EXCLUDED_KEYS = ("extends", "vars", "description")
TRAINING_WITHOUT_EFFECT = ("workers", "checkpoints_gib")
"""Keys of `training` that can change without changing the result."""
BUDGET_KEYS = ("max_steps", "max_epochs", "max_minutes")
"""Keys of `training` that limit it, and that may change when a run is resumed."""
DEFAULT_EPOCHS = 10
"""The budget of a recipe that gives none."""
TRAINER_WITH_EFFECT = ("limit_val_batches",)
"""Keys of `trainer` that change the result: which checkpoint is the best, and when training stops
early.
"""

MOST_BLOCKS = 10_000
"""Blocks of one model, each as often as it has parameters of its own, and each layer of one."""
MOST_STEPS = 100_000
"""Steps through blocks for one position: a model with more would train for ever."""
FACTORS = ("times", "layers", "hops", "experts")
"""Settings that say how often something is done."""

SETTINGS_BY_KIND = {
    "text": (),
    "image": ("size", "channels", "positions", "augment"),
    "audio": ("rate", "seconds", "features", "normalize", "spec_augment"),
    "vectors": ("width", "spec_augment"),
}
"""The settings of a table's column that are not of every kind, by the kinds that have them."""

HOLDING_OUT = ("parallel", "table", "text")
"""Sections of `data` that can hold out some of their training part, as their `hold_out` says."""

Data = dict[str, Any]


def fill_defaults(explicit: Data, schema: Schema, name: str) -> Data:
    """Return the canonical form of a validated recipe; `name` is its name if it has none."""
    model, defs = explicit["model"], schema["$defs"]
    defaults = {key: value for key, value in model.items() if f"defaults.{key}" in defs}
    filler = DefaultFiller(defs, defaults, model.get("dropout"))
    canonical = {
        key: value
        for key, value in filler.section(explicit, schema).items()
        if key not in EXCLUDED_KEYS
    }
    canonical["name"] = canonical["name"] or name
    canonical["model"] = {
        key: value for key, value in canonical["model"].items() if f"defaults.{key}" not in defs
    }
    if encoders := canonical["model"]["encoders"]:
        canonical["model"]["encoders"] = dict(
            order_encoders(encoders, canonical["model"]["stacks"] or {})
        )
    if table := canonical["data"]["table"]:
        canonical["data"]["table"] = {
            side: keep_own_settings(column) for side, column in table.items()
        }
    for section in filter(None, map(canonical["data"].get, HOLDING_OUT)):
        if not any(isinstance(section[split], int) for split in ("val", "test")):
            del section["hold_out"]  # nothing is
    ((_, optimizer),) = canonical["training"]["optimizer"].items()
    if not optimizer["weight_decay"]:
        del optimizer[decay_key(optimizer)]  # it falls on nothing
    if all(canonical["training"][key] is None for key in BUDGET_KEYS):
        canonical["training"]["max_epochs"] = DEFAULT_EPOCHS
    return canonical


def used_model(model: Data) -> Data:
    """Return the canonical section `model` without what no block of it is changed by."""
    stacks = model["stacks"] or {}
    used = reachable([model[key] for key in ("encoder", "encoders", "decoder")], stacks, strings_in)
    output = {**model["output"], "tie": sorted(model["output"]["tie"])}
    model = {key: value for key, value in model.items() if key != "dropout"}
    return {
        **model,
        "output": output,
        "stacks": {name: stack for name, stack in stacks.items() if name in used},
    }


def order_encoders(encoders: Data, stacks: Data) -> Iterator[tuple[str, object]]:
    """Yield each encoder after those that its stack reads; else by name.

    Where two name each other, one comes first and cannot read the other.
    """
    read = {
        name: reachable([stack], stacks | encoders, _names_in) - {name}
        for name, stack in encoders.items()
    }
    waiting = dict(encoders)
    while waiting:
        name = next(
            (name for name in waiting if not read[name] & waiting.keys()), next(iter(waiting))
        )
        yield name, waiting.pop(name)


def _names_in(stack: object) -> Iterator[str]:
    """Yield what may be the name of an encoder, `name` or `name.output`, or of a stack."""
    return (text.partition(".")[0] for text in strings_in(stack))


def keep_own_settings(column: object) -> object:
    """Return a column of a table without the settings of other kinds."""
    if not isinstance(column, dict) or "kind" not in column:
        return column
    own_keys = SETTINGS_BY_KIND[column["kind"]]
    settings = dict(column)
    for keys in SETTINGS_BY_KIND.values():
        for key in keys:
            if key not in own_keys:
                settings.pop(key, None)
    return settings


def decay_key(settings: Mapping[str, object]) -> str:
    """Return the setting that selects the parameters with weight decay.

    `decay` is a rate of some optimizers.
    """
    return "decayed" if "decayed" in settings else "decay"


class DefaultFiller(NamedTuple):
    """Walks a value and its schema side by side."""

    defs: Schema
    defaults: Data  # of `model`, by the block's name
    dropout: float | None

    def value(self, value: Any, schema: Schema) -> Any:
        """Return a value in canonical form."""
        if value is None:
            return None
        if "$ref" in schema and "x-choice" in self.defs[ref_name(schema)]:
            return self.choice(value, ref_name(schema))
        if "x-list" in schema and not isinstance(value, list):
            return [value]
        rules = dereference(self.defs, schema)
        if isinstance(value, list):
            return [self.value(item, rules.get("items", {})) for item in value]
        if isinstance(value, dict) and "properties" in rules:
            return self.section(value, rules)
        if isinstance(value, dict):  # of names that the user chose
            return {
                key: self.value(value[key], rules.get("additionalProperties", {}))
                for key in sorted(value)
            }
        branch = (select_branch(schema, value) or {}) if "anyOf" in schema else schema
        return float(value) + 0.0 if branch.get("type") == "number" else value  # -0.0 is 0.0

    def section(self, explicit: Data, schema: Schema) -> Data:
        """Return a mapping with a default for each key that is not written."""
        keys = schema["properties"]
        section = {}
        for key, setting in keys.items():
            if key in explicit:
                section[key] = self.value(explicit[key], setting)
            elif key not in schema.get("required", ()) and not setting.get("x-open"):
                section[key] = self.value(setting.get("default"), setting)
        more = sorted(key for key in explicit if key not in keys)
        return section | {
            key: self.value(explicit[key], schema["additionalProperties"]) for key in more
        }

    def choice(self, value: Any, table: str) -> Any:
        """Return a choice as a single-key mapping with all its settings.

        Some choices without settings are bare names.
        """
        name, settings = (value, {}) if isinstance(value, str) else next(iter(value.items()))
        entry = self.defs[f"{table}.{name}"]
        if table in CHOICES and CHOICES[table].stays_bare and not entry["properties"]:
            return name
        settings = _as_mapping(settings, entry)
        if table == "block":  # `model.NAME` comes before `model.dropout`
            key = "rate" if name == "dropout" else "dropout"
            setting = entry["properties"].get(key, {"x-earlier": True})
            is_given = self.dropout is not None and "x-earlier" not in setting
            dropout = {key: self.dropout} if is_given else {}
            settings = dropout | _as_mapping(self.defaults.get(name, {}), entry) | settings
        return {name: self.section(settings, entry)}


def _as_mapping(settings: object, entry: Schema) -> Data:
    return settings if isinstance(settings, dict) else {entry["x-first"]: settings}


# ------------------------------------------------------------------------------------------- size


def check_block_count(model: Data, fault: Callable[[str, KeyPath, str, str], Fault]) -> None:
    """Raise RecipeError at the setting or block that gives a model too many blocks or steps.

    `model` is the canonical section; `fault` makes the fault at a path of it.
    """
    counter = _BlockCounter(model["stacks"] or {}, fault)
    stacks: dict[KeyPath, Any] = {("model", "encoder"): model["encoder"]}
    for name, stack in (model["encoders"] or {}).items():
        stacks["model", "encoders", name] = stack
    stacks["model", "decoder"] = model["decoder"]
    num_blocks = {}
    for path, stack in stacks.items():
        if stack is not None:
            num_written = sum(1 for _ in block_paths(stack))
            num_blocks[path] = max(counter.count(stack, path)[0], num_written)
    largest = max(num_blocks, key=num_blocks.__getitem__)
    counter.check(sum(num_blocks.values()), 0, largest, "this with the other stacks")


def block_paths(tree: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every block in a part of a canonical recipe at `path`.

    Each path ends with the block's word.
    """
    for key, value in items_of(tree):
        if is_block_path((*path, key)):
            yield (*path, key)
        yield from block_paths(value, (*path, key))


@dataclass
class _BlockCounter:
    stacks: Data
    fault: Callable[[str, KeyPath, str, str], Fault]
    # of each block around this one, the stack that it uses
    enclosing: list[str] = field(default_factory=list)

    def count(self, value: object, path: KeyPath) -> tuple[int, int]:
        """Return the blocks and the steps in a stack, or in anything that contains stacks."""
        blocks = steps = 0
        for key, item in items_of(value):
            here: KeyPath = (*path, key)
            if isinstance(value, list) and isinstance(item, dict) and len(item) == 1:
                inner, here = self.block(item, here), (*here, next(iter(item)))
            elif isinstance(item, (dict, list)):
                inner = self.count(item, here)
            else:
                continue
            blocks, steps = blocks + inner[0], steps + inner[1]
            self.check(blocks, steps, here, "this stack")
        return blocks, steps

    def block(self, entry: dict[str, Any], path: KeyPath) -> tuple[int, int]:
        """Return the blocks and the steps of one block with all inside it."""
        ((word, settings),) = entry.items()
        name = settings["stack"] if word == "use" else ""
        if name and (name in self.enclosing or name not in self.stacks):
            return 1, 1  # a fault that is found later
        if len(self.enclosing) == MAX_DEPTH:
            message = f"more than {MAX_DEPTH} blocks are nested here, those of named stacks counted"
            raise RecipeError(
                [self.fault("depth", (*path, word), message, "write blocks one after another")]
            )
        self.enclosing.append(name)
        inside = (
            (self.stacks[name], ("model", "stacks", name)) if name else (settings, (*path, word))
        )
        blocks, steps = (max(1, number) for number in self.count(*inside))
        self.enclosing.pop()
        for name in FACTORS:
            times = settings.get(name)
            if type(times) is int:
                is_shared = bool(settings.get("share") or settings.get("relaxation"))
                blocks, steps = blocks * (1 if is_shared else times), steps * times
                self.check(blocks, steps, (*path, word, name), f"`{name}: {times}`")
        return blocks, steps

    def check(self, blocks: int, steps: int, path: KeyPath, cause: str) -> None:
        for count, most, noun in ((blocks, MOST_BLOCKS, "blocks"), (steps, MOST_STEPS, "steps")):
            if count > most:
                message = f"{cause} makes {count:,} {noun}, and a model has at most {most:,}"
                fix = "repeat less often, or write fewer blocks"
                raise RecipeError([self.fault("size", path, message, fix)])

"""Canonical form of a recipe (every default filled in, every block with all its settings) and its fingerprints.

All defaults are the schema's. What is written at a block comes first, then `model.BLOCK`, then `model.dropout`, then
the constructor's default. Mappings of names that the user chose (branches, encoders, stacks) are in alphabetical order:
a recipe means the same whatever the order of its keys.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from composer.recipe.node import strings_in
from composer.recipe.schema_reader import Schema, dereference, ref_name, select_branch

EXCLUDED_KEYS = ("extends", "vars", "description")
TRAINING_WITHOUT_EFFECT = ("workers",)
"""Keys of `training` that can change without changing the result."""
TRAINER_WITH_EFFECT = ("limit_val_batches",)
"""Keys of `trainer` that change the result: which checkpoint is the best, and when training stops early."""

Data = dict[str, Any]


def fill_defaults(explicit: Data, schema: Schema, name: str) -> Data:
    """Return the canonical form of a validated recipe; `name` is its name if it has none."""
    model, defs = explicit["model"], schema["$defs"]
    defaults = {key: value for key, value in model.items() if f"defaults.{key}" in defs}
    filler = _DefaultFiller(defs, defaults, model.get("dropout"))
    frozen = {key: value for key, value in filler.section(explicit, schema).items() if key not in EXCLUDED_KEYS}
    frozen["name"] = frozen["name"] or name
    frozen["model"] = {key: value for key, value in frozen["model"].items() if f"defaults.{key}" not in defs}
    if all(frozen["training"][budget] is None for budget in ("max_steps", "max_epochs", "max_minutes")):
        frozen["training"]["max_epochs"] = 10
    return frozen


def fingerprints(
    frozen: Data, data: str | None = None, began: Data | None = None, processes: int = 1
) -> dict[str, str]:
    """Return SHA-256 fingerprints, in hexadecimal, of `model`, `data` and `run` (all that decides the result).

    `data` is the fingerprint of the data if more is known of them than what the recipe says; `began` identifies the
    initial weights and the tokenizer of a run that did not start from random weights. `processes` are those of a
    training that draws random numbers, each process its own; where nothing is drawn, any number of them counts as 1.

    What changes a weight or a score changes `run`:

    - all of `model` but `dropout`, which the blocks' own settings contain by now; encoders' names count too, since
      weights are called by them; a stack that no block uses does not;
    - all of `data`, `decoding` and `training` but TRAINING_WITHOUT_EFFECT: `compile` and `accumulate` round
      differently;
    - of `trainer` only TRAINER_WITH_EFFECT. The rest is the machine (accelerator, devices, strategy, `benchmark`,
      `deterministic`): it changes how sums are rounded, and on another kind of device which random numbers are drawn.
      Like the code and the trained tokenizer it belongs to the environment record in run.json.

    `logging`, `name`, `description` and `vars` do not count.
    """
    model = {key: value for key, value in frozen["model"].items() if key != "dropout"}
    model["output"] = {**model["output"], "tie": sorted(model["output"]["tie"])}
    model["stacks"] = used_stacks(model)
    hashes = {"model": _hash(_without_relaxation(model)), "data": data or _hash(frozen["data"])}
    run = {
        **hashes,
        "training": {key: value for key, value in frozen["training"].items() if key not in TRAINING_WITHOUT_EFFECT},
        "decoding": frozen["decoding"],
        "trainer": {key: frozen["trainer"][key] for key in TRAINER_WITH_EFFECT},
        "began": began,
    }
    if processes > 1:
        run["processes"] = processes
    return {**hashes, "run": _hash(run)}


def used_stacks(model: Data) -> Data:
    """Return the named stacks that the encoders and the decoder use, directly or through other stacks."""
    stacks = model.get("stacks") or {}
    todo = [model.get(key) for key in ("encoder", "encoders", "decoder")]
    used: set[str] = set()
    while todo:
        new = set(strings_in(todo.pop())) & stacks.keys() - used
        used |= new
        todo += [stacks[name] for name in new]
    return {name: stack for name, stack in stacks.items() if name in used}


def _without_relaxation(data: Any) -> Any:
    # one setting of `repeat` took the place of three; where it is absent they are hashed, with their defaults, so that
    # fingerprints of earlier runs stay true
    if isinstance(data, list):
        return [_without_relaxation(item) for item in data]
    if not isinstance(data, dict):
        return data
    hashed = {key: _without_relaxation(value) for key, value in data.items()}
    if "relaxation" in hashed and hashed["relaxation"] is None:
        del hashed["relaxation"]
        hashed |= {"sets": 1, "pull": 5e-4, "join": 0.5}
    return hashed


def _hash(data: Any) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class _DefaultFiller(NamedTuple):
    """Walks a value and its schema side by side."""

    defs: Schema
    defaults: Data  # of `model`: a block's name, and what is written there
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
            return {key: self.value(value[key], rules.get("additionalProperties", {})) for key in sorted(value)}
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
        return section | {key: self.value(explicit[key], schema["additionalProperties"]) for key in more}

    def choice(self, value: Any, table: str) -> Data:
        """Return a single-key mapping: the name and all its settings."""
        name, settings = (value, {}) if isinstance(value, str) else next(iter(value.items()))
        entry = self.defs[f"{table}.{name}"]
        settings = _as_mapping(settings, entry)
        if table == "block":  # `model.NAME` comes before `model.dropout`
            key = "rate" if name == "dropout" else "dropout"
            dropout = {key: self.dropout} if self.dropout is not None and key in entry["properties"] else {}
            settings = dropout | _as_mapping(self.defaults.get(name, {}), entry) | settings
        return {name: self.section(settings, entry)}


def _as_mapping(settings: Any, entry: Schema) -> Data:
    return settings if isinstance(settings, dict) else {entry["x-first"]: settings}

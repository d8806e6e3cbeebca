"""The canonical form of a recipe: every default filled in, every block with all its settings.

All defaults are the schema's. What is written at a block comes first, then `model.BLOCK`, then `model.dropout`, then
the constructor's default. Mappings of names that the user chose (branches, encoders, stacks) are in alphabetical order:
a recipe means the same whatever the order of its keys.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from composer.recipe.json_schema import Schema, dereference, ref_name, select_branch
from composer.recipe.node import strings_in

DEFAULT_EPOCHS = 10
BUDGETS = ("max_steps", "max_epochs", "max_minutes")
EXCLUDED_KEYS = ("extends", "vars", "description")
TRAINING_WITHOUT_EFFECT = ("workers",)
"""What of `training` can change without changing the result."""
TRAINER_WITH_EFFECT = ("limit_val_batches",)
"""What of `trainer` decides: which checkpoint is the best, and when a training is stopped early."""

Data = dict[str, Any]


def fill_defaults(written: Data, schema: Schema, name: str) -> Data:
    """The canonical form of a recipe that the schema has found good; `name` is its name if it has none."""
    model, defs = written["model"], schema["$defs"]
    defaults = {key: value for key, value in model.items() if f"defaults.{key}" in defs}
    freezer = _DefaultFiller(defs, defaults, model.get("dropout"))
    frozen = freezer.section({key: value for key, value in written.items() if key not in EXCLUDED_KEYS}, schema)
    frozen = {key: value for key, value in frozen.items() if key not in EXCLUDED_KEYS}
    frozen["name"] = frozen["name"] or name
    frozen["model"] = {key: value for key, value in frozen["model"].items() if f"defaults.{key}" not in defs}
    if all(frozen["training"][budget] is None for budget in BUDGETS):
        frozen["training"]["max_epochs"] = DEFAULT_EPOCHS
    return frozen


def fingerprints(frozen: Data, data: str | None = None, began: Data | None = None) -> dict[str, str]:
    """SHA-256, in hexadecimal, of what is trained, of what it is trained on, and of all that decides the result.

    `data` is the fingerprint of the data where more is known of them than what the recipe says; `began` is what stands
    for the weights and the tokenizer that a run did not begin with at random.

    What changes a weight, or a score, changes `run`. All of `model` counts but `dropout`, which stands in the blocks'
    own settings by now; names count too, since weights are called by those of encoders. All of `data`, `decoding` and
    `training` counts but DECIDES_NOTHING; `compile` and `accumulate` round differently, and a budget in minutes is what
    it says. Of `trainer` DECIDES counts. The rest of it is the machine: accelerator, devices, strategy, `benchmark` and
    `deterministic` change how sums are rounded, and several processes which units are dropped, but not what is asked
    for; they belong to the lock in run.json, as do the code, plug-ins' too, and the tokenizer that came out: `unigram`
    is another whenever it is trained. `logging`, `name`, `description` and `vars` decide nothing, nor does a stack that
    nobody uses.
    """
    model = {key: value for key, value in frozen["model"].items() if key != "dropout"}
    model["output"] = {**model["output"], "tie": sorted(model["output"]["tie"])}
    model["stacks"] = used_stacks(model)
    found = {"model": _hash(model), "data": data or _hash(frozen["data"])}
    run = {
        **found,
        "training": {key: value for key, value in frozen["training"].items() if key not in TRAINING_WITHOUT_EFFECT},
        "decoding": frozen["decoding"],
        "trainer": {key: frozen["trainer"][key] for key in TRAINER_WITH_EFFECT},
        "began": began,
    }
    return {**found, "run": _hash(run)}


def used_stacks(model: Data) -> Data:
    """The named stacks that the encoders and the decoder use, or stacks that these use."""
    stacks = model.get("stacks") or {}
    todo = [model.get(key) for key in ("encoder", "encoders", "decoder")]
    used: set[str] = set()
    while todo:
        new = set(strings_in(todo.pop())) & stacks.keys() - used
        used |= new
        todo += [stacks[name] for name in new]
    return {name: stack for name, stack in stacks.items() if name in used}


def _hash(data: Any) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class _DefaultFiller(NamedTuple):
    """Follows a value and its schema side by side."""

    defs: Schema
    defaults: Data  # of `model`: a block's name, and what is written there
    dropout: float | None

    def value(self, value: Any, schema: Schema) -> Any:
        if value is None:
            return None
        if "$ref" in schema and "x-choice" in self.defs[ref_name(schema)]:
            return self.choice(value, ref_name(schema))
        if "x-list" in schema and not isinstance(value, list):
            return [value]
        if isinstance(value, dict):
            return self.mapping(value, dereference(self.defs, schema))
        if isinstance(value, list):
            items = dereference(self.defs, schema).get("items", {})
            return [self.value(item, items) for item in value]
        part = (select_branch(schema, value) or {}) if "anyOf" in schema else schema
        return float(value) + 0.0 if part.get("type") == "number" else value  # -0.0 is 0.0

    def mapping(self, value: Data, schema: Schema) -> Data:
        if "properties" in schema:
            return self.section(value, schema)
        each = schema.get("additionalProperties", {})
        return {key: self.value(value[key], each) for key in sorted(value)}

    def section(self, written: Data, schema: Schema) -> Data:
        """A mapping with a default for each key that is not written."""
        known = schema["properties"]
        frozen = {}
        for key, each in known.items():
            if key in written:
                frozen[key] = self.value(written[key], each)
            elif key not in schema.get("required", ()) and not each.get("x-open"):
                frozen[key] = self.value(each.get("default"), each)
        more = sorted(key for key in written if key not in known)
        return frozen | {key: self.value(written[key], schema["additionalProperties"]) for key in more}

    def choice(self, written: Any, table: str) -> Data:
        """A single-key mapping: the name and all its settings."""
        name, settings = (written, {}) if isinstance(written, str) else next(iter(written.items()))
        entry = self.defs[f"{table}.{name}"]
        given = _as_mapping(settings, entry)
        if table == "block":
            given = self.inherited(name, entry) | given
        return {name: self.section(given, entry)}

    def inherited(self, name: str, entry: Schema) -> Data:
        """What `model.dropout` and `model.NAME` say of a block."""
        settings = entry["properties"]
        key = "rate" if name == "dropout" else "dropout"
        everywhere = {key: self.dropout} if self.dropout is not None and key in settings else {}
        return everywhere | _as_mapping(self.defaults.get(name, {}), entry)


def _as_mapping(settings: Any, entry: Schema) -> Data:
    return settings if isinstance(settings, dict) else {entry["x-first"]: settings}

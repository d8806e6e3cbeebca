"""SHA-256 of the meaning of a canonical recipe: without defaults and sections that are off.

What a fingerprint leaves out is what the first runs were trained with (`earlier_versions`): a
setting that is added later changes no fingerprint, and one that has a default of another meaning
changes those of the recipes that it changes. Of blocks that are not of this project all settings
count, since changes of their defaults are unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from composer.recipe import earlier_versions
from composer.recipe.canonical_form import (
    TRAINER_WITH_EFFECT,
    TRAINING_WITHOUT_EFFECT,
    DefaultFiller,
    used_model,
)
from composer.recipe.earlier_versions import TRAINING_CHANGES, concerning_changes, earlier_rules
from composer.recipe.schema_reader import Schema, dereference, ref_name

FINGERPRINT_VERSION = "2"
"""Of what fingerprints are made of. Those of another version are computed anew from what a run
stores: 1 counted every default, and files of texts by their bytes.
"""

Data = dict[str, Any]


def fingerprints(
    canonical: Data,
    rules: Schema,
    data: str | None = None,
    began: Data | None = None,
    processes: int = 1,
    budgets: Sequence[Mapping[str, object]] = (),
    changes: Collection[str] = TRAINING_CHANGES.keys(),
    teacher: Data | None = None,
) -> dict[str, str]:
    """Return the SHA-256 of `model`, `data`, and `run`: everything that decides the result.

    `data` is the fingerprint of the data if more is known of them than what the recipe says;
    `began` identifies the initial weights and the tokenizer of a run that did not start from random
    weights. `processes` are those of a training that draws random numbers, each process its own;
    where nothing is drawn, any number of them counts as 1. `budgets` are those of a training whose
    budget was changed, or that was finished early. `changes` are the names of the TRAINING_CHANGES
    with which the training began, of which those count that concern the recipe. `teacher`
    identifies the weights and the tokenizer of the run that `training.distillation` names, which
    then counts by these, not by its name.

    What changes a weight or a score changes `run`:

    - all of `model` but `dropout`, which the blocks' own settings contain by now; encoders' names
      count too, since weights are called by them; a stack that no block uses does not;
    - all of `data`, `decoding` but its `engine`, `evaluation`, and `training` but
      TRAINING_WITHOUT_EFFECT: `compile` and `accumulate` round differently;
    - of `trainer` only TRAINER_WITH_EFFECT. The rest is the machine (accelerator, devices,
      strategy, `benchmark`, `deterministic`): it changes how sums are rounded, and on another kind
      of device which random numbers are drawn. Like the code and the trained tokenizer it belongs
      to the environment record in run.json.

    `logging`, `name`, `description` and `vars` do not count.
    """
    model, decoding = used_model(canonical["model"]), without_engine(canonical["decoding"])
    reduced = without_defaults({**canonical, "model": model, "decoding": decoding}, rules)
    sections = {
        key: reduced.get(key, {})
        for key in ("data", "model", "training", "decoding", "evaluation", "trainer")
    }
    hashes = {"model": sha256_of(sections["model"]), "data": data or sha256_of(sections["data"])}
    free = {
        "training": TRAINING_WITHOUT_EFFECT,
        "trainer": sections["trainer"].keys() - set(TRAINER_WITH_EFFECT),
    }
    for key, names in free.items():
        sections[key] = {name: value for name, value in sections[key].items() if name not in names}
    run: Data = {
        key: sections[key]
        for key in ("training", "decoding", "evaluation", "trainer")
        if sections[key]
    }
    if teacher:
        named = sections["training"]["distillation"]
        settings = {key: value for key, value in named.items() if key != "teacher"}
        run["training"] = sections["training"] | {"distillation": settings}
        run["teacher"] = teacher
    # which the lines do not show: it rounds, and drops, otherwise
    if data and canonical["data"]["packing"]:
        run["packing"] = True
    if began:
        run["began"] = began
    if processes > 1:
        run["processes"] = processes
    if budgets:
        run["budgets"] = [*budgets]
    if concerning := concerning_changes(canonical, changes):
        run["training_changes"] = sorted(concerning)
    return {**hashes, "run": sha256_of({**hashes, **run})}


def without_engine(decoding: Data) -> Data:
    """Return a section `decoding` without what runs the model, which changes no answer."""
    return {
        method: {name: value for name, value in settings.items() if name != "engine"}
        for method, settings in decoding.items()
    }


def without_defaults(canonical: Data, rules: Schema) -> Data:
    """Return a canonical recipe without settings that equal the first version's defaults.

    With the same schema nothing is lost: what is not there has this value.
    """
    return _remover(rules).reduce(canonical)


def _remover(rules: Schema) -> _DefaultRemover:
    """Return the remover of a schema's defaults, cached until the schema or the table changes."""
    global _last_remover
    if _last_remover is None or not _last_remover.is_of(rules):
        _last_remover = _DefaultRemover(rules)
    return _last_remover


def sha256_of(data: object) -> str:
    """Return the SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(_json(data).encode()).hexdigest()


def _json(data: object) -> str:
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


class _DefaultRemover:
    """Removes defaults from a canonical value by its schema; reverse of `DefaultFiller`."""

    def __init__(self, rules: Schema) -> None:
        self._rules, self._trained_with = rules, earlier_versions.TRAINED_WITH
        self._earlier = earlier_rules(rules)
        self._defs: Schema = self._earlier["$defs"]
        # by the id of a setting, which is kept alive here
        self._defaults: dict[int, tuple[Schema, str]] = {}

    def is_of(self, rules: Schema) -> bool:
        """True if this removes the defaults of these rules, as the table has them now."""
        return self._rules is rules and self._trained_with is earlier_versions.TRAINED_WITH

    def reduce(self, canonical: Data) -> Data:
        """Return a canonical recipe without the settings that equal their defaults."""
        return self.section(canonical, self._earlier)

    def value(self, value: Any, schema: Schema) -> Any:
        """Return a value without defaults in it."""
        rules = dereference(self._defs, schema)
        if isinstance(value, dict) and "$ref" in schema and "x-choice" in rules:
            return self.choice(value, ref_name(schema))
        if isinstance(value, list):
            return [self.value(item, rules.get("items", {})) for item in value]
        if isinstance(value, dict) and "properties" in rules:
            return self.section(value, rules)
        if isinstance(value, dict):
            return {
                key: self.value(item, rules.get("additionalProperties", {}))
                for key, item in value.items()
            }
        return value

    def section(self, settings: Data, schema: Schema) -> Data:
        """Return the settings of a mapping that differ from their defaults, or have none."""
        reduced = {}
        for key, value in settings.items():
            setting = schema["properties"].get(key) or schema["additionalProperties"]
            own = self.value(value, setting)
            is_filled = key in schema["properties"] and key not in schema.get("required", ())
            # 1 is not 1.0
            if not is_filled or setting.get("x-open") or _json(own) != self.default(setting):
                reduced[key] = own
        return reduced

    def default(self, setting: Schema) -> str:
        """Return the default of a setting, without the defaults in it, as JSON."""
        known = self._defaults.get(id(setting))
        if known is None:
            filled = DefaultFiller(self._defs, {}, None).value(setting.get("default"), setting)
            known = self._defaults[id(setting)] = setting, _json(self.value(filled, setting))
        return known[1]

    def choice(self, value: Data, table: str) -> Any:
        """Return a choice with the settings that differ from the default, or a bare name."""
        ((name, settings),) = value.items()
        entry = self._defs.get(f"{table}.{name}")
        if entry is None or not isinstance(settings, dict):
            return value
        if entry.get("x-foreign"):
            schemas = entry["properties"]
            return {name: {k: self.value(v, schemas.get(k, {})) for k, v in settings.items()}}
        return {name: reduced} if (reduced := self.section(settings, entry)) else name


_last_remover: _DefaultRemover | None = None

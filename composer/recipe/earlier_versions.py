"""Settings and defaults of earlier versions, so that an old run's recipe keeps its meaning.

A new setting, or another default, that leaves what older runs did as the default needs nothing
here. Where it does not, add one line to TRAINED_WITH: what every run was trained with before. From
this line follows that

- a run that is older is opened, resumed, evaluated, compared and reproduced with that value, as if
  its recipe said so;
- fingerprints leave the setting out where it has that value, so that they are those of before; a
  recipe with the new default has another one, since it means something else.

`tests/recipe/test_earlier_versions.py` fails where a default is not that of
`tests/recipe/defaults.json`, or not in it. Add the line, or find that none is needed, then write
the file again: `python -m tests.recipe.defaults`. A new setting that is called `dropout` needs one,
since `model.dropout` reaches it.

What changes weights although no setting says so is one line of TRAINING_CHANGES, with the recipes
that it concerns. Its name is in the fingerprint `run` of these alone, and in the run.json of every
run that began since: of another run, a reproduction or a resumed training says what has changed
since.

A setting that is no more is left out where the recipe of a run says it; any other recipe is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer.errors import KeyPath
from composer.recipe.canonical_form import BUDGET_KEYS, fill_defaults, used_model
from composer.recipe.registry import REMOVED_FROM_DECODING
from composer.recipe.schema_reader import Schema, dereference
from composer.recipe.yaml_reader import Node, items_of

Setting = tuple[KeyPath, Any]

TRAINED_WITH: Mapping[str, object] = {
    "data.parallel.hold_out": "pairs",
    "data.table.hold_out": "pairs",
    "data.text.hold_out": "end",
    **{f"optimizers.{name}.decay": "all" for name in ("adam", "adamw", "sgd", "adagrad")},
    **{f"optimizers.{name}.decayed": "all" for name in ("rmsprop", "adadelta")},
}
"""By `SECTION.KEY`, `block.NAME.SETTING` or `TABLE.NAME.SETTING`: `training.seed`,
`optimizers.adamw.decay`.
"""


@dataclass(frozen=True)
class TrainingChange:
    """A change of training since a version, and whether it concerns a canonical recipe."""

    sentence: str
    concerns: Callable[[Schema], bool]


def _has_exponential_gate(canonical: Schema) -> bool:
    return any(
        settings["forget_gate"] == "exp" for settings in _blocks_of("mlstm", canonical["model"])
    )


def _has_windows(canonical: Schema) -> bool:
    has_sources = canonical["model"]["encoder"] or canonical["model"]["encoders"]
    is_text = canonical["data"]["text"] or (canonical["data"]["hub"] and not has_sources)
    return bool(is_text) and canonical["training"]["window"] is not None


def _has_ctc(canonical: Schema) -> bool:
    return canonical["model"]["output"]["ctc"] is not None


def _balances_experts(canonical: Schema) -> bool:
    return any(
        settings["balance_rate"]
        for settings in _blocks_of("mixture_of_experts", canonical["model"])
    )


def _averages_in_64_bits(canonical: Schema) -> bool:
    return (
        canonical["training"]["average_checkpoints"] != 1
        and canonical["training"]["precision"] == 64
    )


def _measures_a_part(canonical: Schema) -> bool:
    return canonical["trainer"]["limit_val_batches"] != 1.0


def _blocks_of(name: str, model: object) -> Iterator[Schema]:
    """Yield the settings of every block with a name, at any depth."""
    for key, value in items_of(model):
        if key == name and isinstance(value, dict):
            yield value
        yield from _blocks_of(name, value)


TEXTS_AFTER_END = "texts_after_end"
TRAINING_CHANGES: Mapping[str, TrainingChange] = {
    "forget_gate": TrainingChange(
        "the exponential forget gate of `mlstm` begins with the decays of the sigmoid",
        _has_exponential_gate,
    ),
    TEXTS_AFTER_END: TrainingChange(
        "the first token of a text in windows is read after the end of a document, as all others"
        " that begin one are",
        _has_windows,
    ),
    "impossible_ctc": TrainingChange("pairs that CTC cannot write are in no loss", _has_ctc),
    "counted_experts": TrainingChange(
        "experts count no rows that only keep a device, or a turn of an accumulation, busy",
        _balances_experts,
    ),
    "sampled_validation": TrainingChange(
        "`trainer.limit_val_batches` measures a sample of the validation, where it measured the"
        " longest lines",
        _measures_a_part,
    ),
    "mean_of_tied": TrainingChange(
        "the mean of checkpoints in 64 bits has tied weights once", _averages_in_64_bits
    ),
}
"""What training has done otherwise since version 0.1.0, by name. A name is never used for anything
else.
"""


def earlier_rules(rules: Schema) -> Schema:
    """Return a schema whose defaults are what the first runs were trained with.

    Raises KeyError for an unknown key.
    """
    defs = dict(rules["$defs"])
    for key, value in TRAINED_WITH.items():
        first, _, rest = key.partition(".")
        second, _, inner = rest.partition(".")
        is_entry = f"{first}.{second}" in defs
        owner, path = (f"{first}.{second}", inner) if is_entry else (first, rest)
        defs[owner] = _with_default(defs[owner], path.split("."), value, defs)
    return {**rules, "$defs": defs}


def _with_default(schema: Schema, path: Sequence[str], value: object, defs: Schema) -> Schema:
    """Return a schema with another default at a path, which goes through lists and names too."""
    if not path:
        # `model.dropout` did not reach it either
        return {**schema, "default": value, "x-earlier": True}
    changed, (step, *rest) = dereference(defs, schema), path
    places = [
        place
        for place in ("items", "additionalProperties")
        if step in _settings_of(changed.get(place), defs)
    ]
    for place in places:
        changed[place] = _with_default(changed[place], path, value, defs)
    properties = _settings_of(changed, defs)
    if step in properties:
        changed["properties"] = {
            **properties,
            step: _with_default(properties[step], rest, value, defs),
        }
    elif not places:
        raise KeyError(step)
    return changed


def _settings_of(schema: object, defs: Schema) -> Schema:
    """Return the settings of a section, {} if it is none."""
    properties: Schema = (
        dereference(defs, schema).get("properties", {}) if isinstance(schema, dict) else {}
    )
    return properties


def concerning_changes(
    canonical: Schema, known: Collection[str] = TRAINING_CHANGES.keys()
) -> list[str]:
    """Return the names of the `known` changes that concern a recipe."""
    used = {**canonical, "model": used_model(canonical["model"])}
    changes = {name: change for name, change in TRAINING_CHANGES.items() if name in known}
    return [name for name, change in changes.items() if change.concerns(used)]


def changes_since(canonical: Schema, known: Collection[str]) -> list[str]:
    """Say how the training of a recipe differs from one that began with the `known` changes."""
    new = TRAINING_CHANGES.keys() - set(known)
    return [TRAINING_CHANGES[name].sentence for name in concerning_changes(canonical, new)]


# -------------------------------------------------------------------------------------------
# settings that are no more

DECODINGS: Sequence[KeyPath] = (
    ("decoding", "*"),
    ("training", "validation_sample", "decoding", "*"),
)
"""Where the settings of a way of decoding are; `*` is its name."""


def without_removed_settings(root: Node) -> Node:
    """Return the recipe of a run without settings that were removed and changed no answer."""
    for path in DECODINGS:
        root = _without_removed(root, path)
    return root


def _without_removed(node: Node, path: KeyPath) -> Node:
    if not isinstance(node.value, dict):
        return node
    values = {}
    for name, child in node.value.items():
        if path and path[0] in (name, "*"):
            values[name] = _without_removed(child, path[1:])
        elif path or name not in REMOVED_FROM_DECODING:
            values[name] = child
    return replace(node, value=values)


def counts_removed_settings(canonical: object) -> bool:
    """True if the fingerprints of a stored canonical recipe count a setting removed since."""
    return any(_counts_removed(canonical, path) for path in DECODINGS)


def _counts_removed(value: object, path: KeyPath) -> bool:
    if not isinstance(value, dict):
        return False
    if not path:
        return any(value.get(name) for name in REMOVED_FROM_DECODING)
    return any(
        _counts_removed(child, path[1:]) for name, child in value.items() if path[0] in (name, "*")
    )


# ------------------------------------------------------------------------------------------- runs
# of before


def earlier_settings(
    explicit: Schema, canonical: Schema, rules: Schema, stored: Schema
) -> Iterator[Setting]:
    """Yield the path and the value of each setting that was another when a run was trained.

    As far as that is known.

    explicit, canonical: What its recipe says, and what this version reads in that. stored: The
    canonical recipe in its run.json, {} where there is none; of what is newer, the table says what
    it was.
    """
    then = _laid_over(fill_defaults(explicit, earlier_rules(rules), canonical["name"]), stored)
    for path, value in _differences(canonical, then):
        # of which the last one is in run.json
        is_budget = path[0] == "training" and path[-1] in BUDGET_KEYS
        if path[0] not in ("name", "logging") and not is_budget:
            yield path, value


def _laid_over(filled: object, stored: object) -> object:
    """Return a canonical value with the stored values laid over it; newer settings stay."""
    if isinstance(filled, list) and isinstance(stored, list) and len(filled) == len(stored):
        return [_laid_over(*pair) for pair in zip(filled, stored, strict=True)]
    if not (isinstance(filled, dict) and isinstance(stored, dict)):
        return stored
    is_other_choice = len(filled) == len(stored) == 1 and not filled.keys() & stored.keys()
    if is_other_choice:
        return stored
    return {key: _laid_over(value, stored.get(key, value)) for key, value in filled.items()}


def _differences(now: object, then: object, path: KeyPath = ()) -> Iterator[Setting]:
    """Yield the path and the earlier value of every setting that differs."""
    if isinstance(now, dict) and isinstance(then, dict) and now.keys() == then.keys():
        for key, value in now.items():
            yield from _differences(value, then[key], (*path, key))
    elif isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        for at, pair in enumerate(zip(now, then, strict=True)):
            yield from _differences(*pair, (*path, at))
    elif json.dumps(now, sort_keys=True) != json.dumps(then, sort_keys=True):
        yield path, then

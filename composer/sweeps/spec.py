"""Read a sweep file: YAML, checked by JSON Schema, into a `Sweep`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from composer.errors import Fault, RecipeError, error_at, fault_at
from composer.recipe.canonical_form import DefaultFiller
from composer.recipe.extends_and_overrides import resolve_relative
from composer.recipe.recipe import default_name
from composer.recipe.registry import RUN_FACTS
from composer.recipe.schema_file import schema_path
from composer.recipe.schema_reader import duplicate_faults
from composer.recipe.yaml_reader import Node, parse, read, to_data
from composer.sweeps.conditions import Condition, Kind, Operand, parse_condition
from composer.sweeps.goals import read_goals, unmeasured_metrics
from composer.sweeps.seeds import parse_seeds, seeds_sweep
from composer.sweeps.size_match import SizeMatch, read_parameters
from composer.sweeps.substitution import apply_point
from composer.sweeps.sweep import (
    COSTS,
    SWEEP_AXIS,
    Axis,
    Pruner,
    Resources,
    SearchAlgorithm,
    Sweep,
)
from composer.sweeps.sweep_checks import sweep_faults
from composer.sweeps.value_checks import value_faults

RANGES = ("uniform", "log_uniform", "int", "log_int")
AXIS_KINDS = [{"set", key} for key in ("values", *RANGES)] + [{"replace", "with"}, {"extend"}]
"""The keys of each kind of axis, beside `when` and `zip`."""
NOT_FINGERPRINTED = (
    "name",
    "description",
    "base",
    "search",
    "seeds",
    "seeds_where",
    "tune",
    "resources",
    "study",
    "retries",
)
"""Keys whose text decides no training.

The base's own text and the order of the search are fingerprinted apart. The number of trials and
seeds may grow; which points get all seeds and what is tuned may change.
"""
WORDS = """and or not in true false none minutes recipe name description extends vars
data model training decoding evaluation trainer logging"""
RESERVED = {*RUN_FACTS, *COSTS, SWEEP_AXIS, *WORDS.split()}
"""Names that no axis may have: words of conditions, of leaderboards and of recipes."""
EXAMPLES = {
    "rank": "write `rank: [{val/loss: min}]`",
    "seeds": "write `seeds: 3`, or a list of seeds: `seeds: [1, 5]`",
    "resources": "write `resources: {gpus: 1, cpus: 4, memory: 16G, minutes: 90}`",
    "prune": "write `prune: hyperband` or `prune: median`, or remove the key",
    "where": "write a comparison: `where: parameters < 20M`",
    "seeds_where": "write a comparison: `seeds_where: parameters < 20M`",
    "match": "write `match: {parameters: 1.4M, by: vars.hidden}`",
    "axes": "write `axes: {width: {set: model.width, values: [64, 128]}}`",
}
"""Hints for keys that an example explains better than a type."""


def read_sweep(
    path: str | Path,
    overrides: Sequence[str] = (),
    data_dir: str | Path | None = None,
    seeds: str | None = None,
) -> Sweep:
    """Read and check a sweep file, or make the sweep of a recipe over `seeds`.

    Args:
        overrides: `key=value` settings of every point.
        data_dir: The folder in which data files are looked up first.
        seeds: Of a recipe: `3`, which means 1 to 3, or a list such as `1,5`.

    Raises:
        RecipeError: With all faults of the first stage that has any.
        RunError: If `seeds` are no seeds.
    """
    file = reader = Path(path)
    text = None
    if seeds is None:
        root = _read_keys(read(file, str(path), "sweep"), file)
    else:
        text = seeds_sweep(file, parse_seeds(seeds))
        root = _read_keys(parse(text, str(file), "sweep"), file)
        # the recipe of a sweep of seeds does not extend itself
        reader = file.with_name(f"seeds of {file.name}")
    keys = root.value
    faults: list[Fault] = []
    base = _read_recipe(reader, keys["base"], "base", faults)
    axes: list[Axis] = []
    for name, node in keys["axes"].value.items():
        malformed = [*_axis_faults(name, node)]
        faults += malformed
        if not malformed:
            axes.append(_read_axis(file, name, node, faults))
    _raise_if_any(faults)

    data = DefaultFiller(load_schema()["$defs"], {}, None).section(to_data(root), load_schema())
    operands = {axis.name: _operand(axis) for axis in axes}
    axes = [_with_condition(axis, operands, faults) for axis in axes]
    operands |= {cost: Operand("number") for cost in COSTS}
    where = _read_conditions(keys.get("where"), "where", operands, faults)
    seeds_where = _read_conditions(keys.get("seeds_where"), "seeds_where", operands, faults)
    sweep = Sweep(
        name=data["name"] or default_name(file),
        file=file,
        text=text,
        root=root,
        base_root=base,
        axes=tuple(axes),
        match=_read_match(keys.get("match")),
        overrides=tuple(overrides),
        where=where,
        search=SearchAlgorithm(**_settings(data["search"])),
        pruner=Pruner(**_settings(data["prune"])) if data["prune"] else None,
        rank=read_goals(root),
        seeds=(),
        seeds_where=seeds_where,
        retries=data["retries"],
        resources=Resources.read(data["resources"] or {}),
        storage=data["study"]["storage"] if data["study"] else None,
        data_dir=None if data_dir is None else Path(data_dir),
    )
    _raise_if_any([*faults, *sweep_faults(sweep)])
    _raise_if_any(value_faults(sweep))

    probes = [apply_point(sweep, point, size=1) for point in sweep.probe_points()]
    _raise_if_any(unmeasured_metrics(sweep, probes))
    all_seeds = _read_seeds(data["seeds"], probes[0])
    if seeds_where and len(all_seeds) == 1:
        hint = "write `seeds: 3`, or remove `seeds_where`"
        message = "it says which points get more than the first seed, and `seeds` has one"
        raise error_at(keys["seeds_where"].place, "seeds", "seeds_where", message, hint)
    return replace(sweep, seeds=all_seeds, fingerprint=_fingerprint(sweep))


def _raise_if_any(faults: Iterable[Fault]) -> None:
    if collected := list(faults):
        raise RecipeError(collected)


def _read_keys(root: Node, file: Path) -> Node:
    """Check the YAML of a sweep by the schema; return it without keys that are `null`."""
    # jsonschema takes a tenth of a second to import
    from composer.recipe.validation import schema_faults

    root = without_nulls(root, load_schema()["required"])
    # one fault instead of one for each of its keys
    if "recipe" in root.value and "sweep" not in root.value:
        hint = f"train it with `seqcomposer train {file}`, or with several seeds: `--seeds 3`; or"
        hint += " name it as the `base` of a sweep"
        message = "this file is a recipe, not a sweep"
        raise error_at(root.value["recipe"].place, "sweep", "recipe", message, hint)
    faults = [
        replace(fault, hint=EXAMPLES.get(fault.path, fault.hint))
        for fault in schema_faults(root, load_schema())
    ]
    _raise_if_any(faults)
    axes = root.value["axes"]
    nodes = {name: without_nulls(axis) for name, axis in axes.value.items()}
    return replace(root, value=root.value | {"axes": replace(axes, value=nodes)})


def without_nulls(node: Node, required: Sequence[str] = ()) -> Node:
    """Return a sweep or an axis without keys that are `null`, except required ones."""
    keys = dict(node.value)
    for key, child in node.value.items():
        if child.value is None and key not in required:
            del keys[key]
    return replace(node, value=keys)


def _read_recipe(file: Path, node: Node, path: str, faults: list[Fault]) -> Node:
    """Read a recipe that the sweep names, and add its faults at `path` instead of `extends`.

    Returns `node` itself where there are faults, which the caller then raises.
    """
    try:
        return resolve_relative(file, node)
    except RecipeError as error:
        for fault in error.faults:
            if fault.code == "sweep":
                message = "a base must be a recipe, and this is a sweep"
                fault = fault_at(node.mark, "base", path, message, "name the sweep's own base")
            if fault.file == str(file):
                fault = replace(fault, path=fault.path.replace("extends", path, 1))
            faults.append(fault)
        return node


def _axis_faults(name: str, node: Node) -> Iterator[Fault]:
    """Yield the faults of the name and the keys of an axis."""
    path = f"axes.{name}"
    if name in RESERVED:
        hint = f"this is a word of recipes or conditions: write `{name}_axis`, for instance"
        yield fault_at(node.place, "name", path, f"an axis cannot be called `{name}`", hint)
    elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        hint = "use letters, digits and `_`"
        yield fault_at(node.place, "name", path, f"an axis cannot be called `{name}`", hint)
    keys = node.value.keys() - {"when", "zip"}
    if keys not in AXIS_KINDS:
        message = (
            f"an axis has the keys of one kind; this one has {', '.join(sorted(keys)) or 'none'}"
        )
        hint = (
            f"write `set` and one of values, {', '.join(RANGES)}; `replace` and `with`; or `extend`"
        )
        yield fault_at(node.place, "axis", path, message, hint)


def _read_axis(file: Path, name: str, node: Node, faults: list[Fault]) -> Axis:
    """Return an axis without its condition, which can name axes that come later."""
    keys, path = node.value, f"axes.{name}"
    zipped = keys["zip"].value if "zip" in keys else None
    if "extend" in keys:
        recipes = keys["extend"].value
        choices = [
            _read_recipe(file, recipe, f"{path}.extend.{label}", faults)
            for label, recipe in recipes.items()
        ]
        return Axis(name, "extend", node, tuple(recipes), tuple(choices), zipped=zipped)
    if "replace" in keys:
        blocks = keys["with"].value
        return Axis(name, "replace", node, tuple(blocks), tuple(blocks.values()), zipped=zipped)
    if "values" in keys:
        items = keys["values"].value
        if zipped is None:
            faults.extend(duplicate_faults(items, f"{path}.values"))
        labels = tuple(item.value for item in items)
        return Axis(name, "set", node, labels, tuple(items), zipped=zipped)
    kind = next(key for key in RANGES if key in keys)
    bounds = keys[kind]
    low, high = (item.value for item in bounds.value)
    if not low < high:
        message, hint = f"{low} is not below {high}", "write the smaller number first"
        faults.append(fault_at(bounds.mark, "bounds", f"{path}.{kind}", message, hint))
    is_log, is_integer = kind.startswith("log"), kind.endswith("int")
    axis = Axis(name, "set", node, labels=None, choices=(bounds,), zipped=zipped)
    return replace(axis, low=low, high=high, log=is_log, integer=is_integer)


def _operand(axis: Axis) -> Operand:
    by_type: dict[type, Kind] = {bool: "truth", str: "text"}
    kinds = {by_type.get(type(value), "number") for value in axis.labels or axis.ends}
    may_be_inactive = "when" in axis.node.value or axis.zipped is not None
    return Operand(kinds.pop() if len(kinds) == 1 else "mixed", axis.labels, may_be_inactive)


def _with_condition(axis: Axis, operands: Mapping[str, Operand], faults: list[Fault]) -> Axis:
    """Return an axis with its `when`."""
    node, path = axis.node.value.get("when"), f"axes.{axis.name}.when"
    return replace(axis, when=next(iter(_read_conditions(node, path, operands, faults)), None))


def _read_conditions(
    node: Node | None, path: str, operands: Mapping[str, Operand], faults: list[Fault]
) -> tuple[Condition, ...]:
    """Return a condition, or the conditions of a list; none without a node."""
    conditions = []
    items = [] if node is None else node.value if isinstance(node.value, list) else [node]
    for item in items:
        try:
            conditions.append(parse_condition(item, path, operands))
        except RecipeError as error:
            faults.extend(error.faults)
    return tuple(conditions)


def _read_match(node: Node | None) -> SizeMatch | None:
    if node is None:
        return None
    return SizeMatch(read_parameters(node.value["parameters"].value), node.value["by"])


def _settings(choice: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the word, as `kind`, and the settings of a choice such as `{tpe: {trials: 40}}`."""
    ((word, settings),) = choice.items()
    return {"kind": word, **settings}


def _read_seeds(seeds: int | Sequence[int] | None, point: Node) -> tuple[int, ...]:
    """Return the seeds of every point: those of the sweep, or the one of its recipe."""
    if seeds is None:
        training = to_data(point).get("training")
        return (training.get("seed", 1) if isinstance(training, dict) else 1,)
    return tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)


def deciding_settings(sweep: Sweep, search: SearchAlgorithm) -> dict[str, Any]:
    """Return all settings that decide what is tried and what is best, as plain data."""
    settings = _without(sweep.root, NOT_FINGERPRINTED)
    settings["base"] = _deciding_sections(sweep.base_root)
    settings["search"] = {"kind": search.kind, "seed": search.seed}
    settings["command line"] = [*sweep.overrides]
    extending = {}
    for axis in sweep.axes:
        if axis.kind == "extend":
            labels = map(str, axis.labels or ())
            recipes = map(_deciding_sections, axis.choices)
            extending[axis.name] = dict(zip(labels, recipes, strict=True))
    return settings | ({"extend": extending} if extending else {})


def _deciding_sections(recipe: Node) -> dict[str, Any]:
    return _without(recipe, ("name", "description", "logging"))


def _without(node: Node, keys: Sequence[str]) -> dict[str, Any]:
    """Return a mapping without some of its keys, as plain data."""
    return {key: value for key, value in to_data(node).items() if key not in keys}


def _fingerprint(sweep: Sweep) -> str:
    settings = deciding_settings(sweep, sweep.search)
    data = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(data.encode()).hexdigest()


@cache
def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of sweeps, which is written by hand."""
    file = schema_path().with_name("sweep.schema.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))

"""Read a sweep file: YAML, checked by JSON Schema and by its own rules, into a `Sweep`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from composer.errors import Fault, KeyPath, Mark, RecipeError, error_at, fault_at
from composer.recipe import schema_generator
from composer.recipe.canonical_form import DefaultFiller
from composer.recipe.extends_and_overrides import resolve_relative
from composer.recipe.recipe import default_name
from composer.recipe.registry import RUN_FACTS
from composer.recipe.schema_file import schema_path
from composer.recipe.schema_reader import duplicate_faults
from composer.recipe.yaml_reader import COMMAND_LINE, Node, parse, read, to_data
from composer.sweeps import substitution
from composer.sweeps.conditions import Condition, Kind, Operand, parse_condition
from composer.sweeps.goals import rank_faults, read_goals, tune_faults, unmeasured_metrics
from composer.sweeps.seeds import parse_seeds, seeds_sweep
from composer.sweeps.size_match import SizeMatch, read_parameters
from composer.sweeps.sweep import (
    COSTS,
    SWEEP_AXIS,
    Axis,
    Pruner,
    Resources,
    SearchAlgorithm,
    SearchSpace,
    Sweep,
)

RANGES = ("uniform", "log_uniform", "int", "log_int")
AXIS_SETTINGS = {"set": {"values", *RANGES}, "replace": {"with"}, "extend": set[str]()}
"""The kinds of axes, with the keys that give their values."""
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
SECTIONS = (
    "recipe name description extends vars data model training decoding evaluation trainer logging"
)
MAX_POINTS = 10_000
"""Points of a grid at most."""
CONDITIONS = "and or not in true false none minutes"
RESERVED = {
    **dict.fromkeys(RUN_FACTS, "a key of every run's configuration"),
    **dict.fromkeys(CONDITIONS.split(), "a word of conditions"),
    **dict.fromkeys(COSTS, "a cost that conditions compare"),
    SWEEP_AXIS: "the axis of a leaderboard of several sweeps",
    **dict.fromkeys(
        SECTIONS.split(), "a section of recipes, which `{name}=...` sets on the command line"
    ),
}
"""Names that no axis may have, each with its meaning."""
PIN_FAULT = re.compile(r"(missing|unknown) (base|axes\.\w+\.extend\.)")
"""Code and path of a schema fault in a pinned recipe, which the reader of recipes explains."""
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
    file = Path(path)
    if seeds is None:
        text = None
        root = _read_keys(read(file, str(path), "sweep"), file)
    else:
        text = seeds_sweep(file, parse_seeds(seeds))
        root = _read_keys(parse(text, str(file), "sweep"), file)
    faults: list[Fault] = []
    # the recipe of a sweep of seeds does not extend itself
    reader = file if text is None else file.with_name(f"seeds of {file.name}")
    base = _read_recipe(reader, root.value["base"], "base", faults)
    axes = _read_axes(file, root, faults)
    _raise_if_any(faults)

    operands = {axis.name: _operand(axis) for axis in axes}
    axes = [_with_condition(axis, operands, faults) for axis in axes]
    operands |= {cost: Operand("number") for cost in COSTS}
    where = _read_conditions(root, "where", operands, faults)
    seeds_where = _read_conditions(root, "seeds_where", operands, faults)
    space = SearchSpace(
        file=file,
        text=text,
        root=root,
        base_root=base,
        axes=tuple(axes),
        match=_read_match(root),
        overrides=tuple(overrides),
    )
    search, pruner, rank = _read_search(root), _read_pruner(root), read_goals(root)
    storage = _read_storage(root, faults)
    faults += _override_faults(space)
    faults += _grid_faults(space, search)
    faults += _unmatched_axes(space)
    faults += space.dependency_faults()
    faults += rank_faults(rank, pruner)
    faults += tune_faults(space, rank)
    _raise_if_any(faults)
    _raise_if_any(substitution.value_faults(space))

    probes = [substitution.apply_point(space, point, size=1) for point in space.probe_points()]
    _raise_if_any(unmeasured_metrics(space, rank, pruner, probes))
    all_seeds = _read_seeds(root, probes[0])
    if seeds_where and len(all_seeds) == 1:
        hint = "write `seeds: 3`, or remove `seeds_where`"
        message = "it says which points get more than the first seed, and `seeds` has one"
        raise error_at(root.value["seeds_where"].place, "seeds", "seeds_where", message, hint)
    return Sweep(
        **vars(space),
        name=_plain(root, "name", default_name(file)),
        where=where,
        search=search,
        pruner=pruner,
        seeds=all_seeds,
        seeds_where=seeds_where,
        retries=_plain(root, "retries", 0),
        rank=rank,
        resources=Resources.read(_plain(root, "resources", {})),
        storage=storage,
        fingerprint=_fingerprint(space, search),
        data_dir=None if data_dir is None else Path(data_dir),
    )


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
        if not PIN_FAULT.match(f"{fault.code} {fault.path}")
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


def _plain(root: Node, key: str, default: Any) -> Any:
    """Return a key of the sweep as plain data."""
    return to_data(root.value[key]) if key in root.value else default


def _read_recipe(file: Path, node: Node, path: str, faults: list[Fault]) -> Node:
    """Read a recipe that the sweep names, and add its faults at `path` instead of `extends`.

    Returns `node` itself where there are faults, which the caller then raises.
    """
    try:
        return resolve_relative(file, node)
    except RecipeError as error:
        for fault in error.faults:
            if fault.code == "sweep":
                name = f"`{node.value}`" if isinstance(node.value, str) else "this"
                message = f"a base must be a recipe; {name} is a sweep"
                hint = "name a recipe: the sweep's own base, for instance"
                fault = fault_at(node.mark, "base", path, message, hint)
            if fault.file == str(file):
                fault = replace(fault, path=fault.path.replace("extends", path, 1))
            faults.append(fault)
        return node


def _read_axes(file: Path, root: Node, faults: list[Fault]) -> list[Axis]:
    """Read the axes without their conditions, which can name axes that come later."""
    axes: list[Axis] = []
    for name, node in root.value["axes"].value.items():
        malformed = [*_name_faults(name, node), *_key_faults(name, node)]
        if malformed:
            faults.extend(malformed)
        else:
            axes.append(_read_axis(file, name, node, faults))
    return axes


def _name_faults(name: str, node: Node) -> Iterator[Fault]:
    """Yield the fault of an axis name that is reserved or malformed."""
    if name in RESERVED:
        message = f"an axis cannot be called `{name}`: that is {RESERVED[name].format(name=name)}"
        hint = f"give it another name: `{name}_axis`, for instance"
    elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        message, hint = f"an axis cannot be called `{name}`", "use letters, digits and `_`"
    else:
        return
    yield fault_at(node.place, "name", f"axes.{name}", message, hint)


def _key_faults(name: str, node: Node) -> Iterator[Fault]:
    """Yield the faults of an axis's keys, which must be of one kind and give its values once."""
    path = f"axes.{name}"
    keys = set(node.value)
    kinds = sorted(keys & AXIS_SETTINGS.keys())
    if len(kinds) != 1:
        used = " and ".join(kinds) or "none"
        message = f"an axis has one of `set`, `replace` and `extend`; this one has {used}"
        yield fault_at(node.place, "axis", path, message, "write one of them")
        return
    kind = kinds[0]
    if kind == "set" and node.value["set"].value == "training.seed":
        message = "points that differ only in their seed are the runs of one point"
        hint = "write `seeds: [1, 2]` beside `axes`"
        yield fault_at(node.value["set"].mark, "axis", f"{path}.set", message, hint)
    settings = AXIS_SETTINGS[kind]
    foreign = sorted(keys - settings - {kind, "when", "zip"})
    for key in foreign:
        message, hint = (
            f"`{key}` does not belong to an axis with `{kind}`",
            f"remove it, or `{kind}`",
        )
        yield fault_at(node.value[key].place, "axis", f"{path}.{key}", message, hint)
    present = sorted(keys & settings)
    if settings and len(present) != 1 and not foreign:
        allowed = ", ".join(f"`{key}`" for key in sorted(settings))
        used = " and ".join(present) or "none of them"
        message = f"`{kind}` needs one of {allowed}; this axis has {used}"
        yield fault_at(node.place, "axis", path, message, "write one of them")


def _read_axis(file: Path, name: str, node: Node, faults: list[Fault]) -> Axis:
    if "extend" in node.value:
        return _read_extend_axis(file, name, node, faults)
    if "replace" in node.value:
        return _read_replace_axis(name, node, faults)
    if "values" in node.value:
        return _read_values_axis(name, node, faults)
    return _read_range_axis(name, node, faults)


def _zipped(node: Node) -> str | None:
    return node.value["zip"].value if "zip" in node.value else None


def _read_extend_axis(file: Path, name: str, node: Node, faults: list[Fault]) -> Axis:
    target = node.value["extend"]
    choices = []
    for label, recipe in target.value.items():
        choices.append(_read_recipe(file, recipe, f"axes.{name}.extend.{label}", faults))
    labels = tuple(target.value)
    return Axis(name, "extend", node, target, labels, tuple(choices), zipped=_zipped(node))


def _read_replace_axis(name: str, node: Node, faults: list[Fault]) -> Axis:
    target, blocks = node.value["replace"], node.value["with"].value
    if substitution.parse_selector(target.value) is None:
        message = f"`{target.value}` is not the path of a block or a stack"
        hint = "write `model.encoder`, `model.encoder[0]`, or `model.encoder..rnn` for every `rnn`"
        path = f"axes.{name}.replace"
        faults.append(fault_at(target.mark, "selector", path, message, f"{hint} below"))
    labels, choices = tuple(blocks), tuple(blocks.values())
    return Axis(name, "replace", node, target, labels, choices, zipped=_zipped(node))


def _read_values_axis(name: str, node: Node, faults: list[Fault]) -> Axis:
    items, zipped = node.value["values"].value, _zipped(node)
    if zipped is None:
        faults.extend(duplicate_faults(items, f"axes.{name}.values"))
    labels = tuple(item.value for item in items)
    return Axis(name, "set", node, node.value["set"], labels, tuple(items), zipped=zipped)


def _read_range_axis(name: str, node: Node, faults: list[Fault]) -> Axis:
    kind = _range_key(node)
    bounds = node.value[kind]
    low, high = (item.value for item in bounds.value)
    path, is_log = f"axes.{name}.{kind}", kind.startswith("log")
    if not low < high:
        message, hint = f"{low} is not below {high}", "write the smaller number first"
        faults.append(fault_at(bounds.mark, "bounds", path, message, hint))
    if is_log and low <= 0:
        message = f"{low} has no logarithm"
        faults.append(fault_at(bounds.mark, "bounds", path, message, "begin above 0"))
    return Axis(
        name,
        "set",
        node,
        node.value["set"],
        labels=None,
        choices=(bounds,),
        low=low,
        high=high,
        log=is_log,
        integer=kind.endswith("int"),
        zipped=_zipped(node),
    )


def _range_key(node: Node) -> str:
    return next(key for key in RANGES if key in node.value)


def _operand(axis: Axis) -> Operand:
    by_type: dict[type, Kind] = {bool: "truth", str: "text"}
    kinds = {by_type.get(type(value), "number") for value in axis.labels or axis.ends}
    may_be_inactive = "when" in axis.node.value or axis.zipped is not None
    return Operand(kinds.pop() if len(kinds) == 1 else "mixed", axis.labels, may_be_inactive)


def _with_condition(axis: Axis, operands: Mapping[str, Operand], faults: list[Fault]) -> Axis:
    """Return an axis with its `when`."""
    if "when" not in axis.node.value:
        return axis
    node, path = axis.node.value["when"], f"axes.{axis.name}.when"
    try:
        return replace(axis, when=parse_condition(node, path, operands))
    except RecipeError as error:
        faults.extend(error.faults)
        return axis


def _read_conditions(
    root: Node, key: str, operands: Mapping[str, Operand], faults: list[Fault]
) -> tuple[Condition, ...]:
    """Return the conditions of `where` or `seeds_where`."""
    if key not in root.value:
        return ()
    node = root.value[key]
    conditions = []
    for item in node.value if isinstance(node.value, list) else [node]:
        try:
            conditions.append(parse_condition(item, key, operands))
        except RecipeError as error:
            faults.extend(error.faults)
    return tuple(conditions)


def _read_match(root: Node) -> SizeMatch | None:
    if "match" not in root.value:
        return None
    keys = root.value["match"].value
    return SizeMatch(read_parameters(keys["parameters"].value), keys["by"])


def _read_storage(root: Node, faults: list[Fault]) -> str | None:
    """Return the URL of the study's database, which must not have a password."""
    if "study" not in root.value:
        return None
    node = root.value["study"].value["storage"]
    url: str = node.value
    if re.search(r"//[^?]*:[^?]*@|[?&]password=", url):
        message = "a password does not belong into the file of a sweep"
        hint = "write `postgresql://USER@HOST/DATABASE`, and the password into `~/.pgpass` or the"
        hint += " variable PGPASSWORD"
        faults.append(fault_at(node.mark, "password", "study.storage", message, hint))
    return url


def _read_search(root: Node) -> SearchAlgorithm:
    if "search" not in root.value:
        return SearchAlgorithm("grid", None, 1)
    kind, settings = _read_choice(root.value["search"], "searches")
    return SearchAlgorithm(kind, settings.get("trials"), settings.get("seed", 1))


def _read_pruner(root: Node) -> Pruner | None:
    if "prune" not in root.value:
        return None
    kind, settings = _read_choice(root.value["prune"], "prunings")
    return Pruner(kind, **settings)


def _read_choice(node: Node, table: str) -> tuple[Any, dict[str, Any]]:
    """Return the word and the settings of a choice such as `{tpe: {trials: 40}}`, with defaults."""
    filler = DefaultFiller(load_schema()["$defs"], {}, None)
    ((word, settings),) = filler.choice(to_data(node), table).items()
    return word, settings


def _read_seeds(root: Node, point: Node) -> tuple[int, ...]:
    """Return the seeds of every point: those of the sweep, or the one of its recipe."""
    seeds = _plain(root, "seeds", None)
    if isinstance(seeds, list):
        return tuple(seeds)
    if seeds is not None:
        return tuple(range(1, seeds + 1))
    training = to_data(point).get("training")
    return (training.get("seed", 1) if isinstance(training, dict) else 1,)


def deciding_settings(space: SearchSpace, search: SearchAlgorithm) -> dict[str, Any]:
    """Return all settings that decide what is tried and what is best, as plain data."""
    settings = _without(space.root, NOT_FINGERPRINTED)
    settings["base"] = _deciding_sections(space.base_root)
    settings["search"] = {"kind": search.kind, "seed": search.seed}
    settings["command line"] = [*space.overrides]
    extending = {}
    for axis in space.axes:
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


def _fingerprint(space: SearchSpace, search: SearchAlgorithm) -> str:
    settings = deciding_settings(space, search)
    data = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(data.encode()).hexdigest()


@cache
def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of sweeps, which is written by hand."""
    file = schema_path().with_name("sweep.schema.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def _override_faults(space: SearchSpace) -> Iterator[Fault]:
    """Yield overrides that name an axis, undo one, or change a key of the sweep itself."""
    sweep_keys = load_schema()["properties"].keys() - schema_generator.load()["properties"].keys()
    for override in space.overrides:
        name = override.partition("=")[0]
        mark, path = Mark(COMMAND_LINE, 1, 1, len(name), override), substitution.key_path(name)
        undone = _undone_axis(space, path)
        if space.axis(name) is not None:
            hint = f"one point: `seqcomposer train {space.file} {override}`"
            yield fault_at(mark, "axis", name, f"`{name}` is an axis of this sweep", hint)
        elif path and path[0] in sweep_keys:
            message = f"`{path[0]}` is a key of the sweep's file, and this sets keys of its recipes"
            yield fault_at(mark, "unknown", name, message, f"change `{path[0]}` in {space.file}")
        elif undone is not None:
            target = undone.target.value
            message = f"the axis `{undone.name}` changes `{target}`, and this would undo it"
            hint = f"remove it, or `{undone.name}` from the sweep"
            yield fault_at(mark, "axis", name, message, hint)


def _undone_axis(space: SearchSpace, path: KeyPath) -> Axis | None:
    """Return the first axis that an override at `path` would undo."""
    if not path:
        return None
    changing = (axis for axis in space.axes if axis.kind != "extend")
    for axis in changing:
        if substitution.key_path(axis.target.value)[: len(path)] == path:
            return axis
    return None


def _grid_faults(space: SearchSpace, search: SearchAlgorithm) -> Iterator[Fault]:
    """Yield the ranges of a grid, and the fault of a grid that is too large."""
    if search.kind != "grid":
        return
    for axis in space.axes:
        if axis.labels is None:
            key = _range_key(axis.node)
            message = f"grid search cannot enumerate the range {axis.low} to {axis.high}"
            hint, mark = (
                "write `values: [...]`, or `search: {tpe: {trials: 40}}`",
                axis.node.value[key],
            )
            yield fault_at(mark.place, "grid", f"axes.{axis.name}.{key}", message, hint)
    number = space.num_structures
    if number > MAX_POINTS:
        message = f"these axes make {number:,} points, and a grid has at most {MAX_POINTS:,}"
        hint = "write `search: {random: {trials: 40}}`"
        yield fault_at(space.root.value["axes"].place, "size", "axes", message, hint)


def _unmatched_axes(space: SearchSpace) -> Iterator[Fault]:
    """Yield axes that replace nothing, whichever recipe extends the base."""
    rules = schema_generator.load()
    extending = [axis for axis in space.axes if axis.kind == "extend"]
    roots = []
    # of very many combinations of recipes the first ones are searched
    for labels in islice(product(*(axis.labels or () for axis in extending)), 64):
        values = list(zip(extending, labels, strict=True))
        root = substitution.apply_extensions(space.base_root, values)
        roots.append(substitution.apply_settings(space.root, root, rules))
    for axis in space.axes:
        if axis.kind == "replace":
            matches = [substitution.select(root, axis.target.value, rules) for root in roots]
            if not any(matches):
                yield substitution.no_match_fault(roots[0], axis, rules)

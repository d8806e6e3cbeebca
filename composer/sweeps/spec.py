"""Reading a sweep file: from YAML to a `Sweep` checked by JSON Schema and as one, with every fault
at its line.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

from composer.checks.training import unavailable_metric
from composer.errors import Fault, Mark, RecipeError, error_at, fault_at
from composer.recipe import schema_generator
from composer.recipe.canonical_form import DefaultFiller
from composer.recipe.extends_and_overrides import resolve_relative
from composer.recipe.metrics import METRICS, decodes_all, metric_of, training_key
from composer.recipe.recipe import default_name, from_node
from composer.recipe.registry import RUN_FACTS
from composer.recipe.schema_file import schema_path
from composer.recipe.schema_reader import duplicate_faults
from composer.recipe.yaml_reader import COMMAND_LINE, Node, read, to_data
from composer.suggest import did_you_mean
from composer.sweeps import substitution
from composer.sweeps.conditions import Condition, Kind, Operand, parse_condition
from composer.sweeps.sweep import (
    COSTS,
    DEFAULT_RANK,
    SWEEP_AXIS,
    Axis,
    Goal,
    Pruner,
    Resources,
    SearchAlgorithm,
    Sweep,
)

RANGES = ("uniform", "log_uniform", "int", "log_int")
NOT_FINGERPRINTED = (
    "name",
    "description",
    "base",
    "search",
    "seeds",
    "seeds_where",
    "tune",
    "resources",
    "retries",
)
"""Keys whose text decides no training. The base's own text and the order of the search are
fingerprinted apart; the
number of trials and seeds may grow, and which points get all seeds and what is tuned may change."""
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
"""Words that no axis has, since they mean something else, and what."""
PIN_FAULT = re.compile(r"(missing|unknown) (base|axes\.\w+\.extend\.)")
"""Code and path of a fault of a mapping in a recipe's place, of which the reader of recipes says
more.
"""
EXAMPLES = {
    "rank": "write `rank: [{val/loss: min}]`",
    "seeds": "write `seeds: 3`, or a list of seeds: `seeds: [1, 5]`",
    "resources": "write `resources: {gpus: 1, cpus: 4, memory: 16G, minutes: 90}`",
    "prune": "write `prune: hyperband` or `prune: median`, or remove the key",
    "where": "write a comparison: `where: parameters < 20M`",
    "seeds_where": "write a comparison: `seeds_where: parameters < 20M`",
    "axes": "write `axes: {width: {set: model.width, values: [64, 128]}}`",
}
"""Hints for keys of which an example says more than a type."""


def read_sweep(
    path: str | Path, overrides: Sequence[str] = (), data_dir: str | Path | None = None
) -> Sweep:
    """Read and check a sweep file; `overrides` are applied to every point, below `data_dir` data
    files are looked up.

    Raises RecipeError with all faults of the first stage that has any.
    """
    # jsonschema takes a tenth of a second to import
    from composer.recipe.validation import schema_faults

    file = Path(path)
    root = without_nulls(read(file, str(path), "sweep"), load_schema()["required"])
    # one fault instead of one for each of its keys
    if "recipe" in root.value and "sweep" not in root.value:
        hint = f"train it with `seqcomposer train {file}`, or name it as the `base` of a sweep"
        message = "this file is a recipe, not a sweep"
        raise error_at(root.value["recipe"].place, "sweep", "recipe", message, hint)
    faults = schema_faults(root, load_schema())
    malformed = [fault for fault in faults if not PIN_FAULT.match(f"{fault.code} {fault.path}")]
    _raise_if_any(
        [replace(fault, hint=EXAMPLES.get(fault.path, fault.hint)) for fault in malformed]
    )
    nodes = {name: without_nulls(axis) for name, axis in root.value["axes"].value.items()}
    root = replace(root, value=root.value | {"axes": replace(root.value["axes"], value=nodes)})
    faults = []
    base = _read_recipe(file, root.value["base"], "base", faults)
    axes = _read_axes(file, root, faults)
    _raise_if_any(faults)
    assert base is not None
    axes, where, seeds_where = _read_conditions(root, axes, faults)
    search, limits = _read_choice(root, "search", "searches")
    pruner, pruning = _read_choice(root, "prune", "prunings")
    goals = (
        [pair for goal in root.value["rank"].value for pair in goal.value.items()]
        if "rank" in root.value
        else []
    )
    rank = tuple(Goal(metric, direction.value, direction.place) for metric, direction in goals)
    sweep = Sweep(
        file=file,
        name=root.value["name"].value if "name" in root.value else default_name(file),
        # data files are looked up beside the base, or beside the sweep if the base is of the store
        base=(
            file
            if isinstance(root.value["base"].value, dict)
            else file.parent / root.value["base"].value
        ),
        axes=axes,
        where=where,
        search=SearchAlgorithm(search or "grid", limits.get("trials"), limits.get("seed", 1)),
        pruner=None if pruner is None else Pruner(pruner, **pruning),
        seeds=(),
        seeds_where=seeds_where,
        retries=root.value["retries"].value if "retries" in root.value else 0,
        rank=rank or DEFAULT_RANK,
        resources=Resources.read(
            to_data(root.value["resources"]) if "resources" in root.value else {}
        ),
        fingerprint="",
        overrides=tuple(overrides),
        data_dir=None if data_dir is None else Path(data_dir),
        root=root,
        base_root=base,
    )
    faults += [
        *_misused_axes(sweep),
        *_unmatched_axes(sweep),
        *sweep.dependency_faults(),
        *_rank_faults(sweep),
    ]
    faults += _tune_faults(sweep)
    _raise_if_any(faults)
    _raise_if_any(sorted(substitution.value_faults(sweep)))
    points = [substitution.apply_point(sweep, point) for point in sweep.probe_points()]
    _raise_if_any(list(_unmeasured_metrics(sweep, points)))
    seeds = _read_seeds(root, points[0])
    if seeds_where and len(seeds) == 1:
        hint = "write `seeds: 3`, or remove `seeds_where`"
        message = "it says which points get more than the first seed, and `seeds` has one"
        raise error_at(root.value["seeds_where"].place, "seeds", "seeds_where", message, hint)
    return replace(sweep, seeds=seeds, fingerprint=_fingerprint(sweep))


def _raise_if_any(faults: Sequence[Fault]) -> None:
    if faults:
        raise RecipeError(faults)


def without_nulls(node: Node, required: Sequence[str] = ()) -> Node:
    """Return a sweep or an axis without keys that are `null`, required ones apart."""
    keys = {
        key: child
        for key, child in node.value.items()
        if child.value is not None or key in required
    }
    return replace(node, value=keys)


def _read_recipe(file: Path, node: Node, path: str, faults: list[Fault]) -> Node | None:
    """Read a recipe named in the sweep; its faults are those of the key at `path`, not of
    `extends`.
    """
    try:
        return resolve_relative(file, node)
    except RecipeError as error:
        for fault in error.faults:
            if fault.code == "sweep":
                name = f"`{node.value}`" if isinstance(node.value, str) else "this"
                message = f"{name} is a sweep, and a base is a recipe"
                fault = fault_at(
                    node.mark,
                    "base",
                    path,
                    message,
                    "name a recipe: the sweep's own base, for instance",
                )
            own = fault.file == str(file)
            faults.append(
                replace(fault, path=fault.path.replace("extends", path, 1)) if own else fault
            )
        return None


def _read_axes(file: Path, root: Node, faults: list[Fault]) -> tuple[Axis, ...]:
    """Read the axes without their conditions, which can name axes that come later."""
    axes: list[Axis] = []
    for name, node in root.value["axes"].value.items():
        if malformed := list(_key_faults(name, node)):
            faults.extend(malformed)
        else:
            axes.append(_read_axis(file, name, node, faults))
    return tuple(axes)


def _key_faults(name: str, node: Node) -> Iterator[Fault]:
    """Yield what is wrong with the name and the keys of an axis."""
    path = f"axes.{name}"
    if name in RESERVED:
        message = f"an axis cannot be called `{name}`: that is {RESERVED[name].format(name=name)}"
        yield fault_at(
            node.place, "name", path, message, f"give it another name: `{name}_axis`, for instance"
        )
    elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        yield fault_at(
            node.place,
            "name",
            path,
            f"an axis cannot be called `{name}`",
            "use letters, digits and `_`",
        )
    keys = set(node.value)
    kinds = sorted(keys & {"set", "replace", "extend"})
    if len(kinds) != 1:
        message = (
            "an axis has one of `set`, `replace` and `extend`, and this has"
            f" {' and '.join(kinds) or 'none'}"
        )
        yield fault_at(node.place, "axis", path, message, "write one of them")
        return
    if kinds == ["set"] and node.value["set"].value == "training.seed":
        message = "points that differ in their seed alone are the runs of one point"
        yield fault_at(
            node.value["set"].mark,
            "axis",
            f"{path}.set",
            message,
            "write `seeds: [1, 2]` beside `axes`",
        )
    own = {"set": {"values", *RANGES}, "replace": {"with"}, "extend": set()}[kinds[0]]
    others = sorted(keys - own - {kinds[0], "when", "zip"})
    for key in others:
        message = f"`{key}` does not belong to an axis with `{kinds[0]}`"
        yield fault_at(
            node.value[key].place, "axis", f"{path}.{key}", message, f"remove it, or `{kinds[0]}`"
        )
    present = sorted(keys & own)
    if own and len(present) != 1 and not others:
        allowed = ", ".join(f"`{key}`" for key in sorted(own))
        message = (
            f"`{kinds[0]}` needs one of {allowed}, and here is"
            f" {' and '.join(present) or 'none of them'}"
        )
        yield fault_at(node.place, "axis", path, message, "write one of them")


def _read_axis(file: Path, name: str, node: Node, faults: list[Fault]) -> Axis:
    path, keys = f"axes.{name}", node.value
    zipped = keys["zip"].value if "zip" in keys else None
    if "extend" in keys:
        recipes = keys["extend"].value
        roots = [
            _read_recipe(file, recipe, f"{path}.extend.{label}", faults)
            for label, recipe in recipes.items()
        ]
        choices = tuple(root or node for root in roots)
        return Axis(name, "extend", node, keys["extend"], tuple(recipes), choices, zipped=zipped)
    if "replace" in keys:
        target = keys["replace"]
        if substitution.parse_selector(target.value) is None:
            message = f"`{target.value}` is not the path of a block or a stack"
            hint = (
                "write `model.encoder`, `model.encoder[0]`, or `model.encoder..rnn` for every `rnn`"
                " below"
            )
            faults.append(fault_at(target.mark, "selector", f"{path}.replace", message, hint))
        blocks = keys["with"].value
        return Axis(
            name, "replace", node, target, tuple(blocks), tuple(blocks.values()), zipped=zipped
        )
    if "values" in keys:
        items = keys["values"].value
        faults.extend(duplicate_faults(items, f"{path}.values") if zipped is None else ())
        return Axis(
            name,
            "set",
            node,
            keys["set"],
            tuple(i.value for i in items),
            tuple(items),
            zipped=zipped,
        )
    kind = next(key for key in RANGES if key in keys)
    low, high = (item.value for item in keys[kind].value)
    path, mark, log = f"{path}.{kind}", keys[kind].mark, kind.startswith("log")
    if not low < high:
        faults.append(
            fault_at(
                mark, "bounds", path, f"{low} is not below {high}", "write the least number first"
            )
        )
    if log and low <= 0:
        faults.append(fault_at(mark, "bounds", path, f"{low} has no logarithm", "begin above 0"))
    integer = kind.endswith("int")
    return Axis(
        name, "set", node, keys["set"], None, (keys[kind],), low, high, log, integer, zipped=zipped
    )


def _operand(axis: Axis) -> Operand:
    by_type: dict[type, Kind] = {bool: "truth", str: "text"}
    kinds = {by_type.get(type(value), "number") for value in axis.labels or axis.ends}
    may_be_inactive = "when" in axis.node.value or axis.zipped is not None
    return Operand(kinds.pop() if len(kinds) == 1 else "mixed", axis.labels, may_be_inactive)


def _read_conditions(
    root: Node, axes: Sequence[Axis], faults: list[Fault]
) -> tuple[tuple[Axis, ...], tuple[Condition, ...], tuple[Condition, ...]]:
    """Return the axes with their conditions, and those of `where` and `seeds_where`, which may also
    name costs.
    """

    def parse(node: Node, path: str, operands: Mapping[str, Operand]) -> Condition | None:
        try:
            return parse_condition(node, path, operands)
        except RecipeError as error:
            faults.extend(error.faults)
            return None

    operands = {axis.name: _operand(axis) for axis in axes}
    whens = {axis: axis.node.value["when"] for axis in axes if "when" in axis.node.value}
    parsed = {axis: parse(node, f"axes.{axis.name}.when", operands) for axis, node in whens.items()}
    costed = {cost: Operand("number") for cost in COSTS} | operands

    def conditions(key: str) -> tuple[Condition, ...]:
        node = root.value.get(key)
        nodes = [] if node is None else node.value if isinstance(node.value, list) else [node]
        return tuple(
            condition for item in nodes if (condition := parse(item, key, costed)) is not None
        )

    return (
        tuple(replace(axis, when=parsed.get(axis)) for axis in axes),
        conditions("where"),
        conditions("seeds_where"),
    )


def _read_choice(root: Node, key: str, table: str) -> tuple[Any, dict[str, Any]]:
    """Return the name and the settings of a choice such as `search: {tpe: {trials: 40}}`, defaults
    filled in.
    """
    if key not in root.value:
        return None, {}
    filler = DefaultFiller(load_schema()["$defs"], {}, None)
    ((word, settings),) = filler.choice(to_data(root.value[key]), table).items()
    return word, settings


def _read_seeds(root: Node, point: Node) -> tuple[int, ...]:
    """Return the seeds of every point: those of the sweep, or the one of its recipe."""
    seeds = root.value.get("seeds")
    if seeds is not None and isinstance(seeds.value, list):
        return tuple(item.value for item in seeds.value)
    if seeds is not None:
        return tuple(range(1, seeds.value + 1))
    training = to_data(point).get("training")
    return (training.get("seed", 1) if isinstance(training, dict) else 1,)


def deciding_settings(sweep: Sweep) -> dict[str, Any]:
    """Return all that decides what is tried and what is best, as plain data."""
    settings = {
        key: value for key, value in to_data(sweep.root).items() if key not in NOT_FINGERPRINTED
    }
    extending = {
        axis.name: dict(
            zip(map(str, axis.labels or ()), map(_deciding_sections, axis.choices), strict=True)
        )
        for axis in sweep.axes
        if axis.kind == "extend"
    }
    search = {"kind": sweep.search.kind, "seed": sweep.search.seed}
    settings |= {
        "base": _deciding_sections(sweep.base_root),
        "search": search,
        "command line": [*sweep.overrides],
    }
    return settings | ({"extend": extending} if extending else {})


def _deciding_sections(recipe: Node) -> dict[str, Any]:
    return {
        key: value
        for key, value in to_data(recipe).items()
        if key not in ("name", "description", "logging")
    }


def _fingerprint(sweep: Sweep) -> str:
    data = json.dumps(deciding_settings(sweep), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(data.encode()).hexdigest()


@cache
def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of sweeps. It is written by hand, and lies beside the generated one of
    recipes.
    """
    file = schema_path().with_name("sweep.schema.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


def rank_metrics() -> list[str]:
    """Return what a finished trial has, and so may be ranked by: scores, costs and minutes."""
    return [
        *(f"{split}/{name}" for split in ("val", "test") for name in METRICS),
        *COSTS,
        "minutes",
    ]


def _misused_axes(sweep: Sweep) -> Iterator[Fault]:
    """Yield overrides of all points that are of an axis or of the sweep's own keys instead, and
    ranges in a grid.
    """
    keys = load_schema()["properties"].keys() - schema_generator.load()["properties"].keys()
    for override in sweep.overrides:
        name = override.partition("=")[0]
        mark, path = Mark(COMMAND_LINE, 1, 1, len(name), override), substitution.key_path(name)
        changed = (axis for axis in sweep.axes if axis.kind != "extend" and path)
        undone = [
            axis
            for axis in changed
            if substitution.key_path(axis.target.value)[: len(path)] == path
        ]
        if sweep.axis(name) is not None:
            hint = f"one point: `seqcomposer train {sweep.file} {override}`"
            yield fault_at(mark, "axis", name, f"`{name}` is an axis of this sweep", hint)
        elif path and path[0] in keys:
            message = f"`{path[0]}` is a key of the sweep's file, and this sets keys of its recipes"
            yield fault_at(mark, "unknown", name, message, f"change `{path[0]}` in {sweep.file}")
        elif undone:
            message = (
                f"the axis `{undone[0].name}` changes `{undone[0].target.value}`, and this would"
                " undo it"
            )
            yield fault_at(
                mark, "axis", name, message, f"remove it, or `{undone[0].name}` from the sweep"
            )
    for axis in sweep.axes if sweep.search.kind == "grid" else ():
        if axis.labels is None:
            key = next(key for key in RANGES if key in axis.node.value)
            message = f"grid search cannot enumerate the range {axis.low} to {axis.high}"
            hint = "write `values: [...]`, or `search: {tpe: {trials: 40}}`"
            yield fault_at(
                axis.node.value[key].place, "grid", f"axes.{axis.name}.{key}", message, hint
            )
    if sweep.search.kind == "grid" and sweep.num_structures > MAX_POINTS:
        message = (
            f"these axes make {sweep.num_structures:,} points, and a grid has at most"
            f" {MAX_POINTS:,}"
        )
        hint = "write `search: {random: {trials: 40}}`"
        yield fault_at(sweep.root.value["axes"].place, "size", "axes", message, hint)


def _unmatched_axes(sweep: Sweep) -> Iterator[Fault]:
    """Yield axes that replace nothing, whichever recipe extends the base."""
    rules = schema_generator.load()
    extending = [axis for axis in sweep.axes if axis.kind == "extend"]
    roots = []
    # of very many combinations of recipes the first ones are searched
    for labels in islice(product(*(axis.labels or () for axis in extending)), 64):
        root = substitution.apply_extensions(
            sweep.base_root, list(zip(extending, labels, strict=True))
        )
        roots.append(substitution.apply_settings(sweep.root, root, rules))
    for axis in sweep.axes:
        if axis.kind == "replace" and not any(
            substitution.select(root, axis.target.value, rules) for root in roots
        ):
            yield substitution.no_match_fault(roots[0], axis, rules)


def _rank_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield metrics of `rank` that no finished run has, repeated ones, and a first one that pruning
    cannot use.
    """
    known = rank_metrics()
    metrics: list[str] = []
    for metric, direction, mark in (
        (goal.metric, goal.direction, goal.mark) for goal in sweep.rank if goal.mark
    ):
        best = "min" if (score := metric_of(metric)) is None or score.lower_is_better else "max"
        if metric not in known:
            message = f"no finished run has a `{metric}`{did_you_mean(metric, known)}"
            yield fault_at(mark, "metric", "rank", message, f"the metrics are {', '.join(known)}")
        elif not metrics and sweep.pruner is not None and not metric.startswith("val/"):
            message = (
                f"`{metric}` is computed after training, and pruning needs a validation metric"
            )
            yield fault_at(
                mark, "metric", "rank", message, "begin with a metric of `val/`, or remove `prune`"
            )
        elif metric in metrics:
            yield fault_at(mark, "duplicate", "rank", f"`{metric}` is twice in `rank`", "keep one")
        elif direction != best:
            message = f"`{metric}: {direction}` ranks the worst first"
            yield fault_at(mark, "metric", "rank", message, f"write `{metric}: {best}`")
        metrics.append(metric)


def _tune_faults(sweep: Sweep) -> Iterator[Fault]:
    """Yield tuned axes that the sweep does not have, and a first metric that is no score of a
    validation or a test.
    """
    tune = sweep.root.value.get("tune")
    names = [axis.name for axis in sweep.axes]
    for item in [] if tune is None else tune.value:
        if item.value not in names:
            message = f"the sweep has no axis `{item.value}`{did_you_mean(item.value, names)}"
            yield fault_at(item.mark, "axis", "tune", message, f"its axes are {', '.join(names)}")
    metric = sweep.rank[0].metric
    if tune is not None and not metric.startswith(("val/", "test/")):
        message = (
            f"`tune` chooses by a score on the validation part, and `rank` begins with `{metric}`"
        )
        yield fault_at(
            tune.place, "metric", "tune", message, "begin `rank` with a metric of `val/` or `test/`"
        )


def _unmeasured_metrics(sweep: Sweep, roots: Sequence[Node]) -> Iterator[Fault]:
    """Yield metrics of `rank` that none of these recipes, which are points of the sweep, would log."""
    recipes = []
    for root in roots:
        with suppress(RecipeError):  # a point may be impossible
            recipes.append(from_node(sweep.base, root, schema_generator.load()))
    marks = [(goal.metric, goal.mark) for goal in sweep.rank if goal.mark is not None]
    if marks and sweep.pruner is not None and decodes_all(marks[0][0]):
        # pruning goes by what is logged during the training
        marks.append((training_key(marks[0][0]), marks[0][1]))
    if marks and "tune" in sweep.root.value:
        marks.append((sweep.rank[0].on_validation.metric, sweep.root.value["tune"].mark))
    for metric, mark in marks:
        reasons = [unavailable_metric(recipe, metric) for recipe in recipes]
        if reasons and (first := reasons[0]) is not None and None not in reasons:
            hint = first[1].text.replace("val/loss", "{val/loss: min}")
            yield fault_at(
                mark, "metric", "rank", f"`{metric}` is never measured: {first[0]}", hint
            )

"""A sweep's file, read: every fault told at its line before anything is tried."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer.errors import Fault, RecipeError
from composer.recipe.inheritance import resolve_relative
from composer.recipe.node import COMMAND_LINE, Mark, Node, fault_at, to_data
from composer.recipe.recipe import default_name
from composer.recipe.yaml_reader import read
from composer.sweeps import spec_schema
from composer.sweeps.axes import COSTS, DEFAULT_RANK, Axis, Goal, Pruner, Search, Sweep, Value
from composer.sweeps.conditions import Condition, Kind, Operand, parse_condition
from composer.sweeps.consistency import (
    RANGES,
    choice_faults,
    cross_checks,
    duplicate_faults,
    probe_points,
    unmeasured_metrics,
)
from composer.sweeps.substitution import apply_point, parse_selector

MOST_AXES, MOST_LABELS = 64, 300
UNDECIDING = ("name", "description", "base", "search", "seeds")
"""Keys whose text decides nothing: the base's own counts instead, the search's order, and no number that may grow."""
RESERVED = (
    "recipe",
    "name",
    "description",
    "extends",
    "vars",
    "data",
    "model",
    "training",
    "decoding",
    "trainer",
    "logging",
    "and",
    "or",
    "not",
    "in",
    "true",
    "false",
    "none",
    "minutes",
    *COSTS,
)


def read_sweep(path: str | Path, overrides: Sequence[str] = (), data_dir: str | Path | None = None) -> Sweep:
    """The sweep in a file; `key=value` settings are laid over each of its points. Raises RecipeError."""
    # jsonschema takes a tenth of a second to import
    from composer.recipe.validation import schema_faults

    file = Path(path)
    root = _written(read(file, str(path)))
    _must_be_sweep(file, root)
    _raise([_with_example(fault) for fault in schema_faults(root, spec_schema.load_schema())])
    faults: list[Fault] = []
    base = _base(file, root, faults)
    forms = _axes(file, root, faults)
    _raise(faults)
    assert base is not None
    axes = _with_conditions(forms, faults)
    sweep = _made(file, root, base, axes, tuple(overrides), None if data_dir is None else Path(data_dir))
    sweep = replace(sweep, where=_where(root, axes, faults))
    _raise([*faults, *_chosen_ones(sweep), *cross_checks(sweep)])
    _raise(sorted(choice_faults(sweep)))
    _raise([*unmeasured_metrics(sweep, [apply_point(sweep, point) for point in probe_points(sweep)])])
    return replace(sweep, seeds=_seeds(sweep), fingerprint=_fingerprint(sweep))


def _must_be_sweep(file: Path, root: Node) -> None:
    """Raises RecipeError for a recipe: one fault, and not one for each of its keys."""
    if "recipe" in root.value and "sweep" not in root.value:
        fix = f"train it with `seqcomposer train {file}`, or name it as the `base` of a sweep"
        raise RecipeError(
            [fault_at(root.value["recipe"].place, "sweep", "recipe", "this is a recipe, and no sweep", fix)]
        )


EXAMPLES = {
    "rank": "write `rank: [{val/loss: min}]`",
    "seeds": "write `seeds: 3`, or a list of seeds: `seeds: [1, 5]`",
    "prune": "write `prune: hyperband` or `prune: median`, or remove the key",
    "axes": "write `axes: {width: {set: model.width, values: [64, 128]}}`",
}


def _with_example(fault: Fault) -> Fault:
    """A fault of a key for which an example says more than a type."""
    return replace(fault, hint=EXAMPLES.get(fault.path, fault.hint))


def _written(root: Node) -> Node:
    """The file without keys that are `null`, in its own mapping and in those of its axes."""
    kept = _without_nulls(root)
    axes = kept.value.get("axes")
    if axes is None or not isinstance(axes.value, dict):
        return kept
    named = {name: _without_nulls(axis) for name, axis in axes.value.items()}
    return replace(kept, value={**kept.value, "axes": replace(axes, value=named)})


def _without_nulls(node: Node) -> Node:
    if not isinstance(node.value, dict):
        return node
    return replace(node, value={key: each for key, each in node.value.items() if each.value is not None})


def is_sweep(path: str | Path) -> bool:
    """Whether a file is a sweep: a YAML mapping with the key `sweep`."""
    try:
        return "sweep" in read(Path(path), str(path)).value
    except RecipeError:
        return False


def _raise(faults: Sequence[Fault]) -> None:
    if faults:
        raise RecipeError(faults)


def _base(file: Path, root: Node, faults: list[Fault]) -> Node | None:
    node = root.value["base"]
    base = _named(file, node, "base", faults)
    if base is not None and "sweep" in base.value:
        message = f"{'this' if isinstance(node.value, dict) else f'`{node.value}`'} is a sweep, and a base is a recipe"
        faults.append(fault_at(node.mark, "base", "base", message, "name a recipe: the sweep's own base, for instance"))
        return None
    return base


def _home(file: Path, base: Node) -> Path:
    """The file beside which the data lie: the base's, or the sweep's own where the base is of the store."""
    return file if isinstance(base.value, dict) else file.parent / base.value


def _named(file: Path, node: Node, path: str, faults: list[Fault]) -> Node | None:
    """A recipe beside the sweep's file."""
    try:
        return resolve_relative(file, node)
    except RecipeError as error:
        faults.extend(
            replace(each, path=each.path.replace("extends", path, 1)) if each.file == str(file) else each
            for each in error.faults
        )
        return None


def _made(
    file: Path, root: Node, base: Node, axes: tuple[Axis, ...], overrides: tuple[str, ...], data_dir: Path | None
) -> Sweep:
    written = root.value
    name = written["name"].value if "name" in written else default_name(file)
    return Sweep(
        file=file,
        name=name,
        base=_home(file, written["base"]),
        axes=axes,
        where=(),
        search=_search(root),
        prune=_prune(root),
        seeds=(),
        rank=_rank(root),
        fingerprint="",
        overrides=overrides,
        data_dir=data_dir,
        root=root,
        base_root=base,
    )


# ------------------------------------------------------------------------------------------- axes


def _axes(file: Path, root: Node, faults: list[Fault]) -> tuple[Axis, ...]:
    """The axes without their conditions, which name other axes."""
    axes: list[Axis] = []
    faults.extend(_too_many(root.value["axes"]))
    for name, node in root.value["axes"].value.items():
        wrong = list(_ill_formed(name, node))
        faults.extend(wrong)
        if not wrong:
            axes.append(_axis(file, name, node, faults))
    return tuple(axes)


def _too_many(axes: Node) -> Iterator[Fault]:
    """Axes and labels that are too many to be tried one by one."""
    if len(axes.value) > MOST_AXES:
        message = f"a sweep has at most {MOST_AXES} axes, and this has {len(axes.value)}"
        yield fault_at(axes.place, "size", "axes", message, "write several sweeps")
    for name, axis in axes.value.items():
        for key in ("values", "with", "extend"):
            node = axis.value.get(key)
            if node is not None and len(node.value) > MOST_LABELS:
                message = f"an axis has at most {MOST_LABELS} values, and this has {len(node.value)}"
                yield fault_at(node.place, "size", f"axes.{name}.{key}", message, "write a range, or fewer")


def _ill_formed(name: str, node: Node) -> Iterator[Fault]:
    """What is wrong with the keys of an axis."""
    path = f"axes.{name}"
    if name in RESERVED or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        message = f"an axis cannot be called `{name}`"
        hint = "an axis has a name of letters, digits and `_`, and not that of a section of recipes, a cost or a word"
        yield fault_at(node.place, "name", path, message, f"{hint} of conditions")
    keys = set(node.value)
    kinds = sorted(keys & {"set", "replace", "extend"})
    if len(kinds) != 1:
        message = f"an axis has one of `set`, `replace` and `extend`, and this has {' and '.join(kinds) or 'none'}"
        yield fault_at(node.place, "axis", path, message, "write one of them")
        return
    own = {"set": {"values", *RANGES}, "replace": {"with"}, "extend": set()}[kinds[0]]
    others = sorted(keys - own - {kinds[0], "when", "zip"})
    for key in others:
        message = f"`{key}` does not belong to an axis with `{kinds[0]}`"
        yield fault_at(node.value[key].place, "axis", f"{path}.{key}", message, f"remove it, or `{kinds[0]}`")
    given = sorted(keys & own)
    if own and len(given) != 1 and not others:
        told = " and ".join(given) or "none of them"
        message = f"`{kinds[0]}` needs one of {', '.join(f'`{key}`' for key in sorted(own))}, and here is {told}"
        yield fault_at(node.place, "axis", path, message, "write one of them")


def _axis(file: Path, name: str, node: Node, faults: list[Fault]) -> Axis:
    path, written = f"axes.{name}", node.value
    zipped = written["zip"].value if "zip" in written else None
    if "extend" in written:
        labels = tuple(written["extend"].value)
        found = [
            _named(file, each, f"{path}.extend.{label}", faults) for label, each in written["extend"].value.items()
        ]
        return Axis(name, "extend", node, None, labels, tuple(each or node for each in found), zipped=zipped)
    if "replace" in written:
        target = written["replace"]
        if parse_selector(target.value) is None:
            message = f"`{target.value}` is no path of a block or a stack"
            hint = "write `model.encoder`, `model.encoder[0]`, or `model.encoder..rnn` for every `rnn` below"
            faults.append(fault_at(target.mark, "selector", f"{path}.replace", message, hint))
        choices = written["with"].value
        return Axis(name, "replace", node, target, tuple(choices), tuple(choices.values()), zipped=zipped)
    if "values" in written:
        items = written["values"].value
        faults.extend(duplicate_faults(items, f"{path}.values") if zipped is None else ())
        labels = tuple(item.value for item in items)
        return Axis(name, "set", node, written["set"], labels, tuple(items), zipped=zipped)
    return _range(name, node, zipped, faults)


def _range(name: str, node: Node, zipped: str | None, faults: list[Fault]) -> Axis:
    written = node.value
    kind = next(key for key in RANGES if key in written)
    low, high = (item.value for item in written[kind].value)
    path, mark = f"axes.{name}.{kind}", written[kind].mark
    if not low < high:
        faults.append(fault_at(mark, "bounds", path, f"{low} is not below {high}", "write the least number first"))
    if kind.startswith("log") and low <= 0:
        faults.append(fault_at(mark, "bounds", path, f"{low} has no logarithm", "begin above 0"))
    return Axis(
        name,
        "set",
        node,
        written["set"],
        None,
        (written[kind],),
        low,
        high,
        kind.startswith("log"),
        kind.endswith("int"),
        zipped=zipped,
    )


def _name(axis: Axis) -> Operand:
    """What a condition can say of an axis."""
    inactive = "when" in axis.node.value or axis.zipped is not None
    if axis.labels is None:
        return Operand("number", None, inactive)
    kinds = {_kind(label) for label in axis.labels}
    return Operand(kinds.pop() if len(kinds) == 1 else "mixed", axis.labels, inactive)


def _kind(label: Value) -> Kind:
    return "truth" if isinstance(label, bool) else "text" if isinstance(label, str) else "number"


def _with_conditions(axes: Sequence[Axis], faults: list[Fault]) -> tuple[Axis, ...]:
    names = {axis.name: _name(axis) for axis in axes}
    read = [_condition(axis.node.value.get("when"), f"axes.{axis.name}.when", names, faults) for axis in axes]
    return tuple(replace(axis, when=when) for axis, when in zip(axes, read, strict=True))


def _condition(written: Node | None, path: str, names: Mapping[str, Operand], faults: list[Fault]) -> Condition | None:
    if written is None:
        return None
    try:
        return parse_condition(written, path, names)
    except RecipeError as error:
        faults.extend(error.faults)
        return None


def _chosen_ones(sweep: Sweep) -> Iterator[Fault]:
    """Settings for all points that choose one instead."""
    for word in sweep.overrides:
        name = word.partition("=")[0]
        if sweep.axis(name) is not None:
            message, fix = f"`{name}` is an axis of this sweep", f"one point: `seqcomposer train {sweep.file} {word}`"
            yield fault_at(Mark(COMMAND_LINE, 1, 1, len(name), word), "axis", name, message, fix)


# ------------------------------------------------------------------------------------------- the rest


def _where(root: Node, axes: Sequence[Axis], faults: list[Fault]) -> tuple[Condition, ...]:
    names = {cost: Operand("number") for cost in COSTS} | {axis.name: _name(axis) for axis in axes}
    written = root.value.get("where")
    nodes = [] if written is None else written.value if isinstance(written.value, list) else [written]
    read = [_condition(node, "where", names, faults) for node in nodes]
    return tuple(each for each in read if each is not None)


def _chosen(root: Node, key: str) -> tuple[str | None, dict[str, Any]]:
    """The name and the settings of what stands under a key, defaults filled in."""
    node = root.value.get(key)
    if node is None or node.value is None:
        return None, {}
    word, settings = (node.value, None) if isinstance(node.value, str) else next(iter(to_data(node).items()))
    entry = spec_schema.load_schema()["$defs"][f"{'searches' if key == 'search' else 'prunings'}.{word}"]
    defaults = {name: each["default"] for name, each in entry["properties"].items()}
    given = settings if isinstance(settings, dict) else {} if settings is None else {entry["x-first"]: settings}
    return word, defaults | given


def _search(root: Node) -> Search:
    word, settings = _chosen(root, "search")
    return Search(word or "grid", settings.get("trials"), settings.get("seed", 1))  # type: ignore[arg-type]


def _prune(root: Node) -> Pruner | None:
    word, settings = _chosen(root, "prune")
    return None if word is None else Pruner(word, **settings)  # type: ignore[arg-type]


def _rank(root: Node) -> tuple[Goal, ...]:
    written = root.value.get("rank")
    if written is None or written.value is None:
        return DEFAULT_RANK
    nodes = written.value if isinstance(written.value, list) else [written]
    return tuple(Goal(metric, each.value) for node in nodes for metric, each in node.value.items())


def _seeds(sweep: Sweep) -> tuple[int, ...]:
    """The seeds of every point; without them the base's own."""
    written = sweep.root.value.get("seeds")
    if written is not None and isinstance(written.value, list):
        return tuple(item.value for item in written.value)
    if written is not None and written.value is not None:
        return tuple(range(1, written.value + 1))
    training = to_data(apply_point(sweep, next(probe_points(sweep)))).get("training")
    return (training.get("seed", 1) if isinstance(training, dict) else 1,)


def _fingerprint(sweep: Sweep) -> str:
    """SHA-256 of all that decides what is tried and which is the best, but for what may grow: trials and seeds."""
    written = {key: value for key, value in to_data(sweep.root).items() if key not in UNDECIDING}
    recipes = [
        {key: value for key, value in to_data(each).items() if key not in ("name", "description")}
        for each in (sweep.base_root, *(one for axis in sweep.axes if axis.kind == "extend" for one in axis.choices))
    ]
    order = [sweep.search.kind, sweep.search.seed]
    data = json.dumps([written, order, recipes, sweep.overrides], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(data.encode()).hexdigest()

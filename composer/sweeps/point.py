"""One point of a sweep by `axis=value` from the command line: a sweep is a recipe with holes, and these fill them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from composer.errors import Fault, RecipeError, did_you_mean
from composer.recipe import schema
from composer.recipe.node import COMMAND_LINE, Mark, fault_at
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import parse_value
from composer.run_dir import RUNS
from composer.sweeps.axes import Axis, Point, Sweep, Value, complete, is_active
from composer.sweeps.search_space import costed, read_sweep, recipe_of


@dataclass(frozen=True)
class Chosen:
    """A point of a sweep that is to be trained, and the folder that its run has where no other is named."""

    point: Point
    recipe: Recipe
    folder: Path


def point_recipe(file: Path, words: Sequence[str], data: Path | None) -> Chosen:
    """The point that words choose: `axis=value` for each axis, anything else is laid over the recipe.

    Raises RecipeError with every fault of the words or of the recipe, and where `where` excludes the point.
    """
    sweep = read_sweep(file, (), data)
    point = _point(sweep, words)
    others = [word for word in words if sweep.axis(_key(word)) is None]
    sweep = read_sweep(file, others, data)
    grouped = group(recipe_of(sweep, point).logging["wandb"], sweep.name, os.environ)
    sweep = replace(sweep, overrides=(*sweep.overrides, *grouped))
    _must_be_included(sweep, point)
    recipe = recipe_of(sweep, point)
    folder = RUNS / recipe.name
    seeded = any(_key(word) == "training.seed" for word in others)
    return Chosen(point, recipe, folder / f"seed-{recipe.training['seed']}" if seeded else folder)


def first_point(sweep: Sweep) -> Point:
    """A point: of each active axis its first label, or its least number."""
    ends = {axis.name: axis.low if axis.labels is None else axis.labels[0] for axis in sweep.axes}
    return complete(sweep, {name: value for name, value in ends.items() if value is not None})


def group(wandb: Any, name: str, environment: Mapping[str, str]) -> list[str]:
    """What puts a run into the group of its sweep. `wandb` is `logging.wandb` of its recipe.

    What a recipe says of W&B stays so; where it says nothing the run stays at home, unless an agent of W&B started it.
    """
    if wandb is False or (isinstance(wandb, Mapping) and wandb.get("group")):
        return []
    at_home = wandb is None and "WANDB_SWEEP_ID" not in environment
    return [f"logging.wandb.group={name}", *(["logging.wandb.mode=offline"] if at_home else [])]


# ------------------------------------------------------------------------------------------- the point


def _point(sweep: Sweep, words: Sequence[str]) -> Point:
    """A value for each axis that is active; those that are not are passed over, whatever was given."""
    faults = list(_strangers(sweep, words))
    given = _given(sweep, words, faults)
    point = complete(sweep, {name: value for name, (value, _) in given.items()})
    faults += [*_missing(sweep, point, {fault.path for fault in faults}), *_untied(sweep, point, given)]
    if faults:
        raise RecipeError(faults)
    return point


def _strangers(sweep: Sweep, words: Sequence[str]) -> Iterator[Fault]:
    """Words that are neither of an axis nor of a recipe."""
    known = {*schema.load()["properties"], *(axis.name for axis in sweep.axes)}
    names = [axis.name for axis in sweep.axes]
    for word in words:
        key = _key(word)
        if "=" in word and key.isidentifier() and key not in known:
            listed = ", ".join(f"`{name}`" for name in names)
            message = f"the sweep has no axis `{key}`{did_you_mean(key, names)}"
            yield fault_at(_word(word), "axis", key, message, f"its axes are {listed}")


def _given(sweep: Sweep, words: Sequence[str], faults: list[Fault]) -> dict[str, tuple[Value, str]]:
    """By axis the value that was given, of two the later one, and the word that gave it."""
    given: dict[str, tuple[Value, str]] = {}
    for word in words:
        axis = sweep.axis(_key(word))
        if axis is None:
            continue
        try:
            given[axis.name] = (_value(axis, word), word)
        except RecipeError as error:
            faults.extend(error.faults)
    return given


def _value(axis: Axis, word: str) -> Value:
    """What a word gives its axis: what YAML reads or, where that is no value of it, the text itself."""
    _, _, text = word.partition("=")
    read: Any = parse_value(word, len(axis.name) + 1).value if text else None
    if axis.takes(read):
        return read if axis.labels is None else axis.labels[axis.index(read)]
    if axis.whole and isinstance(read, float) and read.is_integer() and axis.takes(int(read)):
        return int(read)
    if axis.labels is not None and axis.takes(text):
        return text
    message = f"`{axis.name}` is never `{text}`{did_you_mean(text, [str(label) for label in axis.labels or ()])}"
    raise RecipeError([fault_at(_word(word), "axis", axis.name, message, _allowed(axis))])


def _missing(sweep: Sweep, point: Point, refused: set[str]) -> Iterator[Fault]:
    for axis in sweep.asked:
        if axis.name not in {*point, *refused} and is_active(axis, point):
            message = f"`{axis.name}` of the sweep `{sweep.name}` has no value"
            yield fault_at(Mark(COMMAND_LINE, 1, 1, 1, ""), "axis", axis.name, message, _allowed(axis))


def _untied(sweep: Sweep, point: Point, given: Mapping[str, tuple[Value, str]]) -> Iterator[Fault]:
    """Values that were given to tied axes, and are not tied so."""
    for axis in sweep.axes:
        if axis.zipped and axis.name in given and axis.name in point and given[axis.name][0] != point[axis.name]:
            message = f"`{axis.name}` is tied to `{axis.zipped}`, and is `{point[axis.name]}` there"
            yield fault_at(_word(given[axis.name][1]), "axis", axis.name, message, "leave it away")


def _allowed(axis: Axis) -> str:
    if axis.labels is not None:
        return "write one of " + ", ".join(f"`{axis.name}={label}`" for label in axis.labels)
    return f"write `{axis.name}=` and {'a whole number' if axis.whole else 'a number'} from {axis.low} to {axis.high}"


def _key(word: str) -> str:
    return word.partition("=")[0]


def _word(word: str) -> Mark:
    return Mark(COMMAND_LINE, 1, 1, max(1, len(_key(word))), word)


def _must_be_included(sweep: Sweep, point: Point) -> None:
    """Raises RecipeError where the point cannot be built, or is excluded."""
    found = costed(sweep, point)
    if found.faults:
        raise RecipeError(found.faults)
    if found.excluded:
        costs = f"{found.parameters:,} parameters, {found.flops:,} FLOPs, {found.state_bytes:,} bytes of state"
        message = f"the sweep excludes this point by `{found.condition}`: it has {costs}"
        fault = fault_at(sweep.root.value["where"].mark, "where", "where", message, "choose another point")
        raise RecipeError([fault])

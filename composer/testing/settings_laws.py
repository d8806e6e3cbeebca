"""The law of settings: none is without effect. Other values to try come from a setting's type, as
the schema does.
"""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import is_dataclass, replace
from typing import Any

import torch

from blocks.core.contract import Block, BlockError, Bounds, Kind, Penalties, reduce_penalties
from composer.recipe.schema_generator import positional_message
from composer.recipe.section import python_name
from composer.testing.block_laws import with_fixed_seed
from composer.testing.harness import (
    Batch,
    Case,
    context_of,
    max_difference,
    positions,
    random_batch,
    run,
    start,
)

MIN_DIFFERENCE = 1e-9
KINDS: Mapping[str, tuple[object, ...]] = {
    "stack": ([{"linear": {"activation": "tanh"}}], [{"norm": {}}]),
    "branches": (
        [[{"linear": {}}], [{"norm": {}}]],
        [[{"norm": {}}], [{"linear": {"activation": "tanh"}}]],
    ),
    "name": ("earlier", "input"),
    "names": (["earlier"], ["input"]),
    "memory": ("encoder", "encoder.earlier", "encoder.earlier_grid"),
    "memories": (["encoder"], ["encoder.earlier"], ["encoder", "encoder.earlier"]),
    "initial_state": ("zeros", "learned", "encoder", {"copy": "encoder.same"}),
}


def check_settings(block: type[Block], cases: Sequence[Case], exceptions: Set[str]) -> None:
    """Check that every setting, and every word that a setting may be, changes something in one of
    the cases.

    What counts: the shape, the parameters, an output, what happens in training, penalties included,
    and the room that is made for an answer. A refusal does not. Raises LawError.
    """
    if message := positional_message(block):
        cases[0].broken("settings", message)
    for setting, hint in settings_of(block):
        group = setting.rpartition(".")[0]
        # of a section inside a section only its own settings are tried: the section may be one of
        # several of which exactly one is allowed
        if setting in exceptions or (group and sections_in(hint)):
            continue
        if group:  # a setting inside another one matters only where that one is given
            check_setting(setting, hint, [c for c in cases if inner_value(c.settings, group)])
        else:
            check_setting(setting, hint, cases)


def check_setting(setting: str, hint: object, cases: Sequence[Case]) -> None:
    """Raise LawError if no value of a setting has an effect, or two words have the same one."""
    words, candidates = literal_values(hint), candidate_values(hint)
    if len(words) == 1 and len(candidates) == 1:
        return
    for one, two in itertools.combinations(words, 2):
        pairs = ((changed(case, setting, one), changed(case, setting, two)) for case in cases)
        if not any(differs(*pair) for pair in pairs):
            cases[0].broken("settings", f"`{setting}: {two}` does the same as `{setting}: {one}`")
    tried = False
    for case, other in changes_of(setting, candidates, cases):
        if differs(case, other):
            return
        tried = True
    if not tried:
        detail = f"no other value of `{setting}` could be tried: give a variant with one"
    else:
        detail = f"`{setting}` changes nothing: no shape, parameter, output, nor training"
    cases[0].broken("settings", detail)


def changes_of(
    setting: str, candidates: Sequence[object], cases: Sequence[Case]
) -> Iterator[tuple[Case, Case]]:
    """Yield each case with the same case at every other value of a setting that is accepted."""
    from_cases = [setting_value(case, setting) for case in cases]
    values = [*candidates, *(value for value in from_cases if value is not None)]
    for case, value in itertools.product(cases, values):
        if value == setting_value(case, setting):
            continue
        other = changed(case, setting, value)
        if other.refusal() is None:
            yield case, other


def settings_of(constructor: type[object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings as a recipe calls them with their annotated types; those of a nested one
    as `outer.inner`.
    """
    hints = typing.get_type_hints(constructor.__init__, include_extras=True)
    for parameter in inspect.signature(constructor).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            name, hint = prefix + parameter.name.rstrip("_"), hints[parameter.name]
            yield name, hint
            for part in sections_in(hint):
                yield from settings_of(part, f"{name}.")


def sections_in(hint: object) -> list[type[object]]:
    """Return the dataclasses of an annotation: mappings with settings of their own."""
    classes = [part for part in (hint, *typing.get_args(hint)) if isinstance(part, type)]
    return [part for part in classes if is_dataclass(part)]


def setting_value(case: Case, setting: str) -> object:
    """Return the value of a setting in a case: as given, or the default; of a nested one None where
    none is given.
    """
    if "." in setting:
        return inner_value(case.settings, setting)
    default = inspect.signature(case.kind).parameters[python_name(setting)].default
    return case.settings.get(setting, default)


def inner_value(settings: Mapping[str, object], setting: str) -> Any:
    """Return the value of `outer.inner` in settings, None if it is not given."""
    value: Any = settings
    for key in setting.split("."):
        value = (value or {}).get(key)
    return value


def changed(case: Case, setting: str, value: object) -> Case:
    """Return the case with another value of a setting."""
    return replace(case, settings=with_inner(case.settings, setting.split("."), value))


def with_inner(settings: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, object]:
    """Return settings with another value at a path of keys."""
    first, *rest = keys
    return {**settings, first: with_inner(settings[first], rest, value) if rest else value}


def literal_values(hint: object) -> list[object]:
    """Return the words of a Literal; nothing for any other type."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return list(itertools.chain(*map(literal_values, typing.get_args(hint))))
    return []


def candidate_values(hint: object) -> list[object]:
    """Return values that a setting of this type may have."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return list(arguments)
    if origin in (typing.Union, types.UnionType):
        return list(itertools.chain(*map(candidate_values, arguments)))
    if origin is typing.Annotated:
        kinds = [note.name for note in arguments[1:] if isinstance(note, Kind)]
        bounds = [note for note in arguments[1:] if isinstance(note, Bounds)]
        return (
            list(KINDS.get(kinds[0], ()))
            if kinds
            else numbers(arguments[0], bounds[0] if bounds else Bounds())
        )
    if hint is bool:
        return [False, True]
    return [None] if hint is type(None) else numbers(hint, Bounds())


def numbers(hint: Any, bounds: Bounds) -> list[Any]:
    """Return a few numbers of a type within its bounds."""
    tried: Sequence[float] = {int: (1, 2, 3, 4, 5, 24), float: (0.25, 0.5, 2.0, -1.0)}.get(hint, ())
    return [number for number in tried if number in bounds]


def differs(case: Case, other: Case) -> bool:
    """True if two settings of one block make any difference."""
    try:
        one, two = case.exact(), other.exact()
    except BlockError:
        return False
    if (one.out, one.max_target_ratio) != (two.out, two.max_target_ratio):
        return True
    pairs = itertools.zip_longest(one.parameters(), two.parameters())
    if any(
        mine is None or theirs is None or max_difference(mine, theirs) > MIN_DIFFERENCE
        for mine, theirs in pairs
    ):
        return True
    mine, theirs = outputs(one, random_batch(case)), outputs(two, random_batch(other))
    return any(max_difference(a, b) > MIN_DIFFERENCE for a, b in zip(mine, theirs, strict=True))


def outputs(block: Block, batch: Batch) -> Iterator[torch.Tensor]:
    """Yield the output of a block, that of a position after it, and that in training with its
    penalties.
    """
    result = run(block, batch)
    yield result.y[result.mask]
    yield run(block, positions(batch, 0, 1), result.state).y
    penalties: Penalties = {}
    facts = torch.tensor([[0, 1]]).expand(len(batch.x), 2)
    context = context_of(batch)._replace(
        penalties=penalties, progress=torch.tensor(0.25), facts=facts
    )
    block.train()
    y, *_ = with_fixed_seed(lambda: block(batch.x, start(block, batch), context))
    block.eval()
    added = torch.tensor(
        [value.item() for value in reduce_penalties(penalties).values()], dtype=y.dtype
    )
    yield torch.cat((y[block.mask(batch.mask)].flatten(), added))

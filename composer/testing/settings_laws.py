"""The law of settings: none is without effect. Other values come from a setting's type, as the schema does."""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from blocks.core.contract import Block, BlockError, Bounds, Kind
from composer.model.builder import python_name
from composer.testing.block_laws import with_fixed_seed
from composer.testing.harness import Batch, Case, context_of, max_difference, positions, random_batch, run, start

MIN_DIFFERENCE = 1e-9
KINDS: Mapping[str, tuple[Any, ...]] = {
    "stack": ([{"linear": {"activation": "tanh"}}], [{"norm": {}}]),
    "branches": ([[{"linear": {}}], [{"norm": {}}]], [[{"norm": {}}], [{"linear": {"activation": "tanh"}}]]),
    "name": ("earlier", "input"),
    "names": (["earlier"], ["input"]),
    "memory": ("encoder", "encoder.earlier", "encoder.earlier_grid"),
    "memories": (["encoder"], ["encoder.earlier"], ["encoder", "encoder.earlier"]),
    "initial_state": ("zeros", "learned", "encoder", {"copy": "encoder.same"}),
}


def check_settings(kind: type[Block], cases: Sequence[Case], exceptions: Mapping[str, str]) -> None:
    """Every setting, and every word that a setting may be, changes something in one of the cases. Raises LawError.

    What counts: the shape, the parameters, an output, what happens in training, penalties included, and the room that
    is made for an answer. A refusal does not.
    """
    for setting, hint in settings_of(kind):
        if setting in exceptions:
            continue
        words, others = literal_values(hint), candidate_values(hint)
        given = [case.settings[setting] for case in cases if setting in case.settings]
        if len(words) == 1 and len(others) == 1:
            continue
        for one, two in itertools.combinations(words, 2):
            if not any(differs(case.changed(**{setting: one}), case.changed(**{setting: two})) for case in cases):
                cases[0].broken("settings", f"`{setting}: {two}` does the same as `{setting}: {one}`")
        pairs = ((case, other) for case in cases for other in accepted_changes(case, setting, [*others, *given]))
        if (first := next(pairs, None)) is None:
            cases[0].broken("settings", f"no other value of `{setting}` could be tried: give a variant with one")
        if not any(differs(case, case.changed(**{setting: other})) for case, other in itertools.chain([first], pairs)):
            cases[0].broken("settings", f"`{setting}` changes nothing: no shape, parameter, output, nor training")


def settings_of(kind: type[Block]) -> Iterator[tuple[str, Any]]:
    """The settings of a block, as a recipe calls them, with their annotated types."""
    hints = typing.get_type_hints(kind.__init__, include_extras=True)
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            yield parameter.name.rstrip("_"), hints[parameter.name]


def setting_value(case: Case, setting: str) -> Any:
    """The value of a setting in a case: as given, or the default."""
    default = inspect.signature(case.kind).parameters[python_name(setting)].default
    return case.settings.get(setting, default)


def accepted_changes(case: Case, setting: str, candidates: Sequence[Any]) -> Iterator[Any]:
    """The candidates that differ from the value in the case and are accepted there."""
    for other in candidates:
        if other != setting_value(case, setting) and case.changed(**{setting: other}).refusal() is None:
            yield other


# ------------------------------------------------------------------------------------------- other values


def literal_values(hint: Any) -> list[Any]:
    """The words of a Literal; nothing for any other type."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [word for part in typing.get_args(hint) for word in literal_values(part)]
    return []


def candidate_values(hint: Any) -> list[Any]:
    """Values that a setting of this type may have."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return list(arguments)
    if origin in (typing.Union, types.UnionType):
        return [other for part in arguments for other in candidate_values(part)]
    if origin is typing.Annotated:
        kinds = [note.name for note in arguments[1:] if isinstance(note, Kind)]
        bounds = [note for note in arguments[1:] if isinstance(note, Bounds)]
        return list(KINDS.get(kinds[0], ())) if kinds else numbers(arguments[0], bounds[0] if bounds else Bounds())
    if hint is bool:
        return [False, True]
    return [None] if hint is type(None) else numbers(hint, Bounds())


def numbers(hint: Any, bounds: Bounds) -> list[Any]:
    """A few numbers of a type within its bounds."""
    tried: Sequence[float] = {int: (1, 2, 3, 4, 5, 24), float: (0.25, 0.5, 2.0, -1.0)}.get(hint, ())
    return [each for each in tried if _within(each, bounds)]


def _within(number: float, bounds: Bounds) -> bool:
    return not (
        (bounds.minimum is not None and number < bounds.minimum)
        or (bounds.above is not None and number <= bounds.above)
        or (bounds.maximum is not None and number > bounds.maximum)
        or (bounds.below is not None and number >= bounds.below)
    )


# ------------------------------------------------------------------------------------------- what counts as a change


def differs(case: Case, other: Case) -> bool:
    """Whether two settings of one block can be told apart."""
    try:
        one, two = case.exact(), other.exact()
    except BlockError:
        return False
    if (one.out, one.max_target_ratio) != (two.out, two.max_target_ratio) or _parameters(one) != _parameters(two):
        return True
    if any(
        max_difference(mine, theirs) > MIN_DIFFERENCE
        for mine, theirs in zip(one.parameters(), two.parameters(), strict=True)
    ):
        return True
    given, unlike = random_batch(case), random_batch(other)
    return any(_gap(call, one, two, given, unlike) for call in (_whole, _continued, _training))


def _parameters(block: Block) -> list[torch.Size]:
    return [parameter.shape for parameter in block.parameters()]


def _gap(call: Callable[[Block, Batch], torch.Tensor], one: Block, two: Block, given: Batch, unlike: Batch) -> bool:
    return max_difference(call(one, given), call(two, unlike)) > MIN_DIFFERENCE


def _whole(block: Block, given: Batch) -> torch.Tensor:
    made = run(block, given)
    return made.y[made.mask]


def _continued(block: Block, given: Batch) -> torch.Tensor:
    return run(block, positions(given, 0, 1), run(block, given).state).y


def _training(block: Block, given: Batch) -> torch.Tensor:
    penalties: dict[str, list[torch.Tensor]] = {}
    context = context_of(given)._replace(penalties=penalties, progress=torch.tensor(0.25))
    block.train()
    y, _ = with_fixed_seed(lambda: block(given.x, start(block, given), context))
    block.eval()
    added = torch.tensor([sum(each.item() for each in values) for values in penalties.values()], dtype=y.dtype)
    return torch.cat((y[block.mask(given.mask)].flatten(), added))

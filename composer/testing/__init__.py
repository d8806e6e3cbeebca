"""Proves that a block keeps the contract, anyone's: `check_block(MyBlock, {"heads": 2})`, in a test
of your own.

`LAWS` has the laws, one small function each; `check_model` has those of a whole model. What they
cannot see, a block's own test must: whether it computes the equation that it promises, and what it
makes of its first position (`start`, `initial_output`), unless that is copied.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from blocks.core.contract import Block
from blocks.core.functional import default_dtype
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.registry import block_class
from composer.testing import block_laws, form_laws, model_laws, module_laws, packing_laws
from composer.testing.harness import COLUMNS, Case, LawError, Place
from composer.testing.settings_laws import check_settings

__all__ = ["LAWS", "Case", "LawError", "check_block", "check_model", "everywhere"]

LAWS: Mapping[str, Callable[[Case], None]] = {
    law.__name__: law
    for law in (
        form_laws.form,
        module_laws.grid_or_refusal,
        module_laws.shapes,
        block_laws.no_side_effects,
        block_laws.start_ignores_values,
        block_laws.initial_output,
        block_laws.reordering,
        block_laws.kept_states,
        block_laws.rollback,
        block_laws.causality,
        block_laws.chunks,
        block_laws.ragged_chunks,
        block_laws.reach,
        block_laws.last_state,
        block_laws.padding,
        block_laws.independent_rows,
        packing_laws.packing,
        block_laws.unchanged_leaves,
        module_laws.lifting,
        module_laws.recording,
        module_laws.gradients,
        module_laws.gradcheck,
        module_laws.bfloat16,
        module_laws.saving,
        module_laws.meta,
        module_laws.compiling,
    )
}
"""Every law by its name, but `settings`, which looks at all variants together."""

CAUSAL = frozenset(
    {"causality", "chunks", "ragged_chunks", "kept_states", "rollback", "reach", "unchanged_leaves"}
)
"""Laws of causal sites; an encoder's block sees everything, once."""

PLACES: tuple[Place, ...] = ("decoder", "encoder")


def everywhere(block: type[Block], *variants: Mapping[str, Any]) -> list[Case]:
    """Return a case for each of these settings at every place, for sequences and for grids."""
    places = itertools.product(variants, PLACES, (0, COLUMNS))
    return [Case(block, variant, place, columns=columns) for variant, place, columns in places]


@default_dtype(torch.float32)
def check_block(
    block: type[Block] | str,
    *variants: Mapping[str, Any],
    exceptions: Mapping[str, str] | None = None,
    compiles: bool = True,
    **settings: Any,
) -> None:
    """Check every law over a block, a class or its word, for each of its variants, in a decoder and
    in an encoder.

    In both a sequence arrives, then a grid of 3 columns, some of its cells not real: a block takes
    it, or refuses it with `site.sequence("its_name")`. A variant is a mapping of settings as in a
    recipe, on top of `settings`; without any, the defaults are checked. The stream is 12 wide.
    These can be read: `earlier` (as wide as the stream), `narrow` and `input`, which are of the
    stream's kind; the memories `encoder`, `encoder.earlier`, `encoder.summary` (one position for
    all, as wide as the stream), and the grids `encoder.grid` and `encoder.earlier_grid` (3
    columns); and `{copy: encoder.same}` continues what the same block left in the encoder. A stack
    inside is a list of single-key mappings, `[{"linear": {}}]`; the stacks `shelf` and
    `other_shelf` can be used.

    `exceptions` has the reason of each law, or setting as `settings.NAME`, that the block need not
    keep; `compiles` may be turned off, since that law takes seconds.

    Raises LawError with the law, the settings, the numbers, and what usually breaks the law.
    """
    block, exceptions = block_class(block) if isinstance(block, str) else block, exceptions or {}
    cases = everywhere(block, *({**settings, **variant} for variant in variants or ({},)))
    for case in cases:
        form_laws.constructor(case)
    refusals = [(case, case.refusal()) for case in cases]
    accepted = [case for case, refusal in refusals if refusal is None]
    for case, refusal in refusals:
        if refusal is not None and case.settings not in [other.settings for other in accepted]:
            case.broken(
                "shapes",
                f"it is refused both in a decoder and in an encoder: {refusal}; {refusal.fix.text}",
            )
        if refusal is not None and not refusal.fix.text:
            case.broken(
                "grid_or_refusal",
                f"it is refused without a `fix`, which says what to write: {refusal}",
            )
    for index, case in enumerate(accepted):
        for name, law in LAWS.items():
            holds = case.causal or name not in CAUSAL
            if (
                holds
                and name not in exceptions
                and (name != "compiling" or (compiles and index == 0))
            ):
                with _excepting(exceptions):
                    law(case)
    if "settings" not in exceptions:
        check_settings(block, accepted, {name.removeprefix("settings.") for name in exceptions})


@contextmanager
def _excepting(laws: Collection[str]) -> Iterator[None]:
    """Ignore a break of one of these laws that another law has come upon."""
    try:
        yield
    except LawError as error:
        if error.law not in laws:
            raise


@default_dtype(torch.float32)
def check_model(model: EncoderDecoder) -> None:
    """Check every law over a whole model, which is left as it was. Raises LawError with the law and
    the numbers.
    """
    model_laws.training(copy.deepcopy(model))
    model_laws.idle_rows(copy.deepcopy(model))
    single = copy.deepcopy(model).eval()
    for law in (
        model_laws.searching,
        model_laws.precisions,
        model_laws.saving,
        model_laws.bfloat16,
    ):
        law(single)
    exact = copy.deepcopy(model).eval().double()
    with torch.no_grad(), patch("blocks.core.kv_cache.SMALL", 0):
        laws = (
            model_laws.chunks,
            model_laws.ragged_chunks,
            model_laws.causality,
            model_laws.padding,
        )
        for law in (*laws, model_laws.reordering, module_laws.model_lifting):
            law(exact)

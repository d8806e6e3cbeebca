"""The form of the contract: constructor, `start` and `forward` take and return what the model gives
and reads.

The first law of all: what it says in words would stop every other one somewhere inside. What breaks
another law too is told as that one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from blocks.core.contract import Block
from composer.errors import BlockCodeErrors, error_of_code
from composer.model.encoder_decoder import state_leaves
from composer.testing.harness import Batch, Case, context_of, random_batch, start

STATELESS = "`()` where the block keeps nothing from one position to the next"
SIGNATURES = {
    "start": (
        2,
        (
            "write `def start(self, x, context)`, and return the state before the first position,"
            f" {STATELESS}"
        ),
    ),
    "forward": (
        3,
        f"write `def forward(self, x, state, context)`, and return `y, state`, {STATELESS}",
    ),
    "mask": (1, "write `def mask(self, mask)`, and return the mask of the output"),
    "initial_output": (
        2,
        "write `def initial_output(self, x, state)`, and return what `prev` reads at first",
    ),
}
"""Methods, with how many arguments each is given, and what to write."""


def constructor(case: Case) -> None:
    """Check that the constructor takes a site, and the settings by their names."""
    parameters = [*inspect.signature(case.kind).parameters.values()]
    positional = [
        one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if not positional and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        write = (
            "write `def __init__(self, site: Site, *, heads: Count = 8)`: the site first, the"
            " settings by name"
        )
        case.broken("form", f"its constructor takes no site; {write}")
    if required := [one.name for one in positional[1:] if one.default is one.empty]:
        write = (
            "write the settings after `*`: `def __init__(self, site: Site, *, heads: Count = 8)`"
        )
        case.broken("form", f"its constructor takes `{required[0]}` by position; {write}")
    try:
        case.refusal()
    except BlockCodeErrors as error:  # of the block's code, which may do anything
        case.broken("form", f"its constructor stops with {error_of_code(error)}")


def form(case: Case) -> None:
    """Check that the methods take what they are given, return what is read of them, and change
    nothing in place.
    """
    if case.columns:  # a law of its own says that a block refuses grids, or takes them
        return
    block, batch = case.exact(), random_batch(case)
    for name, (count, write) in SIGNATURES.items():
        if not takes(getattr(block, name), count):
            signature = f"{name}{inspect.signature(getattr(type(block), name))}"
            case.broken("form", f"`{signature}` does not take what it is given; {write}")
    state = call(case, "start", lambda: start(block, batch))
    check_state(case, "`start`", state, len(batch.x))
    before = [leaf.clone() for leaf in (batch.x, batch.mask, *state_leaves(state))]
    result = call(case, "forward", lambda: Block.__call__(block, batch.x, state, context_of(batch)))
    check_result(case, block, batch, result)
    names = ["x", "the mask", *["its state"] * (len(before) - 2)]
    for name, old, new in zip(
        names, before, (batch.x, batch.mask, *state_leaves(state)), strict=True
    ):
        if old.shape != new.shape or not bool((old == new).all() | (old != old).any()):
            case.broken(
                "no_side_effects",
                f"`forward` changes {name} in place; make a new tensor: `x = x + y` for `x += y`",
            )


def takes(method: Callable[..., object], count: int) -> bool:
    """True if a method can be called with this number of arguments."""
    try:
        inspect.signature(method).bind(*[None] * count)
    except TypeError:
        return False
    return True


def call(case: Case, name: str, run: Callable[[], object]) -> Any:
    """Call a method; raise LawError if it raises."""
    try:
        return run()
    except BlockCodeErrors as error:  # of the block's code, which may do anything
        case.broken("form", f"`{name}` stops with {error_of_code(error)}")


def check_state(case: Case, what: str, state: object, rows: int) -> None:
    """Check that a state is a tensor with the batch first, or a tuple of states."""
    if state is None:
        case.broken("form", f"{what} returns None as the state; return {STATELESS}")
    if isinstance(state, tuple):
        for part in state:
            check_state(case, what, part, rows)
    elif not isinstance(state, Tensor):
        kind = type(state).__name__
        case.broken(
            "form",
            f"{what} returns a {kind} in its state; a state is a tensor, or a tuple of states",
        )
    elif state.ndim == 0 or state.shape[0] != rows:
        shape = f"{what} returns a state of shape {tuple(state.shape)} for {rows} rows"
        case.broken(
            "reordering",
            f"{shape}; the batch comes first, (B, ...), so that a search can choose among its rows",
        )


def check_result(case: Case, block: Block, batch: Batch, result: object) -> None:
    """Check that `forward` has returned an output as wide as the block says, and a state."""
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        kind = "a tensor alone" if isinstance(result, Tensor) else f"a {type(result).__name__}"
        kind = f"a tuple of {len(result)}" if isinstance(result, tuple) else kind
        case.broken("form", f"`forward` returns {kind}; return `y, state`, {STATELESS}")
    y, state, *_ = result
    if not isinstance(y, Tensor):
        case.broken(
            "form",
            f"`forward` returns a {type(y).__name__} as its output; the output is a tensor (B,"
            " T, D)",
        )
    if y.ndim != (4 if block.out.grid else 3):
        case.broken(
            "form", f"`forward` returns an output of shape {tuple(y.shape)}; its shape is (B, T, D)"
        )
    if y.shape[-1] != block.out.width:
        write = (
            f"map it back to {block.out.width}, or say so: `self.out ="
            f" stream._replace(width={y.shape[-1]})`"
        )
        case.broken(
            "shapes",
            f"`forward` returns {y.shape[-1]} features, and `self.out` has {block.out.width};"
            f" {write}",
        )
    check_state(case, "`forward`", state, len(batch.x))

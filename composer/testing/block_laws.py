"""Laws of a block over data: chunks, causality, padding, rows, states, side effects. Each raises
LawError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from blocks.core.contract import Block, Output, Penalties, State, reduce_penalties
from composer.inference.decoders.decoder_state import reorder_state
from composer.model.encoder_decoder import state_leaves
from composer.testing.harness import (
    LENGTHS,
    Batch,
    BlockOutput,
    Case,
    context_of,
    cut_memories,
    expand_as,
    expect_equal,
    fixed_seed,
    gather,
    map_outputs,
    max_difference,
    mix,
    positions,
    random_batch,
    rows,
    run,
    single_row,
    start,
)

Result = TypeVar("Result")
LONGEST = 9
"""Positions of a batch in which every row has padding."""
CUTS = ((1,) * 7, (3, 4), (2, 1, 4), (6, 1))
REACH = 64
"""Positions of a row, of which a fresh block must feel those that it reads."""
FAINTEST = 3.0**-REACH
"""The least share of the strongest gradient that counts as felt: of a block that keeps a third from
step to step.
"""
RAGGED = ((3, 0, 1, 1, 0), (0, 2, 1, 0, 0), (1, 1, 3, 0, 0), (3, 0, 0, 0, 0))
"""How many real positions each row has in each chunk; they add up to LENGTHS."""


def chunks(case: Case) -> None:
    """Check that on a causal site any chunks give the outputs and the last state of all positions
    at once.
    """
    block, batch = case.shared(), case.batch((7,) * 5)
    future = next_positions(case, batch)
    (y,), last, penalty = run_pieces(block, [batch])
    follows = run(block, future, last).y
    for cut in CUTS:
        parts = [positions(batch, sum(cut[:n]), sum(cut[: n + 1])) for n in range(len(cut))]
        outputs, state, own_penalty = run_pieces(block, parts)
        detail = "chunks of " + " + ".join(map(str, cut))
        expect_equal(
            case, "chunks", torch.cat(outputs, 1), y, f"{detail}, against all positions at once"
        )
        expect_equal(
            case,
            "chunks",
            run(block, future, state).y,
            follows,
            f"{detail}, what follows the last state",
        )
        expect_equal(case, "chunks", own_penalty, penalty, f"{detail}, their penalties")
        pairs = list(zip(state_leaves(state), state_leaves(last), strict=True))
        for one, other in pairs if all(one.shape == other.shape for one, other in pairs) else ():
            expect_equal(case, "chunks", one, other, f"{detail}, a leaf of the last state")


def run_pieces(block: Block, parts: Sequence[Batch]) -> tuple[list[Tensor], State, Tensor]:
    """Return the outputs of consecutive chunks, the state after them, and what they add to the
    loss.

    The first two sentences are the facts.
    """
    penalties: Penalties = {}
    outputs, state, facts = (
        [],
        start(block, parts[0]),
        torch.tensor([[0, 1]]).expand(len(parts[0].x), 2),
    )
    for part in parts:
        y, state, *_ = block(
            part.x, state, context_of(part)._replace(penalties=penalties, facts=facts)
        )
        outputs.append(y.masked_fill(~block.mask(part.mask)[..., None], 0.0))
    return (
        outputs,
        state,
        sum(reduce_penalties(penalties).values(), torch.zeros((), dtype=torch.float64)),
    )


def ragged_chunks(case: Case) -> None:
    """Check that chunks in which each row is padded differently, some rows empty, give what each
    row gives alone.
    """
    block, batch = case.shared(), case.batch(longest=LONGEST)
    state, pieces = start(block, batch), []
    done = torch.zeros(len(LENGTHS), dtype=torch.long)
    for sizes in map(torch.tensor, RAGGED):
        # one more position than any row needs
        where = done[:, None] + torch.arange(int(sizes.max()) + 1)
        real = torch.arange(where.shape[1]) < sizes[:, None]
        made = run(block, gather(batch, where.clamp(max=max(LENGTHS) - 1), real), state)
        pieces.append((made.real, real))
        state, done = made.state, done + sizes
    for row, single in enumerate(case.once(run_rows)):
        y = torch.cat([part[row][real[row]] for part, real in pieces])
        if single is not None:
            detail = f"row {row} of {LENGTHS[row]} positions, cut raggedly"
            expect_equal(case, "ragged_chunks", y, single.real[0], detail)
    expect_continues(case, "ragged_chunks", state)


def reach(case: Case) -> None:
    """Check that a fresh block feels all that it reads: no position so little that a step forgets
    nearly everything.

    A position that it does not read at all, beyond a window, between the taps of a convolution, is
    none of this.
    """
    felt = felt_positions(case)
    if felt is None:
        return
    read = felt[felt > 0.0]
    if len(read) and read.min() < FAINTEST * read.max():
        faintest, strongest = (
            int((felt == part).nonzero()[0]) for part in (read.min(), read.max())
        )
        share = float(read.min() / read.max())
        detail = (
            f"fresh, the last of {REACH} positions feels position {faintest} {share:.2g} times as"
            " much"
        )
        case.broken("reach", f"{detail} as position {strongest}")


def felt_positions(case: Case) -> Tensor | None:
    """Return the gradient of the last of `REACH` outputs of a fresh block by each position: (T,).

    None for grids, and where the length changes.
    """
    block, batch = case.build(noise=0.0).double(), random_batch(case, (REACH,))
    x = batch.x.requires_grad_()
    y = run(block, batch).y
    if x.ndim > 3 or y.ndim > 3 or y.shape[1] != REACH:
        return None
    if not y.requires_grad:
        return x.new_zeros(REACH)
    weight = torch.randn(y.shape[-1], generator=torch.Generator().manual_seed(3), dtype=y.dtype)
    (gradient,) = torch.autograd.grad(
        (y[0, -1] * weight).sum(), x, materialize_grads=True, allow_unused=True
    )
    return gradient[0].norm(dim=-1)


def last_state(case: Case) -> None:
    """Check that the last state of a padded row is that of the row cut to its length."""
    made = case.once(run_padded)
    if case.causal:
        expect_continues(case, "last_state", made.state)
        return
    for row, single in enumerate(case.once(run_rows)):
        for mine, cut in (
            zip(state_leaves(made.state), state_leaves(single.state), strict=True) if single else ()
        ):
            if mine.shape[1:] == cut.shape[1:]:
                detail = f"the state of row {row} of {LENGTHS[row]} positions"
                expect_equal(case, "last_state", mine[row : row + 1], cut, detail)


def causality(case: Case) -> None:
    """Check that on a causal site no output depends on a later position: by gradients, and by a
    change.
    """
    block, batch = case.shared(), case.batch((7,) * 5)
    followed = map_outputs(
        batch, lambda output: output._replace(states=output.states.detach().requires_grad_())
    )
    read = [
        followed.x,
        *(output.states for name, output in followed.board.items() if name != "input"),
    ]
    y = run(block, followed).y
    # what reads memories only has no gradient here
    for t in range(y.shape[1] - 1 if y.requires_grad else 0):
        gradients = torch.autograd.grad(y[:, t].sum(), read, retain_graph=True, allow_unused=True)
        for gradient in gradients:
            if gradient is not None and gradient[:, t + 1 :].any():
                later = t + 1 + int(gradient[:, t + 1 :].abs().flatten(2).amax((0, 2)).argmax())
                size = gradient[:, later].abs().max().item()
                case.broken(
                    "causality",
                    f"output {t} depends on position {later}: the gradient is {size:.3g}",
                )
    other = case.batch((7,) * 5, seed=5)
    changed = mix(batch, other, lambda mine, theirs: torch.cat((mine[:, :4], theirs[:, 4:]), 1))
    expect_equal(
        case,
        "causality",
        run(block, changed).y[:, :4],
        y[:, :4],
        "after a change of the positions from 4 on",
    )


def padding(case: Case) -> None:
    """Check that padding, its values and its length, never affects a real output, and that all
    stays finite.
    """

    def fill(output: Output) -> Output:
        return output._replace(
            states=torch.where(output.mask[..., None], output.states, 100.0 - output.states)
        )

    block, batch, made = case.shared(), case.batch(longest=LONGEST), case.once(run_padded)
    y = run(block, map_outputs(batch, fill, memories=True)).y
    expect_equal(
        case,
        "padding",
        y[made.mask],
        made.y[made.mask],
        "after a change of the values in the padding",
    )
    for row, length in enumerate(LENGTHS):
        if length:
            single = run(block, cut_memories(single_row(batch, row)))
            mine, theirs = made.y[row][made.mask[row]], single.y[0][single.mask[0]]
            expect_equal(case, "padding", mine, theirs, f"row {row} padded, against the row alone")
    penalties = [run_pieces(block, [single_row(batch, row)])[2] for row in range(len(LENGTHS))]
    penalty = run_pieces(block, [batch])[2]
    expect_equal(
        case,
        "padding",
        penalty,
        torch.stack(penalties).mean(),
        "the penalties, against each row alone",
    )
    expect_finite(case, block, batch)


def expect_finite(case: Case, block: Block, batch: Batch) -> None:
    """Check that outputs and gradients are finite, in padding too, and where a row of a memory is
    empty.
    """
    nonempty = torch.arange(len(LENGTHS)) != 2
    empty = {
        name: output._replace(mask=output.mask & expand_as(nonempty, output.mask))
        for name, output in batch.memories.items()
    }
    x = batch.x.detach().requires_grad_()
    board = {**batch.board, "input": Output(x, batch.mask)}
    y = run(block, batch._replace(x=x, board=board, memories=empty)).y
    if not y.isfinite().all():
        case.broken("padding", "an output is not finite where a row, or a memory's row, is empty")
    if y.requires_grad:
        y.sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in block.parameters())]
    if any(gradient is not None and not gradient.isfinite().all() for gradient in gradients):
        case.broken("padding", "a gradient is not finite where a row, or a memory's row, is empty")


def independent_rows(case: Case) -> None:
    """Check that no row depends on another, in training neither."""
    block, batch, other = case.shared(), case.batch(), case.batch(seed=6)
    row = torch.arange(len(LENGTHS)) == 0
    changed = mix(
        batch,
        other,
        lambda mine, theirs: torch.where(expand_as(row, mine), theirs, mine),
        memories=True,
    )
    for mode in (False, True):
        block.train(mode)
        before = with_fixed_seed(partial(run, block, batch)).y
        after = with_fixed_seed(partial(run, block, changed)).y
        detail = f"the other rows after a change of row 0, {'training' if mode else 'evaluating'}"
        expect_equal(case, "independent_rows", after[1:], before[1:], detail)


def reordering(case: Case) -> None:
    """Check that the leaves of a state are tensors with the batch first, and that it survives a
    reordering of rows.
    """
    block, batch = case.shared(), case.batch()
    made, index = case.output(), torch.tensor([3, 0, 0, 4, 1])
    for candidate in (start(block, batch), made.state):
        for leaf in state_leaves(candidate):
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or leaf.shape[0] != len(LENGTHS):
                detail = (
                    f"the shape {tuple(leaf.shape)}"
                    if isinstance(leaf, Tensor)
                    else f"the type {type(leaf)}"
                )
                case.broken(
                    "reordering",
                    f"a leaf of the state has {detail}, and the batch is {len(LENGTHS)}",
                )
    if not case.causal:
        return
    future = next_positions(case, batch)
    reordered, straight = reorder_state(made.state, index), run(block, future, made.state)
    mine = run(block, rows(future, index), reordered).y
    expect_equal(case, "reordering", mine, straight.y[index], "after a reordering of the rows")


def kept_states(case: Case) -> None:
    """Check that a state can be gone on from again and reordered while decoding, which appends to
    caches in place.
    """
    block, batch = case.shared(), case.batch()
    future, index = next_positions(case, batch), torch.tensor([3, 0, 0, 4, 1])
    expected = run(block, future, run(block, future, run(block, batch).state).state).y
    with torch.inference_mode(), patch("blocks.core.kv_cache.SMALL", 0):
        state = run(block, batch).state
        after = run(block, future, state).state
        again = run(
            block, map_outputs(future, lambda output: output._replace(states=-output.states)), state
        ).state
        reordered = run(block, rows(future, index), reorder_state(after, index)).y
        expect_equal(
            case,
            "kept_states",
            run(block, future, after).y,
            expected,
            "after another step from the state",
        )
        expect_equal(
            case, "kept_states", reordered, expected[index], "after a reordering of the rows"
        )
        run(block, future, again)


def rollback(case: Case) -> None:
    """Check that a state goes on as if steps that were taken from it, and rejected, had never been:
    bit by bit.

    And that what they led to goes on, too, whatever was done with the state behind it.
    """
    block, batch = case.shared(), case.batch()
    future = next_positions(case, batch)
    rejected = map_outputs(future, lambda output: output._replace(states=-output.states))
    with torch.inference_mode(), patch("blocks.core.kv_cache.SMALL", 0):
        expected = run(block, future, run(block, batch).state)
        for sizes in ((3,), (1, 1, 1)):
            detail = f"after {' + '.join(map(str, sizes))} rejected steps"
            alone = run(block, future, run_chunks(block, rejected, sizes, run(block, batch).state))
            state = run(block, batch).state
            leaves = [leaf.clone() for leaf in state_leaves(state)]
            newer = run_chunks(block, rejected, sizes, state)
            expect_same_bits(case, "rollback", run(block, future, state), expected, detail)
            if not all(map(torch.equal, state_leaves(state), leaves)):
                case.broken("rollback", f"{detail}: the state that was kept has changed")
            expect_same_bits(
                case, "rollback", run(block, future, newer), alone, f"{detail}, what follows these"
            )
            expect_same_bits(
                case, "rollback", run(block, future, state), expected, f"{detail}, a second time"
            )


def run_chunks(block: Block, batch: Batch, sizes: Sequence[int], state: State) -> State:
    """Return the state after consecutive chunks of these sizes."""
    at = 0
    for size in sizes:
        state, at = run(block, positions(batch, at, at + size), state).state, at + size
    return state


def expect_same_bits(
    case: Case, law: str, mine: BlockOutput, theirs: BlockOutput, detail: str
) -> None:
    """Raise LawError where outputs, or the states after them, differ in any bit."""
    pairs = zip(
        (mine.real, *state_leaves(mine.state)),
        (theirs.real, *state_leaves(theirs.state)),
        strict=True,
    )
    for place, (one, other) in enumerate(pairs):
        if not torch.equal(one, other):
            what = "a leaf of the last state" if place else "the output"
            case.broken(law, f"{detail}: {what} differs by {max_difference(one, other):.3g}")


def unchanged_leaves(case: Case) -> None:
    """Check that a leaf that a step does not change stays the same tensor, so that a search need
    not reorder it.
    """
    block, batch = case.shared(), case.batch((7,) * 5)
    state = run(block, positions(batch, 0, 6)).state
    after = run(block, positions(batch, 6, 7), state).state
    for old, new in zip(state_leaves(state), state_leaves(after), strict=True):
        unchanged = old.numel() > 0 and old.is_floating_point() and max_difference(old, new) == 0.0
        if unchanged and old is not new:
            shape = tuple(old.shape)
            case.broken(
                "unchanged_leaves",
                f"a leaf of shape {shape} is equal after a step, but another tensor",
            )


def start_ignores_values(case: Case) -> None:
    """Check that `start` reads only batch, type and device of x: it is called before there is any
    position.
    """
    block, batch = case.shared(), case.batch()
    context = context_of(batch)._replace(
        mask=batch.mask.new_ones(len(LENGTHS), 1), named_outputs={}
    )
    first = batch.x.flatten(1, -2)[:, :1]  # (B, 1, D)
    states = [block.start(x, context) for x in (first, first + 1.0, torch.cat([first] * 2, -1))]
    for other in states[1:]:
        for one, two in zip(state_leaves(states[0]), state_leaves(other), strict=True):
            expect_equal(
                case, "start_ignores_values", two, one, "the state of `start` for another x"
            )


def initial_output(case: Case) -> None:
    """Check that a block that copies a state has as `initial_output` the last output of the block
    it copies from.
    """
    block, batch = case.shared(), case.batch()
    copied_from = batch.memories.get("encoder.same")
    if not case.causal or copied_from is None or case.kind.initial_output is Block.initial_output:
        return
    last = copied_from.mask.sum(1) - 1  # (B,)
    expected = copied_from.states[torch.arange(len(last)), last][:, None]  # (B, 1, D)
    mine = block.initial_output(batch.x[:, :1], start(block, batch))
    expect_equal(
        case,
        "initial_output",
        mine,
        expected,
        "`initial_output`, against what the copied block gave last",
    )


def no_side_effects(case: Case) -> None:
    """Check that nothing is kept on `self`, and neither a state nor what a block reads is changed
    in place.
    """
    block, batch = case.shared(), case.batch()
    for mode in (False, True):
        block.train(mode)
        state = start(block, batch) if not case.causal else run(block, batch).state
        read = [
            batch.x,
            *(output.states for output in (*batch.board.values(), *batch.memories.values())),
        ]
        watched = [*state_leaves(state), *read, batch.mask]
        versions, values = (
            [leaf._version for leaf in watched],
            [leaf.detach().clone() for leaf in watched],
        )
        before = snapshot(block)
        run(block, batch, state)
        for leaf, version, value in zip(watched, versions, values, strict=True):
            if leaf._version != version or not torch.equal(leaf, value):
                case.broken(
                    "no_side_effects",
                    f"forward changed a tensor of shape {tuple(leaf.shape)} in place",
                )
        after = snapshot(block)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                case.broken("no_side_effects", f"forward changed `self.{name}`")


def snapshot(block: Block) -> dict[str, object]:
    """Return all that a block and its inner modules keep, in a form that can be compared later."""
    contents: dict[str, object] = {}
    for name, module in block.named_modules():
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules", "training"):
                contents[f"{name}.{key}".lstrip(".")] = (id(value), repr(value))
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                contents[f"{name}.{key}".lstrip(".")] = (id(tensor), tensor._version)
    return contents


def with_fixed_seed(call: Callable[[], Result]) -> Result:
    """Call a function with dropout's random numbers always the same."""
    with fixed_seed(4):
        return call()


def next_positions(case: Case, batch: Batch) -> Batch:
    """Return three more positions after a batch, over the same memories."""
    return case.batch((3,) * len(batch.x), seed=9)._replace(memories=batch.memories)


def run_padded(case: Case) -> BlockOutput:
    """Return the outputs for a batch that is padded beyond its longest row."""
    return run(case.shared(), case.batch(longest=LONGEST))


def run_rows(case: Case) -> list[BlockOutput | None]:
    """Return the outputs for each row alone, cut to its length; None for an empty row."""
    block, batch = case.shared(), case.batch(longest=LONGEST)
    alone: list[BlockOutput | None] = []
    for row, length in enumerate(LENGTHS):
        alone.append(run(block, single_row(batch, row)) if length else None)
    return alone


def run_next_rows(case: Case) -> list[Tensor]:
    """Return the outputs (3, D) that follow each row alone; for an empty row those from `start`."""
    block, future = case.shared(), next_positions(case, case.batch(longest=LONGEST))
    following = []
    for row, alone in enumerate(case.once(run_rows)):
        state = alone.state if alone else None
        following.append(run(block, rows(future, [row]), state).y[0])
    return following


def expect_continues(case: Case, law: str, state: State) -> None:
    """Check that what follows the state of each row of the padded batch is what follows the row
    alone (or `start`).
    """
    after = run(case.shared(), next_positions(case, case.batch(longest=LONGEST)), state).y
    for row, alone in enumerate(case.once(run_next_rows)):
        detail = f"what follows row {row} of {LENGTHS[row]} positions, against the row alone"
        expect_equal(case, law, after[row], alone, detail)

"""The laws of what flows: positions, padding, rows and states. Each raises LawError where a block breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from blocks.core.contract import Block, Output
from composer.testing.harness import (
    LENGTHS,
    Batch,
    Case,
    context_of,
    cut_memories,
    detached_copy,
    expand_as,
    expect_continues,
    expect_equal,
    expect_same_state,
    gather,
    leaves,
    map_outputs,
    max_difference,
    next_positions,
    positions,
    random_batch,
    reorder,
    rows,
    run,
    single_row,
    start,
)

Result = TypeVar("Result")
CUTS = ((1,) * 7, (3, 4), (2, 1, 4), (6, 1))
RAGGED = ((3, 0, 1, 1, 0), (0, 2, 1, 0, 0), (1, 1, 3, 0, 0), (3, 0, 0, 0, 0))
"""How many real positions each row has in each chunk; they add up to LENGTHS."""


# ------------------------------------------------------------------------------------------- chunks


def chunks(case: Case) -> None:
    """On a causal site, cutting the positions into any chunks gives the same outputs and the same last state."""
    block, given = case.exact(), random_batch(case, (7,) * 5)
    whole = run(block, given)
    for cut in CUTS:
        outputs, state, at = [], start(block, given), 0
        for size in cut:
            made = run(block, positions(given, at, at + size), state)
            outputs.append(made.real)
            state, at = made.state, at + size
        told = "chunks of " + " + ".join(map(str, cut))
        expect_equal(case, "chunks", torch.cat(outputs, 1), whole.real, f"{told}, against all positions at once")
        expect_same_state(case, "chunks", block, given, state, whole.state, told)


def ragged_chunks(case: Case) -> None:
    """Chunks in which each row is padded differently, some rows empty, give what each row gives alone."""
    block, given = case.exact(), random_batch(case)
    state, pieces = start(block, given), []
    done = torch.zeros(len(LENGTHS), dtype=torch.long)
    for sizes in map(torch.tensor, RAGGED):
        where = done[:, None] + torch.arange(int(sizes.max()) + 1)  # one more position than any row needs
        real = torch.arange(where.shape[1]) < sizes[:, None]
        made = run(block, gather(given, where.clamp(max=max(LENGTHS) - 1), real), state)
        pieces.append((made.real, real))
        state, done = made.state, done + sizes
    for row, length in enumerate(LENGTHS):
        single = run(block, single_row(given, row)) if length else None
        y = torch.cat([part[row][real[row]] for part, real in pieces])
        if single is not None:
            expect_equal(case, "ragged_chunks", y, single.real[0], f"row {row} of {length} positions, cut raggedly")
        expect_continues(case, "ragged_chunks", block, given, row, state, single)


def last_state(case: Case) -> None:
    """The last state of a padded row is that of the row cut to its length."""
    block, given = case.exact(), random_batch(case, longest=9)
    made = run(block, given)
    for row, length in enumerate(LENGTHS):
        if not length:
            continue
        single = run(block, single_row(given, row))
        if case.causal:
            expect_continues(case, "last_state", block, given, row, made.state, single)
        for mine, cut in zip(leaves(made.state), leaves(single.state), strict=True):
            if mine.shape[1:] == cut.shape[1:] and not case.causal:
                told = f"the state of row {row} of {length} positions"
                expect_equal(case, "last_state", mine[row : row + 1], cut, told)


# ------------------------------------------------------------------------------------------- the future, and padding


def causality(case: Case) -> None:
    """On a causal site no output depends on a later position: the gradient is zero, and a change changes nothing."""
    block, given = case.exact(), random_batch(case, (7,) * 5)
    followed = map_outputs(given, lambda output: output._replace(states=output.states.detach().requires_grad_()))
    followed = followed._replace(board={**followed.board, "input": Output(followed.x, followed.mask)})
    read = [followed.x, *(output.states for name, output in followed.board.items() if name != "input")]
    y = run(block, followed).y
    for t in range(y.shape[1] if y.requires_grad else 0):  # what reads memories only has no gradient here
        gradients = torch.autograd.grad(y[:, t].sum(), read, retain_graph=True, allow_unused=True)
        for gradient in gradients:
            if gradient is not None and gradient[:, t + 1 :].any():
                later = t + 1 + int(gradient[:, t + 1 :].abs().flatten(2).amax((0, 2)).argmax())
                case.broken(
                    "causality",
                    f"output {t} depends on position {later}: the gradient is "
                    f"{gradient[:, later].abs().max().item():.3g}",
                )
    other = random_batch(case, (7,) * 5, seed=5)
    changed = replace_tail(given, other, 4)
    expect_equal(case, "causality", run(block, changed).y[:, :4], y[:, :4], "after a change of the positions from 4 on")


def padding(case: Case) -> None:
    """Padding is seen by nobody: neither its values nor its length change a real output, and all stays finite."""
    block, given = case.exact(), random_batch(case, longest=9)
    made = run(block, given)
    filled = map_outputs(given, fill_padding, memories=True)
    filled = filled._replace(board={**filled.board, "input": Output(filled.x, filled.mask)})
    other = run(block, filled)
    expect_equal(case, "padding", other.y[made.mask], made.y[made.mask], "after a change of what stands in the padding")
    for row, length in enumerate(LENGTHS):
        if length:
            single = run(block, cut_memories(single_row(given, row)))
            expect_equal(
                case,
                "padding",
                made.y[row][made.mask[row]],
                single.y[0][single.mask[0]],
                f"row {row} padded, against the row alone",
            )
    expect_finite(case, block, given)


def fill_padding(output: Output) -> Output:
    """The output with other, large values in its padding."""
    return output._replace(states=torch.where(output.mask[..., None], output.states, 100.0 - output.states))


def expect_finite(case: Case, block: Block, given: Batch) -> None:
    """Outputs and gradients are finite, in padding too, and where a row of a memory is empty."""
    kept = torch.arange(len(LENGTHS)) != 2
    empty = {
        name: output._replace(mask=output.mask & expand_as(kept, output.mask))
        for name, output in given.memories.items()
    }
    x = given.x.detach().requires_grad_()
    board = {**given.board, "input": Output(x, given.mask)}
    y = run(block, given._replace(x=x, board=board, memories=empty)).y
    if not y.isfinite().all():
        case.broken("padding", "an output is not finite where a row, or a memory's row, is empty")
    if not y.requires_grad:
        return
    y.sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in block.parameters())]
    if any(gradient is not None and not gradient.isfinite().all() for gradient in gradients):
        case.broken("padding", "a gradient is not finite where a row, or a memory's row, is empty")


# ------------------------------------------------------------------------------------------- rows and states


def independent_rows(case: Case) -> None:
    """No row depends on another, in training neither."""
    block, given, other = case.exact(), random_batch(case), random_batch(case, seed=6)
    row = torch.arange(len(LENGTHS)) == 0

    def mixed(mine: Output, theirs: Output) -> Output:
        return mine._replace(states=torch.where(expand_as(row, mine.states), theirs.states, mine.states))

    board = {name: mixed(given.board[name], other.board[name]) for name in given.board}
    memories = {name: mixed(given.memories[name], other.memories[name]) for name in given.memories}
    changed = Batch(board["input"].states, given.mask, board, memories)
    for mode in (False, True):
        block.train(mode)
        before, after = (with_fixed_seed(lambda: run(block, each)).y for each in (given, changed))  # noqa: B023
        expect_equal(
            case,
            "independent_rows",
            after[1:],
            before[1:],
            f"the other rows after a change of row 0, {'training' if mode else 'evaluating'}",
        )


def reordering(case: Case) -> None:
    """Every leaf of a state is a tensor with the batch first, and the state survives any reordering of the rows."""
    block, given = case.exact(), random_batch(case)
    made, index = run(block, given), torch.tensor([3, 0, 0, 4, 1])
    for each in (start(block, given), made.state):
        for leaf in leaves(each):
            if not isinstance(leaf, Tensor) or leaf.ndim == 0 or leaf.shape[0] != len(LENGTHS):
                told = f"the shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else f"the type {type(leaf)}"
                case.broken("reordering", f"a leaf of the state has {told}, and the batch is {len(LENGTHS)}")
    if not case.causal:
        return
    future = next_positions(case, given)
    reordered, straight = reorder(made.state, index), run(block, future, made.state)
    mine = run(block, rows(future, index), reordered).y
    expect_equal(case, "reordering", mine, straight.y[index], "after a reordering of the rows")


def unchanged_leaves(case: Case) -> None:
    """A leaf that a step does not change is handed on as the same tensor, so that a search need not reorder it."""
    block, given = case.exact(), random_batch(case, (7,) * 5)
    state = run(block, positions(given, 0, 6)).state
    after = run(block, positions(given, 6, 7), state).state
    for old, new in zip(leaves(state), leaves(after), strict=True):
        unchanged = old.numel() > 0 and old.is_floating_point() and max_difference(old, new) == 0.0
        if unchanged and old is not new:
            case.broken("handing_on", f"a leaf of shape {tuple(old.shape)} is equal after a step, but another tensor")


def start_ignores_values(case: Case) -> None:
    """`start` looks at nothing of x but its batch, type and device: it is called before there is any position."""
    block, given = case.exact(), random_batch(case)
    context = context_of(given)._replace(mask=given.mask.new_ones(len(LENGTHS), 1), named_outputs={})
    first = given.x.flatten(1, -2)[:, :1]  # (B, 1, D)
    states = [block.start(x, context) for x in (first, first + 1.0, torch.cat([first] * 2, -1))]
    for other in states[1:]:
        for one, two in zip(leaves(states[0]), leaves(other), strict=True):
            expect_equal(case, "starting", two, one, "the state of `start` for another x")


def initial_output(case: Case) -> None:
    """Check that a block that copies a state has as `initial_output` the last output of the block it copies from."""
    block, given = case.exact(), random_batch(case)
    copied_from = given.memories.get("encoder.same")
    if not case.causal or copied_from is None or case.kind.initial_output is Block.initial_output:
        return
    last = copied_from.mask.sum(1) - 1  # (B,)
    expected = copied_from.states[torch.arange(len(last)), last][:, None]  # (B, 1, D)
    mine = block.initial_output(given.x[:, :1], start(block, given))
    expect_equal(case, "beginning", mine, expected, "`initial_output`, against what the copied block gave last")


def no_side_effects(case: Case) -> None:
    """Nothing is kept on `self`, and neither a state nor what a block reads is changed in place."""
    block, given = case.exact(), random_batch(case)
    for mode in (False, True):
        block.train(mode)
        state = start(block, given) if not case.causal else run(block, given).state
        read = [given.x, *(output.states for output in (*given.board.values(), *given.memories.values()))]
        watched = [*leaves(state), *read, given.mask]
        versions, values, kept = [each._version for each in watched], detached_copy(tuple(watched)), snapshot(block)
        run(block, given, state)
        for leaf, version, value in zip(watched, versions, values, strict=True):
            if leaf._version != version or not torch.equal(leaf, value):
                case.broken("no_trace", f"forward changed a tensor of shape {tuple(leaf.shape)} in place")
        expect_unchanged(case, kept, snapshot(block))


def snapshot(block: Block) -> dict[str, object]:
    """All that a block and its inner modules keep, in a form that can be compared later."""
    kept: dict[str, object] = {}
    for name, module in block.named_modules():
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules", "training"):
                kept[f"{name}.{key}".lstrip(".")] = (id(value), repr(value))
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                kept[f"{name}.{key}".lstrip(".")] = (id(tensor), tensor._version)
    return kept


def expect_unchanged(case: Case, before: dict[str, object], after: dict[str, object]) -> None:
    """Raises LawError where something was added, removed or changed."""
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            case.broken("no_trace", f"forward changed `self.{name}`")


# ------------------------------------------------------------------------------------------- changed batches


def replace_tail(given: Batch, other: Batch, where: int) -> Batch:
    """`given` with the positions from `where` on taken from `other`."""
    x = torch.cat((given.x[:, :where], other.x[:, where:]), 1)
    board = {
        name: output._replace(states=torch.cat((output.states[:, :where], other.board[name].states[:, where:]), 1))
        for name, output in given.board.items()
    }
    return given._replace(x=x, board={**board, "input": Output(x, given.mask)})


def with_fixed_seed(call: Callable[[], Result]) -> Result:
    """A call with dropout's random numbers always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return call()

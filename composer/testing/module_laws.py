"""Laws of a block as a PyTorch module: shapes, gradients, precision, saving, meta device,
compiling, loop lifting.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from blocks.core.contract import Block, BlockError, Context, Stream
from blocks.recurrent import Recurrent
from composer.errors import one_line_error
from composer.model.encoder_decoder import EncoderDecoder, state_leaves
from composer.model.meta_device import MetaCache, without_compiler
from composer.testing.harness import (
    LENGTHS,
    Batch,
    Case,
    cast_batch,
    context_of,
    expect_equal,
    map_tensors,
    max_difference,
    positions,
    random_batch,
    real_rows,
    run,
    start,
)
from composer.testing.model_laws import MODEL_TOLERANCE, expect_equal_logits, fail, random_pairs


def grid_or_refusal(case: Case) -> None:
    """Check that a block takes a grid or refuses it: it does not stop at one."""
    if not case.columns:
        return
    try:
        run(case.exact(), random_batch(case))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        detail = (
            f"it stops with `{one_line_error(error)}`: refuse grids with `site.sequence`, or take"
            " them"
        )
        case.broken("grid_or_refusal", detail)


def shapes(case: Case) -> None:
    """Check that what comes out is what `out`, `mask` and `initial_output` say, whatever the width
    that arrives.
    """
    for arriving in (case.arriving, case.arriving * 2):
        try:
            wide = replace(case, arriving=arriving)
            block, batch = wide.exact(), random_batch(wide)
        except BlockError:
            continue
        for fault in _shape_faults(block, batch):
            case.broken("shapes", f"the stream that leaves (arriving width {arriving}) {fault}")
        if case.causal and not block.out.grid:  # only `recurrent` asks for it
            first = block.initial_output(batch.x[:, :1], start(block, batch)).shape
            if first != (len(LENGTHS), 1, block.out.width):
                case.broken("shapes", f"`initial_output` has the shape {tuple(first)}")


def _shape_faults(block: Block, batch: Batch) -> Iterator[str]:
    """Yield what differs between the output of a block and its `out`; each fault may be the cause
    of those after it.
    """
    (y, mask, _), out = run(block, batch), block.out
    shape = f"has the shape {tuple(y.shape)}"
    if y.shape[-1] != out.width:
        yield f"is {y.shape[-1]} wide, and `out` says {out.width}"
    if mask.dtype is not torch.bool or mask.shape != y.shape[:-1]:
        yield f"{shape}, and its mask {tuple(mask.shape)}"
    length, arrived = y.shape[1], batch.x.shape[1]
    if length != out.length(arrived):
        yield f"has {length} positions of {arrived}, and `out` says {out.length(arrived)}"
    if y.dtype is not batch.x.dtype:
        yield f"is {y.dtype}, and {batch.x.dtype} arrived"
    there = real_rows(mask)
    if (there[:, 1:] > there[:, :-1]).any():
        yield "has padding before what is real"
    if (y.ndim, y.shape[2:-1]) != ((4, (out.columns,)) if out.grid else (3, ())):
        yield f"{shape}, and `out` says {out.described}"
    if out.same_length(Stream(0)) and not torch.equal(there, real_rows(batch.mask)):
        yield "has other real positions than the one that arrives, which is as long"


def recording(case: Case) -> None:
    """Check that records, penalties and the progress of training change no output."""
    block, batch, plain = case.shared(), case.batch(), case.output().y
    context = context_of(batch)._replace(records={}, penalties={}, progress=torch.tensor(0.5))
    recorded, *_ = block(batch.x, start(block, batch), context)
    expect_equal(case, "recording", recorded, plain, "with records and penalties enabled")


def gradients(case: Case) -> None:
    """Check that every parameter gets a gradient that is not zero: what the loss does not reach
    never learns.
    """
    block, batch = case.shared(), case.batch()
    made = run(block, batch)
    if not any(True for _ in block.parameters()):
        return
    weight = torch.randn(
        made.y.shape, generator=torch.Generator().manual_seed(3), dtype=made.y.dtype
    )
    (made.y * weight)[made.mask].sum().backward()
    for name, parameter in block.named_parameters():
        if parameter.grad is None:
            case.broken("gradients", f"`{name}` gets no gradient")
        if parameter.grad.abs().max() < 1e-10:
            case.broken("gradients", f"the gradient of `{name}` is zero: it has no influence")


def gradcheck(case: Case) -> None:
    """Check that the gradients are those of the function: finite differences in double precision
    agree.

    All that autograd reaches is moved together, along one random direction. So is what it does not
    reach: nothing may depend on it.
    """
    block, batch = case.shared(), case.batch((3, 1))
    runner = FunctionalBlock(block, batch)
    parameters = dict(runner.named_parameters())
    read = [output.states for output in (*batch.board.values(), *batch.memories.values())]
    inputs = [tensor.detach().clone().requires_grad_() for tensor in (*parameters.values(), *read)]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        chosen = dict(zip(parameters, tensors, strict=False))
        return torch.func.functional_call(runner, chosen, tensors[len(parameters) :])

    made = [tensor.sum() for tensor in call(*inputs) if tensor.requires_grad]
    if not made:
        return
    reached = [
        gradient is not None for gradient in torch.autograd.grad(made, inputs, allow_unused=True)
    ]
    generator = torch.Generator().manual_seed(3)
    random = [
        torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) for tensor in inputs
    ]
    unread = [
        (tensor.detach(), direction / direction.norm())
        for tensor, direction in zip(inputs, random, strict=True)
    ]
    followed_shapes = [tensor.shape for tensor, there in zip(inputs, reached, strict=True) if there]

    def move(flat: Tensor) -> Tensor:
        step, *parts = flat.split([1, *(shape.numel() for shape in followed_shapes)])
        followed = iter(
            [part.view(shape) for part, shape in zip(parts, followed_shapes, strict=True)]
        )
        moved = []
        for there, (tensor, direction) in zip(reached, unread, strict=True):
            moved.append(next(followed) if there else tensor + step * direction)
        return torch.cat([part.flatten() for part in call(*moved)])

    followed = [
        tensor.detach().flatten() for tensor, there in zip(inputs, reached, strict=True) if there
    ]
    flat = torch.cat([torch.zeros(1, dtype=torch.float64), *followed]).requires_grad_()
    # PyTorch multiplies `atol` by the sums of both directions, which grow with the numbers that are
    # moved
    try:
        torch.autograd.gradcheck(move, (flat,), fast_mode=True, eps=1e-6, atol=1e-8, rtol=1e-6)
    except GradcheckError as error:
        case.broken("gradcheck", one_line_error(error))


class FunctionalBlock(nn.Module):
    """A block from its start over given tensors, as a function of its parameters and of all that it
    reads.
    """

    def __init__(self, block: Block, batch: Batch) -> None:
        super().__init__()
        self.block, self.batch = block, batch

    def forward(self, *states: Tensor) -> tuple[Tensor, ...]:
        batch, unread = self.batch, iter(states)
        board = {name: output._replace(states=next(unread)) for name, output in batch.board.items()}
        memories = {
            name: output._replace(states=next(unread)) for name, output in batch.memories.items()
        }
        made = run(self.block, Batch(board["input"].states, batch.mask, board, memories))
        after = [leaf for leaf in state_leaves(made.state) if leaf.requires_grad]
        return (made.y[made.mask], *after)


def bfloat16(case: Case) -> None:
    """Check that outputs and gradients are finite in bfloat16 and under autocast, whichever type
    arrives there.
    """
    half, single = (cast_batch(case.batch(), dtype) for dtype in (torch.bfloat16, torch.float32))
    y = _expect_finite(case, case.build().bfloat16(), half, "in bfloat16")
    if y.dtype is not torch.bfloat16:
        case.broken("bfloat16", f"the output of a bfloat16 block is {y.dtype}")
    block = case.build()
    with torch.autocast("cpu", torch.bfloat16):
        _expect_finite(case, block, single, "under autocast")
        try:  # the block before may leave either type
            run(block, half)
        except RuntimeError as error:
            case.broken(
                "bfloat16", f"under autocast, where bfloat16 arrives: {one_line_error(error)}"
            )


def _expect_finite(case: Case, block: Block, batch: Batch, detail: str) -> Tensor:
    """Return the output, after it and the gradients have been checked."""
    made = run(block, batch)
    outputs = [made.y]
    if case.causal:
        outputs.append(run(block, positions(batch, 0, 1), made.state).y)
    if not all(tensor.isfinite().all() for tensor in outputs):
        case.broken("bfloat16", f"{detail} an output is not finite")
    if made.y.requires_grad:
        made.y.float().sum().backward()
        if not all(
            tensor.grad is None or tensor.grad.isfinite().all() for tensor in block.parameters()
        ):
            case.broken("bfloat16", f"{detail} a gradient is not finite")
    return made.y


def saving(case: Case) -> None:
    """Check that a block that is saved and loaded into one built with another seed gives the same
    output.
    """
    block, other = case.shared(), case.exact(seed=7)
    tensors = {
        name: tensor.detach().clone().contiguous() for name, tensor in block.state_dict().items()
    }
    try:
        other.load_state_dict(safetensors.torch.load(safetensors.torch.save(tensors)))
    except RuntimeError as error:
        case.broken("saving", one_line_error(error))
    expect_equal(
        case, "saving", run(other, case.batch()).y, case.output().y, "after saving and loading"
    )


def meta(case: Case) -> None:
    """Check that it builds and runs on the meta device, forwards and backwards, with the same
    shapes.
    """
    made, nowhere = case.output(), map_tensors(case.batch(), lambda leaf: leaf.to("meta"))
    try:
        with without_compiler(), MetaCache():
            with torch.device("meta"):
                block = case.build(noise=0.0).double()
            there = run(block, nowhere)
            if there.y.requires_grad:
                there.y.sum().backward()
    except (RuntimeError, NotImplementedError) as error:
        case.broken("meta", one_line_error(error))
    if (there.y.shape, there.mask.shape) != (made.y.shape, made.mask.shape):
        case.broken(
            "meta",
            f"the shape is {tuple(there.y.shape)} on meta, and {tuple(made.y.shape)} on the CPU",
        )


def compiling(case: Case) -> None:
    """Check that `torch.compile` takes it as one graph, and the compiled block gives the same
    output. Takes seconds.
    """
    block, batch = case.exact(), random_batch(case)
    expected, state = run(block, batch).y, start(block, batch)
    try:
        torch.compiler.reset()
        compiled: Callable[[Tensor, object, Context], tuple[Tensor, ...]] = torch.compile(
            block, fullgraph=True, backend="aot_eager"
        )
        y, *_ = compiled(batch.x, state, context_of(batch))
    except RuntimeError as error:
        case.broken("compiling", one_line_error(error))
    expect_equal(case, "compiling", y, expected, "compiled, against eager")


ModuleType = TypeVar("ModuleType", bound=nn.Module)


def lifting(case: Case) -> None:
    """Check that a block with a `recurrent` gives the same, gradients too, when nothing is lifted
    out of the loop.
    """
    block, batch = case.shared(), case.batch()
    slow = unlifted_copy(block)
    if slow is None:
        return
    lifted, looped = run(block, batch).y, run(slow, batch).y
    expect_equal(case, "lifting", lifted[batch.mask], looped[batch.mask], "lifted, against looped")
    mine, theirs = (
        weighted_gradients(block, lifted[batch.mask]),
        weighted_gradients(slow, looped[batch.mask]),
    )
    for name, gradient in mine.items():
        expect_equal(
            case,
            "lifting",
            gradient,
            theirs[name],
            f"the gradient of `{name}`, lifted against looped",
        )


ROUNDING = 1e-13
"""Share of the largest number by which sums of float64 differ in another order."""


def model_lifting(model: EncoderDecoder) -> None:
    """Check that a model gives the same logits and gradients when nothing is lifted out of its
    loops.
    """
    slow = unlifted_copy(model)
    if slow is None:
        return
    pairs = random_pairs(model)
    with torch.enable_grad():
        lifted, looped = model(*pairs)[pairs.target != 0], slow(*pairs)[pairs.target != 0]
        expect_equal_logits("lifting", lifted, looped, "lifted, against looped")
        mine, theirs = weighted_gradients(model, lifted), weighted_gradients(slow, looped)
        for name, gradient in mine.items():
            rounding = ROUNDING * float(gradient.abs().max())
            if (gap := max_difference(gradient, theirs[name])) > max(MODEL_TOLERANCE, rounding):
                fail("lifting", f"the gradient of `{name}` differs by {gap:.3g}")


def unlifted_copy(module: ModuleType) -> ModuleType | None:
    """Return a copy in which every `recurrent` runs all of its stack position by position; None
    without any.
    """
    slow = copy.deepcopy(module)
    recurrents = [block for block in slow.modules() if isinstance(block, Recurrent)]
    for block in recurrents:
        block.first, block.stop = 0, len(block.stack.inner())
    return slow if recurrents else None


def weighted_gradients(module: nn.Module, y: Tensor) -> dict[str, Tensor]:
    """Return the gradient of a randomly weighted sum of all outputs, for every parameter."""
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(4), dtype=y.dtype)
    parameters = dict(module.named_parameters())
    if not parameters:
        return {}
    gradients = torch.autograd.grad(
        (y * weight).sum(), list(parameters.values()), materialize_grads=True
    )
    return dict(zip(parameters, gradients, strict=True))

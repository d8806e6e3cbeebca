"""The laws of the craft: shapes, gradients, precision, saving, meta, compiling. Each raises LawError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from blocks.core.contract import Block, BlockError, Context, Output
from composer.testing.harness import (
    LENGTHS,
    Case,
    Given,
    cast_all,
    context_of,
    draw,
    each_leaf,
    each_output,
    leaves,
    positions,
    reached,
    run,
    start,
)
from composer.testing.tensor_compare import expect_equal


def kinds(case: Case) -> None:
    """A block takes a grid or refuses it: it does not stop at one."""
    if not case.columns:
        return
    try:
        run(case.exact(), draw(case))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        told = " ".join(str(error).split())[:200]
        case.broken("kinds", f"it stops with `{told}`: refuse grids with `site.sequence`, or take them")


def shapes(case: Case) -> None:
    """What comes out is what `out`, `mask` and `before` say, whatever the width that arrives."""
    for arriving in (case.arriving, case.arriving * 2):
        try:
            wide = replace(case, arriving=arriving)
            block, given = wide.exact(), draw(wide)
        except BlockError:
            continue
        made, rows, arrived = run(block, given), len(LENGTHS), given.x.shape[1]
        width, length, pace = block.out.width, made.y.shape[1], block.out.pace
        told = f"the stream that leaves (arriving width {arriving})"
        _expect(case, made.y.shape[-1] == width, f"{told} is {made.y.shape[-1]} wide, and `out` says {width}")
        _expect(
            case,
            made.mask.dtype is torch.bool and made.mask.shape == made.y.shape[:-1],
            f"{told} has the shape {tuple(made.y.shape)}, and its mask {tuple(made.mask.shape)}",
        )
        _expect(
            case,
            _length_fits(pace, length, arrived),
            f"{told} has {length} positions of {arrived}, and the pace is {pace}",
        )
        _expect(case, made.y.dtype is given.x.dtype, f"{told} is {made.y.dtype}, and {given.x.dtype} arrived")
        there = reached(made.mask)
        _expect(case, bool((there[:, 1:] <= there[:, :-1]).all()), f"{told} has padding before what is real")
        _expect(
            case,
            (made.y.ndim, made.y.shape[2:-1]) == ((4, (block.out.columns,)) if block.out.grid else (3, ())),
            f"{told} has the shape {tuple(made.y.shape)}, and `out` says {block.out.described}",
        )
        _expect(
            case,
            pace != 1 or torch.equal(there, reached(given.mask)),
            f"{told} has other real positions than the one that arrives, and the pace is 1",
        )
        if case.causal and not block.out.grid:  # only `recurrent` asks for it
            first = block.before(given.x[:, :1], start(block, given)).shape
            _expect(case, first == (rows, 1, width), f"`before` has the shape {tuple(first)}")


def _length_fits(pace: Fraction, after: int, before: int) -> bool:
    return after == before if pace == 1 else after == 1 if pace == 0 else abs(after - before * pace) <= 1


def _expect(case: Case, true: bool, detail: str) -> None:
    if not true:
        case.broken("shapes", detail)


def recording(case: Case) -> None:
    """Asking for pictures, penalties or the progress of training changes no output."""
    block, given = case.exact(), draw(case)
    plain = run(block, given).y
    context = context_of(given)._replace(records={}, penalties={}, progress=torch.tensor(0.5))
    asked, _ = block(given.x, start(block, given), context)
    expect_equal(case, "recording", asked, plain, "with pictures and penalties asked for")


def gradients(case: Case) -> None:
    """Every parameter gets a gradient that is not zero: what the loss does not reach never learns."""
    block, given = case.exact(), draw(case)
    made = run(block, given)
    if not any(True for _ in block.parameters()):
        return
    weight = torch.randn(made.y.shape, generator=torch.Generator().manual_seed(3), dtype=made.y.dtype)
    (made.y * weight)[made.mask].sum().backward()
    for name, parameter in block.named_parameters():
        if parameter.grad is None:
            case.broken("gradients", f"`{name}` gets no gradient")
        if parameter.grad.abs().max() < 1e-10:
            case.broken("gradients", f"the gradient of `{name}` is zero: it has no influence")


def gradcheck(case: Case) -> None:
    """The gradients are those of the function: finite differences in double precision agree."""
    block, given = case.exact(), draw(case, (3, 1))
    runner = Runner(block, given)
    parameters = {name: each.detach().clone().requires_grad_() for name, each in runner.named_parameters()}
    read = (*given.board.values(), *given.memories.values())
    outputs = [output.states.detach().clone().requires_grad_() for output in read]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        chosen = dict(zip(parameters, tensors, strict=False))
        return torch.func.functional_call(runner, chosen, tensors[len(parameters) :])

    inputs = (*parameters.values(), *outputs)
    if not any(each.requires_grad for each in call(*inputs)):
        return
    try:
        torch.autograd.gradcheck(call, inputs, fast_mode=True, eps=1e-7, atol=1e-4, rtol=1e-3)
    except GradcheckError as error:
        case.broken("gradcheck", " ".join(str(error).split())[:300])


class Runner(nn.Module):
    """A block from its start over given tensors, as a function of its parameters and of all that it reads."""

    def __init__(self, block: Block, given: Given) -> None:
        super().__init__()
        self.block, self.given = block, given

    def forward(self, *states: Tensor) -> tuple[Tensor, ...]:
        given, unread = self.given, iter(states)
        board = {name: output._replace(states=next(unread)) for name, output in given.board.items()}
        memories = {name: output._replace(states=next(unread)) for name, output in given.memories.items()}
        made = run(self.block, Given(board["input"].states, given.mask, board, memories))
        after = [leaf for leaf in leaves(made.state) if leaf.requires_grad]
        return (made.y[made.mask], *after)


def bfloat16(case: Case) -> None:
    """In bfloat16 and under autocast, all positions at once and one more: outputs and gradients are finite."""
    half = case.build().bfloat16()
    _expect_finite(case, half, cast_all(draw(case), torch.bfloat16), "in bfloat16")
    y = run(half, cast_all(draw(case), torch.bfloat16)).y
    if y.dtype is not torch.bfloat16:
        case.broken("bfloat16", f"the output of a bfloat16 block is {y.dtype}")
    with torch.autocast("cpu", torch.bfloat16):
        _expect_finite(case, case.build(), cast_all(draw(case), torch.float32), "under autocast")


def _expect_finite(case: Case, block: Block, given: Given, told: str) -> None:
    made = run(block, given)
    outputs = [made.y]
    if case.causal:
        outputs.append(run(block, positions(given, 0, 1), made.state).y)
    if not all(each.isfinite().all() for each in outputs):
        case.broken("bfloat16", f"{told} an output is not finite")
    if made.y.requires_grad:
        made.y.float().sum().backward()
        if not all(each.grad is None or each.grad.isfinite().all() for each in block.parameters()):
            case.broken("bfloat16", f"{told} a gradient is not finite")


def saving(case: Case) -> None:
    """A block that is saved and loaded into one built with another seed gives the same output."""
    block, other, given = case.exact(), case.exact(seed=7), draw(case)
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in block.state_dict().items()}
    try:
        other.load_state_dict(safetensors.torch.load(safetensors.torch.save(tensors)))
    except RuntimeError as error:
        case.broken("saving", " ".join(str(error).split())[:300])
    expect_equal(case, "saving", run(other, given).y, run(block, given).y, "after saving and loading")


def meta(case: Case) -> None:
    """It builds and runs on the meta device, forwards and backwards, with the same shapes."""
    given = draw(case)
    made = run(case.exact(), given)
    nowhere = each_output(given, _on_meta, memories=True)
    try:
        with torch.device("meta"):
            block = case.build(noise=0.0).double()
        there = run(block, nowhere)
        if there.y.requires_grad:
            there.y.sum().backward()
    except (RuntimeError, NotImplementedError) as error:
        case.broken("meta", " ".join(str(error).split())[:300])
    if (there.y.shape, there.mask.shape) != (made.y.shape, made.mask.shape):
        case.broken("meta", f"the shape is {tuple(there.y.shape)} on meta, and {tuple(made.y.shape)} else")


def _on_meta(output: Output) -> Output:
    last = each_leaf(output.last, lambda leaf: leaf.to("meta"))
    return Output(output.states.to("meta"), output.mask.to("meta"), last)


def compiling(case: Case) -> None:
    """`torch.compile` takes it as one graph, and the compiled block gives the same output. Takes seconds."""
    block, given = case.exact(), draw(case)
    expected, state = run(block, given).y, start(block, given)
    try:
        torch.compiler.reset()
        compiled: Callable[[Tensor, object, Context], tuple[Tensor, object]] = torch.compile(
            block, fullgraph=True, backend="aot_eager"
        )
        y, _ = compiled(given.x, state, context_of(given))
    except RuntimeError as error:
        case.broken("compiling", " ".join(str(error).split())[:300])
    expect_equal(case, "compiling", y, expected, "compiled, against as it is")

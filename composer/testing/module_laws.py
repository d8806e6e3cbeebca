"""The laws of the craft: shapes, gradients, precision, saving, meta, compiling. Each raises LawError."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from blocks.core.contract import Block, BlockError, Context, Output
from blocks.recurrent import Recurrent
from composer.model.encoder_decoder import EncoderDecoder
from composer.testing.harness import (
    LENGTHS,
    Batch,
    Case,
    cast_batch,
    context_of,
    expect_equal,
    leaves,
    map_leaves,
    map_outputs,
    max_difference,
    positions,
    random_batch,
    real_rows,
    run,
    start,
)
from composer.testing.model_laws import MODEL_TOLERANCE, expect_equal_logits, fail, random_pairs


def grid_or_refusal(case: Case) -> None:
    """A block takes a grid or refuses it: it does not stop at one."""
    if not case.columns:
        return
    try:
        run(case.exact(), random_batch(case))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        told = " ".join(str(error).split())[:200]
        case.broken("kinds", f"it stops with `{told}`: refuse grids with `site.sequence`, or take them")


def shapes(case: Case) -> None:
    """What comes out is what `out`, `mask` and `initial_output` say, whatever the width that arrives."""
    for arriving in (case.arriving, case.arriving * 2):
        try:
            wide = replace(case, arriving=arriving)
            block, given = wide.exact(), random_batch(wide)
        except BlockError:
            continue
        made, rows, arrived = run(block, given), len(LENGTHS), given.x.shape[1]
        width, length, ratio = block.out.width, made.y.shape[1], block.out.length_ratio
        told = f"the stream that leaves (arriving width {arriving})"
        _require(case, made.y.shape[-1] == width, f"{told} is {made.y.shape[-1]} wide, and `out` says {width}")
        _require(
            case,
            made.mask.dtype is torch.bool and made.mask.shape == made.y.shape[:-1],
            f"{told} has the shape {tuple(made.y.shape)}, and its mask {tuple(made.mask.shape)}",
        )
        _require(
            case,
            _length_matches(ratio, length, arrived),
            f"{told} has {length} positions of {arrived}, and the length ratio is {ratio}",
        )
        _require(case, made.y.dtype is given.x.dtype, f"{told} is {made.y.dtype}, and {given.x.dtype} arrived")
        there = real_rows(made.mask)
        _require(case, bool((there[:, 1:] <= there[:, :-1]).all()), f"{told} has padding before what is real")
        _require(
            case,
            (made.y.ndim, made.y.shape[2:-1]) == ((4, (block.out.columns,)) if block.out.grid else (3, ())),
            f"{told} has the shape {tuple(made.y.shape)}, and `out` says {block.out.described}",
        )
        _require(
            case,
            ratio != 1 or torch.equal(there, real_rows(given.mask)),
            f"{told} has other real positions than the one that arrives, and the length ratio is 1",
        )
        if case.causal and not block.out.grid:  # only `recurrent` asks for it
            first = block.initial_output(given.x[:, :1], start(block, given)).shape
            _require(case, first == (rows, 1, width), f"`initial_output` has the shape {tuple(first)}")


def _length_matches(ratio: Fraction, after: int, before: int) -> bool:
    return after == before if ratio == 1 else after == 1 if ratio == 0 else abs(after - before * ratio) <= 1


def _require(case: Case, true: bool, detail: str) -> None:
    if not true:
        case.broken("shapes", detail)


def recording(case: Case) -> None:
    """Asking for pictures, penalties or the progress of training changes no output."""
    block, given = case.exact(), random_batch(case)
    plain = run(block, given).y
    context = context_of(given)._replace(records={}, penalties={}, progress=torch.tensor(0.5))
    asked, *_ = block(given.x, start(block, given), context)
    expect_equal(case, "recording", asked, plain, "with pictures and penalties asked for")


def gradients(case: Case) -> None:
    """Every parameter gets a gradient that is not zero: what the loss does not reach never learns."""
    block, given = case.exact(), random_batch(case)
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
    block, given = case.exact(), random_batch(case, (3, 1))
    runner = FunctionalBlock(block, given)
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


class FunctionalBlock(nn.Module):
    """A block from its start over given tensors, as a function of its parameters and of all that it reads."""

    def __init__(self, block: Block, given: Batch) -> None:
        super().__init__()
        self.block, self.given = block, given

    def forward(self, *states: Tensor) -> tuple[Tensor, ...]:
        given, unread = self.given, iter(states)
        board = {name: output._replace(states=next(unread)) for name, output in given.board.items()}
        memories = {name: output._replace(states=next(unread)) for name, output in given.memories.items()}
        made = run(self.block, Batch(board["input"].states, given.mask, board, memories))
        after = [leaf for leaf in leaves(made.state) if leaf.requires_grad]
        return (made.y[made.mask], *after)


def bfloat16(case: Case) -> None:
    """In bfloat16 and under autocast, all positions at once and one more: outputs and gradients are finite."""
    half = case.build().bfloat16()
    _expect_finite(case, half, cast_batch(random_batch(case), torch.bfloat16), "in bfloat16")
    y = run(half, cast_batch(random_batch(case), torch.bfloat16)).y
    if y.dtype is not torch.bfloat16:
        case.broken("bfloat16", f"the output of a bfloat16 block is {y.dtype}")
    with torch.autocast("cpu", torch.bfloat16):
        _expect_finite(case, case.build(), cast_batch(random_batch(case), torch.float32), "under autocast")


def _expect_finite(case: Case, block: Block, given: Batch, told: str) -> None:
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
    block, other, given = case.exact(), case.exact(seed=7), random_batch(case)
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in block.state_dict().items()}
    try:
        other.load_state_dict(safetensors.torch.load(safetensors.torch.save(tensors)))
    except RuntimeError as error:
        case.broken("saving", " ".join(str(error).split())[:300])
    expect_equal(case, "saving", run(other, given).y, run(block, given).y, "after saving and loading")


def meta(case: Case) -> None:
    """It builds and runs on the meta device, forwards and backwards, with the same shapes."""
    given = random_batch(case)
    made = run(case.exact(), given)
    nowhere = map_outputs(given, _on_meta, memories=True)
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
    last = map_leaves(output.last, lambda leaf: leaf.to("meta"))
    return Output(output.states.to("meta"), output.mask.to("meta"), last)


def compiling(case: Case) -> None:
    """`torch.compile` takes it as one graph, and the compiled block gives the same output. Takes seconds."""
    block, given = case.exact(), random_batch(case)
    expected, state = run(block, given).y, start(block, given)
    try:
        torch.compiler.reset()
        compiled: Callable[[Tensor, object, Context], tuple[Tensor, ...]] = torch.compile(
            block, fullgraph=True, backend="aot_eager"
        )
        y, *_ = compiled(given.x, state, context_of(given))
    except RuntimeError as error:
        case.broken("compiling", " ".join(str(error).split())[:300])
    expect_equal(case, "compiling", y, expected, "compiled, against as it is")


ModuleType = TypeVar("ModuleType", bound=nn.Module)


def lifting(case: Case) -> None:
    """A block that holds a `recurrent` gives the same, gradients too, when nothing is lifted out of the loop."""
    block, given = case.exact(), random_batch(case)
    slow = unlifted_copy(block)
    if slow is None:
        return
    lifted, looped = run(block, given).y, run(slow, given).y
    expect_equal(case, "lifting", lifted[given.mask], looped[given.mask], "lifted, against looped")
    for (name, _), mine, theirs in zip(
        block.named_parameters(),
        weighted_gradients(block, lifted[given.mask]),
        weighted_gradients(slow, looped[given.mask]),
        strict=True,
    ):
        expect_equal(case, "lifting", mine, theirs, f"the gradient of `{name}`, lifted against looped")


def model_lifting(model: EncoderDecoder) -> None:
    """A model gives the same logits and gradients when nothing is lifted out of its loops."""
    slow = unlifted_copy(model)
    if slow is None:
        return
    pairs = random_pairs(model)
    with torch.enable_grad():
        lifted, looped = model(*pairs)[pairs.target != 0], slow(*pairs)[pairs.target != 0]
        expect_equal_logits("lifting", lifted, looped, "lifted, against looped")
        for (name, _), mine, theirs in zip(
            model.named_parameters(), weighted_gradients(model, lifted), weighted_gradients(slow, looped), strict=True
        ):
            if max_difference(mine, theirs) > MODEL_TOLERANCE:
                fail("lifting", f"the gradient of `{name}` differs by {max_difference(mine, theirs):.3g}")


def unlifted_copy(module: ModuleType) -> ModuleType | None:
    """A copy in which every `recurrent` runs all of its stack position by position; None where there is none."""
    slow = copy.deepcopy(module)
    found = [each for each in slow.modules() if isinstance(each, Recurrent)]
    for each in found:
        each.first, each.stop = 0, len(each.stack.inner())
    return slow if found else None


def weighted_gradients(module: nn.Module, made: Tensor) -> Sequence[Tensor]:
    """Of a sum of everything with different weights, for every parameter."""
    weight = torch.randn(made.shape, generator=torch.Generator().manual_seed(4), dtype=made.dtype)
    parameters = list(module.parameters())
    return torch.autograd.grad((made * weight).sum(), parameters, materialize_grads=True) if parameters else ()

"""Laws of a block as a PyTorch module: shapes, gradients, precision, saving, meta device, compiling, loop lifting."""

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
    """Check that a block takes a grid or refuses it: it does not stop at one."""
    if not case.columns:
        return
    try:
        run(case.exact(), random_batch(case))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        detail = " ".join(str(error).split())[:200]
        case.broken("grid_or_refusal", f"it stops with `{detail}`: refuse grids with `site.sequence`, or take them")


def shapes(case: Case) -> None:
    """Check that what comes out is what `out`, `mask` and `initial_output` say, whatever the width that arrives."""
    for arriving in (case.arriving, case.arriving * 2):
        try:
            wide = replace(case, arriving=arriving)
            block, batch = wide.exact(), random_batch(wide)
        except BlockError:
            continue
        made, rows, arrived = run(block, batch), len(LENGTHS), batch.x.shape[1]
        width, length, ratio = block.out.width, made.y.shape[1], block.out.length_ratio
        detail = f"the stream that leaves (arriving width {arriving})"
        _require(case, made.y.shape[-1] == width, f"{detail} is {made.y.shape[-1]} wide, and `out` says {width}")
        _require(
            case,
            made.mask.dtype is torch.bool and made.mask.shape == made.y.shape[:-1],
            f"{detail} has the shape {tuple(made.y.shape)}, and its mask {tuple(made.mask.shape)}",
        )
        _require(
            case,
            _length_matches(ratio, length, arrived),
            f"{detail} has {length} positions of {arrived}, and the length ratio is {ratio}",
        )
        _require(case, made.y.dtype is batch.x.dtype, f"{detail} is {made.y.dtype}, and {batch.x.dtype} arrived")
        there = real_rows(made.mask)
        _require(case, bool((there[:, 1:] <= there[:, :-1]).all()), f"{detail} has padding before what is real")
        _require(
            case,
            (made.y.ndim, made.y.shape[2:-1]) == ((4, (block.out.columns,)) if block.out.grid else (3, ())),
            f"{detail} has the shape {tuple(made.y.shape)}, and `out` says {block.out.described}",
        )
        _require(
            case,
            ratio != 1 or torch.equal(there, real_rows(batch.mask)),
            f"{detail} has other real positions than the one that arrives, and the length ratio is 1",
        )
        if case.causal and not block.out.grid:  # only `recurrent` asks for it
            first = block.initial_output(batch.x[:, :1], start(block, batch)).shape
            _require(case, first == (rows, 1, width), f"`initial_output` has the shape {tuple(first)}")


def _length_matches(ratio: Fraction, after: int, before: int) -> bool:
    return after == before if ratio == 1 else after == 1 if ratio == 0 else abs(after - before * ratio) <= 1


def _require(case: Case, true: bool, detail: str) -> None:
    if not true:
        case.broken("shapes", detail)


def recording(case: Case) -> None:
    """Check that asking for pictures, penalties or the progress of training changes no output."""
    block, batch = case.exact(), random_batch(case)
    plain = run(block, batch).y
    context = context_of(batch)._replace(records={}, penalties={}, progress=torch.tensor(0.5))
    recorded, *_ = block(batch.x, start(block, batch), context)
    expect_equal(case, "recording", recorded, plain, "with pictures and penalties asked for")


def gradients(case: Case) -> None:
    """Check that every parameter gets a gradient that is not zero: what the loss does not reach never learns."""
    block, batch = case.exact(), random_batch(case)
    made = run(block, batch)
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
    """Check that the gradients are those of the function: finite differences in double precision agree."""
    block, batch = case.exact(), random_batch(case, (3, 1))
    runner = FunctionalBlock(block, batch)
    parameters = {name: tensor.detach().clone().requires_grad_() for name, tensor in runner.named_parameters()}
    read = (*batch.board.values(), *batch.memories.values())
    outputs = [output.states.detach().clone().requires_grad_() for output in read]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        chosen = dict(zip(parameters, tensors, strict=False))
        return torch.func.functional_call(runner, chosen, tensors[len(parameters) :])

    inputs = (*parameters.values(), *outputs)
    if not any(tensor.requires_grad for tensor in call(*inputs)):
        return
    try:
        torch.autograd.gradcheck(call, inputs, fast_mode=True, eps=1e-7, atol=1e-4, rtol=1e-3)
    except GradcheckError as error:
        case.broken("gradcheck", " ".join(str(error).split())[:300])


class FunctionalBlock(nn.Module):
    """A block from its start over given tensors, as a function of its parameters and of all that it reads."""

    def __init__(self, block: Block, batch: Batch) -> None:
        super().__init__()
        self.block, self.given = block, batch

    def forward(self, *states: Tensor) -> tuple[Tensor, ...]:
        batch, unread = self.given, iter(states)
        board = {name: output._replace(states=next(unread)) for name, output in batch.board.items()}
        memories = {name: output._replace(states=next(unread)) for name, output in batch.memories.items()}
        made = run(self.block, Batch(board["input"].states, batch.mask, board, memories))
        after = [leaf for leaf in leaves(made.state) if leaf.requires_grad]
        return (made.y[made.mask], *after)


def bfloat16(case: Case) -> None:
    """Check that outputs and gradients are finite in bfloat16 and under autocast, at once and by single positions."""
    half = case.build().bfloat16()
    _expect_finite(case, half, cast_batch(random_batch(case), torch.bfloat16), "in bfloat16")
    y = run(half, cast_batch(random_batch(case), torch.bfloat16)).y
    if y.dtype is not torch.bfloat16:
        case.broken("bfloat16", f"the output of a bfloat16 block is {y.dtype}")
    with torch.autocast("cpu", torch.bfloat16):
        _expect_finite(case, case.build(), cast_batch(random_batch(case), torch.float32), "under autocast")


def _expect_finite(case: Case, block: Block, batch: Batch, detail: str) -> None:
    made = run(block, batch)
    outputs = [made.y]
    if case.causal:
        outputs.append(run(block, positions(batch, 0, 1), made.state).y)
    if not all(tensor.isfinite().all() for tensor in outputs):
        case.broken("bfloat16", f"{detail} an output is not finite")
    if made.y.requires_grad:
        made.y.float().sum().backward()
        if not all(tensor.grad is None or tensor.grad.isfinite().all() for tensor in block.parameters()):
            case.broken("bfloat16", f"{detail} a gradient is not finite")


def saving(case: Case) -> None:
    """Check that a block that is saved and loaded into one built with another seed gives the same output."""
    block, other, batch = case.exact(), case.exact(seed=7), random_batch(case)
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in block.state_dict().items()}
    try:
        other.load_state_dict(safetensors.torch.load(safetensors.torch.save(tensors)))
    except RuntimeError as error:
        case.broken("saving", " ".join(str(error).split())[:300])
    expect_equal(case, "saving", run(other, batch).y, run(block, batch).y, "after saving and loading")


def meta(case: Case) -> None:
    """Check that it builds and runs on the meta device, forwards and backwards, with the same shapes."""
    batch = random_batch(case)
    made = run(case.exact(), batch)
    nowhere = map_outputs(batch, _on_meta, memories=True)
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
    """Check that `torch.compile` takes it as one graph, and the compiled block gives the same output. Takes seconds."""
    block, batch = case.exact(), random_batch(case)
    expected, state = run(block, batch).y, start(block, batch)
    try:
        torch.compiler.reset()
        compiled: Callable[[Tensor, object, Context], tuple[Tensor, ...]] = torch.compile(
            block, fullgraph=True, backend="aot_eager"
        )
        y, *_ = compiled(batch.x, state, context_of(batch))
    except RuntimeError as error:
        case.broken("compiling", " ".join(str(error).split())[:300])
    expect_equal(case, "compiling", y, expected, "compiled, against as it is")


ModuleType = TypeVar("ModuleType", bound=nn.Module)


def lifting(case: Case) -> None:
    """Check that a block that holds a `recurrent` gives the same, gradients too, when nothing is lifted out of the
    loop.
    """
    block, batch = case.exact(), random_batch(case)
    slow = unlifted_copy(block)
    if slow is None:
        return
    lifted, looped = run(block, batch).y, run(slow, batch).y
    expect_equal(case, "lifting", lifted[batch.mask], looped[batch.mask], "lifted, against looped")
    for (name, _), mine, theirs in zip(
        block.named_parameters(),
        weighted_gradients(block, lifted[batch.mask]),
        weighted_gradients(slow, looped[batch.mask]),
        strict=True,
    ):
        expect_equal(case, "lifting", mine, theirs, f"the gradient of `{name}`, lifted against looped")


def model_lifting(model: EncoderDecoder) -> None:
    """Return a model gives the same logits and gradients when nothing is lifted out of its loops."""
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
    """Return a copy in which every `recurrent` runs all of its stack position by position; None without any."""
    slow = copy.deepcopy(module)
    recurrents = [block for block in slow.modules() if isinstance(block, Recurrent)]
    for block in recurrents:
        block.first, block.stop = 0, len(block.stack.inner())
    return slow if recurrents else None


def weighted_gradients(module: nn.Module, made: Tensor) -> Sequence[Tensor]:
    """Return the gradient of a sum of everything with different weights, for every parameter."""
    weight = torch.randn(made.shape, generator=torch.Generator().manual_seed(4), dtype=made.dtype)
    parameters = list(module.parameters())
    return torch.autograd.grad((made * weight).sum(), parameters, materialize_grads=True) if parameters else ()

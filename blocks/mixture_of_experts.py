"""`mixture_of_experts`: copies of a stack, of which each position uses a few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import (
    Block,
    BlockError,
    Blocks,
    Bounds,
    Context,
    Few,
    NoEffect,
    NonNegative,
    Site,
    State,
    write,
)
from blocks.core.functional import no_autocast, state_dtype
from blocks.core.stack import Stack, check_same_stream

BALANCE_RATE = 0.001
SMALLEST = 1e-20
"""What the sum of weights is at least, so that it can divide."""
Shared = Annotated[int, Bounds(minimum=0, maximum=1_000)]
"""How many experts every position uses, 0 or more."""


class MixtureOfExperts(Block):
    """Mixture of experts, chosen for each position (Shazeer et al. 2017, arXiv 1701.06538).

    Some experts may be shared by all positions (Dai et al. 2024, arXiv 2401.06066), and a bias
    balances their loads without a loss (Wang et al. 2024, arXiv 2408.15664).

    y = sum_j f_j(x) + sum_i g_i f_i(x), over the shared experts j, and the others i with g_i = s_i
    = sigmoid(w_i x) where s_i + b_i is among the `top_k` largest, else g_i = 0. With `normalise`
    the g_i are divided by their sum, as in DeepSeek-V3 (DeepSeek-AI 2024, arXiv 2412.19437,
    equations 12 to 16).
    After each training step b_i grows by `balance_rate` where fewer positions than the mean chose
    the expert i, and shrinks by it where more did (algorithm 1 of Wang et al.): counted over all
    devices, and all parts of the step.

    No position is dropped, and an expert has no capacity. Every expert computes every position, and
    what was not chosen is multiplied by 0: so shapes depend on no value, and a step takes the FLOPs
    of all experts, not of `top_k` of them. The parameters are those of a sparse mixture, the time
    is not.

    Settings:
        stack: The blocks of an expert, which read each position alone, as `feed_forward`; they keep
            the length and the kind of the stream. Names given inside cannot be read outside.
        experts: How many experts there are to choose from; a step takes the FLOPs of all of them.
        top_k: How many of them a position uses, at most `experts`.
        shared: How many experts there are beside these, which every position uses.
        balance_rate: What a bias changes by after a training step, 0 or more; 0 for none.
        normalise: Whether the weights g of the chosen experts are divided by their sum.

    Shapes: (B, T, D) -> (B, T, D') of the stack, or so for each cell of a grid. State: none.
    Raises BlockError for a block in the stack that reads more than its own position, in encoders
    too, where the stack changes the length or the kind of the stream, for more `top_k` than
    experts, and for `normalise` of one expert.
    """

    family = "structure"
    packs = True
    moves: Tensor
    counts: Tensor

    def __init__(
        self,
        site: Site,
        *,
        stack: Blocks,
        experts: Few = 8,
        top_k: Few = 2,
        shared: Shared = 0,
        balance_rate: NonNegative = BALANCE_RATE,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        if normalise and top_k == 1:
            message = (
                "of one expert the weight is 1, whatever its score, and the router would learn"
                " nothing"
            )
            raise BlockError(
                "normalise", message, fix=write("top_k", 2, " or more, or remove `normalise`")
            )
        if top_k > experts:
            fix = write("top_k", experts, " or less, or more `experts`")
            raise BlockError(
                "top_k", f"a position cannot use {top_k} of {experts} experts", fix=fix
            )
        if top_k == experts and balance_rate != BALANCE_RATE:
            raise NoEffect(
                "balance_rate", "every position uses every expert, so their loads are equal"
            )
        built: list[Stack] = []
        names = site.names
        for _ in range(experts + shared):
            names = site.names.copy()
            built.append(site.stack(("stack",), stack, names=names))
        site.names.taken |= names.taken
        check_same_stream(site, built[0], "an expert answers at each position", any_width=True)
        _require_single_positions(site, built[0], stack)
        x = torch.zeros(1, 1, *_cells(site), site.stream.width)
        self.states = [expert.start(x, _context_of(x)) for expert in built]
        self.experts, self.top_k, self.balance_rate = experts, top_k, balance_rate
        self.normalise = normalise
        self.router = nn.Linear(site.stream.width, experts, bias=False)
        self.stacks = nn.ModuleList(built)
        self.out = built[0].out
        nn.init.xavier_uniform_(self.router.weight)
        # integers, which no precision rounds: b = balance_rate * moves
        self.register_buffer("moves", torch.zeros(experts, dtype=torch.long))
        self.register_buffer("counts", torch.zeros(experts, dtype=torch.long))

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        dtype = state_dtype(x)
        with no_autocast(x):  # rounded scores are alike, and choose otherwise
            scores = torch.sigmoid(F.linear(x.to(dtype), self.router.weight.to(dtype)))  # (..., E)
        bias = self.balance_rate * self.moves.to(dtype)
        best = (scores.detach() + bias).topk(self.top_k, -1).indices  # (..., K)
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
        if self.training and torch.is_grad_enabled() and self.router.weight.requires_grad:
            self.counts.add_((chosen & context.mask[..., None]).flatten(0, -2).sum(0))
        gates = scores * chosen
        if self.normalise:
            gates = gates / gates.sum(-1, keepdim=True).clamp(min=SMALLEST)
        gates = gates.to(x.dtype)
        context.record("experts", gates)
        inner = context._replace(records=None)  # experts share a path, which tells records apart
        stacks = cast("list[Stack]", list(self.stacks))
        made = [stack(x, empty, inner)[0] for stack, empty in zip(stacks, self.states, strict=True)]
        weighted = [gates[..., expert, None] * made[expert] for expert in range(self.experts)]
        y = weighted[0]
        for part in (*weighted[1:], *made[self.experts :]):
            y = y + part
        return y, state

    def finish_step(self, total: Callable[[Tensor], Tensor]) -> None:
        counts = total(self.counts.clone())
        self.moves += torch.sign(counts.sum() - self.experts * counts)
        self.counts.zero_()


def _require_single_positions(site: Site, expert: Stack, blocks: Blocks) -> None:
    """Raise BlockError, at its place, for a block in an expert that reads more than its own
    position.

    On a causal site such a block has a state, or is refused for looking ahead; so an encoder's is
    built there, too.
    """
    dry = site.dry_build(
        ("stack",), blocks, names=site.names.copy(), causal=site.causal or "an expert"
    )
    x = torch.zeros(1, 1, *_cells(site), site.stream.width, device="meta")
    if block := _find_wider_block(expert, dry, x):
        word = block.path[-1] if block.path else type(block).__name__
        own = (*site.path, "stack")
        inside = block.path[len(own) :] if block.path[: len(own)] == own else ()
        message = f"an expert reads each position alone, and `{word}` reads more"
        fix = (
            "write blocks that work at each position alone, as `feed_forward`, and put the others"
            " outside"
        )
        raise BlockError("stack", message, code="kind", fix=fix, inside=inside)


def _find_wider_block(expert: Stack, causal: Stack, x: Tensor) -> Block | None:
    """Return the innermost first block that reads more than its own position."""
    for block, other in zip(expert.inner(), causal.inner(), strict=True):
        if type(block) is not type(other):  # a stand-in
            return block
        # a stand-in inside has none
        pairs = zip(_stacks_of(block), _stacks_of(other), strict=False)
        inner = (_find_wider_block(one, two, x) for one, two in pairs)
        if wider := next(filter(None, inner), block if _reads_more(other, x) else None):
            return wider
    return None


def _stacks_of(block: Block) -> list[Stack]:
    return [part for part in block.modules() if isinstance(part, Stack)]


def _reads_more(block: Block, x: Tensor) -> bool:
    """True if a block on a causal site has a state or uses a memory."""
    try:
        return _has_tensors(block.start(x, _context_of(x)))
    except KeyError:  # there are no memories here
        return True


def _cells(site: Site) -> tuple[int, ...]:
    return (site.stream.columns,) if site.stream.grid else ()


def _context_of(x: Tensor) -> Context:
    return Context(torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device), {}, {})


def _has_tensors(state: State) -> bool:
    """True if a state contains a tensor."""
    return isinstance(state, Tensor) or any(_has_tensors(part) for part in state)

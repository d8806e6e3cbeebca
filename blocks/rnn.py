"""`rnn`: a recurrent network over the positions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from blocks.core.buckets import run_slices
from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Count,
    Few,
    Fix,
    InitialState,
    NoEffect,
    Rate,
    Remove,
    Site,
    State,
    remove,
    write,
)
from blocks.core.functional import apply_dropout, apply_locked_dropout, check_norm_width
from blocks.core.initial_state import StateInitializer
from blocks.core.packing import MAX_BUCKETS, run_buckets
from blocks.core.recurrence import (
    Cell,
    OutputActivation,
    RecurrentLayer,
    build_layer,
    build_layer_norm_layer,
    reverse,
)


class Rnn(Block):
    """Recurrent layers: LSTM, GRU, tanh or minGRU.

    lstm: i, f, o = sigmoid(W x + U h + b); c' = f c + i tanh(W_g x + U_g h + b_g); h' = o tanh(c')

    gru: r, z = sigmoid(W x + U h + b); h' = (1 - z) n + z h

    reset before: n = tanh(W_n x + b_n + U_n (r h))

    reset after: n = tanh(W_n x + b_n + r (U_n h + c_n))

    tanh: h' = tanh(W x + U h + b)

    min_gru: z = sigmoid(W x + b); h' = (1 - z) h + z (W_n x + b_n)

    They are those of Hochreiter & Schmidhuber 1997, Cho et al. 2014 (section 2.3), Elman 1990 and
    Feng et al. 2024 (arXiv 2410.01201, section 3.1). `reset: after` is the form of torch and cuDNN,
    and the fast one. In a min_gru no gate reads h, so all positions run at once.

    With `norm: gates` each W x + U h + b here, and the same of the candidate n, is
    layer-normalised: the sum, for each gate on its own (Chen et al. 2018, section 3). LN(a) = g (a
    - mean) / sqrt(var + 1e-5) + b, with g and b for each gate. The LSTM of Chen et al. (RNMT+) has
    h' = o c': `output_activation: none`. Ba et al. 2016 normalise W x, U h and c each on its own,
    which is not here.

    Settings:
        cell: lstm | gru | tanh | min_gru.
        width: The width that comes out, `model.width` unless given; each direction of a
            bidirectional rnn has half.
        layers: How many layers, 1 or more.
        bidirectional: Whether a second network reads each row from its end; in an encoder only.
        reset: Of a gru, whether its reset gate comes before the matrix product (as published) or
            after it (fused).
        projection: Of an lstm (Sak et al. 2014), the width that comes out, below `width`, which is
            then the cells' own.
        norm: none | gates: layer normalisation of each gate; a loop over the positions, slower than
            the fused kernels.
        output_activation: tanh | none: what an lstm with `norm: gates` applies to c' before its
            output gate.
        initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last
            state of an rnn).
        dropout: Probability of dropping a value between two layers, 0 <= dropout < 1.
        locked: Whether that dropout has one mask for all positions of a row, as the block `dropout`
            with `locked`.
        weight_dropout: Probability of dropping a weight between two positions, 0 <= weight_dropout
            < 1 (Merity et al. 2018, section 2): one mask for a batch or a window, and for each
            position in the loop of `recurrent`.

    Shapes: (B, T, D) -> (B, T, width).
    State: for each layer and direction (h, c) or (h,), each (B, .), of a min_gru in float32.
    Raises BlockError where a grid arrives, for an odd bidirectional width, a second direction on a
    causal site, a projection that is not narrower than the cells, not an lstm's, or beside `norm:
    gates`, `reset: after` or `output_activation: none` of another cell, `norm: gates` or
    `weight_dropout` of a min_gru, a state to copy of another kind.
    """

    family = "recurrence"
    packs = True

    def __init__(
        self,
        site: Site,
        *,
        cell: Cell = "lstm",
        width: Count | None = None,
        layers: Few = 1,
        bidirectional: bool = False,
        reset: Literal["before", "after"] = "before",
        projection: Count | None = None,
        norm: Literal["none", "gates"] = "none",
        output_activation: OutputActivation = "tanh",
        initial_state: InitialState = "zeros",
        dropout: Rate = 0.0,
        locked: bool = False,
        weight_dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        stream, width = site.sequence("rnn"), site.width if width is None else width
        if bidirectional:
            site.require_full_context(
                "bidirectional",
                "a bidirectional rnn",
                Fix(
                    "remove `bidirectional: true`, or move this block to the encoder",
                    Remove(("bidirectional",)),
                ),
            )
        _check_settings(cell, width, bidirectional, reset, projection, norm)
        if output_activation == "none" and (cell, norm) != ("lstm", "gates"):
            message = "only an lstm with normalised gates can leave out the activation of its cell"
            raise NoEffect(
                "output_activation", message, fix="remove it, or write `cell: lstm, norm: gates`"
            )
        if weight_dropout and cell == "min_gru":
            message = "a min_gru has no weights between positions"
            raise NoEffect(
                "weight_dropout", message, fix="remove it, or write `dropout` between layers"
            )
        if dropout and layers == 1:
            message = "dropout stands between two layers, and here is one"
            raise NoEffect(
                "dropout",
                message,
                fix="remove `dropout`, or write `layers: 2`, or put `- dropout` after this block",
            )
        if locked and not dropout:
            raise NoEffect(
                "locked",
                "nothing is dropped between layers",
                fix="remove it, or write `dropout: 0.5`",
            )
        self.directions = 2 if bidirectional else 1
        self.dropout, self.drop = dropout, apply_locked_dropout if locked else apply_dropout
        self.out = stream._replace(width=projection or width)
        direction_width, projected = (
            width // self.directions,
            projection and projection // self.directions,
        )
        arriving = [stream.width] + (layers - 1) * [self.out.width]

        def layer(arrives: int) -> RecurrentLayer:
            if norm == "gates":
                return build_layer_norm_layer(
                    cell, reset, output_activation, arrives, direction_width
                )
            return build_layer(cell, reset, arrives, direction_width, projected)

        built = []
        for arriving_width in arriving:
            built += [layer(arriving_width) for _ in range(self.directions)]
        for part in built:
            part.weight_dropout = weight_dropout
        self.weight_dropout = weight_dropout
        self.layers, self.wide = nn.ModuleList(built), cell == "min_gru"
        self.state_kind = (
            "rnn",
            ("cell", cell),
            ("layers", layers),
            ("width", width),
            ("projection", projection or "none"),
            ("directions", self.directions),
        )
        self.initial = StateInitializer(
            site, initial_state, tuple(layer.sizes for layer in built), self.state_kind
        )

    def start(self, x: Tensor, context: Context) -> State:
        return self._start(x, context)

    def _start(self, x: Tensor, context: Context) -> State:
        # `start` itself frees the parameters of a sharded block, so that no `forward` may call it
        dtype = next(self.layers.parameters()).dtype
        return self.initial(
            x.to(torch.promote_types(dtype, torch.float32) if self.wide else dtype), context
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        if context.starts is not None:
            # in several buckets a document runs in several calls, and the weights that are dropped
            # are those of a call
            at_most = 1 if self.training and self.weight_dropout else MAX_BUCKETS
            return run_buckets(self._run, self._start, x, context, at_most=at_most)
        (y,), after = self._run([x], state, [context.mask])
        return y, after

    def _run(
        self, buckets: list[Tensor], state: State, masks: list[Tensor]
    ) -> tuple[list[Tensor], State]:
        """Run all layers over the rows of several lengths of `run_slices`."""
        after: tuple[State, ...] = ()
        for first in range(0, len(self.layers), self.directions):
            buckets = [self.drop(x, self.dropout, self.training and first > 0) for x in buckets]
            buckets, last = self._layer(first, buckets, state, masks)
            after += last
        return buckets, after

    def _layer(
        self, first: int, buckets: list[Tensor], state: State, masks: list[Tensor]
    ) -> tuple[list[Tensor], tuple[State, ...]]:
        ys, last = run_slices(self.layers[first], buckets, state[first], masks)
        if self.directions == 1:
            return ys, (last,)
        turned = list(map(reverse, buckets, masks))
        zs, first_last = run_slices(self.layers[first + 1], turned, state[first + 1], masks)
        both = zip(ys, map(reverse, zs, masks), strict=True)
        return [torch.cat(pair, -1) for pair in both], (last, first_last)

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        first: Tensor = state[-1][0][:, None]
        return first.to(next(self.layers.parameters()).dtype)


def _check_settings(
    cell: Cell, width: int, bidirectional: bool, reset: str, projection: int | None, norm: str
) -> None:
    """Raise BlockError where settings do not go together."""
    if cell != "gru" and reset == "after":
        raise NoEffect(
            "reset", f"`{cell}` has no reset gate", fix="remove `reset`, or write `cell: gru`"
        )
    if norm == "gates" and cell == "min_gru":
        message = "the gates of a min_gru are not normalised"
        raise BlockError("norm", message, fix=remove("norm", ", or put a `norm` after this block"))
    if norm == "gates":
        check_norm_width(width // (2 if bidirectional else 1), "norm")
    if projection is not None and cell != "lstm":
        message = f"only an lstm has a projection, and this is `{cell}`"
        raise NoEffect(
            "projection", message, fix="remove `projection`, or put a `linear` after this block"
        )
    if projection is not None and norm != "none":
        message = "an lstm with normalised gates has no projection"
        raise BlockError(
            "projection", message, fix=remove("projection", ", or put a `linear` after this block")
        )
    if projection is not None and projection >= width:
        message = f"{projection} is not narrower than the cells, which are {width} wide"
        raise BlockError(
            "projection", message, code="width", fix=f"choose a projection below {width}"
        )
    for setting, value in (("width", width), ("projection", projection or 0)):
        if bidirectional and value % 2:
            message = (
                f"a bidirectional rnn gives each direction half of its width, and {value} is odd"
            )
            raise BlockError(setting, message, code="width", fix=write(setting, value + 1))

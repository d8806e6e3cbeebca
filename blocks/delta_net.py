"""`delta_net`: linear attention that corrects what a key holds, where others add to it."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import Chunk, Context, Count, InitialState, ShortKernel, Site, State
from blocks.core.delta_mixer import DeltaMixer


class DeltaNet(DeltaMixer):
    """DeltaNet (Schlag et al. 2021, arXiv 2102.11174, equation 24; Yang et al. 2024, arXiv
    2406.06484, section 3.4).

    S_t = (I - beta_t k_t k_t^T) S_(t-1) + beta_t k_t v_t^T, y_t = W_o RMSNorm(S_t^T q_t) for each
    head, with beta_t = sigmoid(w x_t), v = silu(conv(W_v x)), and q and k likewise, of length 1.
    The eigenvalue 1 - beta of a key is above 0; with `negative_eigenvalues` beta is doubled, and it
    is above -1 (Grazzi et al. 2024, arXiv 2411.12537).
    q is the paper's. The authors' code (fla) divides it by sqrt(state), `scale_queries`, which the
    norm undoes but for its 1e-5: early in a row y is smaller by a third. Their convolution has no
    bias.
    In an encoder q, k and v are read from both ends, with a beta for each direction, and both are
    added before W_o: a position's own v is written in both.

    Settings:
        heads: How many heads; they divide the width that arrives, unless `head_width` is given.
        head_width: The width of a head's values; the width that arrives, divided by the heads,
            unless given.
        state: The width of a head's queries and keys; `head_width` unless given.
        chunk: How many positions are computed at once, 1 to 1,024; it changes speed and memory
            alone.
        short_conv: How many positions a depthwise convolution of q, k and v reads; in an encoder it
            is centred; 0 for none.
        negative_eigenvalues: Whether beta is between 0 and 2, in place of 0 and 1.
        scale_queries: Whether q, of length 1, is divided by sqrt(state), as in the authors' code.
        initial_state: zeros | learned | a memory (its mean, projected) | {copy: MEMORY.x} (the last
            state of a delta_net). In an encoder, of the direction that reads forwards; the other
            begins empty.

    Shapes: (B, T, D) -> (B, T, D). State: S, (B, H, K, V), in float32 at least; with `short_conv`
    the last inputs of the convolution.
    Raises BlockError where a grid arrives, where heads do not divide D, for a `head_width` or
    `state` of 1, and for a state to copy of another kind.
    """

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 8,
        head_width: Count | None = None,
        state: Count | None = None,
        chunk: Chunk = 64,
        short_conv: ShortKernel = 4,
        negative_eigenvalues: bool = False,
        scale_queries: bool = False,
        initial_state: InitialState = "zeros",
    ) -> None:
        super().__init__(
            site,
            "delta_net",
            heads=heads,
            head_width=head_width,
            state=state,
            chunk=chunk,
            short_conv=short_conv,
            negative_eigenvalues=negative_eigenvalues,
            scale_queries=scale_queries,
            initial_state=initial_state,
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        parts, strengths, conv = self.read_parts(x, state, context.mask)
        undecayed = x.new_zeros(*x.shape[:2], self.heads)
        directions = [(*parts, strength, undecayed) for strength in strengths]
        outputs, after = self.scan_both(directions[0], directions[-1], state[:1], context.mask)
        return self.merge(sum(self.normalise(y, x.dtype) for y in outputs)), (*after, *conv)

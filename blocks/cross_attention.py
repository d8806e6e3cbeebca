"""`cross_attention`: every position reads what an encoder left."""

from __future__ import annotations

from torch import Tensor, nn

from blocks.core.attention import attend, heads_divide, join_heads, split_heads
from blocks.core.contract import Block, BlockError, Context, Count, Memory, Rate, Site, State, Stream


class CrossAttention(Block):
    """Multi-head scaled dot-product attention over a memory (Vaswani et al. 2017, section 3.2.3).

    y = W_o concat_h softmax(q_h k_h^T / sqrt(D/H)) v_h, with q linear in x; k and v linear in the memory, once.

    Settings:
        heads: How many heads; they divide `model.width`.
        from: The memory to read: an encoder's name, or `encoder.x` for its output named x. The only encoder where
            there is one; with two it must be given.
        dropout: Probability of dropping an attention weight, 0 <= dropout < 1.

    Shapes: (B, T, .) reads (B, S, .) -> (B, T, model.width). State: keys and values (B, H, S, D/H), mask (B, 1, 1, S).
    Raises BlockError where there is no memory, or several and no `from`, and where heads do not divide the width.
    """

    def __init__(self, site: Site, *, heads: Count = 1, from_: Memory | None = None, dropout: Rate = 0.0) -> None:
        super().__init__()
        self.memory = site.memory(from_, "from")
        memory = site.memories[self.memory].stream
        if memory.grid:
            raise BlockError("from", f"`{self.memory}` is a grid, and attention reads a sequence", code="kind",
                             fix="end the encoder with `column` or `flatten`")  # fmt: skip
        width = site.width
        heads_divide(heads, width)
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(site.stream.width, width)
        self.project = nn.Linear(memory.width, 2 * width)
        self.merge = nn.Linear(width, width)
        self.out = Stream(width, pace=site.stream.pace)
        for linear in (self.query, self.project, self.merge):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def start(self, x: Tensor, context: Context) -> State:
        memory = context.memories[self.memory]
        keys, values = (split_heads(each, self.heads) for each in self.project(memory.states).chunk(2, dim=-1))
        # Where nothing is real the softmax is spread over padding; zero values make what it reads zero.
        return keys, values * memory.mask[:, None, :, None], memory.mask[:, None, None, :]

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        keys, values, mask = state
        query = split_heads(self.query(x), self.heads)  # (B, H, T, D/H)
        dropout = self.dropout if self.training else 0.0
        return self.merge(join_heads(attend(query, keys, values, mask, context, dropout=dropout))), state

"""A block of your own: an exponential moving average of the positions before."""

import torch
from torch import Tensor, nn

import composer
from blocks.core.contract import Block, Context, Site
from composer import block, choose
from composer.recipe.sections import Data, Logging, Model, Recipe, Training


@composer.block("average")
class Average(Block):
    """Exponential moving average: y_t = a y_(t-1) + (1 - a) x_t, with a learned a per feature.

    Settings:
        start: What every a is at first.
    """

    def __init__(self, site: Site, *, start: float = 0.5) -> None:
        super().__init__()
        # a function of the past only, of the width of its input
        self.out = site.sequence("average")
        self.logit = nn.Parameter(torch.logit(torch.full((self.out.width,), start)))

    def start(self, x: Tensor, context: Context) -> Tensor:
        """Return the state before the first position: the average so far, (B, D)."""
        return x.new_zeros(x.shape[0], self.out.width)

    def forward(self, x: Tensor, state: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Return the averages (B, T, D), and the last one as the next state."""
        decay = torch.sigmoid(self.logit)
        averages = []
        for position in range(x.shape[1]):
            after = decay * state + (1 - decay) * x[:, position]
            # padding leaves the state as it is
            state = torch.where(context.mask[:, position, None], after, state)
            averages.append(state)
        return torch.stack(averages, dim=1), state


# the contract: the same outputs at once, in chunks and token by token; no look at padding or the
# future; packed documents kept apart; gradients; and more
composer.check_block("average", {}, {"start": 0.9}, compiles=False)

recipe = Recipe(
    name="average",
    data=Data(generate=choose.task.copy(symbols=5, max_length=5, train=4000, val=100, test=100)),
    model=Model(
        width=32,
        encoder=[block.residual([block.average()]), block.rnn("gru", bidirectional=True)],
        decoder=[block.average(start=0.2), block.rnn("gru"), block.cross_attention()],
    ),
    training=Training(optimizer=choose.optimizer.adam(learning_rate=1e-2), max_steps=200),
    logging=Logging(wandb=False),
)
result = composer.train(recipe, run="runs/average")
print(f"exact match on the test data: {result.scores['test/exact_match']:.0%}")
# the run records the source of the block; a package shares it: docs/extending.md
print(result.record.plug_ins["average"])

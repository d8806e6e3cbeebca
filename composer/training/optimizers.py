"""Optimizers by their words in a recipe. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from blocks.core.settings import NonNegative, Positive, Rate
from composer.recipe.choices import Optimizer, TrainedParameters

if TYPE_CHECKING:
    from torch import optim

LearningRate = Annotated[Positive, "the step size before the schedule's factor"]
WeightDecay = Annotated[NonNegative, "L2 penalty added to the gradient"]
Decay = Annotated[
    Literal["matrices", "all"],
    "what weight decay falls on: matrices and embeddings, or biases and gains, too",
]
Beta1 = Annotated[Rate, "decay of the mean of the gradients"]
Beta2 = Annotated[Rate, "decay of the mean of their squares"]
Epsilon = Annotated[Positive, "added to the denominator"]
Momentum = Annotated[Rate, "share of the last step that is kept"]
"""Settings that several optimizers have."""


def use_fused(trained: TrainedParameters) -> bool | None:
    """Return True on a CPU, where the fused step costs a third; elsewhere None.

    There torch chooses, and 16 bits can clip.
    """
    return trained.is_on_cpu() or None


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), with the second beta and eps of Vaswani et al. 2017, section 5.3."""

    word = "adam"
    learning_rate: LearningRate = 1e-3
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.98
    eps: Epsilon = 1e-9
    weight_decay: WeightDecay = 0.0
    decay: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decay

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return PyTorch's optimizer of these parameters."""
        from torch import optim

        groups = self.groups(trained)
        betas, fused = (self.beta1, self.beta2), use_fused(trained)
        return optim.Adam(
            groups, self.learning_rate, betas, self.eps, self.weight_decay, fused=fused
        )


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    Settings:
        weight_decay: share of each weight taken away per unit of learning rate
    """

    word = "adamw"
    learning_rate: LearningRate = 1e-3
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.98
    eps: Epsilon = 1e-9
    weight_decay: WeightDecay = 0.01
    decay: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decay

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return PyTorch's optimizer of these parameters."""
        from torch import optim

        groups = self.groups(trained)
        betas, fused = (self.beta1, self.beta2), use_fused(trained)
        return optim.AdamW(
            groups, self.learning_rate, betas, self.eps, self.weight_decay, fused=fused
        )


class Sgd(Optimizer):
    """Stochastic gradient descent."""

    word = "sgd"
    learning_rate: LearningRate = 0.1
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    decay: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decay

    @property
    def states(self) -> int:
        """How many numbers it remembers of each parameter."""
        return int(self.momentum > 0)

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return PyTorch's optimizer of these parameters."""
        from torch import optim

        groups = self.groups(trained)
        return optim.SGD(
            groups, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )


class RmsProp(Optimizer):
    """RMSProp; with `centered` and momentum the form of Graves 2013, equations 38 to 45.

    Settings:
        decay: decay of the mean of the squared gradients
        centered: divide by the gradients' deviation in place of their size
    """

    word = "rmsprop"
    learning_rate: LearningRate = 1e-3
    decay: Rate = 0.99
    momentum: Momentum = 0.0
    eps: Epsilon = 1e-8
    centered: bool = False
    weight_decay: WeightDecay = 0.0
    decayed: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decayed

    @property
    def states(self) -> int:
        """How many numbers it remembers of each parameter."""
        return 1 + (self.momentum > 0) + self.centered

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return PyTorch's optimizer of these parameters."""
        from torch import optim

        groups = self.groups(trained)
        return optim.RMSprop(
            groups,
            self.learning_rate,
            self.decay,
            self.eps,
            self.weight_decay,
            self.momentum,
            self.centered,
        )


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012), with the constants of Bahdanau et al. 2015.

    Settings:
        learning_rate: factor of the step that the rule finds by itself
        decay: decay of the two running means
        eps: added under both roots
    """

    word = "adadelta"
    learning_rate: LearningRate = 1.0
    decay: Rate = 0.95
    eps: Epsilon = 1e-6
    weight_decay: WeightDecay = 0.0
    decayed: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decayed

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return PyTorch's optimizer of these parameters."""
        from torch import optim

        groups = self.groups(trained)
        return optim.Adadelta(
            groups,
            lr=self.learning_rate,
            rho=self.decay,
            eps=self.eps,
            weight_decay=self.weight_decay,
        )


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011).

    Settings:
        initial: what the sum of squared gradients starts from
    """

    word = "adagrad"
    learning_rate: LearningRate = 0.01
    initial: NonNegative = 0.0
    eps: Epsilon = 1e-10
    weight_decay: WeightDecay = 0.0
    decay: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decay

    @property
    def states(self) -> int:
        """How many numbers it remembers of each parameter."""
        return 1

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return PyTorch's optimizer of these parameters."""
        from torch import optim

        groups = self.groups(trained)
        return optim.Adagrad(
            groups,
            self.learning_rate,
            weight_decay=self.weight_decay,
            initial_accumulator_value=self.initial,
            eps=self.eps,
        )


OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.word: kind for kind in (Adam, AdamW, Sgd, RmsProp, Adadelta, Adagrad)
}
"""Every optimizer by its word in a recipe."""

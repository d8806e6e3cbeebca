"""Optimizers by their words in a recipe. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from blocks.core.settings import Bounds, NonNegative, Positive, PositiveProportion, Rate
from composer.recipe.choices import Optimizer, TrainedParameters, count_numbers

if TYPE_CHECKING:
    from torch import Tensor, optim

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


class Muon(Optimizer):
    """Muon for hidden matrices (Jordan et al. 2024, kellerjordan.github.io/posts/muon), and AdamW
    (Loshchilov & Hutter 2019) for all other parameters.

    The step of a matrix is its Nesterov momentum, of which five Newton-Schulz iterations make all
    singular values nearly 1. Hidden matrices are those of blocks with two dimensions. AdamW has
    embeddings and the output, also where a block shares theirs; norms, biases, vectors and tables;
    convolution kernels, and tensors that hold a matrix for each head. run.json lists both under
    `optimizer_parts`. A matrix that holds several, such as q, k and v of `self_attention` or the
    gates of an LSTM, is one matrix here; Jordan advises to split q, k and v.

    Settings:
        momentum: decay of the mean of a matrix's gradients
        scale: factor of a matrix's step; match_rms_adamw is 0.2 sqrt(max(rows, columns)), so that
            its numbers are as large as those of AdamW's steps and rates of AdamW suit it (Liu et
            al. 2025, arXiv 2502.16982, section 2.2); original is sqrt(max(1, rows / columns)), for
            which Jordan's learning rate is 0.02
        adamw_learning_rate: the step size of AdamW's parameters; `learning_rate` unless set
        beta1: AdamW's decay of the mean of the gradients
        beta2: AdamW's decay of the mean of their squares
        eps: added to AdamW's denominator
        weight_decay: share of each weight taken away per unit of learning rate, without `scale`
    """

    word = "muon"
    learning_rate: LearningRate = 1e-3
    momentum: Rate = 0.95
    scale: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    adamw_learning_rate: Positive | None = None
    beta1: Rate = 0.9
    beta2: Rate = 0.98
    eps: Positive = 1e-9
    weight_decay: WeightDecay = 0.1
    decay: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decay

    def count_states(self, trained: TrainedParameters) -> int:
        """Return how many numbers it remembers of all these parameters."""
        hidden, others = trained.split()
        return count_numbers(hidden.parameters) + 2 * count_numbers(others.parameters)

    def divide(self, trained: TrainedParameters) -> Mapping[str, Sequence[Tensor]]:
        """Return the parameters of each optimizer in it by its name."""
        hidden, others = trained.split()
        return {"muon": hidden.parameters, "adamw": others.parameters}

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return both of PyTorch's optimizers as one of all parameters."""
        from torch import optim

        from composer.training.joint_optimizer import JointOptimizer

        hidden, others = trained.split()
        parts: list[optim.Optimizer] = []
        if hidden.parameters:
            muon = optim.Muon(
                self.groups(hidden),
                self.learning_rate,
                self.weight_decay,
                self.momentum,
                adjust_lr_fn=self.scale,
            )
            parts.append(muon)
        if others.parameters:
            groups = self.groups(others)
            rate = self.adamw_learning_rate or self.learning_rate
            for group in groups:
                group["factor"] *= rate / self.learning_rate
            betas, fused = (self.beta1, self.beta2), use_fused(others)
            parts.append(optim.AdamW(groups, rate, betas, self.eps, fused=fused))
        return JointOptimizer(parts)


SMALLEST_SQUARE = 1e-30
"""Adafactor's epsilon_1."""


class Adafactor(Optimizer):
    """Adafactor without momentum (Shazeer & Stern 2018, arXiv 1804.04235, algorithms 4 and 5).

    The mean squares of a matrix's gradients are those of its rows and columns, so that it remembers
    as many numbers as these. Steps are relative: their root mean square is at most max(eps2,
    RMS(weights)) min(learning_rate, 1 / sqrt(t)) in step t. epsilon_1 is 1e-30, as in the paper,
    and here the smallest estimate of a mean square rather than a number added to each square. Of a
    tensor of more than two dimensions the last two are rows and columns. A step waits for a GPU
    twice for each parameter.

    Settings:
        learning_rate: the largest relative step, before the schedule's factor
        beta2_decay: in step t, the share 1 - t^-beta2_decay of the mean squares stays
        clip_threshold: the root mean square of a step, before its factors, is scaled down to this
        eps2: the smallest size of a parameter that a step is relative to
        weight_decay: share of each weight taken away per unit of learning rate
    """

    word = "adafactor"
    shards = False
    learning_rate: Positive = 0.01
    beta2_decay: PositiveProportion = 0.8
    clip_threshold: Annotated[float, Bounds(minimum=1.0)] = 1.0
    eps2: Positive = 1e-3
    weight_decay: WeightDecay = 0.0
    decay: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decay

    def count_states(self, trained: TrainedParameters) -> int:
        """Return how many numbers it remembers of all these parameters."""
        count = 0
        for parameter in trained.parameters:
            numbers = parameter.numel()
            if parameter.ndim > 1:
                *_, rows, columns = parameter.shape
                numbers = numbers // rows + numbers // columns
            count += numbers
        return count

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return PyTorch's optimizer of these parameters."""
        from torch import optim

        # PyTorch squares its first epsilon for the smallest estimate
        eps = (SMALLEST_SQUARE**0.5, self.eps2)
        return optim.Adafactor(
            self.groups(trained),
            self.learning_rate,
            -self.beta2_decay,
            eps,
            self.clip_threshold,
            self.weight_decay,
        )


class ScheduleFree(Optimizer):
    """Schedule-free AdamW (Defazio et al. 2024, arXiv 2405.15682, algorithm 1).

    Gradients are those at y = (1 - beta1) z + beta1 x, where z takes the steps and x is the mean of
    all z, each weighted by the square of the largest learning rate so far. Validations, checkpoints
    that are decoded with and the final weights are of x; the training goes on with y. The mean
    takes the place of a decaying schedule: `constant` alone suits it, whose `warmup_steps` are the
    paper's warm-up. It needs the package `schedulefree`.

    Settings:
        beta1: the share of the mean x in the weights y at which gradients are computed; above 0 and
            below 1
        weight_decay: share of each weight taken away per unit of learning rate
    """

    word = "schedule_free"
    averages = True
    takes_schedule = False
    packages: ClassVar = ("schedulefree",)
    learning_rate: LearningRate = 2.5e-3
    beta1: Annotated[float, Bounds(above=0.0, below=1.0)] = 0.9
    beta2: Beta2 = 0.999
    eps: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.0
    decay: Decay = "matrices"

    @property
    def falls_on(self) -> str:
        """What weight decay falls on."""
        return self.decay

    def build(self, trained: TrainedParameters) -> optim.Optimizer:
        """Return the package's optimizer of these parameters, which stay at y.

        Raises RunError where the package is not installed.
        """
        from composer.model.machine import require_packages

        require_packages(self.packages)
        from schedulefree import AdamWScheduleFree

        groups, betas = self.groups(trained), (self.beta1, self.beta2)
        optimizer: optim.Optimizer = AdamWScheduleFree(
            groups, self.learning_rate, betas, self.eps, self.weight_decay
        )
        # the package's own modes move the weights from y to x and back, each time with a rounding
        # error; WeightAverage computes x beside them
        for group in optimizer.param_groups:
            group["train_mode"] = True
        return optimizer


OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.word: kind
    for kind in (
        *(Adam, AdamW, Sgd, RmsProp, Adadelta, Adagrad),
        *(Muon, Adafactor, ScheduleFree),
    )
}
"""Every optimizer by its word in a recipe."""

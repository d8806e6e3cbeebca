"""The optimizers a recipe can name. Each is a callable: its keyword-only arguments are the settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

from torch import optim
from torch.nn import Parameter

from blocks.core.contract import Bounds, Positive, Rate

Penalty = Annotated[float, Bounds(minimum=0.0)]
"""A weight of 0 or more; 0 switches the term off."""
Parameters = Iterable[Parameter]
Optimizer = optim.Optimizer


def adam(
    parameters: Parameters,
    *,
    learning_rate: Positive = 1e-3,
    beta1: Rate = 0.9,
    beta2: Rate = 0.98,
    eps: Positive = 1e-9,
    weight_decay: Penalty = 0.0,
) -> Optimizer:
    """Adam (Kingma & Ba 2015), with the second beta and eps of Vaswani et al. 2017, section 5.3.

    Settings:
        learning_rate: the step size before the schedule's factor
        beta1: decay of the mean of the gradients
        beta2: decay of the mean of their squares
        eps: added to the denominator
        weight_decay: L2 penalty added to the gradient
    """
    every = list(parameters)
    return optim.Adam(
        every, lr=learning_rate, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay, fused=fused(every)
    )


def adamw(
    parameters: Parameters,
    *,
    learning_rate: Positive = 1e-3,
    beta1: Rate = 0.9,
    beta2: Rate = 0.98,
    eps: Positive = 1e-9,
    weight_decay: Penalty = 0.01,
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    Settings:
        learning_rate: the step size before the schedule's factor
        beta1: decay of the mean of the gradients
        beta2: decay of the mean of their squares
        eps: added to the denominator
        weight_decay: share of each weight taken away per unit of learning rate
    """
    every = list(parameters)
    return optim.AdamW(
        every, lr=learning_rate, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay, fused=fused(every)
    )


def sgd(
    parameters: Parameters,
    *,
    learning_rate: Positive = 0.1,
    momentum: Rate = 0.0,
    weight_decay: Penalty = 0.0,
) -> Optimizer:
    """Stochastic gradient descent.

    Settings:
        learning_rate: the step size before the schedule's factor
        momentum: share of the last step that is kept
        weight_decay: L2 penalty added to the gradient
    """
    return optim.SGD(parameters, lr=learning_rate, momentum=momentum, weight_decay=weight_decay)


def rmsprop(
    parameters: Parameters,
    *,
    learning_rate: Positive = 1e-3,
    decay: Rate = 0.99,
    momentum: Rate = 0.0,
    eps: Positive = 1e-8,
    centered: bool = False,
    weight_decay: Penalty = 0.0,
) -> Optimizer:
    """RMSProp; with `centered` and momentum the form of Graves 2013, equations 38 to 45.

    Settings:
        learning_rate: the step size before the schedule's factor
        decay: decay of the mean of the squared gradients
        momentum: share of the last step that is kept
        eps: added to the denominator
        centered: divide by the gradients' deviation in place of their size
        weight_decay: L2 penalty added to the gradient
    """
    return optim.RMSprop(
        parameters,
        lr=learning_rate,
        alpha=decay,
        momentum=momentum,
        eps=eps,
        centered=centered,
        weight_decay=weight_decay,
    )


def adadelta(
    parameters: Parameters,
    *,
    learning_rate: Positive = 1.0,
    decay: Rate = 0.95,
    eps: Positive = 1e-6,
    weight_decay: Penalty = 0.0,
) -> Optimizer:
    """Adadelta (Zeiler 2012), with the constants of Bahdanau et al. 2015.

    Settings:
        learning_rate: factor of the step that the rule finds by itself
        decay: decay of the two running means
        eps: added under both roots
        weight_decay: L2 penalty added to the gradient
    """
    return optim.Adadelta(parameters, lr=learning_rate, rho=decay, eps=eps, weight_decay=weight_decay)


def adagrad(
    parameters: Parameters,
    *,
    learning_rate: Positive = 0.01,
    initial: Penalty = 0.0,
    eps: Positive = 1e-10,
    weight_decay: Penalty = 0.0,
) -> Optimizer:
    """Adagrad (Duchi et al. 2011).

    Settings:
        learning_rate: the step size before the schedule's factor
        initial: what the sum of squared gradients starts from
        eps: added to the denominator
        weight_decay: L2 penalty added to the gradient
    """
    return optim.Adagrad(
        parameters, lr=learning_rate, initial_accumulator_value=initial, eps=eps, weight_decay=weight_decay
    )


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": adam,
    "adamw": adamw,
    "sgd": sgd,
    "rmsprop": rmsprop,
    "adadelta": adadelta,
    "adagrad": adagrad,
}


def fused(parameters: Sequence[Parameter]) -> bool | None:
    """Whether to take the fused step: on a CPU it costs a third; elsewhere torch chooses, and clips under 16 bits."""
    return all(parameter.device.type == "cpu" for parameter in parameters) or None

"""Parameters that an optimizer trains, with factors of the learning rate and weight decays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from torch.nn import Parameter

from composer.model.adapters import training_factors
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.parameter_paths import own_weight_decays
from composer.model.weights import decaying_parameters, hidden_matrices
from composer.recipe.recipe import Recipe


class TrainedParameters(NamedTuple):
    """The parameters of an optimizer.

    The others are by `id`: those that decay (None: all of them), factors of the learning rate,
    weight decays in place of the optimizer's, and hidden matrices (see `hidden_matrices`).
    """

    parameters: Sequence[Parameter]
    matrices: Set[int] | None = None
    factors: Mapping[int, float] = MappingProxyType({})
    decays: Mapping[int, float] = MappingProxyType({})
    hidden: Set[int] = frozenset()

    def groups(self, weight_decay: float, decay: str) -> list[dict[str, object]]:
        """Return PyTorch's parameter groups, one per factor and weight decay, factor 1 first."""
        members: dict[tuple[float, float], list[Parameter]] = {}
        for parameter in self.parameters:
            key = (
                self.factors.get(id(parameter), 1.0),
                self._decay_of(parameter, weight_decay, decay),
            )
            members.setdefault(key, []).append(parameter)
        # a checkpoint knows groups by their order, this one
        factors = sorted({*self.factors.values()} or {1.0}, key=lambda factor: factor != 1.0)
        order = sorted(members, key=lambda key: (factors.index(key[0]), -key[1]))
        return [{"params": members[key], "factor": key[0], "weight_decay": key[1]} for key in order]

    def _decay_of(self, parameter: Parameter, weight_decay: float, decay: str) -> float:
        falls = decay == "all" or self.matrices is None or id(parameter) in self.matrices
        return self.decays.get(id(parameter), weight_decay if falls else 0.0)

    def split(self) -> tuple[TrainedParameters, TrainedParameters]:
        """Return the hidden matrices, and all others."""
        hidden = [parameter for parameter in self.parameters if id(parameter) in self.hidden]
        others = [parameter for parameter in self.parameters if id(parameter) not in self.hidden]
        return self._replace(parameters=hidden), self._replace(parameters=others)

    def is_on_cpu(self) -> bool:
        return all(parameter.device.type == "cpu" for parameter in self.parameters)


def trained_parameters(recipe: Recipe, model: EncoderDecoder) -> TrainedParameters:
    """Return the parameters of a model that train, and what the recipe's groups say of each."""
    by_name = dict(model.named_parameters())
    factors, decays = training_factors(recipe, model), own_weight_decays(recipe, model)
    return TrainedParameters(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        decaying_parameters(model),
        {id(by_name[name]): factor for name, factor in factors.items()},
        {id(by_name[name]): decay for name, decay in decays.items()},
        hidden_matrices(model),
    )


def count_decaying(recipe: Recipe, model: EncoderDecoder) -> int:
    """Return the number of parameters with weight decay, shared ones counted once."""
    count = 0
    for group in recipe.training.optimizer.groups(trained_parameters(recipe, model)):
        if group["weight_decay"]:
            count += sum(parameter.numel() for parameter in group["params"])
    return count


def count_states(recipe: Recipe, model: EncoderDecoder) -> int:
    """Return how many numbers the optimizer remembers, of frozen parameters none."""
    trained = trained_parameters(recipe, model)
    moving = [one for one in trained.parameters if trained.factors.get(id(one), 1.0) > 0]
    return recipe.training.optimizer.count_states(trained._replace(parameters=moving))


def optimizer_parts(recipe: Recipe, model: EncoderDecoder) -> dict[str, tuple[str, ...]]:
    """Return the names of the parameters of each optimizer in the recipe's; {} if it is one."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parts = recipe.training.optimizer.divide(trained_parameters(recipe, model))
    return {
        word: tuple(names[id(parameter)] for parameter in members)
        for word, members in parts.items()
    }

"""Low-rank adapters beside the matrices of a model (`training.adapters`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.utils import parametrize

from blocks.core.functional import no_autocast
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.parameter_paths import covers, learning_rate_factors, module_owners
from composer.model.weights import matrix_layout
from composer.recipe.recipe import Recipe
from composer.recipe.training_sections import Lora
from composer.runs.adapters import add_low_rank

LAYOUTS = ("out in", "in out")
"""Layouts of the matrices that have adapters; those of one for each head have none."""


class LowRank(nn.Module):
    """W + (alpha / rank) B A (Hu et al. 2021, arXiv 2106.09685, section 4.1), for a matrix W.

    A is drawn as the authors' code draws it, from U(-1/sqrt(N), 1/sqrt(N)); B is 0 at first, so
    that the model begins as it was. A parametrization of torch: wherever a block reads the matrix,
    it reads the sum. The sum is in the precision of W, mixed or not, so that merged weights are
    those that were trained.
    """

    factor: Tensor

    def __init__(self, matrix: Tensor, lora: Lora) -> None:
        super().__init__()
        rows, columns = matrix.shape
        self.down = Parameter(matrix.new_empty(lora.rank, columns))  # A
        self.up = Parameter(matrix.new_zeros(rows, lora.rank))  # B
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5.0))
        self.register_buffer("factor", matrix.new_tensor(lora.alpha / lora.rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the sum. weight: (M, N) -> (M, N)"""
        with no_autocast(weight):
            return add_low_rank(weight, self.up, self.down, self.factor)


class AdapterSize(NamedTuple):
    """How many matrices have adapters, and how many numbers these train."""

    matrices: int = 0
    parameters: int = 0


class Site(NamedTuple):
    """A matrix of a module, and the path of its block."""

    module: nn.Module
    name: str
    matrix: Parameter
    block: str


@dataclass(frozen=True)
class AdapterSites:
    """The matrices that `training.adapters` selects.

    shared: By the path of a block, that of another which has the same matrix
    and is not selected.
    """

    lora: Lora
    sites: Sequence[Site]
    shared: Mapping[str, str]

    def in_block(self, path: str) -> list[Site]:
        """Return those that a path of the recipe covers."""
        return [site for site in self.sites if covers(path, site.block)]

    def sizes(self) -> dict[str, AdapterSize]:
        """Return the sizes of adapters by the paths of their blocks, shared matrices once."""
        sizes: dict[str, AdapterSize] = {}
        seen = set[int]()
        for site in self.sites:
            if id(site.matrix) not in seen:
                seen.add(id(site.matrix))
                matrices, parameters = sizes.get(site.block, AdapterSize())
                parameters += self.lora.rank * sum(site.matrix.shape)
                sizes[site.block] = AdapterSize(matrices + 1, parameters)
        return sizes


def adapter_sites(recipe: Recipe, model: EncoderDecoder) -> AdapterSites | None:
    """Return where the adapters of a recipe belong in a model that has none yet."""
    if recipe.training.adapters is None:
        return None
    lora = recipe.training.adapters.lora
    paths = [path.removeprefix("model.") for path in lora.blocks]
    sites = []
    for site in _matrices(recipe, model):
        if any(covers(path, site.block) for path in paths):
            sites.append(site)
    adapted = {(id(site.module), site.name) for site in sites}
    selected = {id(site.matrix): site.block for site in sites}
    owners, shared = module_owners(recipe, model), dict[str, str]()
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in selected and (id(module), name) not in adapted:
                shared[selected[id(parameter)]] = owners[prefix].text(recipe)
    return AdapterSites(lora, sites, shared)


def _matrices(recipe: Recipe, model: EncoderDecoder) -> Iterator[Site]:
    """Yield the matrices of all linear maps: no embeddings, and none of several dimensions."""
    owners = module_owners(recipe, model)
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 2 and matrix_layout(module, name) in LAYOUTS:
                yield Site(module, name, parameter, owners[prefix].text(recipe))


def add_adapters(recipe: Recipe, model: EncoderDecoder) -> None:
    """Put the adapters of a recipe beside the matrices of a model; nothing where it has none."""
    if (sites := adapter_sites(recipe, model)) is None:
        return
    adapters: dict[int, LowRank] = {}
    for site in sites.sites:
        adapter = adapters.setdefault(id(site.matrix), LowRank(site.matrix, sites.lora))
        # its checks compute the sum once more, which costs seconds in a large model
        parametrize.register_parametrization(site.module, site.name, adapter, unsafe=True)


def adapter_parameters(model: EncoderDecoder) -> set[int]:
    """Return the ids of the parameters of all adapters of a model."""
    adapters = [module for module in model.modules() if isinstance(module, LowRank)]
    return {id(parameter) for adapter in adapters for parameter in adapter.parameters()}


def training_factors(recipe: Recipe, model: EncoderDecoder) -> dict[str, float]:
    """Return each parameter's factor of the learning rate; with adapters 0 for all but these."""
    factors = learning_rate_factors(recipe, model)
    if recipe.training.adapters is None:
        return factors
    trained = adapter_parameters(model)
    own = {name: id(parameter) in trained for name, parameter in model.named_parameters()}
    return {name: factors.get(name, 1.0) if is_own else 0.0 for name, is_own in own.items()}


def count_frozen(recipe: Recipe, model: EncoderDecoder) -> int:
    """Return the number of parameters that are not trained: with factor 0, or beside adapters."""
    factors = training_factors(recipe, model)
    return sum(model.get_parameter(name).numel() for name, factor in factors.items() if factor == 0)


def describe_sizes(sizes: Mapping[str, AdapterSize]) -> list[str]:
    """Return in lines what adapters train, in all and in each block."""
    if not sizes:
        return []
    total = AdapterSize(*map(sum, zip(*sizes.values(), strict=True)))
    width = max(map(len, sizes))
    lines = [f"adapters train {_describe(total)}:"]
    for path, size in sizes.items():
        lines.append(f"    {path:<{width}}  {_describe(size)}")
    return lines


def _describe(size: AdapterSize) -> str:
    matrices = f"{size.matrices:,} {'matrix' if size.matrices == 1 else 'matrices'}"
    return f"{size.parameters:,} parameters beside {matrices}"

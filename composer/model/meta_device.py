"""The meta device: PyTorch's kernels for it without its compiler, and a cache of their results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

COMPILER = "torch._dynamo"


class CompilerOnDemand(ModuleType):
    """Stand-in for PyTorch's compiler until something but `disable` is wanted of it."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        self.untraced: list[Callable[..., object]] = []

    def disable(self, function: Callable[..., object], *_: Any, **__: Any) -> Callable[..., object]:
        """Return a function that nothing is compiling. PyTorch keeps the answer at the function."""
        self.untraced.append(function)
        return function

    def __getattr__(self, name: str) -> object:
        self.remove()
        return getattr(importlib.import_module(COMPILER), name)

    def remove(self) -> None:
        """Make room for the compiler, which is then asked anew."""
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
            vars(torch).pop("_dynamo", None)
        while self.untraced:
            vars(self.untraced.pop()).pop("__dynamo_disable", None)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Run kernels of the meta device without importing PyTorch's compiler, which is slow.

    Many are Python functions that only ask it not to trace them.
    """
    # `check recipes/quickstart.yaml` takes 2.7 s of a processor with this and 3.5 s without,
    # medians of seven in turn
    if COMPILER in sys.modules:
        yield
        return
    stand_in = sys.modules[COMPILER] = CompilerOnDemand()
    try:
        yield
    finally:
        stand_in.remove()


MOST_RESULTS = 50_000
"""About 100 MB."""


class MetaCache(TorchDispatchMode):
    """Computes an operation on the same shapes once in a process, and adds up FLOPs.

    Many are slow Python on the meta device.

    `draws` says whether any of them draws random numbers, in the block of a plug-in, too.

    PyTorch's own counter of FLOPs follows modules too, by hooks that overflow the stack of a deep
    model.
    """

    results: ClassVar[dict[Any, tuple[int, Any]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.draws = False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.draws |= torch.Tag.nondeterministic_seeded in function.tags
        pure, in_place = is_pure(function), is_in_place(function)
        shapes = (shapes_of(args), shapes_of([*(kwargs or {}).items()])) if pure or in_place else ()
        key = (function, torch.get_default_dtype(), shapes)
        flops, outputs = self.results.get(key, (0, None))
        if outputs is None:
            outputs = function(*args, **(kwargs or {}))
            if count_flops := flop_registry.get(function._overloadpacket):
                flops = count_flops(*args, **(kwargs or {}), out_val=outputs)
        self.flops += flops
        leaves = [outputs] if isinstance(outputs, Tensor) else tree_leaves(outputs)
        if not (pure or in_place) or not all(
            isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves
        ):
            return outputs
        if len(self.results) >= MOST_RESULTS:
            self.results.clear()
        # what is kept is another tensor, or a model's graph of gradients would be kept with it
        if in_place:
            self.results.setdefault(key, (flops, args[0].new_empty(0)))
            return args[0]
        self.results[key] = flops, outputs
        return alike(outputs) if isinstance(outputs, Tensor) else tree_map(alike, outputs)


def alike(tensor: Tensor) -> Tensor:
    """Return a new tensor of the same shape, strides and type."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


@cache
def is_pure(function: Any) -> bool:
    """True if an operation of PyTorch changes nothing in place, and returns no views."""
    return not any(
        value.alias_info for value in (*function._schema.arguments, *function._schema.returns)
    )


@cache
def is_in_place(function: Any) -> bool:
    """True if an operation of PyTorch changes its first argument in place, and returns it."""
    first, *others = function._schema.arguments or [None]
    returns = function._schema.returns
    writes = bool(first and first.alias_info and first.alias_info.is_write and len(returns) == 1)
    return (
        writes
        and torch.Tag.inplace_view not in function.tags
        and not any(other.alias_info for other in others)
    )


def device_of(tensor: Tensor) -> torch.device:
    """Return the device of a tensor; for a fake one, the device that it stands for."""
    device: torch.device = getattr(tensor, "fake_device", None) or tensor.device
    return device


def shapes_of(value: object) -> object:
    """Return everything in an operation's arguments that its result shapes depend on."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, device_of(value)
    # 1, 1.0 and True are equal, and lead to other types
    return (
        tuple(map(shapes_of, value)) if isinstance(value, (list, tuple)) else (type(value), value)
    )

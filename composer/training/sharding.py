"""Sharded training (FSDP2): shard a model, gather and load full weights and optimizer moments.

A checkpoint has full weights and moments, so any number of processes can write and read it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from blocks.core.contract import Block
from blocks.core.stack import Stack
from blocks.repeat import Repeat
from composer.model.encoder_decoder import EncoderDecoder
from composer.training.lightning import ModelParallelStrategy


def shard(model: EncoderDecoder, mesh: DeviceMesh) -> None:
    """Shard every parameter over the processes; a unit is gathered only while it runs."""
    # a block may return a view: whatever reads it makes a new tensor of it, by the contract
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for unit in fsdp_units(model):
        shard_unit(unit, mesh)
        # what may read parameters besides forward
        for method in ("start", "initial_output", "initial_outputs"):
            register_fsdp_forward_method(unit, method)
    shard_unit(model, mesh)
    register_fsdp_forward_method(model, "step")


def is_sharded(model: nn.Module) -> bool:
    """Return True if this process has only a part of the parameters."""
    return isinstance(model, FSDPModule)


def fsdp_units(model: EncoderDecoder) -> list[Block]:
    """Return the units of gathering: blocks of the outermost stacks, iterations of a `repeat`.

    None is inside a loop: its length may depend on the data, so processes would gather differently
    often. None shares parameters with another place, where they must be gathered as well.
    """
    stacks = [*(encoder.stack for encoder in model.readers().values()), model.decoder]
    total, units = count_parameters(model), []
    for stack in stacks:
        for block in shardable_blocks(stack):
            uses = count_parameters(block)
            if uses and all(total[key] == count for key, count in uses.items()):
                units.append(block)
    return units


def shardable_blocks(stack: Stack) -> Iterator[Block]:
    """Yield the blocks of a stack that name only their own output, and iterations of `repeat`.

    The gradient of that one output tells FSDP that those of the block's parameters are about to be
    computed.
    """
    for block, label, outputs in zip(stack.inner(), stack.labels, stack.gives, strict=True):
        if (
            isinstance(block, Repeat)
            and block.relaxation is None
            and len(block.stacks) == block.times
        ):
            for iteration in cast("list[Stack]", list(block.stacks)):
                yield from shardable_blocks(iteration) if any(iteration.gives) else [iteration]
        elif outputs <= {label}:
            yield block


def count_parameters(module: nn.Module) -> Counter[int]:
    """Return the number of uses of each parameter in a module, by its identity."""
    return Counter(
        id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)
    )


class Opaque:
    """Container that the hooks of FSDP do not look into."""

    def __init__(self, content: object) -> None:
        self.content = content


def shard_unit(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let FSDP gather the parameters of a module before it runs, and free them after.

    The hooks that do so hand on copies of the mappings among the arguments; records and penalties
    are there to be written into, so what comes after the first two arguments passes them by.
    """
    fully_shard(module, mesh=mesh)
    module.register_forward_pre_hook(
        lambda _, inputs: (*inputs[:2], *map(Opaque, inputs[2:])), prepend=True
    )
    module.register_forward_pre_hook(
        lambda _, inputs: (*inputs[:2], *(opaque.content for opaque in inputs[2:]))
    )


def own_part(value: Tensor) -> Tensor:
    """Return this process's part of a tensor, without gradient; it shares its memory."""
    return (value.to_local() if isinstance(value, DTensor) else value).detach()


def local_part(value: object, like: Tensor) -> Any:
    """Return this process's part of a full tensor, sharded like `like`; anything else as it is."""
    if not (isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    return distribute_tensor(
        value.to(like.device), like.device_mesh, like.placements, src_data_rank=None
    )


def full_state(state: Mapping[Any, Any], keep: bool = True) -> dict[Any, Any]:
    """Return a state with full tensors in main memory; a collective call.

    A process that does not `keep` it gets an empty one, and never holds more than one full tensor.
    """
    full = {}
    for name, value in state.items():
        gathered = value.full_tensor() if isinstance(value, DTensor) else value
        if keep:
            full[name] = gathered.cpu() if isinstance(gathered, Tensor) else gathered
    return full


def load_full_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load this process's part of a full state."""
    mine = module.state_dict()
    module.load_state_dict(
        {name: local_part(value, mine.get(name, value)) for name, value in state.items()}
    )


def full_optimizer_state(optimizer: Optimizer, keep: bool = True) -> dict[str, object]:
    """Return the state of an optimizer with full moments, as `full_state` returns them."""
    state = optimizer.state_dict()
    moments = {number: full_state(values, keep) for number, values in state["state"].items()}
    return {**state, "state": moments}


def load_full_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load this process's part of the moments."""
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    moments = {}
    for number, values in state["state"].items():
        like = parameters[number]
        moments[number] = {name: local_part(value, like) for name, value in values.items()}
    optimizer.load_state_dict({**state, "state": moments})


class ShardedStrategy(ModelParallelStrategy):
    """Lightning strategy that shards every parameter over all devices.

    Its checkpoints are full, by `CheckpointIO`.
    """

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        return full_state(self.model.state_dict(), keep=self.is_global_zero)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return full_optimizer_state(optimizer, keep=self.is_global_zero)

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, object]:
        assert self.model is not None
        content = self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)
        load_full_state(self.model, content["state_dict"])
        for optimizer, state in zip(self.optimizers, content["optimizer_states"], strict=True):
            load_full_optimizer_state(optimizer, state)
        return content

"""Sharded training: each process keeps a part of every parameter, gradient and moment, and gathers a unit as it runs.

A checkpoint knows nothing of it: it has whole weights and moments, so any number of processes can write and read it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, cast

from pytorch_lightning.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from blocks.core.contract import Block
from blocks.core.stack import Stack
from blocks.repeat import Repeat
from composer.model.encoder_decoder import EncoderDecoder

BESIDE_FORWARD = ("start", "initial_output")
"""What else of a block may read its parameters."""


# ------------------------------------------------------------------------------------------- the model


def shard(model: EncoderDecoder, mesh: DeviceMesh) -> None:
    """Keeps of every parameter this process's part: a unit is whole while it runs, the rest throughout a step."""
    # a block may return a view: whatever reads it makes a new tensor of it, by the contract
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for unit in fsdp_units(model):
        shard_unit(unit, mesh)
        for method in BESIDE_FORWARD:
            register_fsdp_forward_method(unit, method)
    shard_unit(model, mesh)


def is_sharded(model: nn.Module) -> bool:
    """Whether this process has only a part of the parameters."""
    return isinstance(model, FSDPModule)


def fsdp_units(model: EncoderDecoder) -> list[Block]:
    """What is gathered and given back as one: items of the outermost stacks, and of a `repeat` its repetitions.

    Nothing inside a loop, whose length may depend on the data: processes would gather differently often. Nothing
    whose parameters are used elsewhere too, since they must be whole there as well.
    """
    stacks = [*(encoder.stack for encoder in model.readers().values()), model.decoder]
    everywhere = count_parameters(model)
    found = [(block, count_parameters(block)) for stack in stacks for block in shardable_blocks(stack)]
    return [block for block, own in found if own and all(everywhere[each] == count for each, count in own.items())]


def shardable_blocks(stack: Stack) -> Iterator[Block]:
    """The blocks of a stack that name nothing but their own output: its gradient tells that theirs are about to come.

    Of a `repeat` whose repetitions have parameters of their own, these.
    """
    for block, label, given in zip(stack.inner(), stack.labels, stack.gives, strict=True):
        if isinstance(block, Repeat) and block.relaxation is None and len(block.stacks) == block.times:
            for each in cast("list[Stack]", list(block.stacks)):
                yield from shardable_blocks(each) if any(each.gives) else [each]
        elif given <= {label}:
            yield block


def count_parameters(module: nn.Module) -> Counter[int]:
    """How often each parameter stands in a module, by its identity."""
    return Counter(id(each) for _, each in module.named_parameters(remove_duplicate=False))


class Opaque:
    """Something that the hooks of what is gathered do not look into."""

    def __init__(self, content: Any) -> None:
        self.content = content


def shard_unit(module: nn.Module, mesh: DeviceMesh) -> None:
    """Has the parameters of a module gathered before it runs, and given back after.

    The hooks that do so hand on copies of the mappings among the arguments; records and penalties are there to be
    written into, so what comes after the first two arguments passes them by.
    """
    fully_shard(module, mesh=mesh)
    module.register_forward_pre_hook(lambda _, given: (*given[:2], *map(Opaque, given[2:])), prepend=True)
    module.register_forward_pre_hook(lambda _, given: (*given[:2], *(each.content for each in given[2:])))


# ------------------------------------------------------------------------------------------- whole tensors and parts


def full_tensor(value: Tensor) -> Tensor:
    """A tensor as one process would have it; all processes ask at once."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_part(value: Tensor, like: Tensor) -> Tensor:
    """What this process keeps of a whole tensor: the part that it has of `like`; all, where that is not sharded."""
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def full_state(module: nn.Module, keep: bool = True) -> dict[str, Tensor]:
    """The state of a sharded module as one process would have it, in the main memory; all processes ask at once.

    Who does not `keep` it never has more than one tensor of it.
    """
    return dict(_kept(module.state_dict().items(), keep))


def _kept(values: Iterable[tuple[Any, Any]], keep: bool) -> Iterator[tuple[Any, Any]]:
    for name, value in values:
        found = full_tensor(value.detach()).cpu() if isinstance(value, Tensor) else value
        if keep:
            yield name, found


def load_full_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Takes this process's part of a whole state."""
    mine = module.state_dict()
    module.load_state_dict({name: local_part(value, mine.get(name, value)) for name, value in state.items()})


def full_optimizer_state(optimizer: Optimizer, keep: bool = True) -> dict[str, Any]:
    """The state of an optimizer of sharded parameters as one process would have it; as `whole_state`."""
    state = optimizer.state_dict()
    return {**state, "state": {number: dict(_kept(each.items(), keep)) for number, each in state["state"].items()}}


def load_full_optimizer_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Takes this process's part of the moments; what has not the shape of its parameter is no moment."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    moments = {
        number: {
            name: local_part(value, parameters[number]) if is_moment(value, parameters[number]) else value
            for name, value in each.items()
        }
        for number, each in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": moments})


def is_moment(value: Any, parameter: Tensor) -> bool:
    """Whether something that an optimizer remembers has a number for each of its parameter's."""
    return isinstance(value, Tensor) and value.shape == parameter.shape


# ------------------------------------------------------------------------------------------- Lightning's strategy


class ShardedStrategy(ModelParallelStrategy):
    """All devices share every parameter; checkpoints are whole, and pass through the trainer's own door to the disk."""

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        return full_state(self.model, keep=self.is_global_zero)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return full_optimizer_state(optimizer, keep=self.is_global_zero)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        assert self.model is not None
        content = self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)
        load_full_state(self.model, content["state_dict"])
        for optimizer, state in zip(self.optimizers, content["optimizer_states"], strict=True):
            load_full_optimizer_state(optimizer, state)
        return content


def sharded(timeout: timedelta) -> ShardedStrategy:
    """The strategy; `timeout` is how long a process waits for another."""
    return ShardedStrategy(tensor_parallel_size=1, save_distributed_checkpoint=False, timeout=timeout)

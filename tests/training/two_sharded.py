"""Run as two processes, RANK, a recipe and the file where they meet given: what is sharded against
what is whole.

Both processes also have the whole model, and train it on whole batches beside. Prints what is true,
as JSON.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from composer.data.tokenizer import Tokenizers
from composer.model.trained_parameters import TrainedParameters
from composer.recipe.recipe import load
from composer.recipe.sections import GradientNoise
from composer.training.module import Seq2SeqModule, add_gradient_noise
from composer.training.optimizers import OPTIMIZERS
from composer.training.sharding import (
    full_optimizer_state,
    full_state,
    load_full_optimizer_state,
    load_full_state,
    shard,
)
from composer.training.weight_average import WeightAverage

STEPS = 3


def module_of(recipe: str) -> Seq2SeqModule:
    """The recipe's module with a vocabulary of eleven."""
    torch.manual_seed(1)
    sides = SimpleNamespace(sides=["source", "target"], sizes={"source": 11, "target": 11})
    return Seq2SeqModule("", "", (load(recipe), cast("Tokenizers", sides)))


def step(model: nn.Module, optimizer: Optimizer, at: int) -> None:
    """A step with gradients that are a function of its number; clipped, with noise."""
    made = torch.Generator().manual_seed(at)
    for parameter in model.parameters():
        gradient = torch.randn(parameter.shape, generator=made)
        parameter.grad = shared(gradient, parameter) if isinstance(parameter, DTensor) else gradient
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    add_gradient_noise(model.parameters(), 5, at, GradientNoise(scale=0.3, decay=0.5))
    optimizer.step()


def shared(gradient: Tensor, parameter: Tensor) -> Tensor:
    """This process's rows of a gradient, as a part of the whole."""
    rank = distributed.get_rank()
    mine = gradient.chunk(2)[rank : rank + 1]
    own = mine[0] if mine else gradient[:0]
    like = cast("DTensor", parameter)
    return DTensor.from_local(
        own,
        like.device_mesh,
        like.placements,
        shape=gradient.shape,
        stride=gradient.stride(),
        run_check=False,
    )


def built(name: str, model: nn.Module) -> Optimizer:
    """An optimizer with its defaults, to which every matrix is a hidden one."""
    parameters = [*model.parameters()]
    hidden = {id(parameter) for parameter in parameters if parameter.ndim == 2}
    return OPTIMIZERS[name]().build(TrainedParameters(parameters, hidden=hidden))


def trained(
    model: nn.Module, name: str, first: int, state: Mapping[str, Any] | None = None
) -> Optimizer:
    """The optimizer after some steps, from a state that is whole."""
    optimizer = built(name, model)
    if state is not None:
        load_full_optimizer_state(optimizer, state)
    for at in range(first, first + STEPS):
        step(model, optimizer, at)
    return optimizer


def apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference; infinite where names differ."""
    if one.keys() != other.keys():
        return float("inf")
    return max(float((one[key].double() - other[key].double()).abs().max()) for key in one)


def flat(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The moments of an optimizer by number and name."""
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, each in state["state"].items()
        for name, value in each.items()
    }


def of_optimizer(plain: Seq2SeqModule, sharded: Seq2SeqModule, name: str) -> dict[str, Any]:
    """One that trains whole and sharded: from the same weights, and on from what the other has
    written.
    """
    load_full_state(sharded, plain.state_dict())
    mine, theirs = copy.deepcopy(plain), trained(sharded, name, 0)
    own = trained(mine, name, 0)
    written = copy.deepcopy(own.state_dict())
    load_full_state(sharded, mine.state_dict())
    read = built(name, sharded)
    load_full_optimizer_state(read, written)
    told = {
        "moments apart": apart(flat(written), flat(full_optimizer_state(theirs)))
        if written["state"]
        else 0.0,
        "weights lost": apart(mine.state_dict(), full_state(sharded.state_dict())),
        "moments lost": apart(flat(written), flat(full_optimizer_state(read)))
        if written["state"]
        else 0.0,
        "groups are the same": written["param_groups"]
        == full_optimizer_state(read)["param_groups"],
    }
    trained(sharded, name, STEPS, written)
    for at in range(STEPS, 2 * STEPS):
        step(mine, own, at)
    return told | {"weights apart": apart(mine.state_dict(), full_state(sharded.state_dict()))}


def of_copy(sharded: Seq2SeqModule) -> dict[str, Any]:
    """What is decoded with."""
    before = torch.get_rng_state()
    copied = sharded.eval().full_model()
    return {
        "plain": not any(isinstance(each, DTensor) for each in copied.parameters()),
        "weights": apart(full_state(sharded.model.state_dict()), copied.state_dict()),
        "draws nothing": torch.equal(before, torch.get_rng_state()),
        "evaluates": not copied.training,
    }


def of_average(plain: Seq2SeqModule, sharded: Seq2SeqModule) -> dict[str, Any]:
    """A moving average of the weights of some steps, whole and sharded."""
    load_full_state(sharded, plain.state_dict())
    averages, unsharded = [WeightAverage(0.5), WeightAverage(0.5)], copy.deepcopy(plain)
    for module, average in zip((unsharded, sharded), averages, strict=True):
        trainer, optimizer = (
            cast("Any", SimpleNamespace(global_step=0)),
            OPTIMIZERS["adam"]().build(TrainedParameters([*module.parameters()])),
        )
        average.on_train_start(trainer, module)
        for trainer.global_step in range(1, STEPS + 1):
            step(module.model, optimizer, trainer.global_step)
            average.on_train_batch_end(trainer, module, None, None, 0)
    one, other = (average.state_dict()["average"] for average in averages)
    after = full_state(sharded.model.state_dict())
    averages[1].on_validation_start(trainer, sharded)
    validated = {
        name: value for name, value in full_state(sharded.model.state_dict()).items() if name in one
    }
    averages[1].on_validation_end(trainer, sharded)
    resumed = WeightAverage(0.5)
    resumed.load_state_dict({"average": one, "stalled_at": None})
    resumed.on_train_start(trainer, sharded)
    return {
        "average": apart(one, other),
        "validated": apart(one, validated),
        "put back": apart(after, full_state(sharded.model.state_dict())),
        "lost": apart(one, resumed.state_dict()["average"]),
    }


def main(rank: int, recipe: str, place: str) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{place}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    plain, sharded = module_of(recipe), module_of(recipe)
    shard(sharded.model, init_device_mesh("cpu", (2,)))
    held = sum(whole_part(each) for each in sharded.parameters())
    told: dict[str, Any] = {
        "share": held / sum(each.numel() for each in plain.parameters()),
        "optimizers": {
            name: of_optimizer(plain, sharded, name)
            for name, kind in OPTIMIZERS.items()
            if kind.shards
        },
        "copy": of_copy(sharded),
        "ema": of_average(plain, sharded),
    }
    if rank == 0:
        sys.stdout.write(f"{json.dumps(told)}\n")
    distributed.destroy_process_group()


def whole_part(parameter: Tensor) -> int:
    """How many numbers of a parameter this process has."""
    return int(cast("Any", parameter).to_local().numel())


if __name__ == "__main__":
    arguments: Sequence[str] = sys.argv[1:]
    main(int(arguments[0]), arguments[1], arguments[2])

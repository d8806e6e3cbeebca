"""Run as two processes, RANK and the file where they meet given: every recipe's gradient of one
batch, by three ways.

The law: one process with the whole batch = two with a share each and all weights (DDP) = two that
share the weights too (FSDP). Prints a line of JSON for each recipe: how far the ways are from each
other.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from composer.data.collate import Batch, mask_rows
from composer.data.tokenizer import Tokenizers
from composer.model.special_tokens import EOS, PAD
from composer.recipe.choices import Progress
from composer.testing.model_laws import FACTS, SOURCES, TARGETS, RandomPairs, random_pairs
from composer.training.module import Seq2SeqModule
from composer.training.sharding import fsdp_units, full_state, shard
from tests.laws.test_recipes import RECIPES, name, small, vocabularies

WORLD = 2
BATCHES = ((0, 1, 2, 3), (0,))
"""The rows of each global batch: the shares of the first have other lengths, of the second one is
idle.
"""
CHANCE = {"dropout", "rate", "noise", "weight_dropout"}
"""What modules call the rates at which something is drawn."""
Result = dict[str, Tensor]
"""The loss of the global batch under "loss", and the gradients by their parameters' names."""


class Step(nn.Module):
    """A training step as the forward pass of a module, which is what Lightning makes of it under
    DDP.
    """

    def __init__(self, module: Seq2SeqModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        return self.module.training_step(batch, 0)


def module_of(path: Path) -> Seq2SeqModule:
    """The recipe's module at a small size, without dropout and without samples in place of the
    targets.
    """
    recipe = small(path)
    training = {**recipe.canonical["training"], "scheduled_sampling": None}
    recipe = replace(recipe, canonical={**recipe.canonical, "training": training})
    sizes = vocabularies(recipe)
    sides = SimpleNamespace(
        sides=list(sizes), sizes=sizes, vocabulary=lambda side: [*map(str, range(sizes[side]))]
    )
    torch.manual_seed(1)
    module = Seq2SeqModule("", "", (recipe, cast("Tokenizers", sides)))
    for inner in module.modules():
        for setting in CHANCE & vars(inner).keys():
            setattr(inner, setting, 0.0)
    return module


def pairs_of(module: Seq2SeqModule) -> RandomPairs:
    """Sentences; where every answer has the same length, such answers."""
    length = module.model.length
    return random_pairs(
        module.model, targets=TARGETS if length is None else [length + 1] * len(SOURCES)
    )


def share_of(pairs: RandomPairs, rows: Sequence[int], rank: int, world: int) -> dict[str, Any]:
    """What one of `world` devices gets of a global batch of these rows."""
    mine = list(rows[rank::world])
    own = mine or list(rows[:1])
    target = cut(pairs.target[own])
    stories = any(ids.dim() == 3 for ids in pairs.sources.values())
    batch = {
        "sources": {key: cut(ids[own]) for key, ids in pairs.sources.items()},
        "target_in": target,
        "target_out": answers(target),
        "tokens": float((pairs.target[list(rows)] != PAD).sum()),
        "part": len(mine) / len(rows),
        "rows": torch.tensor(own),
        "graded": torch.zeros(len(own), dtype=torch.bool),
        "facts": torch.zeros(len(own), FACTS if stories else 0, dtype=torch.long),
    }
    return cast("dict[str, Any]", batch if mine else mask_rows(cast("Batch", batch)))


def cut(ids: Tensor) -> Tensor:
    """Ids without the positions that are padding in every row. (B, S) or (B, N, W)"""
    real = ids != PAD
    return ids[:, : int((real.any(-1) if ids.dim() == 3 else real).sum(1).max())]


def answers(target: Tensor) -> Tensor:
    """The answer to each position: the token after it, and eos after the last. (B, T)"""
    following = torch.cat((target[:, 1:], torch.full_like(target[:, :1], PAD)), 1)
    return following.masked_fill((target != PAD) & (following == PAD), EOS)


# ------------------------------------------------------------------------------------------- the
# three ways


def alone(module: Seq2SeqModule, pairs: RandomPairs) -> list[Result]:
    """One process with the whole of every batch."""
    return results(module, Step(module), [share_of(pairs, rows, 0, 1) for rows in BATCHES], 1)


def copies(module: Seq2SeqModule, pairs: RandomPairs, rank: int) -> list[Result]:
    """Each process with its share, and with all weights."""
    step = DistributedDataParallel(Step(module))
    return results(module, step, [share_of(pairs, rows, rank, WORLD) for rows in BATCHES], WORLD)


def parts(module: Seq2SeqModule, pairs: RandomPairs, rank: int) -> list[Result]:
    """Each process with its share, and with a part of the weights."""
    shard(module.model, init_device_mesh("cpu", (WORLD,)))
    return results(
        module, Step(module), [share_of(pairs, rows, rank, WORLD) for rows in BATCHES], WORLD
    )


def results(
    module: Seq2SeqModule,
    step: Callable[[Mapping[str, Any]], Tensor],
    batches: Sequence[Mapping[str, Any]],
    world: int,
) -> list[Result]:
    """Loss and gradients of each batch in turn."""
    trainer = SimpleNamespace(world_size=world, accumulate_grad_batches=1)
    module.trainer = cast("Any", trainer)
    module.loop_progress = Progress(0, 0.0)
    results = []
    for batch in batches:
        torch.manual_seed(1)  # an output head that draws tokens draws the same on every device
        module.zero_grad()
        loss = step(batch)
        loss.backward()
        results.append(
            {"loss": mean(loss.detach(), world), **gradients(module), **counts(module, world)}
        )
    return results


def counts(module: Seq2SeqModule, world: int) -> Result:
    """What blocks have counted in this step, and what that changes in them; it ends the step."""

    def total(value: Tensor) -> Tensor:
        return (mean(value.double(), world) * world).round().to(value.dtype)

    for block in module.counting_blocks:
        block.finish_step(total)
    return {
        key: value.double() for key, value in module.model.named_buffers() if key.endswith(".moves")
    }


def mean(value: Tensor, world: int) -> Tensor:
    """The mean over the processes."""
    if world > 1:
        distributed.all_reduce(value)
    return value / world


def gradients(module: Seq2SeqModule) -> Result:
    """The gradient of every parameter that has one, whole."""
    own = {key: item.grad for key, item in module.model.named_parameters() if item.grad is not None}
    return {key: gradient.clone() for key, gradient in full_state(own).items()}


def apart(mine: Sequence[Result], theirs: Sequence[Result]) -> float:
    """The largest difference, as a part of the largest number of the gradient; infinite where one
    has no gradient.
    """
    if [one.keys() for one in mine] != [other.keys() for other in theirs]:
        return float("inf")
    return max(
        float(
            (one[key] - other[key]).abs().max()
            / max(gradient.abs().max() for gradient in other.values())
        )
        for one, other in zip(mine, theirs, strict=True)
        for key in one
    )


def copy_of(module: Seq2SeqModule) -> Seq2SeqModule:
    """A copy that shares the recipe, which takes longer to copy than all else."""
    return copy.deepcopy(module, {id(module.recipe): module.recipe})


def compared(path: Path, rank: int) -> dict[str, Any]:
    """How far the ways are from each other for one recipe."""
    module = module_of(path)
    pairs = pairs_of(module)
    facts = {"recipe": name(path), "units": len(fsdp_units(module.model))}
    one = alone(copy_of(module), pairs)
    two = copies(copy_of(module), pairs, rank)
    return facts | {
        "one and two": apart(two, one),
        "whole and sharded": apart(parts(module, pairs, rank), two),
    }


def main(rank: int, place: str, recipes: Sequence[Path]) -> None:
    """Goes over the recipes; the first process prints."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    warnings.filterwarnings("ignore")
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{place}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    for path in recipes:
        comparison = compared(path, rank)
        if rank == 0:
            sys.stdout.write(f"{json.dumps(comparison)}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    chosen = sys.argv[3:]
    main(
        int(sys.argv[1]),
        sys.argv[2],
        [path for path in RECIPES if not chosen or name(path) in chosen],
    )

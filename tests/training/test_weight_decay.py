"""Weight decay falls on matrices, or on all parameters; a group may have one of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from composer.checks.planner import plan
from composer.model.builder import build
from composer.model.trained_parameters import count_decaying, trained_parameters
from composer.model.weights import decaying_parameters
from composer.recipe.recipe import Recipe, load_text
from composer.training.optimizers import OPTIMIZERS

RECIPE = """recipe: 1
data: {generate: copy}
model:
  width: 8
  encoder: [{positions: learned}, mamba, norm]
  decoder: [{rnn: {cell: gru}}, {residual: [cross_attention]}, norm]
training:
  optimizer: {OPTIMIZER}
"""
RATE, DECAY = 0.1, 0.5


def recipe_with(optimizer: str, groups: str = "") -> Recipe:
    return load_text(RECIPE.replace("{OPTIMIZER}", optimizer) + groups)


def decayed_names(recipe: Recipe) -> set[str]:
    """The parameters that a step without gradients makes smaller."""
    torch.manual_seed(1)
    model = build(recipe, {"source": 12, "target": 12})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)  # also of those that begin with zeros
    optimizer = recipe.training.optimizer.build(trained_parameters(recipe, model))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {name for name, parameter in model.named_parameters() if changed(parameter)}


def changed(parameter: Tensor) -> bool:
    return not torch.equal(parameter, torch.ones_like(parameter))


OF_EACH = {name: "decayed" if name in ("rmsprop", "adadelta") else "decay" for name in OPTIMIZERS}


@pytest.mark.parametrize(("optimizer", "word"), OF_EACH.items())
def test_matrices_and_embeddings_decay_and_nothing_else_does(optimizer: str, word: str) -> None:
    names = {
        name
        for name, _ in build(
            recipe_with(optimizer), {"source": 12, "target": 12}
        ).named_parameters()
    }
    matrices = decayed_names(recipe_with(f"{{{optimizer}: {{weight_decay: {DECAY}}}}}"))
    everything = decayed_names(
        recipe_with(f"{{{optimizer}: {{weight_decay: {DECAY}, {word}: all}}}}")
    )
    assert everything == names
    assert {"embedding.weight", "output.weight"} <= matrices
    assert {
        name for name in names if name.rpartition(".")[2] in ("bias", "skip")
    } & matrices == set()
    shapes = dict(build(recipe_with(optimizer), {"source": 12, "target": 12}).named_parameters())
    assert all(shapes[name].ndim > 1 for name in matrices)
    assert matrices < names


def test_the_states_of_mamba_do_not_decay() -> None:
    """`log_rate`, the authors' `A_log`, is a table of numbers, (E, N), and not a matrix."""
    model = build(recipe_with("adamw"), {"source": 12, "target": 12})
    tables = {
        name
        for name, parameter in model.named_parameters()
        if name.endswith("log_rate") and parameter.ndim == 2
    }
    assert tables
    assert not tables & decayed_names(recipe_with(f"{{adamw: {{weight_decay: {DECAY}}}}}"))


@pytest.mark.parametrize(
    ("decoder", "names"),
    [
        ("memory_network", {"maps", "question_map", "times"}),
        ("{cross_attention: {score: fine_grained}}", {"vectors"}),
        ("{window_memory: {window: 3}}", {"keys", "values"}),
    ],
)
def test_matrices_and_tables_of_a_block_decay_whatever_they_are_called(
    decoder: str, names: set[str]
) -> None:
    stacks = RECIPE.partition("  encoder:")[0] + f"  encoder: [rnn]\n  decoder: [rnn, {decoder}]\n"
    model = build(load_text(stacks), {"source": 12, "target": 12})
    falls_on = decaying_parameters(model)
    assert names <= {
        name.rpartition(".")[2] for name, it in model.named_parameters() if id(it) in falls_on
    }


class OfAUser(nn.Module):
    """A block that says of one of its parameters that it is no matrix."""

    layouts: ClassVar = {"scales": ""}

    def __init__(self) -> None:
        super().__init__()
        self.mixing, self.scales = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(2, 3))


def test_a_matrix_of_which_nothing_is_reported_decays() -> None:
    model = build(recipe_with("adamw"), {"source": 12, "target": 12})
    block = OfAUser()
    model.decoder.blocks.append(block)
    assert id(block.mixing) in decaying_parameters(model)
    assert id(block.scales) not in decaying_parameters(model)


def test_a_group_has_a_weight_decay_of_its_own() -> None:
    base = f"{{adamw: {{learning_rate: {RATE}, weight_decay: {DECAY}}}}}"
    without = decayed_names(recipe_with(base))
    groups = "  parameter_groups: [{blocks: encoder, weight_decay: 0}]\n"
    assert decayed_names(recipe_with(base, groups)) == {
        name for name in without if not name.startswith("encoders")
    }
    both = "  parameter_groups: [{blocks: encoder, factor: 0.5, weight_decay: 2}]\n"
    model: Any = build(recipe_with(base), {"source": 12, "target": 12})
    trained = trained_parameters(recipe_with(base, both), model)
    kinds = {
        (group["factor"], group["weight_decay"]) for group in trained.groups(DECAY, "matrices")
    }
    assert kinds == {(1.0, DECAY), (1.0, 0.0), (0.5, 2.0)}


def test_the_plan_counts_what_decays() -> None:
    assert plan(recipe_with("adam")).decaying == 0
    every = plan(recipe_with(f"{{adamw: {{weight_decay: {DECAY}, decay: all}}}}"))
    some = plan(recipe_with(f"{{adamw: {{weight_decay: {DECAY}}}}}"))
    assert 0 < some.decaying < every.decaying == every.parameters
    model = build(recipe_with(f"{{adamw: {{weight_decay: {DECAY}}}}}"), some.vocabularies)
    assert (
        count_decaying(recipe_with(f"{{adamw: {{weight_decay: {DECAY}}}}}"), model) == some.decaying
    )


def test_without_weight_decay_a_fingerprint_does_not_depend_on_what_it_falls_on() -> None:
    prints = [
        recipe_with(text).fingerprints["run"]
        for text in ("{adam: {decay: all}}", "{adam: {decay: matrices}}")
    ]
    assert prints[0] == prints[1]
    prints = [
        recipe_with(f"{{adam: {{weight_decay: 1, decay: {word}}}}}").fingerprints["run"]
        for word in ("all", "matrices")
    ]
    assert prints[0] != prints[1]

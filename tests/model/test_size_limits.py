"""Models that would take for ever, or more memory than there is, are refused where they stand, and
soon.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from blocks.core.recurrence import build_layer, build_layer_norm_layer
from composer.errors import RecipeError
from composer.model import builder, weights
from composer.model.costs import steps_as_rows
from composer.model.machine import available_memory
from composer.model.meta_device import MetaCache
from composer.recipe.recipe import load_text
from tests.small_recipes import SMALL, faults_of, loaded, places

BOMB = "".join(f"    s{at}: [{{use: s{at + 1}}}, {{use: s{at + 1}}}]\n" for at in range(40))

TOO_LARGE = {
    "six hundred blocks": (
        "{repeat: {times: 600, stack: [linear]}}",
        "5:14",
        "more than 500 blocks",
    ),
    "a block for each line": (
        ", ".join(["norm"] * 600),
        f"5:{12 + 6 * 500 + 1}",
        "more than 500 blocks",
    ),
    "loops in loops": ("{recurrent: [" * 16 + "linear" + "]}" * 16, "5:14", "more than 500 blocks"),
    "a thousand layers": (
        "norm, {rnn: {layers: 1000}}",
        "5:20",
        "more than 2,000 matrices and vectors",
    ),
    "ten thousand steps": (
        "norm, {repeat: {times: 10000, share: true, stack: [linear]}}",
        "5:64",
        "more than 3,000 steps are taken",
    ),
    "a kernel of 10^24 numbers": (
        (
            "norm]\n  encoder: [grid, {conv2d: {kernel: [1000000, 1000000], width: 1000000}},"
            " {select_column: 0}"
        ),
        "6:20",
        "`conv2d` cannot be built: RuntimeError: ",
    ),
}


COUNTED = {
    "a million blocks": (
        "{repeat: {times: 1000000, stack: [linear]}}",
        "5:30",
        "`times: 1000000` makes 1,000,000 blocks",
    ),
    "a million steps": (
        "{repeat: {times: 1000000, share: true, stack: [linear]}}",
        "5:30",
        "`times: 1000000` makes 1,000,000 steps",
    ),
    "repeats in repeats": (
        "norm, {repeat: {times: 1000, stack: [{repeat: {times: 1000, stack: [norm]}}]}}",
        "5:36",
        "`times: 1000` makes 1,000,000 blocks",
    ),
    "layers in a repeat": (
        "{repeat: {times: 100, stack: [{rnn: {layers: 1000}}]}}",
        "5:30",
        "`times: 100` makes 100,000 blocks",
    ),
    "a repeat of a named stack": (
        "{repeat: {times: 9000, stack: [use: s]}}]\n  stacks: {s: [norm, norm]}\n  encoder: [norm",
        "5:30",
        "`times: 9000` makes 18,000 blocks",
    ),
    "two uses of two uses": (
        f"{{use: s0}}]\n  stacks:\n{BOMB}    s40: [norm",
        "33:24",
        "makes 16,384 blocks",
    ),
    "stacks that use stacks": (
        "{use: s0}]\n  stacks:\n"
        + "".join(f"    s{at}: [residual: [use: s{at + 1}]]\n" for at in range(2000))
        + "    s2000: [norm]\n  encoder: [norm",
        "38:22",
        "more than 64 blocks are nested here",
    ),
    "a million layers": ("{rnn: {layers: 1000000}}", "5:28", "`1000000` is too large"),
    "a million hops": ("{memory_network: {hops: 1000000}}", "5:37", "`1000000` is too large"),
}


@pytest.mark.parametrize("case", COUNTED)
def test_a_count_is_refused_before_anything_is_built(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder.Builder, "block", lambda *_: pytest.fail("a block is built"))
    blocks, place, message = COUNTED[case]
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, SMALL.replace("norm", blocks))
    (fault,) = raised.value.faults
    assert message in fault.message
    assert places([fault])[0].startswith(f"{place}:")


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MOST_BUILT_BLOCKS", 500)
    monkeypatch.setattr(weights, "MOST_PARAMETERS", 2000)
    monkeypatch.setattr("composer.model.costs.MOST_CALLS", 3000)


@pytest.mark.parametrize("case", TOO_LARGE)
def test_too_large_a_model_is_refused(case: str, tmp_path: Path, small_limits: None) -> None:
    blocks, place, message = TOO_LARGE[case]
    recipe = loaded(tmp_path, SMALL.replace("norm", blocks))
    with pytest.raises(RecipeError) as raised:
        recipe.plan()
    (fault,) = raised.value.faults
    assert message in fault.message
    assert places([fault])[0].startswith(f"{place}:")


def test_costs_are_measured_without_gradient_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destroying a graph of thousands of blocks with gradient hooks ends the process."""
    message = "a hook is registered in the graph"
    monkeypatch.setattr(
        "torch.utils.module_tracker.register_multi_grad_hook", lambda *_: pytest.fail(message)
    )
    assert loaded(tmp_path, SMALL).plan().flops


def test_equal_layers_are_soon_planned(tmp_path: Path) -> None:
    layers = loaded(
        tmp_path,
        SMALL.replace("norm", ", ".join(["rnn", "rnn: {cell: gru}", "rnn: {cell: tanh}"] * 40)),
    )
    began = time.process_time()
    first, *_ = [row.flops for row in layers.plan().rows if row.block == "rnn"]
    assert first
    assert time.process_time() - began < 4


LAYERS = {
    "lstm": partial(build_layer, "lstm", "before", 5, 4, None),
    "lstm with a projection": partial(build_layer, "lstm", "before", 5, 4, 3),
    "gru": partial(build_layer, "gru", "before", 5, 4, None),
    "gru of cuDNN": partial(build_layer, "gru", "after", 5, 4, None),
    "tanh": partial(build_layer, "tanh", "before", 5, 4, None),
    "normalised gates": partial(build_layer_norm_layer, "lstm", "before", "tanh", 5, 4),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_steps_cost_as_rows_what_they_cost_one_by_one(kind: str) -> None:
    layer, x = LAYERS[kind]().to("meta"), torch.zeros(2, 7, 5, device="meta")
    before, mask = (
        tuple(x.new_zeros(2, size) for size in layer.sizes),
        x.new_ones(2, 7, dtype=torch.bool),
    )
    with MetaCache() as one_by_one:
        state = before
        for at in range(7):
            y, state = layer(x[:, at : at + 1], state, mask[:, at : at + 1])
    with MetaCache() as by_rows:
        rows, after = steps_as_rows(layer)(x, before, mask)
        first, once = by_rows.flops, len(by_rows.results)
        steps_as_rows(layer)(x, before, mask)
    assert (first, by_rows.flops, len(by_rows.results)) == (one_by_one.flops, 2 * first, once)
    assert rows.shape == (2, 7, y.shape[-1])
    assert [leaf.shape for leaf in after] == [leaf.shape for leaf in state]
    (rows.sum() + sum(leaf.sum() for leaf in after)).backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_stacks_that_are_too_many_together_are_refused_at_the_largest_before_they_are_built() -> (
    None
):
    encoder = ", ".join(["{residual: [norm]}"] * 5_000)
    text = (
        f"recipe: 1\ndata: {{generate: copy}}\nmodel:\n  width: 8\n  encoder: [{encoder}]\n "
        " decoder: [rnn]\n"
    )
    (fault,) = faults_of(lambda: load_text(text))
    assert (fault.code, fault.path, fault.line) == ("size", "model.encoder", 5)
    assert "makes 10,001 blocks, and a model has at most 10,000" in fault.message


def test_many_blocks_are_planned(tmp_path: Path) -> None:
    assert (
        loaded(tmp_path, SMALL.replace("norm", "{repeat: {times: 300, stack: [linear]}}"))
        .plan()
        .parameters
    )


def test_parameters_beyond_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many matrices, for each of which there is room: what counts is what is there at once, and no
    shared one twice.
    """
    uses = ", ".join(["{use: s}"] * 5)
    recipe = loaded(tmp_path, SMALL.replace("norm", uses) + "  stacks: {s: [linear]}\n")
    needed, sizes = 4 * recipe.plan().parameters, recipe.plan().vocabularies
    once_more = 4 * (64 * 64 + 64)  # a use builds its stack before it takes the other's parameters
    monkeypatch.setattr(weights, "available_memory", lambda: needed + once_more)
    assert builder.build(recipe, sizes)
    monkeypatch.setattr(weights, "available_memory", lambda: needed - 1)
    with pytest.raises(RecipeError) as raised:
        builder.build(recipe, sizes)
    assert [fault.code for fault in raised.value.faults] == ["size"]
    assert "parameters take more than the" in raised.value.faults[0].message
    assert recipe.plan().parameters, "what is too large for this machine may be planned for another"


BLOCK = "{linear: 1000000}"


@pytest.mark.parametrize(
    ("blocks", "width", "place"),
    [("norm", 1_000_000, "4:10:size"), (f"{BLOCK}, {BLOCK}", 64, "5:33:size")],
)
def test_a_matrix_beyond_the_memory_is_refused(
    blocks: str, width: int, place: str, tmp_path: Path
) -> None:
    """Four terabytes, in one matrix: of the vocabulary, or of a block."""
    recipe = loaded(tmp_path, SMALL.replace("norm", blocks).replace("64", str(width)))
    with pytest.raises(RecipeError) as raised:
        builder.build(recipe, {"target": width})
    assert places(raised.value.faults) == [place]
    assert "takes more memory than there is" in raised.value.faults[0].message


def test_the_memory_of_this_machine_is_known() -> None:
    assert 2**28 < available_memory() < 2**50


WIDTHS = {
    "a residual": (
        "norm\n    - residual:\n        - linear: 32\n        - norm",
        "7:7",
        "64 into 32",
        "see `linear`, line 8",
    ),
    "a sum with an earlier output": (
        "linear: {width: 32, as: low}\n    - linear: 64\n    - norm\n    - add: low",
        "9:12",
        "`low` is 32 wide",
        "see `linear`, line 6",
    ),
    "branches": (
        (
            "parallel:\n        merge: sum\n        branches:\n          - [norm]\n          -"
            " [{linear: 8}]"
        ),
        "8:9",
        "64 and 8 wide",
        "see `linear`, line 10",
    ),
}


@pytest.mark.parametrize("case", WIDTHS)
def test_a_fault_of_widths_names_both_lines(case: str, tmp_path: Path) -> None:
    blocks, place, message, other = WIDTHS[case]
    recipe = loaded(tmp_path, SMALL.replace("[norm]", f"\n    - {blocks}"))
    with pytest.raises(RecipeError) as raised:
        recipe.plan()
    (fault,) = raised.value.faults
    assert places([fault]) == [f"{place}:width"]
    assert message in fault.message
    assert other in fault.message


@pytest.mark.parametrize("name", ["forward", "items", "training", "T_destination"])
def test_an_encoder_cannot_have_the_name_of_a_module_attribute(name: str, tmp_path: Path) -> None:
    text = """
recipe: 1
data: {parallel: {train: {NAME: a, b: b, target: t}}}
model:
  width: 8
  encoders: {NAME: [norm], b: [norm]}
  decoder: [{cross_attention: {from: NAME}}, {cross_attention: {from: b}}]
"""
    with pytest.raises(
        RecipeError, match=f"`{name}` is an attribute of PyTorch's modules"
    ) as raised:
        loaded(tmp_path, text.replace("NAME", name)).plan()
    assert places(raised.value.faults) == ["6:14:name"]
    loaded(tmp_path, text.replace("NAME", "weights")).plan()

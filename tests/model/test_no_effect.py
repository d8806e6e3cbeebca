"""Settings that change nothing: faults in the recipe itself, warnings where they come from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from composer.errors import RecipeError
from composer.model.builder import build
from composer.model.planner import plan
from composer.recipe.recipe import load, load_text
from tests.small_recipes import faults_of

HEAD = "recipe: 1\ndata: {generate: copy}\n"


def refused_settings(model: str) -> list[str]:
    return [f"{fault.code} {fault.path}" for fault in faults_of(lambda: plan(load_text(HEAD + model)))]


@pytest.mark.parametrize(
    ("block", "setting"),
    [
        ("rnn: {dropout: 0.1}", "rnn.dropout"),
        ("rnn: {cell: lstm, reset: after}", "rnn.reset"),
        ("conv: {kernel: 1, dilation: 2}", "conv.dilation"),
        ("self_attention: {window: 3, positions: relative, max_distance: 9}", "self_attention.max_distance"),
        ("self_attention: {window: 1, positions: alibi, sinks: true}", "self_attention.positions"),
        ("self_attention: {window: 1, qk_norm: true}", "self_attention.qk_norm"),
        ("self_attention: {window: 1, soft_cap: 30}", "self_attention.soft_cap"),
        ("self_attention: {heads: 1, kv_heads: 1}", "self_attention.kv_heads"),
        ("self_attention: {rotary: {base: 500}}", "self_attention.rotary"),
        (
            "mixture_of_experts: {experts: 2, top_k: 2, balance_rate: 0.1, stack: [linear]}",
            "mixture_of_experts.balance_rate",
        ),
        ("repeat: {times: 1, share: true, stack: [linear]}", "repeat.share"),
        ("repeat: {times: 2, share: true, stack: [{norm: {}}, identity], relaxation: {sets: 2}}", "repeat.share"),
        ("parallel: {branches: [[linear]], merge: max}", "parallel.merge"),
        ("use: {stack: shelf, copy: true}", "use.copy"),
        ("repeat: {times: 2, share: true, stack: [{use: shelf}]}", "repeat.share"),
        ("repeat: {times: 2, share: true, stack: [{residual: [{use: shelf}]}, identity]}", "repeat.share"),
    ],
)
def test_a_setting_of_a_block_that_changes_nothing_is_a_fault(block: str, setting: str) -> None:
    shelf = "  stacks: {shelf: [linear]}\n" if "shelf" in block else ""
    assert refused_settings(f"model:\n  width: 16\n{shelf}  decoder: [{{{block}}}]\n") == [
        f"unused model.decoder[0].{setting}"
    ]


def test_a_copy_of_a_stack_without_parameters_is_a_fault() -> None:
    model = "model: {width: 16, stacks: {s: [{dropout: 0.1}]}, decoder: [linear, {use: s}, USE]}\n"
    assert refused_settings(model.replace("USE", "{use: {stack: s, copy: true}}")) == [
        "unused model.decoder[2].use.copy"
    ]


def test_a_shared_repeat_of_more_than_uses_shares_something() -> None:
    inner = ("{use: s}, linear", "{use: {stack: s, copy: true}}")
    for blocks in inner:
        model = "model: {width: 16, stacks: {s: [linear]}, decoder: [{use: s}, {repeat: SHARED}]}\n"
        assert not refused_settings(model.replace("SHARED", f"{{times: 2, share: true, stack: [{blocks}]}}"))


@pytest.mark.parametrize("word", ["orthogonal", "uniform_scaling"])
@pytest.mark.parametrize("block", ["linear", "conv"])
def test_a_scale_of_weights_that_are_initialized_anew_is_a_fault(word: str, block: str) -> None:
    model = f"model: {{width: 8, decoder: [{{{block}: {{init_scale: 0.5}}}}]}}\n"
    training = f"training: {{initialization: {word}}}\n"
    assert refused_settings(model + training) == [f"unused model.decoder[0].{block}.init_scale"]
    assert not refused_settings(model)
    assert not refused_settings(model.replace("0.5", "0.5, weight_norm: true") + training)
    default = f"model: {{width: 8, {block}: {{init_scale: 0.5}}, decoder: [{block}]}}\n"
    (warning,) = plan(load_text(HEAD + default + training)).warnings
    assert warning.path == f"model.{block}.init_scale"


@pytest.mark.parametrize(
    ("columns", "between", "index", "path"),
    [
        (7, "{cgru: {kernel: [3, 1]}}", 0, "[0].grid.columns"),
        (7, "{repeat: {times: length, share: true, stack: [{cgru: {kernel: [3, 1]}}]}}", 0, "[0].grid.columns"),
        (4, "{conv2d: {kernel: [1, 1], stride: [1, 2]}}", 1, ""),
        (4, "{repeat: {times: 2, stack: [{residual: [{conv2d: {kernel: [1, 3]}}]}]}}", 0, "[0].grid.columns"),
        (3, "{repeat: {times: 2, stack: [{residual: [{conv2d: {kernel: [1, 3]}}]}]}}", 0, ""),
        (7, "{repeat: {times: length, share: true, stack: [{cgru: {kernel: [3, 3]}}]}}", 0, ""),
        (7, "{cgru: {kernel: [3, 1], saturation: 0.1}}", 0, ""),
        (2, "linear", 1, "[2].select_column"),
        (4, "{parallel: {branches: [[cgru], [linear]], merge: sum}}", 2, "[2].select_column"),
        (2, "{use: s}", 1, ""),
        (3, "{conv2d: {kernel: [3, 3], align: start}}", 1, "[2].select_column"),
        (4, "{conv2d: {kernel: [3, 4]}}", 2, "[2].select_column"),
        (5, "{repeat: {times: 2, stack: [{conv2d: {kernel: [3, 3], align: start}}]}}", 0, ""),
        (6, "{repeat: {times: 2, stack: [{conv2d: {kernel: [3, 3], align: start}}]}}", 0, "[0].grid.columns"),
        (4, "{repeat: {times: 2, stack: [cgru]}}", 3, ""),
        (6, "{repeat: {times: 3, stack: [cgru]}}", 0, ""),
        (7, "{repeat: {times: 3, stack: [cgru]}}", 0, "[0].grid.columns"),
    ],
)
def test_columns_that_are_never_joined_are_a_fault(columns: int, between: str, index: int, path: str) -> None:
    stacks = ", stacks: {s: [cgru]}" if "use" in between else ""
    encoder = f"[{{grid: {{columns: {columns}}}}}, {between}, {{select_column: {index}}}]"
    model = f"model: {{width: 8, encoder: {encoder}, decoder: [source_state]{stacks}}}\n"
    assert refused_settings(model) == ([f"unused model.encoder{path}"] if path else [])


CONV = "{conv2d: {activation: tanh, kernel: [3, 3]}}"


@pytest.mark.parametrize("block", [CONV, CONV.replace("3]", "4]"), CONV.replace("3]", "3], align: start"), "cgru"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_column_is_selected_where_the_source_reaches_it(block: str, times: int) -> None:
    """Encoders of two sources differ in it, and in no column after it."""
    reached = [column for column in range(8) if source_reaches(block, times, column)]
    model = f"model: {{width: 8, encoder: [{{grid: {{columns: 8}}}}, {', '.join([block] * times)}, SELECT], "
    model += "decoder: [source_state]}\n"
    faults = [refused_settings(model.replace("SELECT", select(column))) for column in range(8)]
    refused = [column for column in range(8) if any("select_column" in fault for fault in faults[column])]
    assert [*reached, *refused] == [*range(8)]


def select(column: int) -> str:
    return f"{{select_column: {column}}}"


def source_reaches(block: str, times: int, column: int) -> bool:
    blocks = f"[{{grid: {{columns: 8}}}}, {', '.join([block] * times)}, {select(column)}]"
    text = f"{HEAD}model: {{width: 8, encoder: {blocks}, decoder: [source_state]}}\n"
    torch.manual_seed(0)
    model = build(load_text(text), {"source": 12, "target": 12}).eval().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    mask = torch.ones(1, 4, dtype=torch.bool)
    sources = ([5, 6, 7, 2], [8, 9, 10, 2])
    one, other = (model.encode({"source": torch.tensor([ids])}, target_mask=mask)["encoder"].states for ids in sources)
    return not torch.equal(one, other)


def test_the_mean_of_one_head_is_a_fault() -> None:
    model = "model: {width: 16, encoder: [rnn], decoder: [{cross_attention: {merge: average}}]}\n"
    assert refused_settings(model) == ["unused model.decoder[0].cross_attention.merge"]


def test_a_side_that_shares_its_matrix_though_nothing_reads_its_tokens_is_a_fault() -> None:
    joint = HEAD.replace("copy}", "copy, tokenizer: {word: {joint: true}}}")
    model = "model:\n  width: 16\n  encoder: [rnn]\n  decoder: [no_input, rnn, cross_attention]\n  output: {tie: [@]}\n"
    faults = faults_of(lambda: plan(load_text(joint + model.replace("@", "source, target"))))
    assert [(fault.path, fault.line, fault.column) for fault in faults] == [("model.output.tie[1]", 7, 26)]
    assert not plan(load_text(joint + model.replace("@", "source"))).warnings


def test_an_unused_stack_is_a_fault_and_its_own_faults_are_seen() -> None:
    stacks = "{mine: [{self_attention: {heads: 5}}], other: [{use: mine}]}"
    assert refused_settings(f"model: {{width: 16, stacks: {stacks}, decoder: [linear]}}\n") == [
        "unused model.stacks.mine",
        "width model.stacks.mine[0].self_attention.heads",
        "unused model.stacks.other",
    ]


def test_a_default_that_no_block_takes_or_that_changes_nothing_is_a_warning() -> None:
    text = f"{HEAD}model:\n  width: 16\n  conv: {{kernel: 2}}\n  rnn: {{dropout: 0.1}}\n  decoder: [rnn]\n"
    warnings = plan(load_text(text)).warnings
    assert [(fault.line, fault.path, fault.severity) for fault in warnings] == [
        (5, "model.conv.kernel", "warning"),
        (6, "model.rnn.dropout", "warning"),
    ]
    assert warnings[1].message.endswith("see `rnn`, line 7")
    assert not plan(load_text(text.replace("[rnn]", "[conv, rnn, {rnn: {layers: 2}}]"))).warnings


def test_a_setting_from_a_fragment_is_a_warning_with_both_places(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(f"{HEAD}model:\n  width: 16\n  decoder:\n    - rnn: {{dropout: 0.1}}\n")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("recipe: 1\nextends: base.yaml\n")
    (warning,) = plan(load(recipe)).warnings
    assert (warning.file, warning.line, warning.severity) == (str(tmp_path / "base.yaml"), 6, "warning")
    assert "line 6" in warning.message


def test_what_an_override_makes_idle_is_a_warning_and_what_was_idle_before_stays_a_fault() -> None:
    text = f"{HEAD}model: {{width: 16, decoder: [{{rnn: {{layers: 2, dropout: 0.1}}}}]}}\n"
    (warning,) = plan(load_text(text, overrides=["model.decoder.0.rnn.layers=1"])).warnings
    assert warning.path == "model.decoder[0].rnn.dropout"
    (warning,) = plan(load_text(text, overrides=["model.decoder.0.rnn.reset=after"])).warnings
    assert (warning.file, warning.path) == ("<command line>", "model.decoder[0].rnn.reset")
    with pytest.raises(RecipeError):
        plan(load_text(text.replace("layers: 2", "layers: 1"), overrides=["training.max_steps=3"]))


def test_a_run_that_has_such_a_setting_can_still_be_opened(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "recipe.yaml").write_text(f"{HEAD}model: {{width: 16, decoder: [{{rnn: {{dropout: 0.1}}}}]}}\n")
    assert len(plan(load(tmp_path / "recipe.yaml")).warnings) == 1


@pytest.mark.parametrize(
    ("masks", "settings"),
    [("share: 0", ["share"]), ("frame_masks: 0, frames: 3", ["frames"]), ("band_masks: 0, bands: 3", ["bands"])],
)
def test_masks_that_cover_nothing_are_a_warning(masks: str, settings: list[str]) -> None:
    column = f"{{column: f, kind: vectors, width: 3, spec_augment: {{{masks}}}}}"
    data = f"data: {{table: {{train: a.csv, sound: {column}, target: t}}}}\n"
    model = "model: {width: 8, encoders: {sound: [rnn]}, decoder: [rnn, {cross_attention: {heads: 1, from: sound}}]}"
    warnings = plan(load_text(f"recipe: 1\n{data}{model}\n")).warnings
    idle = [fault.path for fault in warnings if fault.code == "unused"]
    assert idle == [f"data.table.sound.spec_augment.{setting}" for setting in settings]

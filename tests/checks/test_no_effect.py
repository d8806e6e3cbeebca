"""Settings that change nothing: each is a warning, wherever it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.checks.planner import plan
from composer.recipe.recipe import load, load_text
from tests.small_recipes import faults_of

HEAD = "recipe: 1\ndata: {generate: copy}\n"


def idle_settings(model: str) -> list[str]:
    warnings = plan(load_text(HEAD + model)).warnings
    return [f"{fault.code} {fault.path}" for fault in warnings if fault.hint]


@pytest.mark.parametrize(
    ("block", "setting"),
    [
        ("rnn: {dropout: 0.1}", "rnn.dropout"),
        ("rnn: {cell: lstm, reset: after}", "rnn.reset"),
        ("conv: {kernel: 1, dilation: 2}", "conv.dilation"),
        (
            "self_attention: {window: 3, positions: relative, max_distance: 9}",
            "self_attention.max_distance",
        ),
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
        (
            "repeat: {times: 2, share: true, stack: [{norm: {}}, identity], relaxation: {sets: 2}}",
            "repeat.share",
        ),
        ("repeat: {times: 2, relaxation: {sets: 2}, stack: [dropout]}", "repeat.relaxation"),
        ("parallel: {branches: [[linear]], merge: max}", "parallel.merge"),
        ("use: {stack: shelf, copy: true}", "use.copy"),
        ("repeat: {times: 2, share: true, stack: [{use: shelf}]}", "repeat.share"),
        (
            "repeat: {times: 2, share: true, stack: [{residual: [{use: shelf}]}, identity]}",
            "repeat.share",
        ),
    ],
)
def test_a_setting_of_a_block_that_changes_nothing_is_a_warning(block: str, setting: str) -> None:
    shelf = "  stacks: {shelf: [linear]}\n" if "shelf" in block else ""
    assert idle_settings(f"model:\n  width: 16\n{shelf}  decoder: [{{{block}}}]\n") == [
        f"unused model.decoder[0].{setting}"
    ]


def test_a_copy_of_a_stack_without_parameters_is_a_warning() -> None:
    model = "model: {width: 16, stacks: {s: [{dropout: 0.1}]}, decoder: [linear, {use: s}, USE]}\n"
    assert idle_settings(model.replace("USE", "{use: {stack: s, copy: true}}")) == [
        "unused model.decoder[2].use.copy"
    ]


def test_a_shared_repeat_of_more_than_uses_shares_something() -> None:
    inner = ("{use: s}, linear", "{use: {stack: s, copy: true}}")
    for blocks in inner:
        model = "model: {width: 16, stacks: {s: [linear]}, decoder: [{use: s}, {repeat: SHARED}]}\n"
        assert not idle_settings(
            model.replace("SHARED", f"{{times: 2, share: true, stack: [{blocks}]}}")
        )


@pytest.mark.parametrize("word", ["orthogonal", "uniform_scaling"])
@pytest.mark.parametrize("block", ["linear", "conv"])
def test_a_scale_of_weights_that_are_initialized_anew_is_a_warning(word: str, block: str) -> None:
    model = f"model: {{width: 8, decoder: [{{{block}: {{init_scale: 0.5}}}}]}}\n"
    training = f"training: {{initialization: {word}}}\n"
    assert idle_settings(model + training) == [f"unused model.decoder[0].{block}.init_scale"]
    assert not idle_settings(model)
    assert not idle_settings(model.replace("0.5", "0.5, weight_norm: true") + training)
    default = f"model: {{width: 8, {block}: {{init_scale: 0.5}}, decoder: [{block}]}}\n"
    (warning,) = plan(load_text(HEAD + default + training)).warnings
    assert warning.path == f"model.{block}.init_scale"


def test_the_mean_of_one_head_is_a_warning() -> None:
    model = "model: {width: 16, encoder: [rnn], decoder: [{cross_attention: {merge: average}}]}\n"
    assert idle_settings(model) == ["unused model.decoder[0].cross_attention.merge"]


def test_a_side_that_shares_its_matrix_though_nothing_reads_its_tokens_is_a_warning() -> None:
    joint = HEAD.replace("copy}", "copy, tokenizer: {word: {joint: true}}}")
    model = (
        "model:\n  width: 16\n  encoder: [rnn]\n  decoder: [no_input, rnn, cross_attention]\n "
        " output: {tie: [@]}\n"
    )
    faults = plan(load_text(joint + model.replace("@", "source, target"))).warnings
    assert [(fault.path, fault.line, fault.column) for fault in faults] == [
        ("model.output.tie[1]", 7, 26)
    ]
    assert not plan(load_text(joint + model.replace("@", "source"))).warnings


def test_an_unused_stack_is_a_warning_and_its_own_faults_are_seen() -> None:
    model = (
        "model: {width: 16, stacks: {mine: [{self_attention: {heads: @}}], other: [{use: mine}]},"
        " decoder: [linear]}"
    )
    assert idle_settings(model.replace("@", "4")) == [
        "unused model.stacks.mine",
        "unused model.stacks.other",
    ]
    (fault,) = faults_of(lambda: plan(load_text(HEAD + model.replace("@", "5"))))
    assert (fault.code, fault.path) == ("width", "model.stacks.mine[0].self_attention.heads")


def test_a_default_that_no_block_takes_or_that_changes_nothing_is_a_warning() -> None:
    text = (
        f"{HEAD}model:\n  width: 16\n  conv: {{kernel: 2}}\n  rnn: {{dropout: 0.1}}\n  decoder:"
        " [rnn]\n"
    )
    warnings = plan(load_text(text)).warnings
    assert [(fault.line, fault.path, fault.severity) for fault in warnings] == [
        (5, "model.conv.kernel", "warning"),
        (6, "model.rnn.dropout", "warning"),
    ]
    assert not plan(load_text(text.replace("[rnn]", "[conv, rnn, {rnn: {layers: 2}}]"))).warnings


def test_a_warning_is_where_the_setting_is_written(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        f"{HEAD}model:\n  width: 16\n  decoder:\n    - rnn: {{dropout: 0.1}}\n"
    )
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("recipe: 1\nextends: base.yaml\n")
    (warning,) = plan(load(recipe)).warnings
    assert (warning.file, warning.line) == (str(tmp_path / "base.yaml"), 6)
    _, warning = plan(load(recipe, ["model.decoder.0.rnn.reset=after"])).warnings
    assert (warning.file, warning.path) == ("<command line>", "model.decoder[0].rnn.reset")


@pytest.mark.parametrize(
    ("masks", "settings"),
    [
        ("share: 0", ["share"]),
        ("frame_masks: 0, frames: 3", ["frames"]),
        ("band_masks: 0, bands: 3", ["bands"]),
    ],
)
def test_masks_that_cover_nothing_are_a_warning(masks: str, settings: list[str]) -> None:
    column = f"{{column: f, kind: vectors, width: 3, spec_augment: {{{masks}}}}}"
    data = f"data: {{table: {{train: a.csv, sound: {column}, target: t}}}}\n"
    model = (
        "model: {width: 8, encoders: {sound: [rnn]}, decoder: [rnn, {cross_attention: {heads: 1,"
        " from: sound}}]}"
    )
    warnings = plan(load_text(f"recipe: 1\n{data}{model}\n")).warnings
    idle = [fault.path for fault in warnings if fault.code == "unused"]
    assert idle == [f"data.table.sound.spec_augment.{setting}" for setting in settings]

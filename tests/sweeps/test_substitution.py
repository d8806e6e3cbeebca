"""Selectors find blocks however they are written, and replacements leave the rest as it was."""

from __future__ import annotations

from typing import Any

import pytest

from composer.errors import format_path
from composer.recipe import schema_generator
from composer.recipe.yaml_reader import Node, parse, to_data
from composer.sweeps.selectors import Match, find_overlap, parse_selector, select
from composer.sweeps.substitution import replace_blocks

RECIPE = """
model:
  encoder:
    - positions: sinusoidal
    - repeat: {times: 2, stack: [residual: [rnn, dropout], residual: {stack: [feed_forward: 8], norm: pre}]}
    - parallel: {branches: {left: [rnn: gru], right: [conv: {kernel: 3, as: wide}]}}
    - parallel: {branches: [[rnn], [identity]]}
    - norm
  decoder:
    - rnn: {cell: lstm, as: read}
    - cross_attention: {query: read, as: attended}
    - recurrent: [linear: {width: 8, as: fed}]
  stacks: {shared: [rnn, {use: other}]}
"""


def model(text: str = RECIPE) -> Node:
    return parse(text, "r.yaml")


def found(text: str, root: Node | None = None) -> list[str]:
    return [format_path(one.path) for one in select(root or model(), text, schema_generator.load())]


def put(root: Node, *pairs: tuple[str, Any]) -> Any:
    changes = []
    for text, written in pairs:
        changes.append(
            (
                select(root, text, schema_generator.load()),
                parse(f"with: {written}", "s.yaml").value["with"],
            )
        )
    return to_data(replace_blocks(root, changes, schema_generator.load()))["model"]


def test_a_selector_finds_every_block_of_a_kind() -> None:
    assert found("model.encoder..rnn") == [
        "model.encoder[1].repeat.stack[0].residual[0]",
        "model.encoder[2].parallel.branches.left[0]",
        "model.encoder[3].parallel.branches[0][0]",
    ]
    assert found("model.decoder..rnn") == ["model.decoder[0]"]
    assert found("model..rnn") == [
        *found("model.encoder..rnn"),
        "model.decoder[0]",
        "model.stacks.shared[0]",
    ]
    assert found("model..repeat..feed_forward") == [
        "model.encoder[1].repeat.stack[1].residual.stack[0]"
    ]
    assert found("model.encoder[2]..rnn") == ["model.encoder[2].parallel.branches.left[0]"]


def test_a_selector_finds_blocks_by_name_if_none_is_of_that_kind() -> None:
    assert found("model.decoder..attended") == ["model.decoder[1]"]
    assert found("model.encoder..wide") == ["model.encoder[2].parallel.branches.right[0]"]
    named = model(
        "model: {encoder: [{linear: {width: 8, as: norm}}, norm], decoder: [{linear: {width: 8, as:"
        " norm}}]}"
    )
    assert found("model.encoder..norm", named) == ["model.encoder[1]"]
    assert found("model.decoder..norm", named) == ["model.decoder[0]"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("model.encoder", "model.encoder"),
        ("model.encoder[0]", "model.encoder[0]"),
        ("model.encoder.0", "model.encoder[0]"),
        ("model.encoder[0].positions", "model.encoder[0]"),
        ("model.encoder[4].norm", "model.encoder[4]"),
        ("model.encoder[1].repeat.stack", "model.encoder[1].repeat.stack"),
        ("model.encoder[1].repeat.stack[0]", "model.encoder[1].repeat.stack[0]"),
        ("model.encoder[1].repeat.stack[0].residual", "model.encoder[1].repeat.stack[0]"),
        (
            "model.encoder[1].repeat.stack[0].residual.stack",
            "model.encoder[1].repeat.stack[0].residual",
        ),
        (
            "model.encoder[1].repeat.stack[0].residual.stack[1]",
            "model.encoder[1].repeat.stack[0].residual[1]",
        ),
        (
            "model.encoder[1].repeat.stack[1].residual[0]",
            "model.encoder[1].repeat.stack[1].residual.stack[0]",
        ),
        ("model.encoder[2].parallel.branches.right", "model.encoder[2].parallel.branches.right"),
        ("model.encoder[3].parallel.branches[1]", "model.encoder[3].parallel.branches[1]"),
        ("model.decoder[2].recurrent[0]", "model.decoder[2].recurrent[0]"),
        ("model.stacks.shared", "model.stacks.shared"),
    ],
)
def test_a_path_selects_one_block_or_stack(text: str, place: str) -> None:
    assert found(text) == [place]


@pytest.mark.parametrize(
    "text", ["model.encoder[9]", "model.encoder[0].norm", "model.encodr", "model..lstm", "model"]
)
def test_a_selector_without_match_finds_nothing(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "text", ["", "..rnn", "training.seed", "model.encoder..", "model..rnn[0]", "model. encoder"]
)
def test_invalid_selectors_are_not_parsed(text: str) -> None:
    assert parse_selector(text) is None


def test_a_block_a_list_and_a_stack_can_be_substituted() -> None:
    root = model()
    before = to_data(root)["model"]
    after = put(root, ("model.encoder..rnn", "{conv: 3}"))
    assert after["encoder"][1]["repeat"]["stack"][0] == {"residual": [{"conv": 3}, "dropout"]}
    assert after["encoder"][2]["parallel"]["branches"]["left"] == [{"conv": 3}]
    assert after["encoder"][3]["parallel"]["branches"] == [[{"conv": 3}], ["identity"]]
    assert after["decoder"] == before["decoder"]
    assert put(root, ("model.encoder[0]", "[norm, {scale: 2.0}]"))["encoder"][:3] == [
        "norm",
        {"scale": 2.0},
        before["encoder"][1],
    ]
    assert put(root, ("model.decoder", "[rnn, norm]"))["decoder"] == ["rnn", "norm"]
    assert put(root, ("model.decoder", "{rnn: lstm}"))["decoder"] == [{"rnn": "lstm"}]
    assert put(root, ("model.encoder[1].repeat.stack", "[rnn]"))["encoder"][1]["repeat"] == {
        "times": 2,
        "stack": ["rnn"],
    }
    assert to_data(root)["model"] == before


def test_a_substituted_block_takes_over_the_name() -> None:
    root = model()
    assert put(root, ("model.decoder[0]", "conv"))["decoder"][0] == {"conv": {"as": "read"}}
    assert put(root, ("model.decoder[0]", "{conv: 5}"))["decoder"][0] == {
        "conv": {"kernel": 5, "as": "read"}
    }
    assert put(root, ("model.decoder[0]", "{conv: {as: new}}"))["decoder"][0] == {
        "conv": {"as": "new"}
    }
    assert put(root, ("model.decoder[0]", "[norm, rnn]"))["decoder"][:2] == [
        "norm",
        {"rnn": {"as": "read"}},
    ]


def test_identity_removes_the_block_and_the_residual_around_it() -> None:
    root = model()
    after = put(root, ("model.encoder..rnn", "identity"))
    assert after["encoder"][1]["repeat"]["stack"] == [
        {"residual": {"stack": [{"feed_forward": 8}], "norm": "pre"}}
    ]
    assert after["encoder"][2]["parallel"]["branches"]["left"] == []
    assert (
        put(root, ("model.encoder[0]", "identity"))["encoder"]
        == to_data(root)["model"]["encoder"][1:]
    )
    inner = model("model: {decoder: [{residual: [{residual: [rnn]}, norm]}, norm]}")
    assert put(inner, ("model.decoder..rnn", "identity")) == {"decoder": ["norm"]}


def test_all_changes_are_made_at_once() -> None:
    root = model("model: {decoder: [rnn, conv, norm]}")
    pairs = (
        ("model.decoder[0]", "identity"),
        ("model.decoder[1]", "[rnn, rnn]"),
        ("model.decoder[2]", "{conv: 3}"),
    )
    assert put(root, *pairs) == {"decoder": ["rnn", "rnn", {"conv": 3}]}
    assert put(root, *reversed(pairs)) == {"decoder": ["rnn", "rnn", {"conv": 3}]}
    swapped = (("model.decoder..rnn", "conv"), ("model.decoder..conv", "rnn"))
    assert put(root, *swapped) == {"decoder": ["conv", "rnn", "norm"]}


def test_overlapping_matches_are_found() -> None:
    def at(*path: str | int) -> list[Match]:
        return [Match(("model", *path), model(), is_stack=False)]

    assert find_overlap(at("decoder", 1), at("decoder", 2)) is None
    assert find_overlap(at("decoder", 1), at("decoder", 1)) == ("model", "decoder", 1)
    assert (
        find_overlap(at("decoder"), at("decoder", 1))
        == find_overlap(at("decoder", 1), at("decoder"))
        == ("model", "decoder", 1)
    )


def test_a_substituted_block_has_the_places_of_its_file() -> None:
    block = parse("with: {a: {conv: 3}}", "s.yaml").value["with"].value["a"]
    rules = schema_generator.load()
    root = replace_blocks(model(), [(select(model(), "model.decoder[0]", rules), block)], rules)
    item = root.value["model"].value["decoder"].value[0]
    assert (item.mark.file, item.value["conv"].value["kernel"].mark.file) == ("s.yaml", "s.yaml")
    assert root.value["model"].value["decoder"].value[1].mark.file == "r.yaml"

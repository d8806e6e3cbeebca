"""Differences of hand-made pairs of models, and of recipes with a single edit."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from composer.comparison.changes import Change, model_changes, setting_changes
from composer.recipe.canonical_form import fill_defaults
from composer.recipe.recipe import Recipe, load
from composer.recipe.tree import TreeNode, match_trees, stack_trees

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    path for path in ROOT.glob("recipes/**/*.yaml") if not {"fragments", "sweeps"} & set(path.parts)
)
OTHER = {"linear": {"width": 77, "activation": "none"}}


def recipe(folder: Path, model: str, rest: str = "", name: str = "r.yaml") -> Recipe:
    inner = model.strip().replace("\n", "\n  ")
    (folder / name).write_text(
        f"recipe: 1\ndata: {{generate: copy}}\nmodel:\n  width: 16\n  {inner}\n{rest}", "utf-8"
    )
    return load(folder / name)


def change_texts(folder: Path, one: str, other: str) -> list[str]:
    """The texts of what differs between two models."""
    pair = recipe(folder, one, name="one.yaml"), recipe(folder, other, name="other.yaml")
    return [change.text() for change in model_changes(*pair)]


# ------------------------------------------------------------------------------------------- by
# hand

PAIRS = {
    "another block": (
        "decoder: [positions, {repeat: {times: 2, stack: [{residual: [{self_attention: 4}]}]}}]",
        "decoder: [positions, {repeat: {times: 2, stack: [{residual: [rnn]}]}}]",
        ["decoder[1].repeat.stack[0].residual[0]: self_attention(heads=4) -> rnn(lstm)"],
    ),
    "a setting": (
        "decoder: [{repeat: {times: 3, stack: [rnn]}}]",
        "decoder: [{repeat: {times: 6, stack: [rnn]}}]",
        ["decoder[0].repeat.times: 3 -> 6"],
    ),
    "what is inserted changes nothing after it": (
        "decoder: [rnn, {linear: 8}, norm]",
        "decoder: [{dropout: 0.5}, rnn, {linear: 8}, norm]",
        ["decoder[0]: inserted dropout(rate=0.5)"],
    ),
    "a stack that goes": (
        "decoder: [rnn, {residual: [{linear: 16}, norm]}, norm]",
        "decoder: [rnn, norm]",
        ["decoder[1]: removed residual[linear(width=16), norm(layer)]"],
    ),
    "moved": (
        "decoder: [norm, rnn, {linear: 8}]",
        "decoder: [rnn, {linear: 8}, norm]",
        ["decoder[0]: norm(layer) moved to decoder[2]"],
    ),
    "wrapped": (
        "decoder: [rnn, norm]",
        "decoder: [{residual: {stack: [rnn], norm: pre}}, norm]",
        ["decoder[0]: rnn now inside residual(norm=pre)"],
    ),
    "unwrapped": (
        "decoder: [{residual: {stack: [rnn, {linear: 16}], norm: pre}}, norm]",
        "decoder: [rnn, {linear: 16}, norm]",
        ["decoder[0]: rnn, linear no longer inside residual(norm=pre)"],
    ),
    "another wrapper": (
        "decoder: [{residual: [rnn]}, norm]",
        "decoder: [{highway: [rnn]}, norm]",
        ["decoder[0]: residual -> highway"],
    ),
    "into the loop": (
        "decoder: [{repeat: {times: 2, stack: [rnn]}}, {linear: 16}, norm]",
        "decoder: [{repeat: {times: 2, stack: [rnn, {linear: 16}]}}, norm]",
        ["decoder[1]: linear(width=16) moved to decoder[0].repeat.stack[1]"],
    ),
    "a branch": (
        "decoder: [{parallel: {branches: {a: [rnn], b: [norm]}}}]",
        "decoder: [{parallel: {branches: {a: [rnn], b: [norm], c: [identity]}}}]",
        ["decoder[0].parallel.branches.c: inserted c: [identity]"],
    ),
    "a name": ("decoder: [rnn]", "decoder: [{rnn: {as: top}}]", ["decoder[0].rnn: now named top"]),
    "no name": (
        "decoder: [{rnn: {as: top}}]",
        "decoder: [rnn]",
        ["decoder[0].rnn: no longer named top"],
    ),
    "another name": (
        "decoder: [{rnn: {as: top}}]",
        "decoder: [{rnn: {as: end}}]",
        ["decoder[0].rnn: named end, was top"],
    ),
    "several blocks in another": (
        "decoder: [{residual: [rnn]}, {residual: [{linear: 16}]}, norm]",
        (
            "decoder: [{repeat: {times: 2, stack: [{residual: [rnn]}, {residual: [{linear: 16}]},"
            " norm]}}]"
        ),
        ["decoder[0]: 2 x residual, norm now inside repeat(times=2)"],
    ),
    "a number with many digits": (
        "decoder: [{dropout: 0.1234567}]",
        "decoder: [{dropout: 0.1234568901}]",
        ["decoder[0].dropout.rate: 0.1234567 -> 0.1234568901"],
    ),
    "an encoder": (
        "decoder: [rnn]",
        "encoder: [rnn]\ndecoder: [rnn]",
        ["encoder: inserted [rnn(lstm)]"],
    ),
    "an encoder by another name": (
        "encoders: {left: [rnn], right: [norm]}\ndecoder: [rnn]",
        "encoders: {west: [norm], left: [rnn]}\ndecoder: [rnn]",
        ["encoders.right: now called encoders.west"],
    ),
    "shelved stacks": (
        "stacks: {s: [rnn]}\ndecoder: [{use: s}]",
        "stacks: {s: [rnn, norm]}\ndecoder: [{use: s}]",
        ["stacks.s[1]: inserted norm(layer)"],
    ),
    "nothing": (
        "residual: {norm: pre}\ndecoder: [{residual: [rnn]}]",
        "decoder: [{residual: {stack: [{rnn: {cell: lstm}}], norm: pre}}]",
        [],
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_changes_of_a_model_are_printed_as_text(name: str, tmp_path: Path) -> None:
    one, other, expected = PAIRS[name]
    assert change_texts(tmp_path, one, other) == expected


def test_models_with_little_in_common_are_printed_in_full(tmp_path: Path) -> None:
    one = (
        "decoder: [rnn, {residual: [rnn]}, {repeat: {times: 2, stack: [rnn, norm]}}, {linear: 3},"
        " norm]"
    )
    other = (
        "decoder: [{dropout: 0.5}, positions, {highway: [self_attention, feed_forward]},"
        " self_attention, reverse]"
    )
    (change,) = model_changes(
        recipe(tmp_path, one, name="a.yaml"), recipe(tmp_path, other, name="b.yaml")
    )
    assert (change.kind, change.path) == ("replaced", "decoder")
    assert [item.split("(")[0] for item in change.after] == [
        "dropout",
        "positions",
        "highway[self_attention",
        "self_attention",
        "reverse",
    ]


def test_settings_of_the_other_sections_are_compared(tmp_path: Path) -> None:
    one = recipe(
        tmp_path,
        "decoder: [rnn]",
        "training: {optimizer: {adam: {learning_rate: 0.001}}, max_steps: 5}\n",
    )
    other = recipe(
        tmp_path,
        "decoder: [rnn]",
        "training: {optimizer: {sgd: 0.1}, max_steps: 5, schedule: cosine}\n"
        "decoding: {beam: 4}\ntrainer: {devices: 2}\n",
    )
    result = {change.text(): change.section for change in setting_changes(one, other)}
    assert result["optimizer: adam(learning_rate=0.001) -> sgd(learning_rate=0.1)"] == "training"
    assert "decoding" in result.values()
    assert result["devices: auto -> 2"] == "trainer"
    assert len(result) == 4


def random_forest(dice: random.Random, depth: int = 3) -> tuple[TreeNode, ...]:
    def node() -> TreeNode:
        inner = random_forest(dice, depth - 1) if depth else ()
        return TreeNode(
            "block", dice.choice(["rnn", "norm", "residual"]), (), {"x": dice.choice([1, 2])}, inner
        )

    return tuple(node() for _ in range(dice.randint(0, 3)))


def test_a_node_has_one_match_and_what_is_in_it_matches_what_is_in_that() -> None:
    dice = random.Random(3)
    for _ in range(300):
        one, other = (TreeNode("root", "", (), {}, random_forest(dice)) for _ in "ab")
        pairs = match_trees(one, other)
        for side, root in enumerate((one, other)):
            nodes = [id(pair[side]) for pair in pairs]
            assert len(nodes) == len(set(nodes))
            assert {id(node) for node in root.descendants()} >= set(nodes)
        partner = {id(a): id(b) for a, b in pairs}
        for a, b in pairs:
            inner = {id(node) for node in b.descendants()}
            assert all(
                partner[id(node)] in inner for node in a.descendants() if id(node) in partner
            )
        assert len(match_trees(one, one)) == sum(1 for _ in one.descendants())


# ------------------------------------------------------------------------------------------- any
# single edit


def stacks(value: Any, blocks: set[str]) -> Iterator[list[Any]]:
    """Every list of blocks inside a canonical model."""
    if isinstance(value, list):
        if value and all(
            isinstance(item, dict) and len(item) == 1 and set(item) <= blocks for item in value
        ):
            yield value
        for item in value:
            yield from stacks(item, blocks)
    elif isinstance(value, dict):
        for item in value.values():
            yield from stacks(item, blocks)


def apply_edit(dice: random.Random, here: list[Any], kind: str) -> bool:
    """One edit of a stack; whether it could be made."""
    at = dice.randrange(len(here))
    if kind == "inserted":
        here.insert(at, copy.deepcopy(OTHER))
    elif kind == "removed" and len(here) > 1:
        del here[at]
    elif kind == "replaced" and "linear" not in json.dumps(
        here[at]
    ):  # which could have been taken out of it
        here[at] = copy.deepcopy(OTHER)
    elif kind == "wrapped":
        here[at] = {"residual": {"stack": [here[at]], "scale": 0.123}}
    elif kind == "set":
        ((_, settings),) = here[at].items()
        settings["as"] = "another_name"
    elif kind == "moved" and len(here) > 2 and here[at] != here[(at + 1) % len(here)]:
        here.insert(at + 1 if at == 0 else 0, here.pop(at))
    else:
        return False
    return True


@pytest.mark.parametrize("kind", ["inserted", "removed", "replaced", "wrapped", "set", "moved"])
def test_a_single_edit_gives_one_change(kind: str) -> None:
    """The edits are made in the canonical recipes, whose defaults all stand there."""
    dice, edits = random.Random(kind), 0
    for path in dice.sample(RECIPES, 35):
        one = load(path)
        blocks = {
            key.removeprefix("block.") for key in one.rules["$defs"] if key.startswith("block.")
        }
        other = replace(one, canonical=copy.deepcopy(one.canonical))
        if not apply_edit(dice, dice.choice(list(stacks(other.canonical["model"], blocks))), kind):
            continue
        edits += 1
        result = model_changes(one, other)
        assert [change.kind for change in result] == [kind], (
            f"{path}: {[change.text() for change in result]}"
        )
        assert setting_changes(one, other) == []
        check(result[0], kind)
    assert edits > 5


def check(change: Change, kind: str) -> None:
    expected = {
        "inserted": ("after", "linear(width=77)"),
        "replaced": ("after", "linear(width=77)"),
        "wrapped": ("after", "residual(scale=0.123)"),
        "set": ("after", "another_name"),
    }
    if kind in expected:
        field, text = expected[kind]
        assert getattr(change, field) in (text, [text])  # a list where all of a stack was one block


@pytest.mark.parametrize("section", ["training", "data", "decoding", "trainer"])
def test_a_single_setting_gives_one_change(section: str) -> None:
    one = load(ROOT / "recipes" / "quickstart.yaml")
    places = list(scalars(one.canonical[section]))
    assert places
    for path in places:
        canonical = copy.deepcopy(one.canonical)
        inner = canonical[section]
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = "another"
        (change,) = setting_changes(one, replace(one, canonical=canonical))
        assert (change.section, change.after) == (section, "another")
        assert change.setting.endswith(str(path[-1]))


def scalars(value: Any) -> Iterator[tuple[str, ...]]:
    """The paths of all that is no mapping."""
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield from ((key, *path) for path in scalars(item))
        else:
            yield (key,)


def test_a_recipe_equals_itself_and_its_resolved_form() -> None:
    for path in RECIPES[::4]:
        one = load(path)
        name = one.name
        other = replace(one, canonical=fill_defaults(copy.deepcopy(one.explicit), one.rules, name))
        assert (setting_changes(one, other), model_changes(one, other)) == ([], [])


def test_the_diff_of_b_and_a_mirrors_that_of_a_and_b() -> None:
    """What is inserted one way is removed the other; the same settings change."""
    turned = {
        "inserted": "removed",
        "removed": "inserted",
        "wrapped": "unwrapped",
        "unwrapped": "wrapped",
    }
    names = [
        "table5_self_attention_to_none",
        "table5_self_attention_to_self_attention",
        "table4_cnn_glu_norm",
    ]
    loaded = [load(ROOT / "recipes" / "domhan" / f"{name}.yaml") for name in names]
    for one, other in product(loaded, loaded):
        there = sorted(change.kind for change in model_changes(one, other))
        back = sorted(turned.get(change.kind, change.kind) for change in model_changes(other, one))
        assert there == back


def test_every_block_of_a_recipe_is_a_node_of_its_tree() -> None:
    one = load(ROOT / "recipes" / "papers" / "vaswani2017_base.yaml")
    words = [node.word for node in stack_trees(one)["decoder"].descendants()]
    assert words == [
        "positions",
        "dropout",
        "repeat",
        "residual",
        "self_attention",
        "residual",
        "cross_attention",
        "residual",
        "feed_forward",
    ]


def test_other_metrics_are_a_change(tmp_path: Path) -> None:
    texts = ("", "evaluation: {metrics: [bleu, ter]}")
    one, other = (recipe(tmp_path, "decoder: [rnn]", text, f"{bool(text)}.yaml") for text in texts)
    (change,) = (change for change in setting_changes(one, other) if change.section == "evaluation")
    assert "[bleu, ter]" in change.text()

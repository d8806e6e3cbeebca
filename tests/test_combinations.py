"""What a combination of blocks cannot do is refused at its line, with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_recipes import loaded, places

from composer.errors import RecipeError

RECIPE = """recipe: 1
data: {parallel: {train: {source: a, target: b}}, tokenizer: char}
model:
  width: 8
  encoder:
    - rnn: {layers: 2, as: top}
    - conv: {stride: 2, as: short}
    - pool: {how: mean, as: summary}
    - identity: {as: whole}
  decoder:
    - linear: {as: before}
    - @
    - linear: {as: after}
"""
"""The faulty block stands in line 12; it begins in column 7."""

REFUSED = {
    "prev outside of any loop": (
        "concat: prev.after", "12:15:name",
        "`prev.after` is `after` one step before, and only a `recurrent` has steps"),
    "prev of what comes later": (
        "recurrent: [{concat: prev.after}, {linear: {as: made}}]", "12:28:name",
        "`after` is not made in this `recurrent`, so it has no step before"),
    "prev of what came earlier": (
        "recurrent: [{concat: prev.before}, {linear: {as: made}}]", "12:28:name",
        "`before` is not made in this `recurrent`, so it has no step before"),
    "prev of nothing": (
        "recurrent: [{concat: prev.mad}, {linear: {as: made}}]", "12:28:name",
        "nothing in this `recurrent` is called `mad`; did you mean `prev.made`?"),
    "prev as a name": ("linear: {as: prev}", "12:20:name", "`prev` is a word of the language"),
    "a width that never settles": (
        "recurrent: [{concat: {of: prev.made, as: made}}]", "12:7:width", "`made` is made of `prev.made`"),
    "both directions in a loop": (
        "recurrent: [{rnn: {bidirectional: true}}]", "12:26:causality", "may not read the future"),
    "a copied state of other layers": (
        "rnn: {layers: 3, initial_state: {copy: encoder.top}}", "12:46:setting",
        "`encoder.top` leaves the state of an `rnn` with layers 2, and this starts from"),
    "a local window without a query that moves": (
        "cross_attention: {from: encoder.short, score: general, local: predicted, query: encoder.summary}",
        "12:69:setting", "a local window needs a query for each position"),
    "a location score without a maximal length": (
        "cross_attention: {from: encoder.short, score: location}", "12:53:setting", "nothing says for how many"),
    "a concatenation of different lengths": (
        "concat: encoder.top", "12:15:pace", "`encoder.top` has the positions of an encoder"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_combination_is_refused_where_it_stands(case: str, tmp_path: Path) -> None:
    block, place, message = REFUSED[case]
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, RECIPE.replace("@", block)).plan()
    first = raised.value.faults[0]
    assert places([first])[0].startswith(place)
    assert message in first.message
    assert first.hint


def test_a_concatenation_of_different_lengths_is_refused_in_an_encoder(tmp_path: Path) -> None:
    text = RECIPE.replace("- identity: {as: whole}", "- concat: top").replace("- @", "- cross_attention")
    with pytest.raises(RecipeError, match="`top` has 1 positions per token, and the stream here 0"):
        loaded(tmp_path, text).plan()


def test_the_same_recipe_with_a_loop_is_accepted(tmp_path: Path) -> None:
    block = "recurrent: [{concat: prev.made}, {rnn: {as: made}}, {cross_attention: {from: encoder.short}}]"
    rows = {row.path: row.loops for row in loaded(tmp_path, RECIPE.replace("@", block)).plan().rows if row.loops}
    assert rows == {
        "model.decoder[1].recurrent[0].concat": "reads prev.made",
        "model.decoder[1].recurrent[1].rnn": "makes prev.made",
    }


def test_a_fault_inside_branches_of_a_loop_is_told_alone(tmp_path: Path) -> None:
    branches = "{one: [{linear: {as: given}}], two: [{linear: {width: 3}}]}"
    block = f"recurrent: [{{concat: prev.given}}, {{parallel: {{branches: {branches}}}}}]"
    with pytest.raises(RecipeError, match="needs one width"):
        loaded(tmp_path, RECIPE.replace("@", block)).plan()

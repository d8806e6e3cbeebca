"""Slips of the keyboard: the fault is at the slip, not where the parser is lost, and its fix is the line as meant."""

from __future__ import annotations

import pytest

from composer.errors import RecipeError, did_you_mean
from composer.recipe.recipe import load_text
from composer.recipe.yaml_reader import read_bytes

RECIPE = """recipe: 1
name: mine
model:
  width: 8
  encoder:
    - rnn:
        cell: lstm
        width: 8
    - norm
  decoder:
    - rnn: {cell: lstm, width: 8}
    - residual: [{cross_attention: {heads: 2}}]
    - dropout: 0.1
data:
  generate: {copy: {symbols: 4}}
training:
  optimizer: {adam: {learning_rate: 1e-3}}
  max_steps: 10
"""

SLIPS = [
    # a bracket that is open where a list goes on below
    ("  decoder:\n", "  decoder: {\n", "10:12", "close it with `}`"),
    ("  decoder:\n", "  decoder: [gru,\n", "10:12", "close it with `]`"),
    # a colon or a space that is missing, at every level
    ("recipe: 1", "recipe:1", "1:7", "write `recipe: 1`"),
    ("name: mine", "name:mine", "2:5", "write `name: mine`"),
    ("  width: 8\n", "  width:8\n", "4:8", "write `width: 8`"),
    ("        cell: lstm", "        cell:lstm", "7:13", "write `cell: lstm`"),
    ("lstm\n        width: 8", "lstm\n        width:8", "8:14", "write `width: 8`"),
    ("{cell: lstm,", "{cell:lstm,", "11:13", "write `cell: lstm`"),
    ("- dropout: 0.1", "- dropout:0.1", "13:7", "write `dropout: 0.1`"),
    ("max_steps: 10", "max_steps:10", "18:12", "write `max_steps: 10`"),
    ("  width: 8\n", "  width :8\n", "4:9", "write `width: 8`"),
    ("  width: 8\n", "  width = 8\n", "4:9", "write `width: 8`"),
    ("  width: 8\n", "  width 8\n", "4:3", "write `width: 8`"),
    ("model:", "model", "3:1", "write `model:`"),
    ("- rnn:\n", "- rnn\n", "6:7", "write `rnn:`"),
    ("{cell: lstm,", "{cell lstm,", "11:13", "write `cell: lstm`"),
    ("    - residual", "    -residual", "12:5", "write `- residual: [{cross_attention: {heads: 2}}]`"),
    ("    - norm", "    -norm", "9:5", "write `- norm`"),
    ("    - dropout: 0.1", "    -flatten", "13:5", "write `- flatten`"),
    # a colon that is missing before a bracket
    ("    - residual: [", "    - residual [", "12:7", "write `residual: [{cross_attention: {heads: 2}}]`"),
    ("{cross_attention: {", "{cross_attention {", "12:19", "write `cross_attention: {...}`"),
    ("{cross_attention: {", "{cross_attention:{", "12:34", "write `: `"),
    ("{cross_attention: {", '{"cross_attention" {', "12:19", 'write `"cross_attention": {...}`'),
    ("{cross_attention: {", "{cross_attention\t= {", "12:19", "write `cross_attention: {...}`"),
    ("rnn: {cell: lstm, width: 8}", "rnn: (cell: lstm, width: 8)", "11:12", "write `rnn: {cell: lstm, width: 8}`"),
    # a path with indices
    ("cell: lstm, ", "cell: lstm, as: rnn[0].cell, ", "11:29", 'write `"rnn[0].cell"`'),
    ("cell: lstm, ", "rnn[0].cell[1]: 3, ", "11:13", 'write `"rnn[0].cell[1]"`'),
    # characters that only look right
    ("  width: 8\n", "  width\uff1a 8\n", "4:8", "write `width: 8`"),
    ("model:", "model\uff1a", "3:6", "write `model:`"),
    ("{cell: lstm,", "{cell\uff1a lstm,", "11:13", "write `cell: lstm`"),
    ("lstm, width", "lstm\uff0c width", "11:23", "write `,`"),
    ("- norm", "\u2013 norm", "9:5", "write `- norm`"),
    ("model:\n", "extends:\n  \uff0d base.yaml\n  \uff0d other.yaml\nmodel:\n", "4:3", "write `- base.yaml`"),
    ("- norm", "\u2022 norm", "9:5", "write `- norm`"),
    ("- norm", "* norm", "9:5", "write `- norm`"),
    ("- norm", "-\u00a0norm", "9:6", "write plain spaces"),
    ("  width: 8\n", "\u00a0\u00a0width: 8\n", "4:1", "write plain spaces"),
    ("  width: 8\n", "  width:\u00a08\n", "4:9", "write plain spaces"),
    ("  width: 8\n", "  width: \uff18\n", "4:10", "write `8`"),
    ("  width: 8\n", "  width: 8\u200b\n", "4:10", "write `8`"),
    ("- norm", "- n\u043erm", "9:7", "write `norm`"),
    # spellings of other languages
    ("- rnn: {", "- RNN: {", "11:7", "write `rnn`"),
    ("cell: lstm\n", "cell: LSTM\n", "7:15", "write `lstm`"),
    ("cross_attention", "CrossAttention", "12:19", "write `cross_attention`"),
    ("max_steps", "MAX_STEPS", "18:3", "write `max_steps`"),
    ("  width: 8\n", "  width: 8;\n", "4:10", "write `8`"),
    ("  width: 8\n", "  // wide\n  width: 8\n", "4:3", "begin a comment with `#`"),
    ("recipe: 1", "```yaml\nrecipe: 1", "1:1", "remove it"),
    ("  width: 8\n", "<<<<<<< HEAD\n  width: 8\n", "4:1", "remove it"),
    # brackets and quotes
    ("heads: 2}}]", "heads: 2}}", "12:17", "close it with `]`"),
    ("lstm, width: 8}", "lstm, width: 8", "11:12", "close it with `}`"),
    ("heads: 2}}]", "heads: 2}})", "12:47", "write `]`"),
    ("heads: 2}}]", "heads: 2}}]]", "12:48", "remove it"),
    ("width: 8}", "width: 8},", "11:34", "remove it"),
    ("lstm, width", "lstm width", "11:24", "write `, width:`"),
    ("cell: lstm\n", 'cell: "lstm\n', "7:15", "close it"),
    # indentation
    ("  width: 8\n", "   width: 8\n", "4:4", "indent it by 2"),
    ("  width: 8\n", " width: 8\n", "4:2", "indent it by 2"),
    ("  encoder", "   encoder", "5:4", "indent it by 2"),
    ("    - norm", "     - norm", "9:6", "indent it by 4"),
    ("    - norm", "   - norm", "9:4", "indent it by 4"),
    ("        cell", "         cell", "7:10", "indent it by 8"),
    ("name", " name", "2:2", "indent it by 0"),
    ("  width: 8\n", "\twidth: 8\n", "4:1", "indent with spaces"),
]


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize(("right", "wrong", "place", "fix"), SLIPS)
def test_a_slip_is_reported_where_it_is(right: str, wrong: str, place: str, fix: str, line_break: str) -> None:
    assert right in RECIPE
    with pytest.raises(RecipeError) as caught:
        load_text(RECIPE.replace(right, wrong, 1).replace("\n", line_break))
    (fault,) = caught.value.faults
    assert f"{fault.line}:{fault.column}" == place
    assert fix in fault.hint


def test_the_recipe_without_slips_loads() -> None:
    assert load_text(RECIPE).name == "mine"


def test_a_quote_that_another_closes() -> None:
    with pytest.raises(RecipeError) as caught:
        load_text(RECIPE.replace("cell: lstm\n", 'cell: "lstm\n').replace("max_steps: 10", 'max_steps: "10"'))
    assert "r.yaml:7:15: " in caught.value.render().replace("recipe.yaml", "r.yaml")
    assert "closed only in line 18" in str(caught.value)


def test_an_empty_section_is_not_to_be_removed() -> None:
    with pytest.raises(RecipeError) as caught:
        load_text("recipe: 1\nmodel:\ndata: {generate: {copy: {symbols: 4}}}\n")
    (fault,) = caught.value.faults
    assert (fault.line, fault.column) == (2, 1)
    assert fault.hint == "write its keys below it, indented: `width`, ..."


@pytest.mark.parametrize(
    ("word", "suffix"),
    [
        ("RNN", "; did you mean `rnn`?"),
        ("r-n-n", "; did you mean `rnn`?"),
        ("rn\u043f", "; it has the character `\u043f` (U+043F, Cyrillic small letter pe); did you mean `rnn`?"),
        ("rn\u200bn", "; it has the character U+200B, Zero width space; did you mean `rnn`?"),
    ],
)
def test_a_letter_that_only_looks_right_is_named(word: str, suffix: str) -> None:
    assert did_you_mean(word, ["rnn", "norm"]) == suffix


@pytest.mark.parametrize(
    ("encoding", "name"),
    [(f"utf-{bits}{order}", f"UTF-{bits}") for bits in (16, 32) for order in ("", "-le", "-be")],
)
def test_wide_encodings_are_told_apart(encoding: str, name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_bytes(RECIPE.encode(encoding), "recipe.yaml")
    assert f"this text is {name}" in str(caught.value)

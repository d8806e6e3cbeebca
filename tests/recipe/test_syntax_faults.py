"""Slips of the keyboard: the fault is at the slip, not where the parser is lost, and its fix is the
line as meant.
"""

from __future__ import annotations

import pytest

from composer.errors import RecipeError
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
    ("  decoder:\n", "  decoder: {\n", "10:12"),
    ("  decoder:\n", "  decoder: [gru,\n", "10:12"),
    # a colon or a space that is missing, at every level
    ("recipe: 1", "recipe:1", "1:7"),
    ("name: mine", "name:mine", "2:5"),
    ("  width: 8\n", "  width:8\n", "4:8"),
    ("        cell: lstm", "        cell:lstm", "7:13"),
    ("lstm\n        width: 8", "lstm\n        width:8", "8:14"),
    ("{cell: lstm,", "{cell:lstm,", "11:13"),
    ("- dropout: 0.1", "- dropout:0.1", "13:7"),
    ("max_steps: 10", "max_steps:10", "18:12"),
    ("  width: 8\n", "  width :8\n", "4:9"),
    ("  width: 8\n", "  width = 8\n", "4:3"),
    ("  width: 8\n", "  width 8\n", "4:3"),
    ("model:", "model", "3:1"),
    ("- rnn:\n", "- rnn\n", "6:7"),
    ("{cell: lstm,", "{cell lstm,", "11:13"),
    ("    - residual", "    -residual", "12:5"),
    ("    - norm", "    -norm", "9:5"),
    ("    - dropout: 0.1", "    -flatten", "13:5"),
    # a colon that is missing before a bracket
    ("    - residual: [", "    - residual [", "12:7"),
    ("{cross_attention: {", "{cross_attention {", "12:19"),
    ("{cross_attention: {", "{cross_attention:{", "12:34"),
    ("{cross_attention: {", '{"cross_attention" {', "12:19"),
    ("{cross_attention: {", "{cross_attention\t= {", "12:19"),
    ("rnn: {cell: lstm, width: 8}", "rnn: (cell: lstm, width: 8)", "11:17"),
    ("cell: lstm, ", "cell: lstm, as: rnn[0].cell, ", "11:29"),
    ("cell: lstm, ", "rnn[0].cell[1]: 3, ", "11:13"),
    # characters that only look right
    ("  width: 8\n", "  width\uff1a 8\n", "4:8"),
    ("model:", "model\uff1a", "3:6"),
    ("{cell: lstm,", "{cell\uff1a lstm,", "11:13"),
    ("lstm, width", "lstm\uff0c width", "11:23"),
    ("- norm", "\u2013 norm", "9:5"),
    ("model:\n", "extends:\n  \uff0d base.yaml\n  \uff0d other.yaml\nmodel:\n", "4:3"),
    ("- norm", "\u2022 norm", "9:5"),
    ("- norm", "* norm", "9:6"),
    ("- norm", "-\u00a0norm", "9:6"),
    ("  width: 8\n", "\u00a0\u00a0width: 8\n", "4:1"),
    ("  width: 8\n", "  width:\u00a08\n", "4:9"),
    ("  width: 8\n", "  width: \uff18\n", "4:10"),
    ("  width: 8\n", "  width: 8\u200b\n", "4:10"),
    ("- norm", "- n\u043erm", "9:7"),
    ("- rnn: {", "- RNN: {", "11:7"),
    ("cell: lstm\n", "cell: LSTM\n", "7:15"),
    ("cross_attention", "CrossAttention", "12:19"),
    ("max_steps", "MAX_STEPS", "18:3"),
    ("  width: 8\n", "  width: 8;\n", "4:10"),
    ("recipe: 1", "```yaml\nrecipe: 1", "1:1"),
    # brackets and quotes
    ("heads: 2}}]", "heads: 2}}", "12:17"),
    ("lstm, width: 8}", "lstm, width: 8", "11:12"),
    ("heads: 2}}]", "heads: 2}})", "12:47"),
    ("heads: 2}}]", "heads: 2}}]]", "12:48"),
    ("width: 8}", "width: 8},", "11:34"),
    ("lstm, width", "lstm width", "11:24"),
    ("cell: lstm\n", 'cell: "lstm\n', "7:15"),
    # indentation
    ("  width: 8\n", "   width: 8\n", "4:4"),
    ("  width: 8\n", " width: 8\n", "4:2"),
    ("  encoder", "   encoder", "5:4"),
    ("    - norm", "     - norm", "9:6"),
    ("    - norm", "   - norm", "9:4"),
    ("        cell", "         cell", "7:10"),
    ("name", " name", "2:2"),
    ("  width: 8\n", "\twidth: 8\n", "4:1"),
]


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize(("right", "wrong", "place"), SLIPS)
def test_a_slip_is_reported_where_it_is(
    right: str, wrong: str, place: str, line_break: str
) -> None:
    assert right in RECIPE
    with pytest.raises(RecipeError) as caught:
        load_text(RECIPE.replace(right, wrong, 1).replace("\n", line_break))
    (fault,) = caught.value.faults
    assert f"{fault.line}:{fault.column}" == place
    assert fault.hint


def test_the_recipe_without_slips_loads() -> None:
    assert load_text(RECIPE).name == "mine"


def test_a_quote_that_another_closes() -> None:
    with pytest.raises(RecipeError) as caught:
        load_text(
            RECIPE.replace("cell: lstm\n", 'cell: "lstm\n').replace(
                "max_steps: 10", 'max_steps: "10"'
            )
        )
    assert "r.yaml:7:15: " in caught.value.render().replace("recipe.yaml", "r.yaml")
    assert "closed only in line 18" in str(caught.value)


def test_an_empty_section_is_not_to_be_removed() -> None:
    with pytest.raises(RecipeError) as caught:
        load_text("recipe: 1\nmodel:\ndata: {generate: {copy: {symbols: 4}}}\n")
    (fault,) = caught.value.faults
    assert (fault.line, fault.column) == (2, 1)
    assert fault.hint == "write its keys below it, indented"
    assert fault.edit is None


@pytest.mark.parametrize(
    ("encoding", "name"),
    [(f"utf-{bits}{order}", f"UTF-{bits}") for bits in (16, 32) for order in ("", "-le", "-be")],
)
def test_wide_encodings_are_told_apart(encoding: str, name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_bytes(RECIPE.encode(encoding), "recipe.yaml")
    assert f"this text is {name}" in str(caught.value)

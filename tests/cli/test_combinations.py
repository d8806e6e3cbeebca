"""What a combination of blocks cannot do is refused at its line, with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from blocks.core.contract import Block, Context, State
from blocks.linear import Linear
from composer.errors import RecipeError
from composer.model import builder
from tests.small_recipes import SMALL, loaded, places

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
        "concat: prev.after",
        "12:15:name",
        "`prev.after` is `after` one step before, and only a `recurrent` has steps",
    ),
    "prev of what comes later": (
        "recurrent: [{concat: prev.after}, {linear: {as: made}}]",
        "12:28:name",
        "`after` is not made in this `recurrent`, so it has no step before",
    ),
    "prev of what came earlier": (
        "recurrent: [{concat: prev.before}, {linear: {as: made}}]",
        "12:28:name",
        "`before` is not made in this `recurrent`, so it has no step before",
    ),
    "prev of nothing": (
        "recurrent: [{concat: prev.mad}, {linear: {as: made}}]",
        "12:28:name",
        "nothing in this `recurrent` is called `mad`; did you mean `prev.made`?",
    ),
    "prev as a name": ("linear: {as: prev}", "12:20:name", "`prev` is a reserved word"),
    "a width that never settles": (
        "recurrent: [{concat: {of: prev.made, as: made}}]",
        "12:7:width",
        "`made` is made of `prev.made`",
    ),
    "both directions in a loop": (
        "recurrent: [{rnn: {bidirectional: true}}]",
        "12:26:causality",
        "may not read the future",
    ),
    "a copied state of other layers": (
        "rnn: {layers: 3, initial_state: {copy: encoder.top}}",
        "12:46:setting",
        "`encoder.top` leaves the state of `rnn` with layers 2, and this starts from",
    ),
    "a local window without a query that moves": (
        (
            "cross_attention: {from: encoder.short, score: general, local: predicted, query:"
            " encoder.summary}"
        ),
        "12:69:setting",
        "a local window needs a query for each position",
    ),
    "a location score without a maximal length": (
        "cross_attention: {from: encoder.short, score: location}",
        "12:53:setting",
        "nothing says for how many",
    ),
    "a concatenation of different lengths": (
        "concat: encoder.top",
        "12:15:length",
        "`encoder.top` has the positions of an encoder",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_combination_is_refused_at_its_place(case: str, tmp_path: Path) -> None:
    block, place, message = REFUSED[case]
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, RECIPE.replace("@", block)).plan()
    first = raised.value.faults[0]
    assert places([first])[0].startswith(place)
    assert message in first.message
    assert first.hint


def test_a_concatenation_of_different_lengths_is_refused_in_an_encoder(tmp_path: Path) -> None:
    text = RECIPE.replace("- identity: {as: whole}", "- concat: top").replace(
        "- @", "- cross_attention"
    )
    with pytest.raises(RecipeError, match="`top` has 1 positions per token, and the stream here 0"):
        loaded(tmp_path, text).plan()


NOTHING_TO_READ = {
    "cross_attention": ("5:13:memory", "there is nothing to read here: no encoder comes before"),
    "{cross_attention: {from: encoder}}": ("5:38:name", "no memory is called `encoder`"),
    "{rnn: {initial_state: encoder}}": ("5:35:name", "no memory is called `encoder`"),
}


@pytest.mark.parametrize("block", NOTHING_TO_READ)
def test_a_decoder_that_reads_an_encoder_needs_one(block: str, tmp_path: Path) -> None:
    place, message = NOTHING_TO_READ[block]
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, SMALL.replace("norm", block)).plan()
    (fault,) = raised.value.faults
    assert places([fault]) == [place]
    assert message in fault.message
    assert fault.hint


def test_the_same_recipe_with_a_loop_is_accepted(tmp_path: Path) -> None:
    block = (
        "recurrent: [{concat: prev.made}, {rnn: {as: made}}, {cross_attention: {from:"
        " encoder.short}}]"
    )
    rows = {
        row.path: row.loops
        for row in loaded(tmp_path, RECIPE.replace("@", block)).plan().rows
        if row.loops
    }
    assert rows == {
        "model.decoder[1].recurrent[0].concat": "reads prev.made",
        "model.decoder[1].recurrent[1].rnn": "makes prev.made",
    }


def test_a_fault_inside_branches_of_a_loop_is_reported_alone(tmp_path: Path) -> None:
    branches = "{one: [{linear: {as: given}}], two: [{linear: {width: 3}}]}"
    block = f"recurrent: [{{concat: prev.given}}, {{parallel: {{branches: {branches}}}}}]"
    with pytest.raises(RecipeError, match="needs one width"):
        loaded(tmp_path, RECIPE.replace("@", block)).plan()


class Crooked(Linear):
    """Says that it leaves as many features as arrive, and leaves one less."""

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, state, context)[0][..., 1:], state


class Failing(Linear):
    """Cannot begin."""

    def start(self, x: Tensor, context: Context) -> State:
        return [][x.shape[0]]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Crooked, "`identity` says that it leaves a sequence, 8 wide, and leaves (1, 32, 7)"),
        (
            Failing,
            "(1, 1, 8) arrives: IndexError: list index out of range (test_combinations.py, line ",
        ),
    ],
)
def test_a_faulty_block_is_named_in_the_fault(
    block: type[Block], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builder.block_class
    monkeypatch.setattr(
        builder, "block_class", lambda name: block if name == "identity" else real(name)
    )
    text = RECIPE.replace("- identity:", "- linear:").replace("@", "residual: [norm, identity]")
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, text).plan()
    (fault,) = raised.value.faults
    assert places([fault]) == ["12:24:block"]
    assert message in fault.message
    assert "check_block" in fault.hint


GRIDS = """recipe: 1
data: {parallel: {train: {source: a, target: b}}, tokenizer: char}
model:
  width: 8
  encoder:
    - grid: {columns: 4, as: image}
    - cgru
    - @
    - !
  decoder:
    - ?
    - cross_attention
"""
"""What follows the grid stands in line 8, what ends the encoder in line 9 and what begins the
decoder in line 11.
"""

GRIDS_REFUSED = {
    "an rnn on a grid": (
        {"@": "rnn"},
        "8:7:kind",
        "`rnn` works on a sequence, and a grid arrives",
        "put `- select_column: 0`, `- sum_columns` or `- flatten` before it",
    ),
    "a cgru after an rnn": (
        {"@": "select_column: 0", "!": "repeat: {times: 2, stack: [rnn, cgru]}"},
        "9:39:kind",
        "`cgru` works on a grid, and a sequence arrives",
        "put `- grid: 4` before it",
    ),
    "a column that is not there": (
        {"@": "select_column: 7"},
        "8:22:setting",
        "there is no column 7: the grid has 4, counted from 0",
        "write a number from 0 to 3",
    ),
    "a grid of a grid": (
        {"@": "grid: 2"},
        "8:7:kind",
        "`grid` works on a sequence, and a grid arrives",
        "select_column: 0",
    ),
    "a grid beside a sequence": (
        {"@": "select_column: 0", "!": "add: image"},
        "9:12:kind",
        "`image` is a grid of 4 columns, and the stream here is a sequence",
        "`grid` makes a grid of a sequence",
    ),
    "a sequence beside a grid": (
        {"@": "add: input"},
        "8:12:kind",
        "`input` is a sequence, and the stream here is a grid of 4 columns",
        "`flatten` a sequence of a grid",
    ),
    "branches of two kinds": (
        {"@": "parallel: [[cgru], [select_column]]"},
        "8:7:kind",
        "end with a grid of 4 columns and a sequence",
        "end all alike",
    ),
    "a repeat as long as the row, without shared parameters": (
        {"@": "repeat: {times: length, stack: [cgru]}"},
        "8:23:setting",
        "cannot have parameters of their own",
        "write `share: true`",
    ),
    "a repeat as long as the row, in a decoder": (
        {"?": "repeat: {times: length, share: true, stack: [linear]}"},
        "11:16:causality",
        "a decoder does not know how long its answer will be",
        "write a number, or move the repeat to the encoder",
    ),
    "a grid in a decoder": (
        {"?": "grid: 4"},
        "11:7:causality",
        "a decoder may not read the future, and a grid",
        "put it into the encoder; `active_memory` reads it from there",
    ),
    "a column of a decoder's tokens": (
        {"?": "select_column"},
        "11:7:kind",
        "`select_column` works on a grid, and a sequence arrives",
        "put `active_memory` before",
    ),
    "attention to a grid": (
        {"?": "cross_attention: {from: encoder.image}"},
        "11:31:kind",
        "`encoder.image` is a grid, and attention reads a sequence",
        "end the encoder with `select_column`, `sum_columns` or `flatten`",
    ),
    "alignment with a grid": (
        {"?": "source_state: {from: encoder.image}"},
        "11:28:kind",
        "`encoder.image` is a grid, and `source_state` reads a sequence",
        "end the encoder with `select_column`, `sum_columns` or `flatten`",
    ),
    "a memory beside the tokens that is a grid": (
        {"?": "add: encoder.image"},
        "11:12:kind",
        "`encoder.image` is a grid of 4 columns",
        "a sequence of a grid",
    ),
    "an active memory of a sequence": (
        {"?": "active_memory: {stack: [cgru]}"},
        "11:7:kind",
        "`encoder` is a sequence",
        "end the encoder with a grid",
    ),
    "a flattened grid in a decoder": (
        {
            "?": (
                "repeat: {times: 1, stack: [{active_memory: {from: encoder.image, stack: [cgru]}},"
                " flatten]}"
            )
        },
        "11:89:length",
        "a decoder has one position for each token, and `flatten` makes 4 of it",
        "write `- sum_columns`",
    ),
    "a grid as what was one step before": (
        {
            "?": (
                "recurrent: [{active_memory: {from: encoder.image, stack: [cgru], as: g}}, {repeat:"
                " {times: 1, stack: [{add: prev.g}]}}, select_column]"
            )
        },
        "11:7:kind",
        "`prev.g` is one step of a grid",
        "name what `select_column`",
    ),
}


def with_grids(parts: dict[str, str]) -> str:
    text = GRIDS
    for mark, default in (("@", "conv2d"), ("!", "identity"), ("?", "linear")):
        text = text.replace(mark, parts.get(mark, default))
    return text


@pytest.mark.parametrize("case", GRIDS_REFUSED)
def test_a_grid_is_refused_where_it_does_not_fit(case: str, tmp_path: Path) -> None:
    parts, place, message, fix = GRIDS_REFUSED[case]
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, with_grids({"!": "select_column: 0"} | parts)).plan()
    faults = {places([fault])[0]: fault for fault in raised.value.faults}
    assert place in faults, faults
    assert message in faults[place].message
    assert fix in faults[place].hint


def test_an_encoder_that_ends_with_a_grid_is_not_read_by_attention(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="`encoder` is a grid, and attention reads a sequence"):
        loaded(tmp_path, with_grids({})).plan()


def test_a_decoder_does_not_end_with_a_grid(tmp_path: Path) -> None:
    text = with_grids({"?": "active_memory: [{cgru: {with: tape}}]"}).replace(
        "    - cross_attention\n", ""
    )
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, text).plan()
    (fault,) = raised.value.faults
    assert places([fault]) == ["10:3:kind"]
    assert fault.message == "the decoder ends with a grid, and the output reads a sequence"
    assert fault.hint == "end it with `- select_column: 0`"
    assert loaded(tmp_path, text + "    - select_column: 0\n").plan().parameters > 0


MEMORIES = """recipe: 1
data: {parallel: {train: {source: a, target: b}}, tokenizer: char}
model:
  width: 8
  encoder:
    - ntm: {slots: 6, slot_width: 3, as: paper}
    - stack_memory: {width: 4, as: pile}
    - discrete_stacks: {stacks: 2, cells: 4, as: cells}
    - grid: {columns: 2, as: picture}
    - select_column
  decoder:
    - @
    - cross_attention
"""
"""The faulty block stands in line 12; it begins in column 7."""
EMPTY = "write `initial_state: zeros`, or `{copy: MEMORY.x}` where x is another"

MEMORIES_REFUSED = {
    "a tape with other slots": (
        "ntm: {slots: 5, slot_width: 3, initial_state: {copy: encoder.paper}}",
        "12:60:setting",
        (
            "`encoder.paper` leaves the state of `ntm` with slots 6, and this starts from the state"
            " of `ntm` with slots 5"
        ),
        (
            "copy from a `ntm` with the same settings, or write `initial_state: encoder` for a"
            " projection"
        ),
    ),
    "a tape with other heads": (
        "ntm: {slots: 6, slot_width: 3, read_heads: 2, initial_state: {copy: encoder.paper}}",
        "12:75:setting",
        "with read_heads 1, and this starts from the state of `ntm` with read_heads 2",
        "the same settings",
    ),
    "a tape with less slots than a head moves": (
        "ntm: {slots: 6, shift: 3}",
        "12:30:setting",
        "needs 7, and there are 6",
        "write `shift: 2`, or `slots: 7`",
    ),
    "a tape with less slots than a head moves unless told": (
        "ntm: {slots: 2}",
        "12:7:setting",
        "needs 3, and there are 2",
        "write `shift: 0`, or `slots: 3`",
    ),
    "a tape of a pile": (
        "ntm: {initial_state: {copy: encoder.pile}}",
        "12:35:setting",
        (
            "leaves the state of `stack_memory` with width 4, and this starts from the state of"
            " `ntm` with slots 128"
        ),
        "`initial_state: encoder`",
    ),
    "a recurrent block of a tape": (
        "rnn: {initial_state: {copy: encoder.paper}}",
        "12:35:setting",
        "and this starts from the state of `rnn` with",
        "`initial_state: encoder`",
    ),
    "a queue of a stack": (
        "queue_memory: {width: 4, initial_state: {copy: encoder.pile}}",
        "12:54:setting",
        (
            "`encoder.pile` leaves the state of `stack_memory`, and this starts from the state of"
            " `queue_memory`"
        ),
        "copy from a `queue_memory` with the same settings, or write `initial_state: zeros`",
    ),
    "a wider stack": (
        "stack_memory: {initial_state: {copy: encoder.pile}}",
        "12:44:setting",
        "with width 4, and this starts from the state of `stack_memory` with width 8",
        "write `initial_state: zeros`",
    ),
    "more stacks": (
        "discrete_stacks: {stacks: 3, cells: 4, initial_state: {copy: encoder.cells}}",
        "12:68:setting",
        "with stacks 2, and this starts from the state of `discrete_stacks` with stacks 3",
        "`initial_state: zeros`",
    ),
    "a learned stack": (
        "stack_memory: {initial_state: learned}",
        "12:37:setting",
        "`stack_memory` begins empty, or as another one ended, and `learned` is neither",
        f"{EMPTY} `stack_memory`",
    ),
    "a projected deque": (
        "deque_memory: {initial_state: encoder}",
        "12:37:setting",
        "and `encoder` is neither",
        f"{EMPTY} `deque_memory`",
    ),
    "discrete stacks that are learned": (
        "discrete_stacks: {initial_state: learned}",
        "12:40:setting",
        "begins empty",
        f"{EMPTY} `discrete_stacks`",
    ),
    "more to read than a stack holds": (
        "discrete_stacks: {depth: 5, cells: 4}",
        "12:32:setting",
        "5 numbers are read of a stack that holds 4",
        "write `depth: 4`, or `cells: 5`",
    ),
    "a machine in a decoder": (
        "nram",
        "12:7:causality",
        "a decoder may not read the future, and `nram` does",
        "move it to the encoder",
    ),
    "a machine in a loop": (
        "recurrent: [{nram: {steps: 3}}]",
        "12:20:causality",
        "and `nram` does",
        "`- source_state`",
    ),
    "facts without a question": (
        "supporting_facts: {hops: 2}",
        "12:7:memory",
        "`query` is missing: the memory that holds the question",
        "write `query: encoder`",
    ),
    "a question that is a grid": (
        "supporting_facts: {query: encoder.picture}",
        "12:33:kind",
        "a question is a sequence of words",
        "with `sum_columns`",
    ),
    "hops with a question that is a grid": (
        "memory_network: {query: encoder.picture}",
        "12:31:kind",
        "`encoder.picture` is a grid",
        "with `sum_columns`",
    ),
    "a question that is the decoder's": (
        "memory_network: {query: input}",
        "12:31:name",
        "no memory is called `input`",
        "write one of",
    ),
}


@pytest.mark.parametrize("case", MEMORIES_REFUSED)
def test_a_memory_is_refused_where_it_does_not_fit(case: str, tmp_path: Path) -> None:
    block, place, message, fix = MEMORIES_REFUSED[case]
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, MEMORIES.replace("@", block)).plan()
    faults = {places([fault])[0]: fault for fault in raised.value.faults}
    assert place in faults, faults
    assert message in faults[place].message
    assert fix in faults[place].hint


def test_memories_are_accepted_where_they_fit(tmp_path: Path) -> None:
    going_on = """ntm: {slots: 6, slot_width: 3, initial_state: {copy: encoder.paper}}
    - stack_memory: {width: 4, initial_state: {copy: encoder.pile}}
    - discrete_stacks: {stacks: 2, cells: 4, depth: 1, initial_state: {copy: encoder.cells}}
    - memory_network: {from: encoder.picture, as: asked}
    - memory_network: {from: encoder.picture, query: encoder}
    - concat: asked"""
    assert loaded(tmp_path, MEMORIES.replace("@", going_on)).plan().parameters > 0


def test_with_two_memories_one_must_be_named(tmp_path: Path) -> None:
    text = MEMORIES.replace("  encoder:\n", "  encoders:\n    other: [rnn]\n    source:\n").replace(
        "    - ", "      - "
    )
    with pytest.raises(RecipeError, match=r"there are 2 memories to read \(`other`, `source`\)"):
        loaded(
            tmp_path,
            text.replace("source: a", "source: a, other: c").replace("@", "memory_network"),
        ).plan()


ANSWERS = """recipe: 1
data: {generate: {copy: {symbols: 6}}, tokenizer: {integers: {below: 6}}}
model:
  embedding: one_hot
  width: 6
  encoder: [nram]
  decoder: [source_state]
  output: {kind: identity, length: 6}
"""

ANSWERS_REFUSED = [
    (
        "[source_state]",
        "[source_state, {linear: 5}]",
        "8:18:width",
        "the decoder ends 5 wide, and there are 6 tokens to choose from",
    ),
    ("length: 6", "tie: []", "8:18:missing", "`identity` has no logit for the end of an answer"),
    (
        "one_hot",
        "linear",
        "4:14:vectors",
        "`linear` works on vectors of bits, and the tokenizer `integers` gives words",
    ),
    (
        "[nram]",
        "[{linear: 2}, nram]",
        "6:26:width",
        "the machine counts from 0 to 1, and needs 3 integers or more",
    ),
    (
        "below: 6",
        "below: 2",
        "2:70:bound",
        "`below` takes a whole number, 3 or more; `2` is too small",
    ),
    (
        "length: 6}",
        "length: 6}\ndecoding: {beam: {max_length: 6}}",
        "8:36:length",
        "answers have 6 tokens and their end, and decoding cuts them after 6",
    ),
]


@pytest.mark.parametrize(("old", "new", "place", "message"), ANSWERS_REFUSED)
def test_an_answer_is_refused_where_it_does_not_fit(
    old: str, new: str, place: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as raised:
        loaded(tmp_path, ANSWERS.replace(old, new)).plan()
    faults = {places([fault])[0]: fault.message for fault in raised.value.faults}
    assert message in faults.get(place, ""), faults


def test_an_answer_is_accepted_where_it_fits(tmp_path: Path) -> None:
    assert loaded(tmp_path, ANSWERS).plan().parameters > 0

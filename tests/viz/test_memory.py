"""What memories held and what was read of them: the pictures are the records, with the tokens of
each moment.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from blocks.core.contract import Record
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import StepInputs
from composer.recipe.recipe import load
from composer.training.train import train
from composer.viz.alignments import Alignment, alignment, alignment_page, alignments
from composer.viz.memory import (
    MAX_STACKS,
    MAX_STEPS,
    NEGLIGIBLE,
    Memory,
    note_on_range,
    pad_cells,
    register_table,
    shortest_arc,
)
from tests.inference.untrained import made
from tests.viz.pages import read

NTM = """
encoder:
  - recurrent:
      stack:
        - concat: [input, prev.read]
        - rnn: {cell: gru, as: controller}
        - ntm: {slots: 40, slot_width: 8, read_heads: 2, as: read}
decoder:
  - recurrent:
      stack:
        - concat: [input, prev.read]
        - rnn: {cell: gru, as: controller}
        - ntm: {slots: 40, slot_width: 8, read_heads: 2, initial_state: {copy: encoder.read},
              as: read}
"""
CELLS = """
encoder: [{rnn: {cell: gru}}, {WORD: {width: 8, as: memory}}]
decoder: [{rnn: {cell: gru}}, {WORD: {width: 8, initial_state: {copy: encoder.memory}}}]
"""
CELLS_STEP_BY_STEP = """
encoder:
  - recurrent: {stack: [{concat: [input, prev.memory]}, {rnn: {cell: gru}}, {WORD: {width: 8,
        as: memory}}]}
decoder:
  - recurrent:
      stack:
        - concat: [input, prev.memory]
        - rnn: {cell: gru}
        - WORD: {width: 8, initial_state: {copy: encoder.memory}, as: memory}
"""
LINE, ANSWER = "eins zwei drei vier", "acht neun"
HEARD = ["eins", "zwei", "drei", "vier", "⟨eos⟩"]
SAID = ["acht", "neun", "⟨eos⟩"]
EXACT = 1e-6


def align_with_answer(run: Run, line: str = LINE, answer: str = ANSWER) -> Alignment:
    """A sentence with an answer that is given."""
    columns = dict(zip(run.model.readers(), line.split("\t"), strict=True))
    ids = {side: run.tokenizers.encode(side, [text])[0] for side, text in columns.items()}
    return alignment(run, columns, ids, run.tokenizers.encode("target", [answer])[0])


def recorded(run: Run, part: str, name: str) -> Tensor:
    """What the only block of the encoder or the decoder records over all positions. (T, ...)"""
    (ids,), (said,) = (
        run.tokenizers.encode("source", [LINE]),
        run.tokenizers.encode("target", [ANSWER]),
    )
    records: dict[Record, list[Tensor]] = {}
    with torch.no_grad():
        run.model(
            {"source": torch.tensor([[*ids, 2]])},
            torch.tensor([[1, *said]]),
            StepInputs(records=records),
        )
    (values,) = (
        item for record, item in records.items() if record.path[1] == part and record.name == name
    )
    return torch.cat([item[0] for item in values])


def memory_of(folder: Path, model: str) -> tuple[Run, Memory]:
    run = open_run(made(folder / "run", model))
    (result,) = align_with_answer(run).memories
    return run, result


# ------------------------------------------------------------------------------------------- slots


def test_each_head_has_a_map_over_time_for_encoder_and_decoder(tmp_path: Path) -> None:
    run, result = memory_of(tmp_path, NTM)
    titles = [[panel.title for panel in line] for line in result.panels]
    kinds = ("write head 1", "read head 1", "read head 2")
    assert titles == [[f"encoder: {kind}", f"decoder: {kind}"] for kind in kinds]
    assert result.blocks == [
        "encoder[0].recurrent.stack[2].ntm",
        "decoder[0].recurrent.stack[2].ntm",
    ]
    names = [("write_weights", 0), ("read_weights", 0), ("read_weights", 1)]
    for line, (name, head) in zip(result.panels, names, strict=True):
        for panel, part, columns in zip(line, ("encoder", "decoder"), (HEARD, SAID), strict=True):
            drawn = [int(row.removeprefix("slot ")) for row in panel.rows]
            weights = recorded(run, part, name)[:, head]  # (T, N)
            np.testing.assert_allclose(panel.values, weights[:, drawn].T, atol=EXACT)
            assert weights.sum() - panel.values.sum() <= NEGLIGIBLE * weights.numel()
            assert panel.columns == columns


@pytest.mark.parametrize(
    ("used", "drawn"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 3], [1, 2, 3]),
        ([7, 0, 1], [7, 0, 1]),
        ([6, 1], [6, 7, 0, 1]),
        ([0, 7], [7, 0]),
        ([4], [4]),
        ([0], [0]),
        ([], [*range(8)]),
        ([*range(8)], [*range(8)]),
        ([*range(7)], [*range(7)]),
    ],
)
def test_the_slots_shown_are_the_shortest_arc_of_the_circle(
    used: list[int], drawn: list[int]
) -> None:
    assert shortest_arc(np.isin(np.arange(8), used)) == drawn


def test_a_note_lists_the_slots_shown() -> None:
    assert note_on_range([1, 2, 3], 8, "slots").startswith(
        "Shown: slots 1 to 3, of 8 counted from 0"
    )
    assert note_on_range([6, 7, 0], 8, "slots").startswith("Shown: slots 6 to 7 and 0, of 8")
    assert note_on_range([4], 8, "slots").startswith("Shown: slots 4, of 8")
    assert note_on_range(range(8), 8, "slots") == ""


def test_two_memories_of_one_part_have_figures_of_their_own(tmp_path: Path) -> None:
    model = (
        "encoder: [{ntm: {slots: 9}}, {ntm: {slots: 9}}]\ndecoder: [{ntm: {slots: 9}}, {ntm:"
        " {slots: 7}}]"
    )
    result = align_with_answer(open_run(made(tmp_path / "run", model))).memories
    assert [item.blocks for item in result] == [
        ["encoder[0].ntm", "decoder[0].ntm"],
        ["encoder[1].ntm"],
        ["decoder[1].ntm"],
    ]


def test_memories_with_other_numbers_of_heads_have_figures_of_their_own(tmp_path: Path) -> None:
    model = "encoder: [{ntm: {slots: 9, read_heads: 3}}]\ndecoder: [{ntm: {slots: 9}}]"
    memories = align_with_answer(open_run(made(tmp_path / "run", model))).memories
    assert [memory.blocks for memory in memories] == [["encoder[0].ntm"], ["decoder[0].ntm"]]


def test_a_stack_with_a_name_is_drawn_at_each_use(tmp_path: Path) -> None:
    model = "stacks: {it: [{ntm: {slots: 9}}]}\nencoder: [{use: it}]\ndecoder: [{use: it}]"
    (result,) = align_with_answer(open_run(made(tmp_path / "run", model))).memories
    assert [[panel.columns for panel in line] for line in result.panels] == [[HEARD, SAID]] * 2


# ------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize("model", [CELLS, CELLS_STEP_BY_STEP])
@pytest.mark.parametrize("word", ["stack_memory", "queue_memory"])
def test_cells_are_named_after_the_moment_of_their_push(
    tmp_path: Path, word: str, model: str
) -> None:
    _, result = memory_of(tmp_path, model.replace("WORD", word))
    assert [[panel.title for panel in line] for line in result.panels] == [
        ["encoder: strength", "decoder: strength"],
        ["encoder: read", "decoder: read"],
    ]
    for before, after in result.panels:
        assert (before.rows, before.columns) == (HEARD, HEARD)
        assert after.columns == SAID
        # what a queue has popped is left out, and said
        assert after.rows == [*HEARD, *SAID][-len(after.rows) :]
    left = len(HEARD) + len(SAID) - len(result.panels[0][1].rows)
    assert f"the decoder's cells {left} to 7, of 8" in result.note or left == 0
    # a cell has no strength before its moment, and some then
    pushed = result.panels[0][1].values[-len(SAID) :]
    assert not np.tril(pushed, -1).any()
    assert (np.diag(pushed) > 0).all()


def test_the_bottom_of_a_deque_is_above(tmp_path: Path) -> None:
    run, result = memory_of(tmp_path, CELLS.replace("WORD", "deque_memory"))
    assert [line[0].title for line in result.panels] == [
        f"encoder: {item}" for item in ("strength", "read", "read at the bottom")
    ]
    assert result.panels[0][0].rows == [*HEARD[::-1], *HEARD]
    assert result.panels[0][1].rows == [*SAID[::-1], *HEARD[::-1], *HEARD, *SAID]
    for line, name in zip(
        result.panels, ("strengths", "read_weights", "read_weights_bottom"), strict=True
    ):
        np.testing.assert_allclose(line[1].values, recorded(run, "decoder", name).T, atol=EXACT)


@pytest.mark.parametrize("word", ["stack_memory", "queue_memory", "deque_memory"])
def test_growing_memories_are_joined_over_steps(word: str, tmp_path: Path) -> None:
    """A loop records fewer cells at first; those of a deque grow at both ends."""
    _, result = memory_of(tmp_path, CELLS_STEP_BY_STEP.replace("WORD", word))
    strengths = result.panels[0][0].values  # (n, T)
    count = len(HEARD)
    middle = count if word == "deque_memory" else 0
    for moment in range(count):
        there = np.zeros(len(strengths), dtype=bool)
        there[max(middle - moment - 1, 0) : middle + moment + 1] = True
        assert (strengths[there, moment] > 0).any()
        assert not strengths[~there, moment].any()


def test_new_cells_come_at_the_end_or_at_both_ends() -> None:
    pieces = [torch.tensor([[[1.0]]]), torch.tensor([[[2.0, 3.0, 4.0]]])]
    assert pad_cells(pieces, at_both_ends=False).tolist() == [[1.0, 0.0, 0.0], [2.0, 3.0, 4.0]]
    assert pad_cells(pieces, at_both_ends=True).tolist() == [[0.0, 1.0, 0.0], [2.0, 3.0, 4.0]]


# -------------------------------------------------------------------------------------------
# discrete stacks


def test_the_first_stacks_are_drawn_from_the_top(tmp_path: Path) -> None:
    run, result = memory_of(
        tmp_path, "encoder: [rnn]\ndecoder: [rnn, {discrete_stacks: {stacks: 6, cells: 5}}]"
    )
    assert result.note == f"Shown: the first {MAX_STACKS} of 6 stacks."
    assert [panel.title for (panel,) in result.panels] == [
        f"decoder: stack {at + 1}" for at in range(MAX_STACKS)
    ]
    whole = recorded(run, "decoder", "stacks")  # (T, stacks, depth)
    for which, (panel,) in enumerate(result.panels):
        assert panel.rows[:2] == ["top", "1 below"]
        np.testing.assert_allclose(panel.values, whole[:, which, : len(panel.rows)].T, atol=EXACT)
        assert (whole[:, which, len(panel.rows) :] <= NEGLIGIBLE - 1).all()


# ------------------------------------------------------------------------------------------- hops


def test_hops_are_a_table_if_all_positions_have_one_query(tmp_path: Path) -> None:
    model = """
encoders: {left: [{rnn: {cell: gru}}], right: [{rnn: {cell: gru}}]}
decoder: [{memory_network: {from: left, query: right, hops: 2}}]
"""
    run = open_run(made(tmp_path / "run", model))
    result = align_with_answer(run, f"{LINE}\tzehn sieben")
    (one,) = result.memories
    (table,) = one.tables
    assert (table.title, table.rows, table.columns) == (
        "zehn sieben → acht neun",
        HEARD,
        ["hop 1", "hop 2"],
    )
    np.testing.assert_allclose(table.shades.sum(0), 1.0, atol=EXACT)
    assert table.texts == [[f"{share:.2f}" for share in row] for row in table.shades.tolist()]
    body = [
        ["".join(cell.itertext()) for cell in row.iter("td")]
        for row in read(alignment_page(result)).iter("tr")
    ]
    assert body == [[], *([name, *row] for name, row in zip(HEARD, table.texts, strict=True))]


def test_hops_are_maps_if_each_position_has_a_query(tmp_path: Path) -> None:
    run, result = memory_of(
        tmp_path,
        "encoder: [rnn]\ndecoder: [{rnn: {cell: gru}}, {memory_network: {hops: 2, time: 0}}]",
    )
    ((first, second),) = result.panels
    assert (first.title, second.title) == ("decoder: hop 1", "decoder: hop 2")
    assert (first.rows, first.columns) == (HEARD, SAID)
    np.testing.assert_allclose(second.values, recorded(run, "decoder", "hops")[:, 1].T, atol=EXACT)


def test_the_sentences_of_a_story_are_the_rows(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    output = [
        f"1 {who} went to hall.\n2 {who} took milk.\n3 Where is {who}?\thall\t1\n"
        for who in "abcdefghij"
    ]
    for split in ("train", "test"):
        (tmp_path / "tasks" / f"qa1_moves_{split}.txt").write_text(
            "".join(output), encoding="utf-8"
        )
    (tmp_path / "stories.yaml").write_text(STORIES, encoding="utf-8")
    train(load(tmp_path / "stories.yaml"), tmp_path / "run")
    (result,) = alignments(
        open_run(tmp_path / "run"), ["Where is b?\ta went to hall. b took milk. b went to hall."]
    )
    ((table,),) = (item.tables for item in result.memories)
    assert table.rows == ["a went to hall", "b took milk", "b went to hall"]
    assert table.title == f"where is b → {result.output}"
    np.testing.assert_allclose(table.shades.sum(0), 1.0, atol=EXACT)


STORIES = """
recipe: 1
name: stories
data:
  babi: {folder: tasks, tasks: [1], val: 0.2, words: 5, sentences: 4}
  tokenizer: {word: {split: spaces, joint: true}}
model:
  width: 16
  encoders: {question: [identity], story: [identity]}
  decoder: [{memory_network: {from: story, query: question, hops: 2}}]
  output: {length: 1}
training: {tokens_per_batch: 16, max_steps: 2}
logging: {wandb: false}
"""


# -------------------------------------------------------------------------------------------
# registers


def test_a_machine_has_a_column_for_each_step(tmp_path: Path) -> None:
    run, result = memory_of(
        tmp_path, "encoder: [{nram: {steps: 5, registers: 3}}]\ndecoder: [source_state]"
    )
    (table,) = result.tables
    assert (table.rows, table.columns) == (["r1", "r2", "r3", "stops"], ["1", "2", "3", "4", "5"])
    np.testing.assert_allclose(table.shades[-1], recorded(run, "encoder", "halting"), atol=EXACT)
    np.testing.assert_allclose(
        table.shades[:-1], recorded(run, "encoder", "registers").amax(2).T, atol=EXACT
    )
    np.testing.assert_allclose(table.shades[-1].sum(), 1.0, atol=EXACT)


def test_a_register_shows_its_most_probable_integer() -> None:
    registers = np.array([[[0.1, 0.9, 0.0]], [[0.2, 0.2, 0.6]]])  # two steps of one register
    table = register_table(registers, np.array([0.0, 1.0]))
    assert table.texts == [["1", "2"], ["", "1.00"]]
    assert table.shades.tolist() == [[0.9, 0.6], [0.0, 1.0]]


def test_a_long_run_shows_its_first_steps(tmp_path: Path) -> None:
    _, result = memory_of(
        tmp_path, f"encoder: [{{nram: {{steps: {MAX_STEPS + 2}}}}}]\ndecoder: [source_state]"
    )
    assert result.note == f"Shown: the first {MAX_STEPS} of {MAX_STEPS + 2} steps."
    assert len(result.tables[0].columns) == MAX_STEPS

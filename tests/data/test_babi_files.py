"""Stories with questions: what is read of the files, what a batch holds, and every fault with its
line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.padding import fill_ratio
from composer.data.collate import Batch, BatchLoader
from composer.data.encoding import Data, load_data
from composer.data.ids import Encoded, Ids
from composer.data.pairs import available_splits
from composer.data.sampler import TrainBatchSampler
from composer.data.sources import check_files, open_pairs
from composer.data.stories import (
    NO_FACT,
    Question,
    StoryShape,
    parse_file,
    split_sentences,
    story_fault,
)
from composer.errors import DataError
from composer.model.special_tokens import EOS, PAD
from composer.recipe.recipe import Recipe

MODEL = {
    "encoders": {"question": ["rnn"], "story": ["sum_columns"]},
    "decoder": ["rnn", {"cross_attention": {"from": "story"}}],
}
WORDS = {"word": {"split": "spaces", "joint": True}}
LINES = """1 Mary moved to the bathroom.
2 Bill went  to the hallway.
3 Where is Mary? \tbathroom\t1
4 Bill took the milk there.
5 Who has the milk?\tBill\t4 2
6 What is carried?\tmilk,bread
1 Sandra slept.
2 Where is Sandra?\tnowhere\t1
"""
Make = Callable[..., Recipe]


@pytest.fixture
def babi_recipe(tmp_path: Path, make: Make) -> Callable[..., Recipe]:
    """A recipe over files of these lines: those of train, and of test the same unless they are
    said.
    """

    def _told(
        train: str | bytes = LINES,
        test: str | bytes | None = None,
        max_length: int = 256,
        **settings: Any,
    ) -> Recipe:
        folder = tmp_path / "tasks"
        folder.mkdir(exist_ok=True)
        for split, lines in (("train", train), ("test", train if test is None else test)):
            text = lines if isinstance(lines, bytes) else lines.encode()
            (folder / f"qa1_small_{split}.txt").write_bytes(text)
        babi: Mapping[str, Any] = {
            "folder": "tasks",
            "tasks": [1],
            "val": 0.0,
            "words": 6,
            **settings,
        }
        return make({"babi": babi, "tokenizer": WORDS, "max_length": max_length}, MODEL)

    return _told


def data_of(recipe: Recipe) -> Data:
    return load_data(recipe, recipe.folders())


def train_of(recipe: Recipe) -> Encoded:
    train = data_of(recipe).train
    assert train is not None
    return train


def first_batch(recipe: Recipe) -> Batch:
    """All training pairs at once, in the order of their numbers."""
    encoded = train_of(recipe)
    return next(
        iter(BatchLoader(encoded, TrainBatchSampler(encoded, tokens_per_batch=1000, seed=1)))
    )


def test_a_story_is_all_sentences_before_its_question(babi_recipe: Make) -> None:
    recipe = babi_recipe()
    assert check_files(recipe, recipe.folders()) == []
    pairs = open_pairs(recipe, "train", recipe.folders())
    one = "mary moved to the bathroom. bill went to the hallway."
    assert pairs[0] == {"question": "where is mary?", "story": one, "target": "bathroom"}
    assert pairs[1]["story"] == f"{one} bill took the milk there."
    assert pairs[1]["target"] == "bill"
    assert pairs[3] == {
        "question": "where is sandra?",
        "story": "sandra slept.",
        "target": "nowhere",
    }
    # line 4 is the third sentence, and the facts are in the file's order
    assert pairs.facts == [(0,), (2, 1), (), (0,)]


def test_the_words_of_an_answer_are_one_token_or_several(babi_recipe: Make) -> None:
    lines = LINES + "1 Sandra took the milk.\n2 What has Sandra?\tmilk,apple\t1\n"
    for settings, expected in (({}, "milk,apple"), ({"split_answers": True}, "milk apple")):
        recipe = babi_recipe(lines, **settings)
        pairs = open_pairs(recipe, "train", recipe.folders())
        assert pairs[len(pairs) - 1]["target"] == expected
        assert pairs[0]["target"] == "bathroom"


def test_only_the_last_sentences_are_read_and_facts_move_with_them(babi_recipe: Make) -> None:
    recipe = babi_recipe(sentences=2)
    pairs = open_pairs(recipe, "train", recipe.folders())
    assert pairs[1]["story"] == "bill went to the hallway. bill took the milk there."
    assert pairs.facts == [(0,), (1, 0), (), (0,)]
    (note,) = pairs.notes
    assert note.startswith("2 of 4 train stories have more than 2 sentences")
    assert note.endswith("0 lose a sentence that bears the answer")
    recipe = babi_recipe(sentences=1)
    assert open_pairs(recipe, "train", recipe.folders()).facts == [
        (NO_FACT,),
        (0, NO_FACT),
        (),
        (0,),
    ]
    assert "; 2 lose" in data_of(recipe).notes[0]


def test_a_batch_has_grids_of_stories_and_their_facts(babi_recipe: Make) -> None:
    recipe = babi_recipe()
    data, batch = data_of(recipe), first_batch(recipe)
    rows = batch["rows"].tolist()
    story, question, facts = batch["sources"]["story"], batch["sources"]["question"], batch["facts"]
    assert tuple(story.shape) == (4, 3, 6)
    word = {
        text: data.tokenizers.encode("story", [text])[0][0]
        for text in ("sandra", "slept", "bill", "hallway")
    }
    lone = story[rows.index(3)]
    assert lone.tolist() == [[word["sandra"], word["slept"], 0, 0, 0, 0], [PAD] * 6, [PAD] * 6]
    assert story[rows.index(1), 1, 0] == word["bill"]
    assert story[rows.index(1), 1, 4] == word["hallway"]
    assert data.tokenizers.decode("question", question.tolist())[rows.index(0)] == "where is mary"
    assert (question == EOS).sum(1).tolist() == [1] * 4
    assert not (story == EOS).any()
    assert [facts[rows.index(row)].tolist() for row in range(4)] == [
        [0, -1],
        [2, 1],
        [-1, -1],
        [0, -1],
    ]
    assert facts.dtype == torch.int64


def test_data_without_stories_have_no_facts() -> None:
    ids = Ids.of([[[5], [6, 7]]], 9)
    encoded = Encoded({"source": ids}, ids, ["", ""], np.arange(2))
    batch = next(
        iter(BatchLoader(encoded, TrainBatchSampler(encoded, tokens_per_batch=100, seed=1)))
    )
    assert tuple(batch["facts"].shape) == (2, 0)


def test_positions_of_a_story_are_its_grid_and_filtered_rows_have_their_facts(
    babi_recipe: Make,
) -> None:
    encoded = train_of(babi_recipe())
    story = encoded.sources["story"]
    assert story.lengths().tolist() == [2, 3, 3, 1]
    assert story.positions().tolist() == [12, 18, 18, 6]
    # words of the sentences: 5 and 5, and 5 more, and 2
    assert fill_ratio(encoded, [np.arange(4)])["story"] == (10 + 15 + 15 + 2) / (4 * 18)
    some = encoded.keep(np.array([False, True, False, True]))
    assert some.sources["story"][1].tolist() == story[3].tolist()
    assert some.facts is not None
    assert some.facts.tolist() == [[2, 1], [0, -1]]
    assert some.sha256 != encoded.sha256
    other = Encoded(
        encoded.sources,
        encoded.target,
        encoded.lines,
        encoded.originals,
        encoded.facts[::-1].copy(),
    )
    assert other.sha256 != encoded.sha256


def test_a_long_story_is_trained_on_whatever_max_length_says(babi_recipe: Make) -> None:
    short = babi_recipe(max_length=4)
    # `who has the milk` and eos are five, and all stories are more
    assert len(train_of(short)) == 3
    assert len(data_of(short).notes) == 1


def test_equal_questions_are_in_one_split_whatever_is_around_them(babi_recipe: Make) -> None:
    lines = [f"1 Mary went to place{n}.\n2 Where is Mary?\tplace{n}\t1\n" for n in range(400)]
    recipe = babi_recipe("".join(lines), val=0.2)
    parts = {
        split: open_pairs(recipe, split, recipe.folders()) for split in available_splits(recipe)
    }
    train, val = (set(parts[split].sides["story"]) for split in ("train", "val"))
    assert len(parts["test"]) == 400
    assert train | val == set(parts["test"].sides["story"])
    assert not train & val
    assert 40 < len(val) < 120
    again = babi_recipe("".join(lines[::-1][:200]), "".join(lines), val=0.2)
    assert set(open_pairs(again, "val", again.folders()).sides["story"]) <= val
    assert available_splits(babi_recipe()) == ["train", "test"]


def test_a_changed_file_is_parsed_again(babi_recipe: Make) -> None:
    recipe = babi_recipe()
    assert len(open_pairs(recipe, "train", recipe.folders())) == 4
    babi_recipe(LINES + "3 Sandra woke.\n4 Who woke?\tSandra\t3\n")
    assert len(open_pairs(recipe, "train", recipe.folders())) == 5


def test_a_story_is_split_into_normalized_sentences() -> None:
    assert split_sentences("Mary left.  JOHN paid 3.5 dollars! Who? ") == [
        "mary left",
        "john paid 3.5 dollars",
        "who",
    ]
    assert split_sentences(" . ") == []
    assert story_fault("", StoryShape(2, 3)) == "this story has no sentence"
    assert story_fault("one two three.", StoryShape(2, 3)) == ""
    assert "has 4 words, and there is room for 3" in story_fault(
        "one two three four. a. b.", StoryShape(3, 3)
    )
    assert story_fault("one two three four. a. b.", StoryShape(2, 3)) == ""


def test_fact_indices_follow_the_order_of_the_file() -> None:
    original = Question(("a", "b", "c"), "q", "x", (2, 0))
    assert original.keep_last(3) == original
    assert original.keep_last(2) == Question(("b", "c"), "q", "x", (1, NO_FACT))


FAULTS = {
    "no number": ("1 A ran.\nB ran.\n", 2, 1, "number"),
    "a blank line": ("1 A ran.\n\n2 Who?\tA\t1\n", 2, 1, "number"),
    "numbers with a gap": ("1 A ran.\n3 B ran.\n", 2, 1, "number"),
    "a file that begins in a story": ("2 A ran.\n", 1, 1, "number"),
    "no answer": ("1 A ran.\n2 Who ran?\n", 2, 10, "answer"),
    "an empty answer": ("1 A ran.\n2 Who ran?\t\t1\n", 2, 12, "answer"),
    "an answer of two words": ("1 A ran.\n2 Who ran?\tA B\t1\n", 2, 12, "answer"),
    "too many columns": ("1 A ran.\n2 Who ran?\tA\t1\t2\n", 2, 3, "columns"),
    "a fact that is a question": ("1 A ran.\n2 Who?\tA\t1\n3 Who?\tA\t2\n", 3, 10, "fact"),
    "a fact of another story": ("1 A ran.\n2 B ran.\n1 C ran.\n2 Who?\tC\t2\n", 4, 10, "fact"),
    "a fact that comes later": ("1 A ran.\n2 Who?\tA\t3\n3 B ran.\n", 2, 10, "fact"),
    "a fact that is a word": ("1 A ran.\n2 Who?\tA\tone\n", 2, 10, "fact"),
    "a question before the story": ("1 Who?\tA\n", 1, 3, "story"),
    "a long sentence": ("1 A ran and ran and ran and ran.\n", 1, 3, "words"),
    "a sentence without words": ("1 .\n", 1, 3, "words"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_a_file_names_its_line_and_column(
    case: str, babi_recipe: Make, tmp_path: Path
) -> None:
    text, line, column, code = FAULTS[case]
    recipe = babi_recipe(LINES, text)
    faults = check_files(recipe, recipe.folders())
    assert [(fault.line, fault.column, fault.code) for fault in faults] == [(line, column, code)]
    assert faults[0].file == str(tmp_path / "tasks" / "qa1_small_test.txt")
    assert faults[0].hint
    with pytest.raises(DataError):
        data_of(recipe)


def test_only_a_few_faults_of_one_file_are_reported(babi_recipe: Make) -> None:
    recipe = babi_recipe("no number\n" * 500, LINES)
    faults = check_files(recipe, recipe.folders())
    assert [fault.line for fault in faults] == [1, 2, 3]
    assert faults[-1].message.endswith("(these are the first 3 of 500 lines at fault)")
    assert "first" not in faults[0].message


def test_faults_of_the_folder_are_reported_at_the_recipe_key(
    babi_recipe: Make, tmp_path: Path
) -> None:
    def faults(recipe: Recipe) -> list[tuple[str, str]]:
        return [(fault.code, fault.path) for fault in check_files(recipe, recipe.folders())]

    assert faults(babi_recipe(LINES, b"1 A b\xff.\n")) == [("encoding", "data.babi.tasks[0]")]
    assert faults(babi_recipe(LINES, b"")) == [("empty", "data.babi.tasks[0]")]
    recipe = babi_recipe(tasks=[1, 7])
    assert faults(recipe) == [("file", "data.babi.tasks[1]")] * 2
    assert "has the tasks 1" in check_files(recipe, recipe.folders())[0].message
    (tmp_path / "tasks" / "qa1_other_train.txt").write_text(LINES)
    assert faults(babi_recipe()) == [("file", "data.babi.tasks[0]")]
    assert faults(babi_recipe(folder="nowhere")) == [("file", "data.babi.folder")]
    assert faults(babi_recipe(folder="t.yaml")) == [("file", "data.babi.folder")]


def test_a_split_without_questions_is_refused(babi_recipe: Make) -> None:
    recipe = babi_recipe("1 A ran.\n", LINES)
    assert [fault.path for fault in check_files(recipe, recipe.folders())] == ["data.babi.val"]
    recipe = babi_recipe(LINES, "1 A ran.\n")
    assert [fault.path for fault in check_files(recipe, recipe.folders())] == ["data.babi.folder"]


def test_lines_may_end_with_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "qa.txt"
    path.write_bytes("\ufeff1 A ran.\r\n2 Who?\tA\t1\r\n".encode())
    assert list(parse_file(path, 6)) == [Question(("a ran",), "who?", "a", (0,))]


def test_stories_whose_questions_name_no_facts(babi_recipe: Callable[..., Recipe]) -> None:
    recipe = babi_recipe("1 Mary moved.\n2 Where is Mary?\tkitchen\n")
    train = data_of(recipe).train
    assert train is not None
    assert train.facts is not None
    assert train.facts.shape == (1, 0)

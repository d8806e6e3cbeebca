"""Stories: a line of text whose sentences become a grid, sentences by words.

A story is read without capitals and without the marks that end its sentences, and so is the question about it. The same
is done to what a trained run is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe
import errno
import hashlib
import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import Fault

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe


STORY, QUESTION = "story", "question"
SENTENCE_END = re.compile(r"[.?!](?=\s|$)")
"""The end of a sentence."""


class StoryShape(NamedTuple):
    """How many sentences of a story are read, the last ones, and for how many words each has room."""

    sentences: int
    words: int


def story_shape(recipe: Recipe, side: str) -> StoryShape | None:
    """The shape of a side that is a story; None of any other."""
    told = recipe.dataset.get("babi")
    return StoryShape(told["sentences"], told["words"]) if told and side == STORY else None


def normalize_sentence(text: str) -> str:
    """The words of a sentence with single spaces between, in lower case, without the mark at its end."""
    return " ".join(SENTENCE_END.sub(" ", text).lower().split())


def split_sentences(line: str) -> list[str]:
    """The sentences of a story, each as its plain words."""
    return [" ".join(words) for each in SENTENCE_END.split(line.lower()) if (words := each.split())]


def story_fault(line: str, shape: StoryShape) -> str:
    """Why a line is no story of this shape; "" where it is one."""
    lengths = [len(each.split()) for each in split_sentences(line)[-shape.sentences :]]
    if not lengths:
        return "this story has no sentence"
    if max(lengths) <= shape.words:
        return ""
    return f"a sentence of this story has {max(lengths)} words, and there is room for {shape.words}"


def tokenizer_lines(recipe: Recipe, side: str, lines: Iterable[str]) -> Iterable[str]:
    """What the tokenizer of a side is trained on: its lines, of a story its sentences."""
    if story_shape(recipe, side):
        return _sentences(lines)
    return map(normalize_sentence, lines) if is_question(recipe, side) else lines


def is_question(recipe: Recipe, side: str) -> bool:
    """Return True for the side that asks about a story."""
    return bool(recipe.dataset.get("babi")) and side == QUESTION


def _sentences(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from split_sentences(line)


MAX_FILE_FAULTS = 3
"""Faults of one file that are told at most: a line that is lost has many after it."""
CACHED_FILES = 64
"""Files whose questions are kept in memory: a recipe is checked, and then its splits are opened one by one."""
NO_FACT = -1
"""The place of a fact that is no sentence of what is left of the story."""


class Question(NamedTuple):
    """A question, and the sentences of its story before it."""

    story: tuple[str, ...]
    question: str
    answer: str
    facts: tuple[int, ...]

    def last(self, count: int) -> Question:
        """The same question of the last `count` sentences of its story."""
        gone = max(0, len(self.story) - count)
        facts = tuple(place - gone if place >= gone else NO_FACT for place in self.facts)
        return self._replace(story=self.story[gone:], facts=facts)


class LineFault(ValueError):
    """What is wrong with a line, from `column` on."""

    def __init__(self, column: int, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.column, self.code, self.message, self.fix = column, code, message, fix


# ------------------------------------------------------------------------------------------- the pairs


def open_babi(
    recipe: Recipe, split: str, folders: Sequence[Path]
) -> tuple[dict[str, list[str]], list[tuple[int, ...]], list[str]]:
    """The lines of every side of a split, the facts of each pair, and notes. The files have been checked."""
    told = recipe.dataset["babi"]
    whole = [each for path in paths_of(recipe, split, folders) for each in asked_in(path, told["words"])]
    if split != "test":
        whole = [each for each in whole if in_validation(each, told["val"]) == (split == "val")]
    asked = [each.last(told["sentences"]) for each in whole]
    sides = {
        QUESTION: [each.question for each in asked],
        STORY: [" ".join(f"{sentence}." for sentence in each.story) for each in asked],
        "target": [each.answer for each in asked],
    }
    return sides, [each.facts for each in asked], notes_of(split, whole, told["sentences"])


def notes_of(split: str, whole: Sequence[Question], count: int) -> list[str]:
    """A line for the user about what was left out of stories."""
    longer = sum(len(each.story) > count for each in whole)
    lost = sum(NO_FACT in each.last(count).facts for each in whole)
    told = f"{longer:,} of {len(whole):,} {split} stories have more than {count} sentences, the last of which are read"
    return [f"{told}; {lost:,} lose a sentence that bears the answer"] if longer else []


def in_validation(asked: Question, share: float) -> bool:
    """Whether a training question is one of the validation: equal ones all are, or none."""
    text = "\n".join((*asked.story, asked.question))
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return place < share * 2**64


def paths_of(recipe: Recipe, split: str, folders: Sequence[Path]) -> list[Path]:
    """The file of every task that has the questions of a split. Raises FileNotFoundError."""
    folder = folder_of(recipe, folders) or Path(recipe.dataset["babi"]["folder"])
    return [_file_of(folder, task, split) for task in recipe.dataset["babi"]["tasks"]]


def _file_of(folder: Path, task: int, split: str) -> Path:
    for path in files_of(folder, task, split):
        return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / f"qa{task}_..._{split}.txt"))


def folder_of(recipe: Recipe, folders: Sequence[Path]) -> Path | None:
    """The folder of the tasks, if there is one."""
    from composer.data import text_files  # imported late: an exported model splits stories, but reads no data files

    return text_files.find_file(recipe.dataset["babi"]["folder"], folders)


def files_of(folder: Path, task: int, split: str) -> list[Path]:
    """The files of a task: one, if all is well."""
    return sorted(folder.glob(f"qa{task}_*{'test' if split == 'test' else 'train'}.txt"))


# ------------------------------------------------------------------------------------------- a file


def asked_in(path: Path, words: int) -> list[Question]:
    """The questions of a file, which has no fault."""
    return [each for each in parsed(path, words) if isinstance(each, Question)]


def parsed(path: Path, words: int) -> tuple[Question | Fault, ...]:
    """The questions of a file and its faults, in the order of its lines; read again where it has changed."""
    now = path.stat()
    return _parsed(path, words, (now.st_mtime_ns, now.st_size))


@lru_cache(CACHED_FILES)
def _parsed(path: Path, words: int, stamp: tuple[int, int]) -> tuple[Question | Fault, ...]:
    return tuple(_read(path, words))


def _read(path: Path, words: int) -> Iterator[Question | Fault]:
    reader = Reader(words)
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n"), start=1):
        try:
            asked = reader.take(line)
        except LineFault as wrong:
            yield Fault(str(path), number, wrong.column, wrong.code, "", wrong.message, wrong.fix, line[:200])
        else:
            yield from [asked] if asked else []


@dataclass
class Reader:
    """Where in a file it is: the sentences of the present story, and of the number of each its place among them."""

    words: int
    story: list[str] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    last: int = 0

    def take(self, line: str) -> Question | None:
        """The next line; the question, if it is one. Raises Wrong."""
        found = re.fullmatch(r"(\d{1,9}) +(\S.*?)\s*", line)
        if found is None:
            raise LineFault(
                1,
                "number",
                "this line is not a number, a space and a sentence",
                "number the lines of each story from 1, as in `1 Mary moved to the bathroom.`",
            )
        self.go_to(int(found[1]))
        if "\t" in found[2]:
            return self.asked(found[2], found.start(2))
        self.add(found[2], found.start(2))
        return None

    def go_to(self, number: int) -> None:
        """Begins a story with 1; else the number follows the last one."""
        before, self.last = self.last, number
        if number == 1:
            self.story, self.places = [], {}
        elif number != before + 1:
            message = f"this line has the number {number}, and the line before it {before or 'none'}"
            raise LineFault(1, "number", message, "number the lines of each story one after another, from 1")

    def add(self, text: str, at: int) -> None:
        """A sentence of the story."""
        sentence = normalize_sentence(text)
        count = len(sentence.split())
        if text.endswith("?"):
            raise LineFault(
                at + len(text),
                "answer",
                "this question has no answer",
                "write a tab, the answer, a tab and the numbers of the sentences that tell it",
            )
        if not 0 < count <= self.words:
            message = f"this sentence has {count} words, and `data.babi.words` makes room for {self.words}"
            raise LineFault(at + 1, "words", message, f"write `words: {count}`" if count else "write a sentence")
        self.places[self.last] = len(self.story)
        self.story.append(sentence)

    def asked(self, text: str, at: int) -> Question:
        """A question of the story."""
        question, answer, *rest = (part.strip() for part in text.split("\t"))
        if not question or len(rest) > 1:
            raise LineFault(
                at + 1,
                "columns",
                "this line is not a question, its answer and numbers of sentences",
                "put one tab after the question and one after the answer",
            )
        behind = at + text.index("\t") + 2
        if len(answer.split()) != 1:
            raise LineFault(
                behind, "answer", f"the answer `{answer}` is not one word", "join the words of an answer with commas"
            )
        if not self.story:
            raise LineFault(
                at + 1,
                "story",
                "no sentence of a story stands before this question",
                "tell the story before what is asked of it",
            )
        told = at + text.rindex("\t") + 2
        facts = tuple(self.place(number, told) for number in " ".join(rest).split())
        return Question(tuple(self.story), question.lower(), answer.lower(), facts)

    def place(self, number: str, column: int) -> int:
        """The place of the sentence that a question says tells its answer."""
        if number.isdecimal() and int(number) in self.places:
            return self.places[int(number)]
        raise LineFault(
            column,
            "fact",
            f"`{number}` is not the number of a sentence of the story so far",
            "name sentences before the question, not other questions",
        )


# ------------------------------------------------------------------------------------------- faults


def check_babi(recipe: Recipe, folders: Sequence[Path]) -> list[Fault]:
    """All that is wrong with the tasks' files, a few faults of each."""
    told: dict[str, Any] = recipe.dataset["babi"]
    folder = folder_of(recipe, folders)
    if folder is None or not folder.is_dir():
        return [_no_folder(recipe, told["folder"], folder, folders)]
    found: list[Fault] = []
    for at, task in enumerate(told["tasks"]):
        for split in ("train", "test"):
            found += _check_task(recipe, folder, at, task, split)
    return found or _check_shares(recipe, folders)


def _no_folder(recipe: Recipe, name: str, there: Path | None, folders: Sequence[Path]) -> Fault:
    searched = " and ".join(dict.fromkeys(f"`{folder}`" for folder in folders))
    message = f"`{there}` is a file" if there else f"no folder `{name}` in {searched}"
    return recipe.fault(
        "file",
        ("data", "babi", "folder"),
        message,
        "name the folder that has files such as `qa1_single-supporting-fact_train.txt`, or say `--data DIR`",
    )


def _check_task(recipe: Recipe, folder: Path, at: int, task: int, split: str) -> list[Fault]:
    from composer.data import text_files  # imported late, as above

    paths = files_of(folder, task, split)
    place = ("data", "babi", "tasks", at)
    if len(paths) != 1:
        names = ", ".join(f"`{path.name}`" for path in paths)
        message = f"task {task} has {len(paths)} files: {names}" if paths else _absent(folder, task, split)
        return [recipe.fault("file", place, message, "leave one of them" if paths else "remove the task")]
    problem = text_files.check_readable("folder", paths[0]) or text_files.check_utf8("folder", paths[0])
    if problem:
        return [recipe.fault(problem.code, place, problem.message, problem.hint)]
    return [each for each in parsed(paths[0], recipe.dataset["babi"]["words"]) if isinstance(each, Fault)][
        :MAX_FILE_FAULTS
    ]


def _absent(folder: Path, task: int, split: str) -> str:
    there = sorted({int(found[1]) for path in folder.iterdir() if (found := re.match(r"qa(\d+)_.*\.txt$", path.name))})
    known = f"has the tasks {', '.join(map(str, there))}" if there else "has no tasks"
    return f"no file `qa{task}_..._{split}.txt`; `{folder}` {known}"


def _check_shares(recipe: Recipe, folders: Sequence[Path]) -> list[Fault]:
    """Files without a question, and a share that leaves nothing to train or to validate on."""
    found = []
    for split in ("train", "val", "test"):
        if (split != "val" or recipe.dataset["babi"]["val"]) and not open_babi(recipe, split, folders)[1]:
            place = ("data", "babi", "folder" if split == "test" else "val")
            found.append(
                recipe.fault(
                    "empty",
                    place,
                    f"no question is left for {split}",
                    "add questions to the files" if split == "test" else "change `val`",
                )
            )
    return found

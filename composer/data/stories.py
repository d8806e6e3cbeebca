"""Stories with questions: a line as a grid of sentences by words, and files of the bAbI tasks.

A story is read without capitals and without the marks that end its sentences, and so is the
question about it; the same is done to the input of a trained run.

A line of a bAbI file (Weston et al. 2015) is `NUMBER SENTENCE` or `NUMBER
QUESTION<tab>ANSWER<tab>NUMBERS`; a story begins where the number is 1. Each question is a pair: the
sentences before it, the question, its answer, and its facts, which are the indices in the story of
the sentences that support the answer, in the file's order.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from composer.data.text_files import find_file
from composer.errors import Fault
from composer.model.special_tokens import PAD
from composer.recipe.data_sections import Babi

if TYPE_CHECKING:
    from composer.data.tokenizer import Tokenizers
    from composer.recipe.recipe import Recipe

STORY, QUESTION = "story", "question"
SENTENCE_END = re.compile(r"[.?!](?=\s|$)")
MAX_FILE_FAULTS = 3
"""Faults of one file that are reported: a line that is lost has many after it."""
NO_FACT = -1
"""Index of a fact that is no sentence of what is left of the story."""


class StoryShape(NamedTuple):
    """Size of a story's grid: the last sentences that are read, and the words each has room for."""

    sentences: int
    words: int


def story_shape(recipe: Recipe, side: str) -> StoryShape | None:
    """Return the shape of a side that is a story; None for any other."""
    settings = recipe.data.babi
    return StoryShape(settings.sentences, settings.words) if settings and side == STORY else None


def babi_settings(recipe: Recipe) -> Babi:
    """Return the section `data.babi` of a recipe that has one."""
    assert recipe.data.babi is not None
    return recipe.data.babi


def normalize_sentence(text: str) -> str:
    """Return a sentence in lower case, with single spaces, without its end mark."""
    return " ".join(SENTENCE_END.sub(" ", text).lower().split())


def split_sentences(line: str) -> list[str]:
    """Return the sentences of a story, normalized."""
    sentences = [" ".join(sentence.split()) for sentence in SENTENCE_END.split(line.lower())]
    return [sentence for sentence in sentences if sentence]


def story_fault(line: str, shape: StoryShape) -> str:
    """Return the reason why a line is no story of this shape; "" if it is one."""
    lengths = [len(sentence.split()) for sentence in split_sentences(line)[-shape.sentences :]]
    if not lengths:
        return "this story has no sentence"
    if max(lengths) <= shape.words:
        return ""
    return f"a sentence of this story has {max(lengths)} words, and there is room for {shape.words}"


def tokenizer_lines(recipe: Recipe, side: str, lines: Iterable[str]) -> Iterable[str]:
    """Return the texts that train a side's tokenizer: lines, normalized questions, or sentences."""
    if story_shape(recipe, side):
        return chain.from_iterable(map(split_sentences, lines))
    return map(normalize_sentence, lines) if recipe.data.babi and side == QUESTION else lines


def encode_side(
    recipe: Recipe, tokenizers: Tokenizers, side: str, lines: Sequence[str]
) -> list[Any]:
    """Return the ids of each line of a side, without bos and eos; of a story (sentences, words).

    A story has its last sentences, all of which are padded to the words that its shape has room
    for.
    """
    shape = story_shape(recipe, side)
    if shape is None:
        return tokenizers.encode(side, list(tokenizer_lines(recipe, side, lines)))
    stories = [split_sentences(line)[-shape.sentences :] for line in lines]
    # many stories share a sentence, so each is encoded once
    sentences = [*dict.fromkeys(chain.from_iterable(stories))]
    padded = {}
    for sentence, ids in zip(sentences, tokenizers.encode(side, sentences), strict=True):
        padded[sentence] = [*ids, *[PAD] * (shape.words - len(ids))]

    def grid(story: Sequence[str]) -> list[list[int]]:
        return [padded[sentence] for sentence in story]

    return [*map(grid, stories)]


class Question(NamedTuple):
    """A question with its answer, the sentences before it, and the indices of its facts."""

    story: tuple[str, ...]
    question: str
    answer: str
    facts: tuple[int, ...]

    def keep_last(self, count: int) -> Question:
        """Return the question with the last `count` sentences of its story."""
        dropped = max(0, len(self.story) - count)
        facts = [NO_FACT] * len(self.facts)
        for at, fact in enumerate(self.facts):
            if fact >= dropped:
                facts[at] = fact - dropped
        return self._replace(story=self.story[dropped:], facts=tuple(facts))

    @property
    def text(self) -> str:
        """The sentences of the story."""
        return " ".join(f"{sentence}." for sentence in self.story)

    def is_in_validation(self, share: float) -> bool:
        """True if a training question is held out for validation, with all its equals."""
        text = "\n".join((*self.story, self.question))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") < share * 2**64


def open_babi(
    recipe: Recipe, split: str, folders: Sequence[Path]
) -> tuple[dict[str, list[str]], list[tuple[int, ...]], list[str]]:
    """Return the pairs of a split, with the facts of each, from files without faults."""
    settings = babi_settings(recipe)
    folder = _babi_folder(recipe, folders) or Path(settings.folder)
    full: list[Question] = []
    for task in settings.tasks:
        paths = _task_files(folder, task, split)
        if not paths:
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), str(folder / f"qa{task}_..._{split}.txt")
            )
        full += (
            entry for entry in parse_file(paths[0], settings.words) if isinstance(entry, Question)
        )
    if split != "test":
        full = [
            question
            for question in full
            if question.is_in_validation(settings.val) == (split == "val")
        ]
    questions = [question.keep_last(settings.sentences) for question in full]
    commas = "," if settings.split_answers else None  # no answer has spaces
    sides = {
        QUESTION: [question.question for question in questions],
        STORY: [question.text for question in questions],
        "target": [" ".join(question.answer.split(commas)) for question in questions],
    }
    notes = []
    if longer := sum(len(question.story) > settings.sentences for question in full):
        lost = sum(NO_FACT in question.facts for question in questions)
        long = (
            f"{longer:,} of {len(full):,} {split} stories have more than {settings.sentences}"
            " sentences"
        )
        notes.append(
            f"{long}, the last of which are read; {lost:,} lose a sentence that bears the answer"
        )
    return sides, [question.facts for question in questions], notes


def _babi_folder(recipe: Recipe, folders: Sequence[Path]) -> Path | None:
    return find_file(babi_settings(recipe).folder, folders)


def _task_files(folder: Path, task: int, split: str) -> list[Path]:
    return sorted(folder.glob(f"qa{task}_*{'test' if split == 'test' else 'train'}.txt"))


def parse_file(path: Path, words: int) -> Iterator[Question | Fault]:
    """Yield the questions of a file and its faults, in the order of its lines."""
    parser = BabiParser(words)
    for number, line in enumerate(
        path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n"), start=1
    ):
        entry = parser.parse_line(line)
        if isinstance(entry, Fault):
            yield replace(entry, file=str(path), line=number, excerpt=line[:200])
        elif entry:
            yield entry


@dataclass
class BabiParser:
    """Parser of a bAbI file: sentences of the present story, and indices by line number."""

    words: int
    story: list[str] = field(default_factory=list)
    indices: dict[int, int] = field(default_factory=dict)
    number: int = 0

    def parse_line(self, line: str) -> Question | Fault | None:
        """Read the next line; return its question or its fault, whose column counts from 1."""
        match = re.fullmatch(r"(\d{1,9}) +(\S.*?)\s*", line)
        if match is None:
            fix = "number the lines of each story from 1, as in `1 Mary moved to the bathroom.`"
            return Fault(
                "", 0, 1, "number", "", "this line is not a number, a space and a sentence", fix
            )
        before, self.number = self.number, int(match[1])
        if self.number == 1:
            self.story, self.indices = [], {}
        elif self.number != before + 1:
            message = (
                f"this line has the number {self.number}, and the line before it {before or 'none'}"
            )
            return Fault(
                "",
                0,
                1,
                "number",
                "",
                message,
                "number the lines of each story one after another, from 1",
            )
        if "\t" in match[2]:
            return self._question(match[2], match.start(2))
        return self._add_sentence(match[2], match.start(2))

    def _add_sentence(self, text: str, at: int) -> Fault | None:
        sentence = normalize_sentence(text)
        count = len(sentence.split())
        if text.endswith("?"):
            fix = "write a tab, the answer, a tab and the numbers of the sentences that support it"
            return Fault("", 0, at + len(text), "answer", "", "this question has no answer", fix)
        if not 0 < count <= self.words:
            message = (
                f"this sentence has {count} words, and `data.babi.words` makes room for"
                f" {self.words}"
            )
            return Fault(
                "",
                0,
                at + 1,
                "words",
                "",
                message,
                f"write `words: {count}`" if count else "write a sentence",
            )
        self.indices[self.number] = len(self.story)
        self.story.append(sentence)
        return None

    def _question(self, text: str, at: int) -> Question | Fault:
        question, answer, *rest = (part.strip() for part in text.split("\t"))
        if not question or len(rest) > 1:
            message = "this line is not a question, its answer and numbers of sentences"
            fix = "put one tab after the question and one after the answer"
            return Fault("", 0, at + 1, "columns", "", message, fix)
        if len(answer.split()) != 1:
            column = at + text.index("\t") + 2
            fix = "join the words of an answer with commas"
            return Fault("", 0, column, "answer", "", f"the answer `{answer}` is not one word", fix)
        if not self.story:
            message = "no sentence of a story precedes this question"
            return Fault(
                "", 0, at + 1, "story", "", message, "write the story before its questions"
            )
        column = at + text.rindex("\t") + 2
        facts = []
        for number in " ".join(rest).split():
            if not number.isdecimal() or int(number) not in self.indices:
                message = f"`{number}` is not the number of a sentence of the story so far"
                fix = "name sentences before the question, not other questions"
                return Fault("", 0, column, "fact", "", message, fix)
            facts.append(self.indices[int(number)])
        return Question(tuple(self.story), question.lower(), answer.lower(), tuple(facts))


def check_babi(recipe: Recipe, folders: Sequence[Path]) -> list[Fault]:
    """Return all faults of the tasks' files, a few of each file."""
    settings = babi_settings(recipe)
    folder = _babi_folder(recipe, folders)
    if folder is None or not folder.is_dir():
        searched = " and ".join(dict.fromkeys(f"`{path}`" for path in folders))
        if folder:
            message = f"`{folder}` is a file"
        else:
            message = f"no folder `{settings.folder}` in {searched}"
        fix = (
            "name the folder that has files such as `qa1_single-supporting-fact_train.txt`, or pass"
            " `--data DIR`"
        )
        return [recipe.fault("file", ("data", "babi", "folder"), message, fix)]
    faults: list[Fault] = []
    for at in range(len(settings.tasks)):
        faults += _check_task(recipe, folder, at, "train")
        faults += _check_task(recipe, folder, at, "test")
    if faults:
        return faults
    for split in ("train", "val", "test"):
        if (split != "val" or settings.val) and not open_babi(recipe, split, folders)[1]:
            if split == "test":
                key, fix = ("folder", "add questions to the files")
            else:
                key, fix = ("val", "change `val`")
            faults.append(
                recipe.fault(
                    "empty", ("data", "babi", key), f"no question is left for {split}", fix
                )
            )
    return faults


def _check_task(recipe: Recipe, folder: Path, at: int, split: str) -> list[Fault]:
    from composer.data import text_files  # imported late, as above

    task = babi_settings(recipe).tasks[at]
    paths = _task_files(folder, task, split)
    path = ("data", "babi", "tasks", at)
    if not paths:
        matches = [re.match(r"qa(\d+)_.*\.txt$", file.name) for file in folder.iterdir()]
        tasks = sorted({int(match[1]) for match in matches if match})
        known = f"has the tasks {', '.join(map(str, tasks))}" if tasks else "has no tasks"
        message = f"no file `qa{task}_..._{split}.txt`; `{folder}` {known}"
        return [recipe.fault("file", path, message, "remove the task")]
    if len(paths) > 1:
        names = ", ".join(f"`{file.name}`" for file in paths)
        return [
            recipe.fault(
                "file", path, f"task {task} has {len(paths)} files: {names}", "leave one of them"
            )
        ]
    if problem := text_files.check_readable(paths[0]) or text_files.check_utf8(paths[0]):
        return [recipe.fault(problem.code, path, problem.message, problem.hint)]
    entries = parse_file(paths[0], babi_settings(recipe).words)
    faults = [entry for entry in entries if isinstance(entry, Fault)]
    first = faults[:MAX_FILE_FAULTS]
    if len(faults) > len(first):
        count = f"(these are the first {len(first)} of {len(faults):,} lines at fault)"
        first[-1] = replace(first[-1], message=f"{first[-1].message} {count}")
    return first

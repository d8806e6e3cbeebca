"""The section `data` of the recipe language: where pairs come from, and how they become tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from blocks.core.contract import Bounds, Count, Distinct, Kind, Positive, Rate

Text = Annotated[str, Kind("text")]
Identifier = Annotated[str, Kind("identifier")]


@dataclass(frozen=True, kw_only=True)
class Split:
    """One part of the data: two line-aligned text files, or one file with columns (TSV, CSV, JSON lines, Parquet).

    Text, TSV and JSON lines may be packed (`.gz`, `.zst`).

    Settings:
        file: A file with columns; `source` and `target` then name its columns.
        source: The file, or the column, with the source text. With several encoders, one key per encoder in its place.
        target: The file, or the column, with the target text.
        weight: How often an epoch has these pairs: 2 is twice each, 0.5 half of them, drawn anew.
    """

    file: Text | None = None
    source: Text | None = None
    target: Text
    weight: Positive = 1.0


@dataclass(frozen=True, kw_only=True)
class MeasuredSplit:
    """A part of the data that is measured: as a part that is trained on, and with several references if there are.

    Settings:
        file: A file with columns; `source` and `target` then name its columns.
        source: The file, or the column, with the source text. With several encoders, one key per encoder in its place.
        target: The file, or the column, with the references; a list where every line has several.
    """

    file: Text | None = None
    source: Text | None = None
    target: Text | Sequence[Text]


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Pairs of texts from files, looked up under `--data`, then beside the recipe.

    Settings:
        train: Training split; a list of such where the pairs come from several places.
        val: Validation split, for validation scores and the choice of the checkpoint. An integer holds out that many
            training pairs, evenly spaced.
        test: Test split, for `evaluate`; an integer as for `val`.
        test_sets: Further test sets by name, measured as `test` is; their scores are called `NAME/bleu` and so on.
        max_ratio: Training pairs are left out of which a side has more than so many times the tokens of another.
        deduplicate: Whether of training pairs that are repeated only the first is used.
        decontaminate: Whether training pairs are left out of which a side is a line of `val`, `test` or a test set.
    """

    train: Split | Sequence[Split]
    val: MeasuredSplit | Count | None = None
    test: MeasuredSplit | Count | None = None
    test_sets: dict[str, MeasuredSplit] | None = None
    max_ratio: Annotated[float, Bounds(minimum=1.0)] | None = None
    deduplicate: bool = False
    decontaminate: bool = False


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Pairs of texts from a data set of the Hugging Face hub, or a folder in its form.

    Without encoders, the rows of `target` are documents of a text, as those of `data.text` are.

    Settings:
        id: The data set's id, such as `bentrevett/multi30k`.
        config: The configuration of a data set that has several.
        train: The split to train on.
        val: The split to watch the training with.
        test: The split that `evaluate` measures.
        source: The column with the source text. With several encoders, one key per encoder in its place.
        target: The column with the target text.
    """

    id: Text
    config: Text | None = None
    train: Text = "train"
    val: Text | None = "validation"
    test: Text | None = "test"
    source: Text | None = None
    target: Text


@dataclass(frozen=True, kw_only=True)
class Babi:
    """Stories with questions, in the files of the bAbI tasks (Weston et al. 2015).

    The model's encoders are `story`, a grid of sentences by words, and `question`; the answer is the target, one token
    or, with `split_answers`, several.
    The tokenizer is `word: {split: spaces}`: all is read in lower case, without the marks that end sentences.

    Settings:
        folder: The folder with files such as `qa1_..._train.txt`, looked up under `--data`, then beside the recipe.
        tasks: The numbers of the tasks, a list; several are trained on together.
        val: The share of the training questions that the training is watched with and not trained on; 0 is none.
        words: Words that a sentence has room for, the columns of the grid; a longer sentence is refused.
        sentences: Of a longer story only the last so many sentences are read.
        split_answers: Whether an answer of several words, which commas join, is so many tokens, and not one.
    """

    folder: Text
    tasks: Annotated[Sequence[Annotated[int, Bounds(minimum=1, maximum=999)]], Distinct()]
    val: Rate = 0.1
    words: Count = 16
    sentences: Count = 50
    split_answers: bool = False


@dataclass(frozen=True, kw_only=True)
class WeightedFile:
    """A file of a corpus with its weight.

    Settings:
        file: A file, or a pattern with `*`.
        weight: How often an epoch has its documents or windows: 2 is twice each, 0.5 half of them, drawn anew.
    """

    file: Text
    weight: Positive = 1.0


Files = Text | Sequence[Text | WeightedFile] | dict[Identifier, Text | WeightedFile]


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text without a source, for language models: files looked up under `--data`, then beside the recipe.

    A part is a file, a pattern such as `news/*.txt.gz`, or several of them in a list or by name, with weights. They
    may be plain text, JSON lines (`.jsonl`) or Parquet, the first two packed (`.gz`, `.zst`), too. They are tokenised
    once, into a cache that the training maps into memory.

    Settings:
        train: Training text.
        val: Text for validation scores and the choice of the checkpoint.
        test: Text for `evaluate`.
        unit: line | paragraph | file: what a document is; its end is a token. Blank lines stand between paragraphs.
            Every line of JSON lines and every row of Parquet is a document, whatever stands here.
        column: The key of JSON lines, or the column of Parquet, with the text.
    """

    train: Files
    val: Files | None = None
    test: Files | None = None
    unit: Literal["line", "paragraph", "file"] = "line"
    column: Text = "text"


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on: exactly one of `parallel`, `text`, `hub`, `generate` and `babi`, and how it becomes ids.

    Settings:
        parallel: Pairs of texts from files.
        text: Text without a source, for language models.
        hub: Pairs of texts from a data set of the Hugging Face hub.
        generate: A generated task; needs no files.
        babi: Stories with questions, from files.
        tokenizer: How a text becomes tokens; trained on the training part, once, and kept in the run folder.
        max_length: Training pairs with more tokens on either side are left out and counted; test lines never are, nor
            are stories.
        lowercase: Whether all text is made lower case first.
    """

    parallel: Parallel | None = None
    text: Corpus | None = None
    hub: Hub | None = None
    generate: Annotated[Any, Kind("choice:tasks")] | None = None
    babi: Babi | None = None
    tokenizer: Annotated[Any, Kind("choice:tokenizers")] = "word"
    max_length: Count = 256
    lowercase: bool = False

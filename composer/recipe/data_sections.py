"""The section `data` of the recipe language: where pairs come from, and how they become tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from blocks.core.settings import (
    Bounds,
    Count,
    Distinct,
    Few,
    Kind,
    NonNegativeInt,
    Proportion,
    Rate,
)
from composer.recipe.choices import Task, Tokenizer, default
from composer.recipe.section import Section, SidedSection

Text = Annotated[str, Kind("text")]
Identifier = Annotated[str, Kind("identifier")]
Seconds = Annotated[float, Bounds(above=0.0, maximum=1.0)]
Weight = Annotated[float, Bounds(above=0.0, maximum=1_000.0)]
Pixels = Annotated[int, Bounds(minimum=1, maximum=10_000)]
Points = Annotated[int, Bounds(minimum=1, maximum=1 << 20)]
SoundLength = Annotated[float, Bounds(above=0.0, maximum=3_600.0)]


@dataclass(frozen=True, kw_only=True)
class Split(SidedSection):
    """One part of the data: two line-aligned text files, or one file with columns (TSV, CSV, JSON
    lines, Parquet).

    Text, TSV and JSON lines may be packed (`.gz`, `.zst`).

    Settings:
        file: A file with columns; `source` and `target` then name its columns.
        source: The file, or the column, with the source text. With several encoders, one key per
            encoder in its place.
        target: The file, or the column, with the target text.
        weight: How often an epoch has these pairs: 2 is twice each, 0.5 half of them, drawn anew.
    """

    file: Text | None = None
    source: Text | None = None
    target: Text
    weight: Weight = 1.0


@dataclass(frozen=True, kw_only=True)
class MeasuredSplit(SidedSection):
    """A part of the data to evaluate on: like a training part, with one or more references.

    Settings:
        file: A file with columns; `source` and `target` then name its columns.
        source: The file, or the column, with the source text. With several encoders, one key per
            encoder in its place.
        target: The file, or the column, with the references; a list where every line has several.
    """

    file: Text | None = None
    source: Text | None = None
    target: Text | Sequence[Text]


@dataclass(frozen=True, kw_only=True)
class Parallel(Section):
    """Pairs of texts from files, looked up under `--data`, then beside the recipe.

    Settings:
        train: Training split; a list of such where the pairs come from several places.
        val: Validation split, for validation scores and the choice of the checkpoint. An integer
            holds out that many training pairs, evenly spaced.
        test: Test split, for `evaluate`; an integer as for `val`.
        test_sets: Further test sets by name, measured as `test` is; their scores are called
            `NAME/bleu` and so on.
        max_ratio: Leave out training pairs in which a side has more than so many times the tokens
            of another.
        deduplicate: Whether only the first of repeated training pairs is used.
        decontaminate: Whether to leave out training pairs with a side that is a line of `val`,
            `test` or a test set.
        hold_out: sources | pairs: whether a number in `val` and `test` holds out all pairs of a
            source together, or pairs one by one, some of whose sources are then trained on with
            another target.
    """

    train: Split | Sequence[Split]
    val: MeasuredSplit | Count | None = None
    test: MeasuredSplit | Count | None = None
    test_sets: dict[str, MeasuredSplit] | None = None
    max_ratio: Annotated[float, Bounds(minimum=1.0)] | None = None
    deduplicate: bool = False
    decontaminate: bool = False
    hold_out: Literal["sources", "pairs"] = "sources"


@dataclass(frozen=True, kw_only=True)
class LogMel(Section):
    """Logarithms of the energies in bands of the mel scale: a frame of so many numbers every hop.

    Settings:
        bands: Bands, the width of a frame.
        window: Seconds of a frame, one sample or more.
        hop: Seconds from the start of a frame to that of the next, one sample or more.
        fft: Points of the Fourier transform of a frame, as many as its samples or more; by default
            the next power of 2.
        padding: zeros | reflect: what the frames at either end read beyond the sound: silence, or
            the sound mirrored at its first or last sample.
    """

    bands: Few = 40
    window: Seconds = 0.025
    hop: Seconds = 0.01
    fft: Points | None = None
    padding: Literal["zeros", "reflect"] = "zeros"


@dataclass(frozen=True, kw_only=True)
class AudioFeatures(Section):
    """What a sound becomes.

    Settings:
        log_mel: Logarithms of mel energies: `{bands: 40, window: 0.025, hop: 0.01}`.
    """

    log_mel: LogMel = LogMel()


@dataclass(frozen=True, kw_only=True)
class SpecAugment(Section):
    """New masks over frames and bands in each epoch (Park et al. 2019, section 2, no time warping).

    Settings:
        bands: A mask covers up to so many bands; F of the paper.
        frames: A mask covers up to so many frames; T of the paper.
        band_masks: Masks over bands.
        frame_masks: Masks over frames.
        share: A mask covers at most this share of the frames; p of the paper.
    """

    bands: NonNegativeInt = 10
    frames: NonNegativeInt = 20
    band_masks: NonNegativeInt = 1
    frame_masks: NonNegativeInt = 1
    share: Proportion = 1.0


@dataclass(frozen=True, kw_only=True)
class ImageAugment(Section):
    """Images a little rotated, scaled and moved, anew in each epoch.

    Settings:
        rotate: At most so many degrees to either side.
        scale: At most so much larger or smaller: 0.1 is from 0.9 to 1.1.
        shift: Moved by at most this share of each side.
    """

    rotate: Annotated[float, Bounds(minimum=0.0, maximum=180.0)] = 0.0
    scale: Rate = 0.0
    shift: Rate = 0.0


@dataclass(frozen=True, kw_only=True)
class TableColumn(Section):
    """A column of a table: text, or names of files with an image, a sound or vectors.

    Files are looked up beside the table; `images.zip/a.png` is a file in an archive,
    `a.wav#t=1.5,4` a part of a sound, in seconds. What they hold is decoded once, into a cache.

    Settings:
        column: The column.
        kind: text | image | audio | vectors (files of NumPy, `.npy`, of frames by numbers).
        size: Of an image: its largest height and width in pixels; a larger one is scaled down to
            fit.
        channels: Of an image: 1 is grey, 3 is colour.
        positions: Of an image: whether its rows or its columns of pixels are the positions of the
            grid. For lines of writing `columns`, which are read from left to right.
        augment: Of an image: `{rotate: 10, scale: 0.1, shift: 0.1}`, of training images.
        rate: Of a sound: samples a second; one of another rate is resampled.
        seconds: Of a sound: the length of all. A longer one is cut, a shorter one ends in silence,
            which the model hears; each has `seconds` / `hop` frames.
        features: Of a sound: `{log_mel: {bands: 40}}`.
        normalize: Of a sound: true gives each band of an utterance mean 0 and variance 1. `range`
            keeps the bands as they are to each other: what is more than 8, the logarithm of 80 dB,
            below the loudest is raised to that, and x becomes (x + 4) / 4, so that sounds of
            ordinary loudness are between -1 and 1 (Radford et al. 2022, section 2.2).
        spec_augment: Of a sound, or of vectors: masks over frames and bands in training.
        width: Of vectors: the numbers of a frame.
    """

    column: Text
    kind: Literal["text", "image", "audio", "vectors"] = "text"
    size: tuple[Pixels, Pixels] | None = None
    channels: Literal[1, 3] = 1
    positions: Literal["rows", "columns"] = "rows"
    augment: ImageAugment | None = None
    rate: Annotated[int, Bounds(minimum=1_000, maximum=200_000)] = 16_000
    seconds: SoundLength | None = None
    features: AudioFeatures = AudioFeatures()
    normalize: bool | Literal["range"] = True
    spec_augment: SpecAugment | None = None
    width: Count | None = None


@dataclass(frozen=True, kw_only=True)
class Table(SidedSection):
    """Pairs from tables (TSV, CSV, JSON lines, Parquet) of text, images, sounds or vectors.

    A data folder of Kaldi, with `wav.scp`, is a table with the columns `id`, `sound`, `text` and
    `speaker`.

    Settings:
        train: The table to train on.
        val: The validation table; an integer holds out that many training pairs, evenly spaced.
        test: The table that `evaluate` measures; an integer as for `val`.
        test_sets: Further tables to measure, by name.
        source: The column that the encoder reads. With several encoders, one key per encoder in its
            place.
        target: The column with the target text.
        hold_out: sources | pairs: as of `parallel`; files are the same source if they have the same
            name.
    """

    train: Text
    val: Text | Count | None = None
    test: Text | Count | None = None
    test_sets: dict[str, Text] | None = None
    hold_out: Literal["sources", "pairs"] = "sources"
    source: Text | TableColumn | None = None
    target: Text


@dataclass(frozen=True, kw_only=True)
class Hub(SidedSection):
    """Pairs of texts from a data set of the Hugging Face hub, or a folder in its form.

    Without encoders, the rows of `target` are documents of a text, as those of `data.text` are.

    Settings:
        id: The data set's id, such as `bentrevett/multi30k`.
        config: The configuration of a data set that has several.
        train: The split to train on.
        val: The validation split.
        test: The split that `evaluate` measures.
        source: The column with the source text. With several encoders, one key per encoder in its
            place.
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
class Babi(Section):
    """Stories with questions, in the files of the bAbI tasks (Weston et al. 2015).

    The model's encoders are `story`, a grid of sentences by words, and `question`; the answer is
    the target, one token or, with `split_answers`, several.
    The tokenizer is `word: {split: spaces}`: all is read in lower case, without the marks that end
    sentences.

    Settings:
        folder: The folder with files such as `qa1_..._train.txt`, looked up under `--data`, then
            beside the recipe.
        tasks: The numbers of the tasks, a list; several are trained on together.
        val: The share of the training questions held out for validation; 0 is none.
        words: Words that a sentence has room for, the columns of the grid; a longer sentence is
            refused.
        sentences: Of a longer story only the last so many sentences are read.
        split_answers: Whether an answer of several words, joined by commas, is several tokens, not
            one.
    """

    folder: Text
    tasks: Annotated[Sequence[Annotated[int, Bounds(minimum=1, maximum=999)]], Distinct()]
    val: Rate = 0.1
    words: Few = 16
    sentences: Count = 50
    split_answers: bool = False


@dataclass(frozen=True, kw_only=True)
class WeightedFile(Section):
    """A file of a corpus with its weight.

    Settings:
        file: A file, or a pattern with `*`.
        weight: How often an epoch has its documents or windows: 2 is twice each, 0.5 half of them,
            drawn anew.
    """

    file: Text
    weight: Weight = 1.0


Files = Text | Sequence[Text | WeightedFile] | dict[Identifier, Text | WeightedFile]


@dataclass(frozen=True, kw_only=True)
class Corpus(Section):
    """Text without a source, for language models: files looked up under `--data`, then beside the
    recipe.

    A part is a file, a pattern such as `news/*.txt.gz`, or several of them in a list or by name,
    with weights. They may be plain text, JSON lines (`.jsonl`) or Parquet, the first two packed
    (`.gz`, `.zst`), too. They are tokenised once, into a cache that the training maps into memory.

    Settings:
        train: Training text.
        val: Text for validation scores and the choice of the checkpoint. An integer holds out that
            many documents of the training text.
        test: Text for `evaluate`; an integer as for `val`.
        hold_out: spread | end: whether the documents that are held out are spread evenly over all
            files, or are the last ones, those of `test` after those of `val`.
        unit: line | paragraph | file: what a document is; its end is a token. Blank lines stand
            between paragraphs. Every line of JSON lines and every row of Parquet is a document,
            whatever stands here.
        column: The key of JSON lines, or the column of Parquet, with the text; `a.b` is b inside of
            a.
    """

    train: Files
    val: Files | Count | None = None
    test: Files | Count | None = None
    hold_out: Literal["spread", "end"] = "spread"
    unit: Literal["line", "paragraph", "file"] = "line"
    column: Text = "text"


@dataclass(frozen=True, kw_only=True)
class Prefix(SidedSection):
    """A text that every line of a side begins with, as models for several tasks need it.

    It stands before a line when it becomes tokens, in training and wherever the model reads or
    writes: `{source: "translate English to German: "}` as of T5 (Raffel et al. 2020, section 2.4).
    Blank lines have none. `lowercase` leaves it as it is.

    Settings:
        source: Before each source. With several encoders, one key per encoder in its place.
        target: Before each target, or each text of a language model. Its tokens are part of the
            target and of its loss, and count in `max_length`. An answer is forced to begin with it,
            before a prefix that is forced beside it; its tokens count in the log-probability of the
            answer, and not in its maximum length. Answers and references are without it.
    """

    source: str | None = None
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class Data(Section):
    """What is trained on: exactly one of `parallel`, `table`, `text`, `hub`, `generate` and `babi`.

    Settings:
        parallel: Pairs of texts from files.
        table: Pairs of images, sounds, vectors or texts, and a text, from tables.
        text: Text without a source, for language models.
        hub: Pairs of texts from a data set of the Hugging Face hub.
        generate: A generated task; needs no files.
        babi: Stories with questions, from files.
        tokenizer: How a text becomes tokens; trained on the training part, once, and kept in the
            run folder.
        max_length: Training pairs with more tokens on either side are left out and counted; test
            lines never are, nor are stories.
        lowercase: Whether all text is made lower case first, as Unicode does for every language
            alike: a Turkish I becomes i with its dot. References keep their case, and answers
            cannot match it.
        prefix: A text before every line of a side: `{source: "translate English to German: "}`.
        packing: Whether the pairs of a training batch are packed into one row, without padding; the
            model learns the same.
    """

    parallel: Parallel | None = None
    table: Table | None = None
    text: Corpus | None = None
    hub: Hub | None = None
    generate: Annotated[Task, Kind("choice:tasks")] | None = default(None)
    babi: Babi | None = None
    tokenizer: Annotated[Tokenizer, Kind("choice:tokenizers")] = default("word")
    max_length: Count = 256
    lowercase: bool = False
    prefix: Prefix | None = None
    packing: bool = False

"""What data show that no recipe says: references that BLEU cannot split, answers too long for CTC, blank cells, silent
sounds."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from composer.data.answer_limits import MORE_FRAMES, NO_FRAMES, AnswerLimits
from composer.data.audio import SILENT_DB
from composer.data.columns import locate
from composer.data.corpora import find_files
from composer.data.documents import is_plain
from composer.data.encoding import Data
from composer.data.features import Features, Remark
from composer.data.ids import Encoded
from composer.data.overlap import overlap_warnings
from composer.data.pairs import TARGET, available_splits, split_path, text_names
from composer.data.round_trips import lost_references
from composer.data.sources import DataSource
from composer.data.table_warnings import table_warnings
from composer.data.text_files import held_out_sizes
from composer.data.token_cache import whole_column
from composer.errors import Fault
from composer.formatting import format_lines
from composer.inference.target_lengths import MIN_LENGTH_LIMIT
from composer.model.features import feature_settings
from composer.model.no_effect import unused
from composer.recipe.data_sections import TableColumn
from composer.recipe.metrics import describe_tokenised, suggest_bleu_tokenizer
from composer.recipe.recipe import Recipe
from composer.recipe.text_lines import is_blank

Form = Literal["NFC", "NFD"]
FORMS: tuple[tuple[Form, Form], ...] = (("NFC", "NFD"), ("NFD", "NFC"))
"""Forms of Unicode for letters with accents, each with the other: as one character, and with the marks behind it."""


class Advice(NamedTuple):
    """What a warning says of files of which something was noticed, and what to do; `{details}` are what was noticed."""

    message: str
    hint: str


ADVICE = {
    "silent": Advice(
        f"never exceed {SILENT_DB} dB of full scale: they are as good as silent",
        "listen to them, and record them again or remove their lines",
    ),
    "rate": Advice(
        "have another rate than the column, and are resampled: {details}", "resample them before, or leave it at that"
    ),
    "header": Advice(
        "have a header that says less than there is, and are read to their end",
        "listen to what follows, and save them again, as WAV or FLAC",
    ),
    "end": Advice("would end after their recording, and are read to its end", "correct their seconds"),
    "blank": Advice("have one colour everywhere as they are read", "look at them, and remove their lines if need be"),
    "grey": Advice("have colours, and are read in grey", "write `channels: 3`, or `channels: 1` if grey is enough"),
    "transparent": Advice("have transparent pixels, which become white", "give them the background that they need"),
    "profile": Advice("are {details}, and their colours are read without a profile", "save them as RGB"),
    "depth": Advice(
        "have numbers that are no bytes, {details}: of 16 bits the higher half is read, of floating point 0 to 255",
        "scale their numbers to bytes before",
    ),
    "frames": Advice("have several frames, of which the first is read", "save each frame as a file"),
}
"""By the kinds of notices of images and sounds."""


def data_warnings(source: DataSource, limits: AnswerLimits, data: Data, is_all: bool = True) -> Iterator[Fault]:
    """Yield all warnings of the data: those that `check` prints of what it reads, and `train` of all.

    limits: Of the model. data: With the pairs that it cannot write. is_all: Whether `data` are all. Raises DataError if
    the test is the training part.
    """
    recipe = source.recipe
    yield from answer_warnings(recipe, limits, data, is_all)
    yield from empty_warnings(recipe, data)
    yield from media_warnings(recipe, data)
    yield from overlap_warnings(source, data.pairs, is_all)
    yield from table_warnings(recipe, source.folders)
    yield from form_warnings(recipe, data)
    if recipe.data.text:
        yield from column_warnings(source)
    if recipe.window and data.train is not None and is_all:
        yield from window_warnings(recipe, data.train)


def column_warnings(source: DataSource) -> Iterator[Fault]:
    """Yield a warning of the name of a column where no file of a text has columns."""
    recipe, path = source.recipe, ("data", "text", "column")
    held_out = held_out_sizes(recipe.data.text)
    splits = [split for split in available_splits(recipe) if split not in held_out]
    files = [file for split in splits for file in find_files(recipe, split, source.folders)[0]]
    if recipe.locate(path)[2] and all(is_plain(file.path) for file in files):
        yield unused(recipe, path, "no file of the text has columns", "remove `column`")


def window_warnings(recipe: Recipe, train: Encoded) -> Iterator[Fault]:
    """Yield a warning of a window that is longer than the training text, and of more streams than it has tokens."""
    window, tokens = recipe.window, int(train.target.positions().sum())
    if window is None:
        return
    streams = recipe.training.tokens_per_batch // window
    message = f"the training text has {tokens:,} tokens"
    if window > tokens:
        yield recipe.fault("budget", ("training", "window"), f"{message}, fewer than a window", SMALLER).as_warning()
    elif recipe.carries_state and streams > tokens:
        path = ("training", "tokens_per_batch")
        yield recipe.fault("budget", path, f"{message}, and is cut into {streams:,} streams", SMALLER).as_warning()


SMALLER = "write a smaller number, or train on more text"


def answer_warnings(recipe: Recipe, limits: AnswerLimits, data: Data, is_all: bool = True) -> Iterator[Fault]:
    """Yield a warning of each thing for which answers are measured worse than they are, or not at all.

    is_all: Whether these are all data, and not a sample.
    """
    yield from script_warnings(recipe, data)
    yield from frame_warnings(recipe, limits, data)
    if recipe.sources:
        yield from length_warnings(recipe, data)
        yield from reference_warnings(recipe, data, is_all or not recipe.tokenizer.is_trained)


def length_warnings(recipe: Recipe, data: Data) -> Iterator[Fault]:
    """Yield a warning of references that are longer than answers may be by default: no answer can equal them."""
    decoding = recipe.decoding
    limits = {"max_length": decoding.max_length, "max_ratio": decoding.max_ratio}
    most, rate = (math.inf if recipe.locate((*decoding.at, key))[2] else limit for key, limit in limits.items())
    measured = [encoded for split, encoded in data.splits.items() if split != "train"] or [*data.splits.values()]
    cut, longest, ratio = 0, 0, 0.0
    for encoded in measured:
        source = np.max([ids.positions() for ids in encoded.sources.values()], axis=0)  # (rows,)
        target = encoded.target.lengths() + 1  # (rows,) with eos
        limit = np.minimum(most, np.ceil(rate * source) + MIN_LENGTH_LIMIT)
        if (longer := target > limit).any():
            cut, longest = cut + int(longer.sum()), max(longest, int(target[longer].max()))
            needed = (target - MIN_LENGTH_LIMIT)[longer] / np.maximum(source[longer], 1)
            ratio = max(ratio, float(needed.max()))
    if cut:
        values = {"max_length": longest, "max_ratio": math.ceil(ratio)}
        larger = ", ".join(f"{key}: {value}" for key, value in values.items() if value > limits[key])
        counts = f"{cut:,} of {sum(map(len, measured)):,} references"
        message = f"{counts} have more tokens, up to {longest:,}, than answers may have"
        yield recipe.fault("cut", decoding.at, message, f"write `{decoding.word}: {{{larger}}}`, or more").as_warning()


def reference_warnings(recipe: Recipe, data: Data, are_words_known: bool) -> Iterator[Fault]:
    """Yield a warning of the references of each split that the tokenizer cannot write, or that look tokenised."""
    tokenizer, metrics = recipe.data.tokenizer, recipe.evaluation.metrics
    for split, pairs in data.pairs.items():
        if split == "train":
            continue
        references = [pairs.sides[TARGET], *pairs.references]
        if message := lost_references(data.tokenizers, references, are_words_known).describe():
            hint = WRITE_CASE if recipe.data.lowercase else WRITE_ALL
            yield recipe.fault("unwritable", tokenizer.at, f"{split}: {message}", hint).as_warning()
        if "bleu" in (metrics or ["bleu"]) and (message := describe_tokenised(references)):
            hint = "detokenise them, and compare BLEU with no other until then"
            yield recipe.fault("tokenised", split_path(recipe, split), f"{split}: {message}", hint).as_warning()


WRITE_CASE = "remove `lowercase: true`, or give references in small letters and say that scores ignore case"
WRITE_ALL = "write `tokenizer: bpe` or `unigram`, which write every text, or leave out of the text what is lost"


def script_warnings(recipe: Recipe, data: Data) -> Iterator[Fault]:
    """Yield a warning if the references have no spaces between words, and BLEU's tokenizer splits only at spaces."""
    metrics, word = recipe.evaluation.metrics, recipe.evaluation.bleu_tokenizer
    measured = [line for split, encoded in data.splits.items() if split != "train" for line in encoded.lines]
    suggested = suggest_bleu_tokenizer(measured)
    if word == "13a" != suggested and recipe.sources and "bleu" in (metrics or ["bleu"]):
        message = "the references have no spaces between words, so `13a` finds no 4-grams for BLEU in them"
        hint = f"write `evaluation: {{bleu_tokenizer: {suggested}}}`"
        yield recipe.fault("script", ("evaluation", "bleu_tokenizer"), message, hint).as_warning()


def form_warnings(recipe: Recipe, data: Data) -> Iterator[Fault]:
    """Yield a warning of each side of a split whose accents are written in a way that the training has none of: as a
    letter with marks behind it (NFD), or as one character (NFC). They are other tokens, though they look alike.
    """
    if "train" not in data.pairs:
        return
    for split, pairs in data.pairs.items():
        for side in text_names(recipe) if split != "train" else ():
            trained = data.pairs["train"].sides[side]
            for form, other in FORMS:
                count = sum(has_form(line, form) for line in pairs.sides[side])
                if not count or any(has_form(line, form) for line in trained):
                    continue
                if not any(has_form(line, other) for line in trained):
                    continue
                message = (
                    f"{count:,} of {len(pairs):,} lines of the {side} have letters with accents in the form {form},"
                    f" and the training has them in {other} alone: to a model they are other letters"
                )
                hint = f"write all texts in one form, as `unicodedata.normalize('{other}', line)` of Python does"
                yield recipe.fault("form", split_path(recipe, split), message, hint).as_warning()


def has_form(line: str, form: Form) -> bool:
    """Return whether a line has letters with accents in one of Unicode's forms, which the other form writes apart."""
    if line.isascii():
        return False
    length, other = len(line), len(unicodedata.normalize("NFD" if form == "NFC" else "NFC", line))
    return other > length if form == "NFC" else other < length


def frame_warnings(recipe: Recipe, limits: AnswerLimits, data: Data) -> Iterator[Fault]:
    """Yield a warning if CTC has too few frames for answers, which are then left out of the loss."""
    counts = {split: int((~limits.have_frames(encoded)).sum()) for split, encoded in data.splits.items()}
    if any(counts.values()):
        total, impossible = sum(map(len, data.splits.values())), sum(counts.values())
        of_splits = ", ".join(f"{count:,} of {split}" for split, count in counts.items() if count)
        message = f"{impossible:,} of {total:,} {NO_FRAMES} ({of_splits}); they are left out of the loss"
        yield recipe.fault("length", ("model", "output", "ctc"), message, MORE_FRAMES).as_warning()


def empty_warnings(recipe: Recipe, data: Data) -> Iterator[Fault]:
    """Yield a warning of the empty cells of each column of text of a table, at the first, with the lines of all.

    Those of `parallel` the notes count: in aligned texts empty lines are usual.
    """
    table = recipe.data.table
    for split, pairs in data.pairs.items() if table else ():
        for side in text_names(recipe):
            lines = pairs.sides[side]
            by_file = defaultdict[str, list[int]](list)
            for path, line in (locate(lines, row) for row, text in enumerate(lines) if is_blank(text)):
                by_file[str(path)].append(line)
            column = table.of_side(side) if table else ""
            column = column.column if isinstance(column, TableColumn) else column
            total = f"{sum(map(len, by_file.values())):,} of {len(lines):,} cells of `{column}`"
            for file, empty in by_file.items():
                message = f"{total} are empty ({format_lines(empty)}): {_effect_of_empty(split, side)}"
                yield Fault(file, empty[0], 1, "empty", "", message, "fill them, or remove their lines").as_warning()


def _effect_of_empty(split: str, side: str) -> str:
    if split == "train":
        return "the training leaves these rows out"
    if side == TARGET:
        return "exact match and all other scores leave these rows out"
    return "these rows are measured, and the model reads nothing there"


def media_warnings(recipe: Recipe, data: Data) -> Iterator[Fault]:
    """Yield a warning of each thing that was noticed of a table's images or sounds, at the first line that has it."""
    groups = defaultdict[tuple[str, str, str], list[Remark]](list)
    totals = Counter[tuple[str, str]]()
    for side, lines, features in read_columns(data):
        file = str(locate(lines, 0)[0])
        totals[side, file] += len(lines)
        for remark in features.remarks:
            groups[side, file, remark.kind].append(remark)
    for (side, file, kind), group in groups.items():
        if kind != "grey" or not recipe.locate(("data", "table", side, "channels"))[2]:
            column = feature_settings(recipe.data, side)
            yield media_warning(kind, column.kind if column else "text", group, totals[side, file])


def read_columns(data: Data) -> Iterator[tuple[str, Sequence[str], Features]]:
    """Yield the sides of files, with the lines that were read and what is in the files; what splits share once."""
    seen = set[tuple[object, ...]]()
    for split, encoded in data.splits.items():
        for side, features in encoded.sources.items():
            lines = whole_column(data.pairs[split].sides[side])
            place = (side, len(lines), locate(lines, 0), locate(lines, len(lines) - 1))
            if isinstance(features, Features) and place not in seen:
                seen.add(place)
                yield side, lines, features


def media_warning(kind: str, medium: str, remarks: Sequence[Remark], total: int) -> Fault:
    """Return the warning of remarks of one kind about files of one table, of which so many were read."""
    counts = Counter[str]()
    for remark in remarks:
        counts[remark.detail] += remark.count
    count, first = counts.total(), min(remarks, key=lambda remark: (remark.file, remark.line))
    message, hint = ADVICE[kind]
    if kind == "rate" and count == total:
        hint = f"write `rate: {counts.most_common(1)[0][0]}`, or leave it at that"
    unit = " Hz" if kind == "rate" else ""
    details = ", ".join(f"{detail}{unit} ({number:,})" for detail, number in counts.most_common())
    noun = {"image": "image", "audio": "sound"}[medium]
    message = f"{count:,} of {total:,} {noun}s {message.format(details=details)}"
    return Fault(first.file, first.line, 1, kind, "", message, hint).as_warning()

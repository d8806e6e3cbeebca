"""Rules of images and sounds: remarks on their files, at the first line that has one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from composer.checks.problem import Problems
from composer.checks.read_data import ReadData, Rules
from composer.data.audio import SILENT_DB
from composer.data.columns import locate
from composer.data.encoding import Data
from composer.data.features import Features, Remark
from composer.data.token_cache import whole_column
from composer.errors import Fault
from composer.model.features import feature_settings


class Advice(NamedTuple):
    """The message and the fix for remarks on files; `{details}` stands for the remarks."""

    message: str
    hint: str


ADVICE = {
    "silent": Advice(
        f"never exceed {SILENT_DB} dB of full scale: they are as good as silent",
        "listen to them, and record them again or remove their lines",
    ),
    "rate": Advice(
        "have another rate than the column, and are resampled: {details}",
        "resample them before, or leave it at that",
    ),
    "header": Advice(
        "are longer than their header says, and are read to their end",
        "listen to what follows, and save them again, as WAV or FLAC",
    ),
    "end": Advice(
        "would end after their recording, and are read to its end", "correct their seconds"
    ),
    "cut": Advice(
        "are longer than the `seconds` of the column, and their end is not read",
        "name parts of them, `a.wav#t=0,30`, each with its own text",
    ),
    "blank": Advice(
        "have one colour everywhere as they are read",
        "look at them, and remove their lines if need be",
    ),
    "grey": Advice(
        "have colours, and are read in grey",
        "write `channels: 3`, or `channels: 1` if grey is enough",
    ),
    "transparent": Advice(
        "have transparent pixels, which become white", "give them the background that they need"
    ),
    "profile": Advice(
        "are {details}, and their colours are read without a profile", "save them as RGB"
    ),
    "depth": Advice(
        "have numbers that are no bytes, {details}: of 16 bits the higher half is read, of floating"
        " point 0 to 255",
        "scale their numbers to bytes before",
    ),
    "frames": Advice(
        "have several frames, of which the first is read", "save each frame as a file"
    ),
}
"""By the kinds of notices of images and sounds."""


def remarks(read: ReadData) -> Problems:
    """Nothing was noticed of a table's images or sounds."""
    recipe = read.recipe
    groups = defaultdict[tuple[str, str, str], list[Remark]](list)
    totals = Counter[tuple[str, str]]()
    for side, lines, features in read_columns(read.data):
        file = str(locate(lines, 0)[0])
        totals[side, file] += len(lines)
        for remark in features.remarks:
            groups[side, file, remark.kind].append(remark)
    for (side, file, kind), group in groups.items():
        if kind != "grey" or not recipe.locate(("data", "table", side, "channels")).is_written:
            column = feature_settings(recipe.data, side)
            yield warning_of(kind, column.kind if column else "text", group, totals[side, file])


def read_columns(data: Data) -> Iterator[tuple[str, Sequence[str], Features]]:
    """Yield the sides of files, with the lines and the files' content; shared files once."""
    seen = set[tuple[object, ...]]()
    for split, encoded in data.splits.items():
        for side, features in encoded.sources.items():
            lines = whole_column(data.pairs[split].sides[side])
            place = (side, len(lines), locate(lines, 0), locate(lines, len(lines) - 1))
            if isinstance(features, Features) and place not in seen:
                seen.add(place)
                yield side, lines, features


def warning_of(kind: str, medium: str, remarks: Sequence[Remark], total: int) -> Fault:
    """Return the warning for remarks of one kind on files of one table, with the number read."""
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


RULES: Rules = (remarks,)

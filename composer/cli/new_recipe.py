"""The recipe that `seqcomposer new` writes for a user's own text: commented, with a model size that suits the text."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from itertools import islice
from pathlib import Path
from string import Template
from typing import NamedTuple

from composer.atomic_io import atomic_new_file
from composer.data import tables, text_files
from composer.errors import DataError, Fault
from composer.recipe import schema_generator

MIN_PAIRS_TO_SPLIT = 50
"""Fewer pairs than these are all trained on: none can be spared for validation and test."""
MIN_PAIRS_TO_TRANSLATE = 10_000
"""From fewer pairs a model learns to write the language, and hardly to translate."""


class Preset(NamedTuple):
    """Sizes for corpora of up to `pairs` pairs: wide and deep models need many, small ones learn from few."""

    pairs: int
    width: int
    layers: int
    heads: int
    dropout: float
    vocabulary: int
    tokens_per_batch: int
    validate_every: int
    max_minutes: int


PRESETS = (
    Preset(2_000, 64, 2, 2, 0.3, 500, 800, 200, 5),
    Preset(10_000, 128, 2, 4, 0.3, 2000, 1000, 200, 10),
    Preset(100_000, 256, 3, 4, 0.2, 8000, 1200, 300, 30),
    Preset(1_000_000, 512, 4, 8, 0.1, 16_000, 8000, 1000, 360),
    Preset(10**12, 512, 6, 8, 0.1, 32_000, 25_000, 2000, 1440),
)


class RecipeTemplate(Template):
    """A template whose placeholders are `%{name}`, so that a recipe's own `$name` stays."""

    delimiter = "%"


TEMPLATE = RecipeTemplate(Path(__file__).with_name("new_recipe.template.yaml").read_text(encoding="utf-8"))


def new(source: str | Path, target: str | Path, output: str | Path | None = None) -> Path:
    """Write a recipe for two line-aligned texts and return its path, by default a name made from the texts' names.

    Raises DataError if the texts cannot be used, RunError if the file exists already.
    """
    source, target = Path(source), Path(target)
    pairs = count_pairs(source, target)
    output = Path(output or f"{recipe_name(source, target)}.yaml")
    with atomic_new_file(output) as file:
        file.write(fill_template(source, target, output, pairs).encode())
    return output


def next_steps(source: Path, target: Path, recipe: Path) -> list[str]:
    """Return what to tell the user about a recipe that was written: the split, the budget, and the next command."""
    pairs, empty = text_files.count_lines(source), count_empty(source, target)
    held_out = held_out_of(pairs) if pairs >= MIN_PAIRS_TO_SPLIT else 0
    split = f"{pairs - 2 * held_out:,} for training, {held_out:,} for validation and {held_out:,} for test"
    minutes = preset_for(pairs).max_minutes
    lines = [
        f"wrote {recipe}",
        f"{pairs:,} pairs: {split}" if held_out else f"{pairs:,} pairs, all for training",
        f"it trains for {minutes:,} minutes and shows its progress; set `training.max_minutes` to change that",
    ]
    if empty:
        lines.append(f"note: {empty:,} pairs have an empty side; they are left out of training")
    if pairs < MIN_PAIRS_TO_TRANSLATE:
        lines.append("note: so few pairs are enough to try everything; usable translations need tens of thousands")
    quoted = shlex.quote(str(recipe))
    return [*lines, f"next: seqcomposer check {quoted} && seqcomposer train {quoted}"]


def held_out_of(pairs: int) -> int:
    """Return how many pairs each of val and test gets: a tenth of few pairs, less of many."""
    return min(1000, max(1, pairs // 25, min(100, pairs // 10)))


def preset_for(pairs: int) -> Preset:
    """Return the preset for a corpus of so many pairs."""
    return next(preset for preset in PRESETS if pairs <= preset.pairs)


def count_empty(source: Path, target: Path) -> int:
    """Return how many pairs have an empty side."""
    with source.open(encoding="utf-8-sig", newline="\n") as one, target.open(encoding="utf-8-sig", newline="\n") as two:
        return sum(not (first.strip() and second.strip()) for first, second in zip(one, two, strict=True))


def fill_template(source: Path, target: Path, output: Path, pairs: int) -> str:
    """Return the recipe's text."""
    preset = preset_for(pairs)
    source_letters, target_letters = sample_letters(source), sample_letters(target)
    # one vocabulary serves both where most letters of either text occur in both
    shared, most = len(source_letters & target_letters), max(len(source_letters), len(target_letters))
    joint = bool(source_letters) and shared * 2 >= most
    schema = schema_generator.schema_path().resolve()
    is_in_clone = Path(os.path.realpath(output.parent)).is_relative_to(schema.parents[1])
    return TEMPLATE.substitute(
        preset._asdict() | {"pairs": f"{pairs:,}"},
        schema=_relative_to(schema, output) if is_in_clone else schema,  # relative, it can be shared
        file=output,
        name=_clean(output.stem),
        hidden=4 * preset.width,
        source=_quoted(_relative_to(source, output)),
        target=_quoted(_relative_to(target, output)),
        hold_out="" if pairs >= MIN_PAIRS_TO_SPLIT else "# ",
        held_out=held_out_of(pairs),
        joint=str(joint).lower(),
        why_joint="both sides use the same letters" if joint else "the two sides use different letters",
        tie="[source, target]" if joint else "[target]",
        learning_rate="2e-3" if preset.width < 512 else "7e-4",
    )


def count_pairs(source: Path, target: Path) -> int:
    """Return the number of pairs of two line-aligned texts. Raises DataError with everything wrong with the files."""
    if faults := [fault for path in (source, target) if (fault := _text_fault(path))]:
        raise DataError(faults)
    if source.samefile(target):
        message, fix = "this file is the source and the target", "name two files"
        if target.suffix.lower() in tables.KINDS:
            message = "this is one file with columns, and `new` takes two texts"
            columns = f"{{file: {target.name}, source: COLUMN, target: COLUMN}}"
            fix = f"cut it into two files, or write into a recipe `train: {columns}`"
        raise DataError([_fault(target, "file", message, fix)])
    pairs, target_lines = text_files.count_lines(source), text_files.count_lines(target)
    if pairs != target_lines:
        message = f"this file has {target_lines:,} lines, and `{source}` has {pairs:,}"
        raise DataError([_fault(target, "lines", message, "give every line its translation")])
    if count_empty(source, target) == pairs:
        message = f"no line has text both here and in `{source}`"
        raise DataError([_fault(target, "empty", message, "give every line its translation")])
    return pairs


def _text_fault(path: Path) -> Fault | None:
    """Return what is wrong with one text: missing, unreadable, not UTF-8, or lines that end with CR alone."""
    if text_files.find_file(path.name, [path.parent]) is None:
        missing = text_files.missing_file("", path.name, [path.parent])
        hint = missing.hint.replace("put the file there, or pass `--data DIR`", "check its name")
        return _fault(path, missing.code, missing.message, hint)
    if problem := text_files.check_readable("", path) or text_files.check_utf8("", path):
        return _fault(path, problem.code, problem.message, problem.hint)
    with path.open("rb") as file:
        start = file.read(text_files.READ_BYTES)
    if b"\n" in start or start.count(b"\r") < 2:
        return None
    message = f"the lines of `{path}` end with CR alone, so all of it is one line"
    return _fault(path, "lines", message, f"convert it with `tr '\\r' '\\n' < {shlex.quote(str(path))} > NEW`")


def sample_letters(path: Path) -> set[str]:
    """Return the letters of the first 20,000 lines of a text: enough to see which it uses."""
    with path.open(encoding="utf-8-sig") as lines:
        return {letter for line in islice(lines, 20_000) for letter in line.lower() if letter.isalpha()}


def recipe_name(source: Path, target: Path) -> str:
    """Return a name made from those of the files: train.en and train.de make `en-de`."""
    stem = source.stem if source.stem == target.stem else f"{source.stem}-{target.stem}"
    ends = [path.suffix.removeprefix(".") for path in (source, target)]
    return _clean("-".join(ends) if source.stem == target.stem and all(ends) and ends[0] != ends[1] else stem)


def _clean(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:100] or "mine"


def _relative_to(path: Path, recipe: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(recipe.parent))


def _quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_./-]*[A-Za-z_/][A-Za-z0-9_./-]*", text) and not text.startswith("-"):
        return text
    return "'" + text.replace("'", "''") + "'"


def _fault(path: Path, code: str, message: str, hint: str) -> Fault:
    return Fault(str(path), 1, 1, code, "", message, hint)

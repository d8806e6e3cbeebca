"""A first recipe for somebody's own text: commented, with sizes that suit the amount of it."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Template

from composer.data import tables, text_files
from composer.errors import DataError, Fault, RunError, os_error_reason
from composer.recipe import schema

SAMPLE = 20_000
"""Lines that are looked at to see which letters the two texts use."""
ENOUGH = 50
"""Pairs of which some can be spared to measure with."""
TRANSLATES = 10_000
"""From fewer pairs a model learns to write the language, hardly to translate."""
MOST_HELD = 1000


@dataclass(frozen=True)
class Sizes:
    """What suits a number of pairs: wide and deep models need many, small ones learn from few."""

    pairs: int  # up to this many
    width: int
    layers: int
    heads: int
    dropout: float
    vocabulary: int
    tokens: int
    validate: int
    minutes: int


SIZES = (
    Sizes(pairs=2_000, width=64, layers=2, heads=2, dropout=0.3, vocabulary=500, tokens=800, validate=200, minutes=5),
    Sizes(
        pairs=10_000, width=128, layers=2, heads=4, dropout=0.3, vocabulary=2000, tokens=1000, validate=200, minutes=10
    ),
    Sizes(
        pairs=100_000, width=256, layers=3, heads=4, dropout=0.2, vocabulary=8000, tokens=1200, validate=300, minutes=30
    ),
    Sizes(
        pairs=1_000_000,
        width=512,
        layers=4,
        heads=8,
        dropout=0.1,
        vocabulary=16_000,
        tokens=8000,
        validate=1000,
        minutes=360,
    ),
    Sizes(
        pairs=10**12,
        width=512,
        layers=6,
        heads=8,
        dropout=0.1,
        vocabulary=32_000,
        tokens=25_000,
        validate=2000,
        minutes=1440,
    ),
)


class Commented(Template):
    """A template that leaves the `${name}` of recipes alone."""

    delimiter = "%"


TEMPLATE = Commented("""\
# yaml-language-server: $schema=%{schema}
# %{pairs} pairs. Look at it with `seqcomposer plan %{file}`, then `seqcomposer train %{file}`.
# Anything here can be set for one run: `seqcomposer train %{file} vars.layers=4 training.max_minutes=60`.
recipe: 1
name: %{name}
vars: {width: %{width}, hidden: %{hidden}, layers: %{layers}, heads: %{heads}}   # sizes that suit this much text

data:
  parallel:                    # one sentence a line; line 7 of one file is the translation of line 7 of the other
    train: {source: %{source}, target: %{target}}
    # Text that is not trained on tells how good the model is. A number takes so many of these lines; files can be named
    # like those of `train`.
    %{hold}val: %{held}                   # watched while training; the best weights are kept
    %{hold}test: %{held}                  # measured by `seqcomposer evaluate`
  tokenizer: {bpe: {size: %{vocabulary}, joint: %{joint}}}    # pieces of words; joint: %{why_joint}
  max_length: 256              # longer training pairs are left out, and counted

model:
  width: ${width}
  dropout: %{dropout}                 # less with more text
  residual: {norm: pre}        # said once: every `residual` normalises first
  encoder:
    - positions: sinusoidal
    - repeat:
        times: ${layers}
        stack:
          - residual: [{self_attention: {heads: "${heads}"}}]
          - residual: [{feed_forward: {hidden: "${hidden}"}}]
    - norm
  decoder:
    - positions: sinusoidal
    - repeat:
        times: ${layers}
        stack:
          - residual: [{self_attention: {heads: "${heads}"}}]     # try `rnn: {cell: lstm}` here
          - residual: [{cross_attention: {heads: "${heads}"}}]
          - residual: [{feed_forward: {hidden: "${hidden}"}}]
    - norm
  output: {tie: %{tie}}    # one matrix for embeddings and output

training:
  optimizer: {adam: {learning_rate: %{rate}}}
  schedule: {cosine: {warmup_steps: 400}}       # falls to zero as the budget is spent
  tokens_per_batch: %{tokens}       # half of it, or `accumulate: 2`, where memory is short
  max_minutes: %{minutes}              # the budget; also max_steps, max_epochs
  label_smoothing: 0.1
  clip_norm: 1.0
  validate_every: %{validate}          # steps; how good it is shows then, and in `seqcomposer report runs/%{name}`
  seed: 1

decoding: {beam: {size: 5, length_penalty: 1.0}}
""")


def write_new_recipe(source: Path, target: Path, output: Path | None = None) -> Path:
    """Writes a recipe for two line-aligned texts and returns its path; `output` is LANGUAGES.yaml here without it.

    Raises DataError where the texts cannot be used, RunError where there is such a file already.
    """
    pairs = count_pairs(source, target)
    output = output or Path(f"{recipe_name(source, target)}.yaml")
    text = fill(source, target, output, pairs)
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise RunError.of(f"`{output}` is there already", "name another file with --output") from None
    except OSError as error:
        raise RunError.of(
            f"`{output}` cannot be written: {os_error_reason(error)}", "name another file with --output"
        ) from None
    return output


def next_steps(source: Path, target: Path, recipe: Path) -> list[str]:
    """What a person wants to know of a recipe that `write` has written: what it takes, what to expect, what is next."""
    pairs, blank = text_files.count_lines(source), blanks(source, target)
    held = held_of(pairs) if pairs >= ENOUGH else 0
    size, quoted = size_of(pairs), shlex.quote(str(recipe))
    parts = f"{pairs - 2 * held:,} to train on, {held:,} to watch it with (val) and {held:,} to measure with (test)"
    lines = [f"wrote {recipe}", f"{pairs:,} pairs: {parts}" if held else f"{pairs:,} pairs, all to train on"]
    lines.append(
        f"it will train for {size.minutes:,} minutes, and say how far it is; `training.max_minutes` is how long"
    )
    if blank:
        lines.append(f"note: {blank:,} pairs have an empty side; they are left out of training")
    if pairs < TRANSLATES:
        lines.append("note: so few pairs are enough to try everything; translations one can use need tens of thousands")
    return [*lines, f"next: seqcomposer check {quoted} && seqcomposer train {quoted}"]


def held_of(pairs: int) -> int:
    """How many pairs each of val and test takes: of few pairs a tenth, of many less."""
    return min(MOST_HELD, max(1, pairs // 25, min(100, pairs // 10)))


def size_of(pairs: int) -> Sizes:
    """The sizes for so many pairs."""
    return next(each for each in SIZES if pairs <= each.pairs)


def blanks(source: Path, target: Path) -> int:
    """How many pairs have a side with nothing on it."""
    with source.open(encoding="utf-8-sig", newline="\n") as one, target.open(encoding="utf-8-sig", newline="\n") as two:
        return sum(not (first.strip() and second.strip()) for first, second in zip(one, two, strict=True))


def fill(source: Path, target: Path, output: Path, pairs: int) -> str:
    """The recipe's text."""
    size = size_of(pairs)
    joint = share_letters(letters(source), letters(target))
    return TEMPLATE.substitute(
        schema=_schema_beside(output),
        pairs=f"{pairs:,}",
        file=output,
        name=_clean(output.stem),
        width=size.width,
        hidden=4 * size.width,
        layers=size.layers,
        heads=size.heads,
        source=_quoted(_beside(source, output)),
        target=_quoted(_beside(target, output)),
        vocabulary=size.vocabulary,
        hold="" if pairs >= ENOUGH else "# ",
        held=held_of(pairs),
        joint=str(joint).lower(),
        why_joint="both sides use the same letters" if joint else "the two sides use different letters",
        dropout=size.dropout,
        tie="[source, target]" if joint else "[target]",
        rate="2e-3" if size.width < 512 else "7e-4",
        tokens=size.tokens,
        validate=size.validate,
        minutes=size.minutes,
    )


def count_pairs(source: Path, target: Path) -> int:
    """How many pairs two texts make. Raises DataError with all that is wrong with the files."""
    found = {path: _problem(path) for path in (source, target)}
    if faults := [_fault(path, problem) for path, problem in found.items() if problem]:
        raise DataError(faults)
    if source.samefile(target):
        raise DataError([_fault(target, _twice(target))])
    counts = [text_files.count_lines(path) for path in (source, target)]
    if counts[0] != counts[1]:
        message = f"this file has {counts[1]:,} lines, and `{source}` has {counts[0]:,}"
        raise DataError([_fault(target, text_files.Problem("", "lines", message, "give every line its translation"))])
    if blanks(source, target) == counts[0]:
        message = f"no line has text both here and in `{source}`"
        raise DataError([_fault(target, text_files.Problem("", "empty", message, "give every line its translation"))])
    return counts[0]


def _problem(path: Path) -> text_files.Problem | None:
    if text_files.find(path.name, [path.parent]) is None:
        lost = text_files.missing("", path.name, [path.parent])
        return lost._replace(hint=lost.hint.replace("put the file there, or say `--data DIR`", "check its name"))
    return text_files.unusable("", path) or text_files.not_text("", path) or _old_breaks(path)


def _old_breaks(path: Path) -> text_files.Problem | None:
    """That a text has carriage returns where lines should end, so that it is one line."""
    with path.open("rb") as file:
        start = file.read(text_files.BLOCK)
    if b"\n" in start or start.count(b"\r") < 2:
        return None
    message = f"the lines of `{path}` end with CR alone, so all of it is one line"
    return text_files.Problem(
        "", "lines", message, f"convert it with `tr '\\r' '\\n' < {shlex.quote(str(path))} > NEW`"
    )


def _twice(path: Path) -> text_files.Problem:
    """That a text is named as its own translation; a table with both is told how it is used."""
    if path.suffix.lower() not in tables.KINDS:
        return text_files.Problem("", "file", "this file is the source and the target", "name two files")
    fix = (
        f"cut it into two files, or write into a recipe `train: {{file: {path.name}, source: COLUMN, target: COLUMN}}`"
    )
    return text_files.Problem("", "file", "this is one file with columns, and `new` takes two texts", fix)


def letters(path: Path) -> set[str]:
    """The letters of the first lines of a text."""
    with path.open(encoding="utf-8-sig") as lines:
        return {letter for line in islice(lines, SAMPLE) for letter in line.lower() if letter.isalpha()}


def share_letters(first: set[str], second: set[str]) -> bool:
    """Whether most letters of either text stand in both: then one vocabulary serves the two."""
    return bool(first) and len(first & second) * 2 >= max(len(first), len(second))


def recipe_name(source: Path, target: Path) -> str:
    """A name from the files: train.en and train.de make `en-de`."""
    stem = source.stem if source.stem == target.stem else f"{source.stem}-{target.stem}"
    ends = [path.suffix.removeprefix(".") for path in (source, target)]
    return _clean("-".join(ends) if source.stem == target.stem and all(ends) and ends[0] != ends[1] else stem)


def _clean(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:100] or "mine"


def _beside(path: Path, recipe: Path) -> str:
    """A path as a recipe says it: from its own folder."""
    return os.path.relpath(os.path.realpath(path), os.path.realpath(recipe.parent))


def _schema_beside(recipe: Path) -> str:
    """The schema's place: relative where the recipe lies in the same clone, so that it holds for a colleague too."""
    home = schema.schema_path().resolve()
    root = home.parents[1]
    inside = Path(os.path.realpath(recipe.parent)).is_relative_to(root)
    return _beside(home, recipe) if inside else str(home)


def _quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_./-]*[A-Za-z_/][A-Za-z0-9_./-]*", text) and not text.startswith("-"):
        return text
    return "'" + text.replace("'", "''") + "'"


def _fault(path: Path, problem: text_files.Problem) -> Fault:
    return Fault(str(path), 1, 1, problem.code, "", problem.message, problem.hint)

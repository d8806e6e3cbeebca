"""A first recipe for somebody's own text: commented, with sizes that suit the amount of it."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from string import Template

from composer.data import files
from composer.errors import DataError, Fault, RunError
from composer.language import schema

SAMPLE = 20_000
"""Lines that are looked at to see which letters the two texts use."""
ENOUGH = 50
"""Pairs of which some can be spared to measure with."""
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
    minutes: int


SIZES = (
    Sizes(pairs=2_000, width=64, layers=2, heads=2, dropout=0.3, vocabulary=500, tokens=800, minutes=5),
    Sizes(pairs=10_000, width=128, layers=2, heads=4, dropout=0.3, vocabulary=2000, tokens=1000, minutes=10),
    Sizes(pairs=100_000, width=256, layers=3, heads=4, dropout=0.2, vocabulary=8000, tokens=1200, minutes=30),
    Sizes(pairs=1_000_000, width=512, layers=4, heads=8, dropout=0.1, vocabulary=16_000, tokens=8000, minutes=360),
    Sizes(pairs=10**12, width=512, layers=6, heads=8, dropout=0.1, vocabulary=32_000, tokens=25_000, minutes=1440),
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
  seed: 1

decoding: {beam: {size: 5, length_penalty: 1.0}}
""")


def write(source: Path, target: Path, output: Path | None = None) -> Path:
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
            f"`{output}` cannot be written: {error.strerror}", "name another file with --output"
        ) from None
    return output


def fill(source: Path, target: Path, output: Path, pairs: int) -> str:
    """The recipe's text."""
    size = next(each for each in SIZES if pairs <= each.pairs)
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
        held=min(MOST_HELD, max(1, pairs // 25)),
        joint=str(joint).lower(),
        why_joint="both sides use the same letters" if joint else "the two sides use different letters",
        dropout=size.dropout,
        tie="[source, target]" if joint else "[target]",
        rate="2e-3" if size.width < 512 else "7e-4",
        tokens=size.tokens,
        minutes=size.minutes,
    )


def count_pairs(source: Path, target: Path) -> int:
    """How many pairs two texts make. Raises DataError with all that is wrong with the files."""
    found = {path: _problem(path) for path in (source, target)}
    if faults := [_fault(path, problem) for path, problem in found.items() if problem]:
        raise DataError(faults)
    counts = [files.count_lines(path) for path in (source, target)]
    if counts[0] != counts[1]:
        message = f"this file has {counts[1]:,} lines, and `{source}` has {counts[0]:,}"
        raise DataError([_fault(target, files.Problem("", "lines", message, "give every line its translation"))])
    return counts[0]


def _problem(path: Path) -> files.Problem | None:
    if files.find(path.name, [path.parent]) is None:
        return files.missing("", path.name, [path.parent])
    return files.unusable("", path) or files.not_text("", path)


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
    home = schema.home().resolve()
    root = home.parents[1]
    inside = Path(os.path.realpath(recipe.parent)).is_relative_to(root)
    return _beside(home, recipe) if inside else str(home)


def _quoted(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_./-]*[A-Za-z_/][A-Za-z0-9_./-]*", text) and not text.startswith("-"):
        return text
    return "'" + text.replace("'", "''") + "'"


def _fault(path: Path, problem: files.Problem) -> Fault:
    return Fault(str(path), 1, 1, problem.code, "", problem.message, problem.hint)

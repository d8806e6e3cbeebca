"""`seqcomposer new --table`: a recipe from images, sounds or vectors to text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from composer.cli import new_recipe
from composer.cli.new_recipe import (
    MIN_PAIRS_TO_SPLIT,
    PRESETS,
    Preset,
    Side,
    summary_lines,
)
from composer.data.audio import sound_length
from composer.data.columns import FileNames, RowSubset
from composer.data.feature_files import fault_of_row, load_frames, missing_files
from composer.data.images import image_notices, open_image
from composer.data.kaldi import check_folder, is_kaldi_folder
from composer.data.media_files import MediaError, kind_of, open_file, split_part
from composer.data.parallel_files import check_columns, open_table
from composer.errors import DataError, Fault
from composer.recipe.interpolation import recipe_text

FILES = 200
"""Files that are opened, spread evenly over the table."""
MAX_SIDE, MAX_POSITIONS = 128, 16
"""Largest pixels of an image's longer side, before and after the convolutions."""
POSITIONS_PER_SECOND = 25
"""Encoder outputs per second of sound after a pyramid of two levels; CTC allows no more tokens."""
ROWS_PER_BATCH = 32
TEMPLATE = new_recipe.RecipeTemplate(
    Path(__file__).with_name("new_table.template.yaml").read_text(encoding="utf-8")
)


class TableFacts(NamedTuple):
    """A table of `pairs` rows: its two columns, with statistics of some files and of all answers.

    `looks` are (height, width, channels) of images, (rate, seconds) of sounds, (width, number) of
    vectors; `tokens` are the answers' lengths in the same rows.
    """

    table: Path
    pairs: int
    kind: str
    source: str
    target: str
    looks: list[tuple[float, ...]]
    answers: Side
    tokens: list[int]

    @property
    def held_out(self) -> int:
        """The number of rows that each of val and test gets."""
        return new_recipe.validation_size(self.pairs) if self.pairs >= MIN_PAIRS_TO_SPLIT else 0

    @property
    def preset(self) -> Preset:
        """The preset for so many rows."""
        return next(preset for preset in PRESETS if self.pairs <= preset.pairs)

    @property
    def media(self) -> str:
        """The files in words: median and largest size."""
        first, first_most = np.quantile([look[0] for look in self.looks], [0.5, 1])
        second, second_most = np.quantile([look[1] for look in self.looks], [0.5, 1])
        if self.kind == "image":
            largest = f"{first_most:.0f} x {second_most:.0f}"
            return f"images of {first:.0f} x {second:.0f} pixels, up to {largest}"
        if self.kind == "vectors":
            return f"{second:.0f} vectors of {first:.0f} numbers, up to {second_most:.0f}"
        rates = Counter(rate for rate, *_ in self.looks)
        shown = ", ".join(f"{rate:,.0f} Hz" for rate, _ in rates.most_common())
        return f"sounds of {second:.1f} seconds, up to {second_most:.1f}; {shown}"


def inspect_table(table: Path, source: str, target: str) -> TableFacts:
    """Read two columns of a table. Raises DataError."""
    named = {"source": source, "target": target}
    problems = check_columns(str(table), named, [Path()])
    faults = [problem.in_file(table) for problem in problems]
    if not faults and is_kaldi_folder(table):
        faults = [*check_folder(table, {*named.values()})]
    if faults:
        raise DataError(faults)
    columns = open_table(table, named)
    rows = np.unique(np.linspace(0, len(columns["source"]) - 1, FILES).astype(int))
    if not (kind := kind_of(RowSubset(columns["source"], rows))):
        message = f"the column `{source}` names no images, sounds or vectors"
        pairs = recipe_text({"parallel": {"train": {"file": str(table), **named}}})
        fix = "name one that does with `--source`; for two columns of text, write a recipe with"
        fix += f" `data: {pairs}`"
        raise DataError([Fault(str(table), 0, 0, "column", "", message, fix)])
    files = FileNames(columns["source"], table if table.is_dir() else table.parent)
    if faults := missing_files(files, str(table)):
        raise DataError(faults)
    looks = [look_at_file(files, int(row), kind) for row in rows]
    answers = new_recipe.describe_side(columns["target"])
    is_word = has_few_words(answers, len(files))
    lines = RowSubset(columns["target"], rows)
    tokens = [len(line.split()) for line in lines] if is_word else [len(line) for line in lines]
    return TableFacts(table, len(files), kind, source, target, looks, answers, tokens)


def look_at_file(files: FileNames, row: int, kind: str) -> tuple[float, ...]:
    """Return the entry of `TableFacts.looks` for a file. Raises DataError."""
    name, part = split_part(files[row])
    try:
        with open_file(Path(name)) as file:
            if kind == "audio":
                return sound_length(file, part)
            if kind == "vectors":
                frames = load_frames(file)
                return frames.shape[1], len(frames)
            image, _ = open_image(file)
            return image.height, image.width, 3 if ("grey", "") in image_notices(image, 1) else 1
    except (MediaError, OSError) as error:
        problem = error
        if not isinstance(problem, MediaError):
            problem = MediaError("file", str(error), "restore it")
        fault = fault_of_row(files, row, str(files.folder), files[row], problem)
        raise DataError([fault]) from error


def has_few_words(answers: Side, pairs: int) -> bool:
    """True if answers are made of few, frequent words."""
    return new_recipe.has_few_symbols(answers, pairs // 5)


def fill_table_template(facts: TableFacts, output: Path) -> str:
    """Return the text of the recipe. All paths in it are relative."""
    preset, answers = facts.preset, facts.answers
    has_words = answers.is_spaced and not answers.is_word
    is_few = has_few_words(answers, facts.pairs)
    is_caption = facts.kind == "image" and has_words
    longest = answers.most_words if is_few or is_caption else answers.most_characters
    if is_few:
        tokenizer = "word"
    elif is_caption:
        tokenizer = f"{{word: {{size: {preset.vocabulary}}}}}"
    else:
        tokenizer = "char"
    if is_caption:
        metrics = "bleu, chrf, exact_match"
    elif is_few and answers.is_word:
        metrics = "exact_match"
    else:
        metrics = f"{'word' if has_words else 'character'}_error_rate, exact_match"
    mean = max(1, round(np.mean(facts.tokens))) + 1
    return TEMPLATE.substitute(
        preset._asdict() | settings_of(facts),
        head=new_recipe.schema_line(output),
        file=new_recipe.in_comment(output),
        name=new_recipe.quoted(new_recipe.clean_name(output.stem)),
        pairs=f"{facts.pairs:,}",
        media=facts.media,
        answers=answers,
        table=new_recipe.quoted(new_recipe.relative_to(facts.table, output)),
        hold_out="" if facts.held_out else "# ",
        held_out=facts.held_out or 1,
        source=new_recipe.quoted(facts.source),
        target=new_recipe.quoted(facts.target),
        tokenizer=tokenizer,
        max_length=max(64, new_recipe.round_up(longest * 5, 256) // 4),
        tokens_per_batch=new_recipe.round_up(ROWS_PER_BATCH * mean, 50),
        metrics=metrics,
    )


def settings_of(facts: TableFacts) -> dict[str, str]:
    """Return the column, the encoder and CTC of a recipe, for its template."""
    if facts.kind == "audio":
        rate, _ = Counter(int(rate) for rate, *_ in facts.looks).most_common(1)[0]
        encoder = [
            "linear",
            *["rnn: {bidirectional: true}", "pyramid"] * 2,
            "rnn: {bidirectional: true}",
        ]
        positions = [POSITIONS_PER_SECOND * seconds for _, seconds in facts.looks]
        # a label of all of a sound does not follow it
        has_ctc = max(facts.tokens) > 1 and np.mean(np.array(facts.tokens) <= positions) > 0.95
        ctc = (
            "  output: {ctc: {weight: 0.3}}    # a second cost: what is said follows the sound,"
            " frame by frame\n"
        )
        column = f"kind: audio, rate: {max(1000, rate)}, spec_augment: {{bands: 5, frames: 10}}"
        return {"column": column, "encoder": listed(encoder), "ctc": ctc if has_ctc else ""}
    if facts.kind == "vectors":
        width, _ = Counter(width for width, _ in facts.looks).most_common(1)[0]
        encoder = ["linear", *["rnn: {bidirectional: true}"] * 2]
        return {"column": f"kind: vectors, width: {width}", "encoder": listed(encoder), "ctc": ""}
    height, width, channels = np.max(facts.looks, axis=0)
    scale = min(1.0, MAX_SIDE / max(height, width))
    size = [max(1, math.ceil(side * scale)) for side in (height, width)]
    levels = max(1, math.ceil(math.log2(max(size) / MAX_POSITIONS)))
    widths = [min(facts.preset.width, 32 << level) for level in range(levels)]
    encoder = [f"conv2d: {{stride: [2, 2], width: {own}, activation: relu}}" for own in widths]
    column = f"kind: image, size: [{size[0]}, {size[1]}]{', channels: 3' if channels == 3 else ''}"
    return {
        "column": column,
        "encoder": listed([*encoder, "linear", "positions: learned", "flatten"]),
        "ctc": "",
    }


def listed(blocks: Sequence[str]) -> str:
    """Return the lines of a list of blocks in a recipe."""
    return "\n".join(f"    - {block}" for block in blocks)


def table_steps(facts: TableFacts, recipe: Path) -> list[str]:
    """Return the lines that `new` prints: the split, the columns, the next command."""
    described = [f"{facts.source}: {facts.media}", f"{facts.target}: {facts.answers}"]
    return summary_lines(recipe, facts.pairs, "rows", facts.held_out, facts.preset, described)

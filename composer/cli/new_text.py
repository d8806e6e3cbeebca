"""`seqcomposer new` without `--source`: a recipe for a language model."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from composer.cli import new_recipe
from composer.cli.new_recipe import (
    MIN_PAIRS_TO_SPLIT,
    PAIR_CHARACTERS,
    PRESETS,
    Preset,
    Side,
)
from composer.data.corpora import open_documents
from composer.data.documents import is_plain
from composer.data.tables import check_first_names, text_columns
from composer.data.text_files import matching_files, missing_file, suffix_of
from composer.errors import DataError, Fault
from composer.text_lines import is_blank

HEAD = 1 << 22
"""Characters at the beginning of a text from which it is described."""
WINDOW, WIDE_WINDOW, WIDE = 64, 256, 512
"""Tokens of a window, of a wide model's window, and the width from which a model is wide."""
BLANK = 0.01
"""The share of blank lines above which they separate paragraphs."""
SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")
"""Suffixes of text files in a folder, of compressed files without the suffix of the compression."""
TEMPLATE = new_recipe.RecipeTemplate(
    Path(__file__).with_name("new_text.template.yaml").read_text(encoding="utf-8")
)


class TextFacts(NamedTuple):
    """A text: its files, the column with the text if they have columns, and its size.

    `names` are files and patterns as given, `paths` the files. `unit` is the document: `line` or
    `paragraph`.
    """

    names: tuple[str, ...]
    paths: tuple[Path, ...]
    column: str | None
    unit: str
    documents: int
    characters: int
    lines: Side

    @property
    def is_of_words(self) -> bool:
        """True if a document is one word."""
        return self.lines.is_word and self.unit == "line"

    @property
    def held_out(self) -> int:
        """The number of documents that each of val and test gets."""
        is_enough = self.documents >= MIN_PAIRS_TO_SPLIT
        return new_recipe.validation_size(self.documents) if is_enough else 0

    @property
    def preset(self) -> Preset:
        """The preset for so much text."""
        pairs = self.characters / PAIR_CHARACTERS
        return next(preset for preset in PRESETS if pairs <= preset.pairs)


def inspect_text(targets: Sequence[str], column: str | None = None) -> TextFacts:
    """Read the files, patterns and folders of a text.

    Args:
        column: The key of JSON lines, or the column of Parquet, with the text; by default `text`,
            or the only one of text.

    Raises:
        DataError: If a file is missing, cannot be read or has no text.
    """
    names: list[str] = []
    paths: list[Path] = []
    faults: list[Fault] = []
    for target in targets:
        for name in patterns_of(target):
            files = matching_files(name, [Path()])
            if not files:
                faults.append(missing_file(name, [Path()]).in_file(name))
            names.append(name)
            paths += files
    if faults:
        raise DataError(faults)
    column = choose_column([path for path in paths if not is_plain(path)], column)
    lines = open_documents(paths, "line", column or "text")
    if not any(facts.words for facts in lines.facts):
        message, hint = "there is no text in it", "name a file with text"
        raise DataError([Fault(str(paths[0]), 1, 1, "empty", "", message, hint)])
    head = lines.head(HEAD)
    blank = sum(is_blank(line) for line in head)
    unit = "paragraph" if blank > BLANK * len(head) and any(map(is_plain, paths)) else "line"
    facts = open_documents(paths, unit, column or "text").facts
    return TextFacts(
        names=tuple(names),
        paths=tuple(paths),
        column=column,
        unit=unit,
        documents=sum(file.documents for file in facts),
        characters=sum(file.characters for file in facts),
        lines=new_recipe.describe_side(head),
    )


def patterns_of(target: str) -> list[str]:
    """Return a file or pattern itself, or a pattern for each suffix in a folder."""
    folder = Path(target)
    if not folder.is_dir():
        return [target]
    # as a pattern finds them, without names that begin with a dot
    paths = [folder / name for name in glob.glob("**", root_dir=folder, recursive=True)]
    files = [path for path in paths if suffix_of(path)[0] in SUFFIXES]
    files = [path for path in files if path.is_file()]
    if not files:
        message = f"this folder has no file that ends in {', '.join(SUFFIXES)}"
        fix = f"name the files: `--target '{target}/*.xyz'`"
        raise DataError([Fault(target, 0, 0, "file", "", message, fix)])
    start = glob.escape(target)
    if any(path.parent != folder for path in files):
        start += "/**"
    suffixes = {full_suffix(path) for path in files}
    return [f"{start}/*{suffix}" for suffix in sorted(suffixes)]


def text_name(target: str) -> str:
    """Return a name made from that of a file, a folder, or the last folder of a pattern."""
    path = Path(os.path.abspath(target))
    if not path.exists():
        path = next(parent for parent in (path, *path.parents) if not glob.has_magic(parent.name))
    name = path.name if path.is_dir() else path.stem
    is_compressed = path.is_file() and suffix_of(path)[1]
    return new_recipe.clean_name(Path(name).stem if is_compressed else name)


def full_suffix(path: Path) -> str:
    """Return the suffix of a file, with that of its compression."""
    return "".join(path.suffixes[-2:] if suffix_of(path)[1] else path.suffixes[-1:])


def choose_column(paths: Sequence[Path], column: str | None) -> str | None:
    """Return the column with the text, None if no file has columns. Raises DataError."""
    if not paths:
        return None
    shared = list(text_columns(paths[0]))
    for path in paths[1:]:
        columns = text_columns(path)
        shared = [name for name in shared if name in columns]
    if not column:
        column = shared[0] if len(shared) == 1 else "text"
    hint = f"name the one with the text, `--column {shlex.quote(shared[0])}`" if shared else ""
    faults = []
    for path in paths:
        for problem in check_first_names(path, {"": column}):
            fault = problem.in_file(path)
            faults.append(replace(fault, hint="; ".join(filter(None, (hint, fault.hint)))))
    if faults:
        raise DataError(faults)
    return column


def text_steps(text: TextFacts, recipe: Path) -> list[str]:
    """Return the lines that `new` prints: the split, the text, the next command."""
    tokenizer, reason = choose_text_tokenizer(text)
    described = [f"target: {text.lines}", f"tokenizer {tokenizer.partition(':')[0]}: {reason}"]
    notes, noun = new_recipe.location_notes(text.paths, recipe), f"{text.unit}s"
    return new_recipe.summary_lines(
        recipe, text.documents, noun, text.held_out, text.preset, described, notes
    )


def choose_text_tokenizer(text: TextFacts) -> tuple[str, str]:
    """Return the tokenizer of a recipe, and the reason for it."""
    lines, size = text.lines, text.preset.vocabulary
    if text.is_of_words:
        return "char", "a line is one word"
    if new_recipe.has_many_characters(lines, size):
        return "char", "too many different characters for so little text to learn words of them"
    if new_recipe.has_few_symbols(lines, text.documents // 20):
        return "word: {split: spaces}", f"few different symbols between spaces, {lines.vocabulary}"
    return f"bpe: {{size: {size}}}", "subwords"


def fill_text_template(text: TextFacts, output: Path) -> str:
    """Return the text of the recipe. All paths in it are relative."""
    preset = text.preset
    tokenizer, reason = choose_text_tokenizer(text)
    named = [new_recipe.quoted(new_recipe.relative_pattern(name, output)) for name in text.names]
    window = WIDE_WINDOW if preset.width >= WIDE else WINDOW
    return TEMPLATE.substitute(
        preset._asdict(),
        head=new_recipe.schema_line(output),
        documents=f"{text.documents:,}",
        unit=text.unit,
        lines=text.lines,
        file=new_recipe.in_comment(output),
        name=new_recipe.quoted(new_recipe.clean_name(output.stem)),
        train=named[0] if len(named) == 1 else f"[{', '.join(named)}]",
        column=""
        if text.column in (None, "text")
        else f"    column: {new_recipe.quoted(text.column)}\n",
        hold_out="" if text.held_out else "# ",
        held_out=text.held_out or 1,
        tokenizer=f"{{{tokenizer}}}" if ":" in tokenizer else tokenizer,
        why_tokenizer=reason,
        hidden=-(-preset.width // 3) * 8,
        learning_rate="1e-3" if preset.width < WIDE else "6e-4",
        # a line that is one word tells nothing of the next one
        window=""
        if text.is_of_words
        else f"  window: {window}                   # tokens of a row\n",
    )

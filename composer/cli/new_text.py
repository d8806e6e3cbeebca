"""The recipe that `seqcomposer new` writes for a text without a source: a language model."""

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
    MANY_CHARACTERS,
    MAX_SYMBOLS,
    MIN_PAIRS_TO_SPLIT,
    PRESETS,
    Preset,
    Side,
)
from composer.data.corpora import open_documents
from composer.data.documents import is_plain
from composer.data.tables import check_first_names, text_columns
from composer.data.text_files import matching_files, missing_file, suffix_of
from composer.errors import DataError, Fault
from composer.recipe.text_lines import is_blank

HEAD = 1 << 22
"""Characters at the beginning of a text that are looked at closely."""
WINDOW, WIDE_WINDOW, WIDE = 64, 256, 512
"""Tokens of a window, those of a wide model's, and how wide that is."""
BLANK = 0.01
"""The share of blank lines above which they part paragraphs."""
SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")
"""How files of text in a folder end, packed ones before the end of their package."""
TEMPLATE = new_recipe.RecipeTemplate(
    Path(__file__).with_name("new_text.template.yaml").read_text(encoding="utf-8")
)


class TextFacts(NamedTuple):
    """A text: names and patterns of its files, these, the column with the text of those that have
    columns, whether its
    documents are lines or paragraphs, what all have together, and what lines look like.
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
        """Whether a document is one word."""
        return self.lines.is_word and self.unit == "line"

    @property
    def held_out(self) -> int:
        """How many documents each of val and test gets."""
        return new_recipe.held_out_of(self.documents) if self.documents >= MIN_PAIRS_TO_SPLIT else 0

    @property
    def preset(self) -> Preset:
        """The preset for so much text."""
        return next(
            preset for preset in PRESETS if self.characters / MANY_CHARACTERS <= preset.pairs
        )


def inspect_text(targets: Sequence[str], column: str | None = None) -> TextFacts:
    """Return what a text looks like: files, packed or not, patterns, and folders, whose files of
    text are meant.

    column: The key of JSON lines, or the column of Parquet, with the text; by default `text`, or
    the only one of text.
    Raises DataError.
    """
    names = [name for target in targets for name in patterns_of(target)]
    paths_of = {name: matching_files(name, [Path()]) for name in names}
    if faults := [
        missing_file(name, [Path()]).in_file(name) for name, paths in paths_of.items() if not paths
    ]:
        raise DataError(faults)
    paths = [path for name in names for path in paths_of[name]]
    column = choose_column([path for path in paths if not is_plain(path)], column)
    lines = open_documents(paths, "line", column or "text")
    first = str(paths[0])
    if not any(facts.words for facts in lines.facts):
        raise DataError(
            [Fault(first, 1, 1, "empty", "", "there is no text in it", "name a file with text")]
        )
    head = lines.head(HEAD)
    blank = sum(is_blank(line) for line in head)
    unit = "paragraph" if blank > BLANK * len(head) and any(map(is_plain, paths)) else "line"
    facts = open_documents(paths, unit, column or "text").facts
    documents, characters = (
        sum(own.documents for own in facts),
        sum(own.characters for own in facts),
    )
    side = new_recipe.describe_side(head)
    return TextFacts(tuple(names), tuple(paths), column, unit, documents, characters, side)


def patterns_of(target: str) -> list[str]:
    """Return the names of files and patterns that a target means: itself, or one for each suffix in
    a folder.
    """
    folder = Path(target)
    if not folder.is_dir():
        return [target]
    # as a pattern finds them, without what begins with a dot
    paths = (folder / name for name in glob.glob("**", root_dir=folder, recursive=True))
    files = [path for path in paths if path.is_file() and suffix_of(path)[0] in SUFFIXES]
    if not files:
        message = f"this folder has no file that ends in {', '.join(SUFFIXES)}"
        fix = f"name the files: `--target '{target}/*.xyz'`"
        raise DataError([Fault(target, 0, 0, "file", "", message, fix)])
    start = glob.escape(target) + ("/**" if any(path.parent != folder for path in files) else "")
    return [
        f"{start}/*{suffix}" for suffix in sorted({"".join(full_suffix(path)) for path in files})
    ]


def text_name(target: str) -> str:
    """Return a name made from that of a file, a folder, or the last folder of a pattern."""
    path = Path(os.path.abspath(target))
    if not path.exists():
        path = next(parent for parent in (path, *path.parents) if not glob.has_magic(parent.name))
    is_packed = path.is_file() and suffix_of(path)[1]
    return new_recipe.clean_name(
        Path(path.stem).stem if is_packed else path.name if path.is_dir() else path.stem
    )


def full_suffix(path: Path) -> list[str]:
    """Return the suffixes of a file as they stand in its name: its own, and that of what is packed
    in it.
    """
    return path.suffixes[-2:] if suffix_of(path)[1] else path.suffixes[-1:]


def choose_column(paths: Sequence[Path], column: str | None) -> str | None:
    """Return the column with the text of files that have columns, None without such files. Raises
    DataError.
    """
    if not paths:
        return None
    shared = [
        name
        for name in text_columns(paths[0])
        if all(name in text_columns(path) for path in paths[1:])
    ]
    column = column or ("text" if "text" in shared or len(shared) != 1 else shared[0])
    faults = [
        problem.in_file(path) for path in paths for problem in check_first_names(path, {"": column})
    ]
    if faults:
        hint = f"name the one with the text, `--column {shlex.quote(shared[0])}`" if shared else ""
        raise DataError(
            replace(fault, hint="; ".join(filter(None, (hint, fault.hint)))) for fault in faults
        )
    return column


def text_steps(text: TextFacts, recipe: Path) -> list[str]:
    """Return what to tell the user about a recipe for a text: the split, what was seen, the next
    command.
    """
    tokenizer, reason = choose_text_tokenizer(text)
    seen = [f"target: {text.lines}", f"tokenizer {tokenizer.partition(':')[0]}: {reason}"]
    notes, what = new_recipe.elsewhere_notes(text.paths, recipe), f"{text.unit}s"
    return new_recipe.written_recipe(
        recipe, text.documents, what, text.held_out, text.preset, seen, notes
    )


def choose_text_tokenizer(text: TextFacts) -> tuple[str, str]:
    """Return what a recipe says of its tokenizer, and why."""
    lines, size = text.lines, text.preset.vocabulary
    if text.is_of_words:
        return "char", "a line is one word"
    if not lines.is_spaced and 3 * lines.alphabet > size:
        return "char", "too many different characters for so little text to learn words of them"
    if lines.is_spaced and lines.vocabulary <= min(MAX_SYMBOLS, text.documents // 20):
        return "word: {split: spaces}", f"few different symbols between spaces, {lines.vocabulary}"
    return f"bpe: {{size: {size}}}", "pieces of words"


def fill_text_template(text: TextFacts, output: Path) -> str:
    """Return the recipe's text. No path in it begins at the root of this machine."""
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

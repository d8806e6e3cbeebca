"""The recipe that `seqcomposer new` writes for a text without a source: a language model."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from composer.cli import new_recipe
from composer.cli.new_recipe import MANY_CHARACTERS, MAX_SYMBOLS, MIN_PAIRS_TO_SPLIT, PRESETS, Preset, Side
from composer.data.corpora import open_documents
from composer.data.documents import FileFacts, is_plain
from composer.errors import DataError, Fault
from composer.recipe.text_lines import is_blank

HEAD = 1 << 22
"""Characters at the beginning of a text that are looked at closely."""
WINDOW, WIDE_WINDOW, WIDE = 64, 256, 512
"""Tokens of a window, those of a wide model's, and how wide that is."""
BLANK = 0.01
"""The share of blank lines above which they part paragraphs."""
TEMPLATE = new_recipe.RecipeTemplate(Path(__file__).with_name("new_text.template.yaml").read_text(encoding="utf-8"))


class TextFacts(NamedTuple):
    """A file of text: whether its documents are lines or paragraphs, how many, and what lines look like."""

    path: Path
    unit: str
    facts: FileFacts
    lines: Side

    @property
    def is_of_words(self) -> bool:
        """Whether a document is one word."""
        return self.lines.is_word and self.unit == "line"

    @property
    def held_out(self) -> int:
        """How many documents each of val and test gets."""
        count = self.facts.documents
        return new_recipe.held_out_of(count) if count >= MIN_PAIRS_TO_SPLIT else 0

    @property
    def preset(self) -> Preset:
        """The preset for so much text."""
        return next(preset for preset in PRESETS if self.facts.characters / MANY_CHARACTERS <= preset.pairs)


def inspect_text(path: Path) -> TextFacts:
    """Return what a text looks like: a file, packed or not; of JSON lines and Parquet the column `text`.

    Raises DataError.
    """
    lines = open_documents([path], "line", "text")
    try:
        (facts,) = lines.facts
    except DataError as error:
        hint = f"call it `text`, or write a recipe with `data: {{text: {{train: {path.name}, column: ...}}}}`: "
        faults = [replace(it, hint=hint + it.hint) if it.code == "column" else it for it in error.faults]
        raise DataError(faults) from error
    if not facts.words:
        raise DataError([Fault(str(path), 1, 1, "empty", "", "there is no text in it", "name a file with text")])
    head = lines.head(HEAD)
    blank = sum(map(is_blank, head))
    unit = "paragraph" if blank > BLANK * len(head) and is_plain(path) else "line"
    (facts,) = open_documents([path], unit, "text").facts
    return TextFacts(path, unit, facts, new_recipe.describe_side(head))


def text_steps(text: TextFacts, recipe: Path) -> list[str]:
    """Return what to tell the user about a recipe for a text: the split, what was seen, the next command."""
    tokenizer, reason = choose_text_tokenizer(text)
    seen = [f"target: {text.lines}", f"tokenizer {tokenizer.partition(':')[0]}: {reason}"]
    notes, what = new_recipe.elsewhere_notes([text.path], recipe), f"{text.unit}s"
    return new_recipe.written_recipe(recipe, text.facts.documents, what, text.held_out, text.preset, seen, notes)


def choose_text_tokenizer(text: TextFacts) -> tuple[str, str]:
    """Return what a recipe says of its tokenizer, and why."""
    lines, size = text.lines, text.preset.vocabulary
    if text.is_of_words:
        return "char", "a line is one word"
    if not lines.is_spaced and 3 * lines.alphabet > size:
        return "char", "too many different characters for so little text to learn words of them"
    if lines.is_spaced and lines.vocabulary <= min(MAX_SYMBOLS, text.facts.documents // 20):
        return "word: {split: spaces}", f"few different symbols between spaces, {lines.vocabulary}"
    return f"bpe: {{size: {size}}}", "pieces of words"


def fill_text_template(text: TextFacts, output: Path) -> str:
    """Return the recipe's text. No path in it begins at the root of this machine."""
    preset = text.preset
    tokenizer, reason = choose_text_tokenizer(text)
    window = WIDE_WINDOW if preset.width >= WIDE else WINDOW
    return TEMPLATE.substitute(
        preset._asdict(),
        head=new_recipe.schema_line(output),
        documents=f"{text.facts.documents:,}",
        unit=text.unit,
        lines=text.lines,
        file=shlex.quote(output.name),
        name=new_recipe.quoted(new_recipe.clean_name(output.stem)),
        train=new_recipe.quoted(new_recipe.relative_to(text.path, output)),
        hold_out="" if text.held_out else "# ",
        held_out=text.held_out or 1,
        tokenizer=f"{{{tokenizer}}}" if ":" in tokenizer else tokenizer,
        why_tokenizer=reason,
        hidden=-(-preset.width // 3) * 8,
        learning_rate="1e-3" if preset.width < WIDE else "6e-4",
        # a line that is one word tells nothing of the next one
        window="" if text.is_of_words else f"  window: {window}                   # tokens of a row\n",
    )

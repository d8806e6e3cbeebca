"""`seqcomposer new` for parallel text: a commented recipe with suitable tokenizer and sizes."""

from __future__ import annotations

import glob
import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from string import Template
from typing import Literal, NamedTuple

import numpy as np

from composer.atomic_io import atomic_new_file
from composer.data.columns import RowSubset, open_texts
from composer.data.line_hashes import line_hashes
from composer.errors import DataError, Fault, RecipeError, RunError
from composer.metrics.bleu import TOKENIZER_PACKAGES, suggest_bleu_tokenizer
from composer.recipe.interpolation import recipe_text
from composer.recipe.schema_file import schema_path
from composer.recipe.yaml_reader import parse_value
from composer.text_lines import is_blank

MIN_PAIRS_TO_SPLIT = 50
"""With fewer pairs than this, none is held out for validation and test."""
MIN_PAIRS_TO_TRANSLATE = 10_000
"""With fewer pairs than this, a model learns the language but hardly to translate."""
SAMPLE = 20_000
"""Random lines of a text from which it is described."""
PAIR_CHARACTERS = 100
"""Characters of a pair of sentences; a shorter pair counts as a part of one."""
MAX_WORD_CHARACTERS = 128
"""Longest word that is cut into characters."""
MAX_SYMBOLS = 64
"""Most different words of a text that is treated as a sequence of symbols."""
MAX_LENGTH = 1024
"""Largest `max_length` that is chosen by the text."""


class Preset(NamedTuple):
    """Sizes of a model and its training for corpora of up to `pairs` pairs."""

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


NO_SCHEMA = (
    "# For completion in an editor: `seqcomposer schema > recipe.schema.json`, and in place of this"
    " line\n#   yaml-language-server: $schema=recipe.schema.json"
)
TEMPLATE = RecipeTemplate(
    Path(__file__).with_name("new_recipe.template.yaml").read_text(encoding="utf-8")
)


class Side(NamedTuple):
    """Statistics of the lines of one text, from a sample of them.

    `words` and `characters` are medians; `most_words` and `most_characters` bound 99.9% of lines.
    """

    words: float
    most_words: int
    characters: float
    most_characters: int
    vocabulary: int
    alphabet: int
    letters: frozenset[str]
    scripts: tuple[str, ...]
    bleu_tokenizer: str

    @property
    def is_spaced(self) -> bool:
        """True if its words are separated by spaces."""
        return self.bleu_tokenizer == "13a"

    @property
    def is_word(self) -> bool:
        """True if most lines are one word."""
        return self.is_spaced and self.words <= 1

    def __str__(self) -> str:
        words = "one word" if self.is_word else f"{self.words:.0f} words"
        first = f"{words} and" if self.is_spaced else "no spaces between words,"
        letters = f"; {', '.join(self.scripts)} letters" if self.scripts else ""
        return (
            f"{first} {self.characters:.0f} characters a line, 99.9% of lines up to"
            f" {self.most_characters:,}{letters}"
        )


class Corpus(NamedTuple):
    """Two line-aligned texts, with statistics of their lines.

    Each of val and test gets `held_out` pairs. `empty` pairs have a side without text.
    """

    source: Path
    target: Path
    pairs: int
    held_out: int
    sides: tuple[Side, Side]
    empty: int

    @property
    def is_of_words(self) -> bool:
        """True if a line of either text is one word."""
        return any(side.is_word for side in self.sides)

    @property
    def preset(self) -> Preset:
        """The preset for so much text."""
        share = min(1.0, sum(side.characters for side in self.sides) / PAIR_CHARACTERS)
        return next(preset for preset in PRESETS if self.pairs * share <= preset.pairs)


def write_recipe(name: str, output: Path | None, fill: Callable[[Path], str]) -> Path:
    """Write a recipe, by default to the file `name`, and return its path.

    `fill` returns its text, given the path. Raises RunError if the file exists already.
    """
    if output and output.is_dir():
        hint = f"name the file to write, `--output {output / name}`"
        raise RunError.of("this is a folder", hint, str(output))
    output = output or Path(name)
    with atomic_new_file(output) as file:
        file.write(fill(output).encode())
    return output


def next_steps(corpus: Corpus, recipe: Path) -> list[str]:
    """Return the lines that `new` prints: the split, the two texts, the next command."""
    tokenizer = choose_tokenizer(corpus)
    source, target = corpus.sides
    described = [
        f"source: {source}",
        f"target: {target}",
        f"tokenizer {tokenizer.kind}: {tokenizer.reason}",
    ]
    notes = []
    if corpus.empty:
        notes.append(f"{corpus.empty:,} pairs have an empty side; they are left out of training")
    if corpus.pairs < MIN_PAIRS_TO_TRANSLATE and tokenizer.kind == "bpe":
        notes.append(
            "so few pairs are enough to try everything; usable translations need tens of thousands"
        )
    notes += location_notes([corpus.source, corpus.target], recipe)
    return summary_lines(
        recipe, corpus.pairs, "pairs", corpus.held_out, corpus.preset, described, notes
    )


def summary_lines(
    recipe: Path,
    count: int,
    noun: str,
    held_out: int,
    preset: Preset,
    described: Sequence[str],
    notes: Sequence[str] = (),
) -> list[str]:
    """Return the lines that `new` prints about a recipe for `count` pairs, rows or documents."""
    split = "all for training"
    if held_out:
        split = f"{count - 2 * held_out:,} for training, {held_out:,} for validation"
        split += f" and {held_out:,} for test"
    minutes, quoted = preset.max_minutes, shlex.quote(str(recipe))
    return [
        f"wrote {recipe}",
        f"{count:,} {noun}: {split}" if held_out else f"{count:,} {noun}, {split}",
        *described,
        (
            f"it trains for {minutes:,} minutes (processor time on a CPU); set"
            " `training.max_minutes` to change that"
        ),
        *(f"note: {note}" for note in notes),
        f"next: seqcomposer check {quoted} && seqcomposer train {quoted}",
    ]


def location_notes(texts: Sequence[Path], recipe: Path) -> list[str]:
    """Return a note if texts are outside the folder of their recipe."""
    if not any(relative_to(path, recipe).startswith("..") for path in texts):
        return []
    return ["the text is not in the folder of the recipe; put it there before you share it"]


def validation_size(pairs: int) -> int:
    """Return the number of pairs held out for each of val and test."""
    return min(1000, max(1, pairs // 25, min(100, pairs // 10)))


def inspect(source: Path, target: Path) -> Corpus:
    """Read two line-aligned texts. Raises DataError with every fault of the files."""
    columns = [*open_texts({"source": source, "target": target}).values()]
    pairs = len(columns[0])
    sources, targets = map(line_hashes, columns)
    is_empty = (sources == 0) | (targets == 0)
    if is_empty.all():
        message = f"no line has text both here and in `{source}`"
        fix = "give every line its translation"
        raise DataError([Fault(str(target), 1, 1, "empty", "", message, fix)])
    held_out = validation_size(pairs) if pairs >= MIN_PAIRS_TO_SPLIT else 0
    sides = (describe_side(columns[0]), describe_side(columns[1]))
    return Corpus(source, target, pairs, held_out, sides, empty=int(is_empty.sum()))


def describe_side(column: Sequence[str]) -> Side:
    """Return statistics of the lines of a text."""
    # not every n-th line: even and odd lines can differ
    generator = np.random.default_rng(0)
    size = min(SAMPLE, len(column))
    sampled = np.sort(generator.choice(len(column), size, replace=False))
    lines = [line for line in RowSubset(column, sampled) if not is_blank(line)] or [""]
    words, characters = sorted(len(line.split()) for line in lines), sorted(map(len, lines))
    vocabulary, letters = set[str](), Counter[str]()
    for line in lines:
        vocabulary.update(line.split())
        letters.update(filter(str.isalpha, line.lower()))
    scripts = Counter[str]()
    for letter, count in letters.items():
        scripts[unicodedata.name(letter, "other").split()[0].title().replace("Cjk", "Han")] += count
    nearly_last = len(lines) * 999 // 1000
    return Side(
        words=median(words),
        most_words=words[nearly_last],
        characters=median(characters),
        most_characters=characters[nearly_last],
        vocabulary=len(vocabulary),
        alphabet=len(set().union(*lines)),
        letters=frozenset(letters),
        scripts=tuple(
            name for name, count in scripts.most_common() if count * 20 >= letters.total()
        ),
        bleu_tokenizer=suggest_bleu_tokenizer(lines),
    )


@dataclass(frozen=True)
class TokenizerChoice:
    """A tokenizer for a corpus, the reason for it, and the tokens of a long line."""

    kind: Literal["char", "word", "bpe"]
    settings: str
    is_joint: bool
    reason: str
    longest: int

    def fields(self) -> dict[str, str]:
        """Return the fields of the recipe's template that depend on the tokenizer."""
        # with room for lines that are a little longer than most
        max_length = min(MAX_LENGTH, max(64, round_up(self.longest * 5, 256) // 4))
        joint = str(self.is_joint).lower()
        return {
            "tokenizer": f"{self.kind}: {{{self.settings}, joint: {joint}}}",
            "why_tokenizer": self.reason,
            "max_length": str(max_length).ljust(4),
            "tie": "[source, target]" if self.is_joint else "[target]",
        }


def choose_tokenizer(corpus: Corpus) -> TokenizerChoice:
    """Choose characters for words, symbols as they are, and else subwords."""
    source, target = sides = corpus.sides
    size = corpus.preset.vocabulary
    # one vocabulary serves both sides if most letters occur in both
    shared = len(source.letters & target.letters)
    is_joint = bool(source.letters) and shared * 2 >= max(len(side.letters) for side in sides)
    why_joint = "both sides use the same letters"
    if not is_joint:
        why_joint = "the two sides use different letters"
    # with room for characters that the sample lacks
    characters = f"size: {round_up(source.alphabet + target.alphabet, 100)}"
    longest = max(side.most_characters for side in sides)
    if corpus.is_of_words and longest <= MAX_WORD_CHARACTERS:
        side = "source" if source.is_word else "target"
        reason = f"a line of the {side} is one word; {why_joint}"
        return TokenizerChoice("char", characters, is_joint, reason, longest)
    if any(has_many_characters(side, size) for side in sides):
        reason = "too many different characters for so little text to learn words of them"
        return TokenizerChoice("char", characters, is_joint, f"{reason}; {why_joint}", longest)
    if all(has_few_symbols(side, corpus.pairs // 20) for side in sides):
        numbers = f"{source.vocabulary} and {target.vocabulary}"
        reason = f"few different symbols between spaces, {numbers}"
        longest = max(side.most_words for side in sides)
        return TokenizerChoice("word", f"split: spaces, {characters}", False, reason, longest)
    longest = max(map(most_subwords, sides))
    return TokenizerChoice("bpe", f"size: {size}", is_joint, f"subwords; {why_joint}", longest)


def has_many_characters(side: Side, vocabulary: int) -> bool:
    """True if a vocabulary of subwords would hold little more than the characters of a text."""
    return not side.is_spaced and 3 * side.alphabet > vocabulary


def has_few_symbols(side: Side, most: int) -> bool:
    """True if a text is made of at most `most` words, few enough to be symbols."""
    return side.is_spaced and side.vocabulary <= min(MAX_SYMBOLS, most)


def most_subwords(side: Side) -> int:
    """Return an estimate of the subwords of a long line."""
    return side.most_characters // 2 if side.is_spaced else side.most_characters


def round_up(number: int, step: int) -> int:
    """Round up to a multiple of `step`."""
    return -(-number // step) * step


def fill_template(corpus: Corpus, output: Path) -> str:
    """Return the text of the recipe. All paths in it are relative."""
    preset = corpus.preset
    return TEMPLATE.substitute(
        preset._asdict() | choose_tokenizer(corpus).fields() | {"pairs": f"{corpus.pairs:,}"},
        head=schema_line(output),
        source_lines=corpus.sides[0],
        target_lines=corpus.sides[1],
        file=in_comment(output),
        name=quoted(clean_name(output.stem)),
        hidden=4 * preset.width,
        source=quoted(relative_to(corpus.source, output)),
        target=quoted(relative_to(corpus.target, output)),
        hold_out="" if corpus.held_out else "# ",
        held_out=validation_size(corpus.pairs),
        learning_rate="2e-3" if preset.width < 512 else "7e-4",
        evaluation=_evaluation(corpus),
    )


def in_comment(output: Path) -> str:
    """Return the name of a recipe, quoted for a shell, on one line."""
    return " ".join(shlex.quote(output.name).split("\n"))


def schema_line(output: Path) -> str:
    """Return the comment at the top of a recipe that names the schema, or says how to get it."""
    schema = schema_path().resolve()
    is_in_clone = Path(os.path.realpath(output.parent)).is_relative_to(schema.parents[1])
    if not is_in_clone:
        return NO_SCHEMA
    return f"# yaml-language-server: $schema={relative_to(schema, output)}"


def _evaluation(corpus: Corpus) -> str:
    if corpus.is_of_words:
        unit = "character" if corpus.sides[1].is_word else "word"
        return f"\nevaluation: {{metrics: [exact_match, {unit}_error_rate]}}\n"
    word = corpus.sides[1].bleu_tokenizer
    module, package = TOKENIZER_PACKAGES.get(word, ("", ""))
    if word == "13a":
        return ""
    comment = "# no spaces part the target's words"
    if module and not find_spec(module):
        word, comment = "char", f"{comment}; `{word}` after `pip install '{package}'`"
    return f"\nevaluation: {{bleu_tokenizer: {word}}}    {comment}\n"


def recipe_name(source: Path, target: Path) -> str:
    """Return a name made from those of the files: train.en and train.de make `en-de`."""
    if source.stem != target.stem:
        return clean_name(f"{source.stem}-{target.stem}")
    ends = [path.suffix.removeprefix(".") for path in (source, target)]
    has_languages = all(ends) and ends[0] != ends[1]
    return clean_name("-".join(ends) if has_languages else source.stem)


def clean_name(name: str) -> str:
    """Return a name of letters, digits, dots and dashes."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:100] or "mine"


def relative_pattern(name: str, recipe: Path) -> str:
    """Return a file or a pattern of files, relative to the folder of a recipe."""
    if os.path.exists(name):
        return relative_to(Path(name), recipe)
    # the folders before the pattern are names, whatever characters they have
    pattern = os.path.join(glob.escape(os.getcwd()), name)
    return os.path.relpath(pattern, glob.escape(str(recipe.parent.absolute())))


def relative_to(path: Path, recipe: Path) -> str:
    """Return a path relative to the folder of a recipe, through links as the user wrote them."""
    direct = os.path.relpath(path.absolute(), recipe.parent.absolute())
    if os.path.realpath(recipe.parent / direct) == os.path.realpath(path):
        return direct
    return os.path.relpath(os.path.realpath(path), os.path.realpath(recipe.parent))


def quoted(text: str) -> str:
    """Return a name as YAML writes it. Raises RunError if no recipe can have it."""
    value = recipe_text(text)
    try:
        parse_value(value, 0)
    except RecipeError as error:
        message = f"a recipe cannot have this name: {error.faults[0].message}"
        raise RunError.of(message, "rename it", text) from error
    if "${" in text:
        message = "a recipe cannot have this name: `${` begins a variable"
        raise RunError.of(message, "rename it", text)
    return value

"""The recipe that `seqcomposer new` writes for a user's own text: commented, with tokenizer and
sizes that suit it.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from string import Template
from typing import NamedTuple

import numpy as np

from composer.atomic_io import atomic_new_file
from composer.data.columns import RowSubset, open_texts
from composer.data.line_hashes import line_hashes
from composer.errors import DataError, Fault, RecipeError, RunError
from composer.recipe.interpolation import recipe_text
from composer.recipe.metrics import TOKENIZER_PACKAGES, suggest_bleu_tokenizer
from composer.recipe.schema_file import schema_path
from composer.recipe.text_lines import is_blank
from composer.recipe.yaml_reader import parse_value

MIN_PAIRS_TO_SPLIT = 50
"""Fewer pairs than these are all trained on: none can be spared for validation and test."""
MIN_PAIRS_TO_TRANSLATE = 10_000
"""From fewer pairs a model learns to write the language, and hardly to translate."""
SAMPLE = 20_000
"""Lines of a text, drawn at random, that are looked at closely."""
MANY_CHARACTERS, WORD_CHARACTERS, MAX_SYMBOLS, MAX_LENGTH = 100, 128, 64, 1024
"""Characters of a pair of sentences, of which shorter pairs are a part; of lines that can be cut
into characters;
different words of a text of symbols; tokens up to which `max_length` follows the text."""


class Preset(NamedTuple):
    """Sizes for corpora of up to `pairs` pairs: wide and deep models need many, small ones learn
    from few.
    """

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


NO_SCHEMA = """# For completion in an editor: `seqcomposer schema > recipe.schema.json`, and in place of this line
#   yaml-language-server: $schema=recipe.schema.json"""
TEMPLATE = RecipeTemplate(
    Path(__file__).with_name("new_recipe.template.yaml").read_text(encoding="utf-8")
)


class Side(NamedTuple):
    """What the lines of one text look like, by those of them that are looked at closely.

    `words` and `characters` are of the line in the middle, `most_words` and `most_characters` of
    999 in 1,000 lines.
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
        """Whether spaces part its words."""
        return self.bleu_tokenizer == "13a"

    @property
    def is_word(self) -> bool:
        """Whether most lines are one word."""
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
    """Two line-aligned texts: their sizes, what their lines look like, and what a user should know
    of them.

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
        """Whether a line of either text is one word."""
        return any(side.is_word for side in self.sides)

    @property
    def preset(self) -> Preset:
        """The preset for so much text."""
        share = min(1.0, sum(side.characters for side in self.sides) / MANY_CHARACTERS)
        return next(preset for preset in PRESETS if self.pairs * share <= preset.pairs)


def write_recipe(name: str, output: Path | None, fill: Callable[[Path], str]) -> Path:
    """Write a recipe, by default to the file `name`, and return its path. fill: what makes its
    text, given the path.

    Raises RunError if the file exists already.
    """
    if output and output.is_dir():
        raise RunError.of(
            "this is a folder", f"name the file to write, `--output {output / name}`", str(output)
        )
    output = output or Path(name)
    with atomic_new_file(output) as file:
        file.write(fill(output).encode())
    return output


def next_steps(corpus: Corpus, recipe: Path) -> list[str]:
    """Return what to tell the user about a recipe for a corpus: the split, what was seen, the next
    command.
    """
    tokenizer = choose_tokenizer(corpus)
    seen = [
        f"{name}: {side}" for name, side in zip(("source", "target"), corpus.sides, strict=True)
    ]
    seen += [f"tokenizer {tokenizer['tokenizer'].partition(':')[0]}: {tokenizer['why_tokenizer']}"]
    return written_recipe(
        recipe, corpus.pairs, "pairs", corpus.held_out, corpus.preset, seen, _notes(corpus, recipe)
    )


def written_recipe(
    recipe: Path,
    count: int,
    what: str,
    held_out: int,
    preset: Preset,
    seen: Sequence[str],
    notes: Sequence[str] = (),
) -> list[str]:
    """Return what to tell the user about a recipe that was written for so many pairs or rows."""
    split = (
        f"{count - 2 * held_out:,} for training, {held_out:,} for validation and {held_out:,} for"
        " test"
    )
    minutes, quoted = preset.max_minutes, shlex.quote(str(recipe))
    return [
        f"wrote {recipe}",
        f"{count:,} {what}: {split}" if held_out else f"{count:,} {what}, all for training",
        *seen,
        (
            f"it trains for {minutes:,} minutes (processor time on a CPU); set"
            " `training.max_minutes` to change that"
        ),
        *(f"note: {note}" for note in notes),
        f"next: seqcomposer check {quoted} && seqcomposer train {quoted}",
    ]


def _notes(corpus: Corpus, recipe: Path) -> list[str]:
    notes = []
    if corpus.empty:
        notes.append(f"{corpus.empty:,} pairs have an empty side; they are left out of training")
    if corpus.pairs < MIN_PAIRS_TO_TRANSLATE and "bpe" in choose_tokenizer(corpus)["tokenizer"]:
        notes.append(
            "so few pairs are enough to try everything; usable translations need tens of thousands"
        )
    return [*notes, *elsewhere_notes([corpus.source, corpus.target], recipe)]


def elsewhere_notes(texts: Sequence[Path], recipe: Path) -> list[str]:
    """Return a note where texts are not in the folder of their recipe."""
    is_elsewhere = any(relative_to(path, recipe).startswith("..") for path in texts)
    return (
        ["the text is not in the folder of the recipe; put it there before you share it"]
        if is_elsewhere
        else []
    )


def held_out_of(pairs: int) -> int:
    """Return how many of so many pairs each of val and test gets."""
    return min(1000, max(1, pairs // 25, min(100, pairs // 10)))


def inspect(source: Path, target: Path) -> Corpus:
    """Return what two line-aligned texts look like. Raise DataError with everything wrong with the
    files.
    """
    columns = [*open_texts({"source": source, "target": target}).values()]
    pairs = len(columns[0])
    sources, targets = map(line_hashes, columns)
    is_empty = (sources == 0) | (targets == 0)
    if is_empty.all():
        message, fix = (
            f"no line has text both here and in `{source}`",
            "give every line its translation",
        )
        raise DataError([Fault(str(target), 1, 1, "empty", "", message, fix)])
    held_out = held_out_of(pairs) if pairs >= MIN_PAIRS_TO_SPLIT else 0
    sides = (describe_side(columns[0]), describe_side(columns[1]))
    return Corpus(source, target, pairs, held_out, sides, empty=int(is_empty.sum()))


def describe_side(column: Sequence[str]) -> Side:
    """Return what the lines of a text look like."""
    # not every n-th line: the parity of a line can say what it is like
    sampled = np.sort(
        np.random.default_rng(0).choice(len(column), min(SAMPLE, len(column)), replace=False)
    )
    lines = [line for line in RowSubset(column, sampled) if not is_blank(line)] or [""]
    words, characters = sorted(len(line.split()) for line in lines), sorted(map(len, lines))
    letters = Counter(letter for line in lines for letter in line.lower() if letter.isalpha())
    scripts = Counter[str]()
    for letter, count in letters.items():
        scripts[unicodedata.name(letter, "other").split()[0].title().replace("Cjk", "Han")] += count
    nearly_last = len(lines) * 999 // 1000
    return Side(
        words=median(words),
        most_words=words[nearly_last],
        characters=median(characters),
        most_characters=characters[nearly_last],
        vocabulary=len({word for line in lines for word in line.split()}),
        alphabet=len(set().union(*lines)),
        letters=frozenset(letters),
        scripts=tuple(
            name for name, count in scripts.most_common() if count * 20 >= letters.total()
        ),
        bleu_tokenizer=suggest_bleu_tokenizer(lines),
    )


def choose_tokenizer(corpus: Corpus) -> dict[str, str]:
    """Return what a recipe says of its tokenizer: characters of words, symbols as they are, else
    pieces of words.
    """
    source, target = sides = corpus.sides
    longest, size = max(side.most_characters for side in sides), corpus.preset.vocabulary
    # one vocabulary serves both where most letters of either text occur in both
    shared, most = len(source.letters & target.letters), max(len(side.letters) for side in sides)
    joint = bool(source.letters) and shared * 2 >= most
    why_joint = (
        "both sides use the same letters" if joint else "the two sides use different letters"
    )
    # with room for characters that are not among the lines that were looked at
    kind, settings = "char", f"size: {-(-sum(side.alphabet for side in sides) // 100) * 100}"
    if corpus.is_of_words and longest <= WORD_CHARACTERS:
        reason = (
            f"a line of the {'source' if source.is_word else 'target'} is one word; {why_joint}"
        )
    elif any(3 * side.alphabet > size for side in sides if not side.is_spaced):
        reason = (
            f"too many different characters for so little text to learn words of them; {why_joint}"
        )
    elif all(
        side.is_spaced and side.vocabulary <= min(MAX_SYMBOLS, corpus.pairs // 20) for side in sides
    ):
        kind, settings, longest = (
            "word",
            f"split: spaces, {settings}",
            max(side.most_words for side in sides),
        )
        joint = False
        reason = (
            f"few different symbols between spaces, {source.vocabulary} and {target.vocabulary}"
        )
    else:
        kind, settings, reason = "bpe", f"size: {size}", f"pieces of words; {why_joint}"
        longest = max(side.most_characters // (2 if side.is_spaced else 1) for side in sides)
    return {
        "tokenizer": f"{kind}: {{{settings}, joint: {str(joint).lower()}}}",
        "why_tokenizer": reason,
        # with room for lines that are a little longer than most
        "max_length": str(min(MAX_LENGTH, max(64, -(-longest * 5 // 256) * 64))).ljust(4),
        "tie": "[source, target]" if joint else "[target]",
    }


def fill_template(corpus: Corpus, output: Path) -> str:
    """Return the recipe's text. No path in it begins at the root of this machine."""
    preset = corpus.preset
    return TEMPLATE.substitute(
        preset._asdict() | choose_tokenizer(corpus) | {"pairs": f"{corpus.pairs:,}"},
        head=schema_line(output),
        source_lines=corpus.sides[0],
        target_lines=corpus.sides[1],
        file=in_comment(output),
        name=quoted(clean_name(output.stem)),
        hidden=4 * preset.width,
        source=quoted(relative_to(corpus.source, output)),
        target=quoted(relative_to(corpus.target, output)),
        hold_out="" if corpus.held_out else "# ",
        held_out=held_out_of(corpus.pairs),
        learning_rate="2e-3" if preset.width < 512 else "7e-4",
        evaluation=_evaluation(corpus),
    )


def in_comment(output: Path) -> str:
    """Return the name of a recipe as a shell takes it, in the comment at its top."""
    return " ".join(shlex.quote(output.name).split("\n"))


def schema_line(output: Path) -> str:
    """Return the comment at the top of a recipe that names the schema, or says how to get it."""
    schema = schema_path().resolve()
    is_in_clone = Path(os.path.realpath(output.parent)).is_relative_to(schema.parents[1])
    return (
        f"# yaml-language-server: $schema={relative_to(schema, output)}"
        if is_in_clone
        else NO_SCHEMA
    )


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
    stem = source.stem if source.stem == target.stem else f"{source.stem}-{target.stem}"
    ends = [path.suffix.removeprefix(".") for path in (source, target)]
    return clean_name(
        "-".join(ends) if source.stem == target.stem and all(ends) and ends[0] != ends[1] else stem
    )


def clean_name(name: str) -> str:
    """Return a name of letters, digits, dots and dashes."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._")[:100] or "mine"


def relative_pattern(name: str, recipe: Path) -> str:
    """Return a pattern of files, or the name of one, from the folder of a recipe."""
    if os.path.exists(name):
        return relative_to(Path(name), recipe)
    # the folders before the pattern are names, whatever characters they have
    return os.path.relpath(
        os.path.join(glob.escape(os.getcwd()), name), glob.escape(str(recipe.parent.absolute()))
    )


def relative_to(path: Path, recipe: Path) -> str:
    """Return a path from the folder of a recipe; through links as the user wrote them, where that
    leads to it.
    """
    direct = os.path.relpath(path.absolute(), recipe.parent.absolute())
    leads_there = os.path.realpath(recipe.parent / direct) == os.path.realpath(path)
    return (
        direct
        if leads_there
        else os.path.relpath(os.path.realpath(path), os.path.realpath(recipe.parent))
    )


def quoted(text: str) -> str:
    """Return a name as a recipe has it. Raises RunError for one that no recipe can have."""
    value = recipe_text(text)
    try:
        parse_value(value, 0)
    except RecipeError as error:
        raise RunError.of(
            f"a recipe cannot have this name: {error.faults[0].message}", "rename it", text
        ) from error
    if "${" in text:
        raise RunError.of(
            "a recipe cannot have this name: `${` begins a variable", "rename it", text
        )
    return value

"""Tokenizers: trained once on the training part, kept in one file, never trained again behind anyone's back.

`bpe` and `unigram` work on the bytes of the text (as GPT-2 does), so that every text can be written and comes back
exactly, whatever the training part held. `char` and `word` know what they have seen; the rest is `unk`. `word` takes
text as people write it, or text that is tokenised already. `bits` is for vectors of binary digits and `integers` for
whole numbers; they learn nothing.

No token is special to the reader: a text that contains `<pad>` is only a text.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from blocks.core.contract import Bounds, Count
from composer.errors import RunError
from composer.model.vocabulary import UNK, bits_vocabulary

SPECIAL_TOKENS = ["⟨pad⟩", "⟨bos⟩", "⟨eos⟩", "⟨unk⟩"]
"""No text gives one: `bpe` and `unigram` know bytes only, `word` takes brackets off or looks, `char` has characters."""
JOINER = "\N{HALFWIDTH BLACK SQUARE}"
"""In `word`, on the side of a punctuation mark that has no space in the text."""
FORMAT = "seqcomposer tokenizer 1"
CHUNK = 8192  # lines that are encoded at once: enough to be quick, few enough not to fill the memory

Vocabulary = Annotated[int, Bounds(minimum=5, maximum=1_000_000)]
"""A number of ids, with at least one beside the four special ones."""
Pieces = Annotated[int, Bounds(minimum=300, maximum=1_000_000)]
"""A number of ids, with room for 256 bytes and the four special ones."""
Bits = Annotated[int, Bounds(minimum=1, maximum=12)]
"""How many binary digits a vector has."""
Mark = Literal[";", "?", ":", ",", "!", "|", "/", "#"]
"""What can stand between vectors."""
Integers = Annotated[int, Bounds(minimum=3, maximum=100_000)]
"""How many integers there are, from 0."""
Lines = Iterable[str]
Learn = Callable[[Lines], Tokenizer]


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of every side: `target`, and `source` or the encoders' names. Joint sides share one.

    `settings` is the tokenizer as the recipe says it, in full; `lowercase` belongs to it, so that what is translated
    later is treated as what was trained on.
    """

    settings: dict[str, Any]
    lowercase: bool
    sides: dict[str, int]
    parts: tuple[Tokenizer, ...]

    def encode(self, side: str, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without bos and eos."""
        part = self._part(side)
        batches = (self._prepared(lines[at : at + CHUNK]) for at in range(0, len(lines), CHUNK))
        return [each.ids for batch in batches for each in part.encode_batch_fast(batch, add_special_tokens=False)]

    def decode(self, side: str, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of ids. pad, bos and eos are left out; unk shows as `⟨unk⟩`."""
        kept = [[index for index in row if index >= UNK] for row in rows]
        lines = self._part(side).decode_batch(kept, skip_special_tokens=False)
        return [_joined(line) for line in lines] if self._joins else lines

    def tokens(self, side: str, line: str) -> list[str]:
        """The tokens of a line as a reader would show them, for pictures of attention."""
        part = self._part(side)
        return [part.decode([index]) or "·" for index in self.encode(side, [line])[0]]

    def vocabulary(self, side: str) -> list[str]:
        """The token of every id, as the tokenizer names it."""
        part = self._part(side)
        return [part.id_to_token(index) or "" for index in range(part.get_vocab_size())]

    def size(self, side: str) -> int:
        """How many ids there are, the four special ones included."""
        return self._part(side).get_vocab_size()

    @property
    def kind(self) -> str:
        """Its word in the recipe: word, char, bpe, unigram, bits or integers."""
        return next(iter(self.settings))

    @property
    def sha256(self) -> str:
        """The fingerprint of everything that decides about an id."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Writes the one file; whoever reads at the same time sees the old one or the new one, whole."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(self.text(), encoding="utf-8")
        os.replace(beside, path)

    @classmethod
    def load(cls, path: Path) -> Tokenizers:
        """Reads what `save` wrote. Raises RunError."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            if told["format"] != FORMAT:
                raise ValueError(f"the format is {told['format']!r}, and {FORMAT!r} is what is read here")
            parts = tuple(Tokenizer.from_str(json.dumps(each)) for each in told["parts"])
            found = cls(told["settings"], told["lowercase"], told["sides"], parts)
            sizes = [found.size(side) for side in found.sides]
        except Exception as error:  # tokenizers raises bare Exceptions
            raise RunError.of(
                f"the tokenizer cannot be read: {error}", "take the file from the run", str(path)
            ) from error
        if not sizes or min(sizes) < len(SPECIAL_TOKENS):
            raise RunError.of("the tokenizer has no vocabulary", "take the file from the run", str(path))
        return found

    def _part(self, side: str) -> Tokenizer:
        return self.parts[self.sides[side]]

    def _prepared(self, lines: Sequence[str]) -> list[str]:
        lowered = [line.lower() for line in lines] if self.lowercase else list(lines)
        if self.kind in ON_TEXT:
            return lowered
        if self.kind == "bits":
            lowered = [ZERO.sub("", line) for line in lowered]
        return [_split(line) if self._joins else _spaced(line) for line in lowered]

    @property
    def _joins(self) -> bool:
        """Whether texts are kept with joiners. A file from before there was `split` says nothing of it."""
        return self.kind == "word" and self.settings["word"].get("split", "marks") == "marks"

    def text(self) -> str:
        parts = [json.loads(part.to_str()) for part in self.parts]
        told = {"format": FORMAT, "settings": self.settings, "lowercase": self.lowercase, "sides": self.sides}
        return json.dumps({**told, "parts": parts}, ensure_ascii=False, sort_keys=True, indent=1) + "\n"


def train_tokenizers(section: Mapping[str, Any], sides: Mapping[str, Lines]) -> Tokenizers:
    """Trains the tokenizer of a recipe's frozen `data` section on the lines of every side.

    `unigram` is not the same twice: with several processes one trains and the others load what it saved.
    """
    ((kind, settings),) = section["tokenizer"].items()
    lowercase = bool(section.get("lowercase"))
    lowered = {side: map(str.lower, lines) if lowercase else lines for side, lines in sides.items()}
    parts = TOKENIZERS[kind](lowered, **settings)
    place = {side: 0 if len(parts) == 1 else at for at, side in enumerate(sides)}
    return Tokenizers({kind: dict(settings)}, lowercase, place, tuple(parts))


# ------------------------------------------------------------------------------------------- the kinds that learn


def word(
    sides: Mapping[str, Lines],
    *,
    size: Vocabulary = 10_000,
    joint: bool = False,
    min_count: Count = 1,
    split: Literal["marks", "spaces"] = "marks",
) -> list[Tokenizer]:
    """Words, and punctuation marks one by one; the most frequent ones have ids, the others are `unk`.

    A mark keeps a joiner on each side where the text has no space, so that decoding puts it where it was.
    Several spaces in a row become one.

    Settings:
        size: ids at most, the four special ones included
        joint: whether all sides share one vocabulary
        min_count: a rarer word is `unk`
        split: marks | spaces; with `spaces` the text is tokenised already, and a token is what stands between spaces
    """

    def learn(lines: Lines) -> Tokenizer:
        part = Tokenizer(models.WordLevel({}, SPECIAL_TOKENS[UNK]))
        part.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(
            vocab_size=size, min_frequency=min_count, show_progress=False, special_tokens=SPECIAL_TOKENS
        )
        part.train_from_iterator(map(_split if split == "marks" else _ordinary, lines), trainer)
        return part

    return _learned(learn, sides, joint)


def char(sides: Mapping[str, Lines], *, size: Vocabulary = 10_000, joint: bool = False) -> list[Tokenizer]:
    """Single characters, spaces included; the most frequent ones have ids, the others are `unk`.

    Settings:
        size: ids at most, the four special ones included
        joint: whether all sides share one vocabulary
    """

    def learn(lines: Lines) -> Tokenizer:
        part = Tokenizer(models.WordLevel({}, SPECIAL_TOKENS[UNK]))
        part.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        part.decoder = decoders.Fuse()
        trainer = trainers.WordLevelTrainer(vocab_size=size, show_progress=False, special_tokens=SPECIAL_TOKENS)
        part.train_from_iterator(lines, trainer)
        return part

    return _learned(learn, sides, joint)


def bpe(sides: Mapping[str, Lines], *, size: Pieces = 8_000, joint: bool = True) -> list[Tokenizer]:
    """Byte pair encoding (Sennrich et al. 2016) on bytes: frequent words whole, rare ones in pieces, never `unk`.

    Settings:
        size: ids at most, the four special ones and 256 bytes included; 300 or more
        joint: whether all sides share one vocabulary
    """

    def learn(lines: Lines) -> Tokenizer:
        part = _on_bytes(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=size, show_progress=False, special_tokens=SPECIAL_TOKENS, initial_alphabet=_alphabet()
        )
        part.train_from_iterator(lines, trainer)
        return part

    return _learned(learn, sides, joint)


def unigram(sides: Mapping[str, Lines], *, size: Pieces = 8_000, joint: bool = True) -> list[Tokenizer]:
    """The pieces of a unigram language model (Kudo 2018) on bytes; never `unk`. Two trainings differ a little.

    Settings:
        size: ids at most, the four special ones and 256 bytes included; 300 or more
        joint: whether all sides share one vocabulary
    """

    def learn(lines: Lines) -> Tokenizer:
        part = _on_bytes(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=size,
            show_progress=False,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=_alphabet(),
            unk_token=SPECIAL_TOKENS[UNK],
        )
        part.train_from_iterator(lines, trainer)
        return part

    return _learned(learn, sides, joint)


# ------------------------------------------------------------------------------------------- vectors and integers

ZERO = re.compile(r"(?<=[01])@0\.00(?!\S)")
"""A number that says nothing: the vector alone is the same token."""


def bits(
    sides: Mapping[str, Lines], *, size: Bits = 8, marks: Sequence[Mark] = (";",), numbers: bool = False
) -> list[Tokenizer]:
    """Vectors of binary digits, each a word of so many 0 and 1, all of which have ids: nothing is learned.

    Between the vectors of a source marks can stand, and behind each of them a number, `01101001@-0.37`, of two
    decimals, from -1.00 to 1.00; a vector without one has 0.00. A target is of vectors alone. All else is `unk`.

    Settings:
        size: digits of a vector, 1 to 12
        marks: what else can stand in a source, a list of some of ; ? : , ! | / #
        numbers: whether a source's vectors can have numbers
    """
    settings = {"size": size, "marks": marks, "numbers": numbers}
    return [_fixed(bits_vocabulary(settings, side == "target")) for side in sides]


def integers(sides: Mapping[str, Lines], *, below: Integers = 10) -> list[Tokenizer]:
    """Whole numbers from 0 in decimal digits, each a word, all of which have ids: nothing is learned. Others are `unk`.

    Settings:
        below: how many integers there are: 0 to one less
    """
    return [_fixed([str(value) for value in range(below)])]


def _fixed(words: Sequence[str]) -> Tokenizer:
    """Just these words between spaces, whatever the lines hold."""
    part = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate([*SPECIAL_TOKENS, *words])}, SPECIAL_TOKENS[UNK])
    )
    part.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return part


# ------------------------------------------------------------------------------------------- all of them

TOKENIZERS: dict[str, Callable[..., list[Tokenizer]]] = {
    "word": word,
    "char": char,
    "bpe": bpe,
    "unigram": unigram,
    "bits": bits,
    "integers": integers,
}
"""Every tokenizer by its word in a recipe: from the lines of each side to one tokenizer for all sides, or one each."""
ON_TEXT = ("char", "bpe", "unigram")
"""Those that take a line as it is, spaces and all."""


def _learned(learn: Learn, sides: Mapping[str, Lines], joint: bool) -> list[Tokenizer]:
    if joint:
        return [_plain(learn(line for lines in sides.values() for line in lines))]
    return [_plain(learn(lines)) for lines in sides.values()]


def _on_bytes(model: models.Model) -> Tokenizer:
    part = Tokenizer(model)
    # a word has the same pieces at the start of a line as after a space; the decoder takes the space away again
    part.normalizer = normalizers.Prepend(" ")
    part.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    part.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return part


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _plain(part: Tokenizer) -> Tokenizer:
    """Without `added tokens`, which would be looked for in every text."""
    return Tokenizer.from_str(json.dumps({**json.loads(part.to_str()), "added_tokens": []}))


# ------------------------------------------------------------------------------------------- words and joiners

MARK = re.compile(r"(?<=(\S))?([^\w\s])(?=(\w))?")


def _split(line: str) -> str:
    """Words and marks with spaces between; `it's "so"` is `it ￭'￭ s "￭ so ￭"`."""
    return MARK.sub(_with_joiners, line)


def _with_joiners(match: re.Match[str]) -> str:
    before, mark, after = match.groups()
    return f"{f' {JOINER}' if before else ''}{mark}{f'{JOINER} ' if after else ''}"


def _joined(line: str) -> str:
    return line.replace(f"{JOINER} ", "").replace(f" {JOINER}", "").strip(JOINER)


# ------------------------------------------------------------------------------------------- tokens and spaces


def _spaced(line: str) -> str:
    """The tokens of a line with single spaces between; one that looks like a special token is unknown."""
    return " ".join(SPECIAL_TOKENS[UNK] if token in SPECIAL_TOKENS else token for token in line.split())


def _ordinary(line: str) -> str:
    """The tokens that can have an id of their own: a word that looks like a special token would take its id away."""
    return " ".join(token for token in line.split() if token not in SPECIAL_TOKENS)

"""Tokenizers: word, char, byte-level BPE and unigram, trained once on the training part; bits and integers.

`bpe` and `unigram` work on the bytes of the text (as GPT-2 does), so that every text can be encoded and is decoded
exactly, whatever the training part held. `char` and `word` know what they have seen; the rest is `unk`. `word` takes
raw text, or text that is tokenized already. `bits` is for vectors of binary digits and `integers` for whole numbers;
they learn nothing.

No text is parsed for special tokens: `<pad>` in the input is only a text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from blocks.core.contract import Bounds, Count
from composer.atomic_io import atomic_write, read_text
from composer.errors import RunError, one_line_error
from composer.model.encoder_decoder import NUM_SPECIAL, SPECIAL_TOKENS, UNK, bits_vocabulary

UNK_TOKEN = SPECIAL_TOKENS[UNK]
JOINER = "\N{HALFWIDTH BLACK SQUARE}"
"""In `word`, on the side of a punctuation mark that has no space in the text."""
FORMAT = "seqcomposer tokenizer 1"
CHUNK_LINES = 10_000
"""Lines that are encoded at once: enough to be fast, few enough not to fill the memory."""
ZERO = re.compile(r"(?<=[01])@0\.00(?!\S)")
"""A channel of 0.00 behind a vector of `bits`: the vector alone is the same token."""
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
"""The characters that stand for bytes in `bpe` and `unigram`."""
MARK = re.compile(r"(?<=(\S))?([^\w\s])(?=(\w))?")
"""A punctuation mark, with the characters next to it."""

Vocabulary = Annotated[int, Bounds(minimum=5, maximum=1_000_000)]
"""Number of ids, with at least one beside the four special ones."""
Pieces = Annotated[int, Bounds(minimum=300, maximum=1_000_000)]
"""Number of ids, with room for 256 bytes and the four special ones."""
Bits = Annotated[int, Bounds(minimum=1, maximum=12)]
"""Binary digits of a vector."""
Mark = Literal[";", "?", ":", ",", "!", "|", "/", "#"]
"""Separator between vectors."""
Integers = Annotated[int, Bounds(minimum=3, maximum=100_000)]
"""Number of integers, from 0."""
Lines = Iterable[str]


@dataclass(frozen=True)
class Tokenizers:
    """Tokenizers of every side: `target`, and `source` or the encoders' names. Joint sides share one.

    `settings` is the tokenizer of the recipe with its defaults; `lowercase` belongs to it, so that the input of a
    trained run is treated as its training text was. `sides` gives each side's index in `parts`.
    """

    settings: dict[str, Any]
    lowercase: bool
    sides: dict[str, int]
    parts: tuple[Tokenizer, ...]

    def encode(self, side: str, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, without bos and eos."""
        part = self._part(side)
        batches = (lines[at : at + CHUNK_LINES] for at in range(0, len(lines), CHUNK_LINES))
        encodings = (part.encode_batch_fast(self._prepare(batch), add_special_tokens=False) for batch in batches)
        return [encoding.ids for batch in encodings for encoding in batch]

    def decode(self, side: str, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of ids. pad, bos and eos are left out; unk shows as `⟨unk⟩`."""
        real = [[index for index in row if index >= UNK] for row in rows]
        lines = self._part(side).decode_batch(real, skip_special_tokens=False)
        if not self._has_joiners:
            return lines
        return [line.replace(f"{JOINER} ", "").replace(f" {JOINER}", "").strip(JOINER) for line in lines]

    def tokens(self, side: str, line: str) -> list[str]:
        """Return the tokens of a line as a reader would show them, for attention maps."""
        part = self._part(side)
        return [part.decode([index]) or "·" for index in self.encode(side, [line])[0]]

    def vocabulary(self, side: str) -> list[str]:
        """Return the token of every id, as the tokenizer names it."""
        part = self._part(side)
        return [part.id_to_token(index) or "" for index in range(part.get_vocab_size())]

    def size(self, side: str) -> int:
        """Return the number of ids, the four special ones included."""
        return self._part(side).get_vocab_size()

    @property
    def kind(self) -> str:
        """Its word in the recipe: word, char, bpe, unigram, bits or integers."""
        return next(iter(self.settings))

    @property
    def sha256(self) -> str:
        """SHA-256 of its text, which holds everything that decides about an id."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def text(self) -> str:
        """Return the content of tokenizer.json, which `from_text` reads."""
        parts = [json.loads(part.to_str()) for part in self.parts]
        head = {"format": FORMAT, "settings": self.settings, "lowercase": self.lowercase, "sides": self.sides}
        return json.dumps({**head, "parts": parts}, ensure_ascii=False, sort_keys=True, indent=1) + "\n"

    def save(self, path: Path) -> None:
        """Write tokenizer.json atomically: a concurrent reader sees the old file or the new one."""
        atomic_write(path, self.text().encode())

    @classmethod
    def load(cls, path: Path) -> Tokenizers:
        """Read a file that `save` wrote. Raises RunError."""
        try:
            text = read_text(path)
        except (OSError, ValueError) as error:
            raise _unreadable(error, path) from error
        return cls.from_text(text, path)

    @classmethod
    def from_text(cls, text: str, origin: Path | str = "") -> Tokenizers:
        """Return the tokenizers of a text that `text` wrote; `origin` names its file in errors. Raises RunError."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise ValueError(f"the format is {data['format']!r}, and this version reads {FORMAT!r}")
            parts = tuple(Tokenizer.from_str(json.dumps(part)) for part in data["parts"])
            tokenizers = cls(data["settings"], data["lowercase"], data["sides"], parts)
            if min(map(tokenizers.size, tokenizers.sides), default=0) < NUM_SPECIAL:
                raise ValueError("it has no vocabulary")
        except Exception as error:  # tokenizers raises bare Exceptions
            raise _unreadable(error, origin) from error
        return tokenizers

    def _part(self, side: str) -> Tokenizer:
        return self.parts[self.sides[side]]

    def _prepare(self, lines: Sequence[str]) -> list[str]:
        lowered = [line.lower() for line in lines] if self.lowercase else list(lines)
        if self.kind in ("char", "bpe", "unigram"):  # spaces and all
            return lowered
        if self._has_joiners:
            return [_split(line) for line in lowered]
        if self.kind == "bits":
            lowered = [ZERO.sub("", line) for line in lowered]
        # a word that looks like a special token is unknown
        return [" ".join(UNK_TOKEN if word in SPECIAL_TOKENS else word for word in line.split()) for line in lowered]

    @property
    def _has_joiners(self) -> bool:
        return self.kind == "word" and self.settings["word"].get("split", "marks") == "marks"


def _unreadable(error: Exception, origin: Path | str) -> RunError:
    return RunError.of(
        f"the tokenizer cannot be read: {one_line_error(error)}", "take the file from the run", str(origin)
    )


def train_tokenizers(section: Mapping[str, Any], sides: Mapping[str, Lines]) -> Tokenizers:
    """Train the tokenizer of a canonical recipe's section `data` on the lines of every side.

    `unigram` is not deterministic: with several processes one trains and the others load what it saved.
    """
    ((kind, settings),) = section["tokenizer"].items()
    lowercase = bool(section.get("lowercase"))
    lowered = {side: map(str.lower, lines) if lowercase else lines for side, lines in sides.items()}
    parts = TOKENIZERS[kind](lowered, **settings)
    indices = {side: 0 if len(parts) == 1 else at for at, side in enumerate(sides)}
    return Tokenizers({kind: dict(settings)}, lowercase, indices, tuple(parts))


def word(
    sides: Mapping[str, Lines],
    *,
    size: Vocabulary = 10_000,
    joint: bool = False,
    min_count: Count = 1,
    split: Literal["marks", "spaces"] = "marks",
) -> list[Tokenizer]:
    """Split text into words and punctuation marks; the most frequent ones have ids, the others are `unk`.

    A mark keeps a joiner on each side where the text has no space, so that decoding puts it where it was.
    Several spaces in a row become one.

    Settings:
        size: ids at most, the four special ones included
        joint: whether all sides share one vocabulary
        min_count: a rarer word is `unk`
        split: marks | spaces; with `spaces` the text is tokenised already, and a token is what stands between spaces
    """

    def words(line: str) -> str:
        # a word that looks like a special token would take its id away, so it is not learned
        return " ".join(word for word in line.split() if word not in SPECIAL_TOKENS)

    prepare = _split if split == "marks" else words
    trainer = trainers.WordLevelTrainer(min_frequency=min_count, **_trainer_options(size))
    return _train(_word_level, trainer, {side: map(prepare, lines) for side, lines in sides.items()}, joint)


def char(sides: Mapping[str, Lines], *, size: Vocabulary = 10_000, joint: bool = False) -> list[Tokenizer]:
    """Split text into characters, spaces included; the most frequent ones have ids, the others are `unk`.

    Settings:
        size: ids at most, the four special ones included
        joint: whether all sides share one vocabulary
    """

    def blank() -> Tokenizer:
        part = _word_level()
        part.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        part.decoder = decoders.Fuse()
        return part

    return _train(blank, trainers.WordLevelTrainer(**_trainer_options(size)), sides, joint)


def bpe(sides: Mapping[str, Lines], *, size: Pieces = 8_000, joint: bool = True) -> list[Tokenizer]:
    """Merge byte pairs (BPE, Sennrich et al. 2016): frequent words whole, rare ones in pieces, never `unk`.

    Settings:
        size: ids at most, the four special ones and 256 bytes included; 300 or more
        joint: whether all sides share one vocabulary
    """
    trainer = trainers.BpeTrainer(initial_alphabet=BYTES, **_trainer_options(size))
    return _train(lambda: _byte_level(models.BPE()), trainer, sides, joint)


def unigram(sides: Mapping[str, Lines], *, size: Pieces = 8_000, joint: bool = True) -> list[Tokenizer]:
    """Split text into the pieces of a unigram language model (Kudo 2018) on bytes; never `unk`. Two trainings differ.

    Settings:
        size: ids at most, the four special ones and 256 bytes included; 300 or more
        joint: whether all sides share one vocabulary
    """
    trainer = trainers.UnigramTrainer(initial_alphabet=BYTES, unk_token=UNK_TOKEN, **_trainer_options(size))
    return _train(lambda: _byte_level(models.Unigram()), trainer, sides, joint)


def _trainer_options(size: int) -> dict[str, Any]:
    return {"vocab_size": size, "show_progress": False, "special_tokens": SPECIAL_TOKENS}


def _word_level(words: Sequence[str] | None = None) -> Tokenizer:
    """Return a tokenizer of text between spaces: of just these words, or one that is to learn them."""
    ids = {} if words is None else {word: index for index, word in enumerate([*SPECIAL_TOKENS, *words])}
    part = Tokenizer(models.WordLevel(ids, UNK_TOKEN))
    part.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return part


def _byte_level(model: models.Model) -> Tokenizer:
    part = Tokenizer(model)
    # a word has the same pieces at the start of a line as after a space; the decoder takes the space away again
    part.normalizer = normalizers.Prepend(" ")
    part.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    part.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return part


def _train(
    blank: Callable[[], Tokenizer], trainer: trainers.Trainer, sides: Mapping[str, Lines], joint: bool
) -> list[Tokenizer]:
    """Train one tokenizer on all sides, or one on each."""
    parts = []
    for lines in [itertools.chain.from_iterable(sides.values())] if joint else sides.values():
        part = blank()
        part.train_from_iterator(lines, trainer)
        # the library looks for `added tokens` in every text, so a text could contain a special token
        parts.append(Tokenizer.from_str(json.dumps({**json.loads(part.to_str()), "added_tokens": []})))
    return parts


def _split(line: str) -> str:
    """Return words and marks with spaces between: `it's "so"` becomes `it ￭'￭ s "￭ so ￭"`."""
    return MARK.sub(lambda at: f"{f' {JOINER}' if at[1] else ''}{at[2]}{f'{JOINER} ' if at[3] else ''}", line)


def bits(
    sides: Mapping[str, Lines], *, size: Bits = 8, marks: Sequence[Mark] = (";",), numbers: bool = False
) -> list[Tokenizer]:
    """Encode vectors of binary digits, each a word of so many 0 and 1, all of which have ids: nothing is learned.

    Between the vectors of a source marks can stand, and behind each of them a number, `01101001@-0.37`, of two
    decimals, from -1.00 to 1.00; a vector without one has 0.00. A target is of vectors alone. All else is `unk`.

    Settings:
        size: digits of a vector, 1 to 12
        marks: what else can stand in a source, a list of some of ; ? : , ! | / #
        numbers: whether a source's vectors can have numbers
    """
    settings = {"size": size, "marks": marks, "numbers": numbers}
    return [_word_level(bits_vocabulary(settings, side == "target")) for side in sides]


def integers(sides: Mapping[str, Lines], *, below: Integers = 10) -> list[Tokenizer]:
    """Encode whole numbers from 0 in decimal digits, each a word with an id: nothing is learned. Others are `unk`.

    Settings:
        below: how many integers there are: 0 to one less
    """
    return [_word_level([str(value) for value in range(below)])]


TOKENIZERS: dict[str, Callable[..., list[Tokenizer]]] = {
    function.__name__: function for function in (word, char, bpe, unigram, bits, integers)
}
"""Every tokenizer by its word in a recipe: from the lines of each side to one tokenizer for all sides, or one each."""

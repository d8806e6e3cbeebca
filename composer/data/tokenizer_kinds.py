"""The kinds of tokenizer: units of a text, how they are learned, and what is done to text.

No text is parsed for special tokens: `<pad>` in the input is only a text. To add a kind, write a
subclass of `TokenizerKind` here, name it in `composer.data.tokenizer.TOKENIZERS`, and run
`seqcomposer schema --write`. Importing this imports no torch.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from blocks.core.fixes import Fix, Set, write
from blocks.core.settings import Bounds, Count, Distinct
from composer.model.special_tokens import BOS, EOS, NUM_SPECIAL, SPECIAL_TOKENS, UNK
from composer.recipe import choices

if TYPE_CHECKING:
    from torch import Tensor

Part = Tokenizer
"""A tokenizer of the library, or what has those of its methods that are used."""
UNK_TOKEN = SPECIAL_TOKENS[UNK]
SPECIAL_START = UNK_TOKEN[0]
"""The character that all special tokens begin with."""
JOINER = "\N{HALFWIDTH BLACK SQUARE}"
"""In `word`, on the side of a punctuation mark that has no space in the text."""
LEVELS = range(-100, 101)
"""The numbers that can stand behind a vector of `bits`, in hundredths."""
ZERO = re.compile(r"(?<=[01])@0\.00(?!\S)")
"""A channel of 0.00 behind a vector of `bits`: the vector alone is the same token."""
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
"""The characters that stand for bytes in `bpe` and `unigram`."""
MARK = re.compile(r"(?<=(\S))?([^\w\s])(?=(\w))?")
"""A punctuation mark or a combining character, with the characters next to it."""
THREADS = "TOKENIZERS_PARALLELISM"
"""Environment variable that the library reads before it starts threads."""
MANY_TEXTS = 100
"""Texts from which on a table of words looks up ids faster than the library."""
OWN_SPACES = re.compile(r"[\x1c-\x1f]")
"""Characters that are spaces for Python, not for the library."""
SINGLE_THREAD_CHARACTERS = 10_000_000
"""Characters up to which one thread merges pairs faster than several."""

Vocabulary = Annotated[
    int, Bounds(minimum=5, maximum=1_000_000), "ids at most, the four special ones included"
]
PIECES = "ids at most, the four special ones and 256 bytes included; 300 or more"
Pieces = Annotated[int, Bounds(minimum=300, maximum=1_000_000), PIECES]
Joint = Annotated[bool, "whether all sides share one vocabulary"]
FORMAT = "seqcomposer tokenizer 1"
"""What the file of tokenizers says of itself."""
NumBits = Annotated[int, Bounds(minimum=1, maximum=12)]
"""Binary digits of a vector."""
Mark = Literal[";", "?", ":", ",", "!", "|", "/", "#"]
Marks = Annotated[Sequence[Mark], Distinct()]
"""Marks that can stand between vectors, each once."""
NumIntegers = Annotated[int, Bounds(minimum=3, maximum=100_000)]
"""Number of integers, from 0."""


class TokenizerKind(choices.Tokenizer):
    """Kind of tokenizer with its settings: its training, its changes of text, its limits."""

    model: ClassVar[type[models.Model]] = models.WordLevel
    is_trained: ClassVar[bool] = True
    """True if tokens are learned from text."""
    is_closed: ClassVar[bool] = False
    """True if all possible tokens are known, so that another one is a fault."""
    is_slow: ClassVar[bool] = False
    """True if tokens are pieces of words, which takes a search in every word."""
    is_exact: ClassVar[bool] = False
    """True if ids hold all of a text with its spaces, except unknown parts."""
    is_extendable: ClassVar[bool] = False
    """True if a run may start from weights of a tokenizer with other settings and fewer ids."""

    @property
    def joint(self) -> bool:
        """True if all sides share one tokenizer."""
        return False

    def with_folders(self, folders: Sequence[Path]) -> TokenizerKind:
        """Return the kind that looks up files in these folders, in their order."""
        return self

    def identity(self) -> str | None:
        """Return the facts beside its settings that decide ids before training."""
        return None

    def without_ids(self) -> list[str]:
        """Return the special tokens of another model that get no ids."""
        return []

    def max_size(self, target: bool) -> int:
        """Return the most ids that a side can have, the special ones included."""
        return self.size

    def train(self, sides: Mapping[str, Iterable[str]]) -> list[Tokenizer]:
        """Train a tokenizer for all sides if they are joint, else one for each, on their lines."""
        trainer = self.trainer(
            vocab_size=self.size, show_progress=False, special_tokens=SPECIAL_TOKENS
        )
        parts = []
        for lines in (
            [itertools.chain.from_iterable(sides.values())] if self.joint else sides.values()
        ):
            part = self.untrained()
            self.train_part(part, map(self.training_text, lines), trainer)
            # the library looks for `added tokens` in every text, so a text could contain a special
            # token
            parts.append(
                Tokenizer.from_str(json.dumps({**json.loads(part.to_str()), "added_tokens": []}))
            )
        return parts

    def train_part(self, part: Tokenizer, texts: Iterable[str], trainer: trainers.Trainer) -> None:
        """Train a tokenizer of the library."""
        part.train_from_iterator(texts, trainer)

    def untrained(self) -> Tokenizer:
        """Return a tokenizer of the library that is to be trained."""
        return _word_level()

    def load(self, content: dict[str, Any]) -> Tokenizer:
        """Load a trained tokenizer of the library from JSON.

        Raises ValueError if training writes none such.

        The library can do more: pad every text, replace short texts by long ones, search in
        exponential time, panic.
        """
        expected, model = json.loads(self.untrained().to_str()), content["model"]
        expected["model"] |= {
            key: model[key] for key in ("vocab", "merges", "unk_id") if key in model
        }
        if {**expected, **content, "model": {**expected["model"], **model}} != expected:
            raise ValueError("no training writes such settings")
        return Tokenizer.from_str(json.dumps(content))

    def trainer(self, **options: Any) -> trainers.Trainer:
        """Return the library's trainer with the options that all of them have."""
        return trainers.WordLevelTrainer(**options)

    def training_text(self, line: str) -> str:
        """Return the part of a line that trains the library."""
        return line

    def prepare(self, line: str) -> str:
        """Return the text that the library is to encode."""
        return line

    def encode(self, part: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of some prepared texts."""
        return [
            encoding.ids for encoding in part.encode_batch_fast(texts, add_special_tokens=False)
        ]

    def encode_rest(self, part: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of prepared texts, each the rest of a cut text; see `documents`."""
        return self.encode(part, texts)

    def restore(self, text: str) -> str:
        """Return the line of a text that the library has decoded."""
        return text

    def kept_text(self, part: Tokenizer, text: str) -> str:
        """Return the text that the ids of a text hold, with unknown parts as they were."""
        return text if self.is_exact else " ".join(text.split())

    def unknown_fix(self, token: str, target: bool, texts: Iterable[str]) -> str | Fix:
        """Return a fix that makes a token of a side known, with all other tokens of `texts`."""
        if self.is_trained:
            return "raise its `size`, or train its tokenizer on this text"
        return write(("data", "tokenizer"), "word", ", or correct the text")


@functools.lru_cache(maxsize=4)
def vocabulary_of(part: Tokenizer) -> dict[str, int]:
    """Return the ids of the tokens of a tokenizer, which nothing changes any more."""
    return part.get_vocab()


class WordLevel(TokenizerKind):
    """Kind whose tokens are units of the text that have an id or are `unk`."""

    def units(self, text: str) -> Iterable[str]:
        """Return the units of a prepared text, as the library splits it."""
        return text.split()

    def encode(self, part: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        if len(texts) < MANY_TEXTS or any(map(OWN_SPACES.search, texts)):
            return super().encode(part, texts)
        ids = vocabulary_of(part)  # several times as fast as the library

        def encode(text: str) -> list[int]:
            return [ids.get(unit, UNK) for unit in self.units(text)]

        return [*map(encode, texts)]


class Word(WordLevel):
    """Split text into words and punctuation marks; frequent ones have ids, others are `unk`.

    A mark keeps a joiner on each side where the text has no space, so that decoding puts it where
    it was. Several spaces in a row become one.

    Settings:
        min_count: a rarer word is `unk`
        split: marks | spaces; with `spaces` the text is tokenised already, and a token is what
            stands between spaces
    """

    word = "word"
    size: Vocabulary = 10_000
    joint: Joint = False
    min_count: Count = 1
    split: Literal["marks", "spaces"] = "marks"

    @property
    def splits_at_spaces(self) -> bool:
        return self.split == "spaces"

    def trainer(self, **options: Any) -> trainers.Trainer:
        return trainers.WordLevelTrainer(min_frequency=self.min_count, **options)

    def training_text(self, line: str) -> str:
        # a word that looks like a special token would take its id away, so it is not learned
        words = (word for word in line.split() if word not in SPECIAL_TOKENS)
        return " ".join(words) if self.splits_at_spaces else split_marks(line)

    def prepare(self, line: str) -> str:
        return mask_special(line) if self.splits_at_spaces else split_marks(line)

    def encode_rest(self, part: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        if not self.splits_at_spaces:  # on the side of the piece before, too
            texts = [*map(join_mark, texts)]
        return self.encode(part, texts)

    def restore(self, text: str) -> str:
        if self.splits_at_spaces:
            return text
        return text.replace(f"{JOINER} ", "").replace(f" {JOINER}", "").strip(JOINER)

    def unknown_fix(self, token: str, target: bool, texts: Iterable[str]) -> str | Fix:
        if self.min_count > 1:
            return "lower its `min_count`"
        return super().unknown_fix(token, target, texts)


def join_mark(text: str) -> str:
    """Return the rest of a cut text, with a joiner if it begins with a mark."""
    return f"{JOINER}{text}" if MARK.match(text) else text


class Char(WordLevel):
    """Split text into characters, spaces included; frequent ones have ids, others are `unk`."""

    word = "char"
    is_exact = is_of_characters = True
    size: Vocabulary = 10_000
    joint: Joint = False

    def untrained(self) -> Tokenizer:
        part = _word_level()
        part.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        part.decoder = decoders.Fuse()
        return part

    def units(self, text: str) -> Iterable[str]:
        return text


class Byte(TokenizerKind):
    """Read the bytes of a text in UTF-8: nothing is learned, and text is decoded exactly."""

    word = "byte"
    is_trained = False
    is_exact = is_of_characters = joint = True
    size = NUM_SPECIAL + 256

    def train(self, sides: Mapping[str, Iterable[str]]) -> list[Tokenizer]:
        return [self.untrained()]

    def untrained(self) -> Tokenizer:
        # which stand, in their order, for bytes that do not print
        others = (char for char in BYTES if ord(char) > 255)
        chars = [chr(byte) for byte in range(256)]
        for byte, char in enumerate(chars):
            if char not in BYTES:
                chars[byte] = next(others)
        ids = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *chars])}
        part = Tokenizer(models.BPE(ids, []))
        part.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        part.decoder = decoders.ByteLevel()
        return part

    def load(self, content: dict[str, Any]) -> Tokenizer:
        if content["model"]["vocab"] != self.untrained().get_vocab():
            raise ValueError("the ids of the bytes are others")
        return super().load(content)

    def encode(self, part: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        return [*map(byte_ids, texts)]  # several times as fast as the library


def byte_ids(text: str) -> list[int]:
    """Return the ids of a text's bytes."""
    return [byte + NUM_SPECIAL for byte in text.encode()]


class BytePieces(TokenizerKind):
    """Kind whose tokens are pieces of bytes, as in GPT-2: every text is decoded exactly."""

    is_slow = is_exact = True
    size: Pieces = 8_000
    joint: Joint = True

    def untrained(self) -> Tokenizer:
        part = Tokenizer(self.model())
        # a word has the same pieces at the start of a line as after a space; the decoder takes the
        # space away again
        part.normalizer = normalizers.Prepend(" ")
        part.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        part.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        return part

    def encode_rest(self, part: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        return self.encode(without_normalizer(part), texts)


@functools.lru_cache(maxsize=4)
def without_normalizer(part: Tokenizer) -> Tokenizer:
    """Return a tokenizer of the library that puts no space before a text."""
    rest = Tokenizer.from_str(part.to_str())
    rest.normalizer = None
    return rest


class Bpe(BytePieces):
    """Merge byte pairs (BPE, Sennrich et al. 2016): frequent words stay whole, none is `unk`."""

    word = "bpe"
    model = models.BPE

    def trainer(self, **options: Any) -> trainers.Trainer:
        return trainers.BpeTrainer(initial_alphabet=BYTES, **options)

    def train_part(self, part: Tokenizer, texts: Iterable[str], trainer: trainers.Trainer) -> None:
        before = os.environ.get(THREADS)
        try:
            super().train_part(part, then_one_thread(texts), trainer)
        finally:
            os.environ.pop(THREADS, None)
            os.environ |= {} if before is None else {THREADS: before}


def then_one_thread(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts, whose words several threads count; then let one thread merge few pairs."""
    characters = 0
    for text in texts:
        characters += len(text)
        yield text
    if characters < SINGLE_THREAD_CHARACTERS:
        os.environ[THREADS] = "false"


class Unigram(BytePieces):
    """Split text by a unigram language model on bytes (Kudo 2018); trainings differ."""

    word = "unigram"
    model = models.Unigram

    def trainer(self, **options: Any) -> trainers.Trainer:
        return trainers.UnigramTrainer(initial_alphabet=BYTES, unk_token=UNK_TOKEN, **options)


class Bits(WordLevel):
    """Encode vectors of binary digits, such as `0110`, as a word each; nothing is learned.

    Between the vectors of a source marks can stand, and behind each of them a number,
    `01101001@-0.37`, of two decimals, from -1.00 to 1.00; a vector without one has 0.00. A target
    is of vectors alone. All else is `unk`.

    Settings:
        size: digits of a vector, 1 to 12
        marks: what else can stand in a source, a list of some of ; ? : , ! | / #
        numbers: whether a source's vectors can have numbers
    """

    word = "bits"
    is_trained = joint = has_letters = False
    is_closed = gives_bits = True
    size: NumBits = 8
    marks: Marks = (";",)
    numbers: bool = False

    def vocabulary(self, target: bool) -> list[str]:
        """Return the words that have ids on a side, by id; the first id is NUM_SPECIAL."""
        vectors = [f"{index:0{self.size}b}" for index in range(2**self.size)]
        if target:
            return vectors
        words: list[str] = [*dict.fromkeys(self.marks)]
        levels = [level_word(level) for level in LEVELS] if self.numbers else [""]
        for vector in vectors:
            words += [vector + level for level in levels]
        return words

    def features(self, target: bool) -> Tensor:
        """Return the features of each id of a side: (ids, features) float32.

        They are bos, eos, each mark, each digit from the first, and the number; pad and unk are
        zeros. A target has neither marks nor numbers, and a source has no numbers without
        `numbers`.
        """
        import torch

        marks = [] if target else list(dict.fromkeys(self.marks))
        vectors = [word.partition("@") for word in self.vocabulary(target)[len(marks) :]]
        first, digits = NUM_SPECIAL + len(marks), 2 + len(marks)
        features = torch.zeros(first + len(vectors), digits + self.size + 1, dtype=torch.float32)
        features[BOS, 0] = features[EOS, 1] = 1
        features[NUM_SPECIAL:first, 2:digits] = torch.eye(len(marks))
        numbers = [float(number or 0) for _, _, number in vectors]
        features[first:, digits:-1] = torch.tensor(
            [[*map(int, vector)] for vector, _, _ in vectors]
        )
        features[first:, -1] = torch.tensor(numbers, dtype=torch.float32)
        return features if self.numbers and not target else features[:, :-1]

    def max_size(self, target: bool) -> int:
        return NUM_SPECIAL + len(self.vocabulary(target))

    def train(self, sides: Mapping[str, Iterable[str]]) -> list[Tokenizer]:
        return [_word_level(self.vocabulary(side == "target")) for side in sides]

    def prepare(self, line: str) -> str:
        return mask_special(ZERO.sub("", line))

    def unknown_fix(self, token: str, target: bool, texts: Iterable[str]) -> str | Fix:
        words = set(itertools.chain.from_iterable(map(str.split, texts)))
        vectors = {word.partition("@")[0] for word in words} - {*get_args(Mark)}
        sizes = {len(vector) for vector in vectors}
        if any(vector.strip("01") for vector in vectors):
            sizes.add(0)
        # else they are not vectors of one size
        if len(sizes) == 1 and min(sizes) in get_args(NumBits)[1]:
            if not target and token in get_args(Mark):
                return f"add `marks: {json.dumps([*self.marks, token])}` to `bits`"
            needs_numbers = "@" in token and not target and not self.numbers
            if sizes != {self.size}:
                numbers = ", numbers: true" if needs_numbers or self.numbers else ""
                change = None if needs_numbers else Set((*self.at, "size"), min(sizes))
                return Fix(f"write `bits: {{size: {min(sizes)}{numbers}}}`", change)
            if needs_numbers:
                return Fix("add `numbers: true` to `bits`", Set((*self.at, "numbers"), True))
        return super().unknown_fix(token, target, texts)


def level_word(level: int) -> str:
    """Return the word of a number in hundredths behind a vector; zero has none."""
    return f"@{level / 100:.2f}" if level else ""


class Integers(WordLevel):
    """Encode integers from 0 as a word each; nothing is learned, and other words are `unk`.

    Settings:
        below: how many integers there are: 0 to one less
    """

    word = "integers"
    is_trained = has_letters = False
    is_closed = is_extendable = joint = True
    below: NumIntegers = 10

    def max_size(self, target: bool) -> int:
        return NUM_SPECIAL + self.below

    def train(self, sides: Mapping[str, Iterable[str]]) -> list[Tokenizer]:
        return [_word_level([str(value) for value in range(self.below)])]

    def prepare(self, line: str) -> str:
        return mask_special(line)

    def unknown_fix(self, token: str, target: bool, texts: Iterable[str]) -> str | Fix:
        words = set(itertools.chain.from_iterable(map(str.split, texts)))
        below = max(map(int, words)) + 1 if all(map(is_integer, words)) else 0
        if below in get_args(NumIntegers)[1]:
            fix = f"write `integers: {{below: {below}}}` or more, or `tokenizer: word`"
            return Fix(fix, Set((*self.at, "below"), below))
        return super().unknown_fix(token, target, texts)


def is_integer(word: str) -> bool:
    """True for a number of fewer than 9 digits, as Python writes it."""
    return word.isdecimal() and len(word) < 9 and str(int(word)) == word


def _word_level(words: Sequence[str] | None = None) -> Tokenizer:
    """Return a tokenizer of text between spaces, of these words or untrained."""
    ids = {}
    if words is not None:
        ids = {word: index for index, word in enumerate([*SPECIAL_TOKENS, *words])}
    part = Tokenizer(models.WordLevel(ids, UNK_TOKEN))
    part.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return part


def split_marks(line: str) -> str:
    """Return words and marks with spaces between: `it's "so"` becomes `it ￭'￭ s "￭ so ￭"`."""

    def part(at: re.Match[str]) -> str:
        # an accent, or a vowel's sign in Hindi: part of its word
        if unicodedata.category(at[2]).startswith("M"):
            return at[2]
        return f"{f' {JOINER}' if at[1] else ''}{at[2]}{f'{JOINER} ' if at[3] else ''}"

    # most words have no mark, and the marks of a word are next to nothing of another
    words = line.split(" ")
    for at, word in enumerate(words):
        if not word.isalnum():
            words[at] = MARK.sub(part, word)
    return " ".join(words)


def mask_special(line: str) -> str:
    """Return the words of a line with single spaces; one like a special token becomes `unk`."""
    words = line.split()
    if SPECIAL_START in line:
        for at, word in enumerate(words):
            if word in SPECIAL_TOKENS:
                words[at] = UNK_TOKEN
    return " ".join(words)

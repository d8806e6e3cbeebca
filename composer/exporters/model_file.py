"""`model.json`: all that a runner of exported programs must know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from composer.programs.parts import Signature

FORMAT = 1
"""Number of the format; it rises when an older runner could not read a new file."""
MODEL, RUNNER = "model.json", "run.py"

SourceKind = Literal["text", "story", "question", "image", "audio", "vectors"]
Preparation = Literal["none", "marks", "words", "bits", "file"]
"""What is done to a text before the library encodes it: nothing, marks are split off, words are
what stands between spaces, vectors of bits, or U+10FFFF is replaced, which hides special tokens."""


@dataclass(frozen=True)
class Text:
    """How a text becomes ids, and ids a text.

    tokenizer: A file of the library tokenizers.
    joiner: A character that is removed together with the space beside it.
    prefix: A text before every line that is not blank, which no answer shows; "" if there is none.
    """

    tokenizer: str
    lowercase: bool
    prepare: Preparation
    joiner: str
    prefix: str


@dataclass(frozen=True)
class Source:
    """An input of the encoders.

    shape: The numbers of each position, (F,) or (W, C); of a story (sentences, words) at most.
    column: Settings of an image or a sound, as in the recipe.
    room: How many times as long as this source an answer may be; 0 where that does not matter.
    """

    name: str
    kind: SourceKind
    text: Text | None
    shape: tuple[int, ...]
    column: Mapping[str, Any]
    room: float


@dataclass(frozen=True)
class ModelFile:
    """The content of `model.json`.

    exporter: Version of the exporter.
    files: SHA-256 of each file that is read: programs, weights and tokenizers.
    programs: What `encode`, `start` and `step` read and return.
    sources: In the order in which a line has them, with tabs between.
    state: Number of leaves of the state.
    vocabulary: Number of target ids.
    max_positions: Tokens that the decoder can tell apart, bos counted; None without a limit.
    impossible: Log-probabilities below this are of tokens that cannot be; None where all can be.
    decoding: The method of the recipe by its word, with its settings.
    methods: Those that answer as this project does.
    """

    name: str
    exporter: str
    files: Mapping[str, str]
    programs: Mapping[str, Signature]
    sources: tuple[Source, ...]
    target: Text
    state: int
    vocabulary: int
    max_positions: int | None
    impossible: float | None
    decoding: Mapping[str, Mapping[str, Any]]
    methods: tuple[str, ...]
    pad: int
    bos: int
    eos: int
    unk: int
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"

"""Tokenizers of other models, from files: a `tokenizer.json` of the library tokenizers, or a
SentencePiece model.

The ids are ours: the special ones, then the pieces of the file in their order, but for its own
special tokens.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, cast

from tokenizers import Tokenizer

from blocks.core.settings import Kind
from composer.atomic_io import open_regular, parse_json, read_text
from composer.data.tokenizer_kinds import UNK_TOKEN, TokenizerKind
from composer.errors import Fault, RunError, one_line_error
from composer.model.special_tokens import NUM_SPECIAL, SPECIAL_TOKENS, UNK

NO_CHARACTER = "\U0010ffff"
"""A code point that no text has: with it our special tokens are pieces of no text."""
SPECIAL = [f"{NO_CHARACTER}{token}" for token in SPECIAL_TOKENS]
NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
"""Behind a SentencePiece model, in protocol buffers: `normalizer_spec {add_dummy_prefix: false}`.
"""
BEFORE, HEAD = "a", 20
"""What stands before the head of a text that goes on, to see whether it comes back, and how long
that is.
"""
SUFFIXES = (".json", ".model")
"""How the names of such files end, as their libraries write them."""
MAX_BYTES = 1 << 27
MAX_GROWTH = 1000
ATOM = re.compile(r"\\.|\[(?:\\.|[^\]])*\]|(?<=\()\?[^:=!>()]*[:=!>]", re.DOTALL)
NESTED = re.compile(r"(?:[*+?|]|,\d*\})[^(]*\)[*+{]")
"""In a regular expression without escapes and classes: what varies in a group that is repeated."""


class File(TokenizerKind):
    """Take the tokenizer of another model: `{file: tokenizer.json}` of the library tokenizers, or
    `{file: x.model}` of
    SentencePiece. A run has a copy of it. The file's special tokens have no ids, and text is never
    read as one.

    Settings:
        path: the file, looked up under `--data`, then beside the recipe
    """

    word = "file"
    is_trained = False
    is_slow = joint = True
    path: Annotated[str, Kind("text")]
    folders: Sequence[Path] = field(default=(), init=False, repr=False, compare=False)

    def with_folders(self, folders: Sequence[Path]) -> File:
        kind = File(path=self.path)
        object.__setattr__(kind, "folders", folders)
        return kind

    def identity(self) -> str:
        return str(self.part.to_str())

    def max_size(self, target: bool) -> int:
        return int(self.part.get_vocab_size())

    def train(self, sides: Mapping[str, Iterable[str]]) -> list[Tokenizer]:
        return [self.part]

    @cached_property
    def part(self) -> Tokenizer:
        """Return the tokenizer of the file, or the copy in the run whose recipe this is. Raises
        RunError.
        """
        with suppress(OSError, ValueError, LookupError, TypeError):
            stored = parse_json(read_text(self.folders[-1] / "tokenizer.json"))
            if stored["settings"] == {"file": {"path": self.path}}:
                return self.load(stored["parts"][0])
        # which need NumPy
        from composer.data.text_files import check_readable, find_file, missing_file

        path = find_file(self.path, self.folders)
        if problem := (
            check_readable(path) if path else missing_file(self.path, self.folders, SUFFIXES)
        ):
            raise RunError([problem.in_file(self.path)])
        try:
            with open_regular(Path(path or "")) as file:
                data = file.read(MAX_BYTES)
            if self.path.endswith(".model"):
                return self.load({SentencePiece.KEY: base64.b64encode(data).decode()})
            return self.load(
                json.loads(Tokenizer.from_str(json.dumps(adapt(parse_json(data)))).to_str())
            )
        except (KeyboardInterrupt, SystemExit, RunError):
            raise
        except BaseException as error:  # the library panics with what is no Exception
            reason = f"it has no {error}" if isinstance(error, KeyError) else one_line_error(error)
            message = f"`{path}` is no tokenizer that can be read: {reason}"
            hint = (
                "name a tokenizer.json as the library tokenizers saves it, or a SentencePiece"
                " `.model`"
            )
            raise RunError([Fault(self.path, 0, 0, "tokenizer", "", message, hint)]) from error

    def load(self, content: dict[str, Any]) -> Tokenizer:
        if SentencePiece.KEY in content:
            part: Any = SentencePiece(content[SentencePiece.KEY])
        elif adapt(content) != content:
            raise ValueError("no training writes such settings")
        else:
            part = Tokenizer.from_str(json.dumps(content))
        return cast(Tokenizer, part)

    def encode(self, part: Any, texts: Sequence[str]) -> list[list[int]]:
        return (
            part.encode(texts) if isinstance(part, SentencePiece) else super().encode(part, texts)
        )

    def prepare(self, line: str) -> str:
        return line.replace(NO_CHARACTER, "\N{REPLACEMENT CHARACTER}")

    def restore(self, text: str) -> str:
        return text.replace(NO_CHARACTER, "")

    def kept_text(self, part: Any, text: str) -> str:
        rows = self.encode(part, [self.prepare(text)])
        return self.restore(part.decode_batch(rows, skip_special_tokens=False)[0])

    def encode_rest(self, part: object, texts: Sequence[str]) -> list[list[int]]:
        return [self._encode_rest(part, text) for text in texts]

    def _encode_rest(self, part: Any, text: str) -> list[int]:
        """Return the ids of a text that goes on: of the ways to encode it, the first in which its
        head comes back.
        """
        before, joined = self.encode(part, [BEFORE, BEFORE + text[:HEAD]])
        (expected,) = part.decode_batch([joined], skip_special_tokens=False)
        bare = text.removeprefix(" ")  # many put a space before a text
        for encoder, rest in ((part, bare), (part, text), (without_prefix(part), text)):
            (head,) = self.encode(encoder, [rest[: HEAD + len(rest) - len(text)]])
            if part.decode_batch([before + head], skip_special_tokens=False) == [expected]:
                return self.encode(encoder, [rest])[0]
        return self.encode(part, [bare])[0]

    def unknown_fix(self, token: str, target: bool, texts: Iterable[str]) -> str:
        return "name the tokenizer of a model of such text, or write `tokenizer: bpe`"


@lru_cache(maxsize=4)
def without_prefix(part: Any) -> object:
    """Return a tokenizer that puts no space before a text."""
    if isinstance(part, SentencePiece):
        return SentencePiece(
            base64.b64encode(base64.b64decode(part.model) + NO_DUMMY_PREFIX).decode()
        )
    return Tokenizer.from_str(json.dumps(json.loads(part.to_str(), object_hook=_unprefixed)))


def _unprefixed(step: dict[str, object]) -> dict[str, object]:
    if step.get("type") == "Prepend":
        return {"type": "Sequence", "normalizers": []}
    if not isinstance(step.get("type"), str):  # a vocabulary
        return step
    never = {"prepend_scheme": "never", "add_prefix_space": False}
    return step | {key: value for key, value in never.items() if key in step}


class SentencePiece:
    """A SentencePiece model in base64, with those methods of the library's Tokenizer that are used."""

    KEY = "sentencepiece"

    def __init__(self, model: str) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            message = "this tokenizer is read by the library SentencePiece, which is not installed"
            hint = "run `pip install sentencepiece`"
            raise RunError([Fault("", 0, 0, "package", "", message, hint)]) from error
        own = self.own = SentencePieceProcessor(model_proto=base64.b64decode(model, validate=True))
        self.model, everything = model, range(len(own))
        special = {
            at for at in everything if own.is_unknown(at) or own.is_control(at) or own.is_unused(at)
        }
        self.theirs = [own.unk_id()] * NUM_SPECIAL + [at for at in everything if at not in special]
        ours = {at: index for index, at in enumerate(self.theirs) if index > UNK}
        self.ours = [ours.get(at, UNK) for at in everything]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.ours[at] for at in row] for row in self.own.encode(list(texts))]

    def decode_batch(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        texts = self.own.decode([[self.theirs[index] for index in row] for row in rows])
        return [text.replace(" \u2047 ", UNK_TOKEN) for text in texts]

    def id_to_token(self, index: int) -> str:
        return (
            SPECIAL_TOKENS[index] if index <= UNK else str(self.own.id_to_piece(self.theirs[index]))
        )

    def get_vocab_size(self) -> int:
        return len(self.theirs)

    def get_vocab(self) -> dict[str, int]:
        return {self.id_to_token(index): index for index in range(len(self.theirs))}

    def to_str(self) -> str:
        return json.dumps({self.KEY: self.model})


def adapt(content: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a tokenizer with our special tokens in place of its own; what is adapted
    stays as it is.

    Raises ValueError, LookupError or TypeError where it is none, or could stall or crash the
    library.
    """
    model, steps = (
        content["model"],
        {key: content.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")},
    )
    parts: list[dict[str, Any]] = []
    json.loads(json.dumps(steps), object_hook=parts.append)
    if any("Regex" in part and is_exponential(part["Regex"]) for part in parts):
        raise ValueError("one of its patterns could take exponential time")
    if math.prod(len(part.get("content", "")) + 1 for part in parts) > MAX_GROWTH:
        raise ValueError("its replacements could make a text far longer")
    if model["type"] == "BPE" and model.get("continuing_subword_prefix"):
        raise ValueError("its merges are of pieces with a prefix, which can crash the library")
    unknown = (
        model["vocab"][model["unk_id"]][0]
        if model.get("unk_id") is not None
        else model.get("unk_token")
    )
    added = sorted(content.get("added_tokens") or [], key=lambda token: int(token["id"]))
    own = {unknown, *SPECIAL, *(token["content"] for token in added if token["special"])}
    if model["type"] == "Unigram":
        pieces = [[token, 0.0] for token in SPECIAL] + [
            piece for piece in model["vocab"] if piece[0] not in own
        ]
        model, tokens = {**model, "vocab": pieces, "unk_id": UNK}, [token for token, _ in pieces]
    else:
        tokens = [
            *SPECIAL,
            *(
                token
                for token in sorted(model["vocab"], key=model["vocab"].get)
                if token not in own
            ),
        ]
        model = {
            **model,
            "vocab": {token: at for at, token in enumerate(tokens)},
            "unk_token": SPECIAL[UNK],
        }
    model |= {"dropout": None} if "dropout" in model else {}
    ids = {token: at for at, token in enumerate(tokens)}
    added = [
        {**token, "id": ids.setdefault(token["content"], len(ids))}
        for token in added
        if token["content"] not in own
    ]
    unused = {"truncation": None, "padding": None, "post_processor": None}
    added.sort(key=lambda token: token["id"])
    return {
        "version": content.get("version"),
        **steps,
        **unused,
        "added_tokens": added,
        "model": model,
    }


def is_exponential(regex: str) -> bool:
    """Return whether a regular expression repeats a group in which something varies."""
    return NESTED.search(ATOM.sub("", regex)) is not None

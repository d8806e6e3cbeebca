"""Tokenizers of other models: a `tokenizer.json` of the library tokenizers, or SentencePiece's.

The ids are ours: special tokens, then the pieces of the file in their order, without its own
special tokens.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, cast

from tokenizers import Tokenizer

from blocks.core.settings import Kind
from composer.atomic_io import open_regular, parse_json, read_text
from composer.data.tokenizer_kinds import FORMAT, UNK_TOKEN, TokenizerKind
from composer.errors import Fault, RunError, one_line_error
from composer.model.special_tokens import NUM_SPECIAL, SPECIAL_TOKENS, UNK

NO_CHARACTER = "\U0010ffff"
"""A code point that no text has: with it our special tokens are pieces of no text."""
SPECIAL = [f"{NO_CHARACTER}{token}" for token in SPECIAL_TOKENS]
NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
"""Protocol buffer that SentencePiece models append: `normalizer_spec {add_dummy_prefix: false}`"""
BEFORE = "a"
"""A text before one that goes on, to try whether the head of the latter is decoded unchanged."""
HEAD = 20
"""Characters of that head."""
SUFFIXES = (".json", ".model")
"""Suffixes of such files, as their libraries write them."""
STEPS = ("normalizer", "pre_tokenizer", "decoder")
MAX_BYTES = 1 << 27
MAX_GROWTH = 1000
ATOM = re.compile(r"\\.|\[(?:\\.|[^\]])*\]|(?<=\()\?[^:=!>()]*[:=!>]", re.DOTALL)
NESTED = re.compile(r"(?:[*+?|]|,\d*\})[^(]*\)[*+{]")
"""In a regular expression without escapes and classes: what varies in a group that is repeated."""


class File(TokenizerKind):
    """Take the tokenizer of another model; its special tokens get no ids and match no text.

    A run keeps a copy of the file.

    Settings:
        path: a tokenizer.json of the library tokenizers or of a run, or a SentencePiece `.model`;
            looked up under `--data`, beside the recipe, then beside the file that names it
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

    def without_ids(self) -> list[str]:
        from composer.data.text_files import find_file

        path = find_file(self.path, self.folders)
        if path is None:  # a run has a copy, which knows none any more
            return []
        if self.path.endswith(".model"):
            part: Any = self.part
            processor = part.processor
            pieces = filter(part.is_special, range(len(processor)))
            return [processor.id_to_piece(piece) for piece in pieces]
        added = parse_json(path.read_bytes()).get("added_tokens") or []
        return [token["content"] for token in added if token["special"]]

    def max_size(self, target: bool) -> int:
        return int(self.part.get_vocab_size())

    def train(self, sides: Mapping[str, Iterable[str]]) -> list[Tokenizer]:
        return [self.part]

    @cached_property
    def part(self) -> Tokenizer:
        """The tokenizer of the file, or its copy in the run of this recipe. Raises RunError."""
        for folder in self.folders:
            with suppress(OSError, ValueError, LookupError, TypeError):
                stored = parse_json(read_text(folder / "tokenizer.json"))
                if stored["settings"] == {"file": {"path": self.path}}:
                    return self.load(stored["parts"][0])
        # imported late, since it needs NumPy
        from composer.data.text_files import check_readable, find_file, missing_file

        path = find_file(self.path, self.folders)
        if path is None:
            raise RunError([missing_file(self.path, self.folders, SUFFIXES).in_file(self.path)])
        if problem := check_readable(path):
            raise RunError([problem.in_file(self.path)])
        try:
            return self.read(path)
        except (KeyboardInterrupt, SystemExit, RunError):
            raise
        except BaseException as error:  # the library's panics are no Exception
            reason = f"it has no {error}" if isinstance(error, KeyError) else one_line_error(error)
            message = f"`{path}` is not a readable tokenizer: {reason}"
            hint = (
                "name a tokenizer.json as the library tokenizers saves it, or a SentencePiece"
                " `.model`"
            )
            raise RunError([Fault(self.path, 0, 0, "tokenizer", "", message, hint)]) from error

    def read(self, path: Path) -> Tokenizer:
        """Read and adapt the tokenizer of a file."""
        with open_regular(path) as file:
            data = file.read(MAX_BYTES)
        if self.path.endswith(".model"):
            return self.load({SentencePiece.KEY: base64.b64encode(data).decode()})
        content = parse_json(data)
        if content.get("format") == FORMAT:  # of a run
            return self.load(content["parts"][0])
        adapted = Tokenizer.from_str(json.dumps(adapt(content)))
        return self.load(json.loads(adapted.to_str()))

    def load(self, content: dict[str, Any]) -> Tokenizer:
        if SentencePiece.KEY in content:
            part: Any = SentencePiece(content[SentencePiece.KEY])
        elif adapt(content) != content:
            raise ValueError("no training writes such settings")
        else:
            part = Tokenizer.from_str(json.dumps(content))
        return cast(Tokenizer, part)

    def encode(self, part: Any, texts: Sequence[str]) -> list[list[int]]:
        if isinstance(part, SentencePiece):
            return part.encode(texts)
        return super().encode(part, texts)

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
        """Encode a text that goes on, in the first way that brings its head back when decoded."""
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


def look_up(table: Sequence[int], indices: Iterable[int]) -> list[int]:
    """Return the entries of a table at these indices."""
    return [table[index] for index in indices]


class SentencePiece:
    """A SentencePiece model in base64, with the methods of the library's Tokenizer that we use."""

    KEY = "sentencepiece"

    def __init__(self, model: str) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            message = "this tokenizer is read by the library SentencePiece, which is not installed"
            hint = "run `pip install sentencepiece`"
            raise RunError([Fault("", 0, 0, "package", "", message, hint)]) from error
        self.processor = SentencePieceProcessor(model_proto=base64.b64decode(model, validate=True))
        self.model, pieces = model, range(len(self.processor))
        normal = [piece for piece in pieces if not self.is_special(piece)]
        self.piece_of_id = [self.processor.unk_id()] * NUM_SPECIAL + normal
        ids = {piece: index for index, piece in enumerate(self.piece_of_id) if index > UNK}
        self.id_of_piece = [ids.get(piece, UNK) for piece in pieces]

    def is_special(self, piece: int) -> bool:
        processor = self.processor
        return (
            processor.is_unknown(piece) or processor.is_control(piece) or processor.is_unused(piece)
        )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        rows = self.processor.encode(list(texts))
        return [look_up(self.id_of_piece, row) for row in rows]

    def decode_batch(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        pieces = [look_up(self.piece_of_id, row) for row in rows]
        texts = self.processor.decode(pieces)
        return [text.replace(" \u2047 ", UNK_TOKEN) for text in texts]

    def id_to_token(self, index: int) -> str:
        if index <= UNK:
            return SPECIAL_TOKENS[index]
        return str(self.processor.id_to_piece(self.piece_of_id[index]))

    def get_vocab_size(self) -> int:
        return len(self.piece_of_id)

    def get_vocab(self) -> dict[str, int]:
        return {self.id_to_token(index): index for index in range(len(self.piece_of_id))}

    def to_str(self) -> str:
        return json.dumps({self.KEY: self.model})


def adapt(content: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a tokenizer with our special tokens in place of its own.

    JSON that is adapted already stays as it is. Raises ValueError, LookupError or TypeError if it
    is no tokenizer, or could stall or crash the library.
    """
    model, steps = content["model"], {key: content.get(key) for key in STEPS}
    check_steps(steps)
    if model["type"] == "BPE" and model.get("continuing_subword_prefix"):
        raise ValueError("its merges are of pieces with a prefix, which can crash the library")
    added = sorted(content.get("added_tokens") or [], key=lambda token: int(token["id"]))
    special = {*SPECIAL, unknown_token(model)}
    special |= {token["content"] for token in added if token["special"]}
    adapt_model = adapt_unigram if model["type"] == "Unigram" else adapt_vocabulary
    model, tokens = adapt_model(model, special)
    if "dropout" in model:
        model["dropout"] = None
    return {
        "version": content.get("version"),
        **steps,
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "added_tokens": renumber(added, tokens, special),
        "model": model,
    }


def check_steps(steps: Mapping[str, object]) -> None:
    """Raise ValueError if a normalizer, pre-tokenizer or decoder could take too long."""
    parts: list[dict[str, Any]] = []
    json.loads(json.dumps(steps), object_hook=parts.append)
    for part in parts:
        if "Regex" in part and is_exponential(part["Regex"]):
            raise ValueError("one of its patterns could take exponential time")
    if math.prod(len(part.get("content", "")) + 1 for part in parts) > MAX_GROWTH:
        raise ValueError("its replacements could make a text far longer")


def unknown_token(model: Mapping[str, Any]) -> object:
    """Return a model's token for unknown text, or None."""
    if model.get("unk_id") is not None:
        return model["vocab"][model["unk_id"]][0]
    return model.get("unk_token")


def adapt_unigram(
    model: Mapping[str, Any], special: Collection[object]
) -> tuple[dict[str, Any], list[str]]:
    """Return a Unigram model and its tokens, our special tokens first and none of `special`."""
    pieces: list[Any] = [[token, 0.0] for token in SPECIAL]
    pieces += [piece for piece in model["vocab"] if piece[0] not in special]
    return {**model, "vocab": pieces, "unk_id": UNK}, [token for token, _ in pieces]


def adapt_vocabulary(
    model: Mapping[str, Any], special: Collection[object]
) -> tuple[dict[str, Any], list[str]]:
    """Return a model whose vocabulary maps tokens to ids, as `adapt_unigram`."""
    ordered = sorted(model["vocab"], key=model["vocab"].get)
    tokens = [*SPECIAL, *(token for token in ordered if token not in special)]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    return {**model, "vocab": vocabulary, "unk_token": SPECIAL[UNK]}, tokens


def renumber(
    added: Sequence[dict[str, Any]], tokens: Sequence[str], special: Collection[object]
) -> list[dict[str, Any]]:
    """Return the added tokens without `special`, in the order of their new ids."""
    ids = {token: at for at, token in enumerate(tokens)}
    renumbered = []
    for token in added:
        if token["content"] not in special:
            index = ids.setdefault(token["content"], len(ids))
            renumbered.append({**token, "id": index})
    return sorted(renumbered, key=lambda token: token["id"])


def is_exponential(regex: str) -> bool:
    """True if a regular expression repeats a group in which something varies."""
    return NESTED.search(ATOM.sub("", regex)) is not None

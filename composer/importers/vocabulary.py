"""Their tokens as ours: a tokenizer whose ids begin with our special tokens, and their rows.

Our special tokens have rows with the vectors of theirs. A token of theirs that a text may spell,
such as `<|im_end|>`, has a row of its own too, so that a prompt can have it. As an answer it is one
of the two; the other has a bias that makes it impossible, as what they do not have.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from composer.atomic_io import open_regular
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_files import (
    MAX_BYTES,
    NO_CHARACTER,
    File,
    SentencePiece,
    adapt,
    unknown_token,
)
from composer.data.tokenizer_kinds import Part
from composer.errors import RunError, one_line_error
from composer.importers.checkpoint import AGAIN, SENTENCEPIECE, TOKENIZER, Checkpoint, read_object
from composer.model.encoder_decoder import NEVER
from composer.model.special_tokens import BOS, EOS, NUM_SPECIAL, PAD, UNK

NOWHERE = -1
"""The row of a token that they do not have."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and for each of its ids their row of the embedding.

    impossible: Ids that are never an answer.
    """

    tokenizer: Part
    rows: tuple[int, ...]
    impossible: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def embedding(self, theirs: Tensor) -> Tensor:
        """Return the rows of our ids: (V', D) -> (V, D); zeros for what they do not have."""
        rows = torch.tensor(self.rows)  # (V,)
        return theirs[rows.clamp(min=0)] * (rows != NOWHERE)[:, None]

    def bias(self, theirs: Tensor | None = None) -> Tensor:
        """Return the bias of each logit: theirs, (V'), or 0; NEVER for what is impossible. (V,)"""
        bias = torch.zeros(len(self)) if theirs is None else self.embedding(theirs[:, None])[:, 0]
        bias[list(self.impossible)] = NEVER
        return bias

    def tokenizers(self, sides: Sequence[str], prefixes: Mapping[str, str]) -> Tokenizers:
        """Return it for these sides of a recipe, as the file `tokenizer.json` beside it.

        prefixes: What lines begin with, by their side.
        """
        settings = {File.word: {"path": TOKENIZER}}
        of_side = dict.fromkeys(sides, 0)
        return Tokenizers(
            File(path=TOKENIZER), settings, False, of_side, (self.tokenizer,), prefixes
        )


@dataclass(frozen=True)
class Roles:
    """Their ids of special tokens.

    start: What a decoder reads first. end: What ends an answer. impossible: What no answer has.
    """

    start: int
    end: int
    impossible: frozenset[int] = frozenset()


def read_vocabulary(checkpoint: Checkpoint, size: int, roles: Roles) -> Vocabulary:
    """Return the vocabulary of a checkpoint whose embedding has so many rows. Raises RunError."""
    path = checkpoint.folder / TOKENIZER
    if not path.is_file():
        return read_sentencepiece(checkpoint.folder / SENTENCEPIECE, size, roles)
    content: dict[str, Any] = read_object(path)
    try:
        theirs = ids_by_token(content)
        unknown = theirs.get(str(unknown_token(content["model"])), NOWHERE)
        part = File(path=TOKENIZER).load(adapt(with_plain_tokens(content, theirs, size)))
    except (KeyboardInterrupt, SystemExit, RunError):
        raise
    except BaseException as error:  # the library's panics are no Exception
        message = f"this tokenizer cannot be read: {one_line_error(error)}"
        raise RunError.of(message, AGAIN, str(path)) from error
    if max(theirs.values()) >= size:
        message = f"it has the id {max(theirs.values()):,}, and the embedding {size:,} rows"
        raise RunError.of(message, AGAIN, str(path))
    for row in (roles.start, roles.end):
        if row not in theirs.values():
            message = f"it has no token {row:,}, which begins or ends texts"
            raise RunError.of(message, AGAIN, str(path))
    theirs |= {unused_token(row): row for row in range(size) if row not in theirs.values()}
    own = [theirs[str(part.id_to_token(at))] for at in range(NUM_SPECIAL, part.get_vocab_size())]
    return joined(part, own, unknown, roles)


def joined(part: Part, own: Sequence[int], unknown: int, roles: Roles) -> Vocabulary:
    """Return a tokenizer with the rows of its special ids and, `own`, of its other ones."""
    special = dict.fromkeys(range(NUM_SPECIAL), NOWHERE)
    special |= {BOS: roles.start, EOS: roles.end, UNK: unknown}
    rows = (*special.values(), *own)
    impossible = [PAD]
    if unknown == NOWHERE:
        impossible.append(UNK)
    if roles.start in (roles.end, *own):
        impossible.append(BOS)
    for at, row in enumerate(own, NUM_SPECIAL):
        if row == roles.end or row in roles.impossible:
            impossible.append(at)
    return Vocabulary(part, rows, tuple(impossible))


def ids_by_token(content: Mapping[str, Any]) -> dict[str, int]:
    """Return their id of each token of a tokenizer.json."""
    vocabulary = content["model"]["vocab"]
    if not isinstance(vocabulary, dict):
        vocabulary = {token: at for at, (token, _) in enumerate(vocabulary)}
    added = {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    theirs = {**vocabulary, **added}
    if not all(type(at) is int and at >= 0 for at in theirs.values()):
        raise ValueError("an id is no number")
    return theirs


def unused_token(row: int) -> str:
    """Return the name of a row without a token, which no text spells."""
    return f"{NO_CHARACTER}unused {row}"


def with_plain_tokens(
    content: Mapping[str, Any], theirs: Mapping[str, int], size: int
) -> dict[str, Any]:
    """Return a tokenizer.json whose special tokens are ordinary ones, and that fills all rows."""
    added = [{**token, "special": False} for token in content.get("added_tokens") or []]
    used = set(theirs.values())
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    for row in range(size):
        if row not in used:
            added.append({"id": row, "content": unused_token(row), **plain})
    return {**content, "added_tokens": added}


def read_sentencepiece(path: Path, size: int, roles: Roles) -> Vocabulary:
    """Return the vocabulary of a SentencePiece model, whose ids are rows. Raises RunError."""
    if not path.is_file():
        message = f"there is neither {TOKENIZER} nor {SENTENCEPIECE}"
        fix = "take a revision that has one, or write it with `save_pretrained` of transformers"
        raise RunError.of(message, fix, str(path.parent))
    with open_regular(path) as file:
        data = file.read(MAX_BYTES)
    try:
        own = SentencePiece(base64.b64encode(data).decode())
    except RuntimeError as error:
        message = f"this tokenizer cannot be read: {one_line_error(error)}"
        raise RunError.of(message, AGAIN, str(path)) from None
    pieces = len(own.processor)
    if pieces != size:
        message = f"it has {pieces:,} pieces, and the embedding {size:,} rows"
        fix = f"write {TOKENIZER} with `save_pretrained` of transformers"
        raise RunError.of(message, fix, str(path))
    part = cast(Part, own)  # has the methods that we use
    return joined(part, own.piece_of_id[NUM_SPECIAL:], own.processor.unk_id(), roles)

"""Tokenizers that were trained before, in the user's cache: the next training on the same text reads its own.

But for `unigram`, which is not trained twice alike: a cache must decide nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from composer.atomic_io import atomic_write, read_text
from composer.data import stories, tokenizer, tokenizer_kinds
from composer.data.corpora import Documents
from composer.data.encoding import train_source_tokenizers
from composer.data.line_hashes import sha256_of_hashes
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_kinds import Unigram
from composer.errors import RunError
from composer.recipe.cache import cache_dir

MOST_ENTRIES, MOST_BYTES = 50, 1 << 24
"""Entries of the cache, of which those used last stay, and bytes of one of them."""


def cached_tokenizers(source: DataSource) -> Tokenizers:
    """Return the tokenizers of a recipe: those that were trained on this text before, or new ones.

    Raises DataError as `train_source_tokenizers`.
    """
    kind = source.recipe.tokenizer
    if isinstance(kind, Unigram) or not kind.is_trained:
        return train_source_tokenizers(source)
    key = fingerprint(source)
    with suppress(OSError, ValueError, RunError):
        return read(cache_dir() / "tokenizers" / key)
    trained = train_source_tokenizers(source)
    with suppress(OSError, RunError):  # without a cache the next training takes as long
        write(cache_dir() / "tokenizers" / key, trained.text())
    return trained


def fingerprint(source: DataSource) -> str:
    """Return the SHA-256 of all that a tokenizer depends on: settings, text, the library and our own code."""
    settings = {key: source.recipe.dataset.get(key) for key in ("tokenizer", "lowercase", "babi")}
    digest = hashlib.sha256(json.dumps([version("tokenizers"), settings]).encode())
    for module in (tokenizer, tokenizer_kinds, stories):
        digest.update(Path(str(module.__file__)).read_bytes())
    for side, lines in source.pairs("train").sides.items():
        own = lines.sha256 if isinstance(lines, Documents) else sha256_of_hashes(lines)
        digest.update(f"\n{side} {own}".encode())
    return digest.hexdigest()


def read(path: Path) -> Tokenizers:
    """Return the tokenizers of an entry. Raises OSError, and ValueError or RunError if it was not written so."""
    sha256, _, text = read_text(path, MOST_BYTES).partition("\n")
    if hashlib.sha256(text.encode()).hexdigest() != sha256:
        raise ValueError("this entry was changed")
    os.utime(path)
    return Tokenizers.from_text(text, path)


def write(path: Path, text: str) -> None:
    """Write an entry, and remove those used longest ago. Raises OSError."""
    content = f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}".encode()
    if len(content) > MOST_BYTES:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content)
    for entry in sorted(path.parent.iterdir(), key=lambda entry: entry.stat().st_mtime)[:-MOST_ENTRIES]:
        entry.unlink(missing_ok=True)

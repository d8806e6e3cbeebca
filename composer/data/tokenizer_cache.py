"""Trained tokenizers in the user's cache: the next training on the same text reads them.

But for `unigram`, which is not trained twice alike: a cache must decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from composer.data.cache_entries import cached_facts
from composer.data.documents import Documents
from composer.data.line_hashes import sha256_of_hashes
from composer.data.pairs import text_names
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers, side_prefixes
from composer.data.tokenizer_kinds import Unigram
from composer.data.tokenizer_training import train_source_tokenizers
from composer.errors import RunError


def cached_tokenizers(source: DataSource) -> Tokenizers:
    """Return the tokenizers of a recipe: those that were trained on this text before, or new ones.

    Raises DataError as `train_source_tokenizers`.
    """
    kind, dataset = source.recipe.tokenizer, source.recipe.canonical["data"]
    if isinstance(kind, Unigram) or not kind.is_trained:
        return train_source_tokenizers(source)
    settings = {key: dataset.get(key) for key in ("tokenizer", "lowercase", "babi")}
    if prefixes := side_prefixes(dataset, text_names(source.recipe)):
        settings["prefix"] = prefixes
    texts = {side: sha256_of_text(lines) for side, lines in source.pairs("train").sides.items()}

    def make() -> str:
        return train_source_tokenizers(source).text

    text = cached_facts("tokenizers", [settings, texts], make, is_tokenizer)
    return Tokenizers.from_text(text)


def sha256_of_text(lines: Sequence[str]) -> str:
    """Return the SHA-256 of documents, or of lines."""
    return lines.sha256 if isinstance(lines, Documents) else sha256_of_hashes(lines)


def is_tokenizer(value: object) -> bool:
    """True for the text of tokenizers."""
    with suppress(RunError):
        return isinstance(value, str) and bool(Tokenizers.from_text(value).parts)
    return False

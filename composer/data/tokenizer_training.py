"""Train the tokenizers of a recipe on the training part of its data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from composer.data.documents import Documents
from composer.data.pairs import TARGET, Pairs, split_path, text_names
from composer.data.sources import DataSource
from composer.data.stories import tokenizer_lines
from composer.data.tokenizer import Tokenizers, side_prefixes, tokenizer_kind, training_text
from composer.data.tokenizer_kinds import TokenizerKind
from composer.data.training_pairs import NEEDS_TEXT
from composer.errors import DataError
from composer.text_lines import is_blank


def train_source_tokenizers(source: DataSource) -> Tokenizers:
    """Train a recipe's tokenizers on the training part of its data.

    Raises DataError with all faults of the files, or if no pair has text on every side.
    """
    recipe, pairs = source.recipe, source.pairs("train")
    if isinstance(documents := pairs.sides[TARGET], Documents):
        pieces = (piece.text for piece in documents.pieces())
        return train_tokenizers(recipe.canonical["data"], {TARGET: pieces}, recipe.tokenizer)
    if not has_full_pair(pairs):
        row, text = ("documents", "text") if recipe.reads_text else ("pairs", "text on every side")
        message = f"none of the {len(pairs):,} training {row} has {text}"
        fix = "give a document text" if recipe.reads_text else NEEDS_TEXT
        raise DataError([recipe.fault("empty", split_path(recipe, "train"), message, fix)])
    lines = {side: tokenizer_lines(recipe, side, pairs.sides[side]) for side in text_names(recipe)}
    return train_tokenizers(recipe.canonical["data"], lines, recipe.tokenizer)


def has_full_pair(pairs: Pairs) -> bool:
    """True if a pair has text on every side."""
    return any(not any(map(is_blank, row)) for row in zip(*pairs.sides.values(), strict=True))


def train_tokenizers(
    section: Mapping[str, Any],
    sides: Mapping[str, Iterable[str]],
    kind: TokenizerKind | None = None,
) -> Tokenizers:
    """Train the tokenizer of a canonical section `data` on the lines of every side.

    `unigram` is not deterministic: with several processes one trains, and the others load its file.
    """
    kind, lowercase = kind or tokenizer_kind(section["tokenizer"]), bool(section.get("lowercase"))
    prefixes = side_prefixes(section, sides)
    texts = {}
    for side, lines in sides.items():
        texts[side] = training_texts(lines, lowercase, prefixes.get(side, ""))
    parts = kind.train(texts)
    indices = dict.fromkeys(sides, 0)
    if len(parts) > 1:
        indices = {side: at for at, side in enumerate(sides)}
    settings = dict(section["tokenizer"])
    return Tokenizers(kind, settings, lowercase, indices, tuple(parts), prefixes)


def training_texts(lines: Iterable[str], lowercase: bool, prefix: str = "") -> Iterator[str]:
    """Yield the lines with text, as tokenizers are trained on them."""
    return (prefix + training_text(line, lowercase) for line in lines if not is_blank(line))

"""Scores by the length of the source: BLEU in buckets, accuracies of generated tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from composer.metrics.bleu import suggest_bleu_tokenizer
from composer.metrics.choice import TextMetrics
from composer.metrics.references import References, Texts, compare, is_exact, references_of
from composer.model.features import feature_settings
from composer.recipe.recipe import Recipe

Key = TypeVar("Key", int, tuple[int, str])
Item = TypeVar("Item")
BUCKET_WIDTH = 10
"""Words of the source by which a bucket is wide."""
LAST_BUCKET = 51
"""Words with which the last bucket begins, which is open."""


def scores_by_length(
    recipe: Recipe,
    metrics: TextMetrics,
    sources: Texts,
    hypotheses: Texts,
    references: References,
    bits: Sequence[float] = (),
) -> dict[str, list[dict[str, object]]]:
    """Return the tables of scores by length that suit a recipe's data, by name."""
    # a question's length says nothing of its story, nor a file's name of its content
    if recipe.data.babi or feature_settings(recipe.data, recipe.sources[0]):
        return {}
    tables = {}
    if recipe.data.generate:
        tables["accuracy_by_length"] = accuracy_by_length(sources, hypotheses, references[0], bits)
    if "bleu" in metrics.names:
        tables["bleu_by_source_length"] = bleu_by_length(sources, hypotheses, references, metrics)
    return tables


def bleu_by_length(
    sources: Texts, hypotheses: Texts, references: References, metrics: TextMetrics
) -> list[dict[str, object]]:
    """Return BLEU (0 to 100) by the length of the source: `{words: "1-10", lines, bleu}` a bucket.

    The shortest come first. Lengths are in `characters` where the script has no spaces between
    words. Lines without a reference are left out.
    """
    is_spaced = suggest_bleu_tokenizer(sources) == "13a"
    unit = "words" if is_spaced else "characters"
    lengths = [len(source.split()) for source in sources] if is_spaced else [*map(len, sources)]
    results: list[dict[str, object]] = []
    for (_, name), rows in group_rows(map(bucket, lengths)):
        columns = [_select(column, rows) for column in references]
        compared = compare(_select(hypotheses, rows), columns)
        if compared.rows:
            bleu = metrics.score("bleu", compared)
            results.append({unit: name, "lines": len(compared.rows), "bleu": bleu})
    return results


def _select(items: Sequence[Item], rows: Sequence[int]) -> list[Item]:
    return [items[row] for row in rows]


def group_rows(keys: Iterable[Key]) -> list[tuple[Key, list[int]]]:
    """Return every key, in ascending order, with the row numbers that have it."""
    groups: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return sorted(groups.items())


def bucket(length: int) -> tuple[int, str]:
    """Return the shortest length and the name of a source's bucket: 0, 1-10, ..., 51+."""
    if length == 0:
        return 0, "0"
    first = min((length - 1) // BUCKET_WIDTH * BUCKET_WIDTH + 1, LAST_BUCKET)
    return first, f"{first}+" if first == LAST_BUCKET else f"{first}-{first + BUCKET_WIDTH - 1}"


def accuracy_by_length(
    sources: Texts, hypotheses: Texts, references: Sequence[str | None], bits: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """Return accuracies by the words of the source, shortest first.

    Each row is `{words, lines, exact_match, positional_accuracy}`: the share of outputs equal to
    the reference, and the share of reference words that the output has at the same position, both
    from 0 to 1. With `bits`, the cost of each reference, a row has their mean. Lines without a
    reference are left out.
    """
    scored = [row for row, text in enumerate(references) if references_of([text])]
    results = []
    for length, positions in group_rows(len(sources[row].split()) for row in scored):
        rows = [scored[position] for position in positions]
        exact = right = words = 0
        for row in rows:
            exact += is_exact(hypotheses[row], [references[row]])
            expected = (references[row] or "").split()
            words += len(expected)
            for output, word in zip(hypotheses[row].split(), expected, strict=False):
                right += output == word
        result: dict[str, Any] = {
            "words": length,
            "lines": len(rows),
            "exact_match": exact / len(rows),
            "positional_accuracy": right / max(words, 1),
        }
        if bits:
            result["bits"] = sum(bits[row] for row in rows) / len(rows)
        results.append(result)
    return results

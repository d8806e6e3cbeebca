"""BLEU by source length: every line is in one bucket, and buckets are scored separately."""

from __future__ import annotations

import pytest

from benchmarks import by_length

SOURCES = ["w " * words for words in (1, 3, 4, 4, 9)]
REFERENCES = ["a b c d e f", "b c d e f g", "c d e f g h", "d e f g h i", "e f g h i j"]


def translated(name: str = "run", **changes) -> by_length.Translated:
    defaults = {"sources": SOURCES, "hypotheses": list(REFERENCES), "references": REFERENCES}
    return by_length.Translated(name, **{**defaults, **changes})


def test_every_line_is_in_one_bucket():
    assert by_length.bucket_labels([3, 5]) == ["0-3", "4-5", "6+"]
    buckets = by_length.by_length(translated(), by_length.bleu_metric(tokenised=True), [3, 5])
    assert [(bucket.words, bucket.lines) for bucket in buckets] == [
        ("0-3", 2),
        ("4-5", 2),
        ("6+", 1),
    ]
    assert [bucket.bleu for bucket in buckets] == pytest.approx([100.0] * 3)
    assert [bucket.spread for bucket in buckets] == pytest.approx([0.0] * 3)


def test_a_bucket_scores_only_its_own_lines():
    hypotheses = [*REFERENCES[:4], "x y z"]
    buckets = by_length.by_length(
        translated(hypotheses=hypotheses), by_length.bleu_metric(tokenised=True), [3, 5]
    )
    assert [bucket.bleu for bucket in buckets] == pytest.approx([100.0, 100.0, 0.0])


def test_runs_with_different_test_sources_are_refused():
    with pytest.raises(SystemExit, match="one and other"):
        by_length.require_same_sources(
            [translated("other"), translated("one", sources=SOURCES[::-1])]
        )


def test_the_table_lists_the_rows_and_the_chart_is_svg(tmp_path):
    buckets = by_length.by_length(translated(), by_length.bleu_metric(tokenised=True), [3, 5])
    rows = [("one", buckets), ("two", buckets)]
    assert (
        by_length.table(rows).splitlines()[2] == "| one | 100.0 ± 0.0 | 100.0 ± 0.0 | 100.0 ± 0.0 |"
    )
    by_length.draw(rows, tmp_path / "f.svg")
    assert "<svg" in (tmp_path / "f.svg").read_text()

"""Tables of made images and sounds, their archives, and sentences each of which is in one split
alone.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np


def write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """Write a table with tabs between its columns; the first row names them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def write_examples(
    table: Path, header: Sequence[str], suffix: str, examples: Iterable[tuple[bytes, Sequence[str]]]
) -> None:
    """Write a table, and beside it an archive of the files that its first column names.

    examples: What is in the file of each row, and the other columns. The same examples make the
    same bytes.
    """
    table.parent.mkdir(parents=True, exist_ok=True)
    archive_path, rows = table.with_suffix(".zip"), [header]
    with zipfile.ZipFile(archive_path, "w") as archive:
        for number, (content, texts) in enumerate(examples):
            name = f"{number:05}.{suffix}"
            archive.writestr(zipfile.ZipInfo(name), content)  # without the time of day
            rows.append((f"{archive_path.name}/{name}", *texts))
    write_table(table, rows)


def split_sentences(
    sentences: Iterable[str], counts: Mapping[str, int], seed: int
) -> dict[str, list[str]]:
    """Return so many sentences of each split, chosen at random, no sentence twice. Raises
    ValueError for too few.
    """
    different, needed = [*dict.fromkeys(sentences)], sum(counts.values())
    if needed > len(different):
        message = (
            f"the text has {len(different):,} different sentences that suit, and {needed:,} are"
            " needed"
        )
        raise ValueError(message)
    order = np.random.default_rng(seed).permutation(len(different)).tolist()
    ends = np.cumsum([*counts.values()]).tolist()
    parts = zip(counts, [0, *ends], ends, strict=False)
    return {split: [different[at] for at in order[low:high]] for split, low, high in parts}

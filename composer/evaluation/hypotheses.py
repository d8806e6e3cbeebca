"""Files of decoded lines as JSON lines with `src`, `mt` and `ref`, which COMET reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from composer.atomic_io import atomic_open, parse_json, read_text
from composer.metrics.references import References, references_of


def write_hypotheses(
    file: Path, sources: Sequence[str], outputs: Sequence[str], references: References
) -> None:
    """Write decoded lines; `refs` has all references of a line that has several.

    A blank reference is none: a line without any has no `ref`.
    """
    with atomic_open(file) as target:
        for src, mt, *texts in zip(sources, outputs, *references, strict=True):
            refs = references_of(texts)
            row: dict[str, object] = {"src": src, "mt": mt}
            if refs:
                row["ref"] = refs[0]
            if len(refs) > 1:
                row["refs"] = refs
            target.write(f"{json.dumps(row, ensure_ascii=False)}\n".encode())


def read_hypotheses(file: Path, references: References) -> list[str]:
    """Return the decoded lines of a file; [] if there is none, or one of other references."""
    try:
        rows = [parse_json(line) for line in read_text(file).rstrip("\n").split("\n")]
        # an older file has blank references too
        known = [references_of([row.get("ref"), *row.get("refs", [])])[:1] for row in rows]
        expected = [references_of(row)[:1] for row in zip(*references, strict=True)]
        return [str(row["mt"]) for row in rows] if known == expected else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # an older run has none
        return []

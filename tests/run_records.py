"""run.json of tests: changed by hand, as somebody might, or an earlier version."""

from __future__ import annotations

import json
from typing import Any

from composer.run_dir import RunDir
from composer.runs.record import RunRecord, parse_record, results_sha256


def change_record(run: RunDir, **changes: Any) -> None:
    """Write other values of some keys into run.json, and the SHA-256 of its new results."""
    write_record(run, {**json.loads(run.record.read_text()), **changes})


def write_record(run: RunDir, data: dict[str, Any]) -> None:
    """Write a run.json."""
    run.record.write_text(json.dumps({**data, "results_sha256": results_sha256(data)}))


def record_of(**data: Any) -> RunRecord:
    """Return a run.json with these keys."""
    return parse_record(json.dumps(data))

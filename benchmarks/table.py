"""Markdown table of finished runs, from their run.json.

python -m benchmarks.table RUN ...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COLUMNS = {
    "recipe": lambda run: run["name"],
    "parameters": lambda run: f"{run['parameters'] / 1e6:.1f} M",
    "steps": lambda run: f"{run['steps']:,}",
    "epochs": lambda run: f"{run['epochs']:.1f}",
    "val/perplexity": lambda run: score(run, "val/perplexity"),
    "test/perplexity": lambda run: score(run, "test/perplexity"),
    "test/bleu": lambda run: score(run, "test/bleu"),
    "test/chrf": lambda run: score(run, "test/chrf"),
}


def score(run: dict[str, Any], name: str) -> str:
    value = run.get("scores", {}).get(name)
    return "not measured" if value is None else f"{value:.1f}" if value > 10 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    records = [
        json.loads((run / "run.json").read_text(encoding="utf-8"))
        for run in parser.parse_args().runs
    ]
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for run in records:
        finished = run["status"] == "finished"
        print(
            "| "
            + " | ".join(cell(run) if finished else run["status"] for cell in COLUMNS.values())
            + " |"
        )


if __name__ == "__main__":
    main()

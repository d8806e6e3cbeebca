"""The leaderboard as one HTML page that opens offline: a Jinja2 template with Plotly charts."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from composer.run_dir import seed_dirs, utc_now
from composer.sweeps.leaderboard.board import Leaderboard
from composer.sweeps.leaderboard.charts import cost_charts, curve_chart
from composer.sweeps.leaderboard.tables import count_text, effect_table, failure_lines, trial_table
from composer.sweeps.trial import Trial
from composer.viz.page import render, write_document


def write_leaderboard(board: Leaderboard, output: str | Path | None = None) -> Path:
    """Write the page, by default FOLDER/leaderboard.html, and return its path. Raises RunError."""
    file = Path(output) if output is not None else board.folder / "leaderboard.html"
    page = render(
        "leaderboard.html",
        title=f"{board.name}: leaderboard",
        board=board,
        counts=count_text(board),
        trials=trial_table(board),
        links=[file_links(result.trial, file.parent) for result in board.results],
        failures=failure_lines(board),
        cost_charts=[*cost_charts(board)],
        effects=effect_table(board),
        curve_chart=curve_chart(board),
        time=utc_now()[:16].replace("T", " "),
    )
    return write_document(file, "leaderboard", page)


def file_links(trial: Trial, home: Path) -> dict[str, dict[str, str]]:
    """Return links to the recipe, runs and reports of a trial, and to logs if it has failed."""
    links: dict[str, dict[str, str]] = {}

    def add(kind: str, label: str, path: Path) -> None:
        if path.exists():
            way = os.path.relpath(path, home).replace(os.sep, "/")
            links.setdefault(kind, {})[label] = f"./{quote(way)}"

    add("", "recipe", trial.recipe)
    for seed in seed_dirs(trial.folder):
        add("run", str(seed), trial.run(seed))
        add("report", str(seed), trial.run(seed) / "report.html")
    if trial.status != "finished":
        for log in sorted(trial.folder.glob("seed-*.log")):
            add("log", log.stem.removeprefix("seed-"), log)
    return links

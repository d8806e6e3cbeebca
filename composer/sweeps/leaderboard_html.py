"""The leaderboard as one page that opens offline."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from composer.run_dir import utc_now
from composer.sweeps.leaderboard import RANGES, AxisEffect, Entry, Leaderboard, informative_effects
from composer.sweeps.leaderboard_charts import STYLE, TOLD, against, costs, curves, shares
from composer.sweeps.tables import (
    amount,
    cells,
    chance_of,
    columns,
    counts,
    deviation,
    failures,
    named,
    rule,
    share_of,
    title,
)
from composer.viz.html import Markup, html_document, join, tag
from composer.viz.page import write_html

NAME = "leaderboard.html"


def write_leaderboard(board: Leaderboard, output: str | Path | None = None) -> Path:
    """Writes the page, FOLDER/leaderboard.html if `output` is None; the file. Raises RunError."""
    file = Path(output) if output is not None else board.folder / NAME
    return write_html(file, "leaderboard", leaderboard_page(board, file.parent))


# ------------------------------------------------------------------------------------------- parts


def leaderboard_page(board: Leaderboard, home: Path) -> str:
    """The whole page. home: the folder it will lie in, from which its links lead."""
    parts = {
        "table": ("Trials", table(board, home)),
        "costs": ("Quality against cost", quality(board)),
        "axes": ("What each axis contributes", axes(board)),
        "curves": ("Curves", drawn(board)),
    }
    there = {name: part for name, part in parts.items() if part[1]}
    links = (tag("a", {"href": f"#{name}"}, said) for name, (said, _) in there.items())
    head = tag("header", {}, tag("h1", {}, board.name), tag("p", {}, f"{counts(board)}."), tag("nav", {}, *links))
    sections = (tag("section", {"id": name}, tag("h2", {}, said), inner) for name, (said, inner) in there.items())
    foot = tag("footer", {}, f"Written {utc_now()[:16].replace('T', ' ')} UTC by seqcomposer leaderboard.")
    return html_document(f"{board.name}: leaderboard", head, tag("main", {}, *sections), foot, style=STYLE)


def table(board: Leaderboard, home: Path) -> Markup:
    """Every trial, the best first; below it, why trials have failed."""
    if not board.entries:
        return Markup("")
    heads = columns(board)
    kinds = [None if column.is_text else "number" for column in heads]
    head = tag("tr", {}, *(tag("th", {"class": kind}, each.head) for kind, each in zip(kinds, heads, strict=True)))
    body = (row(board, entry, home, kinds) for entry in board.entries)
    inner = tag("table", {"class": "trials"}, tag("thead", {}, head), tag("tbody", {}, *body))
    notes = (tag("p", {"class": "note"}, failure) for failure in failures(board))
    return join([tag("p", {"class": "soft"}, rule(board)), tag("div", {"class": "scroll"}, inner), *notes])


def row(board: Leaderboard, entry: Entry, home: Path, kinds: Sequence[str | None]) -> Markup:
    """One trial; its last cell leads to its files."""
    *told, name = cells(board, entry)
    shown = [tag("td", {"class": kind}, text) for kind, text in zip(kinds, told, strict=False)]
    files = [part for kind, found in links(entry, home).items() for part in (f" {kind} ".rstrip(), *found)]
    return tag(
        "tr",
        {"id": f"trial-{entry.trial.fingerprint}"},
        *shown,
        tag("td", {}, name, tag("span", {"class": "files"}, *files)),
    )


def links(entry: Entry, home: Path) -> dict[str, list[str]]:
    """A trial's recipe, each seed's run folder and report, and the log of what did not finish, as far as there."""
    trial = entry.trial
    seeds = seeds_of(trial.folder)
    wanted = {"": {"recipe": trial.recipe}, "run": {str(seed): trial.run(seed) for seed in seeds}}
    wanted["report"] = {str(seed): trial.run(seed) / "report.html" for seed in seeds}
    wanted["log"] = {str(seed): trial.log(seed) for seed in seeds} if trial.status != "finished" else {}
    there = {kind: {said: path for said, path in each.items() if path.exists()} for kind, each in wanted.items()}
    return {
        kind: [part for said, path in each.items() for part in (" ", tag("a", {"href": href(path, home)}, said))]
        for kind, each in there.items()
        if each
    }


def seeds_of(folder: Path) -> list[int]:
    """The seeds that have a run folder or a log."""
    names = {path.stem.removeprefix("seed-") for path in folder.glob("seed-*")}
    return sorted(int(name) for name in names if name.isdecimal())


def href(path: Path, home: Path) -> str:
    """The way from a folder to a file, as a link says it."""
    way = os.path.relpath(path, home).replace(os.sep, "/")
    return f"./{quote(way)}{'/' if path.is_dir() else ''}"


def quality(board: Leaderboard) -> Markup:
    """The first goal against every cost."""
    found = [picture for goal in costs(board) if (picture := against(board, goal))]
    if not found:
        return Markup("")
    about = (
        "Each dot is a finished trial and leads to its row. A filled one is on the Pareto front: no other trial is "
        "better in one of the two and as good in the other. Upright lines are one standard deviation over seeds; a "
        "number beside a dot says how many trials share its place."
    )
    return join([tag("p", {"class": "soft"}, about), tag("div", {"class": "charts"}, *found)])


def axes(board: Leaderboard) -> Markup:
    """What each axis contributes."""
    found = informative_effects(board)
    if not found:
        return Markup("")
    metric = title(board.goals[0].metric)
    about = (
        f"The mean of {metric} over the finished trials that have a choice, whatever they have on the other axes, and "
        "the standard deviation of these trials. The share is that of the variance between trials which lies between "
        f"the axis's choices (eta squared); an axis of many numbers is cut into {RANGES} ranges. Chance alone gives an "
        "axis without any effect (choices - 1) / (trials - 1) of it. Where a search tried some combinations more than "
        "others, or pruned the bad ones, the means of an axis also hold what the others do."
    )
    tables = (contribution(board, each) for each in found)
    return join([tag("p", {"class": "soft"}, about), tag("div", {"class": "charts"}, shares(found), *tables)])


def contribution(board: Leaderboard, found: AxisEffect) -> Markup:
    """One axis: its choices."""
    metric = board.goals[0].metric
    heads = ["choice", "trials", title(metric), "±"]
    head = tag("tr", {}, *(tag("th", {"class": "number" if at else None}, text) for at, text in enumerate(heads)))
    body = [
        [
            each.name,
            str(each.trials),
            amount(metric, each.mean),
            "" if each.spread is None else deviation(metric, each.spread),
        ]
        for each in found.choices
    ]
    rows = (
        tag("tr", {}, *(tag("td", {"class": "number" if at else None}, text) for at, text in enumerate(row)))
        for row in body
    )
    said = f"share of the variance: {share_of(found)}, by chance {chance_of(found)}"
    caption = tag("figcaption", {}, tag("b", {}, named(found)), said)
    inner = tag("table", {}, tag("thead", {}, head), tag("tbody", {}, *rows))
    return tag("figure", {"class": "chart"}, caption, tag("div", {"class": "scroll"}, inner))


def drawn(board: Leaderboard) -> Markup:
    """The curves, and whose they are."""
    picture = curves(board)
    if not picture:
        return Markup("")
    about = f"{board.watched} of each trial's first seed; the first {TOLD} of the table have colours."
    return join([tag("p", {"class": "soft"}, about), tag("div", {"class": "wide"}, picture)])

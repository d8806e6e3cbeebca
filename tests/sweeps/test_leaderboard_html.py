"""The leaderboard's page: it opens offline, leads to every run, and holds no markup of others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from composer.errors import RunError
from composer.sweeps.leaderboard.charts import MAX_SHOWN_CURVES
from composer.sweeps.leaderboard.page import write_leaderboard
from tests.sweeps.leaderboard_dirs import begun, ran, read_board, trial
from tests.viz.pages import figures, headings, read


def page(folder: Path, output: Path | None = None) -> ElementTree.Element:
    return read(write_leaderboard(read_board(folder), output))


def small(folder: Path) -> Path:
    begun(folder)
    home = trial(folder, 0, [20.0, 22.0], point={"encoder": "rnn", "rate": 0.1}, parameters=10)
    (home / "seed-1.log").write_text("of no interest, it has finished", encoding="utf-8")
    trial(folder, 1, [30.0, 31.0], point={"encoder": "cnn", "rate": 0.1}, parameters=20)
    trial(folder, 2, [25.0, 26.0], point={"encoder": "cnn"}, parameters=30)
    trial(folder, 3, [5.0], status="running", point={"encoder": "rnn", "rate": 0.2})
    home = trial(
        folder, 4, status="failed", error="no memory", point={"encoder": "rnn", "rate": 0.3}
    )
    (home / "seed-1.log").write_text("said", encoding="utf-8")
    return folder


def links(root: ElementTree.Element) -> list[str]:
    return [item.get("href", "") for item in root.iter("a")]


def test_the_page_holds_all_parts(tmp_path: Path) -> None:
    result = page(small(tmp_path / "s"))
    assert headings(result) == [
        "Trials",
        "Quality against cost",
        "What each axis contributes",
        "Curves",
    ]
    anchors = [item[1:] for item in links(result) if item.startswith("#")]
    assert set(anchors) <= {item.get("id") for item in result.iter()}
    assert [item.get("id") for item in result.iter("tr") if item.get("id")] == [
        f"trial-{n:012x}" for n in (1, 2, 0, 3, 4)
    ]


@pytest.mark.parametrize("place", ["s/leaderboard.html", "other place/page.html"])
def test_links_point_to_existing_files(tmp_path: Path, place: str) -> None:
    folder = small(tmp_path / "s")
    (tmp_path / "other place").mkdir()
    file = tmp_path / place
    ways = [item for item in links(page(folder, file)) if not item.startswith("#")]
    ends = {(file.parent / unquote(way)).resolve() for way in ways}
    home = folder / "trials"
    wanted = {home / f"{n:012x}" / "recipe.yaml" for n in range(5)}
    wanted |= {home / f"{n:012x}" / f"seed-{seed}" for n in range(3) for seed in (1, 2)}
    wanted |= {home / f"{3:012x}" / "seed-1", home / f"{4:012x}" / "seed-1.log"}
    assert ends == {item.resolve() for item in wanted}
    assert all(way.startswith("./") for way in ways)


def test_the_page_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    result = page(small(tmp_path / "s"))
    assert not [
        item.tag
        for item in result.iter()
        if item.tag in ("link", "iframe", "object", "embed", "img", "base")
    ]
    assert not [
        name
        for item in result.iter()
        for name in item.attrib
        if name.startswith("on") or name == "style"
    ]
    assert all(item.startswith(("#", "./")) for item in links(result))
    (policy,) = (item.get("content", "") for item in result.iter("meta") if item.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    styles = "".join("".join(item.itertext()) for item in result.iter("style"))
    assert not any(word in styles for word in ("url(", "@import", "http"))
    assert len(figures(result)) == 3  # minutes are no goal: parameters, FLOPs and curves


def test_names_and_errors_are_escaped(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", axes=["<b>x</b>"])
    evil = '<script>alert("1")</script>\u202e\x1b[31m'
    trial(folder, 0, [1.0], point={"<b>x</b>": evil})
    trial(folder, 1, status="failed", error=evil, point={"<b>x</b>": "a"})
    result = page(folder)
    assert [item.get("class") for item in result.iter("script")] == ["plotly", None]
    heads = ["".join(item.itertext()) for item in result.iter("th")]
    assert "<b>x</b>" in heads
    assert '<script>alert("1")' in "".join(result.itertext())
    assert "\x1b" not in "".join(result.itertext())
    hovers = [
        text
        for figure in figures(result)
        for trace in figure["data"]
        for text in trace.get("hovertext", ())
    ]
    assert any("&lt;script&gt;" in text for text in hovers)  # Plotly reads some HTML itself
    assert not any("<script" in text or "\x1b" in text for text in hovers)


def test_dots_link_to_rows_and_the_pareto_front_is_a_line(tmp_path: Path) -> None:
    """By parameters 0 (10, 21) and 1 (20, 30.5) are the front; 2 (30, 25.5) is worse than 1 in
    both.
    """
    by_parameters = figures(page(small(tmp_path / "s")))[0]
    traces = {trace["name"]: trace for trace in by_parameters["data"]}
    front, others = traces["Pareto front"], traces["other trials"]
    assert (front["x"], front["y"]) == ([10.0, 20.0], [21.0, 30.5])
    assert (others["x"], others["y"]) == ([30.0], [25.5])
    assert [*others["text"], *front["text"]] == ["2", "3", "1"]
    assert front["customdata"] == [f"#trial-{number:012x}" for number in (0, 1)]
    assert others["customdata"] == [f"#trial-{2:012x}"]
    assert front["error_y"]["array"] == pytest.approx([2**0.5, 0.5**0.5])


def test_a_score_is_no_cost_and_the_front_has_one_colour(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", rank=[{"val/bleu": "max"}, {"val/loss": "min"}])
    trial(folder, 0, [1.0], parameters=1, flops=2)
    trial(folder, 1, [2.0], parameters=2, flops=1)
    *charts, _ = figures(page(folder))
    assert [chart["layout"]["xaxis"]["title"]["text"] for chart in charts] == [
        "parameters",
        "FLOPs",
    ]
    for chart in charts:
        others, front = chart["data"]
        assert (others["name"], front["name"]) == ("other trials", "Pareto front")
        assert others["showlegend"] is bool(others["x"])


def test_the_table_has_what_was_spent_and_p_values(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    for number, scores in enumerate(([1.0, 1.1], [5.0, 5.1])):
        home = trial(folder, number, scores)
        for seed in (1, 2):
            file = home / f"seed-{seed}" / "run.json"
            record = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps(record | {"steps": 10 * seed, "epochs": 0.5}), "utf-8")
    rows = [["".join(cell.itertext()) for cell in row] for row in page(folder).iter("tr")]
    best, worse = (dict(zip(rows[0], row, strict=True)) for row in rows[1:3])
    assert (best["steps"], best["epochs"], best["p"]) == ("10 to 20", "0.50", "")
    assert float(worse["p"].removeprefix("< ")) < 0.05
    assert "status" not in rows[0], "all have finished"


def test_a_chart_is_of_each_cost_by_which_trials_are_ranked(tmp_path: Path) -> None:
    titles = []
    for name, rank in (
        ("a", [{"val/bleu": "max"}, {"minutes": "min"}]),
        ("b", [{"parameters": "min"}]),
    ):
        folder = begun(tmp_path / name, rank=rank)
        trial(folder, 0, [1.0])
        *charts, _ = figures(page(folder))
        titles.append([chart["layout"]["xaxis"]["title"]["text"] for chart in charts])
    assert titles == [["minutes", "parameters", "FLOPs"], ["FLOPs"]]


def test_an_axis_is_logarithmic_where_costs_differ_much(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    for number, parameters in enumerate([10, 1000]):
        trial(folder, number, [float(number)], parameters=parameters, flops=7)
    by_parameters, by_flops, *_ = figures(page(folder))
    assert by_parameters["layout"]["xaxis"]["type"] == "log"
    assert by_flops["layout"]["xaxis"]["type"] == "linear"
    assert {10, 100, 1000} <= {*by_parameters["layout"]["xaxis"]["tickvals"]}


def test_every_trial_that_has_validated_has_a_curve(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    for number in range(MAX_SHOWN_CURVES + 3):
        trial(folder, number, [float(number)])
    curves = figures(page(folder))[-1]["data"]
    assert [trace.get("visible", True) for trace in curves] == [True] * MAX_SHOWN_CURVES + [
        "legendonly"
    ] * 3
    assert [trace["name"].split()[0] for trace in curves] == [
        f"#{rank}" for rank in range(1, len(curves) + 1)
    ]
    assert (curves[0]["x"], curves[0]["y"]) == ([10.0, 20.0], [1.0, float(len(curves) - 1)])


def test_a_curve_is_of_all_lines_where_these_were_decoded(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    log = trial(folder, 0, [7.0]) / "seed-1" / "metrics.jsonl"
    curves = figures(page(folder))[-1]
    assert curves["layout"]["yaxis"]["title"]["text"] == "val_sample/bleu"
    log.write_text(log.read_text(encoding="utf-8").replace("val_sample/", "val/"), encoding="utf-8")
    curves = figures(page(folder))[-1]
    assert curves["layout"]["yaxis"]["title"]["text"] == "val/bleu"
    assert curves["data"][0]["y"] == [1.0, 7.0]


def test_the_page_says_of_effects_and_differences_what_the_terminal_does(tmp_path: Path) -> None:
    folder = small(tmp_path / "s")
    board = read_board(folder)
    text = " ".join("".join(page(folder).itertext()).split())
    notes = board.as_json()["notes"]
    assert len(notes) > 1
    assert all(note in text for note in notes)
    cells = {tuple("".join(cell.itertext()) for cell in row) for row in page(folder).iter("tr")}
    lines = [tuple(re.split(r"\s{2,}", line.strip())) for line in board.text().splitlines()]
    effects = [line for line in lines if line[:2] in (("cnn", "2"), ("encoder", "rnn"))]
    assert len(effects) == 2
    assert all(any({*line} - {"encoder"} <= {*row} for row in cells) for line in effects)


def test_what_limits_the_effects_does_not_unfold(tmp_path: Path) -> None:
    folder = small(tmp_path / "s")
    trial(folder, 5, status="pruned", point={"encoder": "cnn"})
    result = page(folder)
    unfolded = ["".join(part.itertext()) for part in result.iter("details")]
    limit, method = "Pruned trials are left out", "Means are adjusted"
    assert limit in "".join(result.itertext())
    assert [(limit in text, method in text) for text in unfolded] == [
        (False, False),
        (False, True),
    ]


def test_a_page_needs_no_finished_trial(tmp_path: Path) -> None:
    """Without any, with one that has only begun, and with one point of one value."""
    folder = begun(tmp_path / "s")
    assert headings(page(folder)) == []
    home = trial(folder, 0, status="running")
    assert headings(page(folder)) == ["Trials"]
    ran(home / "seed-1", "val/bleu", 0.0, "running")
    assert headings(page(folder)) == ["Trials", "Curves"]
    trial(folder, 1, [0.0], parameters=0, flops=0)
    assert headings(page(folder)) == ["Trials", "Quality against cost", "Curves"]
    for number in (2, 3):
        trial(folder, number, [float(number)], point={"encoder": "same"})
    assert len(headings(page(folder))) == 4


def test_only_a_leaderboard_page_is_overwritten(tmp_path: Path) -> None:
    folder = small(tmp_path / "s")
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    for output in (tmp_path / "mine.txt", tmp_path, tmp_path / "nowhere" / "page.html"):
        with pytest.raises(RunError, match="cannot be written"):
            write_leaderboard(read_board(folder), output)
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"
    assert (
        write_leaderboard(read_board(folder))
        == write_leaderboard(read_board(folder))
        == folder / "leaderboard.html"
    )

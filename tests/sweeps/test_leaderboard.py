"""The leaderboard: who is first, what seeds may have made, and what an axis contributes."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from statistics import fmean

import pytest
from rich.cells import cell_len

from composer.formatting import align_columns, si, significant
from composer.sweeps.leaderboard import Measurement, are_alike, pareto_front
from composer.sweeps.leaderboard_html import cost_goals, gather_points
from composer.sweeps.leaderboard_text import (
    MAX_GROUPS,
    axis_effects,
    columns,
    eta_squared,
    leaderboard_json,
    leaderboard_text,
    ranking_note,
)
from composer.sweeps.sweep import Goal
from tests.sweeps.leaderboard_dirs import begun, numbers, ran, read_board, trial


def test_the_best_trial_is_first_and_unfinished_trials_are_last(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [20.0])
    trial(folder, 1, [30.0])
    trial(folder, 2, [90.0], status="failed", error="boom\nmore")
    trial(folder, 3, [80.0], status="pruned", pruned_at=20)
    trial(folder, 4, [70.0], status="running")
    result = read_board(folder)
    assert numbers(result) == [(1, 1), (0, 2), (4, None), (3, None), (2, None)]
    text = leaderboard_text(result)
    assert "5 trials: 2 finished, 1 running, 1 pruned, 1 failed" in text
    assert "pruned at step 20" in text
    assert "000000000002 failed (encoder e2): boom\n" in text
    assert "more" not in text


def test_a_loss_falls_and_ties_go_to_the_next_goal(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", rank=[{"val/loss": "min"}, {"parameters": "min"}])
    trial(folder, 0, [2.0], metric="val/loss", parameters=9)
    trial(folder, 1, [1.0], metric="val/loss", parameters=5)
    trial(folder, 2, [1.0], metric="val/loss", parameters=3)
    trial(folder, 3, [1.0], metric="val/loss", parameters=5)
    assert numbers(read_board(folder)) == [(2, 1), (1, 2), (3, 2), (0, 4)]


def test_mean_and_spread_are_over_the_finished_seeds(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    home = trial(folder, 0, {4: 10.0, 7: 12.0, 9: 14.0})
    ran(home / "seed-11", "val/bleu", 99.0, "failed")
    (entry,) = read_board(folder).results
    assert dict(entry.measured["val/bleu"].values) == {4: 10.0, 7: 12.0, 9: 14.0}
    assert entry.measured["val/bleu"].mean == 12.0
    assert entry.measured["val/bleu"].spread == 2.0
    assert entry.tokens_per_second == 200.0
    assert entry.measured["minutes"].mean == 2.0
    assert list(entry.curve) == [(10.0, 1.0), (20.0, 10.0)]
    assert "12.00 ± 2.00" in leaderboard_text(read_board(folder))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ([10.0, 12.0], [11.0, 13.0], True),
        ([10.0, 10.2], [12.0, 12.2], False),
        ([10.0], [11.0, 13.0], False),  # one seed: the other's spread, 1.41, is what is known; the means differ by 2
        ([11.0], [11.0, 13.0], True),
        ([10.0], [10.0], False),  # nothing is known of the spread
        ([10.0, 10.0], [10.0, 10.0], True),
    ],
)
def test_trials_are_alike_within_the_larger_standard_deviation(
    one: list[float], other: list[float], alike: bool
) -> None:
    a, b = (Measurement(dict(enumerate(item))) for item in (one, other))
    assert are_alike(a, b) is alike
    assert are_alike(b, a) is alike


def test_trials_alike_with_the_best_are_marked(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [30.0, 34.0])
    trial(folder, 1, [29.0, 33.0])
    trial(folder, 2, [10.0, 11.0])
    result = read_board(folder)
    assert [entry.is_alike for entry in result.results] == [False, True, False]
    lines = leaderboard_text(result).splitlines()
    assert [("2 ≈" in line, "-1.00" in line) for line in lines[4:7]] == [(False, False), (True, True), (False, False)]
    assert "larger of their two standard deviations" in ranking_note(result)


def test_with_one_seed_the_spread_is_reported_as_unknown(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [30.0])
    trial(folder, 1, [29.0])
    text = leaderboard_text(read_board(folder))
    assert "is not known" in text
    assert "≈" not in text


def test_a_trial_without_a_finite_score_has_no_rank(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, {1: None})
    trial(folder, 1, {1: float("nan")})
    trial(folder, 2, [1.0])
    result = read_board(folder)
    assert numbers(result) == [(2, 1), (0, None), (1, None)]
    assert leaderboard_text(result).count("without a number") == 2
    json.dumps(leaderboard_json(result), allow_nan=False)


def test_an_axis_that_is_not_active_has_no_value(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [3.0], point={"encoder": "rnn", "rate": 0.00123456})
    trial(folder, 1, [2.0], point={"encoder": "none"})
    text = leaderboard_text(read_board(folder))
    assert "rnn      0.001235" in text
    assert "none     -" in text


def test_an_empty_sweep_is_a_leaderboard_too(tmp_path: Path) -> None:
    assert "no trials yet" in leaderboard_text(read_board(begun(tmp_path / "s")))


# ------------------------------------------------------------------------------------------- contributions


def grid(folder: Path, effect: dict[str, float], other: dict[str, float]) -> None:
    cells = [(a, b) for a in effect for b in other]
    for number, (a, b) in enumerate(cells):
        trial(folder, number, [10.0 + effect[a] + other[b]], point={"encoder": a, "rate": b})


def test_an_axis_contributes_its_effect(tmp_path: Path) -> None:
    """In a full grid of x_ab = m + a + b the shares are var(a) and var(b) over their sum, 4 : 1 for effects 2 : 1."""
    grid(begun(tmp_path / "s"), {"p": -2.0, "q": 2.0}, {"low": -1.0, "high": 1.0})
    encoder, rate = axis_effects(read_board(tmp_path / "s"))
    assert {name: (item.mean, len(item.values)) for name, item in encoder.groups.items()} == {
        "p": (8.0, 2),
        "q": (12.0, 2),
    }
    assert encoder.variance == pytest.approx(0.8)
    assert rate.variance == pytest.approx(0.2)
    assert [line.split() for line in leaderboard_text(read_board(tmp_path / "s")).splitlines() if "80%" in line] == [
        ["encoder", "80%", "33%", "p", "2", "8.00", "±", "1.41"]
    ]


def test_a_meaningless_share_of_variance_is_left_out(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [1.0], point={"encoder": "a", "rate": 1})
    trial(folder, 1, [2.0], point={"encoder": "b", "rate": 1})
    encoder, rate = axis_effects(read_board(folder))
    assert encoder.variance is None  # each choice once: the share would be 1 whatever the axis does
    assert rate.variance is None  # one choice
    assert list(rate.groups) == ["1"]


def test_an_axis_counts_where_it_is_active_and_finished(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [1.0], point={"encoder": "a", "rate": 5})
    trial(folder, 1, [2.0], point={"encoder": "a"})
    trial(folder, 2, [9.0], point={"encoder": "a", "rate": 6}, status="pruned")
    result = {
        item.axis: [len(choice.values) for choice in item.groups.values()] for item in axis_effects(read_board(folder))
    }
    assert result == {"encoder": [2], "rate": [1]}


def test_many_numbers_are_cut_into_ranges(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    rates = [10.0**-at for at in range(20)]
    random.Random(1).shuffle(rates)
    for number, rate in enumerate(rates):
        trial(folder, number, [rate], point={"rate": rate})
    (result,) = axis_effects(read_board(folder))
    assert [len(choice.values) for choice in result.groups.values()] == [20 // MAX_GROUPS] * MAX_GROUPS
    means = [choice.mean for choice in result.groups.values()]
    assert means == sorted(means)
    assert means[-1] == pytest.approx(fmean([1.0, 0.1, 0.01, 0.001, 0.0001]))
    assert list(result.groups)[-1] == "0.0001 to 1"


def test_the_share_expected_by_chance_is_that_of_all_permutations(tmp_path: Path) -> None:
    """Over all orders of the trials' values, an axis of three choices in seven trials has a third of the variance."""
    folder = begun(tmp_path / "s", axes=["encoder"])
    groups = ["a", "a", "b", "b", "b", "c", "c"]
    for number, name in enumerate(groups):
        trial(folder, number, [float(number)], point={"encoder": name})
    (result,) = axis_effects(read_board(folder))
    orders = [*itertools.permutations([0.0, 1.0, 1.0, 2.0, 5.0, 7.0, 9.0])]
    shares = [
        eta_squared([[x for x, of in zip(order, groups, strict=True) if of == name] for name in "abc"])
        for order in orders
    ]
    assert result.chance == pytest.approx(1 / 3)
    assert fmean(item for item in shares if item is not None) == pytest.approx(result.chance)


def test_zipped_axes_are_listed_once(tmp_path: Path) -> None:
    """One zipped axis has the other's values, the next has its own: only the first is left out of the table."""
    folder = begun(tmp_path / "s", axes={"encoder": {}, "again": {"zip": "encoder"}, "width": {"zip": "again"}})
    for number, (name, width) in enumerate([("a", 1), ("a", 1), ("b", 2)]):
        trial(folder, number, [float(number)], point={"encoder": name, "again": name, "width": width})
    result = read_board(folder)
    assert (result.axes, result.same) == (["encoder", "width"], {"again": "encoder"})
    assert [(item.axis, item.zipped) for item in axis_effects(result)] == [("encoder", ["again", "width"])]
    assert "again is the same as encoder" in ranking_note(result)
    plain = leaderboard_json(result)
    assert plain["axes"] == ["encoder", "width", "again"]
    assert [item["axes"] for item in plain["contributions"]] == [["encoder", "again", "width"]]
    assert [item["trials"] for item in plain["contributions"][0]["choices"]] == [2, 1]


# ------------------------------------------------------------------------------------------- the front


def test_the_pareto_front_has_the_trials_that_none_dominates(tmp_path: Path) -> None:
    """Beside the definition: nobody is as good in both and better in one."""
    folder = begun(tmp_path / "s")
    dice = random.Random(3)
    for number in range(60):
        trial(folder, number, [float(dice.randrange(12))], parameters=dice.randrange(1, 12))
    result = read_board(folder)
    pairs = {
        entry.trial.fingerprint: (-entry.measured["val/bleu"].mean, entry.trial.parameters) for entry in result.results
    }
    free = {
        name
        for name, one in pairs.items()
        if not any(two != one and two[0] <= one[0] and two[1] <= one[1] for two in pairs.values())
    }
    front = pareto_front(result.ranked, result.goals[0], result.goals[1])
    assert {entry.trial.fingerprint for entry in front} == free
    assert 1 < len(front) < 60
    assert [entry.trial.parameters for entry in front] == sorted(entry.trial.parameters for entry in front)


def test_charts_show_the_further_goals_and_the_costs(tmp_path: Path) -> None:
    one = read_board(begun(tmp_path / "a", rank=[{"val/bleu": "max"}, {"minutes": "min"}]))
    assert cost_goals(one) == [Goal("minutes", "min"), Goal("parameters", "min"), Goal("flops", "min")]
    two = read_board(begun(tmp_path / "b", rank=[{"parameters": "min"}]))
    assert cost_goals(two) == [Goal("flops", "min")]


def test_trials_with_equal_values_share_a_dot(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    for number, (value, parameters) in enumerate([(1.0, 5), (1.0, 5), (1.0, 9), (0.0, 9)]):
        trial(folder, number, [value], parameters=parameters)
    result = read_board(folder)
    points = gather_points(result.ranked, result.goals[0], result.goals[1])
    assert {point: [entry.trial.number for entry in here] for point, here in points.items()} == {
        (5.0, 1.0): [0, 1],
        (9.0, 1.0): [2],
        (9.0, 0.0): [3],
    }


# ------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_has_fewer_columns_and_a_note_names_the_others(tmp_path: Path, width: int) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [30.0, 34.0], point={"encoder": "recurrent", "rate": 0.001})
    trial(folder, 1, [29.0, 33.0], point={"encoder": "convolution", "rate": 0.002})
    result = read_board(folder)
    wide, narrow = leaderboard_text(result).splitlines(), leaderboard_text(result, width).splitlines()
    assert max(map(cell_len, wide)) > 120
    kept = [line for line in narrow if str(tmp_path) not in line]
    assert max(map(cell_len, kept)) <= width
    heads = [item.head for item in columns(result)]
    note = " ".join(narrow).partition("for lack of width: ")[2].partition(". See the")[0].split(", ")
    assert [head for head in heads if head not in note] == re.split(r"\s{2,}", narrow[2])
    assert any(line.startswith("2 ≈") for line in kept)


@pytest.mark.parametrize(
    ("value", "most", "text"),
    [(0.19, 4, "0.1900"), (0.2, 2, "0.20"), (0.0, 2, "0.0"), (130.4, 2, "130"), (12.3, 2, "12"), (2431.2, 4, "2431")],
)
def test_numbers_have_their_significant_digits(value: float, most: int, text: str) -> None:
    assert significant(value, most) == text


def test_differences_of_shares_are_points(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", rank=[{"test/exact_match": "max"}])
    for number, value in enumerate([0.924, 0.793, 0.924]):
        trial(folder, number, [value], metric="test/exact_match")
    result = read_board(folder)
    differences = {column.head: column.cells for column in columns(result)}["to the best"]
    assert differences == ["", "equal", "-13.1 points"]


def test_parameters_are_those_that_were_trained(tmp_path: Path) -> None:
    """A plan takes every vocabulary to be as large as it may be; the text may have fewer words."""
    folder = begun(tmp_path / "s")
    home = trial(folder, 0, [1.0], parameters=1000)
    trial(folder, 1, [2.0], parameters=1000)
    record = json.loads((home / "seed-1" / "run.json").read_text(encoding="utf-8"))
    (home / "seed-1" / "run.json").write_text(json.dumps({**record, "parameters": 990}), encoding="utf-8")
    result = read_board(folder)
    assert [entry.measured["parameters"].mean for entry in result.results] == [1000.0, 990.0]
    assert [item["parameters"] for item in leaderboard_json(result)["trials"]] == [1000, 990]


def test_columns_are_aligned() -> None:
    lines = align_columns([["名", "n"], ["a", "1,000"], ["e\u0301", "5"]], [True, False])
    assert lines == ["名      n", "a   1,000", "e\u0301       5"]
    assert {cell_len(line) for line in lines} == {9}


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (999, "999"), (999.6, "1k"), (1000, "1k"), (1.234e9, "1.23G"), (999_900, "1M")]
)
def test_large_numbers_have_three_digits(value: float, text: str) -> None:
    assert si(value) == text

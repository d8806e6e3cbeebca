"""The leaderboard: ranks, differences that seeds explain, and effects of axes."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from rich.cells import cell_len

from composer import api
from composer.cli import main
from composer.errors import RunError
from composer.formatting import align_columns, si, significant
from composer.sweeps.leaderboard.axis_groups import MAX_GROUPS, group_by_value
from composer.sweeps.leaderboard.board import Leaderboard, Measurement, open_leaderboard
from composer.sweeps.leaderboard.charts import gather_dots, pareto_front
from composer.sweeps.leaderboard.run_references import find_run
from composer.sweeps.leaderboard.tables import effect_table, format_mean, trial_table
from composer.sweeps.sweep import Goal
from tests.sweeps.leaderboard_dirs import begun, numbers, ran, read_board, trial


def cells_of(board: Leaderboard) -> dict[str, list[str]]:
    """The cells of the table of trials by the heads of its columns."""
    return {column.head: [*column.cells] for column in trial_table(board).columns}


def test_the_best_trial_is_first_and_unfinished_trials_are_last(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [20.0])
    trial(folder, 1, [30.0])
    trial(folder, 2, [90.0], status="failed", error="boom\nthe second line")
    trial(folder, 3, [80.0], status="pruned", pruned_at=20)
    trial(folder, 4, [70.0], status="running")
    result = read_board(folder)
    assert numbers(result) == [(1, 1), (0, 2), (4, None), (3, None), (2, None)]
    text = result.text()
    assert "5 trials: 2 finished, 1 stopped, 1 pruned, 1 failed" in text
    assert "pruned at step 20" in text
    assert "000000000002 failed (encoder e2): boom\n" in text
    assert "the second line" not in text


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
    assert entry.measured["minutes"].mean == 2.0
    assert "12.00 ± 2.00" in read_board(folder).text()


@pytest.mark.parametrize(
    ("metric", "scores", "written"),
    [
        ("minutes", [0.03, 0.284], "0.157 ± 0.180"),
        ("minutes", [2.9, 3.1], "3.00 ± 0.14"),
        ("val/loss", [1.25, 1.75], "1.500 ± 0.354"),
        ("val/loss", [20.0, 20.001], "20.00050 ± 0.00071"),
        ("val/loss", [1.25, 1.250001], "1.250 ± 0.000"),
        ("val/perplexity", [1e8, 3e8], "2.000e+08 ± 1.4e+08"),
        ("val/exact_match", [0.5, 0.52], "51.0% ± 1.4%"),
    ],
)
def test_a_mean_and_its_spread_have_equally_many_decimals(
    metric: str, scores: list[float], written: str
) -> None:
    assert format_mean(metric, Measurement(dict(enumerate(scores)))) == written


def test_a_difference_and_its_interval_have_equally_many_decimals(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", rank=[{"val/loss": "min"}], axes=["encoder"])
    trial(folder, 0, [2.0, 2.1, 2.3], metric="val/loss")
    trial(folder, 1, [2.2, 2.3, 2.6], metric="val/loss")
    line = next(line for line in read_board(folder).text().splitlines() if " to +" in line)
    decimals = {len(number) for number in re.findall(r"[+-]\d+\.(\d+)", line)}
    assert decimals == {3}, line


def test_trials_that_cannot_be_told_from_the_best_are_marked(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [30.0, 34.0, 32.2])
    trial(folder, 1, [29.0, 33.1, 31.0])
    trial(folder, 2, [10.0, 14.0, 12.1])
    result = read_board(folder)
    # the seeds agree on each difference
    assert [entry.is_alike for entry in result.results] == [False, False, False]
    trial(folder, 3, [29.0, 30.0, 36.0])
    result = read_board(folder)
    assert [(entry.trial.number, entry.is_alike) for entry in result.results] == [
        (0, False),
        (3, True),
        (1, True),
        (2, False),
    ]
    lines = result.text().splitlines()
    assert ["≈" in line for line in lines[4:8]] == [False, True, True, False]
    assert "≈: not significantly worse than the best trial" in result.text()
    (method,) = trial_table(result).method
    assert "lacks the ≈ in at most 5 % of sweeps" in method
    plain = result.as_json()
    assert [item["alike"] for item in plain["trials"]] == [None, True, True, False]
    assert method in plain["notes"]


def test_the_table_has_p_values_steps_and_epochs(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    for number, scores in enumerate(([30.0, 34.0, 32.2], [29.0, 30.0, 36.0])):
        for file in trial(folder, number, scores).glob("seed-*/run.json"):
            record = json.loads(file.read_text(encoding="utf-8")) | {"steps": 278, "epochs": 2.5}
            file.write_text(json.dumps(record), encoding="utf-8")
    board = read_board(folder)
    cells = cells_of(board)
    assert cells["steps"] == ["278", "278"]
    assert cells["epochs"] == ["2.50", "2.50"]
    assert cells["p"] == ["", significant(board.results[1].p_value or 0.0, 2)]
    assert "status" not in cells
    assert board.as_json()["trials"][0]["steps"] == {"1": 278, "2": 278, "3": 278}


def test_with_one_seed_nothing_is_said_of_differences(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [30.0])
    trial(folder, 1, [29.0])
    text = read_board(folder).text()
    assert "One seed each: differences may be due to chance." in text
    assert "The effects of the axes cannot be told from chance" in text
    assert "≈" not in text
    assert {item["alike"] for item in read_board(folder).as_json()["trials"]} == {None}


def test_trials_with_several_seeds_are_compared_among_themselves(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    for number, scores in enumerate(
        ([35.0], [30.0, 34.0, 32.2], [29.0, 33.1, 31.0], [28.0], [29.0, 30.0, 36.0])
    ):
        trial(folder, number, scores)
    growing = trial(folder, 5, {1: 36.0})
    (growing / "trial.json").write_text(
        (growing / "trial.json").read_text().replace('"finished"', '"running"')
    )
    ran(growing / "seed-2", "val/bleu", 3.0, "running")
    board = read_board(folder)
    # of a seed that still runs nothing counts
    assert numbers(board)[:3] == [(5, 1), (0, 2), (1, 3)]
    assert dict(board.results[0].measured["val/bleu"].values) == {1: 36.0}
    alike = {
        entry.trial.number: (entry.p_value is not None, entry.is_alike) for entry in board.results
    }
    assert alike == {
        0: (False, False),
        1: (False, False),
        2: (True, True),
        3: (False, False),
        4: (True, True),
        5: (False, False),
    }
    alone = begun(tmp_path / "alone")
    for number, scores in enumerate(([30.0, 34.0, 32.2], [29.0, 33.1, 31.0], [29.0, 30.0, 36.0])):
        trial(alone, number, scores)
    several = [entry.p_value for entry in board.ranked if len(entry.trial.finished_seeds) > 1]
    assert several == [entry.p_value for entry in read_board(alone).ranked]
    assert "Trials with one seed are not compared." in trial_table(board).method
    assert cells_of(board)["seeds"] == ["1", "1", "3", "3", "3", "1"]
    assert "seeds" not in cells_of(read_board(alone))


def test_a_tuned_value_is_chosen_by_the_seeds_that_all_have(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", tune=["rate"])
    trial(folder, 0, [30.0, 20.0, 20.0], point={"encoder": "rnn", "rate": 1})
    trial(folder, 1, [29.0], point={"encoder": "rnn", "rate": 2})
    assert numbers(read_board(folder)) == [(0, 1), (1, None)]


def test_a_trial_without_a_finite_score_has_no_rank(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, {1: None})
    trial(folder, 1, {1: float("nan")})
    trial(folder, 2, [1.0])
    result = read_board(folder)
    assert numbers(result) == [(2, 1), (0, None), (1, None)]
    assert result.text().count("without a number") == 2
    json.dumps(result.as_json(), allow_nan=False)


def test_an_axis_that_is_not_active_has_no_value(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [3.0], point={"encoder": "rnn", "rate": 0.00123456})
    trial(folder, 1, [2.0], point={"encoder": "none"})
    text = read_board(folder).text()
    assert "rnn      0.001235" in text
    assert "none     -" in text


def test_an_empty_sweep_is_a_leaderboard_too(tmp_path: Path) -> None:
    assert "no trials yet" in read_board(begun(tmp_path / "s")).text()


# -------------------------------------------------------------------------------------------
# contributions


def effects_of(folder: Path) -> dict[str, list[tuple[str, float | None, float | None]]]:
    """By axis: each value with its adjusted mean and its difference."""
    fitted = read_board(folder).contributions
    assert fitted is not None
    return {
        axis: [(item.value, rounded(item.mean), rounded(item.difference)) for item in values]
        for axis, values in fitted.effects.items()
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def test_an_axis_contributes_its_effect(tmp_path: Path) -> None:
    """The one cell of four that was not tried changes no effect of an additive score, but does
    change the means.
    """
    folder = begun(tmp_path / "s")
    cells = [("p", 1, 7.0), ("p", 2, 9.0), ("q", 1, 11.0), ("p", 1, 7.0), ("p", 2, 9.0)]
    for number, (encoder, rate, score) in enumerate(cells):
        trial(folder, number, [score], point={"encoder": encoder, "rate": rate})
    assert effects_of(folder) == {
        "encoder": [("p", 7.8, None), ("q", 11.8, 4.0)],
        "rate": [("1", 7.8, None), ("2", 9.8, 2.0)],
    }


def test_the_reference_is_the_files_first_value(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", axes={"encoder": {"with": {"b": {}, "c": {}, "a": {}}}})
    for number, encoder in enumerate("abc"):
        trial(folder, number, [float(number), number + 0.1], point={"encoder": encoder})
    assert effects_of(folder) == {
        "encoder": [("b", 1.05, None), ("c", 2.05, 1.0), ("a", 0.05, -1.0)]
    }


def test_effects_are_shown_with_their_intervals(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    dice = random.Random(5)
    for number, (encoder, rate) in enumerate(itertools.product("pqr", (1, 2, 3))):
        score = {"p": 20.0, "q": 30.0, "r": 20.0}[encoder] + dice.gauss(0, 0.1)
        trial(folder, number, [score], point={"encoder": encoder, "rate": rate})
    lines = [" ".join(line.split()) for line in read_board(folder).text().splitlines()]
    p, q, r = (
        next(line for line in lines if re.match(rf"(encoder )?{value} 3 ", line)) for value in "pqr"
    )
    assert re.fullmatch(r"encoder p 3 \d+\.\d+ reference", p)
    assert re.fullmatch(r"q 3 \d+\.\d+ \+\S+ \+\S+ to \+\S+ \*", q)
    assert not r.endswith("*")
    assert any(line.startswith("Differences are to the reference. *: signif") for line in lines)
    plain = read_board(folder).as_json()
    (note,) = (note for note in plain["notes"] if note.startswith("Means are adjusted"))
    assert "the residuals of the model (4 degrees of freedom)" in note
    _, second, _ = plain["contributions"]["effects"]["encoder"]
    low, high = second["interval"]
    assert 9.0 < low < second["difference"] < high < 11.0
    assert second["p_value"] < 0.05


def test_what_the_trials_cannot_separate_is_reported_and_has_no_number(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", axes=["encoder", "memory"])
    pairs = [("p", "none"), ("p", "stack"), ("q", "none"), ("q", "stack"), ("recurrent", "ntm")]
    for number, (encoder, memory) in enumerate(pairs):
        trial(
            folder,
            number,
            [float(number), number + 0.5],
            point={"encoder": encoder, "memory": memory},
        )
    effects = effects_of(folder)
    assert effects["encoder"][2] == ("recurrent", None, None)
    assert effects["memory"] == [("none", 1.25, None), ("stack", 2.25, 1.0), ("ntm", None, None)]
    text = read_board(folder).text()
    note = (
        "Too few combinations were tried to separate `encoder: recurrent`, `memory: ntm` from the"
        " other axes."
    )
    assert note in text
    assert note in read_board(folder).as_json()["notes"]


def test_an_axis_counts_where_it_is_active_and_finished(tmp_path: Path) -> None:
    """The rate of `a` alone: the effect of `b` is that beside `a` at its average rate."""
    folder = begun(tmp_path / "s")
    for number, (encoder, rate, score) in enumerate(
        [("a", 5, 1.0), ("a", 6, 2.0), ("b", None, 5.0), ("b", None, 5.0)]
    ):
        trial(
            folder,
            number,
            [score],
            point={"encoder": encoder} | ({} if rate is None else {"rate": rate}),
        )
    trial(folder, 4, [9.0], point={"encoder": "a", "rate": 7}, status="pruned")
    assert effects_of(folder) == {
        "encoder": [("a", 1.5, None), ("b", 5.0, 3.5)],
        "rate": [("5", 1.0, None), ("6", 2.0, 1.0)],
    }
    assert "Pruned trials are left out" in read_board(folder).text()


def test_axes_that_act_on_each_other_are_reported(tmp_path: Path) -> None:
    for name, joint in (("apart", 0.0), ("joint", 5.0)):
        folder = begun(tmp_path / name)
        for number, (encoder, rate) in enumerate(itertools.product("pq", (1, 2))):
            score = number + joint * (number == 3)
            trial(
                folder,
                number,
                [score, score + 0.2, score + 0.1 * number],
                point={"encoder": encoder, "rate": rate},
            )
        board = read_board(folder)
        assert ("The axes interact" in board.text()) == (joint > 0)
        notes = " ".join(board.as_json()["notes"])
        assert "the variance between seeds, since there are too few trials" in notes


def test_many_numbers_are_cut_into_ranges(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    rates = [10.0**-at for at in range(20)]
    random.Random(1).shuffle(rates)
    for number, rate in enumerate(rates):
        trial(folder, number, [rate], point={"rate": rate})
    fitted = read_board(folder).contributions
    assert fitted is not None
    ranges = fitted.effects["rate"]
    assert [effect.trials for effect in ranges] == [20 // MAX_GROUPS] * MAX_GROUPS
    assert ranges[-1].value == "0.0001 to 1"
    means = [mean for _, mean, _ in effects_of(folder)["rate"]]
    assert means == sorted(means, key=lambda mean: mean or 0.0)


def test_equal_numbers_are_in_one_range() -> None:
    groups = group_by_value({index: float(1 + index // 3) for index in reversed(range(30))})
    assert [*groups] == ["1 to 3", "4 to 5", "6 to 8", "9 to 10"]
    assert sorted(itertools.chain(*groups.values())) == [*range(30)]


def test_keys_that_are_null_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", axes={"encoder": {}, "width": {"zip": None}})
    text = (folder / "sweep.yaml").read_text(encoding="utf-8")
    (folder / "sweep.yaml").write_text(
        json.dumps(json.loads(text) | {"rank": None, "tune": None}), encoding="utf-8"
    )
    trial(folder, 0, [1.0], point={"encoder": "a", "width": 1})
    assert (read_board(folder).goals, read_board(folder).zipped) == ((Goal("val/loss", "min"),), {})


def test_zipped_axes_are_one_axis_of_the_effects(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", axes={"encoder": {}, "width": {"zip": "encoder"}})
    for number, (name, width) in enumerate([("a", 1), ("a", 1), ("b", 2)]):
        trial(folder, number, [float(number)], point={"encoder": name, "width": width})
    result = read_board(folder)
    assert [*result.axes] == ["encoder", "width"]
    assert [*effects_of(folder)] == ["encoder"]
    assert effect_table(result).columns[0].cells[0] == "encoder, width"


# ------------------------------------------------------------------------------------------- tuned
# axes


def test_of_tuned_axes_only_the_best_values_are_ranked(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", rank=[{"val/bleu": "max"}], tune=["rate"])
    scores = [("p", 1, 5.0), ("p", 2, 9.0), ("p", 3, 7.0), ("q", 1, 8.0), ("q", 2, 6.0)]
    for number, (encoder, rate, score) in enumerate(scores):
        trial(folder, number, [score], point={"encoder": encoder, "rate": rate})
    result = read_board(folder)
    assert numbers(result) == [(1, 1), (3, 2), (0, None), (2, None), (4, None)]
    assert [entry.better and entry.better.number for entry in result.results[2:]] == [1, 1, 3]
    text = result.text()
    assert "better tuned in 000000000001" in text
    note = "Each is the best by val/bleu of 2 to 3 trials that differ only in rate. The best"
    assert note in text
    assert [*effects_of(folder)] == ["encoder"]
    assert [item["better"] for item in result.as_json()["trials"]][2:] == [
        f"{n:012x}" for n in (1, 1, 3)
    ]


def test_a_value_is_never_chosen_by_the_test_part(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", rank=[{"test/bleu": "max"}], tune=["rate"])
    for number, (val, test) in enumerate([(5.0, 30.0), (9.0, 10.0)]):
        home = trial(folder, number, [val], point={"encoder": "p", "rate": number})
        record = home / "seed-1" / "run.json"
        plain = json.loads(record.read_text(encoding="utf-8"))
        plain["scores"]["test/bleu"] = test
        record.write_text(json.dumps(plain), encoding="utf-8")
    result = read_board(folder)
    assert numbers(result) == [(1, 1), (0, None)]
    assert "the best by val/bleu" in result.text()


# -------------------------------------------------------------------------------------------
# several sweeps


def test_several_sweeps_have_one_leaderboard(tmp_path: Path) -> None:
    one, other = begun(tmp_path / "one"), begun(tmp_path / "other", axes=["decoder", "encoder"])
    trial(one, 0, [20.0, 21.0], point={"encoder": "p"})
    trial(one, 1, [30.0, 31.0], point={"encoder": "q"})
    trial(other, 1, [30.0, 31.0], point={"decoder": "x", "encoder": "q"})  # the same fingerprint
    trial(other, 2, [25.0, 26.0], point={"decoder": "x", "encoder": "p"})
    trial(other, 3, [35.0, 36.0], point={"decoder": "y", "encoder": "p"})
    result = open_leaderboard(one, other)
    assert [entry.trial.number for entry in result.results] == [3, 1, 2, 0]
    names = [str(folder) for folder in (one, other)]  # both sweeps are called `mixes`
    assert [entry.trial.point["sweep"] for entry in result.results] == [
        names[1],
        names[0],
        names[1],
        names[0],
    ]
    assert [*result.axes] == ["sweep", "encoder", "decoder"]
    text = result.text()
    assert f"{other}/trials/TRIAL or {one}/trials/TRIAL" in text
    assert find_run(result, "1") == other / "trials" / f"{3:012x}" / "seed-1"


def test_sweeps_that_rank_otherwise_are_refused(tmp_path: Path) -> None:
    one = begun(tmp_path / "one")
    other = begun(tmp_path / "other", rank=[{"val/loss": "min"}])
    with pytest.raises(RunError, match="rank by `val/bleu: max` and `val/loss: min`"):
        open_leaderboard(one, other)


def test_sweeps_that_tune_other_axes_are_refused(tmp_path: Path) -> None:
    one, other = begun(tmp_path / "one"), begun(tmp_path / "other", tune=["rate"])
    with pytest.raises(RunError, match="tune `nothing` and `rate`, and so cannot be compared"):
        open_leaderboard(one, other)


def test_of_a_trial_in_two_sweeps_the_one_with_more_seeds_counts(tmp_path: Path) -> None:
    one, other = begun(tmp_path / "one"), begun(tmp_path / "other")
    trial(one, 1, [30.0], point={"encoder": "q"})
    trial(other, 1, [30.0, 40.0], point={"encoder": "q"})
    for folders in ((one, other), (other, one)):
        board = open_leaderboard(*folders)
        (entry,) = board.results
        assert len(entry.trial.records) == 2


def test_sweeps_on_different_data_are_reported(tmp_path: Path) -> None:
    folders = [begun(tmp_path / name) for name in ("one", "other", "same")]
    for number, (folder, data) in enumerate(zip(folders, ("a", "b", "a"), strict=True)):
        record = trial(folder, number, [1.0]) / "seed-1" / "run.json"
        plain = json.loads(record.read_text(encoding="utf-8"))
        record.write_text(
            json.dumps(
                {
                    **plain,
                    "fingerprints": dict.fromkeys(("model", "data", "run", "recipe"), data * 64),
                }
            ),
            encoding="utf-8",
        )
    assert "different data" in open_leaderboard(*folders).text()
    assert "different data" not in open_leaderboard(folders[0], folders[2]).text()


# ------------------------------------------------------------------------------------------- the
# front


def test_the_pareto_front_has_the_trials_that_none_dominates(tmp_path: Path) -> None:
    """Beside the definition: nobody is as good in both and better in one."""
    folder = begun(tmp_path / "s")
    dice = random.Random(3)
    for number in range(60):
        trial(folder, number, [float(dice.randrange(12))], parameters=dice.randrange(1, 12))
    result = read_board(folder)
    pairs = {
        entry.trial.fingerprint: (-entry.measured["val/bleu"].mean, entry.trial.parameters)
        for entry in result.results
    }
    free = {
        name
        for name, one in pairs.items()
        if not any(two != one and two[0] <= one[0] and two[1] <= one[1] for two in pairs.values())
    }
    dots = gather_dots(result.ranked, "val/bleu", "parameters")
    front = pareto_front(dots, is_better_above=True)
    assert {entry.trial.fingerprint for dot in front for entry in dots[dot]} == free
    assert 1 < len(front) < 60
    assert front == sorted(front)


def test_trials_with_equal_values_share_a_dot(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    for number, (value, parameters) in enumerate([(1.0, 5), (1.0, 5), (1.0, 9), (0.0, 9)]):
        trial(folder, number, [value], parameters=parameters)
    result = read_board(folder)
    points = gather_dots(result.ranked, "val/bleu", "parameters")
    assert {point: [entry.trial.number for entry in here] for point, here in points.items()} == {
        (5.0, 1.0): [0, 1],
        (9.0, 1.0): [2],
        (9.0, 0.0): [3],
    }


# ------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_terminal_has_fewer_columns_and_a_note_names_the_others(
    tmp_path: Path, width: int
) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0, [30.0, 34.0], point={"encoder": "recurrent", "rate": 0.001})
    trial(folder, 1, [29.0, 33.5], point={"encoder": "convolution", "rate": 0.002})
    result = read_board(folder)
    wide, narrow = (
        result.text().splitlines(),
        result.text(width).splitlines(),
    )
    assert max(map(cell_len, wide)) > 120
    kept = [line for line in narrow if str(tmp_path) not in line]
    assert max(map(cell_len, kept)) <= width
    heads = [*cells_of(result)]
    note = (
        " ".join(narrow).partition("for lack of width: ")[2].partition(". See the")[0].split(", ")
    )
    assert [head for head in heads if head not in note] == re.split(r"\s{2,}", narrow[2])
    assert any(line.startswith("2 ≈") for line in kept)
    needed = cell_len(wide[3])  # the rule
    assert "left out" not in result.text(needed)
    assert "left out for lack of width: minutes. See" in result.text(needed - 1)


@pytest.mark.parametrize(
    ("value", "most", "text"),
    [
        (0.19, 4, "0.1900"),
        (0.2, 2, "0.20"),
        (0.0, 2, "0.0"),
        (130.4, 2, "130"),
        (12.3, 2, "12"),
        (2431.2, 4, "2431"),
        (9999.6, 4, "10000"),
        (99.5, 2, "100"),
        (float("nan"), 4, "nan"),
        (3.96e7, 4, "3.960e+07"),
        (1e304, 4, "1.000e+304"),
    ],
)
def test_numbers_have_their_significant_digits(value: float, most: int, text: str) -> None:
    assert significant(value, most) == text


def test_differences_of_shares_are_points(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", rank=[{"test/exact_match": "max"}])
    for number, value in enumerate([0.924, 0.793, 0.924]):
        trial(folder, number, [value], metric="test/exact_match")
    result = read_board(folder)
    assert cells_of(result)["to the best"] == ["", "equal", "-13.1 points"]
    for number, value in enumerate([0.924, 0.793, 0.9245], start=3):
        point = {"encoder": f"e{number - 3}"}
        trial(folder, number, [value], metric="test/exact_match", point=point)
    table = effect_table(read_board(folder))
    effects = {column.head: [*column.cells] for column in table.columns}
    assert effects["difference (points)"] == ["reference", "-13.1", "+0.0"]
    assert effects["95 % interval"][1] == "-13.2 to -13.0 *"


def test_error_rates_are_percent_as_shares_are(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s", rank=[{"test/word_error_rate": "min"}])
    for number, values in enumerate([[0.4, 0.5], [1.2, 1.4]]):
        trial(folder, number, values, metric="test/word_error_rate")
    cells = cells_of(read_board(folder))
    assert cells["to the best"] == ["", "+85.0 points"]
    assert cells["test/word_error_rate"] == ["45.0% ± 7.1%", "130.0% ± 14.1%"]


def test_parameters_are_those_that_were_trained(tmp_path: Path) -> None:
    """A plan takes every vocabulary to be as large as it may be; the text may have fewer words."""
    folder = begun(tmp_path / "s")
    home = trial(folder, 0, [1.0], parameters=1000)
    trial(folder, 1, [2.0], parameters=1000)
    record = json.loads((home / "seed-1" / "run.json").read_text(encoding="utf-8"))
    (home / "seed-1" / "run.json").write_text(
        json.dumps({**record, "parameters": 990}), encoding="utf-8"
    )
    result = read_board(folder)
    assert [entry.measured["parameters"].mean for entry in result.results] == [1000.0, 990.0]
    assert [item["parameters"] for item in result.as_json()["trials"]] == [1000, 990]


def test_columns_are_aligned() -> None:
    lines = align_columns([["名", "n"], ["a", "1,000"], ["e\u0301", "5"]], [True, False])
    assert lines == ["名      n", "a   1,000", "e\u0301       5"]
    assert {cell_len(line) for line in lines} == {9}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (999.6, "1k"), (1000, "1k"), (1.234e9, "1.23G"), (999_900, "1M")],
)
def test_large_numbers_have_three_digits(value: float, text: str) -> None:
    assert si(value) == text


# ------------------------------------------------------------------------------------------- which
# runs


def test_a_trial_is_named_by_rank_or_fingerprint(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    homes = [trial(folder, 0xABC, {3: 1.0, 5: 2.0}), trial(folder, 0xABD, [9.0])]
    shutil.rmtree(homes[0] / "seed-3")
    result = read_board(folder)
    assert find_run(result, "1") == find_run(result, "#1") == homes[1] / "seed-1"
    assert (
        find_run(result, "2")
        == find_run(result, "000000000abc")
        == find_run(result, "000000000ABC")
        == homes[0] / "seed-5"
    )


@pytest.mark.parametrize(
    ("word", "told"),
    [("00000", "2 trials"), ("7", "no trial"), ("", "no trial"), ("x", "no trial")],
)
def test_a_name_of_no_run_is_refused(tmp_path: Path, word: str, told: str) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 1, [1.0])
    trial(folder, 2, [2.0])
    with pytest.raises(RunError, match=told):
        find_run(read_board(folder), word)


def test_a_trial_without_a_finished_seed_is_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path / "s")
    trial(folder, 0xF, [1.0], status="pruned")
    with pytest.raises(RunError, match="no finished seed"):
        find_run(read_board(folder), "00000000000f")


def test_a_sweep_ends_with_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(tmp_path / "my sweep")
    trial(folder, 1, [1.0])
    monkeypatch.setattr(api, "sweep", lambda *_: read_board(folder))
    with pytest.raises(SystemExit) as left:
        main.main(["sweep", "mine.yaml"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"next: seqcomposer leaderboard '{folder}'\n"

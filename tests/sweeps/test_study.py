"""The study proposes only the sweep's points, resumes, and prunes as configured."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from composer.errors import RunError
from composer.sweeps.points import grid_points, list_points
from composer.sweeps.spec import read_sweep
from composer.sweeps.study import Study, Suggestion, make_pruner
from composer.sweeps.sweep import Point, Pruner, Sweep, SweepDir
from composer.sweeps.trial import Status, Trial
from tests.sweeps.stub_sweeps import RATE, rates, write_sweep

KINDS = (
    'kind: {replace: "model.encoder[0]", with: {gru: {rnn: {cell: gru}}, lstm: {rnn: {cell: lstm}},'
    " none: [identity]}}"
)
CONDITIONAL = f"""{KINDS}
  rate: {{{RATE}, log_uniform: [1e-4, 1e-2], when: kind != "none"}}
  steps: {{set: training.max_steps, int: [10, 20], when: rate < 1e-3}}
  width: {{set: model.width, values: [8, 16]}}
  hidden: {{set: training.tokens_per_batch, values: [100, 200], zip: width}}"""
TPE = "search: {tpe: {trials: 30, seed: 4}}"


def sweep_of(folder: Path, axes: str, rest: str = "") -> Sweep:
    return read_sweep(write_sweep(folder, axes, rest))


def home_of(folder: Path) -> SweepDir:
    folder.mkdir(exist_ok=True)
    return SweepDir(folder)


def ended(asked: Suggestion, value: float | None, status: Status = "finished") -> Trial:
    name = f"{asked.number:012}"
    return Trial(asked.number, asked.point, name, 1, 1, 1, status, value, folder=Path(name))


def loss(point: Point) -> float:
    return (
        float(point.get("rate", 0.5)) + {"gru": 0.0, "lstm": 1.0, "none": 2.0}[str(point["kind"])]
    )


def asked_points(study: Study, count: int, anywhere: bool = False) -> list[Point]:
    points = []
    for _ in range(count):
        asked = study.ask(anywhere)
        study.tell(asked, ended(asked, loss(asked.point)))
        points.append(asked.point)
    return points


def test_points_have_their_active_axes_and_no_others(tmp_path: Path) -> None:
    study = Study(sweep_of(tmp_path, CONDITIONAL, TPE), SweepDir(tmp_path), "tried")
    points = asked_points(study, 30)
    for point in points:
        assert ("rate" in point) == (point["kind"] != "none")
        assert ("steps" in point) == (float(point.get("rate", 1.0)) < 1e-3)
        assert point["hidden"] == {8: 100, 16: 200}[int(point["width"])]
        assert 1e-4 <= float(point.get("rate", 1e-3)) <= 1e-2
        assert int(point.get("steps", 10)) in range(10, 21)
    assert {point["kind"] for point in points} == {"gru", "lstm", "none"}
    assert len({"steps" in point for point in points}) == 2
    # what is tied is not drawn
    assert all("hidden" not in item.params for item in study.study.trials)


def test_a_resumed_search_suggests_the_same_points(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, CONDITIONAL, TPE)
    journal = asked_points(Study(sweep, home_of(tmp_path / "journal"), "tried"), 16)
    parts = [
        point
        for _ in range(4)
        for point in asked_points(Study(sweep, home_of(tmp_path / "parts"), "tried"), 4)
    ]
    assert parts == journal
    other = sweep_of(tmp_path, CONDITIONAL, TPE.replace("seed: 4", "seed: 5"))
    assert asked_points(Study(other, home_of(tmp_path / "other"), "tried"), 16) != journal


def test_tpe_learns_from_reported_values(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, CONDITIONAL, TPE)
    blind, learned = (
        asked_points(Study(sweep, home_of(tmp_path / str(item)), "tried"), 30, item)
        for item in (True, False)
    )
    assert sum(map(loss, learned[12:])) < 0.7 * sum(map(loss, blind[12:]))


def test_known_points_are_suggested_unchanged_and_in_order(tmp_path: Path) -> None:
    for rest in ("", "search: {random: {trials: 7, seed: 3}}"):
        axes = f"{KINDS}\n  rate: {{{RATE}, values: [0.1, 0.2]}}" if not rest else CONDITIONAL
        sweep = sweep_of(tmp_path, axes, rest)
        wanted = [result.point for result in list_points(sweep)]
        assert wanted == (wanted if rest else grid_points(sweep))
        study = Study(sweep, home_of(tmp_path / str(len(rest))), "tried")
        result = []
        for point in wanted:
            result.append(study.ask_for(point))
            study.tell(result[-1], ended(result[-1], 1.0))
        assert [suggestion.point for suggestion in result] == wanted
        assert [suggestion.number for suggestion in result] == list(range(len(wanted)))
        assert [item.params for item in study.study.trials] == [
            study.free_values(point) for point in wanted
        ]


def test_what_an_earlier_process_left_open_is_ended_and_may_be_asked_for_again(
    tmp_path: Path,
) -> None:
    sweep = sweep_of(tmp_path, CONDITIONAL, TPE)
    before = Study(sweep, SweepDir(tmp_path), "tried")
    asked = [before.ask() for _ in range(3)]
    for suggestion in asked:
        before.note_fingerprint(suggestion, f"{suggestion.number:012}")
    before.study.enqueue_trial({"kind": "gru"})  # it was killed before it asked for it
    results = [
        ended(asked[0], 1.0),
        ended(asked[1], None, "running"),
        ended(asked[2], None, "pruned"),
    ]
    after = Study(sweep, SweepDir(tmp_path), "tried")
    after.recover(results)
    states = [(item.state.name, item.value) for item in after.trials()]
    assert states == [("COMPLETE", 1.0), ("FAIL", None), ("PRUNED", None), ("FAIL", None)]
    again = after.ask_for(asked[1].point)
    assert (again.number, again.point) == (4, asked[1].point)
    assert after.study.trials[4].params == after.study.trials[1].params


def test_what_a_killed_worker_had_begun_to_write_is_cut_off(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, rates(0.1, 0.2), TPE)
    Study(sweep, SweepDir(tmp_path), "tried").ask()
    journal = (tmp_path / "study.journal").read_bytes()
    (tmp_path / "study.journal").write_bytes(journal + b'{"op_code": 5, "work')
    study = Study(sweep, SweepDir(tmp_path), "tried")
    assert study.ask().number == 1
    assert (tmp_path / "study.journal").read_bytes().startswith(journal + b"{")
    assert len(Study(sweep, SweepDir(tmp_path), "tried").trials()) == 2


def test_trial_states_are_reported_once(tmp_path: Path) -> None:
    study = Study(
        sweep_of(tmp_path, rates(0.1, 0.2, 0.3, 0.4, 0.5), TPE),
        SweepDir(tmp_path),
        "tried",
    )
    statuses: list[Status] = ["finished", "pruned", "failed"]
    for status in statuses:
        asked = study.ask()
        study.tell(asked, ended(asked, 1.0, status))
    study.skip(study.ask(), "excluded", as_bad=True)
    study.skip(study.ask(), "double", as_bad=False)
    assert [item.state.name for item in study.study.trials] == [
        "COMPLETE",
        "PRUNED",
        "FAIL",
        "PRUNED",
        "FAIL",
    ]


def reports(study: Study, values: list[float]) -> int | None:
    """A trial with these scores every hundred steps; where it was pruned, else None and it is told
    as finished.
    """
    asked = study.ask()
    for number in range(1, len(values) + 1):
        output = {100 * step: value for step, value in enumerate(values[:number], 1)}
        if (step := study.report(asked, output)) is not None:
            study.tell(asked, ended(asked, None, "pruned"))
            return step
    study.tell(asked, ended(asked, values[-1]))
    return None


@pytest.mark.parametrize(("max_steps", "first"), [(120, 12), (5, 1), (90_000, 9_000), (None, 500)])
def test_pruning_begins_after_a_tenth_of_the_training(max_steps: int | None, first: int) -> None:
    median, hyperband = (make_pruner(Pruner(kind), max_steps) for kind in ("median", "hyperband"))
    assert (median._n_warmup_steps, hyperband._min_resource) == (first, first)
    assert make_pruner(Pruner("median", 7), max_steps)._n_warmup_steps == 7


def warned(folder: Path, prune: str, rest: str, steps: str) -> list[str]:
    sweep = read_sweep(
        write_sweep(
            folder,
            rates(*(0.1 * number for number in range(1, 8))),
            f"prune: {prune}\n{rest}\n{steps}",
        )
    )
    point, *_ = list_points(sweep)
    return [fault.message for fault in point.warnings if fault.path == "prune"]


@pytest.mark.parametrize(
    ("prune", "rest", "steps", "why"),
    [
        (
            "{median: {min_steps: 500}}",
            "",
            "max_steps: 120, validate_every: 10",
            "after 500 steps, and a training has 120",
        ),
        (
            "hyperband",
            "",
            "max_steps: 120, validate_every: 120",
            "after 120 steps, and a training has 120",
        ),
        ("hyperband", "", "max_steps: 120, validate_every: 10", ""),
        ("median", "", "max_steps: 120, validate_every: 10", ""),
        (
            "{median: {trials: 7}}",
            "",
            "max_steps: 120, validate_every: 10",
            "the first 7 run to their end",
        ),
        (
            "median",
            "search: {random: {trials: 5}}",
            "max_steps: 120, validate_every: 10",
            "and the sweep has 5",
        ),
        ("{median: {min_steps: 500}}", "", "max_steps: null, max_minutes: 1", ""),
    ],
)
def test_a_pruning_that_can_stop_no_trial_is_reported(
    tmp_path: Path, prune: str, rest: str, steps: str, why: str
) -> None:
    settings = ", ".join(f"training.{setting.strip()}" for setting in steps.split(","))
    messages = warned(tmp_path, prune, rest, f"set: {{{settings}}}")
    assert len(messages) == bool(why)
    assert all(
        message.startswith("`prune` can stop no trial") and why in message for message in messages
    )


@pytest.mark.parametrize(("goal", "sign"), [("val/loss: min", 1.0), ("val/bleu: max", -1.0)])
def test_the_median_pruner_stops_worse_trials(tmp_path: Path, goal: str, sign: float) -> None:
    rest = f"{TPE}\nprune: {{median: {{min_steps: 300, trials: 2}}}}\nrank: [{{{goal}}}]"
    study = Study(
        sweep_of(tmp_path, rates(*(0.1 * item for item in range(1, 9))), rest),
        SweepDir(tmp_path),
        "tried",
    )
    good, bad = [sign * 1.0] * 5, [sign * 2.0] * 5
    assert [reports(study, item) for item in (good, bad, bad, good)] == [None, None, 300, None]
    # what counts is its best so far
    assert reports(study, [sign * 2.0, sign * 2.0, sign * 0.5, sign * 0.5]) is None


def test_hyperband_stops_the_worse_trials_of_a_bracket(tmp_path: Path) -> None:
    rest = f"{TPE}\nprune: {{hyperband: {{min_steps: 100, reduction: 2}}}}"
    study = Study(
        sweep_of(tmp_path, rates(*(0.01 * item for item in range(1, 60))), rest),
        SweepDir(tmp_path),
        "tried",
        800,
    )
    pruned = [reports(study, [value] * 8) for value in (0.1, 0.5, 0.9, 0.2, 0.6, 0.8) * 6]
    assert {None} < set(pruned) <= {None, 100, 200, 400, 800}  # only where a bracket has a rung
    worth = [step is None for step in pruned]
    assert sum(worth[0::6]) > sum(worth[2::6])  # of the best more come through than of the worst


def test_steps_are_reported_once_and_nan_is_the_worst_value(tmp_path: Path) -> None:
    rest = f"{TPE}\nprune: {{median: {{min_steps: 100, trials: 1}}}}"
    study = Study(sweep_of(tmp_path, rates(0.1, 0.2, 0.3), rest), SweepDir(tmp_path), "tried")
    assert reports(study, [1.0, 1.0]) is None
    asked = study.ask()
    assert study.report(asked, {100: 0.5, 200: 0.5}) is None
    # a training that goes on writes its rows again
    assert study.report(asked, {100: 9.0, 200: 9.0}) is None
    assert study.study.trials[-1].intermediate_values == {100: 0.5, 200: 0.5}
    assert reports(study, [float("nan")]) == 100


def test_a_lost_study_is_rebuilt_from_trial_directories(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, CONDITIONAL, TPE)
    first = Study(sweep, SweepDir(tmp_path), "tried")
    asked = [first.ask() for _ in range(4)]
    trials = [
        ended(asked[0], 1.0),
        ended(asked[1], None, "pruned"),
        ended(asked[2], None, "failed"),
        ended(asked[3], None, "running"),
    ]
    study = Study(sweep, home_of(tmp_path / "new"), "tried")
    for _ in range(2):
        study.recover(trials)
    assert [item.state.name for item in study.study.trials] == ["COMPLETE", "PRUNED", "FAIL"]
    assert [item.params for item in study.study.trials] == [
        study.free_values(item.point) for item in asked[:3]
    ]
    names = [item.user_attrs["fingerprint"] for item in study.study.trials]
    assert names == [item.fingerprint for item in trials[:3]]


def test_a_file_that_is_no_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.journal").write_bytes(b"no journal\n" * 100)
    with pytest.raises(RunError, match="remove the file"):
        Study(sweep_of(tmp_path, rates(0.1)), SweepDir(tmp_path), "tried")


def test_the_file_can_be_read_by_optuna(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, CONDITIONAL, TPE)
    asked_points(Study(sweep, SweepDir(tmp_path), "tried"), 3)
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "study.journal")))
    (result,) = optuna.study.get_all_study_summaries(journal)
    assert (result.study_name, result.n_trials, result.direction.name) == (
        "tried",
        3,
        "MINIMIZE",
    )


def test_points_that_are_not_trained_do_not_end_the_random_start(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, CONDITIONAL, TPE)
    learning, blind = (
        Study(sweep, home_of(tmp_path / "learning"), "tried"),
        Study(sweep, home_of(tmp_path / "blind"), "tried"),
    )
    for number in range(15):  # only every other point can be trained
        suggestions = learning.ask(), blind.ask(at_random=True)
        assert suggestions[0].point == suggestions[1].point
        for study, suggestion in zip((learning, blind), suggestions, strict=True):
            if number % 2:
                study.tell(suggestion, ended(suggestion, loss(suggestion.point)))
            else:
                study.skip(suggestion, "excluded", as_bad=True)


def test_a_result_that_two_processes_did_not_tell_is_told_by_the_third(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, CONDITIONAL, TPE)
    first = Study(sweep, SweepDir(tmp_path), "tried")
    asked = first.ask()
    first.note_fingerprint(asked, f"{0:012}")  # killed here
    second = Study(sweep, SweepDir(tmp_path), "tried")
    second.recover([ended(asked, None, "running")])
    again = second.ask_for(asked.point)
    second.note_fingerprint(again, f"{0:012}")  # killed after it has written the trial's end
    third = Study(sweep, SweepDir(tmp_path), "tried")
    third.recover([ended(asked, 0.5)])
    third.recover([ended(asked, 0.5)])
    states = [(item.state.name, item.value) for item in third.trials()]
    assert states == [("FAIL", None), ("COMPLETE", 0.5)]


def test_a_point_that_was_drawn_and_has_no_folder_is_drawn_once(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, CONDITIONAL, TPE)
    points = asked_points(Study(sweep, home_of(tmp_path / "alone"), "tried"), 3)
    first = Study(sweep, SweepDir(tmp_path), "tried")
    lost = first.ask()
    assert lost.point == points[0]
    second = Study(sweep, SweepDir(tmp_path), "tried")
    assert second.recover([]) == [points[0]]
    again = second.ask_for(points[0])
    second.tell(again, ended(again, loss(again.point)))
    assert (second.num_draws(), asked_points(second, 2)) == (1, points[1:])


def test_a_trial_that_is_resumed_is_not_pruned_for_what_it_has_passed(tmp_path: Path) -> None:
    rest = f"{TPE}\nprune: {{median: {{min_steps: 100, trials: 1}}}}"
    study = Study(sweep_of(tmp_path, rates(0.1, 0.2, 0.3), rest), SweepDir(tmp_path), "tried")
    assert reports(study, [0.5, 0.5, 0.5]) is None
    resumed = study.ask()
    assert study.report(resumed, {100: 9.0, 200: 0.4}) == 100
    assert study.report(resumed, {100: 9.0, 200: 0.4, 300: 0.4}) is None


def test_added_seeds_are_no_second_result(tmp_path: Path) -> None:
    study = Study(sweep_of(tmp_path, rates(0.1, 0.2), TPE), SweepDir(tmp_path), "tried")
    asked = study.ask()
    study.note_fingerprint(asked, f"{asked.number:012}")
    study.tell(asked, ended(asked, 1.0))
    again = study.ask_for(asked.point)
    study.tell(again, ended(asked, 2.0))
    assert [(item.state.name, item.value) for item in study.trials()] == [
        ("COMPLETE", 1.0),
        ("FAIL", None),
    ]

"""Errors in a sweep's file: their lines and messages."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer.errors import ComposerError, RecipeError
from composer.recipe.yaml_reader import COMMAND_LINE
from composer.sweeps.points import grid_points, list_points, point_recipe, random_points
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import Sweep
from tests.sweeps.small_sweeps import BASE, ENCODER, HEAD, sweep, write


def faults(folder: Path, axes: str, rest: str = "", head: str = HEAD) -> list[tuple[int, str]]:
    """The line and the message of every fault of reading it."""
    with pytest.raises(ComposerError) as caught:
        read_sweep(write(folder, axes, rest, head))
    assert all(fault.hint for fault in caught.value.faults)
    assert {fault.file for fault in caught.value.faults} == {str(folder / "tried.yaml")}
    return [(fault.line, fault.message) for fault in caught.value.faults]


WIDTH = "  width: {set: vars.width, values: [8, 16]}"
METRICS_SET = "set: {evaluation.metrics: [ter]}"
NO_SAMPLE = "set: {training.validation_sample.lines: 0}"


@pytest.mark.parametrize(
    ("axes", "rest", "line", "expected"),
    [
        (
            "  e: {replace: model.encoder..self_atention, with: {a: rnn}}",
            "",
            4,
            "did you mean `model.encoder..self_attention`?",
        ),
        (
            "  e: {replace: model.encoder..read, with: {a: rnn}}",
            "",
            4,
            "matches nothing in the base",
        ),
        (
            '  e: {replace: "model.encoder[7]", with: {a: rnn}}',
            "",
            4,
            "matches nothing in the base",
        ),
        (
            "  e: {replace: training.seed, with: {a: rnn}}",
            "",
            4,
            "takes the path of a block or a stack",
        ),
        (f"{WIDTH}\n{WIDTH}", "", 5, "`width` is a duplicate key"),
        ("  w: {set: vars.width, values: [8, 16, 8]}", "", 4, "`8` is listed twice"),
        (
            "  w: {set: vars.widht, values: [8]}",
            "",
            4,
            "there is no variable `widht`; did you mean `width`?",
        ),
        ("  w: {set: training.optimiser, values: [adam]}", "", 4, "did you mean `optimizer`?"),
        ("  w: {set: training.max_steps, values: [1, many]}", "", 4, "`max_steps`"),
        ("  w: {set: training.max_steps, int: [0, 5]}", "search: random", 4, "`max_steps`"),
        (
            "  e: {replace: model.encoder..self_attention, with: {a: rnn, b: rn}}",
            "",
            4,
            "no block called `rn`",
        ),
        (
            "  e: {replace: model.encoder..self_attention, with: {a: {rnn: {sell: lstm}}}}",
            "",
            4,
            "no setting `sell`",
        ),
        (
            "  e: {set: vars.width, with: {a: rnn}}",
            "",
            4,
            "keys of one kind; this one has set, with",
        ),
        ("  e: {replace: model.encoder}", "", 4, "this one has replace"),
        (
            "  e: {set: vars.width, values: [1], int: [1, 2]}",
            "",
            4,
            "this one has int, set, values",
        ),
        ("  e: {values: [1]}", "", 4, "this one has values"),
        ("  e: {set: vars.width, replace: model.encoder}", "", 4, "replace, set"),
        ("  e: {set: vars.width, vales: [1]}", "", 4, "did you mean `values`?"),
        ("  e: {set: vars.width, int: [5, 1]}", "", 4, "5 is not below 1"),
        (
            "  e: {set: training.seed, values: [1, 2]}",
            "",
            4,
            "for several seeds write `seeds: [1, 2]`",
        ),
        (
            "  e: {set: vars.width, log_uniform: [0, 1]}",
            "search: random",
            4,
            "takes a number, above 0",
        ),
        (
            "  e: {set: vars.width, uniform: [0, 1]}",
            "",
            4,
            "grid search cannot enumerate the range 0 to 1",
        ),
        ("  flops: {set: vars.width, values: [8]}", "", 4, "an axis cannot be called `flops`"),
        ("  a-b: {set: vars.width, values: [8]}", "", 4, "an axis cannot be called `a-b`"),
        (
            f"{WIDTH}\n  h: {{set: vars.heads, values: [1], zip: width}}",
            "",
            5,
            "`h` cannot follow `width`",
        ),
        (
            f"{WIDTH}\n  h: {{set: vars.heads, values: [1, 2], zip: widht}}",
            "",
            5,
            "did you mean `width`?",
        ),
        (
            f"{WIDTH}\n  h: {{set: vars.heads, int: [1, 2], zip: width}}",
            "",
            5,
            "`h` cannot follow `width`",
        ),
        ("  h: {set: vars.heads, values: [1, 2], zip: h}", "", 4, "there is no other axis `h`"),
        (
            "  w: {set: vars.width, int: [8, 9]}\n  h: {set: vars.heads, values: [1], zip: w}",
            "search: random",
            5,
            "`h` cannot follow `w`",
        ),
        (
            f"""{WIDTH}
  h: {{set: vars.heads, values: [1, 2], zip: width}}
  t: {{set: training.max_steps, values: [1, 2], zip: h}}""",
            "",
            6,
            "`t` cannot follow `h`",
        ),
        (
            f"{WIDTH}\n  h: {{set: vars.heads, values: [1], when: width > 9 and}}",
            "",
            5,
            "missing at the end",
        ),
        (
            f"{WIDTH}\n  h: {{set: vars.heads, values: [1], when: with > 9}}",
            "",
            5,
            "did you mean `width`?",
        ),
        (WIDTH, "where: parameters < 20Q", 5, "`Q` is not a unit"),
        (
            WIDTH,
            "where:\n  - parameters < 2M\n  - depth < 3",
            7,
            "there is no axis or cost `depth`",
        ),
        (WIDTH, "tune: [widht]", 5, "the sweep has no axis `widht`; did you mean `width`?"),
        (
            WIDTH,
            "tune: [width]\nrank: [{minutes: min}]",
            5,
            "`tune` chooses by a validation score",
        ),
        (WIDTH, "tune: []", 5, "`tune`"),
        ("  sweep: {set: vars.width, values: [8]}", "", 4, "an axis cannot be called `sweep`"),
        (
            WIDTH,
            "rank: [{val/blue: max}]",
            5,
            "no finished run has a `val/blue`; did you mean `val/bleu`?",
        ),
        (
            WIDTH,
            "rank: [{val_sample/bleu: max}]",
            5,
            "no finished run has a `val_sample/bleu`; did you mean `val/bleu`?",
        ),
        (
            WIDTH,
            "rank: [{val/ter: min}]",
            5,
            "`val/ter` is never measured: it is not among the metrics",
        ),
        (
            WIDTH,
            f"{METRICS_SET}\nrank: [{{test/bleu: max}}]",
            6,
            "never measured: it is not among the metrics",
        ),
        (
            WIDTH,
            f"{NO_SAMPLE}\nprune: median\nrank: [{{val/bleu: max}}]",
            7,
            "`val_sample/bleu` is never measured",
        ),
        (WIDTH, "rank: [{val/loss: least}]", 5, "least"),
        (
            WIDTH,
            "rank: [{val/bits_per_sequence: min}]",
            5,
            "never measured: the answers are of words",
        ),
        (WIDTH, "rank: [{val/loss: min}, {test/bits_per_sequence: min}]", 5, "never measured"),
        (WIDTH, "prune: median\nrank: [{parameters: min}]", 6, "is computed after training"),
        (WIDTH, "search: tpee", 5, "did you mean `tpe`?"),
        (WIDTH, "search: {tpe: {trails: 3}}", 5, "did you mean `trials`?"),
        (WIDTH, "retries: -1", 5, "`retries`"),
        (
            WIDTH,
            "study: {storage: sqlite:///a}",
            5,
            "`storage` takes `postgresql://USER@HOST/DATABASE`",
        ),
        (WIDTH, "study: {storage: 'postgresql://me:1@host/a'}", 5, "a password belongs into"),
        (WIDTH, "study: {storage: 'postgresql:///a?password=1'}", 5, "a password belongs into"),
        (WIDTH, "study: {}", 5, "`storage`"),
        (WIDTH, "seeds: 0", 5, "`seeds`"),
        (WIDTH, "seeds: [1, 1]", 5, "`1` is listed twice"),
        (WIDTH, "seeds: 2\nseeds_where: widht > 8", 6, "did you mean `width`?"),
        (WIDTH, "seeds: 2\nseeds_where: true", 6, "`seeds_where` takes a condition"),
        (
            WIDTH,
            "seeds: 1\nseeds_where: width > 8",
            6,
            "which points get more than the first seed, and `seeds` has one",
        ),
        (WIDTH, "set: {training.max_step: 3}", 5, "did you mean `max_steps`?"),
        (WIDTH, "rank: [{val/loss: min}, {val/loss: max}]", 5, "`val/loss` is twice"),
        (WIDTH, "axis: 3", 5, "a sweep has no key `axis`; did you mean `axes`?"),
        ("", "", 3, "`axes` has nothing after its colon"),
        (
            "  w: {set: vars.width, values: }",
            "",
            4,
            "`values` takes a list of values; there is nothing here",
        ),
        ("  größe: {set: vars.width, values: [8]}", "", 4, "it has the character `ö` (U+00F6"),
        (WIDTH, "where: true", 5, "`where` takes a condition"),
        (WIDTH, "where: '5'", 5, "`where` takes a condition"),
    ],
)
def test_faults_are_reported_at_their_line(
    tmp_path: Path, axes: str, rest: str, line: int, expected: str
) -> None:
    result = faults(tmp_path, axes, rest)
    assert any(expected in message and at == line for at, message in result), result


SELF = "{replace: model.encoder..self_attention, with"


@pytest.mark.parametrize(
    ("axes", "rest", "wrong"),
    [
        ("  2w: {set: vars.width, values: [8]}", "", "2w"),
        (f"  e: {SELF}: {{a: {{rnn: {{as: 1st}}}}}}}}", "", "1st"),
        (
            f"  e: {SELF}: {{a: rnn}}}}".replace("encoder", "encodr"),
            "",
            "model.encodr..self_attention",
        ),
        (
            f"  e: {SELF}: {{a: rnn}}}}".replace("self_", "slef_"),
            "",
            "model.encoder..slef_attention",
        ),
        (WIDTH, "where: 5", "where: 5"),
    ],
)
def test_the_fix_that_is_offered_is_accepted(
    tmp_path: Path, axes: str, rest: str, wrong: str
) -> None:
    file = write(tmp_path, axes, rest)
    with pytest.raises(RecipeError) as caught:
        read_sweep(file)
    (fault,) = caught.value.faults
    offered = re.search("`(.+?)`", fault.hint)
    assert offered is not None
    text = file.read_text(encoding="utf-8")
    assert wrong in text
    file.write_text(text.replace(wrong, offered[1]), encoding="utf-8")
    read_sweep(file)


def test_a_recipe_in_the_place_of_its_name_is_refused(tmp_path: Path) -> None:
    axes = "  e:\n    extend:\n      a: {model: {width: 8}}\n      b: base.yaml"
    reasons = ("needs `pull`", "needs `sha256`", "has no key `model`")
    in_axis = faults(tmp_path, axes)
    in_base = faults(tmp_path, WIDTH, head="sweep: 1\nbase: {model: {width: 8}}\n")
    for line, result in ((6, in_axis), (2, in_base)):
        assert {at for at, _ in result} == {line}
        assert all(any(reason in message for _, message in result) for reason in reasons)
    ((line, message),) = faults(tmp_path, axes.replace("{model: {width: 8}}", "{pull: base.yaml}"))
    assert (line, "needs `sha256`" in message) == (6, True)


def test_a_key_that_begins_as_another_is_refused(tmp_path: Path) -> None:
    ((line, message),) = faults(tmp_path, WIDTH, "base.b: base.yaml")
    assert (line, message.startswith("a sweep has no key `base.b`")) == (5, True)


def test_a_misspelt_part_of_a_selector_is_named(tmp_path: Path) -> None:
    ((_, message),) = faults(tmp_path, f"  e: {SELF}: {{a: rnn}}}}".replace("encoder", "encodr"))
    assert message.endswith("did you mean `model.encoder..self_attention`?")


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "- a\n"])
def test_a_sweep_without_keys_begins_with_its_version(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match="begin with `sweep: 1`"):
        read_sweep(tmp_path / "empty.yaml")


@pytest.mark.parametrize(
    ("changes", "rank"),
    [
        ("evaluation.metrics: [ter]", "val/ter: min"),
        ("training.early_stopping: {metric: val_sample/ter}", "test/ter: min"),
        ("training.validation_sample.lines: 0", "val/bleu: max"),
        (
            "training.validation_sample.lines: 0, training.early_stopping: {metric: val/bleu}",
            "val/bleu: max",
        ),
    ],
)
def test_a_score_that_is_measured_may_be_ranked_by(tmp_path: Path, changes: str, rank: str) -> None:
    prune = "prune: median\n" if rank.startswith("val/bleu") and "early_stopping" in changes else ""
    sweep = read_sweep(write(tmp_path, WIDTH, f"set: {{{changes}}}\n{prune}rank: [{{{rank}}}]"))
    assert sweep.rank[0].metric == rank.partition(":")[0]


@pytest.mark.parametrize(
    ("head", "line", "expected"),
    [
        ("sweep: 1\nbase: bsae.yaml\n", 2, "does not exist; did you mean `base.yaml`?"),
        ("sweep: 1\nbase: ../../../etc/passwd\n", 2, "leads out of"),
        ("sweep: 1\n\n", 1, "a sweep needs `base`"),
        ("sweep: 2\nbase: base.yaml\n", 1, "sweep"),
        ("sweep: 1\nbase: tried.yaml\n", 2, "extend each other"),
        ("sweep: 1\nbase: other.yaml\n", 2, "a base must be a recipe, and this is a sweep"),
        ("recipe: 1\nbase: base.yaml\n", 1, "this file is a recipe, not a sweep"),
    ],
)
def test_faults_of_the_base_are_reported_at_its_line(
    tmp_path: Path, head: str, line: int, expected: str
) -> None:
    (tmp_path / "other.yaml").write_text(f"{HEAD}axes:\n{WIDTH}\n", encoding="utf-8")
    result = faults(tmp_path, WIDTH, head=head)
    assert any(expected in message and at == line for at, message in result), result


def test_an_axis_cannot_be_overridden_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="the axis `width` of this sweep changes `width`"):
        read_sweep(write(tmp_path, WIDTH), ["width=8"])


@pytest.mark.parametrize(
    "key", ["training.optimizer.adam.learning_rate", "training.optimizer", "training"]
)
def test_an_override_does_not_undo_an_axis(tmp_path: Path, key: str) -> None:
    file = write(
        tmp_path, "  rate: {set: training.optimizer.adam.learning_rate, values: [1e-3, 1e-2]}"
    )
    with pytest.raises(RecipeError, match="the axis `rate` of this sweep changes") as caught:
        read_sweep(file, [f"{key}=1"])
    assert [(fault.path, fault.file) for fault in caught.value.faults] == [(key, COMMAND_LINE)]
    assert read_sweep(file, ["training.optimizer.adam.eps=1e-9"]).axes


@pytest.mark.parametrize(
    "override", ["seeds=3", "rank=[{val/bleu: max}]", "search.random.trials=3"]
)
def test_a_key_of_the_sweep_is_no_override(tmp_path: Path, override: str) -> None:
    key = re.split("[.=]", override)[0]
    with pytest.raises(RecipeError, match=f"a recipe has no key `{key}`") as caught:
        read_sweep(write(tmp_path, WIDTH), [override])
    assert {fault.file for fault in caught.value.faults} == {COMMAND_LINE}


def test_the_number_of_points_is_limited(tmp_path: Path) -> None:
    few = ", ".join(map(str, range(1, 31)))
    keys = (
        "vars.width",
        "training.max_steps",
        "training.max_epochs",
        "training.accumulate",
        "training.validate_every",
    )
    axes = "\n".join(
        f"  a{index}: {{set: {key}, values: [{few}]}}" for index, key in enumerate(keys)
    )
    with pytest.raises(RecipeError, match="make 24,300,000 points"):
        grid_points(sweep(tmp_path, axes))


def test_circular_conditions_are_refused(tmp_path: Path) -> None:
    axes = """
  one: {set: vars.width, values: [8], when: two == 1}
  two: {set: vars.heads, values: [1], when: three == 2}
  three: {set: training.max_steps, values: [2], when: one == 8}"""
    assert faults(tmp_path, axes) == [(5, "these axes depend on each other: one, two, three")]


def test_a_value_is_checked_where_its_axis_is_active(tmp_path: Path) -> None:
    axes = f"""{ENCODER}
  cell: {{set: "model.encoder.0.residual.stack.0.rnn.cell", values: [lstm, gru], when: encoder == "rnn"}}"""
    read = sweep(tmp_path, axes)
    cells = [point_recipe(read, point).model.encoder[0] for point in grid_points(read)[1:3]]
    assert [item.settings["stack"][0]["rnn"]["cell"] for item in cells] == ["lstm", "gru"]
    ((line, message),) = faults(tmp_path, axes.replace("gru", "grue"))
    assert line == 5
    assert "grue" in message


def test_faults_of_every_point_are_reported_before_any_is_listed(tmp_path: Path) -> None:
    file = write(tmp_path, ENCODER)
    with pytest.raises(RecipeError, match="did you mean `max_steps`"):
        read_sweep(file, ["training.max_step=3"])
    (tmp_path / "base.yaml").write_text(BASE.replace("char:", "chars:"), encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        read_sweep(file)
    assert [(Path(fault.file).name, fault.line) for fault in caught.value.faults] == [
        ("base.yaml", 5)
    ]


def test_a_where_that_excludes_every_point_is_refused(tmp_path: Path) -> None:
    read = sweep(tmp_path, WIDTH, "where: [parameters > 1, parameters < 1]")
    with pytest.raises(RecipeError) as caught:
        list_points(read)
    (fault,) = caught.value.faults
    assert (fault.line, fault.path) == (5, "where")
    assert "excludes all 2 points, by `parameters < 1`; the smallest has" in fault.message


def test_two_axes_that_replace_the_same_block_are_refused(tmp_path: Path) -> None:
    whole = f"{ENCODER}\n  whole: {{replace: model.encoder, with: {{a: [norm]}}"
    ((line, message),) = faults(tmp_path, f"{whole}}}")
    assert (line, message) == (
        5,
        "`whole` and `encoder` both replace `model.encoder[0].residual[0]`",
    )
    apart = f"""
  steps: {{set: training.max_steps, values: [1, 2]}}
{ENCODER.removesuffix("}")}, when: steps == 1}}
  whole: {{replace: model.encoder, with: {{a: [norm]}}, when: steps == 2}}"""
    assert [item.status for item in list_points(sweep(tmp_path, apart))] == ["trained"] * 4


def test_two_axes_that_set_the_same_key_are_refused(tmp_path: Path) -> None:
    second = "  wide: {set: vars.width, values: [32, 64]"
    ((line, message),) = faults(tmp_path, f"{WIDTH}\n{second}}}")
    assert (line, message) == (5, "`wide` and `width` both set `vars.width`")
    apart = f"""
  steps: {{set: training.max_steps, values: [1, 2]}}
{WIDTH.removesuffix("}")}, when: steps == 1}}
{second}, when: steps == 2}}"""
    assert [item.point for item in list_points(sweep(tmp_path, apart))][2:] == [
        {"steps": 2, "wide": 32},
        {"steps": 2, "wide": 64},
    ]


def test_a_third_axis_chooses_between_two_that_set_the_same(tmp_path: Path) -> None:
    steps = "  steps: {set: training.max_steps, values: [1, 2]}\n"
    low, high = (
        f"{{set: training.optimizer.adam.learning_rate, values: {values}"
        for values in ("[1e-3]", "[1e-2]")
    )
    (fault,) = faults(tmp_path, f"{steps}  low: {low}}}\n  high: {high}, when: low == 0.001}}")
    assert fault == (6, "`high` and `low` both set `training.optimizer.adam.learning_rate`")
    apart = f"{steps}  low: {low}, when: steps == 1}}\n  high: {high}, when: steps == 2}}"
    points = list_points(sweep(tmp_path, apart))
    assert [tuple(item.point) for item in points] == [("steps", "low"), ("steps", "high")]


def test_the_worst_is_not_ranked_first(tmp_path: Path) -> None:
    assert faults(tmp_path, WIDTH, "rank: [{val/loss: max}]") == [
        (5, "`val/loss: max` ranks the worst first")
    ]
    assert faults(tmp_path, WIDTH, "rank: [{val/bleu: min}]") == [
        (5, "`val/bleu: min` ranks the worst first")
    ]
    assert faults(tmp_path, WIDTH, "rank: [{flops: max}]") == [
        (5, "`flops: max` ranks the worst first")
    ]


def test_a_point_has_no_values_of_inactive_axes(tmp_path: Path) -> None:
    read = sweep(
        tmp_path, f'{ENCODER}\n  heads: {{set: vars.heads, values: [1], when: encoder == "same"}}'
    )
    assert "heads" not in read.complete({"encoder": "rnn", "heads": 1})
    assert point_recipe(read, {"encoder": "rnn", "heads": 1}).training.seed == 7


def test_a_range_has_the_numbers_within_it_alone(tmp_path: Path) -> None:
    read = sweep(
        tmp_path,
        "  rate: {set: training.optimizer.adam.learning_rate, uniform: [0.1, 1]}",
        "search: random",
    )
    assert [
        value
        for value in (-0.1, 0.1, 0.5, 1, 1.1, math.nan, "0.5", True)
        if read.axes[0].accepts(value)
    ] == [
        0.1,
        0.5,
        1,
    ]


def test_a_fault_of_a_replacement_is_reported_in_the_sweep_file(tmp_path: Path) -> None:
    axes = (
        "  e: {replace: model.encoder..self_attention, with: {bad: {self_attention: {heads: 3}},"
        " good: rnn}}"
    )
    bad, good = list_points(sweep(tmp_path, axes))
    assert good.status == "trained"
    assert {(fault.file, fault.line) for fault in bad.faults} == {(str(tmp_path / "tried.yaml"), 4)}


def test_a_replacement_that_leaves_a_stack_empty_is_reported_in_the_sweep_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "one.yaml").write_text(
        "extends: base.yaml\nmodel: {encoder: [rnn]}\n", encoding="utf-8"
    )
    axes, head = (
        "  e: {replace: model.encoder.0, with: {a: rnn, b: identity}}",
        HEAD.replace("base.yaml", "one.yaml"),
    )
    assert faults(tmp_path, axes, head=head) == [(4, "`encoder` is a stack without blocks")]
    read_sweep(write(tmp_path, axes.replace("identity", "[identity]"), head=head))


# ------------------------------------------------------------------------------------------- what
# nobody would write

COMPLETE_SWEEP = f"""{HEAD}name: all
set: {{training.max_minutes: 8}}
axes:
{ENCODER}
  whole: {{replace: model.decoder, with: {{a: [norm], b: [rnn, norm]}}, when: encoder == "rnn"}}
  rate: {{set: training.optimizer.adam.learning_rate, log_uniform: [1e-4, 1e-2], when: encoder == "rnn"}}
  width: {{set: vars.width, values: [8, 16, 32]}}
  heads: {{set: vars.heads, values: [1, 2, 2], zip: width}}
  other: {{extend: {{a: base.yaml}}}}
where: [parameters < 20M, flops < 2G]
search: {{random: {{trials: 4, seed: 3}}}}
rank: [{{val/bleu: max}}, {{parameters: min}}]
"""
PIECES = re.findall(r"[A-Za-z_0-9.-]+|\s+|.", COMPLETE_SWEEP)
ODD = (
    "null",
    "[]",
    "{}",
    "-1",
    "1e400",
    ".nan",
    "true",
    "${width}",
    "identity",
    "[rnn]",
    "{a: b}",
    "..",
    "model",
    "model.encoder[0]",
    "model..rnn",
    "vars",
    "''",
    ": ",
    ", ",
    "\n",
    "  ",
    "none",
    "extends",
    "name",
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_file_is_a_sweep_or_has_faults_with_places(tmp_path: Path, data: st.DataObject) -> None:
    pieces = list(PIECES)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(pieces) - 1))
        pieces[at] = data.draw(st.sampled_from([*ODD, *PIECES, ""]))
    file = write(tmp_path, "")
    file.write_text("".join(pieces), encoding="utf-8")
    try:
        read = read_sweep(file)
    except ComposerError as error:
        output = error.faults
    else:
        output = []
        check_points(read)
    assert all(fault.line and fault.message for fault in output)


def check_points(read: Sweep) -> None:
    for point in random_points(read) if read.search.kind == "random" else []:
        assert set(point) <= {axis.name for axis in read.axes}
        assert read.complete(point) == point

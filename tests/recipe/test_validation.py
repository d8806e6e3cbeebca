"""Every mistake that is found without a model: its place, its likely meaning and its fix."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer.checks.planner import plan
from composer.errors import RecipeError
from composer.recipe.recipe import load, load_text
from composer.recipe.yaml_reader import dump, parse, to_data
from tests.laws.section_cases import recipe_of
from tests.small_recipes import SMALL, assert_fault, faults_of, loaded, places, refused


def test_a_choice_without_its_setting_says_what_that_is(tmp_path: Path) -> None:
    (fault,) = refused(tmp_path, f"{SMALL}  output: {{kind: adaptive}}\n")
    assert (
        fault.hint == "write `adaptive: {cutoffs: [...]}`: the first id of each cluster, ascending"
    )


def test_an_encoder_that_is_left_empty_is_no_language_model(tmp_path: Path) -> None:
    text = SMALL.replace("  decoder", "  encoder:\n  decoder")
    (fault,) = refused(tmp_path, text)
    assert_fault(
        fault,
        "5:3:unused",
        "`encoder` has nothing after its colon",
        "remove it, or give it a value",
    )
    assert not loaded(tmp_path, text.replace("encoder:", "encoder: null")).model.encoder


def test_a_file_of_a_newer_version_is_not_laid_under_another(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("# newer\nrecipe: 2\n", encoding="utf-8")
    (fault,) = refused(tmp_path, f"extends: base.yaml\n{SMALL}")
    assert (Path(fault.file).name, fault.line, fault.code) == ("base.yaml", 2, "version")


@pytest.mark.parametrize(("key", "value"), [("column", "body"), ("unit", "file")])
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_setting_of_a_text_is_no_name_of_a_file(
    tmp_path: Path, split: str, key: str, value: str
) -> None:
    text = {"train": "b.txt", split: {"file": "a.jsonl", key: value}}
    model = {"width": 16, "decoder": ["rnn"]}
    (fault,) = refused(tmp_path, dump({"recipe": 1, "data": {"text": text}, "model": model}))
    assert (fault.code, fault.path) == ("name", f"data.text.{split}.{key}")
    assert f"write it in `data.text.{key}`" in fault.hint
    assert "`[{file: ..., weight: ...}]`" in fault.hint
    text = {"train": "b.txt", split: {"file": "a.jsonl"}, key: value}
    loaded(tmp_path, dump({"recipe": 1, "data": {"text": text}, "model": model}))


@pytest.mark.parametrize("key", ["hop", "window"])
@pytest.mark.parametrize("rate", ["", "rate: 8000, ", "rate: 44100, "])
def test_a_frame_and_a_hop_have_a_sample_and_the_fix_is_accepted(
    tmp_path: Path, key: str, rate: str
) -> None:
    sound = f"{{column: sound, kind: audio, {rate}features: {{log_mel: {{{key}: 0.00001}}}}}}"
    text = SMALL.replace(
        "generate: copy", f"table: {{train: a.tsv, source: {sound}, target: text}}"
    )
    (fault,) = refused(tmp_path, text)
    assert (fault.code, fault.path) == ("bound", f"data.table.source.features.log_mel.{key}")
    written = re.match(f"write `({key}: .*?)` or more", fault.hint)
    assert written
    load_text(text.replace(f"{key}: 0.00001", written[1]))


@pytest.mark.parametrize(
    ("sound", "key", "fixed"),
    [
        ("features: {log_mel: {fft: 399}}", "features.log_mel.fft", "fft: 400"),
        ("seconds: 0.009", "seconds", "seconds: 0.01"),
    ],
)
def test_a_frame_fits_its_transform_and_its_sound(
    tmp_path: Path, sound: str, key: str, fixed: str
) -> None:
    column = f"{{column: sound, kind: audio, {sound}}}"
    table = f"table: {{train: a.tsv, source: {column}, target: text}}"
    text = SMALL.replace("generate: copy", table)
    (fault,) = refused(tmp_path, text)
    assert (fault.code, fault.path) == ("bound", f"data.table.source.{key}")
    assert fault.hint.startswith(f"write `{fixed}`")
    name = fixed.partition(":")[0]
    load_text(re.sub(rf"{name}: [\d.]+", fixed, text))


def test_pairs_have_no_state_to_carry(tmp_path: Path) -> None:
    """What says that there are no windows is `plan`, and its fix is no window."""
    assert loaded(tmp_path, SMALL + "training: {carry: true}\n").training.carry


FILES = "recipe: 1\ndata: {parallel: {train: @}}\nmodel: {width: 8, %, decoder: [norm]}\n"
AGREEMENT = [
    ("{source: a, target: b}", "encoder: [norm]", []),
    ("{target: b}", "dropout: 0.1", []),
    ("{source: a, target: b}", "dropout: 0.1", []),
    ("{target: b}", "encoder: [norm]", ["2:19:missing"]),
    ("{sorce: a, target: b}", "encoder: [norm]", ["2:27:unknown"]),
    ("{sorce: a, taget: b}", "encoder: [norm]", ["2:27:unknown", "2:37:unknown"]),
    ("{source: a, target: b, wieght: 2}", "encoder: [norm]", ["2:49:unknown"]),
    (
        "[{source: a, target: 3}, {source: a, target: b, x: 2}]",
        "encoder: [norm]",
        ["2:47:type", "2:74:unknown"],
    ),
    ("{source: a, target: b}, val: [{sorce: a}]", "encoder: [norm]", ["2:55:type"]),
    ("{text: a, image: b, target: c}", "encoders: {text: [norm], image: [norm]}", []),
    ("{file: f.tsv, text: a, image: b, target: c}", "encoders: {text: [norm], image: [norm]}", []),
    ("{source: a, target: c}", "encoders: {text: [norm]}", ["2:19:missing", "2:27:unknown"]),
    ("{input: a, target: c}", "encoders: {input: [norm]}", ["3:30:name"]),
    ("{target: c}", "encoders: {target: [norm]}", ["3:30:name"]),
    (
        "{source: a, target: c}",
        "encoder: [norm], output: {tie: [source, traget]}",
        ["3:59:unknown"],
    ),
    ("{target: c}", "output: {tie: [source]}", ["3:34:unknown"]),
]


@pytest.mark.parametrize(("split", "model", "expected"), AGREEMENT)
def test_data_and_encoders_agree(
    tmp_path: Path, split: str, model: str, expected: list[str]
) -> None:
    text = FILES.replace("@", split).replace("%", model)
    if expected:
        assert places(refused(tmp_path, text)) == expected
    else:
        loaded(tmp_path, text)


def test_early_stopping_watches_a_metric_that_is_logged(tmp_path: Path) -> None:
    data = (
        "recipe: 1\ndata: {hub: {id: x/y, target: de, val: null}}\nmodel: {width: 8, decoder:"
        " [rnn]}\n"
    )
    text = f"{data}training:\n  early_stopping: {{metric: val/bleu}}\n"
    assert places(refused(tmp_path, text)) == ["5:28:metric"]
    assert places([*plan(loaded(tmp_path, text.replace("bleu", "loss"))).warnings]) == [
        "5:3:unused"
    ]


def test_early_stopping_needs_a_validation(tmp_path: Path) -> None:
    text = (
        FILES.replace("@", "{target: b}").replace(", %", "")
        + "training: {early_stopping: {patience: 2}}\n"
    )
    assert places([*plan(loaded(tmp_path, text)).warnings]) == ["4:12:unused"]


VECTORS = """recipe: 1
data: {generate: vector_copy, tokenizer: @}
model:
  width: 8
  embedding: linear
  output: {kind: sigmoid, tie: [target]}
  encoder: [rnn]
  decoder: [rnn]
training: {early_stopping: {metric: val/bits_per_sequence}}
"""


def test_bits_need_vectors_and_share_no_matrix(tmp_path: Path) -> None:
    assert places(refused(tmp_path, VECTORS.replace("@", "char"))) == [
        "5:14:tie",
        "5:14:vectors",
        "6:18:tie",
        "6:18:vectors",
    ]
    assert places(refused(tmp_path, VECTORS.replace("@", "bits"))) == ["5:14:tie", "6:18:tie"]
    words = VECTORS.replace("@", "bits").replace("linear", "learned").replace("sigmoid", "linear")
    assert places(refused(tmp_path, words)) == ["9:37:metric"]


def test_answers_of_one_length_go_with_what_makes_them(tmp_path: Path) -> None:
    text = VECTORS.replace("@", "{bits: {size: 8}}").replace(
        "{kind: sigmoid, tie: [target]}", "{kind: identity}"
    )
    assert places(refused(tmp_path, text)) == ["6:18:missing", "9:37:metric"]
    text = text.replace("identity", "identity, length: 3").replace(
        "{early_stopping: {metric: val/bits_per_sequence}}", "{label_smoothing: 0.1}"
    )
    assert places(refused(tmp_path, text)) == ["6:18:value", "6:36:value"]


def test_all_faults_at_once_in_order(tmp_path: Path) -> None:
    text = (
        "recipe: 1\ndat: {}\ndata: {generate: cpy}\nmodel:\n  width: x\n  decoder: [nrm, {norm:"
        " rmss}]\n"
    )
    text += "training: {sed: 1}\n"
    assert places(refused(tmp_path, text)) == [
        "2:1:unknown",
        "3:18:unknown",
        "5:10:type",
        "6:13:unknown",
        "6:25:value",
        "7:12:unknown",
    ]


def test_paths_are_reported_as_the_recipe_writes_them(tmp_path: Path) -> None:
    block = "repeat: {times: 2, stack: [{residual: [{residual: {stack: [{rnn: {cel: 1}}]}}]}]}"
    text = SMALL.replace("[norm]", f"\n    - {block}")
    (fault,) = refused(tmp_path, text)
    assert fault.path == "model.decoder[0].repeat.stack[0].residual[0].residual.stack[0].rnn.cel"


def test_a_thousand_blocks_are_checked_quickly(tmp_path: Path) -> None:
    blocks = "\n".join("    - residual: [{self_attention: {heads: 4}}]" for _ in range(1000))
    loaded(tmp_path, SMALL)
    began = time.process_time()
    loaded(tmp_path, SMALL.replace("[norm]", f"\n{blocks}"))
    refused(tmp_path, SMALL.replace("[norm]", f"\n{blocks}\n    - nrm"))
    assert time.process_time() - began < 3


def test_the_deepest_nesting_is_checked(tmp_path: Path) -> None:
    loaded(tmp_path, SMALL.replace("[norm]", "[{residual: " * 30 + "[norm]" + "}]" * 30))


def test_a_typo_is_reported_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(SMALL.replace("norm", "nrm"))
    code = (
        "import sys, composer\n"
        "try: composer.load(sys.argv[1])\n"
        "except composer.RecipeError as error: faults = error.faults\n"
        "print(len(faults), *({'torch', 'pytorch_lightning'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.yaml")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1"]


FULL = """recipe: 1
name: full
data:
  parallel: {train: {source: a, target: b}, val: {file: f, source: a, target: b}}
  tokenizer: {bpe: {size: 500, joint: true}}
model:
  width: 32
  dropout: 0.1
  residual: {norm: pre}
  encoder: [norm, {positions: learned}, {repeat: {times: 2, stack: [{residual: [{self_attention: 4}]}]}}]
  decoder:
    - rnn: {cell: gru, as: x, initial_state: {copy: encoder.x}}
    - parallel: {branches: {a: [norm], b: [{linear: 4}]}, merge: concat}
    - concat: [x, input]
    - use: y
  output: {tie: [source, target]}
  stacks: {y: [norm]}
training: {optimizer: {adam: 0.1}, schedule: cosine, max_steps: 3, early_stopping: {patience: 2}, precision: 32}
decoding: {beam: {size: 2}}
trainer: {devices: 1}
logging: {wandb: {tags: [a]}}
"""
JUNK = [
    None,
    True,
    0,
    -1,
    1.5,
    1e-05,
    float("nan"),
    10**30,
    "",
    "norm",
    "x y",
    "${w}",
    "null",
    "1_000",
    [],
    [[]],
    ["norm"],
    [None],
    {},
    {"a": 1},
    {"norm": {}},
    {"norm": None, "linear": 3},
    [{"residual": {"norm": "pre"}}],
    {"type": "rnn"},
]


def paths(data: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every value."""
    for key, value in (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    ):
        yield (key,)
        yield from ((key, *inner) for inner in paths(value))


WHERE = list(paths(to_data(parse(FULL, "f"))))


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from(WHERE), st.sampled_from(JUNK), st.booleans()),
        min_size=1,
        max_size=3,
    )
)
def test_junk_anywhere_is_refused_or_accepted(
    tmp_path: Path, changes: list[tuple[Any, Any, bool]]
) -> None:
    data = to_data(parse(FULL, "f"))
    for path, junk, beside in changes:
        inner = data
        with contextlib.suppress(KeyError, IndexError, TypeError):
            for step in path[:-1]:
                inner = inner[step]
            inner[f"{path[-1]}x" if beside and isinstance(inner, dict) else path[-1]] = (
                copy.deepcopy(junk)
            )
    with contextlib.suppress(RecipeError):
        recipe = loaded(tmp_path, dump(data))
        assert recipe.fingerprints
        assert loaded(tmp_path, recipe.dump()).fingerprints == recipe.fingerprints
        for path in WHERE:
            recipe.fault("some", path, "wrong").render()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(WHERE),
    st.sampled_from([*map(str, JUNK), "[", "{a: b", "&x", "!t", "*x"]),
    st.sampled_from(["", ".x", "[0]"]),
)
def test_junk_on_the_command_line_is_refused_or_accepted(
    tmp_path: Path, path: Any, junk: str, more: str
) -> None:
    with contextlib.suppress(RecipeError):
        loaded(tmp_path, FULL, [".".join(map(str, path)) + more + "=" + junk])


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("model.output.tie", "target"),
        ("logging.wandb.tags", "a"),
        ("trainer.devices", 0),
        ("data.generate.copy.test_lengths", 3),
        ("data.tokenizer.bits.marks", ";"),
        ("data.babi.tasks", 1),
        ("evaluation.metrics", "bleu"),
        ("extends", "base.yaml"),
    ],
)
def test_a_list_in_which_a_repetition_means_nothing_has_each_item_once(
    path: str, first: Any, tmp_path: Path
) -> None:
    text, keys = json.dumps([first, first]), path.split(".")
    for key in reversed(keys):
        text = f"{{{key}: {text}}}"
    file = tmp_path / "recipe.yaml"
    file.write_text(f"recipe: 1\n{text[1:-1]}\n")
    with pytest.raises(RecipeError) as raised:
        load(file)
    (fault,) = [fault for fault in raised.value.faults if fault.code == "duplicate"]
    assert (fault.path, fault.line, fault.hint) == (f"{path}[1]", 2, "keep one")
    assert fault.message == f"`{first}` is listed twice"


def test_numbers_that_are_none_are_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "recipe: 1\ndata: {generate: {copy: {test_lengths: [.nan, .nan]}}}\n"
    )
    with pytest.raises(RecipeError) as raised:
        load(tmp_path / "recipe.yaml")
    paths = [fault.path for fault in raised.value.faults if "not a finite number" in fault.message]
    assert paths == [f"data.generate.copy.test_lengths[{index}]" for index in (0, 1)]


def test_shares_and_names_to_add_may_be_repeated(tmp_path: Path) -> None:
    twice = "model.decoder=[{linear: {as: a}}, {add: [a, a]}, cross_attention]"
    recipe_of(tmp_path, "pairs", "training.schedule={staircase: {shares: [0.5, 0.5]}}", twice)


@pytest.mark.slow
def test_of_very_many_mistakes_the_first_thousand_are_explained_within_seconds() -> None:
    text = SMALL + "".join(f"key{number}: 1\n" for number in range(5_000))
    began = time.process_time()
    faults = faults_of(lambda: load_text(text))
    assert time.process_time() - began < 10
    assert len(faults) == 1_001
    assert (faults[-1].code, faults[-1].line) == ("size", faults[-2].line)
    assert "more than 1,000 faults" in faults[-1].message


def test_misspelt_sides_are_reported_beside_misspelt_blocks() -> None:
    text = """recipe: 1
data: {parallel: {train: {sorce: a, target: b}}}
model: {widht: 8, encoder: [nomr], decoder: [nomr, cross_attention]}
"""
    faults = faults_of(lambda: load_text(text))
    assert [fault.path for fault in faults] == [
        "data.parallel.train.sorce",
        "model.widht",
        "model.encoder[0]",
        "model.decoder[0]",
    ]
    assert [fault.hint for fault in faults[2:]] == ["write `norm`"] * 2


def test_a_key_that_is_allowed_twice_is_listed_once() -> None:
    columns = "{train: a.tsv, target: c, picture: p}"
    text = (
        f"recipe: 1\ndata: {{table: {columns}}}\nmodel: {{width: 8, encoders: {{train: [rnn]}},"
        " decoder: [rnn]}\n"
    )
    with pytest.raises(RecipeError) as refusal:
        load_text(text)
    faults = {fault.path: fault for fault in refusal.value.faults}
    assert faults["data.table.picture"].hint.count("`train`") == 1


def test_an_encoder_is_not_called_as_a_key_of_the_hub_that_means_something_else() -> None:
    model = "model: {width: 8, encoders: {config: [rnn], text: [rnn]}, decoder: [rnn]}\n"
    with pytest.raises(RecipeError, match="`config` is reserved") as refusal:
        load_text(f"recipe: 1\ndata: {{hub: {{id: a/b, config: en, text: c, target: d}}}}\n{model}")
    assert [fault.path for fault in refusal.value.faults] == ["model.encoders.config"]
    load_text(
        f"recipe: 1\ndata: {{table: {{train: a.tsv, config: e, text: c, target: d}}}}\n{model}"
    )

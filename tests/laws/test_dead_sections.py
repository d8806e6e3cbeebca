"""Settings of sections without effect: each rule is right, and reports the reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from composer.data.tasks import TASKS
from composer.errors import Fault
from composer.recipe.recipe import load_text
from composer.training.meter import ROW_STEPS
from tests.laws.section_cases import SIZED, faults_of, recipe_of, same, signature
from tests.samples import sampled


class Dead(NamedTuple):
    """A setting, by its path, and values of it; where it is dead; and where it is not."""

    path: str
    values: Sequence[Any]
    border: str
    alive: str = ""
    kind: str = "pairs"
    live: Any = None

    def __str__(self) -> str:
        return f"{self.path} {self.border}"[:60]


def overrides(text: str) -> list[str]:
    return [line.strip() for line in text.split(";") if line.strip()]


def task(name: str, settings: str = "") -> str:
    return f"data.generate={{{name}: {{train: 30, val: 3, test: 3, {settings}}}}}"


DIGITS = "data.parallel.train={source: c.txt, target: c.txt}"
NO_VAL = "data.parallel.val=null"
ONE = "bits: 5, min_length: 2, max_length: 2, share: 0.1"
LENGTH = (
    f"model.output.length=1; {task('priority_sort', ONE)}; data.tokenizer={{bits: {{size: 5,"
    " numbers: true}}"
)
NUMBERS = "data.tokenizer={bits: {size: 3, numbers: true}}"
BITS = f"{task('vector_copy', 'bits: 3, max_length: 3')}; data.tokenizer={{bits: {{size: 3}}}}"
FIXED = "model.output.length=3"
STOP = "training.early_stopping={patience: 1}"
CTC_ALONE = "model.decoder=null; model.output.ctc={weight: 1}"
FEW_LINES = [{"lines": 1}, {"lines": 2}]
DEAD = [
    Dead("data.text.hold_out", ["spread", "end"], "", "data.text.val=2", kind="text"),
    Dead(
        "data.parallel.decontaminate",
        [True, False],
        "data.parallel.val=null; data.parallel.test=null",
        "data.parallel.val=3",
        "files",
    ),
    Dead("data.lowercase", [True, False], "", "data.generate=dialect"),
    Dead("data.lowercase", [True, False], "", kind="stories"),
    Dead("data.lowercase", [True, False], f"data.tokenizer=integers; {DIGITS}", kind="files"),
    Dead(
        "training.early_stopping",
        [{"patience": 1}, {"patience": 2}],
        NO_VAL,
        "data.parallel.val=3",
        "files",
    ),
    Dead(
        "training.early_stopping",
        [{"patience": 1}, {"patience": 2}],
        "trainer.limit_val_batches=0",
        "",
    ),
    Dead(
        "training.early_stopping",
        [{"patience": None}, None],
        "",
        "training.max_steps=4",
        live={"patience": None, "goal": 1},
    ),
    Dead("training.validation_sample", FEW_LINES, NO_VAL, "data.parallel.val=3", "files"),
    Dead("training.validation_sample", FEW_LINES, "", kind="language"),
    Dead(
        "training.validation_sample",
        FEW_LINES,
        "training.early_stopping={metric: val/chrf}",
        "training.seed=1",
    ),
    Dead(
        "training.validation_sample.decoding",
        ["greedy", {"sample": {"seed": 3}}],
        "training.validation_sample={lines: 0}",
        "training.seed=1",
    ),
    Dead(
        "evaluation.bleu_tokenizer",
        ["13a", "char"],
        "evaluation.metrics=[chrf]",
        "evaluation.metrics=[bleu]",
    ),
    Dead(
        "training.early_stopping.min_delta",
        [0, 5],
        "training.early_stopping={patience: null, goal: 1}",
        STOP,
    ),
    Dead("training.schedule", ["plateau", "constant"], NO_VAL, "data.parallel.val=3", "files"),
    Dead("training.schedule", ["plateau", "constant"], "trainer.limit_val_batches=0"),
    Dead("training.asgd", [{"patience": 1}, None], "trainer.limit_val_batches=0"),
    Dead("training.schedule", [{"linear": {"final": 1}}, {"cosine": {"final": 1}}, "constant"], ""),
    Dead("trainer.inference_mode", [True, False], NO_VAL, "data.parallel.val=3", "files"),
    Dead("trainer.inference_mode", [True, False], "trainer.limit_val_batches=0"),
    Dead("trainer.limit_val_batches", [1, 0.5, 0], NO_VAL, "data.parallel.val=3", "files"),
    Dead(
        "data.parallel.train.source",
        ["a.txt", "b.txt"],
        "model.encoder=null; model.decoder=[rnn]; data.parallel.train={target: a.txt}",
        "",
        "files",
    ),
    Dead(
        "data.tokenizer.bits.marks",
        [[], [";"]],
        f"{BITS}; model.encoder=null; model.decoder=[rnn]",
        BITS,
    ),
    Dead(
        "data.tokenizer.bits.numbers",
        [True, False],
        f"{BITS}; model.encoder=null; model.decoder=[rnn]",
        BITS,
    ),
    Dead(
        "data.generate.number_words.source",
        ["en", "da"],
        f"{task('number_words', 'maximum: 99')}; model.encoder=null; model.decoder=[rnn]",
        task("number_words"),
    ),
    *(
        Dead(
            f"data.tokenizer.{kind}.joint", [True, False], f"data.tokenizer={kind}", kind="language"
        )
        for kind in ("word", "char", "bpe")
    ),
    Dead("training.curriculum.by", ["target"], "training.curriculum={start: 5}", kind="language"),
    Dead("decoding.greedy.max_ratio", [0.1, 9.0], "", kind="language"),
    Dead(
        "training.validation_sample.decoding.beam.length_penalty",
        [0.0, 4.0],
        "training.validation_sample.decoding={beam: {size: 1}}",
        "training.validation_sample.decoding={beam: {size: 2}}",
    ),
    Dead(
        "decoding.beam.length_penalty",
        [0.0, 4.0],
        FIXED + "; data.generate.copy.min_length=3; data.generate.copy.max_length=3",
        "training.seed=1",
    ),
    Dead("decoding.greedy.no_repeat_ngram", [1, 2], LENGTH, "training.seed=1"),
    Dead(
        "decoding.beam.length_penalty",
        [0.0, 4.0],
        "decoding={beam: {size: 1}}",
        f"decoding={{beam: {{size: 1}}}}; model={SIZED}",
    ),
    *(
        Dead(f"decoding.sample.{name}", values, "decoding={sample: {top_k: 1}}", "decoding=sample")
        for name, values in {
            "temperature": [0.1, 9.0],
            "top_p": [0.1, 1.0],
            "min_p": [0.1, 1.0],
            "seed": [1, 2],
        }.items()
    ),
    Dead("training.validation_sample.decoding.beam.engine", ["torch", "onnxruntime"], ""),
    Dead("decoding.greedy.ctc_weight", [0.1, 0.9], "", "model.output.ctc={}"),
    Dead("decoding.greedy.ctc_weight", [0.1, 0.9], CTC_ALONE, "model.output.ctc={}"),
    *(
        Dead(path, values, CTC_ALONE, "model.output.ctc={}")
        for path, values in {
            "model.output.kind": ["linear", {"sampled": {"samples": 4}}],
            "model.output.tie": [["target"], []],
            "model.output.bias": [True, False],
            "training.label_smoothing": [0.1, 0.2],
            "training.scheduled_sampling": [{"rate": 0.9, "warmup": 0}, None],
        }.items()
    ),
    Dead(
        "model.embedding_dropout",
        [0.1, 0.2],
        f"{CTC_ALONE}; data.table.test=v.tsv",
        "model.output.ctc={}",
        "table",
    ),
    Dead(
        "model.embedding",
        ["learned", {"characters": {"width": 4}}],
        f"{CTC_ALONE}; data.table.test=v.tsv",
        "model.output.ctc={}",
        "table",
    ),
    Dead(
        "training.scheduled_sampling",
        [{"rate": 0.9, "warmup": 0}, None],
        "model.decoder=[no_input, rnn, cross_attention]",
        "training.seed=1",
    ),
    Dead(
        "training.scheduled_sampling", [{"rate": 0.9, "warmup": 0}, None], LENGTH, "training.seed=1"
    ),
    Dead(
        "training.scheduled_sampling.warmup",
        [0.0, 1.0],
        "training.scheduled_sampling={rate: 0}",
        "training.scheduled_sampling={rate: 0.9}",
    ),
    Dead(
        "training.scheduled_sampling.choose",
        ["argmax", "sample"],
        "training.scheduled_sampling={rate: 0}",
        "training.scheduled_sampling={rate: 0.9}",
    ),
    Dead(
        "training.initialization",
        ["default", "orthogonal"],
        "model.decoder=[norm]",
        kind="language",
        alive="training.seed=1",
    ),
    Dead(
        "training.curriculum",
        [{"beyond": 1, "start": 1}, {"beyond": 1, "start": 4}],
        "",
        "training.seed=1",
        live={},
    ),
    Dead("training.window", [3, 5], ""),
    Dead("evaluation.stride", [1, 2], "", "training.window=5", kind="text"),
    Dead(
        "evaluation.stride",
        [1, 2],
        "training.window=5; training.carry=true",
        "training.window=5",
        kind="text",
    ),
    Dead(
        "training.compile",
        [False, True],
        "training.window=5; training.carry=true",
        "training.window=5",
        kind="text",
    ),
    Dead("data.max_length", [20, 50], "training.window=5", "training.seed=1", kind="text"),
    Dead(
        "training.curriculum",
        [{"start": 1}, {"start": 4}],
        "training.window=5",
        "training.seed=1",
        kind="text",
    ),
    Dead(
        "data.generate.copy.endless",
        [True, False],
        "training.max_epochs=1; training.max_steps=null",
        "training.max_epochs=2; training.max_steps=null",
    ),
    Dead("trainer.benchmark", [True, False], "trainer.accelerator=cpu", "trainer.accelerator=auto"),
    Dead(
        "trainer.timeout_minutes",
        [1, 9],
        "trainer={devices: 1, num_nodes: 1}",
        "trainer={devices: 2, num_nodes: 1}",
    ),
    Dead(
        "trainer.strategy",
        ["auto", "ddp"],
        "trainer={devices: [0], num_nodes: 1, accelerator: gpu}",
        "trainer={devices: [0, 1], num_nodes: 1, accelerator: gpu}",
    ),
    Dead("trainer.strategy", ["auto", "ddp"], "trainer={devices: 1}", "trainer={num_nodes: 1}"),
    Dead("trainer.log_every_n_steps", [11, 50], "", "training.seed=1", live=5),
    *(
        Dead(
            f"logging.wandb.{name}",
            ["a", "b"],
            "logging.wandb={mode: disabled}",
            "logging.wandb={mode: offline}",
        )
        for name in ("project", "name", "entity", "group")
    ),
]
ELSEWHERE = (
    "trainer.strategy",
    "trainer.timeout_minutes",
    "logging.wandb",
    "trainer.benchmark",
    "data.parallel.decontaminate",
)
"""What no training here can show: it needs another machine, a network or a part to be measured, or
saves time alone.
"""


def assignment(path: str, value: Any) -> list[str]:
    return [] if value is None else [f"{path}={json.dumps(value)}"]


def unused(path: str, faults: Sequence[Fault]) -> list[Fault]:
    return [fault for fault in faults if fault.code == "unused" and fault.path.startswith(path)]


@pytest.mark.parametrize("case", sampled(DEAD, 12, 40), ids=str)
def test_a_dead_setting_is_a_warning(case: Dead, tmp_path: Path) -> None:
    recipe = recipe_of(
        tmp_path, case.kind, *overrides(case.border), *assignment(case.path, case.values[0])
    )
    own = load_text(recipe.dump(), tmp_path / "recipe.yaml")
    (warning,) = unused(case.path, faults_of(own))
    assert (warning.severity, warning.file, bool(warning.hint)) == (
        "warning",
        str(tmp_path / "recipe.yaml"),
        True,
    )
    if case.alive:
        recipe = recipe_of(
            tmp_path,
            case.kind,
            *overrides(case.alive),
            *assignment(case.path, case.values[0] if case.live is None else case.live),
        )
        assert not unused(case.path, faults_of(recipe))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in DEAD if not case.path.startswith(ELSEWHERE)], ids=str
)
def test_a_rule_is_right(case: Dead, tmp_path: Path) -> None:
    signatures = []
    for index, value in enumerate(case.values):
        folder = tmp_path / str(index)
        folder.mkdir()
        recipe = recipe_of(
            folder, case.kind, *overrides(case.border), *assignment(case.path, value)
        )
        signatures.append(signature(recipe, folder))
    assert all(same(signatures[0], other) for other in signatures[1:])


def test_a_task_says_whether_its_texts_have_capitals() -> None:
    for name, task in TASKS.items():
        lines = task(train=50).generate("train")
        text = "".join([*lines.source, *lines.target])
        assert (text != text.lower()) == task.has_capitals, name


def test_rows_of_the_log_are_as_far_apart_as_their_rule_says() -> None:
    assert ROW_STEPS == 10

"""The memory that `plan` estimates is what PyTorch's allocator hands out in a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import composer
from benchmarks.plan_memory import compare
from composer.cli import main
from composer.data.encoding import load_data
from composer.data.largest_batch import (
    largest_batch,
    largest_of_pairs,
    relative_size,
    side_positions,
)
from composer.data.sampler import TrainBatchSampler
from composer.recipe.recipe import Recipe, load_text
from composer.training.memory_estimate import FAKES, estimate_memory
from composer.training.training_plan import plan_training
from composer.training.trial_run import STEPS
from tests.training.tiny_recipes import Tiny

RECURRENT = "{width: 32, encoder: [{rnn: lstm}], decoder: [{rnn: gru}, cross_attention]}"
ATTENTIVE = (
    "{width: 32, encoder: [self_attention, {conv: {}}], decoder: [self_attention, cross_attention,"
    " feed_forward]}"
)
LANGUAGE_MODEL = "{width: 32, decoder: [{rnn: gru}, {self_attention: {window: 8}}]}"
PAIRS = "{generate: {copy: {max_length: 8, train: 600, val: 9, test: 9}}, tokenizer: char}"
UNTOKENIZED = PAIRS.replace(", tokenizer: char", "")
TEXT = "{text: {train: train.txt, val: train.txt}, tokenizer: char}"


def recipe_of(
    model: str, data: str = PAIRS, *overrides: str, file: str | Path = "small.yaml"
) -> Recipe:
    text = f"recipe: 1\ndata: {data}\nmodel: {model}"
    return load_text(
        text, file, ["trainer.accelerator=cpu", "training.tokens_per_batch=1000", *overrides]
    )


@pytest.mark.slow
def test_a_head_that_sorts_tokens_into_clusters_takes_less_than_a_linear_one() -> None:
    sizes = {"source": 5_000, "target": 5_000}
    batch = largest_batch(recipe_of(RECURRENT))
    adaptive, linear = (
        estimate_memory(
            recipe_of(RECURRENT, PAIRS, f"model.output.kind={kind}"), sizes, batch
        ).activation_bytes
        for kind in ("{adaptive: [100, 1000]}", "linear")
    )
    assert linear / 10 < adaptive < linear


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        (ATTENTIVE, ["training.accumulate=2", "training.optimizer=adagrad"]),
        (ATTENTIVE, ["training.precision=bf16-mixed", "model.dropout=0.1"]),
        *((ATTENTIVE, [f"training.optimizer={word}"]) for word in ("muon", "adafactor")),
        (RECURRENT, ["training.optimizer=schedule_free"]),
        (RECURRENT, ["training.precision=64", "training.optimizer={sgd: {momentum: 0.9}}"]),
    ],
)
def test_the_estimate_is_what_a_step_takes(model: str, overrides: list[str]) -> None:
    measured = compare(recipe_of(model, PAIRS, *overrides))
    assert measured["estimate"] == pytest.approx(measured["peak"], rel=0.1)


@pytest.mark.parametrize("width", [65, 30])
def test_what_an_lstm_keeps_counts(width: int) -> None:
    measured = compare(
        recipe_of(f"{{width: {width}, decoder: [{{rnn: {{cell: lstm, layers: 2}}}}]}}", UNTOKENIZED)
    )
    assert measured["estimate"] == pytest.approx(measured["peak"], rel=0.2)


def test_the_steps_of_ctc_count() -> None:
    measured = compare(recipe_of("{width: 30, encoder: [conv], output: {ctc: {weight: 1}}}"))
    assert measured["estimate"] == pytest.approx(measured["peak"], rel=0.1)


SPELLING = [
    "output: {kind: {char_lstm: 8}}",
    "embedding: characters, output: {kind: {cnn: {samples: 12}}}",
    "embedding: {characters: {max_length: 8}}, output: {kind: {cnn: {correction: 0}}}",
]


@pytest.mark.slow
@pytest.mark.parametrize("spelling", SPELLING)
def test_words_that_are_read_by_their_characters_count_once(tmp_path: Path, spelling: str) -> None:
    draw = np.random.default_rng(1)
    words = [f"{number**3}" for number in range(60)]
    lines = (" ".join(draw.choice(words, 7)) for _ in range(300))
    (tmp_path / "train.txt").write_text("\n".join(lines))
    text = "{text: {train: train.txt, val: train.txt}, tokenizer: word}"
    recipe = recipe_of(
        f"{{width: 16, decoder: [rnn], {spelling}}}", text, file=tmp_path / "text.yaml"
    )
    planned = plan_training(recipe, time=True)
    assert planned.trial is not None
    assert planned.memory.bytes == pytest.approx(planned.trial.peak_bytes, rel=0.1)
    without_words = estimate_memory(recipe, planned.vocabularies, planned.batch)
    assert (planned.memory.at_most, without_words.at_most) == (False, True)
    assert without_words.activation_bytes > planned.memory.activation_bytes


def test_the_state_that_is_carried_counts(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("to be or not to be\n" * 400)
    carry = ["training.window=20", "training.carry=true"]
    measured = compare(recipe_of(LANGUAGE_MODEL, TEXT, *carry, file=tmp_path / "text.yaml"))
    assert measured["estimate"] == pytest.approx(measured["peak"], rel=0.1)


def test_the_largest_batch_is_one_that_the_sampler_makes() -> None:
    recipe = recipe_of(RECURRENT)
    train = load_data(recipe, []).train
    assert train is not None
    positions = side_positions(train)
    sizes = [
        (len(rows), *positions[rows].max(0))
        for rows in TrainBatchSampler(train, tokens_per_batch=1000, seed=1).batches()
    ]
    largest = max(sizes, key=lambda size: relative_size(size[0], sum(size[1:])))
    batch = largest_batch(recipe, train)
    assert (batch.rows, batch.target, *batch.sources.values()) == largest


def test_the_largest_batch_of_a_sample_is_about_that_of_all() -> None:
    train = load_data(recipe_of(RECURRENT), []).train
    assert train is not None
    few = np.arange(0, len(train), 10)
    of_all, of_few = (
        largest_of_pairs(train, 1000),
        largest_of_pairs(train.keep(few), 1000, len(few) / len(train)),
    )
    positions = [
        size.rows * (size.target + sum(size.sources.values())) for size in (of_all, of_few)
    ]
    assert positions[1] == pytest.approx(positions[0], rel=0.2)


def test_without_data_every_side_is_as_long_as_it_may_be() -> None:
    data = (
        "{parallel: {train: {source: a, target: b}, val: {source: a, target: b}}, max_length: 50}"
    )
    assert largest_batch(recipe_of(RECURRENT, data)) == (20, 50, {"source": 50})
    assert largest_batch(recipe_of(RECURRENT, data, "training.accumulate=3")).rows == 7
    assert largest_batch(recipe_of(RECURRENT, data, "model.output={length: 1}")) == (
        500,
        2,
        {"source": 50},
    )
    data = "{text: {train: a, val: b}}"
    assert largest_batch(
        recipe_of("{width: 8, decoder: [{rnn: gru}]}", data, "training.window=20")
    ) == (50, 20, {})


@pytest.mark.slow
def test_a_trial_trains_in_memory(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tiny(
        "training.accumulate=2",
        "training.max_epochs=3",
        "training.max_steps=null",
        "trainer.accelerator=cpu",
    )
    Path("tiny.yaml").write_text(recipe.dump())
    before = {*tmp_path.rglob("*")}
    with pytest.raises(SystemExit) as ended:
        main.main(["plan", "tiny.yaml", "--time", "--json"])
    assert ended.value.code == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {*tmp_path.rglob("*")} == before
    trial, memory = plan["trial"], plan["training"]
    assert (plan["at_most"], plan["vocabularies"]) == (False, trial["vocabularies"])
    assert memory["bytes"] == memory["weight_bytes"] + memory["activation_bytes"]
    assert trial["peak_bytes"] == pytest.approx(memory["bytes"], rel=0.2)
    result = composer.train(recipe, tmp_path / "run")
    assert plan["parameters"] == result.record.parameters
    assert trial["steps_per_epoch"] * 3 == result.record.steps
    assert trial["budget_minutes"] == pytest.approx(3 * trial["minutes_per_epoch"])
    assert (
        trial["tokens_per_second"]
        > trial["steps_per_second"]
        == pytest.approx(STEPS / trial["seconds"])
    )


@pytest.mark.parametrize(("mode", "has_cells"), [(2, True), (3, False)])
def test_the_fake_of_cudnns_gradients_has_the_shapes_of_its_layers(
    mode: int, has_cells: bool
) -> None:
    x, h = torch.empty(5, 3, 7, device="meta"), torch.empty(1, 3, 4, device="meta")
    cell = h if has_cells else None
    weights = [torch.empty(16, size, device="meta") for size in (7, 4)]
    rest = (mode, 4, 0, 1, False, 0.0, True, False, [], None)
    y, *_, reserve, _ = torch.ops.aten._cudnn_rnn.default(x, weights, 2, None, h, cell, *rest)
    backward = FAKES[torch.ops.aten._cudnn_rnn_backward.default]
    of_x, of_h, _, of_weights = backward(
        x, weights, 2, reserve, h, cell, y, y, None, None, *rest, reserve, [True] * 4
    )
    assert [of_x.shape, of_h.shape] == [x.shape, h.shape]
    assert [one.shape for one in of_weights] == [one.shape for one in weights]

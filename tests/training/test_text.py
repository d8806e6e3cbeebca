"""Language models trained on a text: states that go from window to window, and what they are
measured by.
"""

from __future__ import annotations

import copy
import html
import math
import os
import re
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import composer.data.windows
import composer.training.module
from composer.data.encoding import load_data
from composer.errors import ComposerError, DataError
from composer.evaluation.scores import evaluate
from composer.inference.run import open_run
from composer.metrics.table import score_entry
from composer.model.special_tokens import PAD
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, read_checkpoint, read_metrics
from composer.training.carried_state import join_streams, redistribute_state
from composer.training.datamodule import RecipeDataModule
from composer.training.module import Seq2SeqModule
from composer.training.preflight import check_recipe
from composer.training.train import train
from composer.viz.report import report
from tests.training.interruptions import killed_at_step
from tests.training.tiny_recipes import same_weights

RECIPE: dict[str, Any] = {
    "recipe": 1,
    "name": "text",
    "data": {
        "text": {"train": "train.txt", "val": "val.txt", "test": "val.txt"},
        "tokenizer": {"word": {}},
    },
    "model": {"width": 8, "dropout": 0.1, "decoder": ["rnn", "dropout"]},
    "training": {
        "window": 5,
        "carry": True,
        "tokens_per_batch": 30,
        "max_steps": 12,
        "validate_every": 6,
    },
    "logging": {"wandb": False},
}


def test_a_validation_in_another_alphabet_is_no_overfitting(
    text: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = "of the validation's tokens are unknown to the tokenizer"
    for name, letters, share in (("same", "ab", 0.0), ("other", "жя", 1.0)):
        lines = "".join(f"{letters[row % 2]} {letters[row % 3 % 2]}\n" for row in range(120))
        (tmp_path / "val.txt").write_text(lines, encoding="utf-8")
        run = train(text(), run=tmp_path / name).run_dir
        assert RunDir(run).read().data.val_unknown == share
        assert (unknown in capsys.readouterr().out) == (share > 0)
        page = report(run, output=tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert (unknown in html.unescape(page)) == (share > 0)


@pytest.fixture
def text(tmp_path: Path) -> Any:
    """Writes a recipe on lines of two words, each of which stays with probability 0.9; returns it
    with overrides.
    """
    draw = np.random.default_rng(1)
    for name, lines in (("train", 60), ("val", 20)):
        changes = draw.random((lines, 8)) > 0.9
        words = np.cumsum(changes, axis=1) % 2
        (tmp_path / f"{name}.txt").write_text(
            "".join(" ".join("ab"[word] for word in row) + "\n" for row in words)
        )
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))

    def make(*overrides: str) -> Recipe:
        return load(tmp_path / "text.yaml", overrides)

    return make


@pytest.mark.parametrize(
    "overrides",
    [
        ("training.accumulate=2",),
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("training.carry=false",), marks=pytest.mark.slow),
    ],
)
def test_a_killed_training_on_a_text_resumes_bit_for_bit(
    text: Any, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    recipe = text(*overrides)
    train(recipe, tmp_path / "one")
    with killed_at_step(9):
        train(recipe, tmp_path / "two")
    train(recipe, tmp_path / "two", resume=True)
    assert same_weights(tmp_path / "one", tmp_path / "two")


def test_a_checkpoint_has_the_states_of_all_streams(text: Any, tmp_path: Path) -> None:
    train(text(), tmp_path / "run")
    checkpoint = read_checkpoint(next((tmp_path / "run" / "checkpoints").glob("step-*6.ckpt")))
    ((((hidden, cell),), _),) = [
        part["carried"] for part in checkpoint["callbacks"].values() if "carried" in part
    ]
    assert hidden.shape == cell.shape == (6, 8)


def test_scheduled_sampling_predicts_from_the_state_that_is_carried(
    text: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = text("training.scheduled_sampling={rate: 1}")
    module = Seq2SeqModule.from_recipe(recipe, RecipeDataModule(recipe).tokenizers).eval()
    monkeypatch.setattr(
        composer.training.module,
        "sample_decoder_inputs",
        lambda target, logits, rate, choose: logits,
    )
    ids = torch.tensor([[1, 4, 5, 5, 4, 4, 5, 4, 5, 5]])
    module.carry_on(ids[:, :5], window=0, streams=2)
    batch = {"sources": {}, "target_in": ids[:, 5:], "window": 1, "turn": 2}
    assert torch.allclose(
        module.decoder_input(batch, spent=1.0), module.model({}, ids)[:, 5:], atol=1e-6
    )


@pytest.mark.parametrize(("world", "turns"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_streams_are_dealt_and_joined_for_any_number_of_processes(world: int, turns: int) -> None:
    state = torch.arange(7.0)[:, None], (torch.arange(14.0).view(7, 2),)
    dealt = [
        redistribute_state(state, turns, rank, world, torch.device("cpu")) for rank in range(world)
    ]
    assert sorted(part[0].shape[0] for of_rank in dealt for part in of_rank.values())[-1] <= -(
        -7 // (world * turns)
    )
    joined = join_streams(dealt)
    assert joined is not None
    assert torch.equal(joined[0], state[0])
    assert torch.equal(joined[1][0], state[1][0])
    assert join_streams([{} for _ in range(world)]) is None


def test_the_scores_of_a_carried_text_are_those_of_the_text_in_one_piece(
    text: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(text(), tmp_path / "run")
    run = open_run(tmp_path / "run")
    data = load_data(run.recipe, run.folders(None), run.tokenizers, ["val"])
    tokens = torch.from_numpy(data.splits["val"].target.values.astype(np.int64))
    with torch.no_grad():
        run.model.eval()
        logits = run.model({}, torch.cat([torch.tensor([1]), tokens[:-1]])[None])[0]
    loss = float(torch.nn.functional.cross_entropy(logits, tokens))
    for size in (1, 7, 1000):
        monkeypatch.setattr(composer.data.windows, "READ_TOKENS", size)
        assert evaluate(run, "val")["val/loss"] == pytest.approx(loss, rel=1e-5)
    validated = [
        row["val/loss"]
        for row in read_metrics(tmp_path / "run" / "metrics.jsonl")
        if "val/loss" in row
    ]
    assert any(value == pytest.approx(loss, rel=1e-5) for value in validated)


def test_words_bytes_and_characters_are_measured_whatever_the_tokens_are(
    text: Any, tmp_path: Path
) -> None:
    lines = (tmp_path / "val.txt").read_text().splitlines()
    for name, kind in (("words", "word"), ("characters", "char")):
        train(text(f"data.tokenizer={kind}"), tmp_path / name)
        scores = evaluate(tmp_path / name, "val")
        tokens = sum(len(line.split()) if kind == "word" else len(line) for line in lines) + len(
            lines
        )
        nats = scores["val/loss"] * tokens
        words, characters = (
            sum(len(line.split()) + 1 for line in lines),
            sum(len(line) + 1 for line in lines),
        )
        assert scores["val/word_perplexity"] == pytest.approx(math.exp(nats / words))
        assert scores["val/bits_per_byte"] == pytest.approx(nats / characters / math.log(2))
        assert scores["val/bits_per_character"] == scores["val/bits_per_byte"]
        assert (
            scores["val/perplexity_low"] < scores["val/perplexity"] < scores["val/perplexity_high"]
        )
        assert scores["val/unknown_share"] == 0
        figures = [key for key, value in scores.items() if isinstance(value, float)]
        assert [
            key for key in figures if (entry := score_entry(key)) is None or not entry.meaning
        ] == []


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.carry=false", "evaluation.stride=2"),
        ("training.carry=false", "training.window=null"),
        ("data.text.val={some: val.txt, more: train.txt}",),
    ],
)
def test_a_validation_measures_words_and_bytes_as_an_evaluation_does(
    text: Any, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    train(
        text("training.early_stopping={metric: val/bits_per_byte, goal: 100}", *overrides),
        tmp_path / "run",
    )
    *_, last = [
        row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "val/loss" in row
    ]
    assert last["step"] == 6
    scores = evaluate(tmp_path / "run", "val")
    for name in ("word_perplexity", "bits_per_byte", "bits_per_character"):
        assert last[f"val/{name}"] == pytest.approx(scores[f"val/{name}"], rel=1e-4)


def test_of_a_part_of_a_text_no_words_are_measured(text: Any, tmp_path: Path) -> None:
    train(
        text("training.max_steps=1", "training.carry=false", "trainer.limit_val_batches=1"),
        tmp_path / "run",
    )
    validated = [
        row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "val/loss" in row
    ]
    assert [row for row in validated if "val/bits_per_byte" in row] == []


def test_a_model_comes_near_the_entropy_of_a_bigram_text(text: Any, tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    for name, count in (("train", 4000), ("val", 1000)):
        words = np.cumsum(draw.random(count) > 0.9) % 2
        (tmp_path / f"{name}.txt").write_text(" ".join("ab"[word] for word in words))
    sizes = (
        "training.window=20",
        "training.tokens_per_batch=200",
        "training.max_steps=200",
        "data.text.unit=file",
    )
    train(
        text(*sizes, "model.dropout=0", "training.optimizer={adam: {learning_rate: 0.02}}"),
        tmp_path / "run",
    )
    stays = words[1:] == words[:-1]
    # of the model that has drawn the text
    best = -np.where(stays, math.log(0.9), math.log(0.1)).mean()
    scores = evaluate(tmp_path / "run", "val")
    assert scores["val/loss"] == pytest.approx(best, rel=0.08)
    assert "val/perplexity_low" not in scores  # of one document


def test_windows_with_a_stride_read_what_is_before(text: Any, tmp_path: Path) -> None:
    train(text("training.carry=false"), tmp_path / "run")
    scores = {
        stride: evaluate(tmp_path / "run", "val", overrides=[f"evaluation.stride={stride}"])[
            "val/loss"
        ]
        for stride in (1, 5)
    }
    assert scores[5] == evaluate(tmp_path / "run", "val")["val/loss"]
    run = open_run(tmp_path / "run")
    tokens = (
        load_data(run.recipe, run.folders(None), run.tokenizers, ["val"])
        .splits["val"]
        .target.values
    )
    read, losses = [1, *tokens.tolist()], []
    with torch.no_grad():
        run.model.eval()
        for at, token in enumerate(tokens.tolist()):
            logits = run.model({}, torch.tensor([read[max(0, at - 4) : at + 1]]))[0, -1]
            losses.append(float(-logits.log_softmax(-1)[token]))
    assert scores[1] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize(
    "overrides", [(), ("training.carry=false",), ("training.carry=false", "training.window=null")]
)
def test_a_text_of_bits_is_measured_in_windows_too(
    text: Any, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    for name, lines in (("train", 10), ("val", 9)):
        (tmp_path / f"{name}.txt").write_text("01 10 11 00 01 10\n11 10\n" * lines)
    bits = (
        "data.tokenizer={bits: {size: 2}}",
        "model.output={kind: sigmoid}",
        "training.max_steps=2",
    )
    train(text(*bits, *overrides), tmp_path / "run")
    validated = [
        row["val/loss"]
        for row in read_metrics(tmp_path / "run" / "metrics.jsonl")
        if "val/loss" in row
    ]
    assert evaluate(tmp_path / "run", "val")["val/loss"] == pytest.approx(validated[-1], rel=1e-5)


def test_a_curriculum_of_windows_gives_one_warning(text: Any) -> None:
    (warning,) = check_recipe(text("training.curriculum={start: 3}"), any_machine=True).warnings
    assert (warning.path, warning.message[:26]) == (
        "training.curriculum",
        "all windows are equally lo",
    )


def test_files_of_a_text_are_there_as_often_as_they_weigh(text: Any, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("c c c\n" * 30)
    train_files = "{a: train.txt, b: {file: other.txt, weight: 3}}"
    for window, documents in (("null", "data.max_length=256"), ("5", "name=text")):
        settings = ("training.carry=false", f"training.window={window}", documents)
        recipe = text(f"data.text.train={train_files}", *settings)
        data = RecipeDataModule(recipe)
        counts = {"a": 0, "c": 0}
        for batch in data.split_loader("train"):
            words = data.tokenizers.decode(
                "target", [[token] for token in batch["target_out"].flatten().tolist()]
            )
            counts = {word: count + words.count(word) for word, count in counts.items()}
        assert counts["c"] == pytest.approx(270, abs=15)
        assert counts["a"] > 100


FAULTS = [
    ({"model.encoder": ["rnn"]}, "encoders", "model.encoder", "no source"),
    ({"training.window": None}, "missing", "training.carry", "from window to window"),
    ({"training.window": 50}, "value", "training.window", "no window of 50"),
    (
        {"training": {"window": 50, "tokens_per_batch": 30}},
        "value",
        "training.window",
        "no window of 50",
    ),
    ({"model.decoder": ["self_attention"]}, "conflict", "model.decoder[0]", "grows with the text"),
    (
        {"model.decoder": [{"residual": ["norm", "self_attention"]}]},
        "conflict",
        "model.decoder[0].residual[1]",
        "grows with",
    ),
    (
        {"model.decoder": [{"repeat": {"times": 2, "stack": [{"positions": "learned"}, "rnn"]}}]},
        "conflict",
        "model.decoder[0].repeat.stack[0].positions",
        "after the first 512 would be",
    ),
    (
        {"training.carry": False, "evaluation": {"stride": 6}},
        "value",
        "evaluation.stride",
        "no more can be measured",
    ),
    (
        {
            "training.early_stopping": {"metric": "val/bits_per_byte"},
            "trainer": {"limit_val_batches": 1},
        },
        "metric",
        "training.early_stopping.metric",
        "leaves out words",
    ),
    ({"model.output": {"length": 8}}, "conflict", "model.output.length", "of a fixed length"),
    (
        {"data.text.train": {"source": "train.txt", "target": "train.txt"}},
        "pairs",
        "data.text.train",
        "one text",
    ),
    (
        {"data.text.train": {"a": {"file": "train.txt", "weight": 2}}},
        "unused",
        "data.text.train.a.weight",
        "read once",
    ),
]


@pytest.mark.parametrize(("changes", "code", "path", "message"), FAULTS)
def test_what_does_not_go_with_a_text_is_refused_at_its_place(
    text: Any, tmp_path: Path, changes: dict[str, Any], code: str, path: str, message: str
) -> None:
    sections = copy.deepcopy(RECIPE)
    for key, value in changes.items():
        *above, last = key.split(".")
        reduce(dict.__getitem__, above, sections)[last] = value
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(sections, sort_keys=False))
    with pytest.raises(ComposerError) as raised:
        check_recipe(text())
    assert [(fault.code, fault.path) for fault in raised.value.faults] == [(code, path)]
    assert message in raised.value.faults[0].message


BY_DOCUMENT = ("training.window=null", "training.carry=false")


@pytest.mark.parametrize(
    "check", [check_recipe, lambda recipe: load_data(recipe, recipe.folders(None))]
)
def test_documents_of_another_length_than_the_output_are_refused(
    text: Any, tmp_path: Path, check: Any
) -> None:
    check(text(*BY_DOCUMENT, "model.output.length=8"))
    (tmp_path / "val.txt").write_text("a b a b a b a b\na b\n")
    with pytest.raises(ComposerError) as raised:
        check(text(*BY_DOCUMENT, "model.output.length=8"))
    assert [(fault.code, fault.path) for fault in raised.value.faults] == [
        ("length", "model.output.length")
    ]
    assert {
        re.search("line 2 of .* has 2: `a b`", fault.message) is None
        for fault in raised.value.faults
    } == {False}


def test_a_text_of_which_no_token_is_known_is_refused(text: Any) -> None:
    with pytest.raises(ComposerError, match="`word` knows no token of train target") as raised:
        check_recipe(text("data.tokenizer={word: {min_count: 1000}}"))
    assert [fault.hint for fault in raised.value.faults] == ["lower its `min_count`"]


def test_files_that_no_model_of_the_run_could_write_are_not_evaluated(
    text: Any, tmp_path: Path
) -> None:
    train(text(*BY_DOCUMENT, "model.output.length=8", "training.max_steps=1"), tmp_path / "run")
    for lines, message in (
        ("a b\n", "that of line 1 of .* has 2"),
        ("\n \n", "none of the 2 documents of .* has text"),
        ("", "other.txt` is empty"),
    ):
        (tmp_path / "other.txt").write_text(lines)
        with pytest.raises(ComposerError, match=message):
            evaluate(tmp_path / "run", targets=[tmp_path / "other.txt"])
    os.mkfifo(tmp_path / "fifo")  # reading it would wait for a writer
    with pytest.raises(DataError) as raised:
        evaluate(
            tmp_path / "run", targets=[tmp_path / name for name in ("othr.txt", "fifo", "run")]
        )
    hints = [fault.hint for fault in raised.value.faults]
    assert hints == ["name an ordinary file", f"write `{tmp_path / 'other.txt'}`", "name a file"]


def test_self_attention_that_sees_a_window_is_carried(text: Any, tmp_path: Path) -> None:
    train(
        text("model.decoder=[{residual: [{self_attention: {heads: 2, window: 6}}]}]"),
        tmp_path / "run",
    )
    assert evaluate(tmp_path / "run")["test/perplexity"] < 10


HEADS = (
    "sampled: {samples: 2}",
    "adaptive: {cutoffs: [4], div_value: 2}",
    "cnn: {samples: 2}",
    "char_lstm: 8",
)


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_trains_on_its_own_cost_in_carried_windows(
    text: Any, tmp_path: Path, kind: str
) -> None:
    longer = (
        "training.optimizer={adam: {learning_rate: 0.02}}",
        "training.max_steps=40",
        "training.validate_every=40",
    )
    train(text(f"model.output.kind={{{kind}}}", *longer), tmp_path / "run")
    # of three tokens that are equally probable
    assert evaluate(tmp_path / "run")["test/perplexity"] < 3


def test_a_text_without_windows_is_trained_on_by_documents(text: Any, tmp_path: Path) -> None:
    recipe = text("training.window=null", "training.carry=false")
    assert not check_recipe(recipe).warnings
    train(recipe, tmp_path / "run")
    data = load_data(recipe, recipe.folders(None), wanted=["train"])
    assert data.splits["train"].target.outputs(np.arange(3)).tolist()[0][-1] != PAD

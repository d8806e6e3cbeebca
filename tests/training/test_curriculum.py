"""Short pairs first, fresh pairs in every epoch, and pairs that no search could answer."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from composer.data.encoding import load_data
from composer.data.epochs import EpochCorpus, training_corpus
from composer.data.ids import Encoded, Ids
from composer.data.sampler import ResumableBatchSampler, TrainBatchSampler
from composer.errors import DataError, RecipeError
from composer.recipe import sections
from composer.run_dir import RunDir, read_metrics
from composer.training.callback import TrainingLoopCallback
from composer.training.datamodule import Curriculum
from composer.training.module import Seq2SeqModule, count_wrong_rows
from composer.training.train import train
from tests.training.interruptions import killed_in_batch
from tests.training.tiny_recipes import Tiny, same_weights

ROOT = Path(__file__).parents[2]
SETTINGS = sections.Curriculum(start=3, step=2, error=0.5, beyond=0.0)
RISING = (
    "training.curriculum={start: 1, step: 1, error: 1.0, beyond: 0.1}",
    "data.tokenizer={word: {split: spaces, joint: true}}",
    "data.generate.reverse={symbols: 3, min_length: 1, max_length: 5, train: 90, val: 9, test: 1}",
    "training.validate_every=null",
    "training.max_steps=null",
    "training.max_epochs=6",
    "training.tokens_per_batch=40",
    "training.optimizer.adam.learning_rate=0.05",
    "decoding={greedy: {max_length: 5}}",
)
"""What the tiny recipe says to have a curriculum whose level rises though little is learned."""


def pairs(*lengths: int, target: int = 1) -> Encoded:
    """Pairs whose sources have so many tokens."""
    source, answer = (
        [[[7] * length for length in item]] for item in (lengths, [target] * len(lengths))
    )
    return Encoded(
        {"source": Ids.of(source, 9)},
        Ids.of(answer, 9),
        [""] * len(lengths),
        np.arange(len(lengths)),
    )


def curriculum(seed: int = 1, **changes: Any) -> Curriculum:
    return Curriculum(replace(SETTINGS, **changes), seed)


# ------------------------------------------------------------------------------------------- levels


def levels_after(errors: list[float], longest: int = 99) -> list[int]:
    """The levels where so many of a hundred graded pairs were wrong in each epoch."""
    result, every = curriculum(), pairs(1, longest)
    for error in errors:
        result.count({"wrong": 100 * error, "graded": 100.0})
        assert result.finish(every) == pytest.approx(error)
    return result.levels


def test_the_level_rises_after_a_mastered_epoch() -> None:
    assert levels_after([]) == [3, 3]
    assert levels_after([0.9, 0.9]) == [3, 3, 3, 3]
    assert levels_after([0.4]) == [3, 3, 5]
    # the second of them was at a level that is left already
    assert levels_after([0.4, 0.4]) == [3, 3, 5, 5]
    assert levels_after([0.4, 0.4, 0.4]) == [3, 3, 5, 5, 7]
    assert levels_after([0.4, 0.0, 0.9, 0.4, 0.9]) == [3, 3, 5, 5, 5, 7, 7]
    assert levels_after([0.5]) == [3, 3, 3]  # not below


def test_the_level_does_not_depend_on_the_error_of_the_previous_epoch() -> None:
    for error in (0.0, 1.0):
        assert levels_after([0.4, 1.0, error])[:4] == levels_after([0.4, 1.0])


def test_the_level_stops_where_no_pair_is_longer() -> None:
    assert levels_after([0.0] * 9, longest=6) == [3, 3, 5, 5, 7, 7, 7, 7, 7, 7, 7]


def test_an_epoch_without_grades_is_not_mastered() -> None:
    result = curriculum()
    assert np.isnan(result.finish(pairs(1, 9)))
    assert result.levels == [3, 3, 3]


def test_a_curriculum_resumes_from_its_state() -> None:
    result, again = curriculum(), curriculum()
    result.count({"wrong": 1.0, "graded": 9.0})
    result.finish(pairs(1, 9))
    result.count({"wrong": 3.0, "graded": 7.0})
    again.load_state_dict(result.state_dict())
    assert again.levels == result.levels == [3, 3, 5]
    assert again.finish(pairs(1, 9)) == result.finish(pairs(1, 9)) == pytest.approx(3 / 7)


# ------------------------------------------------------------------------------------------- pairs
# of an epoch


def test_an_epoch_has_the_pairs_within_its_level_and_grades_the_longest() -> None:
    rows, graded = curriculum().choose(pairs(1, 4, 3, 2, 9, 0), 0)
    assert rows.tolist() == [0, 2, 3, 5]
    assert graded.tolist() == [False, False, True, True, False, False]
    _, graded = curriculum(step=1).choose(pairs(1, 9, 2, 2), 0)  # none has 3
    assert graded.tolist() == [False, False, True, True]


def test_the_shortest_pairs_are_selected_if_none_is_short_enough() -> None:
    rows, graded = curriculum().choose(pairs(8, 5, 6, 5), 0)
    assert rows.tolist() == [1, 3]
    assert graded.tolist() == [False, True, False, True]


def test_longer_pairs_are_sampled_in_every_epoch_and_not_graded() -> None:
    encoded, result = pairs(*[3] * 10, *[4] * 4000), curriculum(beyond=0.25)
    (first, graded), (second, _) = result.choose(encoded, 0), result.choose(encoded, 1)
    assert (first[:10].tolist(), int(graded.sum())) == (list(range(10)), 10)
    assert len(first) - 10 == pytest.approx(1000, abs=140)  # five standard deviations
    assert first.tolist() != second.tolist()
    assert (
        result.choose(encoded, 0).rows.tolist()
        == curriculum(beyond=0.25).choose(encoded, 0).rows.tolist()
    )
    assert curriculum(beyond=0.25, seed=2).choose(encoded, 0).rows.tolist() != first.tolist()
    assert len(curriculum(beyond=1.0).choose(encoded, 0).rows) == len(encoded)


def test_curriculum_by_selects_the_side() -> None:
    one, other, target = (pairs(*lengths).sources["source"] for lengths in ((1, 5), (2, 4), (9, 0)))
    several = Encoded({"one": one, "other": other}, target, ["", ""], np.arange(2))
    assert several.lengths().tolist() == [2, 5]
    assert several.lengths("other").tolist() == [2, 4]
    assert several.lengths("target").tolist() == [9, 0]
    assert Encoded({}, target, ["", ""], np.arange(2)).lengths().tolist() == [9, 0]


def test_an_unknown_side_is_refused_at_its_place(tiny: Tiny) -> None:
    with pytest.raises(RecipeError, match="no side called `sorce`; did you mean `source`"):
        tiny("training.curriculum={by: sorce}")


def test_rows_with_a_wrong_token_are_counted_by_hand() -> None:
    target = torch.tensor([[5, 2, 0], [5, 4, 2], [4, 2, 0], [0, 0, 0]])
    said = torch.tensor([[5, 2, 9], [5, 5, 2], [5, 2, 0], [1, 1, 1]])
    logits = torch.nn.functional.one_hot(said, 10).float()
    for graded, wrong in (([True] * 4, 2), ([True, True, False, False], 1), ([False] * 4, 0)):
        result = count_wrong_rows(logits, target, torch.tensor(graded))
        assert (int(result["wrong"]), int(result["graded"])) == (wrong, sum(graded))


# ------------------------------------------------------------------------------------------- epochs
# that differ


def fresh(epoch: int) -> Encoded:
    draw = np.random.default_rng(epoch)
    return pairs(*draw.integers(1, 9, 40 + 30 * (epoch % 3)).tolist(), target=3)


def order_of(**changes: Any) -> TrainBatchSampler:
    corpus = EpochCorpus(fresh)
    return TrainBatchSampler(corpus, **{"tokens_per_batch": 40, "seed": 1, **changes})


def place_of(share: Any) -> tuple[int, list[int]]:
    return share.epoch, share.rows.tolist()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_epochs_of_different_lengths_follow_one_another(accumulate: int) -> None:
    whole = []
    for epoch in range(4):
        order = order_of(accumulate=accumulate)
        order.set_epoch(epoch)
        assert len(order) == order.slices_in(epoch) == len(list(order))
        assert sorted(row for item in order.batches() for row in item) == list(
            range(len(fresh(epoch)))
        )
        whole += [place_of(share) for share in order]
    counts = [sum(epoch == item for item, _ in whole) for epoch in range(4)]
    assert len(set(counts)) > 1
    endless = ResumableBatchSampler(order_of(accumulate=accumulate))
    shares = iter(endless)
    ahead = place_of(next(shares))
    for at, expected in enumerate(whole[:-1]):
        now, ahead = ahead, place_of(next(shares))
        assert now == expected
        assert endless.epoch == now[0]
        assert endless.epochs() == pytest.approx(
            endless.epoch + (at - sum(counts[: endless.epoch])) / counts[now[0]]
        )
        again = ResumableBatchSampler(order_of(accumulate=accumulate))
        again.epoch, again.done = endless.epoch, endless.done
        assert place_of(next(iter(again))) == expected
        assert endless.advance() == (ahead[0] != now[0])


def test_pairs_of_an_epoch_are_generated_once() -> None:
    made: list[int] = []

    def counted(epoch: int) -> Encoded:
        made.append(epoch)
        return fresh(epoch)

    endless = ResumableBatchSampler(
        TrainBatchSampler(EpochCorpus(counted), tokens_per_batch=40, seed=1)
    )
    shares = iter(endless)
    next(shares)
    while endless.epoch < 3:
        next(shares)
        if endless.advance():
            endless.pairs_of(endless.epoch - 1)
        endless.epochs()
    assert made == [0, 1, 2, 3]


def test_an_endless_task_is_trained_on_fresh_pairs(tiny: Tiny) -> None:
    recipe = tiny("data.generate.reverse.endless=true", "data.max_length=6")
    data = load_data(recipe, [])
    assert data.train is not None
    corpus = training_corpus(
        recipe, data.train, data.tokenizers, lambda encoded: encoded.lengths() > 2
    )
    assert corpus.of_epoch(0) is data.train
    kept = corpus.of_epoch(2)
    expected = [
        line
        for line in recipe.data.generate.generate("train", 2)[0]
        if 2 < len(data.tokenizers.encode("source", [line])[0]) <= 5
    ]
    assert 0 < len(expected) < 90
    assert (
        data.tokenizers.decode(
            "source", [list(kept.sources["source"][row]) for row in range(len(kept))]
        )
        == expected
    )
    empty = training_corpus(
        recipe, data.train, data.tokenizers, lambda encoded: encoded.lengths() > 99
    )
    assert empty.of_epoch(2) is data.train, (
        "an epoch of which nothing is left has the pairs of the first"
    )
    same = tiny("data.generate.reverse.endless=false")
    assert (
        training_corpus(same, data.train, data.tokenizers, lambda encoded: encoded.lengths() > 2)
        is data.train
    )


# -------------------------------------------------------------------------------------------
# trainings


Seen = list[tuple[int, int, int, int]]
"""Of every row that was trained on: the epoch, the source's length, whether it was graded, whether
it was wrong.
"""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Watches trainings, and counts mistakes by another way than they do."""
    result: Seen = []
    epochs: list[int] = []

    def watched(
        logits: torch.Tensor, target: torch.Tensor, graded: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        for said, wanted, counts in zip(
            logits.tolist(), target.tolist(), graded.tolist(), strict=True
        ):
            best = [int(np.argmax(scores)) for scores in said]
            wrong = any(one != other for one, other in zip(best, wanted, strict=True) if other != 0)
            result.append(
                (epochs[-1], sum(item != 0 for item in wanted) - 1, int(counts), int(wrong))
            )
        return count_wrong_rows(logits, target, graded)

    def step(self: Seq2SeqModule, batch: Any, number: int) -> torch.Tensor:
        (course,) = (
            item for item in self.trainer.callbacks if isinstance(item, TrainingLoopCallback)
        )
        epochs.append(course.sampler.epoch)
        return trains(self, batch, number)

    trains = Seq2SeqModule.training_step
    monkeypatch.setattr("composer.training.module.count_wrong_rows", watched)
    monkeypatch.setattr(Seq2SeqModule, "training_step", step)
    return result


@pytest.mark.parametrize("endless", ["true", "false"])
def test_the_pairs_of_the_level_are_trained_on_and_graded(
    tiny: Tiny, tmp_path: Path, seen: Seen, endless: str
) -> None:
    overrides = [
        "training.curriculum.beyond=0",
        "training.seed=2",
        f"data.generate.reverse.endless={endless}",
    ]
    train(tiny(*RISING, *overrides), tmp_path / "run")
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    ends = [row for row in rows if "train/sequence_error" in row]
    assert len(ends) == 6
    assert {row["train/level"] for row in rows if "train/loss" in row} == {
        row["train/level"] for row in ends
    }
    assert len({row["train/level"] for row in ends}) > 2
    for epoch, row in enumerate(ends):
        lengths = [length for item, length, _, _ in seen if item == epoch]
        assert max(lengths) <= row["train/level"]
        graded = [wrong for item, _, counts, wrong in seen if item == epoch and counts]
        assert len(graded) == lengths.count(max(lengths))
        assert row["train/sequence_error"] == pytest.approx(sum(graded) / len(graded))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [(), ("training.accumulate=2",), ("data.generate.reverse.endless=false",)]
)
def test_a_killed_curriculum_resumes_bit_for_bit(
    tiny: Tiny, tmp_path: Path, changes: tuple[str, ...]
) -> None:
    recipe = tiny(*RISING, "training.validate_every=3", *changes)
    train(recipe, tmp_path / "whole")
    with killed_in_batch(11):
        train(recipe, tmp_path / "cut")
    train(recipe, tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    output = ("step", "epoch", "train/loss", "val/loss", "train/level", "train/sequence_error")
    one, other = (
        [
            [row.get(name) for name in output]
            for row in read_metrics(tmp_path / run / "metrics.jsonl")
        ]
        for run in ("whole", "cut")
    )
    assert one == other
    assert len({row[4] for row in one} - {None}) > 1


@pytest.mark.slow
def test_two_processes_have_the_curriculum_of_one(tiny: Tiny, tmp_path: Path) -> None:
    # Adam would make a step of the noise in a gradient that is zero
    same = (
        *RISING,
        "training.optimizer=sgd",
        "model.dropout=0",
        "data.generate.reverse.endless=true",
    )
    train(tiny(*same), tmp_path / "one")
    two = "trainer={accelerator: cpu, devices: 2, strategy: ddp}"
    command = [
        sys.executable,
        "-m",
        "composer.cli.main",
        "train",
        str(tmp_path / "recipes" / "tiny.yaml"),
        *same,
        two,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--run", str(tmp_path / "two")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=1e-5, rtol=1e-4)
    rows, others = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert len({row["train/level"] for row in rows if "train/level" in row}) > 1
    for row, also in zip(rows, others, strict=True):
        for name in ("step", "epoch", "train/loss", "train/level", "train/sequence_error"):
            assert row.get(name, 0) == pytest.approx(also.get(name, 0), rel=1e-4)


def test_a_language_model_has_a_curriculum_over_its_target(
    tiny: Tiny, tmp_path: Path, seen: Seen
) -> None:
    alone = "model={width: 8, decoder: [{rnn: {cell: gru}}]}"
    train(
        tiny(*RISING, "training.curriculum.beyond=0", "training.max_epochs=1", alone),
        tmp_path / "run",
    )
    assert max(length for _, length, _, _ in seen) == 1


# -------------------------------------------------------------------------------------------
# answers without room


ENCODER = "[{grid: {columns: 2, max_length_ratio: 1.5}}, cgru, select_column]"
NEURAL_GPU = f"model={{width: 8, encoder: {ENCODER}, decoder: [source_state]}}"


def told_to_train(tiny: Tiny, folder: Path, lines: list[tuple[str, str]]) -> Any:
    for side, texts in zip(("a", "b"), zip(*lines, strict=True), strict=True):
        (folder / f"{side}.txt").write_text("".join(f"{text}\n" for text in texts))
    data = (
        "data={parallel: {train: {source: a.txt, target: b.txt}}, tokenizer: {char: {joint: true}}}"
    )
    recipe = tiny(data, NEURAL_GPU, "training.max_steps=2", "training.validate_every=null")
    train(recipe, folder / "run", data=folder)
    return RunDir(folder / "run").read().data


def test_pairs_whose_answers_have_no_room_are_left_out(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # of 6, 6, 5, 5 tokens at most
    lines = [("abc", "abcab"), ("abc", "abcabc"), ("ab", "abab"), ("ab", "ababa")]
    assert told_to_train(tiny, tmp_path, lines).train_pairs_used == 2
    assert (
        "left out 2 of 4 training pairs whose answer is longer than 1.5 times its source"
        in capsys.readouterr().out
    )


def test_no_pair_with_room_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training pairs are left"):
        told_to_train(tiny, tmp_path, [("ab", "ababa")])
    assert not (tmp_path / "run").exists()


def test_without_a_curriculum_every_pair_is_selected() -> None:
    plan = TrainBatchSampler(pairs(3, 4), tokens_per_batch=10, seed=1).plan(7)
    assert (plan.selected.rows.tolist(), plan.selected.graded) == ([0, 1], None)

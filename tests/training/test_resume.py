"""A training that was stopped anywhere ends as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_recipes import Tiny, same_weights

from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.training.course import Course
from composer.training.metrics_log import read_rows
from composer.training.train import train

METRICS = ("train/loss", "val/loss", "val/bleu", "train/learning_rate")


class Killed(BaseException):
    """What a kill is to the code that is running."""


@pytest.fixture
def killed_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the training end abruptly when this many batches are behind, once."""
    left = [0]
    real = Course.on_train_batch_end

    def dies(self: Course, *given: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        real(self, *given)

    monkeypatch.setattr(Course, "on_train_batch_end", dies)
    return lambda batches: left.__setitem__(0, batches)


def values(run: Path) -> list[tuple[int, str, float]]:
    rows = read_rows(run / "metrics.jsonl")
    return [(row["step"], name, row[name]) for row in rows for name in METRICS if name in row]


@pytest.mark.parametrize(
    ("overrides", "cuts"),
    [
        ((), (3, 7, 2)),
        (("training.validate_every=null", "training.max_steps=null", "training.max_epochs=3"), (5, 9)),
        (("training.accumulate=2", "training.average_checkpoints=2"), (13,)),
        (("training.schedule=plateau", "training.validate_every=2", "model.dropout=0.5"), (6,)),
    ],
)
def test_a_killed_training_ends_as_if_it_had_not_been(
    tiny: Tiny, tmp_path: Path, killed_after: Any, overrides: tuple[str, ...], cuts: tuple[int, ...]
) -> None:
    recipe = tiny(*overrides)
    train(recipe, tmp_path / "whole")
    for cut in cuts:
        killed_after(cut)
        with pytest.raises(Killed):
            train(recipe, tmp_path / "cut", resume=True)
    outcome = train(recipe, tmp_path / "cut", resume=True)
    assert outcome.record["status"] == "finished"
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert values(tmp_path / "whole") == values(tmp_path / "cut")


def test_a_finished_run_is_left_alone(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny("training.max_steps=2"), tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    train(tiny("training.max_steps=2"), tmp_path / "run", resume=True)
    assert "finished already" in capsys.readouterr().out
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_folder_with_something_in_it_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="--resume"):
        train(tiny(), tmp_path / "run")
    with pytest.raises(RunError, match=r"run\.json"):
        train(tiny(), tmp_path / "run", resume=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_another_recipe_is_refused(tiny: Tiny, tmp_path: Path, killed_after: Any) -> None:
    killed_after(5)
    with pytest.raises(Killed):
        train(tiny(), tmp_path / "run")
    with pytest.raises(RunError, match=r"model\.width. was 8 and is 16"):
        train(tiny("model.width=16"), tmp_path / "run", resume=True)


def test_a_damaged_checkpoint_is_passed_over(
    tiny: Tiny, tmp_path: Path, killed_after: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny(), tmp_path / "whole")
    killed_after(10)
    with pytest.raises(Killed):
        train(tiny(), tmp_path / "cut")
    newest = tmp_path / "cut" / "checkpoints" / "step-00000008.ckpt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    train(tiny(), tmp_path / "cut", resume=True)
    assert "is damaged and is passed over" in capsys.readouterr().out
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


def test_another_tokenizer_is_refused(tiny: Tiny, tmp_path: Path, killed_after: Any) -> None:
    killed_after(5)
    with pytest.raises(Killed):
        train(tiny(), tmp_path / "run")
    path = tmp_path / "run" / "tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": false', '"lowercase": true'))
    with pytest.raises(RunError, match="tokenizer"):
        train(tiny(), tmp_path / "run", resume=True)


def test_other_training_data_are_refused(tiny: Tiny, tmp_path: Path, killed_after: Any) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {number}\n" for number in range(40)))
    data = "data={parallel: {train: {source: a.txt, target: b.txt}}, tokenizer: {char: {joint: true}}}"
    killed_after(5)
    with pytest.raises(Killed):
        train(tiny(data), tmp_path / "run", data=tmp_path)
    (tmp_path / "b.txt").write_text("".join(f"a {number}\n" for number in range(40)))
    with pytest.raises(RunError, match="data have changed"):
        train(tiny(data), tmp_path / "run", resume=True)


def test_a_run_that_had_hardly_begun_begins_again(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny(), tmp_path / "whole")

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Tokenizers, "save", dies)
        with pytest.raises(Killed):
            train(tiny(), tmp_path / "cut")
    train(tiny(), tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")


def test_a_run_that_was_killed_at_its_very_end_is_concluded(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("composer.training.outcome.evaluate", dies)
        with pytest.raises(Killed):
            train(tiny(), tmp_path / "run")
    outcome = train(tiny(), tmp_path / "run", resume=True)
    assert outcome.record["status"] == "finished"
    assert outcome.record["steps"] == 12

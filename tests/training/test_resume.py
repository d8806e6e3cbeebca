"""A training that was stopped anywhere ends as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.atomic_io import sha256_of_file
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.evaluation.scores import evaluate
from composer.recipe.recipe import load
from composer.run_dir import RunDir, checkpoint_path, checksum_path, read_checkpoint, read_metrics
from composer.training.callback import TrainingLoopCallback
from composer.training.checkpointing import AtomicCheckpointIO
from composer.training.train import train
from tests.training.interruptions import Killed, die, killed_in_batch
from tests.training.tiny_recipes import EPOCHS, Tiny, Undisturbed, same_weights

METRICS = ("train/loss", "val/loss", "val/bleu", "train/learning_rate")


def values(run: Path) -> list[tuple[int, str, float]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [(row["step"], name, row[name]) for row in rows for name in METRICS if name in row]


@pytest.mark.parametrize(
    ("overrides", "cuts"),
    [
        ((), (3, 7)),
        ((*EPOCHS, "training.schedule={epoch_decay: {after: 1}}"), (12,)),
        (
            ("training.accumulate=2", "training.average_checkpoints=2", "training.max_steps=8"),
            (13,),
        ),
        (("training.schedule=plateau", "training.validate_every=2", "training.max_steps=8"), (6,)),
    ],
)
def test_a_killed_training_resumes_bit_for_bit(
    tiny: Tiny,
    tmp_path: Path,
    undisturbed: Undisturbed,
    overrides: tuple[str, ...],
    cuts: tuple[int, ...],
) -> None:
    recipe = tiny(*overrides)
    reference = undisturbed(recipe)
    for cut in cuts:
        with killed_in_batch(cut):
            train(recipe, tmp_path / "cut", resume=True)
    outcome = train(recipe, tmp_path / "cut", resume=True)
    assert outcome.record.status == "finished"
    assert same_weights(reference, tmp_path / "cut")
    assert values(reference) == values(tmp_path / "cut")


def test_a_finished_run_is_left_alone(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny("training.max_steps=2"), tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    train(tiny("training.max_steps=2"), tmp_path / "run", resume=True)
    assert "already finished" in capsys.readouterr().out
    with pytest.raises(
        RunError,
        match=(
            r"`training.seed` was 1 and is 4\n *fix: give training.seed=1 on the command line .*,"
            r" or .*`--from RUN`"
        ),
    ):
        train(tiny("training.max_steps=4", "training.seed=4"), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_folder_with_something_in_it_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="--resume"):
        train(tiny(), tmp_path / "run")
    with pytest.raises(RunError, match=r"run\.json"):
        train(tiny(), tmp_path / "run", resume=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_a_resume_without_the_first_overrides_names_them(tiny: Tiny, tmp_path: Path) -> None:
    recipe = tiny("training.max_steps=2", "training.clip_norm=2.5", "training.seed=9")
    train(recipe, tmp_path / "run")
    with pytest.raises(RunError) as raised:
        train(tiny("training.max_steps=2"), tmp_path / "run", resume=True)
    (fault,) = raised.value.faults
    assert "`training.clip_norm` was 2.5 and is 1.0" in fault.message
    overrides = (
        fault.hint.removeprefix("give ")
        .partition(" on the command line or in the recipe, or ")[0]
        .split()
    )
    assert (
        train(tiny("training.max_steps=2", *overrides), tmp_path / "run", resume=True).record.status
        == "finished"
    )


def test_an_edited_recipe_is_not_told_of_overrides_that_nobody_gave(
    tiny: Tiny, tmp_path: Path
) -> None:
    recipe = tiny("training.max_steps=1")
    file = tmp_path / "edited.yaml"
    file.write_text(recipe.dump(), encoding="utf-8")
    train(load(file), tmp_path / "run")
    file.write_text(tiny("training.max_steps=1", "training.clip_norm=2.5").dump(), encoding="utf-8")
    with pytest.raises(RunError) as raised:
        train(load(file), tmp_path / "run", resume=True)
    (fault,) = raised.value.faults
    assert fault.hint.startswith(
        "give training.clip_norm=1.0 on the command line or in the recipe, or resume with"
    )


def test_what_may_change_is_not_to_be_repeated(tiny: Tiny, tmp_path: Path) -> None:
    free = (
        "training.checkpoints_gib=0.06",
        "trainer.log_every_n_steps=3",
        "name=other",
        "training.max_steps=2",
    )
    train(tiny(*free, "training.ema={decay: 0.9}"), tmp_path / "run")
    with pytest.raises(RunError) as raised:
        train(tiny(), tmp_path / "run", resume=True)
    (fault,) = raised.value.faults
    assert fault.hint.startswith(
        "give 'training.ema={\"decay\": 0.9}' on the command line or in the recipe, or resume with"
        " its own recipe, "
    )
    assert "checkpoints_gib" not in fault.message
    assert train(tiny("training.ema={decay: 0.9}"), tmp_path / "run", resume=True).record.steps == 2


def test_another_recipe_is_refused(tiny: Tiny, cut: Path) -> None:
    with pytest.raises(RunError, match=r"model\.width. was 8 and is 16"):
        train(tiny("model.width=16"), cut, resume=True)


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half] ^= 1
    damaged = {"flipped": content, "half": content[:half], "empty": b""}
    if how in damaged:
        path.write_bytes(damaged[how])
    elif how == "no digest":
        checksum_path(path).unlink()
    else:
        checksum_path(path).write_bytes(b"\xff")


def test_damaged_checkpoints_are_skipped(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = ("flipped", "half", "empty", "no digest", "a digest that is none")
    recipe = tiny("training.validate_every=1", "training.checkpoints_gib=1", "training.max_steps=7")
    reference = undisturbed(recipe)
    with killed_in_batch(7):
        train(recipe, tmp_path / "cut")
    for step, how in enumerate(ways, start=2):
        damage(checkpoint_path(tmp_path / "cut" / "checkpoints", step), how)
    capsys.readouterr()
    train(recipe, tmp_path / "cut", resume=True)
    printed = capsys.readouterr().out
    assert all(
        f"step-0000000{step}.ckpt is damaged and is passed over" in printed for step in range(2, 7)
    )
    assert "step-00000001.ckpt" in printed.partition("resuming from")[2]
    assert same_weights(reference, tmp_path / "cut")
    assert values(reference) == values(tmp_path / "cut")


def test_without_an_intact_checkpoint_training_starts_over(
    tiny: Tiny, undisturbed: Undisturbed, cut: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(checkpoint_path(cut / "checkpoints", 4), "half")
    train(tiny(), cut, resume=True)
    assert "begins again from its first step" in capsys.readouterr().out
    assert same_weights(undisturbed(tiny()), cut)
    assert values(undisturbed(tiny())) == values(cut)


class Harmful:
    """What would run code where it is read."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> Any:
        return (Path.touch, (self.sign,))


CONTENTS: dict[str, dict[str, Any]] = {
    "other keys": {},
    "no weights": {"state_dict": {}},
    "no tensors": {"state_dict": None},
    "another optimizer": {"optimizer_states": [{"state": {}, "param_groups": []}]},
    "no position": {"loops": {}},
    "no version": {"pytorch-lightning_version": None},
}


@pytest.mark.parametrize("content", ["harmful", "text", "half", "a list", *CONTENTS])
def test_a_file_that_is_no_checkpoint_is_refused_and_not_executed(
    tiny: Tiny, cut: Path, content: str
) -> None:
    """Though its digest is right."""
    path = checkpoint_path(cut / "checkpoints", 4)
    intact, sign = read_checkpoint(path), cut / "ran"
    if content in ("text", "half"):
        path.write_bytes(
            b"no" if content == "text" else path.read_bytes()[: path.stat().st_size // 2]
        )
    else:
        others = {"harmful": intact | {"x": Harmful(sign)}, "a list": [1], "other keys": {"a": 1}}
        torch.save(others.get(content) or intact | CONTENTS[content], path)
    checksum_path(path).write_text(f"{sha256_of_file(path)}  {path.name}\n")
    with pytest.raises(RunError, match="no checkpoint of a training") as raised:
        train(tiny(), cut, resume=True)
    assert raised.value.faults[0].file == str(path)
    assert not sign.exists()


def test_an_error_of_our_own_after_the_checkpoint_is_read_is_no_fault_of_it(
    tiny: Tiny, cut: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(TrainingLoopCallback, "restore_streams", fails)
    with pytest.raises(RuntimeError, match="a bug") as raised:
        train(tiny(), cut, resume=True)
    assert not isinstance(raised.value, RunError)


def test_a_checkpoint_of_another_run_is_refused(
    tiny: Tiny, undisturbed: Undisturbed, cut: Path
) -> None:
    wide = undisturbed(tiny("model.width=16", "training.max_steps=4"))
    mine, other = (checkpoint_path(run / "checkpoints", 4) for run in (cut, wide))
    content = read_checkpoint(other)
    AtomicCheckpointIO().save_checkpoint(content, mine)
    with pytest.raises(
        RunError, match=r"made with another recipe: `model\.width` was 16 and is 8"
    ) as raised:
        train(tiny(), cut, resume=True)
    assert raised.value.faults[0].file == str(mine)
    texts = content["hyper_parameters"] | {"recipe": tiny().dump()}
    changed = texts | {
        "tokenizer": texts["tokenizer"].replace('"lowercase": false', '"lowercase": true')
    }
    assert changed != texts
    AtomicCheckpointIO().save_checkpoint(content | {"hyper_parameters": changed}, mine)
    with pytest.raises(RunError, match="made with another tokenizer"):
        train(tiny(), cut, resume=True)


def test_another_or_truncated_tokenizer_is_refused(
    tiny: Tiny, undisturbed: Undisturbed, cut: Path
) -> None:
    tokenizer = (cut / "tokenizer.json").read_text(encoding="utf-8")
    other = tokenizer.replace('"lowercase": false', '"lowercase": true')
    for content, message in (
        (other, "tokenizer"),
        (tokenizer[: len(tokenizer) // 2], "tokenizer cannot be read"),
    ):
        (cut / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(RunError, match=message):
            train(tiny(), cut, resume=True)
    (cut / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    recipe = (cut / "recipe.yaml").read_bytes()
    (cut / "recipe.yaml").write_bytes(recipe[: len(recipe) // 2])
    train(tiny(), cut, resume=True)
    assert (cut / "recipe.yaml").read_bytes() == recipe
    assert same_weights(undisturbed(tiny()), cut)


def test_a_run_from_other_weights_killed_at_once_resumes_from_them(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    recipe, other = tiny("training.max_steps=4"), undisturbed(tiny())
    train(recipe, tmp_path / "whole", start_from=other)
    with killed_in_batch(2):
        train(recipe, tmp_path / "cut", start_from=other)
    train(recipe, tmp_path / "cut", resume=True)
    assert same_weights(tmp_path / "whole", tmp_path / "cut")
    assert not same_weights(tmp_path / "whole", undisturbed(recipe))


def test_other_training_data_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {number}\n" for number in range(40)))
    data = (
        "data={parallel: {train: {source: a.txt, target: b.txt}}, tokenizer: {char: {joint: true}}}"
    )
    with killed_in_batch(5):
        train(tiny(data), tmp_path / "run", data=tmp_path)
    (tmp_path / "b.txt").write_text("".join(f"a {number}\n" for number in range(40)))
    with pytest.raises(RunError, match="data have changed"):
        train(tiny(data), tmp_path / "run", resume=True)


def test_data_that_have_moved_are_looked_up_where_the_last_training_read_them(
    tiny: Tiny, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    for name in ("a", "b"):
        (first / f"{name}.txt").write_text("".join(f"{name} {number}\n" for number in range(40)))
    split = "{source: a.txt, target: b.txt}"
    data = (
        f"data={{parallel: {{train: {split}, val: 5, test: 5}}, tokenizer: {{char: {{joint:"
        " true}}}"
    )
    with killed_in_batch(5):
        train(tiny(data), tmp_path / "run", data=first)
    first.rename(second)
    train(tiny(data), tmp_path / "run", resume=True, data=second)
    assert evaluate(tmp_path / "run")["test/measured"]["lines"] == 5
    assert str(first) not in RunDir(tmp_path / "run").read().data.folders


def test_a_run_killed_before_its_tokenizer_is_saved_starts_over(
    tiny: Tiny, tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = undisturbed(tiny())
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizers, "save", die)
        with pytest.raises(Killed):
            train(tiny(), tmp_path / "cut")
    train(tiny(), tmp_path / "cut", resume=True)
    assert same_weights(reference, tmp_path / "cut")


def test_a_run_killed_during_its_final_evaluation_is_finished(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("training.max_steps=2")
    with monkeypatch.context() as patch:
        patch.setattr("composer.training.finalize.evaluate_pairs", die)
        with pytest.raises(Killed):
            train(recipe, tmp_path / "run")
    outcome = train(recipe, tmp_path / "run", resume=True)
    assert outcome.record.status == "finished"
    assert outcome.record.steps == 2

"""Data files that change around a training, or in it: every time one clear error, and `--resume`
once they are back.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from composer.errors import ComposerError, DataError, RunError
from composer.recipe.recipe import Recipe
from composer.training.callback import TrainingLoopCallback
from composer.training.preflight import check_recipe
from composer.training.train import train
from tests.training.tiny_recipes import Tiny, Undisturbed, same_weights

DATA = (
    "data={parallel: {train: {source: a.txt, target: b.txt}, val: {source: c.txt, target: d.txt}}, "
    "tokenizer: {char: {joint: true}}}"
)
Happens = Callable[[Callable[[], object]], None]
SHORT = (DATA, "training.max_steps=4", "training.validate_every=2")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """The folder of the recipe, with its files."""
    for name in "abcd":
        (tmp_path / "recipes" / f"{name}.txt").write_text(
            "".join(f"{name} {number}\n" for number in range(40))
        )
    return tmp_path / "recipes"


@pytest.fixture
def at_step_3(monkeypatch: pytest.MonkeyPatch) -> Happens:
    """Has something happen in the middle of a training."""
    real = TrainingLoopCallback.on_train_batch_end

    def _at(happens: Callable[[], object]) -> None:
        def told(self: TrainingLoopCallback, *given: object) -> None:
            real(self, *given)  # type: ignore[arg-type]
            if self.progress.step == 3:
                happens()

        monkeypatch.setattr(TrainingLoopCallback, "on_train_batch_end", told)

    return _at


def test_a_file_removed_between_check_and_train_is_refused(
    tiny: Tiny, texts: Path, tmp_path: Path
) -> None:
    recipe: Recipe = tiny(*SHORT)
    check_recipe(recipe)
    (texts / "d.txt").unlink()
    with pytest.raises(ComposerError, match=r"no file `d\.txt`"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_emptied_during_training_is_an_error(
    tiny: Tiny, texts: Path, tmp_path: Path, undisturbed: Undisturbed, at_step_3: Happens
) -> None:
    recipe = tiny(*SHORT)
    reference = undisturbed(recipe)
    shutil.copy(texts / "d.txt", texts / "kept.txt")
    at_step_3(lambda: (texts / "d.txt").write_bytes(b""))
    with pytest.raises(DataError, match=r"d\.txt.*changed while it was in use"):
        train(recipe, tmp_path / "run")
    with pytest.raises(ComposerError, match=r"d\.txt.* is empty"):
        train(recipe, tmp_path / "run", resume=True)
    shutil.copy(texts / "kept.txt", texts / "d.txt")
    at_step_3(lambda: (texts / "d.txt").touch())
    assert train(recipe, tmp_path / "run", resume=True).record.status == "finished"
    assert same_weights(reference, tmp_path / "run")


@pytest.mark.parametrize(("name", "part"), [("b.txt", "training"), ("d.txt", "validation")])
def test_data_changed_since_the_checkpoint_are_refused(
    name: str,
    part: str,
    tiny: Tiny,
    texts: Path,
    tmp_path: Path,
    at_step_3: Happens,
) -> None:
    recipe = tiny(*SHORT)
    at_step_3(lambda: (texts / "c.txt").write_bytes(b""))  # ends it behind its first checkpoint
    kept = (texts / "c.txt").read_bytes()
    with pytest.raises(DataError):
        train(recipe, tmp_path / "run")
    (texts / "c.txt").write_bytes(kept)
    (texts / name).write_text("".join(f"a {number}\n" for number in range(40)))
    with pytest.raises(RunError, match=f"the {part} data have changed") as raised:
        train(recipe, tmp_path / "run", resume=True)
    names = {"training": ("a.txt", "b.txt"), "validation": ("c.txt", "d.txt")}[part]
    files = " and ".join(f"`{texts / file}`" for file in names)
    assert raised.value.faults[0].hint.startswith(f"restore {files}, or begin a new run")


def test_files_removed_during_training_stay_open(
    tiny: Tiny, texts: Path, tmp_path: Path, undisturbed: Undisturbed, at_step_3: Happens
) -> None:
    recipe = tiny(*SHORT)
    reference = undisturbed(recipe)
    at_step_3(lambda: shutil.rmtree(texts))
    assert train(recipe, tmp_path / "run").record.status == "finished"
    assert same_weights(reference, tmp_path / "run")

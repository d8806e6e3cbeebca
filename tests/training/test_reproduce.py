"""A run is reproduced from its own recipe, and the result says if its weights are equal."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from composer.atomic_io import sha256_of_file
from composer.data.tokenizer import Tokenizers
from composer.errors import ComposerError, RunError
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, read_metrics
from composer.runs.record import Budget
from composer.training import callback
from composer.training.callback import TrainingLoopCallback
from composer.training.reproduce import find_original_run
from composer.training.train import train
from tests.run_records import change_record
from tests.training.interruptions import killed_in_batch
from tests.training.tiny_recipes import same_weights

TEXT = """
recipe: 1
name: words
data:
  parallel:
    train: {source: train.en, target: train.de}
    val: {source: val.en, target: val.de}
  tokenizer: {unigram: {size: 320}}
model: {width: 8, dropout: 0.2, encoder: [rnn], decoder: [rnn, {residual: [{cross_attention: {heads: 2}}]}]}
training:
  max_steps: 4
  validate_every: 2
  tokens_per_batch: 300
  validation_sample: {lines: 1, decoding: {greedy: {max_length: 4}}}
decoding: {greedy: {max_length: 4}}
logging: {wandb: false}
"""


def write_text(folder: Path) -> None:
    """Some pairs: words, and the same words backwards."""
    folder.mkdir(parents=True)
    draw = random.Random(1)
    for split, count in (("train", 80), ("val", 3)):
        lines = [
            " ".join("".join(draw.choices("abcdefgh", k=5)) for _ in range(3)) for _ in range(count)
        ]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{split}.de").write_text("".join(f"{line[::-1]}\n" for line in lines))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `home/words.yaml`, `home/text/`, and the runs `runs/words` and `runs/later`,
    begun from it.
    """
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("trained")
    write_text(root / "home" / "text")
    (root / "home" / "words.yaml").write_text(TEXT)
    recipe = load(root / "home" / "words.yaml")
    train(recipe, root / "runs" / "words", data=root / "home" / "text")
    train(
        recipe,
        root / "runs" / "later",
        data=root / "home" / "text",
        start_from=root / "runs" / "words",
    )
    return root


@pytest.fixture
def there(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the two runs, whose data stay in place; in another working folder."""
    shutil.copytree(trained / "runs", tmp_path / "kept")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "kept"


def recipe_of(run: Path, *overrides: str) -> Recipe:
    return load(run / "recipe.yaml", overrides)


def change(run: Path, **changes: Any) -> None:
    change_record(RunDir(run), **changes)


def test_a_reproduction_ends_with_the_same_weights(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = train(recipe_of(there / "words"))
    assert outcome.run_dir == Path("runs/words-reproduction")
    assert same_weights(there / "words", outcome.run_dir)
    output = capsys.readouterr().out
    assert f"reproduces {there / 'words'}" in output
    assert "differs from it" not in output
    assert output.splitlines()[-1] == f"the same weights as {there / 'words'}, to the last bit"
    was, now = RunDir(there / "words").read(), outcome.record
    assert now.reproduces.same is True
    assert all(
        getattr(now, key) == getattr(was, key)
        for key in (
            "fingerprints",
            "weights_sha256",
            "tokenizer_sha256",
            "versions",
            "machine",
            "scores",
        )
    )
    assert (outcome.run_dir / "tokenizer.json").read_bytes() == (
        there / "words" / "tokenizer.json"
    ).read_bytes()
    for folder in (None, there / "words"):  # nothing is written into a run that is there
        with pytest.raises(RunError, match="not empty"):
            train(recipe_of(there / "words"), folder)
    again = train(recipe_of(outcome.run_dir))
    assert again.run_dir == Path("runs/words-reproduction-2")
    assert again.record.reproduces.same is True


class Hare:
    """A clock that is never as fast twice."""

    runs = 0

    def __init__(self, on_cpu: bool, before: float = 0.0) -> None:
        Hare.runs += 1
        self.now, self.pace = before, 0.01 + 0.002 * Hare.runs

    def minutes(self) -> float:
        self.now += self.pace
        return self.now


def learning_rates(run: Path) -> list[tuple[int, float]]:
    """Return the learning rate after each step that a row of metrics is about."""
    rows = read_metrics(RunDir(run).metrics)
    return [
        (row["step"], row["train/learning_rate"]) for row in rows if "train/learning_rate" in row
    ]


IN_MINUTES = ("training.max_steps=null", "training.max_minutes=0.5", "training.schedule=cosine")


def test_a_budget_in_minutes_is_reproduced(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning rate of every step and the last step are those of the run, on a machine that is
    not as fast.
    """
    monkeypatch.setattr(callback, "Clock", Hare)
    monkeypatch.setattr(Hare, "runs", 0)
    recipe = load(trained / "home" / "words.yaml", IN_MINUTES)
    one = train(recipe, tmp_path / "one", data=trained / "home" / "text")
    other = train(recipe, tmp_path / "other", data=trained / "home" / "text")
    assert one.record.steps != other.record.steps  # or this would be no test
    again = train(recipe_of(tmp_path / "one"), tmp_path / "again")
    assert again.record.reproduces.same is True
    assert again.record.steps == one.record.steps
    assert same_weights(tmp_path / "one", tmp_path / "again")
    assert again.record.planned_steps == one.record.planned_steps
    assert (
        learning_rates(tmp_path / "one")
        == learning_rates(tmp_path / "again")
        != learning_rates(tmp_path / "other")
    )


def test_a_run_in_minutes_of_the_last_version_is_reproduced_by_its_steps(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback, "Clock", Hare)
    # the rate of no step depends on the clock
    recipe = load(trained / "home" / "words.yaml", IN_MINUTES[:2])
    one = train(recipe, tmp_path / "one", data=trained / "home" / "text")
    change_record(RunDir(tmp_path / "one"), planned_steps=None)
    again = train(recipe_of(tmp_path / "one"), tmp_path / "again")
    assert (again.record.steps, again.record.reproduces.same) == (one.record.steps, True)
    assert "records the number of steps alone" in again.record.reproduces.differs[-1]


@pytest.mark.slow
@pytest.mark.parametrize("cut", [7, 10])
def test_a_stopped_run_with_a_budget_in_minutes_is_reproduced(
    cut: int, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback, "Clock", Hare)
    monkeypatch.setattr(Hare, "runs", 0)
    recipe = load(trained / "home" / "words.yaml", IN_MINUTES)
    text = trained / "home" / "text"

    def stopped(run: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(
                TrainingLoopCallback,
                "received_signal",
                lambda self: signal.SIGTERM if self.progress.step == cut else 0,
            )
            with pytest.raises(SystemExit):
                train(recipe if run.name == "one" else recipe_of(tmp_path / "one"), run, data=text)

    stopped(tmp_path / "one")
    assert train(recipe, tmp_path / "one", data=text, resume=True).record.status == "finished"
    stopped(tmp_path / "again")
    again = train(recipe_of(tmp_path / "again"), tmp_path / "again", resume=True)
    assert again.record.reproduces.same is True


def test_a_foreign_tokenizer_is_refused(trained: Path, tmp_path: Path) -> None:
    """So a reproduction must not train its own: with another one the weights would be others."""
    recipe = load(trained / "home" / "words.yaml", ["data.tokenizer.unigram.size=310"])
    train(recipe, tmp_path / "other", data=trained / "home" / "text")
    shutil.copytree(trained / "runs" / "words", tmp_path / "run")
    shutil.copy(tmp_path / "other" / "tokenizer.json", tmp_path / "run" / "tokenizer.json")
    with pytest.raises(RunError, match="not the one that the run was trained with"):
        train(recipe_of(tmp_path / "run"), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_only_an_unchanged_recipe_has_an_original_run(there: Path) -> None:
    run = there / "words"
    assert find_original_run(recipe_of(run), None, None) is not None
    assert (
        find_original_run(
            recipe_of(run, "trainer.enable_progress_bar=false", "name=other"), None, None
        )
        is not None
    )
    assert find_original_run(recipe_of(run, "training.seed=7"), None, None) is None
    assert find_original_run(recipe_of(run), run, None) is None  # that would be `--resume`
    assert find_original_run(recipe_of(run), None, there / "later") is None  # it began at random
    assert find_original_run(recipe_of(there / "later"), None, run) is not None
    assert find_original_run(recipe_of(there / "later"), None, there / "later") is None
    shutil.copy(run / "recipe.yaml", there / "alone.yaml")
    assert find_original_run(load(there / "alone.yaml"), None, None) is None
    change_record(RunDir(run), fingerprints=None)
    assert find_original_run(recipe_of(run), None, None) is None


HARMLESS = (
    "training.workers=1",
    "name=other",
    "description=other",
    "vars={x: 1}",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.num_nodes=1",
    "trainer.timeout_minutes=5",
    "trainer.deterministic=true",
    "trainer.benchmark=true",
    "trainer.log_every_n_steps=3",
    "trainer.inference_mode=false",
    "trainer.detect_anomaly=true",
    "trainer.enable_progress_bar=false",
    "trainer.enable_model_summary=true",
)


def test_settings_outside_the_fingerprint_change_no_weight(there: Path) -> None:
    recipe = recipe_of(there / "words", *HARMLESS)
    outcome = train(recipe, there / "again")
    assert outcome.record.fingerprints == RunDir(there / "words").read().fingerprints
    assert outcome.record.reproduces.same is True


def test_limit_val_batches_changes_the_fingerprint(trained: Path, tmp_path: Path) -> None:
    """So it counts, though it is said under `trainer`: without validations nothing is stopped
    early.
    """
    early = ["training.validate_every=1", "training.early_stopping={patience: 1, min_delta: 100.0}"]
    steps, says = {}, set()
    for limit in ("1.0", "0"):
        recipe = load(
            trained / "home" / "words.yaml", [*early, f"trainer.limit_val_batches={limit}"]
        )
        steps[limit] = train(recipe, tmp_path / limit, data=trained / "home" / "text").record.steps
        says.add(recipe.fingerprints["run"])
    assert steps == {"1.0": 2, "0": 4}
    assert len(says) == 2


def test_a_share_of_the_validation_batches_is_one_at_least(trained: Path, tmp_path: Path) -> None:
    recipe = load(trained / "home" / "words.yaml", ["trainer.limit_val_batches=0.01"])
    assert "val/loss" in train(recipe, tmp_path / "run", data=trained / "home" / "text").scores


def test_other_data_are_reported(
    there: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained / "home" / "text", tmp_path / "text")
    with (
        (tmp_path / "text" / "val.de").open("a") as file,
        (tmp_path / "text" / "val.en").open("a") as other,
    ):
        file.write("abcde\n")
        other.write("edcba\n")
    outcome = train(recipe_of(there / "words"), data=tmp_path / "text")
    assert (
        "differs from it: the data are not those that it was trained on" in capsys.readouterr().out
    )
    assert outcome.record.reproduces.differs == ("the data are not those that it was trained on",)
    was = RunDir(there / "words").read().fingerprints
    assert {key for key in was if was[key] != outcome.record.fingerprints[key]} == {"data", "run"}


def test_moved_data_need_a_data_folder(there: Path, trained: Path, tmp_path: Path) -> None:
    change(there / "words", data={"folders": []})  # as in a pack
    with pytest.raises(ComposerError, match="--data DIR"):
        train(recipe_of(there / "words"))
    outcome = train(recipe_of(there / "words"), data=trained / "home" / "text")
    assert outcome.record.reproduces.same is True


def test_a_run_s_recipe_with_overrides_reads_the_run_s_data(there: Path, tmp_path: Path) -> None:
    """It is no reproduction; its files lie where they lay all the same."""
    record = train(recipe_of(there / "words", "training.max_steps=1"), tmp_path / "shorter").record
    assert record.reproduces is None
    assert record.data.folders[0] == RunDir(there / "words").read().data.folders[0]


def test_a_reproduction_starts_from_the_same_initial_run(there: Path, tmp_path: Path) -> None:
    change(there / "later", start_from=str(tmp_path / "gone"))
    # beside it
    assert train(recipe_of(there / "later"), tmp_path / "one").record.reproduces.same is True
    (there / "words").rename(tmp_path / "moved")
    with pytest.raises(RunError, match="name the folder of that run with `--from RUN`"):
        train(recipe_of(there / "later"), tmp_path / "two")
    assert not (tmp_path / "two").exists()
    outcome = train(recipe_of(there / "later"), tmp_path / "two", start_from=tmp_path / "moved")
    assert outcome.record.reproduces.same is True
    assert outcome.record.fingerprints["run"] == RunDir(there / "later").read().fingerprints["run"]


def test_the_initial_run_changes_the_run_fingerprint_only(trained: Path) -> None:
    first, later = (
        RunDir(trained / "runs" / name).read().fingerprints for name in ("words", "later")
    )
    assert {key for key in first if first[key] != later[key]} == {"run"}


def test_another_machine_is_reported_as_a_possible_reason(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(there / "words")
    record = run.read()
    change(
        run.path,
        versions={**record.versions, "torch": "1.0"},
        machine={**record.machine, "threads": 99},
        plug_ins={"odd": {"distribution": "oddities", "version": "2", "sha256": "a" * 64}},
        source="b" * 64,
        resumed_with=["threads: 1 there, 2 here"],
    )
    weights = load_file(run.weights)
    name = next(iter(weights))
    weights[name][0] += 0.5
    save_file(weights, run.weights)
    change(run.path, weights_sha256=sha256_of_file(run.weights))
    outcome = train(recipe_of(run.path))
    output = capsys.readouterr().out
    for item in (
        f"torch: 1.0 there, {record.versions['torch']} here",
        "threads: 99 there, 1 here",
        "odd: oddities 2 aaaaaaaaaaaa there, none here",
        "the code of seqcomposer: bbbbbbbbbbbb there",
        "it was resumed with threads: 1 there, 2 here",
    ):
        assert f"differs from it: {item}" in output
    last = output.splitlines()[-1]
    assert last.startswith(
        f"not the same weights as {run.path}: 1 of {len(weights)} tensors differ, by 5.0e-01 at"
        " most"
    )
    assert "torch: 1.0 there" in last
    assert outcome.record.reproduces.same is False


def test_a_run_that_has_not_finished_has_nothing_to_compare(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_record(RunDir(there / "words"), weights_sha256=None)
    outcome = train(recipe_of(there / "words"))
    assert "nothing to compare with" in capsys.readouterr().out.splitlines()[-1]
    assert outcome.record.reproduces.same is None


@pytest.mark.slow
@pytest.mark.parametrize("by", ["the same command", "its own recipe"])
def test_a_killed_reproduction_resumes(there: Path, by: str) -> None:
    with killed_in_batch(3):
        train(recipe_of(there / "words"))
    folder = Path("runs/words-reproduction")
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    recipe = recipe_of(there / "words") if by == "the same command" else recipe_of(folder)
    outcome = train(recipe, None if by == "the same command" else folder, resume=True)
    assert outcome.run_dir == folder
    assert outcome.record.reproduces.same is True
    assert same_weights(there / "words", folder)


def test_the_recipe_of_a_run_resumes_it_from_any_folder(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = there / "words"
    steps = RunDir(run).read().steps
    assert train(recipe_of(run), resume=True).run_dir == run
    assert train(recipe_of(run), finish=True).run_dir == run
    record = train(recipe_of(run, f"training.max_steps={steps + 1}"), resume=True).record
    assert (record.steps, record.budgets[-1]) == (steps + 1, Budget(steps + 1))
    assert list(Path().iterdir()) == []


def test_a_resumed_run_records_environment_differences(
    there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(there / "words")
    record = run.read()
    change(run.path, status="failed", versions={**record.versions, "torch": "1.0"})
    outcome = train(recipe_of(run.path), run.path, resume=True)
    assert outcome.record.resumed_with == (f"torch: 1.0 there, {record.versions['torch']} here",)
    assert outcome.record.versions == record.versions
    assert outcome.record.reproduces is None


def test_a_run_whose_recipe_has_another_fingerprint_is_not_resumed(there: Path) -> None:
    run = RunDir(there / "words")
    prints = run.read().fingerprints
    change_record(run, status="failed", fingerprints={**prints, "recipe": "0" * 64})
    with pytest.raises(RunError, match=r"not the one that the run was started with"):
        train(recipe_of(run.path), run.path, resume=True)
    change_record(run, fingerprints=prints)
    with pytest.raises(RunError, match=r"`training.seed` was 1 and is 2"):
        train(recipe_of(run.path, "training.seed=2"), run.path, resume=True)


def test_a_saved_tokenizer_is_read_back_unchanged(there: Path) -> None:
    """The law behind it: what is read again from the file is the very tokenizer."""
    path = there / "words" / "tokenizer.json"
    assert (
        Tokenizers.load(path).sha256
        == RunDir(there / "words").read().tokenizer_sha256
        == sha256_of_file(path)
    )

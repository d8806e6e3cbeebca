"""Runs that an earlier version trained are opened, measured, continued and compared: see
0.1.0/README.md.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.atomic_io import sha256_of_file
from composer.cli.main import main
from composer.data.sources import DataSource
from composer.errors import RecipeError, RunError
from composer.fingerprint import check_checkpoint
from composer.inference.run import Run
from composer.model.weights import describe_difference
from composer.recipe.earlier_versions import TEXTS_AFTER_END, TRAINING_CHANGES, concerning_changes
from composer.recipe.fingerprints import FINGERPRINT_VERSION
from composer.recipe.recipe import load
from composer.recipe.yaml_reader import read
from composer.run_dir import RunDir
from composer.sweeps.point_arguments import load_recipe
from composer.training.lightning import Callback
from composer.training.module import Seq2SeqModule
from composer.training.train import train
from tests.run_records import change_record

HERE = Path(__file__).parent
KINDS = (pytest.param("pairs", marks=pytest.mark.slow), "text")
SCORED_OTHERWISE = {
    "text": (
        "it begins after the end of a document, as in training; it began with a token hardly seen"
    )
}
TRAINED_OTHERWISE = {
    "text": (
        "so does each epoch; and attention, whose keys and values are two tensors, rounds otherwise"
    )
}
"""Why one of them has other scores, or is continued to other weights."""


DECAY = "training.optimizer.adamw.decay=all"
AS_THEN = {
    "pairs": ["data.parallel.hold_out=pairs", DECAY],
    "text": ["data.text.hold_out=end", DECAY],
}
"""What a recipe of today says to mean what theirs meant."""


@dataclass(frozen=True)
class Earlier:
    """A copy of an earlier run with its data, and what the version that trained it printed."""

    folder: Path
    expected: dict[str, Any]

    @property
    def run(self) -> Path:
        return self.folder / "run"


@pytest.fixture(params=KINDS)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Earlier:
    return copied(request.param, tmp_path)


def copied(kind: str, target: Path) -> Earlier:
    folder = Path(shutil.copytree(HERE / "0.1.0" / kind, target / kind))
    return Earlier(folder, json.loads((folder / "expected.json").read_text(encoding="utf-8")))


@pytest.fixture
def two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_it_writes_and_scores_what_it_did(earlier: Earlier) -> None:
    run = composer.open_run(earlier.run)
    for row in earlier.expected.get("translate", ()):
        score, text = row["output"].split("\t")
        (translation,) = run.translate([row["source"]], scores=True)
        assert translation.text == text
        assert translation.score == pytest.approx(float(score), abs=1e-3)
    if "score" in earlier.expected and earlier.folder.name not in SCORED_OTHERWISE:
        lines = (earlier.folder / "lines.txt").read_text(encoding="utf-8").splitlines()
        scores = [score.total for score in run.score(lines)]
        assert scores == pytest.approx(
            [row["log_probability"] for row in earlier.expected["score"][:-1]], rel=1e-5
        )


def test_its_scores_are_what_they_were(earlier: Earlier) -> None:
    scores = composer.evaluate(earlier.run, data=earlier.folder)
    for name, before in earlier.expected["evaluate"].items():
        if isinstance(before, float) and earlier.folder.name not in SCORED_OTHERWISE:
            assert scores[name] == pytest.approx(before, rel=1e-5), name
        elif (
            name == "test/measured" and "source" in before["sha256"]
        ):  # no line that it was trained on
            assert scores[name] == before


def test_it_is_continued_to_the_weights_that_its_own_version_had(
    earlier: Earlier, two_threads: None
) -> None:
    before = shutil.copytree(earlier.run, earlier.folder / "before")
    record = RunDir(earlier.run).read()
    steps = earlier.expected["continued"]["max_steps"]
    recipe = load(earlier.run / "recipe.yaml", [f"training.max_steps={steps}"])
    result = train(recipe, earlier.run, data=earlier.folder, resume=True)
    assert result.record.steps == steps
    assert result.record.fingerprints["version"] == FINGERPRINT_VERSION
    assert result.record.canonical["training"]["max_steps"] == steps
    assert result.record.fingerprint_parts.training_changes == ()
    machine, versions = result.record.machine, result.record.versions
    same = all(machine[key] == record.machine[key] for key in ("cpu", "instructions"))
    same = same and versions["torch"] == record.versions["torch"]
    if same and earlier.folder.name not in TRAINED_OTHERWISE:
        assert result.record.weights_sha256 == earlier.expected["continued"]["weights_sha256"]
    assert describe_difference(before / "model.safetensors", earlier.run / "model.safetensors")


def test_a_single_document_of_before_is_begun_as_it_was_trained(earlier: Earlier) -> None:
    """Bos stood before it; of a text of several, one of its documents, and since then none, begins
    so.
    """
    assert "end of a document" in TRAINING_CHANGES[TEXTS_AFTER_END].sentence
    run, is_text = RunDir(earlier.run), earlier.folder.name == "text"
    assert composer.open_run(earlier.run).model.begins_after_end == is_text
    change_record(run, data={**asdict(run.read().data), "pairs": {"train": 1}})
    assert not composer.open_run(earlier.run).model.begins_after_end
    change_record(
        run,
        fingerprint_parts={
            "lines": "0" * 64,
            "processes": 1,
            "training_changes": [TEXTS_AFTER_END],
        },
    )
    assert composer.open_run(earlier.run).model.begins_after_end == is_text


def test_it_is_continued_by_the_command_that_began_it(
    earlier: Earlier, capsys: pytest.CaptureFixture[str]
) -> None:
    """What its recipe does not say keeps the meaning that it had."""
    file = earlier.folder / f"{earlier.folder.name}.yaml"
    train(load(file), earlier.run, data=earlier.folder, resume=True)
    assert "has already finished" in capsys.readouterr().out
    steps = load(file).training.max_steps + 2
    result = train(
        load(file, [f"training.max_steps={steps}"]), earlier.run, data=earlier.folder, resume=True
    )
    assert result.record.steps == steps
    for setting in AS_THEN[earlier.folder.name]:
        path, _, value = setting.partition("=")
        node = result.record.canonical
        for key in path.split("."):
            node = node[key]
        assert node == value
    assert result.record.fingerprints["version"] == FINGERPRINT_VERSION
    again = train(
        load(file, [f"training.max_steps={steps + 2}"]),
        earlier.run,
        data=earlier.folder,
        resume=True,
    )
    assert again.record.steps == steps + 2


def test_a_setting_that_is_written_means_what_it_says(earlier: Earlier) -> None:
    file = earlier.folder / f"{earlier.folder.name}.yaml"
    with pytest.raises(RunError, match="this run was started with another recipe"):
        train(
            load(file, ["training.optimizer.adamw.decay=matrices"]),
            earlier.run,
            data=earlier.folder,
            resume=True,
        )


def test_a_single_document_of_before_is_trained_and_scored_as_it_was_begun(
    earlier: Earlier, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begins = RunDir(earlier.run), []
    change_record(run, data={**asdict(run.read().data), "pairs": {"train": 1}})

    class Seen(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            begins.append(pl_module.model.begins_after_end)

    def evaluate_pairs(opened: Run, *arguments: Any) -> dict[str, Any]:
        begins.append(opened.model.begins_after_end)
        return {}

    monkeypatch.setattr("composer.training.finalize.evaluate_pairs", evaluate_pairs)
    steps = earlier.expected["continued"]["max_steps"]
    recipe = load(earlier.run / "recipe.yaml", [f"training.max_steps={steps}"])
    train(recipe, earlier.run, data=earlier.folder, resume=True, callbacks=[Seen()])
    begins.append(composer.open_run(earlier.run).model.begins_after_end)
    assert len(begins) > 2
    assert not any(begins)


def test_it_is_resumed_by_any_recipe_that_means_the_same(
    earlier: Earlier, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load(earlier.folder / f"{earlier.folder.name}.yaml", AS_THEN[earlier.folder.name])
    train(recipe, earlier.run, data=earlier.folder, resume=True)
    assert "has already finished" in capsys.readouterr().out


def test_another_recipe_is_refused_with_what_to_write(earlier: Earlier) -> None:
    as_then = AS_THEN[earlier.folder.name]
    recipe = load(
        earlier.folder / f"{earlier.folder.name}.yaml", ["training.label_smoothing=0.1", *as_then]
    )
    with pytest.raises(RunError, match=r"`training.label_smoothing` was 0.0 and is 0.1") as refused:
        train(recipe, earlier.run, data=earlier.folder, resume=True)
    assert "training.label_smoothing=0.0" in refused.value.faults[0].hint
    again = load(
        earlier.folder / f"{earlier.folder.name}.yaml", ["training.label_smoothing=0.0", *as_then]
    )
    train(again, earlier.run, data=earlier.folder, resume=True)


def run_command(*arguments: str) -> Any:
    """Return the exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_commands_read_its_recipe_as_it_was_trained(earlier: Earlier) -> None:
    file, meant = earlier.run / "recipe.yaml", composer.open_run(earlier.run).recipe.canonical
    assert load(file, root=read(file, str(file))).canonical == meant
    assert load_recipe(earlier.run).canonical == meant
    command = ["train", str(file), "--data", str(earlier.folder)]
    steps = RunDir(earlier.run).read().steps + 2
    assert run_command(*command, "--run", str(earlier.folder / "again")) == 0
    assert RunDir(earlier.folder / "again").read().reproduces is not None
    assert (
        run_command(*command, "--run", str(earlier.run), "--resume", "training.label_smoothing=0.3")
        == 2
    )
    assert (
        run_command(*command, "--run", str(earlier.run), "--resume", f"training.max_steps={steps}")
        == 0
    )
    assert RunDir(earlier.run).read().steps == steps


def test_a_checkpoint_of_a_recipe_that_says_less_is_another_runs(
    earlier: Earlier, tmp_path: Path
) -> None:
    """What it does not say is not as this run has it."""
    file = earlier.folder / f"{earlier.folder.name}.yaml"
    more = load(
        file, ["training.label_smoothing=0.3", "training.max_steps=2", "training.validate_every=2"]
    )
    less = load(file, ["training.max_steps=2", "training.validate_every=2"])
    one, other = (
        train(recipe, tmp_path / name, data=earlier.folder)
        for recipe, name in ((more, "one"), (less, "other"))
    )
    tokenizers = composer.open_run(one.run_dir).tokenizers
    checkpoint = RunDir(one.run_dir).checkpoints / "step-00000002.ckpt"
    check_checkpoint(
        load(one.run_dir / "recipe.yaml", ["training.max_steps=9"]), tokenizers, checkpoint
    )
    shutil.copy(RunDir(other.run_dir).checkpoints / "step-00000002.ckpt", checkpoint)
    shutil.copy(
        RunDir(other.run_dir).checkpoints / "step-00000002.ckpt.sha256", f"{checkpoint}.sha256"
    )
    with pytest.raises(RunError, match=r"label_smoothing` was 0.0 and is 0.3"):
        check_checkpoint(load(one.run_dir / "recipe.yaml"), tokenizers, checkpoint)


def test_its_changed_recipe_is_refused(earlier: Earlier) -> None:
    file = earlier.run / "recipe.yaml"
    file.write_text(
        file.read_text(encoding="utf-8").replace("width: 16", "width: 8"), encoding="utf-8"
    )
    with pytest.raises(RunError, match="not the one that the run was started with") as refused:
        train(load(file), earlier.run, data=earlier.folder, resume=True)
    assert "put it back as it was" in refused.value.faults[0].hint


def test_its_fingerprints_are_those_of_this_version(earlier: Earlier) -> None:
    prints = composer.fingerprints(earlier.run, data=earlier.folder)
    assert prints["version"] == FINGERPRINT_VERSION
    assert prints["weights"] == earlier.expected["fingerprints"]["weights"]
    name = earlier.folder.name
    recipe = composer.fingerprints(earlier.folder / f"{name}.yaml", overrides=AS_THEN[name])
    assert (prints["model"], prints["data"]) == (recipe["model"], recipe["data"])
    trains_otherwise = bool(concerning_changes(load(earlier.run / "recipe.yaml").canonical))
    assert trains_otherwise == (name == "text")
    assert (prints == {**recipe, "weights": prints["weights"]}) == (not trains_otherwise)


def test_without_its_data_some_fingerprints_are_known(earlier: Earlier) -> None:
    run = RunDir(earlier.run)
    change_record(
        run, data={**asdict(run.read().data), "folders": [str(earlier.folder / "nowhere")]}
    )
    prints = composer.fingerprints(earlier.run)
    assert [*prints] == ["model", "recipe", "version", "weights"]


def test_a_comparison_that_reads_all_of_its_data_says_so(earlier: Earlier) -> None:
    said: list[str] = []
    difference = composer.diff(
        earlier.run, earlier.run, data=earlier.folder, quick=True, log=said.append
    )
    assert difference.agreement.by_content
    assert (
        said
        == [
            (
                f"{earlier.run}: its fingerprints are of an earlier version, and are computed anew"
                " from all of its data"
            )
        ]
        * 2
    )
    record = RunDir(earlier.run).read()
    prints = {**record.fingerprints, "version": FINGERPRINT_VERSION}
    change_record(RunDir(earlier.run), fingerprints=prints)
    said.clear()
    composer.diff(earlier.run, earlier.run, data=earlier.folder, quick=True, log=said.append)
    assert said == []


def test_its_reproduction_is_compared_with_it(earlier: Earlier) -> None:
    again, is_text = earlier.folder / "again", earlier.folder.name == "text"
    record = train(load(earlier.run / "recipe.yaml"), again, data=earlier.folder).record
    differs = record.reproduces.differs
    assert not any("recipe" in difference or "data are not" in difference for difference in differs)
    assert (
        record.reproduces.fingerprint
        == composer.fingerprints(earlier.run, data=earlier.folder)["run"]
    )
    assert any("since then" in difference for difference in differs) == is_text
    sentences = [
        change.sentence
        for name, change in TRAINING_CHANGES.items()
        if is_text and name == TEXTS_AFTER_END
    ]
    assert [
        it.removeprefix("since then, ") for it in differs if it.startswith("since then")
    ] == sentences
    difference = composer.diff(earlier.run, again, data=earlier.folder, quick=True)
    assert difference.agreement.by_content
    assert difference.agreement.same("model")
    assert difference.agreement.same("data")
    assert difference.agreement.same("run") == (not is_text)
    assert not [change for change in difference.changes if change.section != "run"]


def test_it_is_packed_and_pulled(earlier: Earlier, tmp_path: Path) -> None:
    pack = composer.pack(earlier.run, tmp_path / "pack.tar")
    composer.pull(str(pack), tmp_path / "pulled")
    assert (
        sha256_of_file(tmp_path / "pulled" / "model.safetensors")
        == earlier.expected["fingerprints"]["weights"]
    )
    assert composer.evaluate(tmp_path / "pulled", data=earlier.folder) == composer.evaluate(
        earlier.run, data=earlier.folder
    )


def test_what_it_held_out_of_its_text_is_what_is_measured() -> None:
    """The last documents, as 0.1.0 held them out, and none that it was trained on."""
    folder = HERE / "0.1.0" / "text"
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("tales.txt", "letters.txt")]
    documents = [text for part in texts for text in part.strip("\n").split("\n\n")]
    recipe = load(folder / "run" / "recipe.yaml", data_dir=folder)
    source = DataSource(recipe, [folder])
    parts = {split: [*source.pairs(split).sides["target"]] for split in ("train", "val", "test")}
    assert parts == {"train": documents[:-16], "val": documents[-16:-8], "test": documents[-8:]}


# -------------------------------------------------------------------------------------------
# settings that are no more


def says_compile(text: str, value: str) -> str:
    """The recipe of the pairs with the setting `compile` that its decoding had."""
    changed = text.replace("beam: {size: 2}", f"beam: {{size: 2, compile: {value}}}")
    assert changed != text
    return changed


@pytest.fixture(params=["true", pytest.param("false", marks=pytest.mark.slow)])
def compiling(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run of 0.2.0 that stores `compile` wherever a run stores its recipe, and whose fingerprints
    count it.
    """
    earlier = copied("pairs", tmp_path)
    train(
        load(earlier.run / "recipe.yaml", ["training.max_steps=82"]),
        earlier.run,
        data=earlier.folder,
        resume=True,
    )
    run, is_compiled = RunDir(earlier.run), request.param == "true"
    record = run.read()
    run.recipe.write_text(
        says_compile(run.recipe.read_text(encoding="utf-8"), request.param), encoding="utf-8"
    )
    prints = {
        **record.fingerprints,
        **(dict.fromkeys(("run", "recipe"), "0" * 64) if is_compiled else {}),
    }
    record.canonical["decoding"]["beam"]["compile"] = is_compiled
    record.canonical["training"]["validation_sample"]["decoding"]["greedy"]["compile"] = False
    change_record(
        run,
        fingerprints=prints,
        canonical=record.canonical,
        recipe_sha256=sha256_of_file(run.recipe),
    )
    for file in run.checkpoints.glob("*.ckpt"):
        checkpoint = torch.load(file, weights_only=True)
        texts = checkpoint["hyper_parameters"]
        texts["recipe"] = says_compile(texts["recipe"], request.param)
        torch.save(checkpoint, file)
        file.with_name(f"{file.name}.sha256").write_text(sha256_of_file(file), encoding="utf-8")
    return earlier.run


def test_a_run_that_says_a_removed_setting_is_opened_and_measured(compiling: Path) -> None:
    run = composer.open_run(compiling)
    assert "compile" not in run.recipe.canonical["decoding"]["beam"]
    assert run.translate(["one"])
    assert composer.evaluate(compiling, data=compiling.parent)
    prints = composer.fingerprints(compiling, data=compiling.parent)
    assert prints["recipe"] == run.recipe.fingerprints["run"]
    assert Seq2SeqModule.load_from_checkpoint(
        next(RunDir(compiling).checkpoints.glob("*.ckpt"))
    ).model


def test_a_run_that_says_a_removed_setting_is_resumed_and_reproduced(compiling: Path) -> None:
    folder = compiling.parent
    own = compiling / "recipe.yaml"
    again = train(load(own, ["training.max_steps=82"]), folder / "again", data=folder)
    assert again.record.reproduces is not None
    result = train(load(own), compiling, data=folder, resume=True)  # there is nothing to do
    assert result.record.steps == 82
    for steps in (84, 86):  # the first one writes its recipe without the setting
        result = train(
            load(own, [f"training.max_steps={steps}"]), compiling, data=folder, resume=True
        )
        assert result.record.steps == steps
    result = train(
        load(folder / "pairs.yaml", ["training.max_steps=88"]), compiling, data=folder, resume=True
    )
    assert result.record.steps == 88


def test_a_run_that_says_a_removed_setting_is_resumed_by_the_command_without_it(
    compiling: Path,
) -> None:
    file = compiling.parent / "pairs.yaml"
    result = train(
        load(file, ["training.max_steps=84"]), compiling, data=compiling.parent, resume=True
    )
    assert result.record.steps == 84


def test_a_run_that_says_a_removed_setting_is_packed_and_pulled(
    compiling: Path, tmp_path: Path
) -> None:
    composer.pull(str(composer.pack(compiling, tmp_path / "pack.tar")), tmp_path / "pulled")
    assert composer.open_run(tmp_path / "pulled").translate(["one"])


@pytest.mark.parametrize("place", ["decoding", "training.validation_sample.decoding"])
def test_a_recipe_that_says_a_removed_setting_is_told_to_remove_it(place: str) -> None:
    for override in (
        f"{place}.compile=true",
        f"{place}.beam={{compile: false}}",
        f"{place}={{compile: true}}",
    ):
        with pytest.raises(RecipeError) as refused:
            load(HERE / "0.1.0" / "pairs" / "pairs.yaml", [override])
        (fault,) = refused.value.faults
        assert (fault.code, fault.hint) == ("removed", "remove it")
        assert fault.path.startswith(place)
        assert "not compiled any more" in fault.message

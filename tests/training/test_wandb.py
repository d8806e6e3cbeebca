"""The records of an offline run of W&B, read back from its file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from composer.errors import RecipeError
from composer.hub.pull import pull
from composer.inference.run import open_run
from composer.recipe.recipe import Recipe
from composer.run_dir import read_metrics
from composer.training import wandb_logger
from composer.training.train import train
from composer.training.wandb_logger import WandbLogger
from tests.training.tiny_recipes import Tiny, same_weights


def records(file: Path) -> list[dict[str, Any]]:
    """The records of a .wandb file, by W&B's own reader."""
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_an_offline_run_is_recorded(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "run"
    config = "{encoder: recurrent, rate: 0.1}"
    settings = f"logging={{wandb: {{project: p, group: g, tags: [a, b], config: {config}}}}}"
    recipe = tiny("training.max_steps=4", "training.validate_every=2", settings)
    record = train(recipe, run).record
    first = capsys.readouterr().out.splitlines()[0]
    assert "offline" in first
    assert str(run / "wandb") in first
    assert not (tmp_path / ".local").exists()
    assert "WANDB_DATA_DIR" not in os.environ
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    text = json.dumps(result := records(file))
    rows = [row for row in result if row["type"] == "history"]
    for row in read_metrics(run / "metrics.jsonl"):
        name = next(key for key in row if "/" in key)
        assert name in text
        assert str(row[name])[:8] in text
    assert [row["history"]["item"]["_step"] for row in rows] == [0, 2, 4]  # the training's own
    assert '"samples._type": "table-file"' in text
    assert "recipe.yaml" in text  # the recipe as an artifact
    assert '"project": "p"' in text
    must_show_what_it_is(recipe, record, result)
    (picture,) = run.glob("wandb/offline-run-*/files/media/html/architecture_*.html")
    drawing = picture.read_text(encoding="utf-8")
    assert "cross" in drawing
    assert "at most" not in drawing  # its sizes are those of the vocabulary that was trained


def must_show_what_it_is(
    recipe: Recipe, record: Mapping[str, Any], result: list[dict[str, Any]]
) -> None:
    by_type: dict[str, list[dict[str, Any]]] = {}
    for item in result:
        by_type.setdefault(item["type"], []).append(item.get(item["type"], {}))
    last = by_type["run"][-1]
    assert (last["run_group"], last["job_type"]) == ("g", "train")
    assert set(last["tags"]) == {"a", "b", "attention", "recurrence"}
    config: dict[str, Any] = {}
    for item in [*by_type["run"], *({"config": config} for config in by_type["config"])]:
        config |= item.get("config", {}).get("update", {})
    # flat, as parallel coordinates take them
    assert (config["encoder"], config["rate"]) == ("recurrent", 0.1)
    assert config["training"]["optimizer"]["adam"]["beta1"] == recipe.training.optimizer.beta1
    assert config["parameters"] == record.parameters
    assert config["vocabularies"] == record.vocabularies
    assert config["fingerprints"]["run"] == record.fingerprints["run"]
    assert config["pairs"] == record.data.pairs == {"train": 90, "val": 12, "test": 8}
    assert any("proc.memory.rssMB" in row["item"] for row in by_type["stats"])  # system metrics


class Logged:
    """A run of W&B that keeps what it is given."""

    id, entity, project, tags = "id", "ann", "p", None

    def __init__(self) -> None:
        self.artifacts: list[Any] = []
        self.config = self

    def log_artifact(self, artifact: Any) -> None:
        self.artifacts.append(artifact)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def history(run: Path) -> dict[int, dict[str, Any]]:
    """The rows in all offline files of a run together, by W&B's own step; none of them twice."""
    rows: dict[int, dict[str, Any]] = {}
    for file in sorted(
        run.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime
    ):
        for record in records(file):
            if record["type"] == "history":
                item = record["history"]["item"]
                assert not rows.get(item["_step"], {}).keys() & {
                    name for name in item if "/" in name
                }
                rows.setdefault(item["_step"], {}).update(item)
    return rows


@pytest.mark.slow
def test_a_resumed_run_has_one_count_of_steps_and_no_gaps(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "run"
    settings = [
        "training.validate_every=2",
        "trainer.log_every_n_steps=1",
        "logging.wandb={mode: offline}",
    ]
    train(tiny("training.max_steps=4", *settings), run)
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    train(tiny("training.max_steps=6", *settings), run, resume=True)
    assert sorted(history(run)) == [0, 1, 2, 3, 4, 5, 6]
    must_have_all(run)
    # as SIGKILL leaves it: the last rows are in no file
    (other,) = {*run.glob("wandb/offline-run-*/*.wandb")} - {file}
    shutil.rmtree(other.parent)
    lose_last_rows(file, run)
    train(tiny("training.max_steps=8", *settings), run, resume=True)
    assert sorted(history(run)) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    must_have_all(run)


def lose_last_rows(file: Path, run: Path) -> None:
    """Shorten the only file of a run to a length at which some of its rows are there, and some are
    not.
    """
    content, rows = file.read_bytes(), len(history(run))
    none, all_of_them = 0, len(content)
    while (left := len(history(run))) in (0, rows):
        none, all_of_them = (
            (len(file.read_bytes()), all_of_them) if left == 0 else (none, len(file.read_bytes()))
        )
        assert all_of_them - none > 1
        file.write_bytes(content[: (none + all_of_them) // 2])


def must_have_all(run: Path) -> None:
    """W&B has all of metrics.jsonl, at the training's own steps."""
    rows = history(run)
    for row in read_metrics(run / "metrics.jsonl"):
        for name, value in row.items():
            if "/" in name and not isinstance(value, list):
                assert rows[int(row["step"])][name] == pytest.approx(value), (row["step"], name)


@pytest.mark.parametrize("choice", ["final", "none"])
def test_the_final_model_is_an_artifact_that_is_pulled(
    choice: str,
    tiny: Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import wandb

    for name, value in {
        "WANDB_MODE": "online",
        "WANDB_API_KEY": "0" * 40,
        "WANDB_DATA_DIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    logged, run = Logged(), tmp_path / "run"
    monkeypatch.setattr(wandb, "init", lambda **_: logged)
    train(tiny("training.max_steps=2", f"logging={{wandb: {{artifact: {choice}}}}}"), run)
    models = [artifact for artifact in logged.artifacts if artifact.type == "model"]
    text = capsys.readouterr().out
    if choice == "none":
        assert not models
        assert "seqcomposer pull" not in text
        return
    assert "get it by `seqcomposer pull wandb:ann/p/model-id:latest`" in text
    (artifact,) = models
    entries = artifact.manifest.entries
    # and no copy beside it
    assert Path(entries["model.safetensors"].local_path).samefile(run / "model.safetensors")

    def member(name: str) -> SimpleNamespace:
        def download(root: str, skip_cache: bool) -> str:
            return str(shutil.copy(entries[name].local_path, Path(root) / name))

        return SimpleNamespace(size=entries[name].size, ref=None, download=download)

    members = {name: member(name) for name in entries}
    names: list[str] = []
    manifest = SimpleNamespace(manifest=SimpleNamespace(entries=members), version="v0")
    monkeypatch.setattr(
        wandb,
        "Api",
        lambda **_: SimpleNamespace(artifact=lambda name: names.append(name) or manifest),
    )
    pulled = pull("wandb:ann/p/model-id:latest", tmp_path / "pulled")
    assert names == ["ann/p/model-id:latest", "ann/p/model-id:v0"]  # files of the listed version
    assert same_weights(pulled, run)
    assert open_run(pulled).translate(["a b"]) == open_run(run).translate(["a b"])
    assert str(tmp_path) not in (pulled / "run.json").read_text(encoding="utf-8")


def test_a_model_that_cannot_be_packed_ends_no_training(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    def is_full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "init", lambda **_: Logged())
    monkeypatch.setattr("composer.hub.pack.write_pack", is_full)
    outcome = train(tiny("training.max_steps=2", "logging={wandb: {project: p}}"), tmp_path / "run")
    assert outcome.record.status == "finished"
    assert (
        "no model for Weights & Biases: [Errno 28] No space left on device"
        in capsys.readouterr().out
    )


def test_a_key_of_the_config_is_none_of_the_recipes(tiny: Tiny) -> None:
    for name in ("training", "parameters"):
        with pytest.raises(RecipeError, match=f"`{name}` cannot be a name") as refused:
            tiny(f"logging={{wandb: {{config: {{{name}: 1}}}}}}")
        assert "the recipe's own keys are in the config already" in refused.value.render()


def test_a_failing_wandb_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def is_down(**_: Any) -> None:
        raise RuntimeError("W&B is\ndown")

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "init", is_down)
    log = WandbLogger("offline", None, tmp_path, "name", "id")
    assert log.trouble == "W&B is down"
    log.write({"step": 1})
    log.samples(1, [])
    log.describe(tmp_path / "recipe.yaml", {})
    log.finish(0)
    assert "WANDB_DATA_DIR" not in os.environ


class Run:
    """A run of W&B that fails at one of the things that are asked of it."""

    id, tags = "id", None

    def __init__(self, error: Exception, at: str) -> None:
        self.error, self.at = error, at
        self.config = self

    def __getattr__(self, name: str) -> Any:
        return self.fails if name == self.at else lambda *_, **__: None

    def fails(self, *_: Any, **__: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), ConnectionResetError("lost"), ValueError()]
)
@pytest.mark.parametrize("at", ["update", "log_artifact", "log", "finish"])
def test_a_failure_of_wandb_is_reported_once_and_ignored(
    error: Exception, at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    said: list[str] = []
    (tmp_path / "recipe.yaml").write_text("recipe: 1")
    monkeypatch.setattr(wandb, "init", lambda **_: Run(error, at))
    monkeypatch.setattr(wandb, "teardown", lambda: None)
    log = WandbLogger("offline", None, tmp_path, "name", "id", said.append)
    log.describe(tmp_path / "recipe.yaml", {})
    for step in (1, 2):
        log.write({"step": step})
    log.finish(0)
    assert not log.is_on
    assert [item.startswith("Weights & Biases has failed") for item in said] == [True]


def test_a_training_ends_well_without_wandb(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(
        wandb, "init", lambda **_: Run(ConnectionResetError("its process has ended"), "log")
    )
    monkeypatch.setattr(wandb, "teardown", lambda: None)
    outcome = train(tiny("training.max_steps=2", "logging={wandb: {project: p}}"), tmp_path / "run")
    assert outcome.record.status == "finished"
    assert capsys.readouterr().out.count("its process has ended") == 1


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["unreachable", "lost", "dead"])
def test_a_lost_wandb_service_does_not_stop_training(trouble: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(Path(__file__).with_name("wandb_trouble.py")),
        str(tmp_path),
        trouble,
    ]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, env=clean
    )
    result = json.loads(done.stdout.splitlines()[-1])
    written = [file for file in tmp_path.glob("wandb/*run-*/*.wandb") if file.stat().st_size]
    if trouble == "dead":
        assert result["mode"] == "disabled"
        assert len(result["said"]) == 1
        assert "Traceback" not in done.stderr
    elif trouble == "lost":
        assert result == {"mode": "online", "trouble": "", "said": []}
        assert written
    else:
        assert result["mode"] == "offline"
        assert "connection refused" in result["trouble"]
        assert "`wandb sync`" in result["trouble"]
        assert any("offline-run" in str(file) for file in written)


def test_training_works_without_the_package(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", None)
    outcome = train(tiny("training.max_steps=1", "logging={wandb: {project: p}}"), tmp_path / "run")
    assert outcome.record.status == "finished"
    assert "Weights & Biases could not start: " in capsys.readouterr().out


@pytest.mark.parametrize("home", ["/proc/nothing", "/dev/null", ""])
def test_where_the_home_cannot_be_written_the_run_has_all_that_wandb_writes(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    seen: dict[str, str] = {}

    def init(*_: Any) -> None:
        seen.update(
            {name: os.environ.get(name, "") for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR")}
        )

    monkeypatch.setattr(wandb_logger, "_init", init)
    monkeypatch.setenv("HOME", home or str(tmp_path))
    WandbLogger("offline", None, tmp_path / "run", "name", "id").finish(0)
    own = str(tmp_path / "run" / "wandb")
    assert seen == {"WANDB_DATA_DIR": own, "WANDB_CACHE_DIR": own if home else ""}
    assert not {"WANDB_DATA_DIR", "WANDB_CACHE_DIR"} & os.environ.keys()

"""A sweep as a sweep file of Weights & Biases: its keys, and the command line that an agent makes of it."""

from __future__ import annotations

import json
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from composer.errors import RunError
from composer.exporters.wandb_sweep import write_wandb_sweep
from composer.recipe.yaml_reader import read, to_data
from composer.sweeps.spec import read_sweep
from tests.sweeps.tiny_sweep import SWEEP, write_sweep

TOP = {"method", "parameters", "metric", "early_terminate", "command", "name", "run_cap"}
"""Of the keys that W&B takes, those that are written."""
DISTRIBUTIONS = {"uniform", "log_uniform_values", "int_uniform", "q_log_uniform_values"}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def exported(folder: Path, text: str = SWEEP, overrides: tuple[str, ...] = ()) -> tuple[dict[str, Any], list[str]]:
    """What the file says when it is read again, and what was told to be lost."""
    lost = write_wandb_sweep(folder / "wandb.yaml", read_sweep(write_sweep(folder, text), overrides), overrides, None)
    return to_data(read(folder / "wandb.yaml", "wandb.yaml")), lost


def test_every_part_is_exported_to_the_wandb_format(tmp_path: Path) -> None:
    output, lost = exported(tmp_path)
    assert output == {
        "name": "tiny",
        "method": "random",
        "metric": {"name": "val/token_accuracy", "goal": "maximize"},
        "parameters": {
            "encoder": {"values": ["recurrent", "convolution"]},
            "attention": {"values": ["dot", "none"]},
            "rate": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2},
            "width": {"values": [8, 16, 512]},  # `hidden` follows from it
            "training.seed": {"value": 1},  # a search would choose among seeds
        },
        "early_terminate": {"type": "hyperband", "min_iter": 2, "eta": 2},  # 3 steps are 2 validations of 2 steps
        "run_cap": 3,
        "command": ["seqcomposer", "train", str(tmp_path / "tiny.yaml"), "${args_no_hyphens}"],
    }
    assert set(output) == TOP
    assert all(NAME.fullmatch(name) for name in output["parameters"])
    assert len(lost) == 3
    assert "`when`" in lost[0]
    assert "`where`" in lost[1]
    assert "seed 1 alone" in lost[2]
    assert "training.seed=N" in lost[2]


@pytest.mark.parametrize(
    ("search", "seeds", "parameter"),
    [
        ("grid", "[1, 2]", {"values": [1, 2]}),  # every seed of every point: nothing is chosen
        ("random", "[4, 2]", {"value": 4}),
        ("{tpe: {trials: 4}}", "2", {"value": 1}),
        ("grid", "[7]", None),
        ("grid", "[3, 4]\nseeds_where: width > 8", {"value": 3}),
    ],
)
def test_the_seed_is_never_searched(search: str, seeds: str, parameter: dict[str, Any] | None, tmp_path: Path) -> None:
    axes = "axes:\n  width: {set: vars.width, values: [8, 16]}\n"
    output, _ = exported(tmp_path, f"sweep: 1\nbase: base.yaml\n{axes}search: {search}\nseeds: {seeds}\n")
    assert output["parameters"].get("training.seed") == parameter


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("uniform: [0.1, 0.5]", {"distribution": "uniform", "min": 0.1, "max": 0.5}),
        ("log_uniform: [1e-4, 1e-2]", {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2}),
        ("int: [2, 9]", {"distribution": "int_uniform", "min": 2, "max": 9}),
        ("log_int: [2, 90]", {"distribution": "q_log_uniform_values", "min": 2, "max": 90, "q": 1}),
    ],
)
def test_ranges_become_wandb_distributions(kind: str, told: dict[str, Any], tmp_path: Path) -> None:
    path = "training.max_steps" if "int" in kind else "training.optimizer.adam.learning_rate"
    text = f"sweep: 1\nbase: base.yaml\naxes:\n  a: {{set: {path}, {kind}}}\nsearch: {{tpe: {{trials: 4}}}}\n"
    result, lost = exported(tmp_path, text)
    assert result["parameters"] == {"a": told}
    assert told["distribution"] in DISTRIBUTIONS
    assert (result["method"], result["metric"]) == ("bayes", {"name": "val/loss", "goal": "minimize"})
    assert "early_terminate" not in result
    assert lost == []


def test_what_wandb_cannot_express_is_reported(tmp_path: Path) -> None:
    _, lost = exported(tmp_path, SWEEP.replace("{hyperband: {min_steps: 3, reduction: 2}}", "median"))
    assert "the median" in lost[-1]


WATCHED = "set: {training.early_stopping: {metric: val/bleu}}\n"


@pytest.mark.parametrize(("setting", "metric"), [("", "val_sample/bleu"), (WATCHED, "val/bleu")])
def test_hyperband_goes_by_what_each_validation_logs(tmp_path: Path, setting: str, metric: str) -> None:
    text = SWEEP.replace("rank: [{val/token_accuracy: max}", f"{setting}rank: [{{val/bleu: max}}")
    assert exported(tmp_path, text)[0]["metric"] == {"name": metric, "goal": "maximize"}


def test_a_goal_that_no_run_logs_is_not_exported(tmp_path: Path) -> None:
    axes = "axes:\n  width: {set: vars.width, values: [8, 16]}\n"
    text = f"sweep: 1\nbase: base.yaml\n{axes}rank: [{{parameters: min}}, {{val/loss: min}}]\n"
    output, _ = exported(tmp_path, text)
    assert output["metric"] == {"name": "val/loss", "goal": "minimize"}
    assert (output["method"], output["parameters"]) == ("grid", {"width": {"values": [8, 16]}})
    text = text.replace(", {val/loss: min}", "") + "search: {tpe: {trials: 2}}\n"
    with pytest.raises(RunError, match="`rank` names none"):
        write_wandb_sweep(tmp_path / "other.yaml", read_sweep(write_sweep(tmp_path, text)), (), None)
    assert not (tmp_path / "other.yaml").exists()


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "wandb.yaml").write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match="exists already"):
        exported(tmp_path)
    assert (tmp_path / "wandb.yaml").read_text(encoding="utf-8") == "mine"


def agents_line(command: list[str], parameters: dict[str, Any]) -> list[str]:
    """The command line that W&B's agent runs, by its own code for the macros."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args  # takes seconds

    made = create_sweep_command_args({"args": {name: {"value": value} for name, value in parameters.items()}})
    words: list[str] = []
    for item in create_sweep_command(list(command)):
        is_macro = item.startswith("${") and item.endswith("}")
        words += made[item[2:-1]] if is_macro else [item]
    return words


def test_an_agents_command_line_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an agent starts it, with what it says in the environment."""
    output, _ = exported(tmp_path, overrides=("training.max_steps=2",))
    drawn = {"encoder": "recurrent", "attention": "none", "rate": 0.00123, "width": 16, "training.seed": 8}
    assert set(drawn) == set(output["parameters"])
    line = agents_line(output["command"], drawn)
    assert line[:2] == ["seqcomposer", "train"]
    (command,) = entry_points(group="console_scripts", name=line[0])
    for name, value in (("WANDB_SWEEP_ID", "abc"), ("WANDB_MODE", "disabled")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="0"):
        command.load()(line[1:])
    (record,) = tmp_path.glob("runs/tiny-*/seed-8/run.json")
    run = json.loads(record.read_text(encoding="utf-8"))
    assert (run["status"], run["steps"]) == ("finished", 2)
    recipe = to_data(read(record.parent / "recipe.yaml", ""))
    assert recipe["training"]["optimizer"] == {"adam": {"learning_rate": 0.00123}}
    assert recipe["training"]["seed"] == 8
    axes = {"encoder": "recurrent", "attention": "none", "rate": 0.00123, "width": 16, "hidden": 48}
    assert recipe["logging"]["wandb"] == {"group": "tiny", "config": axes}
    assert recipe["model"]["width"] == 16

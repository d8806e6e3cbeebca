"""The pictures that W&B is given at the end of a training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer.evaluation.scores import evaluate
from composer.inference.run import open_run
from composer.recipe.recipe import load
from composer.training import finalize
from composer.training.train import train
from composer.training.wandb_logger import WandbLogger
from composer.viz.alignments import alignment_page, alignments
from composer.viz.report import report
from tests.training.tiny_recipes import TINY
from tests.viz.pages import by_class, check_self_contained, figures, read


def test_pictures_are_logged_to_wandb(trained: Path) -> None:
    pages = sorted(trained.glob("wandb/offline-run-*/files/media/html/alignments_*.html"))
    run = open_run(trained)
    from composer.data.encoding import load_data

    lines = list(
        load_data(run.recipe, run.folders(), run.tokenizers, ["test"])
        .pairs["test"]
        .sides["source"][:3]
    )
    assert {page.read_text(encoding="utf-8") for page in pages} == {
        alignment_page(item) for item in alignments(run, lines)
    }
    for page in pages:
        check_self_contained(read(page))
        assert len(by_class(read(page), "map")) == 2
    (file,) = trained.glob("wandb/offline-run-*/*.wandb")
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "alignments" in text
    assert "bleu_by_source_length" in text
    scores, logged = evaluate(trained), {}
    for chart, key in (("bleu", "bleu_by_source_length"), ("accuracy", "accuracy_by_length")):
        (file,) = trained.glob(
            f"wandb/offline-run-*/files/media/plotly/{chart}_by_source_length_*.plotly.json"
        )
        logged[chart] = json.loads(file.read_text())["data"]
        assert len(logged[chart][0]["x"]) == len(scores[f"test/{key}"])
    # of a task, the report shows the accuracy alone: the same figure
    assert logged["accuracy"] in [figure["data"] for figure in figures(read(report(trained)))]


def test_a_grid_without_attention_is_filmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(
        WandbLogger, "pictures", lambda self, step, pages, lengths: given.append(pages)
    )
    monkeypatch.setattr(WandbLogger, "is_on", True)
    before, after = TINY.split("  encoder:")[0], TINY.split("  output:")[1].partition("\n")[2]
    steps = "{repeat: {times: length, share: true, stack: [cgru]}}"
    stacks = f"  encoder: [{{grid: {{columns: 2, max_length_ratio: 1}}}}, {steps}, select_column]"
    recipe = f"{before}{stacks}\n  decoder: [source_state]\n{after}"
    (tmp_path / "tiny.yaml").write_text(recipe, encoding="utf-8")
    train(load(tmp_path / "tiny.yaml", ["training.max_steps=1"]), tmp_path / "run")
    (pages,) = given
    assert [len(by_class(read(page), "film")) for page in pages] == [1, 1, 1]
    for page in pages:
        check_self_contained(read(page))


def test_an_error_in_a_picture_does_not_stop_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def is_torn(*_: Any) -> None:
        raise RuntimeError("the picture\nis torn")

    monkeypatch.setattr(finalize, "alignments", is_torn)
    monkeypatch.setattr(WandbLogger, "is_on", True)
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    done = train(load(tmp_path / "tiny.yaml", ["training.max_steps=1"]), tmp_path / "run")
    assert done.record.status == "finished"
    assert "no pictures for Weights & Biases: the picture is torn" in capsys.readouterr().out


def test_without_a_test_split_the_validation_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[list[str], list[dict[str, Any]]]] = []
    monkeypatch.setattr(
        WandbLogger, "pictures", lambda self, step, pages, lengths: given.append((pages, lengths))
    )
    monkeypatch.setattr(WandbLogger, "is_on", True)
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("a b c a\nb a c c\nc c b a\n" * 10, encoding="utf-8")
    files = "parallel: {train: {source: a.txt, target: b.txt}, val: {source: a.txt, target: b.txt}}"
    generated = next(line for line in TINY.splitlines() if "generate:" in line).strip()
    (tmp_path / "tiny.yaml").write_text(TINY.replace(generated, files), encoding="utf-8")
    train(load(tmp_path / "tiny.yaml", ["training.max_steps=1"]), tmp_path / "run")
    ((pages, lengths),) = given
    assert len(pages) == 3
    assert [(row["words"], row["lines"]) for row in lengths] == [("1-10", 30)]


def test_without_wandb_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(finalize, "alignments", lambda *told: drawn.append(told))
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    train(load(tmp_path / "tiny.yaml", ["training.max_steps=1"]), tmp_path / "run")
    assert drawn == []

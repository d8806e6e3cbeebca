"""A model of images, sounds and text trains from tables, resumes, decodes, is evaluated and reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

import composer
from composer.cli import main
from composer.errors import ComposerError, DataError, RunError
from composer.recipe.recipe import load
from tests.viz.pages import by_class, check_self_contained, read, texts

WORDS = ("zero", "one", "two", "three")
RECIPE: dict[str, Any] = {
    "recipe": 1,
    "data": {
        "table": {
            "train": "train.tsv",
            "val": 4,
            "test": "test.tsv",
            "image": {"column": "image", "kind": "image", "size": [6, 8], "augment": {"shift": 0.2}},
            "sound": {
                "column": "sound",
                "kind": "audio",
                "rate": 8000,
                "features": {"log_mel": {"bands": 5}},
                "spec_augment": {"bands": 2, "frames": 2},
            },
            "text": "words",
            "target": "answer",
        },
    },
    "model": {
        "width": 8,
        "encoders": {
            "image": [{"conv2d": [3, 3]}, "sum_columns"],
            "sound": ["linear", {"rnn": {"cell": "gru"}}],
            "text": [{"rnn": {"cell": "gru"}}],
        },
        "decoder": [
            {"rnn": {"cell": "gru"}},
            *({"residual": [{"cross_attention": {"from": name}}]} for name in ("image", "sound", "text")),
        ],
    },
    "training": {"max_steps": 4, "tokens_per_batch": 120, "validate_every": 2},
    "logging": {"wandb": False},
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    (tmp_path / "files").mkdir()
    for split, count in (("train", 20), ("test", 5)):
        rows = ["image\tsound\twords\tanswer"]
        for number in range(count):
            image, sound = f"files/{split}{number}.png", f"files/{split}{number}.wav"
            size = (int(random.integers(2, 7)), int(random.integers(2, 9)))
            Image.fromarray(random.integers(0, 256, size, dtype=np.uint8)).save(tmp_path / image)
            soundfile.write(tmp_path / sound, random.normal(size=int(random.integers(300, 900))) / 9, 8000)
            rows.append(f"{image}\t{sound}\tsay {WORDS[number % 4]}\t{WORDS[number % 4]} {WORDS[number % 3]}")
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(RECIPE))
    return file


def test_a_run_goes_through_every_command(recipe: Path, tmp_path: Path) -> None:
    assert not composer.check(recipe)
    composer.train(load(recipe), run=tmp_path / "run")
    run = composer.open_run(tmp_path / "run")
    lines = ["\t".join((str(tmp_path / "files/test0.png"), str(tmp_path / "files/test0.wav"), "say one"))]
    assert len(run.translate(lines)) == 1
    assert np.isfinite(run.score(lines, ["one two"])[0].total)
    scores = composer.evaluate(tmp_path / "run")
    assert scores["test/loss"] > 0
    check_page(composer.report(tmp_path / "run"), tmp_path)


def check_page(file: Path, folder: Path) -> None:
    """Fails unless the report shows the images, plays the sounds, and lays attention over both."""
    page = read(file)
    check_self_contained(page)
    assert str(folder / "files") not in file.read_text(encoding="utf-8").partition('id="recipe"')[0]
    samples, *_ = by_class(page, "samples")
    shown = [item for item in samples.iter("dd") if list(item.iter("img"))]
    assert texts(samples, "sample")[0].startswith("image files/test0.png\n")
    assert len(shown) == len([*samples.iter("audio")]) == 5
    (sentence, *_) = (item for item in by_class(page, "sentence") if by_class(item, "strip"))
    assert len([*sentence.iter("audio")]) == 1
    (strip,) = by_class(sentence, "strip")  # of the image
    heat_maps = by_class(sentence, "map")
    words = [item.text for item in strip.iter("figcaption")]
    assert words[0] == "what is read"
    assert words[-1] == "⟨eos⟩"
    spectrograms = {f"#{item.get('id')}" for item in by_class(sentence, "spectrogram")}
    of_sound = [item for item in heat_maps if spectrograms.intersection(use.get("href") for use in item.iter("use"))]
    assert len(heat_maps) == 2  # of the sound, and of the text
    assert len(of_sound) == len(spectrograms) == 1


def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(recipe: Path, tmp_path: Path) -> None:
    full, half = load(recipe), load(recipe, ["training.max_steps=2"])
    composer.train(full, run=tmp_path / "whole")
    composer.train(half, run=tmp_path / "parts")
    composer.train(load(recipe, ["training.max_steps=4"]), run=tmp_path / "parts", resume=True)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]


def test_a_missing_file_is_told_before_the_training(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "files" / "train3.png").unlink()
    faults = composer.check(recipe)
    with pytest.raises(ComposerError, match=r"train3\.png.*no such file"):
        composer.train(load(recipe), run=tmp_path / "run")
    assert [(fault.file, fault.line) for fault in faults] == [(str(tmp_path / "train.tsv"), 5)]
    assert not (tmp_path / "run").exists()


def test_a_line_whose_file_is_not_there_is_refused(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    composer.train(load(recipe, ["training.max_steps=1"]), run=tmp_path / "run")
    run = composer.open_run(tmp_path / "run")
    with pytest.raises((DataError, RunError), match=r"gone\.png"):
        run.translate([f"gone.png\t{tmp_path / 'files/test0.wav'}\tsay one"])
    capsys.readouterr()
    # names begin where the command runs, and a fault has the line of the input
    monkeypatch.chdir(tmp_path / "files")
    lines = ["test0.png\ttest0.wav\tsay one", "", "test1.png\ttest1.wav\tsay two"]
    (tmp_path / "good.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "bad.txt").write_text("\n".join([*lines, "test2.png\tgone.wav\tsay one"]))
    with pytest.raises(SystemExit):
        main.main(["translate", str(tmp_path / "run"), "--input", str(tmp_path / "good.txt")])
    assert capsys.readouterr().out.count("\n") == 3
    with pytest.raises(SystemExit):
        main.main(["translate", str(tmp_path / "run"), "--input", str(tmp_path / "bad.txt")])
    assert "bad.txt:4:1: error[file]: `gone.wav`: " in capsys.readouterr().err

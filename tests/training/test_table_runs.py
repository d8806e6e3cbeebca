"""A model of images, sounds and text trains from tables, resumes, decodes, is evaluated and
reported.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import composer
from composer.cli import main
from composer.data import line_hashes
from composer.errors import ComposerError, DataError, Fault, RunError
from composer.recipe.recipe import load
from composer.training.preflight import check_recipe
from tests.viz.pages import by_class, check_self_contained, read, texts

WORDS = ("zero", "one", "two", "three")
RECIPE: dict[str, Any] = {
    "recipe": 1,
    "data": {
        "table": {
            "train": "train.tsv",
            "val": 4,
            "test": "test.tsv",
            "image": {
                "column": "image",
                "kind": "image",
                "size": [6, 8],
                "augment": {"shift": 0.2},
            },
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
            *(
                {"residual": [{"cross_attention": {"from": name}}]}
                for name in ("image", "sound", "text")
            ),
        ],
    },
    "training": {
        "max_steps": 4,
        "tokens_per_batch": 120,
        "validate_every": 2,
        "validation_sample": {"lines": 1, "decoding": {"greedy": {"max_length": 4}}},
    },
    "decoding": {"greedy": {"max_length": 8}},
    "logging": {"wandb": False},
}


def write_data(folder: Path) -> Path:
    """The files of a recipe, and the recipe beside them."""
    random = np.random.default_rng(1)
    (folder / "files").mkdir()
    for split, count in (("train", 20), ("test", 5)):
        rows = ["image\tsound\twords\tanswer"]
        for number in range(count):
            image, sound = f"files/{split}{number}.png", f"files/{split}{number}.wav"
            size = (int(random.integers(2, 7)), int(random.integers(2, 9)))
            Image.fromarray(random.integers(0, 256, size, dtype=np.uint8)).save(folder / image)
            soundfile.write(
                folder / sound, random.normal(size=int(random.integers(300, 900))) / 9, 8000
            )
            rows.append(
                f"{image}\t{sound}\tsay {WORDS[number % 4]}\t{WORDS[number % 4]}"
                f" {WORDS[number % 3]}"
            )
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(RECIPE))
    return file


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_data(tmp_path)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files, `recipe.yaml` and a finished `run`, which nobody changes."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("table")
    composer.train(load(write_data(folder)), run=folder / "run")
    return folder


def test_a_run_goes_through_every_command(home: Path, tmp_path: Path) -> None:
    assert not composer.check(home / "recipe.yaml")
    run = composer.open_run(home / "run")
    lines = ["\t".join((str(home / "files/test0.png"), str(home / "files/test0.wav"), "say one"))]
    assert len(run.translate(lines)) == 1
    assert np.isfinite(run.score(lines, ["one two"])[0].total)
    scores = composer.evaluate(home / "run", overrides=["evaluation.metrics=[bleu]"])
    assert scores["test/loss"] > 0
    assert scores["test/bleu"] >= 0
    assert not [name for name in scores if "length" in name]  # that of a file's name means nothing
    check_page(composer.report(home / "run", output=tmp_path / "report.html"), home)


def test_measured_files_count_by_what_is_in_them(recipe: Path, tmp_path: Path) -> None:
    composer.train(load(recipe, ["training.max_steps=1"]), run=tmp_path / "run")
    hashes = [composer.evaluate(tmp_path / "run")["test/measured"]["sha256"]]
    for name in ("test.tsv", "files"):
        (tmp_path / "moved").mkdir(exist_ok=True)
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    shutil.copy(tmp_path / "train.tsv", tmp_path / "moved")
    hashes.append(
        composer.evaluate(tmp_path / "run", data=tmp_path / "moved")["test/measured"]["sha256"]
    )
    sound = tmp_path / "moved" / "files" / "test3.wav"
    soundfile.write(sound, soundfile.read(sound)[0] / 2, 8000)
    hashes.append(
        composer.evaluate(tmp_path / "run", data=tmp_path / "moved")["test/measured"]["sha256"]
    )
    assert hashes[0] == hashes[1]
    assert [side for side, own in hashes[2].items() if own != hashes[0][side]] == ["sound"]


def check_page(file: Path, folder: Path) -> None:
    """Fails unless the report shows the images, plays the sounds, and lays attention over both."""
    page = read(file)
    check_self_contained(page)
    assert str(folder / "files") not in file.read_text(encoding="utf-8").partition('id="recipe"')[0]
    samples, *_ = by_class(page, "samples")
    shown = [item for item in samples.iter("dd") if list(item.iter("img"))]
    assert texts(samples, "sample")[0].startswith("image files/test0.png\n")
    assert len(shown) == len([*samples.iter("audio")]) == 5
    sentence, *_ = (item for item in by_class(page, "sentence") if by_class(item, "strip"))
    assert len([*sentence.iter("audio")]) == 1
    (strip,) = by_class(sentence, "strip")  # of the image
    heat_maps = by_class(sentence, "map")
    words = [item.text for item in strip.iter("figcaption")]
    assert words[0] == "what is read"
    assert words[-1] == "⟨eos⟩"
    spectrograms = {f"#{item.get('id')}" for item in by_class(sentence, "spectrogram")}
    of_sound = [
        item
        for item in heat_maps
        if spectrograms.intersection(use.get("href") for use in item.iter("use"))
    ]
    assert len(heat_maps) == 2  # of the sound, and of the text
    assert len(of_sound) == len(spectrograms) == 1


def test_a_resumed_run_has_the_weights_of_an_uninterrupted_one(home: Path, tmp_path: Path) -> None:
    recipe = home / "recipe.yaml"
    composer.train(load(recipe, ["training.max_steps=2"]), run=tmp_path / "parts")
    composer.train(load(recipe, ["training.max_steps=4"]), run=tmp_path / "parts", resume=True)
    weights = [
        (run / "model.safetensors").read_bytes() for run in (home / "run", tmp_path / "parts")
    ]
    assert weights[0] == weights[1]


def own_warnings(recipe: Path, any_machine: bool = False) -> list[Fault]:
    """Those of the files, and not that training and test have the same few texts and pictures."""
    warnings = check_recipe(load(recipe), any_machine=any_machine).warnings
    return [fault for fault in warnings if fault.code != "overlap"]


def test_a_cache_that_cannot_be_written_is_reported_by_check_as_by_train(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").write_text("")
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    (fault,) = composer.check(recipe)
    with pytest.raises(RunError) as error:
        composer.train(load(recipe), run=tmp_path / "run")
    (told,) = error.value.faults
    assert "the cache of images, sounds and vectors cannot be written" in told.message
    assert fault.message == f"on this machine, {told.message}"
    assert own_warnings(recipe, any_machine=True) == []


def test_a_missing_file_is_reported_before_the_training(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "files" / "train3.png").unlink()
    faults = composer.check(recipe)
    with pytest.raises(ComposerError, match=r"train3\.png.*no such file"):
        composer.train(load(recipe), run=tmp_path / "run")
    assert [(fault.file, fault.line) for fault in faults] == [(str(tmp_path / "train.tsv"), 5)]
    assert not (tmp_path / "run").exists()


def test_a_line_whose_file_is_not_there_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = composer.open_run(home / "run")
    with pytest.raises((DataError, RunError), match=r"gone\.png"):
        run.translate([f"gone.png\t{home / 'files/test0.wav'}\tsay one"])
    capsys.readouterr()
    # names begin where the command runs, and a fault has the line of the input
    monkeypatch.chdir(home / "files")
    lines = ["test0.png\ttest0.wav\tsay one", "", "test1.png\ttest1.wav\tsay two"]
    (tmp_path / "good.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "bad.txt").write_text("\n".join([*lines, "test2.png\tgone.wav\tsay one"]))
    with pytest.raises(SystemExit):
        main.main(["translate", str(home / "run"), "--input", str(tmp_path / "good.txt")])
    assert capsys.readouterr().out.count("\n") == 3
    with pytest.raises(SystemExit):
        main.main(["translate", str(home / "run"), "--input", str(tmp_path / "bad.txt")])
    assert "bad.txt:4:1: error[file]: `gone.wav`: " in capsys.readouterr().err


def test_in_python_a_line_may_be_the_path_of_a_file(recipe: Path, tmp_path: Path) -> None:
    table = {**RECIPE["data"]["table"], "source": RECIPE["data"]["table"]["sound"]}
    table = {key: value for key, value in table.items() if key not in RECIPE["model"]["encoders"]}
    model = {"width": 8, "encoder": ["linear", "rnn"], "decoder": ["rnn", "cross_attention"]}
    recipe.write_text(json.dumps({**RECIPE, "data": {"table": table}, "model": model}))
    composer.train(load(recipe, ["training.max_steps=1"]), run=tmp_path / "run")
    run, sound = composer.open_run(tmp_path / "run"), tmp_path / "files/test0.wav"
    assert run.translate([sound]) == run.translate([str(sound)])
    assert run.score([sound], ["one"]) == run.score([str(sound)], ["one"])
    assert [one.output for one in run.alignments([sound])] == [
        one.output for one in run.alignments([str(sound)])
    ]
    for call in (
        run.translate,
        run.encode,
        run.alignments,
        lambda lines: run.score(lines, ["one"]),
    ):
        with pytest.raises(RunError, match=r"expected a string, got `\(3,\)`.*\n.*paths of files"):
            call([(3,)])
        with pytest.raises(DataError, match=r"^<lines>:1:1: error\[file\]: `gone\.wav`"):
            call(["gone.wav"])
    with pytest.raises(RunError, match="expected a string, got `None`"):
        run.score([sound], [None])


def test_a_damaged_file_is_reported_with_the_line_of_its_table(
    recipe: Path, tmp_path: Path
) -> None:
    file = tmp_path / "files" / "train3.png"
    file.write_bytes(file.read_bytes()[:40])
    faults = composer.check(recipe)
    assert [(fault.file, fault.line, fault.code) for fault in faults] == [
        (str(tmp_path / "train.tsv"), 5, "image")
    ]
    with pytest.raises(DataError) as error:
        composer.train(load(recipe), run=tmp_path / "run")
    assert error.value.faults == faults


def test_silent_sounds_other_rates_and_lost_colours_are_reported_by_check_and_train(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    for number, (peak, rate) in enumerate(((0.0, 8000), (0.5, 16000), (1e-4, 16000), (0.5, 44100))):
        soundfile.write(files / f"train{number}.wav", np.full(2000, peak), rate)
    Image.new("RGBA", (4, 4), (0, 255, 0, 128)).save(files / "test2.png")
    warnings = {
        (fault.code, fault.line, Path(fault.file).name): fault for fault in own_warnings(recipe)
    }
    assert warnings.keys() == {
        *(("silent", 2, "train.tsv"), ("rate", 3, "train.tsv")),
        *(("blank", 4, "test.tsv"), ("grey", 4, "test.tsv"), ("transparent", 4, "test.tsv")),
    }
    assert {fault.severity for fault in warnings.values()} == {"warning"}
    assert "2 of " in warnings["silent", 2, "train.tsv"].message
    assert "16000 Hz (2), 44100 Hz (1)" in warnings["rate", 3, "train.tsv"].message
    composer.train(load(recipe), run=tmp_path / "run")
    captured = capsys.readouterr()
    assert (
        f"{tmp_path / 'train.tsv'}:2:1: warning[silent]: 2 of 20 sounds"
        in captured.out + captured.err
    )
    explicit = load(recipe, ["data.table.image.channels=1"])
    assert "grey" not in {fault.code for fault in check_recipe(explicit).warnings}


def test_files_are_counted_in_every_part_that_is_read(recipe: Path, tmp_path: Path) -> None:
    """In parts of one size, too, and where nothing was noticed; a file that two test sets name
    counts once.
    """
    for image in (tmp_path / "files").glob("*.png"):
        Image.new("RGB", (4, 4), (0, 255, 0)).save(image)
    soundfile.write(tmp_path / "files" / "train0.wav", np.zeros(2000), 8000)
    overrides = ["data.table.test=4", "data.table.test_sets={one: test.tsv, two: test.tsv}"]
    warnings = check_recipe(load(recipe, overrides)).warnings
    messages = {(fault.code, Path(fault.file).name): fault.message for fault in warnings}
    assert messages["grey", "train.tsv"].startswith("20 of 20 images")
    assert messages["grey", "test.tsv"].startswith("5 of 5 images")
    assert messages["silent", "train.tsv"].startswith("1 of 20 sounds")


def test_empty_cells_are_reported_with_their_lines_by_check_and_train(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert own_warnings(recipe) == []
    for name, empty in (("train", {2: 3, 4: 3, 7: 2}), ("test", {1: 3, 3: 2})):
        rows = [line.split("\t") for line in (tmp_path / f"{name}.tsv").read_text().splitlines()]
        for row, column in empty.items():
            rows[row][column] = " "
        (tmp_path / f"{name}.tsv").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    warnings = own_warnings(recipe)
    assert [
        (Path(fault.file).name, fault.line, fault.code, fault.severity)
        for fault in sorted(warnings)
    ] == [
        *(("test.tsv", line, "empty", "warning") for line in (2, 4)),
        *(("train.tsv", line, "empty", "warning") for line in (3, 8)),
    ]
    messages = {(Path(fault.file).name, fault.line): fault.message for fault in warnings}
    assert messages["train.tsv", 3].startswith(
        "2 of 16 cells of `answer` are empty (lines 3, 5): the training leaves"
    )
    assert messages["train.tsv", 8].startswith(
        "1 of 16 cells of `words` are empty (line 8): the training leaves"
    )
    assert messages["test.tsv", 2].startswith(
        "1 of 5 cells of `answer` are empty (line 2): exact match"
    )
    assert messages["test.tsv", 4].endswith(
        "these rows are measured, and the model reads nothing there"
    )
    composer.train(load(recipe, ["training.max_steps=1"]), run=tmp_path / "run")
    captured = capsys.readouterr()
    assert (
        f"{tmp_path / 'train.tsv'}:3:1: warning[empty]: 2 of 16 cells"
        in captured.out + captured.err
    )


def test_the_rate_of_all_sounds_is_what_to_write(recipe: Path) -> None:
    warnings = check_recipe(load(recipe, ["data.table.sound.rate=16000"])).warnings
    hints = {fault.hint for fault in warnings if fault.code == "rate"}
    assert hints == {"write `rate: 8000`, or leave it at that"}


def test_the_fingerprint_counts_what_is_in_files_and_not_their_names(
    recipe: Path, tmp_path: Path
) -> None:
    first = composer.fingerprints(recipe)
    assert composer.fingerprints(recipe) == first
    table = (tmp_path / "train.tsv").read_text()
    (tmp_path / "files" / "train0.png").rename(tmp_path / "other.png")
    for name in ("other.png", str(tmp_path / "other.png"), "files/../other.png"):
        (tmp_path / "train.tsv").write_text(table.replace("files/train0.png", name))
        assert composer.fingerprints(recipe)["data"] == first["data"]
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "other.png")
    (tmp_path / "train.tsv").write_text(table.replace("files/train0.png", "packed.zip/other.png"))
    assert composer.fingerprints(recipe)["data"] == first["data"]
    (tmp_path / "train.tsv").write_text(table.replace("files/train0.png", "other.png"))
    Image.fromarray(np.eye(5, dtype=np.uint8)).save(tmp_path / "other.png")
    other = composer.fingerprints(recipe)
    assert (other["data"] != first["data"], other["model"] == first["model"]) == (True, True)


def test_files_that_have_not_changed_are_hashed_once(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = composer.fingerprints(recipe)
    monkeypatch.setattr(line_hashes, "hash_contents", None)
    assert composer.fingerprints(recipe) == first

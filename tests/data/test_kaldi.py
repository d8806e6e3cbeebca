"""Data folders of Kaldi: their columns, parts of recordings, and ids that do not match."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

import composer
from composer.data.columns import locate
from composer.data.kaldi import COLUMNS, check_folder, open_folder
from composer.errors import ComposerError
from composer.recipe.recipe import load

RECIPE = """
recipe: 1
data:
  table: {train: train, source: {column: sound, kind: audio, rate: 8000}, target: text}
model: {width: 8, encoder: [linear], decoder: [{residual: [cross_attention]}]}
training: {max_steps: 1}
logging: {wandb: false}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "train"
    folder.mkdir()
    random = np.random.default_rng(1)
    for name in "ab":
        soundfile.write(folder / f"{name}.wav", random.normal(size=8000) / 9, 8000)
    (folder / "wav.scp").write_text(f"rec-a a.wav\nrec-b  {folder / 'b.wav'}\n")
    (folder / "segments").write_text("u1 rec-a 0.0 0.5\nu2 rec-a 0.00001 -1\nu3 rec-b 0.25 1.2\n")
    (folder / "text").write_text("u3 three  words here\nu1 one\nu2\n")
    (folder / "utt2spk").write_text("u1 s1\nu2 s1\nu3 s2\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return folder


def test_a_row_is_a_segment_whatever_the_order_of_the_other_files(folder: Path) -> None:
    columns = open_folder(folder, {name: name for name in COLUMNS})
    assert [*columns["id"]] == ["u1", "u2", "u3"]
    assert [*columns["sound"]] == [
        "a.wav#t=0,0.5",
        "a.wav#t=0.00001",
        f"{folder / 'b.wav'}#t=0.25,1.2",
    ]
    assert [*columns["text"]] == columns["text"][:] == ["one", "", "three  words here"]
    assert [*columns["speaker"]] == ["s1", "s1", "s2"]
    assert locate(columns["text"], 2) == (folder / "text", 1)
    assert locate(columns["sound"], 2) == (folder / "segments", 3)


def test_without_segments_a_row_is_a_recording(folder: Path) -> None:
    (folder / "segments").unlink()
    (folder / "text").write_text("rec-b two\nrec-a one\n")
    columns = open_folder(folder, {"source": "sound", "target": "text"})
    assert [*columns["source"]] == ["a.wav", str(folder / "b.wav")]
    assert [*columns["target"]] == ["one", "two"]
    assert not [*check_folder(folder, {"sound", "text"})]


def test_a_model_trains_on_the_segments_of_a_folder(folder: Path, tmp_path: Path) -> None:
    recipe = load(tmp_path / "recipe.yaml")
    assert not composer.check(recipe)
    composer.train(recipe, run=tmp_path / "run")
    run = composer.open_run(tmp_path / "run")
    assert len(run.translate([f"{folder / 'a.wav'}#t=0.1,0.2"])) == 1


def test_a_command_is_refused_and_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / "wav.scp").write_text(f"rec-a touch {tmp_path / 'made'} |\nrec-b b.wav\n")
    (fault,) = composer.check(tmp_path / "recipe.yaml")
    assert (fault.file, fault.line) == (str(folder / "wav.scp"), 1)
    assert "this is a command, and a table runs none" in fault.message
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("file", "content", "place", "message"),
    [
        (
            "text",
            "u1 a\nu2 b\nu9 c\nu8 d\nu3 e\n",
            ("text", 3),
            "its id is not in `segments` (and 1 more like it)",
        ),
        ("text", "u2 b\n", ("segments", 1), "its id is not in `text` (and 1 more like it)"),
        ("text", "u1 a\nu2 b\n\nu3 c\n", ("text", 3), "this line is blank"),
        (
            "utt2spk",
            "u1 s\nu2 s\nu3 s\nu3 t\n",
            ("utt2spk", 3),
            "its id is there twice (and 1 more like it)",
        ),
        ("wav.scp", "rec-a a.wav\n", ("segments", 3), "its recording is not in `wav.scp`"),
        ("wav.scp", "rec-a a.wav\nrec-b\n", ("wav.scp", 2), "it names no file"),
        (
            "segments",
            "u1 rec-a 0 1\nu2 rec-a 2 1\nu3 rec-b 0 nan\n",
            ("segments", 2),
            "this is not a segment (and 1 more",
        ),
        (
            "segments",
            "u1 rec-a 0 1\nu2 rec-a -1 1\nu3 rec-b 0\n",
            ("segments", 2),
            "this is not a segment (and 1 more",
        ),
    ],
)
def test_files_that_do_not_match_are_reported_with_line_and_number(
    folder: Path, file: str, content: str, place: tuple[str, int], message: str
) -> None:
    (folder / file).write_text(content)
    faults = [*check_folder(folder, {*COLUMNS})]
    assert (str(folder / place[0]), place[1]) in [(fault.file, fault.line) for fault in faults]
    assert any(message in fault.message for fault in faults)


def test_a_file_or_a_column_that_is_not_there_is_reported(folder: Path, tmp_path: Path) -> None:
    (folder / "text").unlink()
    with pytest.raises(ComposerError, match="this folder has no `text`"):
        composer.train(load(tmp_path / "recipe.yaml"), run=tmp_path / "run")
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("target: text", "target: txt"))
    (fault,) = composer.check(tmp_path / "recipe.yaml")
    assert "has no column `txt`; did you mean `text`?" in fault.message


def test_a_segment_behind_the_end_of_its_recording_is_reported_with_its_line(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "segments").write_text("u1 rec-a 0 1\nu2 rec-a 0.5 1.4\nu3 rec-b 0.5 1.6\n")
    (fault,) = composer.check(tmp_path / "recipe.yaml")
    assert (fault.file, fault.line) == (str(folder / "segments"), 3)
    assert "has 1.00 seconds, and this part of it is not there" in fault.message


def test_a_folder_counts_by_its_sounds(folder: Path, tmp_path: Path) -> None:
    first = composer.fingerprints(tmp_path / "recipe.yaml")["data"]
    (folder / "a.wav").rename(folder / "c.wav")
    (folder / "wav.scp").write_text("rec-a ../train/c.wav\nrec-b b.wav\n")
    assert composer.fingerprints(tmp_path / "recipe.yaml")["data"] == first
    (folder / "segments").write_text("u1 rec-a 0.0 0.4\nu2 rec-a 0.00001 -1\nu3 rec-b 0.25 1.2\n")
    assert composer.fingerprints(tmp_path / "recipe.yaml")["data"] != first


def test_a_folder_without_sounds_is_told_what_it_lacks(folder: Path, tmp_path: Path) -> None:
    (folder / "wav.scp").rename(tmp_path / "wav.scp")
    (fault,) = composer.check(tmp_path / "recipe.yaml")
    assert (fault.line, fault.path) == (4, "data.table.train")
    assert f"`{folder}` is a folder, and has no `wav.scp`" in fault.message
    assert (
        fault.hint
        == "name a table in it, or add `wav.scp` to it, with a line `ID FILE` for each recording"
    )
    (tmp_path / "wav.scp").rename(folder / "wav.scp")
    assert not composer.check(tmp_path / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("train: train", "train: trian"))
    (fault,) = composer.check(tmp_path / "recipe.yaml")
    assert "no file `trian`" in fault.message


@pytest.mark.parametrize("is_there", [True, False])
def test_a_recording_at_fault_is_reported_once_with_the_number_of_its_segments(
    folder: Path, tmp_path: Path, is_there: bool
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("train: train", "train: train, val: 1"))
    ends = [number / 20 for number in range(1, 9)]
    segments = [f"{name}{end} rec-{name} 0 {end}" for end in ends for name in "ab"]
    (folder / "segments").write_text("\n".join(segments) + "\n")
    (folder / "text").write_text("\n".join(f"{line.split()[0]} words" for line in segments) + "\n")
    (folder / "utt2spk").unlink()
    assert not composer.check(tmp_path / "recipe.yaml")
    sound = (folder / "b.wav").read_bytes()[:99]
    (folder / "b.wav").unlink()
    if is_there:
        (folder / "b.wav").write_bytes(sound)
    (fault,) = composer.check(tmp_path / "recipe.yaml")
    assert (fault.file, fault.line) == (str(folder / "segments"), 2)
    assert fault.message.startswith(f"`{folder / 'b.wav'}`: ")
    assert fault.message.endswith("; 8 lines name it")
    with pytest.raises(ComposerError) as error:
        composer.train(load(tmp_path / "recipe.yaml"), run=tmp_path / "run")
    assert error.value.faults == [fault]

"""Spoken digits: frames by speaker, and tables in which the one who is left out is in the test
alone.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("soundfile")

import soundfile

from prepare_data.spoken_digits import BANDS, NAMES, RATE, write_frames, write_speakers

SPEAKERS = ("ann", "bob")


@pytest.fixture
def fsdd(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    (tmp_path / "fsdd" / "recordings").mkdir(parents=True)
    for speaker, level in zip(SPEAKERS, (0.01, 0.2), strict=True):
        for digit in range(3):
            samples = level * (digit + 1) * random.normal(size=RATE // 4 * (digit + 1)).clip(-1, 1)
            soundfile.write(
                tmp_path / "fsdd" / "recordings" / f"{digit}_{speaker}_0.wav", samples, RATE
            )
    return tmp_path / "fsdd"


def rows() -> list[dict[str, str]]:
    return [
        {"file": f"{digit}_{speaker}_0.wav", "digit": str(digit), "speaker": speaker}
        for digit in range(3)
        for speaker in SPEAKERS
    ]


def test_bands_have_mean_0_over_a_speaker_and_not_over_each_recording(
    fsdd: Path, tmp_path: Path
) -> None:
    write_frames(fsdd, tmp_path, rows(), mean_of=500, seed=1)
    for speaker in SPEAKERS:
        frames = [np.load(tmp_path / "frames" / f"{digit}_{speaker}_0.npy") for digit in range(3)]
        assert {own.shape[1] for own in frames} == {BANDS}
        assert np.abs(np.concatenate(frames).mean(0)).max() < 1e-4
        assert all(np.abs(own.mean(0)).max() > 0.05 for own in frames)


def test_a_mean_can_be_that_of_one_recording(fsdd: Path, tmp_path: Path) -> None:
    write_frames(fsdd, tmp_path, rows(), mean_of=1, seed=1)
    for speaker in SPEAKERS:
        frames = [np.load(tmp_path / "frames" / f"{digit}_{speaker}_0.npy") for digit in range(3)]
        assert sum(np.abs(own.mean(0)).max() < 1e-4 for own in frames) == 1


def test_who_is_left_out_is_in_the_test_alone_and_every_row_has_its_files(
    fsdd: Path, tmp_path: Path
) -> None:
    write_frames(fsdd, tmp_path, rows(), mean_of=500, seed=1)
    write_speakers(fsdd, tmp_path, rows())
    for split in ("train", "val", "test"):
        folder = tmp_path / "without-bob"
        with (folder / f"{split}.tsv").open(encoding="utf-8") as file:
            table = [*csv.DictReader(file, delimiter="\t")]
        assert table
        for row in table:
            name = Path(row["sound"]).stem
            assert ("bob" in name) == (split == "test")
            assert row["words"] == NAMES[int(name[0])]
            assert (folder / row["sound"]).is_file()
            assert (folder / row["frames"]).stem == name
            assert (folder / row["frames"]).is_file()

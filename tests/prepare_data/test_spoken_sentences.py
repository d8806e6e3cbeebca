"""Spoken sentences: words of a text, in voices of their own split. espeak-ng speaks only where it
is installed.
"""

from __future__ import annotations

import csv
import shutil
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("soundfile")
pytest.importorskip("soxr")

from prepare_data import spoken_sentences
from prepare_data.spoken_sentences import RATE, VOICES, choose_sentences, speak, write_sentences

ESPEAK = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="needs espeak-ng: apt-get install espeak-ng"
)
WORDS = product(("big", "small"), ("red", "black", "grey"), ("dog", "cat", "horse", "bird"))
LINES = [f"The {size}, {colour} {animal} runs." for size, colour, animal in WORDS]


def read_split(folder: Path, split: str) -> list[dict[str, str]]:
    with (folder / f"{split}.tsv").open(encoding="utf-8") as file:
        return [*csv.DictReader(file, delimiter="\t")]


def test_sentences_are_words_in_small_letters() -> None:
    lines = [
        "A dog's well-worn toy.",
        "He has 3 dogs.",
        "",
        "It is naïve.",
        " ".join("a" * 13),
        "A dog, a DOG!",
    ]
    assert choose_sentences(lines, types=100) == ["a dog's well worn toy", "a dog a dog"]


def test_only_frequent_words_are_spoken() -> None:
    assert choose_sentences(["a dog", "a dog", "a cat", "dog"], types=2) == [
        "a dog",
        "a dog",
        "dog",
    ]


def test_no_split_shares_a_voice() -> None:
    names = sum(VOICES.values(), ())
    assert len(names) == len(set(names))
    assert len(VOICES["test"]) >= 2


def test_splits_share_no_sentence_and_no_voice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the program: a voice is a tone, as long as its text."""

    def beep(text: str, voice: str, speed: int, pitch: int) -> np.ndarray:
        return np.full(len(text) * 10, pitch / 100, np.float32)

    monkeypatch.setattr(spoken_sentences, "speak", beep)
    for folder in ("one", "same"):
        write_sentences(LINES, tmp_path / folder, train=14, measured=5, types=100, seed=1)
    rows = {split: read_split(tmp_path / "one", split) for split in VOICES}
    texts = [row["text"] for part in rows.values() for row in part]
    assert len(texts) == len(set(texts)) == 24
    for split, part in rows.items():
        assert {row["voice"] for row in part} <= set(VOICES[split])
        for name in (f"{split}.tsv", f"{split}.zip"):
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "same" / name).read_bytes()


def test_a_missing_program_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["spoken_sentences", "--text", str(tmp_path / "a"), "--folder", str(tmp_path)]
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit):
        spoken_sentences.main()
    assert "espeak-ng is not installed: run `apt-get install espeak-ng`" in capsys.readouterr().err


@ESPEAK
def test_espeak_speaks_with_every_voice_and_repeats() -> None:
    sounds = [speak("a dog runs", voice, 150, 50) for voice in sum(VOICES.values(), ())]
    assert all(0.3 * RATE < len(sound) < 2 * RATE and np.abs(sound).max() > 0.1 for sound in sounds)
    assert len({sound.tobytes() for sound in sounds}) == len(sounds)
    assert np.array_equal(speak("a dog runs", "m4", 150, 50), speak("a dog runs", "m4", 150, 50))


@ESPEAK
def test_a_voice_that_espeak_lacks_is_not_replaced_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert spoken_sentences.missing_voices() == []
    monkeypatch.setitem(VOICES, "test", ("m4", "nobody"))
    assert spoken_sentences.missing_voices() == ["nobody"]


@ESPEAK
def test_a_faster_voice_is_shorter_and_a_higher_one_is_another() -> None:
    usual = speak("a dog runs over the field", "m1", 130, 50)
    assert len(speak("a dog runs over the field", "m1", 160, 50)) < 0.95 * len(usual)
    assert not np.array_equal(speak("a dog runs over the field", "m1", 130, 65), usual)

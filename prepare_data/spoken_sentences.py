"""Sentences spoken by espeak-ng in many voices: tables and archives of WAV. Made data.

    python -m prepare_data.spoken_sentences --text FILE --folder DIR [--train 8000] [--types 5000]
    [--seed 1]

FILE has a sentence on each line; those of at most 12 words, all among the 5,000 most frequent ones,
are spoken, in small letters and without punctuation, and no sentence is in two splits. Nine voices
train; two others validate and two more test. Pitch and speed differ from sentence to sentence. The
program is no part of this project:

    apt-get install espeak-ng
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import soundfile
import soxr

from prepare_data.media_tables import split_sentences, write_examples

PROGRAM, LANGUAGE = "espeak-ng", "en-us"
RATE = 8_000
WORDS = 12
"""Of a sentence, at most."""
MEASURED = 500
"""Sentences of val and of test."""
SPEED, PITCH = (120, 170), (35, 66)
"""Words a minute, and the program's adjustment of 0 to 99; from and below."""
VOICES = {
    "train": ("m1", "m2", "m3", "m5", "m6", "m8", "f1", "f2", "f4"),
    "val": ("m7", "f5"),
    "test": ("m4", "f3"),
}
"""Variants of each split, by the program's own names."""


def choose_sentences(lines: Iterable[str], types: int) -> list[str]:
    """Return lines as small letters and apostrophes: the short ones, all of whose words are among
    the frequent ones.
    """
    spoken = (re.sub(r"[^\w']", " ", line.lower()).split() for line in lines)
    short = [
        words
        for words in spoken
        if 0 < len(words) <= WORDS and re.fullmatch("[a-z']+", "".join(words))
    ]
    counts = Counter(word for words in short for word in words)
    frequent = {word for word, _ in counts.most_common(types)}
    return [" ".join(words) for words in short if frequent.issuperset(words)]


def missing_voices() -> list[str]:
    """Return the voices that espeak-ng does not have: it would speak with its usual voice in their
    place.
    """
    listed = subprocess.run(
        [PROGRAM, "--voices=variant"], capture_output=True, check=True, text=True
    ).stdout
    there = set(re.findall(r"!v/(\S+)", listed))
    return [voice for voices in VOICES.values() for voice in voices if voice not in there]


def speak(text: str, voice: str, speed: int, pitch: int) -> np.ndarray:
    """Return what espeak-ng says, at RATE. -> (N,) float32"""
    command = [
        PROGRAM,
        "--stdout",
        "-z",
        "-v",
        f"{LANGUAGE}+{voice}",
        "-s",
        f"{speed}",
        "-p",
        f"{pitch}",
        "--",
        text,
    ]
    wave = subprocess.run(command, capture_output=True, check=True).stdout
    samples, rate = soundfile.read(BytesIO(wave), dtype="float32")
    return soxr.resample(samples, rate, RATE)


def speak_sentences(
    texts: Sequence[str], voices: Sequence[str], seed: Sequence[int]
) -> Iterator[tuple[bytes, tuple[str, str]]]:
    """Yield each sentence as WAV, with its text and the voice."""
    for number, text in enumerate(texts):
        random = np.random.default_rng([*seed, number])
        voice = voices[random.integers(len(voices))]
        file = BytesIO()
        samples = speak(text, voice, int(random.integers(*SPEED)), int(random.integers(*PITCH)))
        soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
        yield file.getvalue(), (text, voice)


def write_sentences(
    lines: Iterable[str], folder: Path, train: int, measured: int, types: int, seed: int
) -> None:
    """Write the tables and archives of all splits; ValueError if the text is too short."""
    counts = {split: train if split == "train" else measured for split in VOICES}
    sentences = split_sentences(choose_sentences(lines, types), counts, seed)
    for number, (split, texts) in enumerate(sentences.items()):
        examples = speak_sentences(texts, VOICES[split], (seed, number))
        write_examples(folder / f"{split}.tsv", ("sound", "text", "voice"), "wav", examples)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--train", type=int, default=8_000)
    parser.add_argument("--types", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if shutil.which(PROGRAM) is None:
        parser.error(f"{PROGRAM} is not installed: run `apt-get install {PROGRAM}`")
    if missing := missing_voices():
        parser.error(
            f"this {PROGRAM} has no voices called {', '.join(missing)}: install version 1.51 or"
            " newer"
        )
    try:
        lines = options.text.read_text(encoding="utf-8").splitlines()
        write_sentences(lines, options.folder, options.train, MEASURED, options.types, options.seed)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

"""Tables of spoken digits, from the recordings of the Free Spoken Digit Dataset: single ones, and
strings with noise.

    python -m prepare_data.spoken_digits --fsdd DATA/fsdd --folder DIR [--mean-of 500] [--strings
    6000] [--snr 10]

`without-NAME/` has the recordings of one speaker as its test set, and of the others to train and,
every twentieth, to validate; `frames/` has their log-mel frames, normalised by speaker
(`write_frames`). `strings/` has 3 to 7 digits of one speaker one after another, and white noise
`--snr` decibels below them; it is made of the recordings of the manifest's own split: no recording
of a test string was ever trained on. All numbers on strings are on made data.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch

from composer.data.audio import log_mel
from composer.recipe.data_sections import LogMel
from prepare_data.media_tables import write_table

RATE = 8_000
HEADER = ("sound", "words")
BANDS = 40
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LENGTHS = (3, 8)
"""Digits of a string, from and below."""
GAP = 0.3
"""Seconds between two digits at most."""
HELD_OUT = 20
"""One recording in so many validates."""
MEASURED = 500
"""Strings of val and of test."""
Row = Mapping[str, str]


def write_frames(fsdd: Path, folder: Path, rows: Sequence[Row], mean_of: int, seed: int) -> None:
    """Write the log-mel frames of each recording without the mean of each band over its speaker's
    recordings.

    That takes away the microphone and what is constant of a voice, and leaves the spectrum of a
    word; the mean over one word would take that away, too. It is cepstral mean normalisation by
    speaker: it needs many recordings of a voice, and does not need to know what is said in them.

    mean_of: The mean is that of so many recordings, drawn at random where there are more.
    """
    random = np.random.default_rng(seed)
    recordings: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for row in rows:
        samples, _ = soundfile.read(fsdd / "recordings" / row["file"], dtype="float32")
        frames = log_mel(samples, RATE, LogMel(bands=BANDS))  # (T, BANDS)
        recordings[row["speaker"]][row["file"]] = frames
    (folder / "frames").mkdir(parents=True, exist_ok=True)
    for own in recordings.values():
        chosen = random.permutation(sorted(own))[:mean_of]
        mean = torch.cat([own[file] for file in chosen]).mean(0)  # (BANDS,)
        for file, frames in own.items():
            np.save(folder / "frames" / Path(file).with_suffix(".npy"), (frames - mean).numpy())


def write_speakers(fsdd: Path, folder: Path, rows: Sequence[Row]) -> None:
    """Write the tables without each of the speakers."""
    recordings = (fsdd / "recordings").resolve()
    for speaker in sorted({row["speaker"] for row in rows}):
        splits: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for number, row in enumerate(rows):
            others = "val" if number % HELD_OUT == 0 else "train"
            split = "test" if row["speaker"] == speaker else others
            frames = f"../frames/{Path(row['file']).with_suffix('.npy')}"
            splits[split].append((str(recordings / row["file"]), frames, NAMES[int(row["digit"])]))
        for split, examples in splits.items():
            write_table(
                folder / f"without-{speaker}" / f"{split}.tsv",
                [("sound", "frames", "words"), *examples],
            )


def make_string(parts: Sequence[np.ndarray], snr: float, random: np.random.Generator) -> np.ndarray:
    """Return recordings one after another, with pauses and noise. snr: decibels of their power
    above the noise's.
    """
    pieces: list[np.ndarray] = []
    for part in parts:
        pieces += [part, np.zeros(int(random.uniform(0, GAP) * RATE))]
    samples = np.concatenate(pieces)
    power = np.mean(np.concatenate(parts) ** 2)
    noisy = samples + random.normal(scale=np.sqrt(power / 10 ** (snr / 10)), size=len(samples))
    return noisy / max(1.0, np.abs(noisy).max())


def write_strings(
    fsdd: Path, folder: Path, rows: Sequence[Row], count: int, snr: float, seed: int
) -> None:
    """Write strings of digits; those of the training split also validate."""
    own = [row for row in rows if row["split"] == "train"]
    splits = {
        "train": (count, [row for at, row in enumerate(own) if at % HELD_OUT]),
        "val": (MEASURED, own[::HELD_OUT]),
        "test": (MEASURED, [row for row in rows if row["split"] == "test"]),
    }
    for number, (split, (total, recordings)) in enumerate(splits.items()):
        random = np.random.default_rng([seed, number])
        speakers: dict[str, list[Row]] = defaultdict(list)
        for row in recordings:
            speakers[row["speaker"]].append(row)
        sounds = {
            row["file"]: soundfile.read(fsdd / "recordings" / row["file"])[0] for row in recordings
        }
        examples = []
        (folder / "strings" / split).mkdir(parents=True, exist_ok=True)
        for at in range(total):
            of = speakers[sorted(speakers)[random.integers(len(speakers))]]
            chosen = [of[random.integers(len(of))] for _ in range(random.integers(*LENGTHS))]
            samples = make_string([sounds[row["file"]] for row in chosen], snr, random)
            soundfile.write(folder / "strings" / split / f"{at:05}.flac", samples, RATE)
            examples.append(
                (f"{split}/{at:05}.flac", " ".join(NAMES[int(row["digit"])] for row in chosen))
            )
        write_table(folder / "strings" / f"{split}.tsv", [HEADER, *examples])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fsdd", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--strings", type=int, default=6_000)
    parser.add_argument("--snr", type=float, default=10.0)
    parser.add_argument(
        "--mean-of", type=int, default=500, help="recordings of which a speaker's mean is taken"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with (options.fsdd / "manifest.tsv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file, delimiter="\t")]
    write_frames(options.fsdd, options.folder, rows, options.mean_of, options.seed)
    write_speakers(options.fsdd, options.folder, rows)
    write_strings(options.fsdd, options.folder, rows, options.strings, options.snr, options.seed)


if __name__ == "__main__":
    main()

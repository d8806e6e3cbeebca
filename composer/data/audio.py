"""Sounds as log-mel frames. The only door to soundfile and soxr, which are imported where a sound is read."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from functools import lru_cache
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from composer.data.features import MediaError

LOWEST = 1e-10
"""The energy of silence, whose logarithm is finite."""
SMALLEST_DEVIATION = 1e-5
LINEAR_UP_TO, LINEAR_STEP, LOG_STEP = 1000.0, 200.0 / 3, np.log(6.4) / 27.0
"""Slaney's scale: linear below 1,000 Hz, with so many Hz to a mel, and logarithmic above it."""


def read_sound(file: IO[bytes], settings: Mapping[str, Any]) -> np.ndarray:
    """Return the frames of a sound as the settings of its column say. -> (T, F) float32. Raises MediaError."""
    rate = settings["rate"]
    frames = log_mel(torch.from_numpy(read_samples(file, rate)), rate, **settings["features"]["log_mel"])
    if settings["normalize"]:
        frames = (frames - frames.mean(0)) / frames.std(0, correction=0).clamp(min=SMALLEST_DEVIATION)
    return frames.numpy()


def read_samples(file: IO[bytes], rate: int) -> np.ndarray:
    """Return the samples of a sound at a rate, its channels averaged. -> (N,) float32. Raises MediaError."""
    for package in ("soundfile", "soxr"):
        if importlib.util.find_spec(package) is None:
            message = f"sounds are read through the package `{package}`, which is not installed"
            raise MediaError("package", message, f"run `pip install {package}`")
    import soundfile
    import soxr

    try:
        samples, own_rate = soundfile.read(file, dtype="float32", always_2d=True)  # (N, channels)
    except Exception as error:  # libsndfile's errors, and those of files that are cut off
        message = f"this is no sound that can be read: {error}"
        raise MediaError("audio", message, "save it again, as WAV or FLAC, or remove the line") from error
    if not len(samples):
        raise MediaError("audio", "this sound has no samples", "record it again, or remove the line")
    if not np.isfinite(samples).all():
        raise MediaError("audio", "this sound has samples that are no numbers", "save it again, or remove the line")
    mono = samples.mean(1)
    return np.ascontiguousarray(mono if own_rate == rate else soxr.resample(mono, own_rate, rate))


def wav_file(samples: np.ndarray, rate: int) -> bytes:
    """Return samples from -1 to 1 as a WAV file of 16 bits. samples: (N,)"""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, "PCM_16", format="WAV")
    return file.getvalue()


def log_mel(samples: Tensor, rate: int, *, bands: int, window: float, hop: float) -> Tensor:
    """Return the logarithms of the mel energies of a sound: log10 of Slaney's filters over the power spectrum.

    A frame is centred at every `hop` seconds, a Hann window of `window` seconds wide; the sound has zeros around it.
    samples: (N,) -> (1 + N // hop, bands)
    """
    size, step = max(1, round(window * rate)), max(1, round(hop * rate))
    points = 1 << (size - 1).bit_length()
    spectrum = torch.stft(
        samples,
        points,
        hop_length=step,
        win_length=size,
        window=torch.hann_window(size),
        center=True,
        pad_mode="constant",
        return_complex=True,
    )  # (points // 2 + 1, T)
    energies = mel_filters(rate, points, bands) @ spectrum.abs().square()  # (bands, T)
    return energies.clamp(min=LOWEST).log10().T.contiguous()


@lru_cache(maxsize=8)
def mel_filters(rate: int, points: int, bands: int) -> Tensor:
    """Return triangles of area 1 on Slaney's mel scale, from 0 Hz to half the rate. -> (bands, points // 2 + 1)"""
    frequencies = np.linspace(0, rate / 2, points // 2 + 1)
    edges = hertz(np.linspace(0, mels(rate / 2), bands + 2))  # (bands + 2,)
    rises = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falls = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rises, falls)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    return torch.from_numpy(triangles.astype(np.float32))


def mels(frequency: float) -> float:
    """Return a frequency in Hz on Slaney's mel scale."""
    if frequency < LINEAR_UP_TO:
        return frequency / LINEAR_STEP
    return float(LINEAR_UP_TO / LINEAR_STEP + np.log(frequency / LINEAR_UP_TO) / LOG_STEP)


def hertz(mel: np.ndarray) -> np.ndarray:
    """Return frequencies in Hz of numbers on Slaney's mel scale."""
    first = LINEAR_UP_TO / LINEAR_STEP
    return np.where(mel < first, mel * LINEAR_STEP, LINEAR_UP_TO * np.exp(LOG_STEP * (mel - first)))

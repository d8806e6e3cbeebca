"""Sounds as log-mel frames. The only door to soundfile and soxr, which are imported where a sound is read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import lru_cache
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from composer.data.features import Reading
from composer.data.media_files import NO_SUCH_PART, MediaError, require_packages

LOWEST = 1e-10
"""The energy of silence, whose logarithm is finite."""
SMALLEST_DEVIATION = 1e-5
SILENT_DB = -60
"""A sound that never exceeds this level, in dB of full scale, is as good as silent."""
OVERSHOOT = 0.5
"""Seconds by which a part of a recording may end after it, as in Kaldi's extract-segments."""
STREAMED = 0x7FFF0000
"""Bytes of a WAV file's samples from which on the number says that it was written as a stream, and means nothing."""
LINEAR_UP_TO, LINEAR_STEP, LOG_STEP = 1000.0, 200.0 / 3, np.log(6.4) / 27.0
"""Slaney's scale: linear below 1,000 Hz, with so many Hz to a mel, and logarithmic above it."""


def read_sound(file: IO[bytes], settings: Mapping[str, Any]) -> Reading:
    """Return the frames of a sound as the settings of its column say. -> (T, F) float32

    settings: And `part`, the seconds that are read of it; None is all. Notices are `rate` and `silent`. Raises
    MediaError.
    """
    rate = settings["rate"]
    samples, own_rate = read_samples(file, rate, settings["part"])
    notices = [("silent", "")] if np.abs(samples).max() < 10 ** (SILENT_DB / 20) else []
    notices += [("rate", str(own_rate))] if own_rate != rate else []
    frames = log_mel(torch.from_numpy(samples), rate, **settings["features"]["log_mel"])
    if settings["normalize"]:
        frames = (frames - frames.mean(0)) / frames.std(0, correction=0).clamp(min=SMALLEST_DEVIATION)
    return Reading(frames.numpy(), (*notices,))


def read_samples(file: IO[bytes], rate: int, part: tuple[float, float | None] | None = None) -> tuple[np.ndarray, int]:
    """Return the samples of a sound at a rate, its channels averaged, (N,) float32, and the sound's own rate.

    part: The seconds that are read; None is all. Raises MediaError.
    """
    require_packages("soundfile", "soxr")
    import soundfile
    import soxr

    try:
        if is_cut_off(file):
            raise EOFError("it is cut off")
        with soundfile.SoundFile(file) as sound:
            own_rate = sound.samplerate
            first, last = find_part(sound.frames / own_rate, part)
            sound.seek(round(first * own_rate))
            count = round(last * own_rate) - sound.tell()
            samples = sound.read(count, dtype="float32", always_2d=True)  # (N, channels)
    except MediaError:
        raise
    except Exception as error:  # libsndfile's errors, and those of files that are cut off
        message = f"this is no sound that can be read: {getattr(error, 'error_string', error)}"
        raise MediaError("audio", message, "save it again, as WAV or FLAC, or remove the line") from error
    if not len(samples):
        raise MediaError("audio", "this sound has no samples", "record it again, or remove the line")
    if not np.isfinite(samples).all():
        raise MediaError("audio", "this sound has samples that are no numbers", "save it again, or remove the line")
    mono = samples.mean(1)
    resampled = mono if own_rate == rate else soxr.resample(mono, own_rate, rate)
    if not len(resampled):
        raise MediaError("audio", f"this sound has no sample at {rate} Hz", "record it again, or remove the line")
    return np.ascontiguousarray(resampled), own_rate


def sound_length(file: IO[bytes], part: tuple[float, float | None] | None) -> tuple[int, float]:
    """Return the samples a second of a sound, and the seconds of it or of its part. Raises MediaError."""
    require_packages("soundfile")
    import soundfile

    try:
        sound = soundfile.info(file)
    except Exception as error:  # libsndfile's errors, as above
        message = f"this is no sound that can be read: {getattr(error, 'error_string', error)}"
        raise MediaError("audio", message, "save it again, as WAV or FLAC, or remove the line") from error
    first, last = find_part(sound.duration, part)
    return sound.samplerate, last - first


def find_part(length: float, part: tuple[float, float | None] | None) -> tuple[float, float]:
    """Return from where to where a sound of so many seconds is read. Raises MediaError if that is not there."""
    if part is None:
        return 0.0, length
    first, last = part
    if first >= length or (last is not None and not first < last <= length + OVERSHOOT):
        message = f"the recording has {length:.2f} seconds, and this part of it is not there"
        raise MediaError(NO_SUCH_PART, message, "correct the seconds, or remove the line")
    return first, length if last is None else min(last, length)


def is_cut_off(file: IO[bytes]) -> bool:
    """Return whether a WAV file has fewer samples than it says, which libsndfile accepts. Leaves it at its start."""
    is_wav, is_cut, at, end = file.read(4) == b"RIFF", False, 12, file.seek(0, 2)
    while is_wav and not is_cut and at < end:
        file.seek(at)
        name, size = file.read(4), int.from_bytes(file.read(4), "little")
        at += 8 + size + size % 2
        is_cut = name == b"data" and end < at - size % 2 and size < STREAMED
    file.seek(0)
    return is_cut


def wav_file(samples: np.ndarray, rate: int) -> bytes:
    """Return samples from -1 to 1 as a WAV file of 16 bits. samples: (N,)"""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, "PCM_16", format="WAV")
    return file.getvalue()


def log_mel(samples: Tensor, rate: int, *, bands: int, window: float, hop: float) -> Tensor:
    """Return the logarithms of the mel energies of a sound: log10 of Slaney's filters over the power spectrum.

    A frame is centred at every `hop` seconds, a Hann window of `window` seconds wide; the sound has zeros around it.
    Both have a sample or more. samples: (N,) -> (1 + N // hop, bands)
    """
    size, step = round(window * rate), round(hop * rate)
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
    edges = mel_to_hz(np.linspace(0, hz_to_mel(rate / 2), bands + 2))  # (bands + 2,)
    rises = (frequencies - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falls = (edges[2:, None] - frequencies) / np.diff(edges)[1:, None]
    triangles = np.maximum(0, np.minimum(rises, falls)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    return torch.from_numpy(triangles.astype(np.float32))


def hz_to_mel(frequency: float) -> float:
    """Return a frequency in Hz on Slaney's mel scale."""
    if frequency < LINEAR_UP_TO:
        return frequency / LINEAR_STEP
    return float(LINEAR_UP_TO / LINEAR_STEP + np.log(frequency / LINEAR_UP_TO) / LOG_STEP)


def mel_to_hz(mel: np.ndarray) -> np.ndarray:
    """Return frequencies in Hz of numbers on Slaney's mel scale."""
    first = LINEAR_UP_TO / LINEAR_STEP
    return np.where(mel < first, mel * LINEAR_STEP, LINEAR_UP_TO * np.exp(LOG_STEP * (mel - first)))

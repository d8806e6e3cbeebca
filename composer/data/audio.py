"""Sounds as log-mel frames. Only this module imports soundfile and soxr, when a sound is read."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from composer.data.features import Reading
from composer.data.media_files import NO_SUCH_PART, MediaError, Part, require_packages
from composer.data.sound_files import GET_AGAIN, Checked, check_sound, cut_off
from composer.recipe.data_sections import LogMel, TableColumn

if TYPE_CHECKING:
    from soundfile import SoundFile

LOWEST = 1e-10
"""The energy of silence, whose logarithm is finite."""
SMALLEST_DEVIATION = 1e-5
LOUDNESS_RANGE = 8.0
"""The decades of energy below the loudest that `normalize: range` keeps."""
SILENT_DB = -60
"""A sound that never exceeds this level, in dB of full scale, is as good as silent."""
ROUNDING = 0.02
"""Seconds by which a part may end after its recording because its end was rounded."""
OVERSHOOT = 0.5
"""Seconds by which a part of a recording may end after it, as in Kaldi's extract-segments."""
FLAC_BITS, FLAC_HASH = 20, 26
"""Places in the head of a FLAC: bits of a sample, and MD5 of all samples."""
LINEAR_UP_TO, LINEAR_STEP, LOG_STEP = 1000.0, 200.0 / 3, np.log(6.4) / 27.0
"""Slaney's scale: linear below 1,000 Hz, with so many Hz to a mel, and logarithmic above it."""


def read_sound(file: IO[bytes], settings: TableColumn, part: Part | None) -> Reading:
    """Return the frames of a sound as the settings of its column say. -> (T, F) float32

    part: The seconds that are read of it; None is all. Notices are `rate`, `silent`, `cut` and
    those of `Samples`. Raises MediaError.
    """
    rate = settings.rate
    samples, own_rate, own = read_samples(file, rate, part)
    notices = [("silent", "")] if np.abs(samples).max() < 10 ** (SILENT_DB / 20) else []
    notices += [("rate", str(own_rate))] if own_rate != rate else []
    notices += [(notice, "") for notice in own]
    if settings.seconds is not None and len(samples) > round(settings.seconds * rate):
        notices.append(("cut", ""))
    return Reading(sound_frames(samples, settings).numpy(), (*notices,))


def sound_frames(samples: np.ndarray, settings: TableColumn) -> Tensor:
    """Return the frames of samples as the settings of their column say. (N,) -> (T, bands)"""
    rate, mel = settings.rate, settings.features.log_mel
    if settings.seconds is None:
        frames = log_mel(samples, rate, mel)
    else:
        samples = fixed_length(samples, round(settings.seconds * rate))
        # the frame that is centred at the end is left out, as of Radford et al. 2022
        frames = log_mel(samples, rate, mel)[: len(samples) // round(mel.hop * rate)]
    if settings.normalize == "range":
        return (frames.clamp(min=frames.max() - LOUDNESS_RANGE) + 4.0) / 4.0
    if settings.normalize:
        deviation = frames.std(0, correction=0).clamp(min=SMALLEST_DEVIATION)
        return (frames - frames.mean(0)) / deviation
    return frames


def fixed_length(samples: np.ndarray, count: int) -> np.ndarray:
    """Return so many samples: the first ones, and silence after them. (N,) -> (count,)"""
    return np.pad(samples[:count], (0, max(0, count - len(samples))))


class Samples(NamedTuple):
    """Samples of a sound.

    samples: (N,) float32, the mean of its channels. rate: That of its file. notices: `header` if
    the header declares fewer samples than there are, `end` if a part would end after the sound.
    """

    values: np.ndarray
    file_rate: int
    notices: tuple[str, ...] = ()


def read_samples(
    file: IO[bytes], rate: int, part: tuple[float, float | None] | None = None
) -> Samples:
    """Return the samples of a sound at a rate.

    part: The seconds that are read; None is all. Raises MediaError.
    """
    require_packages("soundfile", "soxr")
    import soxr

    with open_sound(file) as (sound, checked):
        own_rate = sound.samplerate
        first, last = find_part(sound.frames / own_rate, part)
        is_too_long = part is not None and (part[1] or last) - last > ROUNDING
        sound.seek(round(first * own_rate))
        count = round(last * own_rate) - sound.tell()
        if sound.format == "FLAC" and part is None:
            samples = read_flac(sound, count, checked.file)
        else:
            samples = sound.read(count, dtype="float32", always_2d=True)  # (N, channels)
        if len(samples) != count:
            raise cut_off(count, len(samples), "samples")
    if not len(samples):
        raise MediaError(
            "audio", "this sound has no samples", "record it again, or remove the line"
        )
    if not np.isfinite(samples).all():
        raise MediaError(
            "audio",
            "this sound has samples that are not numbers",
            "save it again, or remove the line",
        )
    mono = samples.mean(1)
    resampled = mono if own_rate == rate else soxr.resample(mono, own_rate, rate)
    if not len(resampled):
        raise MediaError(
            "audio", f"this sound has no sample at {rate} Hz", "record it again, or remove the line"
        )
    notices = {"header": checked.says_less, "end": is_too_long}
    return Samples(
        np.ascontiguousarray(resampled),
        own_rate,
        tuple(name for name, is_so in notices.items() if is_so),
    )


@contextmanager
def open_sound(file: IO[bytes]) -> Iterator[tuple[SoundFile, Checked]]:
    """Open a sound that is there to its end. Raises MediaError, for what happens inside, too.

    It is to be read in one call: between two of them `soundfile` seeks, which changes the samples
    of an MP3.
    """
    require_packages("soundfile")
    import soundfile

    try:
        checked = check_sound(file)
        with soundfile.SoundFile(checked.file) as sound:
            yield sound, checked
    except MediaError:
        raise
    except Exception as error:  # libsndfile's errors, and those of files that are cut off
        message = f"this is not a readable sound: {getattr(error, 'error_string', error)}"
        raise MediaError(
            "audio", message, "save it again, as WAV or FLAC, or remove the line"
        ) from error


def read_flac(sound: SoundFile, count: int, file: IO[bytes]) -> np.ndarray:
    """Return all samples of a FLAC, checked by the hash in its header. -> (N, channels) float32

    libsndfile reads as many as the header says, whatever follows. Raises MediaError.
    """
    samples = sound.read(count, dtype="int32", always_2d=True)  # (N, channels), as high bits
    file.seek(FLAC_BITS)
    head = file.read(FLAC_HASH + 16 - FLAC_BITS)
    bits, stored = ((head[0] & 1) << 4 | head[1] >> 4) + 1, head[-16:]
    size = -(-bits // 8)
    low = (
        (samples >> (32 - bits)).astype("<i4")[..., None].view(np.uint8)[..., :size]
    )  # (N, channels, size)
    if any(stored) and hashlib.md5(low.tobytes(), usedforsecurity=False).digest() != stored:
        message = (
            "its samples are not those that its header has the hash of: it is damaged, or has"
            " another length"
        )
        raise MediaError("audio", message, GET_AGAIN)
    return samples.astype(np.float32) * np.float32(2.0**-31)


def sound_length(file: IO[bytes], part: tuple[float, float | None] | None) -> tuple[int, float]:
    """Return a sound's rate in Hz, and the seconds of the sound or its part. Raises MediaError."""
    with open_sound(file) as (sound, _):
        first, last = find_part(sound.frames / sound.samplerate, part)
        return sound.samplerate, last - first


def find_part(length: float, part: tuple[float, float | None] | None) -> tuple[float, float]:
    """Return the first and last second to read of a sound.

    Raises MediaError if they are outside.
    """
    if part is None:
        return 0.0, length
    first, last = part
    if first >= length or (last is not None and not first < last <= length + OVERSHOOT):
        message = f"the recording has {length:.2f} seconds, and this part of it is not there"
        raise MediaError(NO_SUCH_PART, message, "correct the seconds, or remove the line")
    return first, length if last is None else min(last, length)


def wav_file(samples: np.ndarray, rate: int) -> bytes:
    """Return samples from -1 to 1 as a WAV file of 16 bits. samples: (N,)"""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, samples, rate, "PCM_16", format="WAV")
    return file.getvalue()


def log_mel(samples: np.ndarray, rate: int, settings: LogMel) -> Tensor:
    """Return the log10 of mel energies of a sound: Slaney's filters over the power spectrum.

    A frame is centred at every `hop` seconds, a Hann window of `window` seconds wide. Both have a
    sample or more. samples: (N,) -> (1 + N // hop, bands)
    """
    size, step = round(settings.window * rate), round(settings.hop * rate)
    points = settings.fft or 1 << (size - 1).bit_length()
    mode: Literal["constant", "reflect"] = (
        "constant" if settings.padding == "zeros" else settings.padding
    )
    spectrum = torch.stft(
        torch.from_numpy(np.pad(samples, points // 2, mode=mode)),
        points,
        hop_length=step,
        win_length=size,
        window=torch.hann_window(size),
        center=False,
        return_complex=True,
    )  # (points // 2 + 1, T)
    energies = mel_filters(rate, points, settings.bands) @ spectrum.abs().square()  # (bands, T)
    return energies.clamp(min=LOWEST).log10().T.contiguous()


@lru_cache(maxsize=8)
def mel_filters(rate: int, points: int, bands: int) -> Tensor:
    """Return triangles of area 1 on Slaney's mel scale, up to half the rate.

    -> (bands, points // 2 + 1)
    """
    frequencies = np.arange(points // 2 + 1) * rate / points
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

"""Log-mel frames against librosa's formulas; sounds of every rate and number of channels; files
that are none.
"""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import soundfile
from transformers import WhisperFeatureExtractor

from composer.data.audio import log_mel, mel_filters, read_sound, sound_frames
from composer.data.media_files import MediaError
from composer.recipe.data_sections import AudioFeatures, LogMel, TableColumn

LOG_MEL = LogMel(bands=8)
SETTINGS = TableColumn(
    column="sound",
    kind="audio",
    rate=8000,
    features=AudioFeatures(log_mel=LOG_MEL),
    normalize=False,
)


def sound(samples: np.ndarray, rate: int = 8000, kind: str = "WAV", **changes: Any) -> np.ndarray:
    file = BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    file.seek(0)
    return read_sound(file, replace(SETTINGS, **changes), None).array


def tone(hertz: float, rate: int = 8000, seconds: float = 0.5) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)


def librosa_mel(rate: int, points: int, bands: int) -> np.ndarray:
    """The filters as librosa.filters.mel makes them: `htk=False, norm="slaney"`, one weight at a
    time.
    """

    def to_mel(f: float) -> float:
        return 3 * f / 200 if f < 1000 else 15 + np.log(f / 1000) * 27 / np.log(6.4)

    def to_hertz(m: float) -> float:
        return 200 * m / 3 if m < 15 else 1000 * np.exp(np.log(6.4) / 27 * (m - 15))

    edges = [to_hertz(m) for m in np.linspace(0, to_mel(rate / 2), bands + 2)]
    weights = np.zeros((bands, points // 2 + 1))
    for band in range(bands):
        low, centre, high = edges[band : band + 3]
        for bin in range(points // 2 + 1):
            f = bin * rate / points
            up, down = (f - low) / (centre - low), (high - f) / (high - centre)
            weights[band, bin] = max(0.0, min(up, down)) * 2 / (high - low)
    return weights


def test_filters_are_those_of_librosa() -> None:
    for rate, points, bands in ((8000, 256, 24), (16000, 512, 40)):
        assert np.allclose(
            mel_filters(rate, points, bands).numpy(), librosa_mel(rate, points, bands), atol=1e-7
        )


def test_frames_are_those_of_a_loop_over_the_formula() -> None:
    samples = np.random.default_rng(1).normal(size=500).astype(np.float32)
    padded, window = np.pad(samples, 128), np.pad(np.hanning(201)[:200], 28)
    frames = [padded[at : at + 256] * window for at in range(0, 501, 80)]
    power = np.abs(np.fft.rfft(frames)) ** 2
    expected = np.log10(np.maximum(power @ librosa_mel(8000, 256, 8).T, 1e-10))
    actual = log_mel(samples, 8000, LOG_MEL).numpy()
    assert actual.shape == expected.shape == (7, 8)
    assert np.allclose(actual, expected, atol=1e-4)


WHISPER = TableColumn(
    column="sound",
    kind="audio",
    seconds=2.0,
    features=AudioFeatures(log_mel=LogMel(bands=80, fft=400, padding="reflect")),
    normalize="range",
)


@pytest.mark.parametrize("bands", [80, 128])
@pytest.mark.parametrize("samples", [1, 190, 5_000, 31_999, 32_001, 50_000])
def test_frames_are_those_of_whisper(bands: int, samples: int) -> None:
    random = np.random.default_rng(samples)
    waves = random.normal(size=samples) * np.sin(np.arange(samples) / 700) ** 2 / 5
    values = waves.astype(np.float32)
    log_mel = replace(WHISPER.features.log_mel, bands=bands)
    column = replace(WHISPER, features=AudioFeatures(log_mel=log_mel))
    extractor = WhisperFeatureExtractor(feature_size=bands, chunk_length=2)
    expected = extractor(values, sampling_rate=16_000).input_features[0].T
    frames = sound_frames(values, column).numpy()
    assert frames.shape == expected.shape == (200, bands)
    assert np.abs(frames - expected).max() < 1e-5


def test_the_end_of_a_longer_sound_is_not_read_and_noticed() -> None:
    long, cut = tone(440, 16_000, 2.5), tone(440, 16_000, 2.0)
    reading = read_sound(BytesIO(wav_bytes(long, 16_000)), WHISPER, None)
    assert reading.notices == (("cut", ""),)
    alike = read_sound(BytesIO(wav_bytes(cut, 16_000)), WHISPER, None)
    assert alike.notices == ()
    assert np.array_equal(reading.array, alike.array)


def test_a_sound_of_another_rate_is_resampled_and_channels_are_averaged() -> None:
    expected, other = sound(tone(440)), sound(tone(440, 22050), 22050)
    assert other.shape == expected.shape
    assert np.abs(other - expected)[2:-2, :3].max() < 0.1  # the bands in which the tone is
    both, one = (
        sound(np.stack([tone(440), np.zeros(4000)], 1), kind="FLAC"),
        sound(tone(440) / 2, kind="FLAC"),
    )
    assert np.allclose(both[2:-2, :3], one[2:-2, :3], atol=1e-3)


def test_a_normalised_utterance_has_mean_0_and_variance_1_and_silence_is_finite() -> None:
    frames = sound(np.random.default_rng(1).normal(size=4000) / 9, normalize=True)
    assert np.allclose(frames.mean(0), 0, atol=1e-5)
    assert np.allclose(frames.std(0), 1, atol=1e-4)
    assert np.abs(sound(np.zeros(4000), normalize=True)).max() < 1e-3


@pytest.mark.parametrize("content", [b"", b"RIFF no sound", b"RIFF\x24\x00\x00\x00WAVEfmt "])
def test_what_is_no_sound_is_refused(content: bytes) -> None:
    with pytest.raises(MediaError, match="not a readable sound"):
        read_sound(BytesIO(content), SETTINGS, None)


def test_a_sound_without_samples_is_refused() -> None:
    with pytest.raises(MediaError, match="no samples"):
        sound(np.zeros(0))


def wav_bytes(samples: np.ndarray, rate: int = 8000) -> bytes:
    file = BytesIO()
    soundfile.write(file, samples, rate, format="WAV")
    return file.getvalue()


def test_a_wav_file_that_is_cut_off_is_refused_and_a_streamed_one_is_read() -> None:
    content = wav_bytes(tone(440))
    with pytest.raises(MediaError, match="it is cut off"):
        read_sound(BytesIO(content[:3000]), SETTINGS, None)
    at = content.index(b"data") + 4
    streamed = content[:at] + b"\xff\xff\xff\xff" + content[at + 4 :]
    assert np.array_equal(read_sound(BytesIO(streamed), SETTINGS, None).array, sound(tone(440)))


def test_a_part_of_a_sound_is_that_of_its_samples() -> None:
    content = BytesIO(wav_bytes(tone(440)))
    part = read_sound(content, SETTINGS, (0.1, 0.3)).array
    assert np.array_equal(part, sound(tone(440)[800:2400]))
    content.seek(0)
    assert np.array_equal(read_sound(content, SETTINGS, (0.1, None)).array, sound(tone(440)[800:]))
    content.seek(0)
    with pytest.raises(MediaError, match=r"0\.50 seconds, and this part"):
        read_sound(content, SETTINGS, (0.5, 0.6))


@pytest.mark.parametrize(
    ("samples", "rate", "notices"),
    [
        (tone(440), 8000, ()),
        (tone(440) / 400, 8000, ()),
        (tone(440) / 600, 8000, (("silent", ""),)),
        (np.zeros(8000), 16000, (("silent", ""), ("rate", "16000"))),
        # the channels cancel each other
        (np.stack([tone(440), -tone(440)], 1), 8000, (("silent", ""),)),
    ],
)
def test_silence_and_another_rate_are_noticed(
    samples: np.ndarray, rate: int, notices: tuple[Any, ...]
) -> None:
    assert read_sound(BytesIO(wav_bytes(samples, rate)), SETTINGS, None).notices == notices

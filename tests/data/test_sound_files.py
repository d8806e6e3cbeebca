"""Sounds of every format are read to their end, and a header that says something else is told."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile

from composer.data.audio import read_samples
from composer.data.columns import FileNames
from composer.data.feature_files import encode_features
from composer.data.media_files import MediaError
from composer.data.sound_files import check_sound
from composer.errors import DataError
from composer.recipe.data_sections import AudioFeatures, LogMel, TableColumn

RATE, COUNT = 16_000, 16_001
NOISE = (0.1 * np.random.default_rng(0).standard_normal(COUNT)).astype(np.float32)
FORMATS = [
    ("WAV", "PCM_16"),
    ("WAV", "FLOAT"),
    ("WAV", "IMA_ADPCM"),
    ("WAVEX", "PCM_24"),
    ("RF64", "PCM_16"),
    ("W64", "PCM_16"),
    ("AIFF", "PCM_16"),
    ("AIFF", "FLOAT"),
    ("AU", "PCM_16"),
    ("AU", "ULAW"),
    ("CAF", "PCM_16"),
    ("CAF", "ALAC_16"),
    ("NIST", "PCM_16"),
    ("FLAC", "PCM_S8"),
    ("FLAC", "PCM_16"),
    ("FLAC", "PCM_24"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
]


def sound(kind: str, subtype: str, samples: np.ndarray = NOISE, rate: int = RATE) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, subtype, format=kind)
    return file.getvalue()


def with_bytes(data: bytes, at: int, own: bytes) -> bytes:
    return data[:at] + own + data[at + len(own) :]


def length_of(data: bytes) -> int:
    return len(read_samples(io.BytesIO(data), RATE)[0])


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
@pytest.mark.parametrize("count", [COUNT, COUNT - 1, 1000])
def test_a_sound_that_is_as_its_header_says_is_read_as_it_is(kind, subtype, count, tmp_path):
    # libsndfile knows an MP3 by its name
    path = tmp_path / f"a.{'mp3' if kind == 'MP3' else 'sound'}"
    path.write_bytes(sound(kind, subtype, NOISE[:count]))
    expected, _ = soundfile.read(path, dtype="float32")
    with path.open("rb") as file:
        samples, rate, notices = read_samples(file, RATE)
    assert (rate, notices) == (RATE, ())
    np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_sound_that_is_cut_off_is_refused(kind, subtype, share):
    data = sound(kind, subtype)
    with pytest.raises(MediaError):
        length_of(data[: int(share * len(data))])


@pytest.mark.parametrize(("kind", "subtype"), [case for case in FORMATS if case[1] != "ALAC_16"])
def test_a_sound_that_lacks_its_last_byte_is_refused(kind, subtype):
    data = sound(kind, subtype, NOISE[:-1])
    with pytest.raises(MediaError):
        length_of(data[:-1])


BYTES = 2 * COUNT
LYING = [
    ("WAV", b"data", 4, "<I", 0),
    ("RF64", b"ds64", 16, "<Q", 0),
    ("W64", b"data", 16, "<Q", 24),
    ("AIFF", b"SSND", 4, ">I", 8),
    ("AU", b".snd", 8, ">I", 0),
    ("CAF", b"data", 4, ">Q", 4),
]
"""Where a format has the number of bytes of samples, as what, and how many more than that it says.
"""


@pytest.mark.parametrize(("kind", "name", "offset", "form", "more"), LYING)
@pytest.mark.parametrize("said", [0, 2, BYTES // 8, BYTES // 2, BYTES - 2])
def test_a_header_with_another_length_than_its_file_is_reported_and_all_is_read(
    kind, name, offset, form, more, said
):
    data = sound(kind, "PCM_16")
    lying = with_bytes(data, data.index(name) + offset, struct.pack(form, said + more))
    expected, (samples, _, notices) = (
        read_samples(io.BytesIO(data), RATE)[0],
        read_samples(io.BytesIO(lying), RATE),
    )
    assert notices == ("header",)
    np.testing.assert_array_equal(samples[:COUNT], expected)


@pytest.mark.parametrize(("kind", "name", "offset", "form", "more"), LYING)
@pytest.mark.parametrize("said", [BYTES + 8, 2 * BYTES])
def test_a_header_that_says_more_than_there_is_is_refused(kind, name, offset, form, more, said):
    data = sound(kind, "PCM_16")
    with pytest.raises(MediaError, match=f"cut off: its header says {said:,} bytes of samples"):
        length_of(with_bytes(data, data.index(name) + offset, struct.pack(form, said + more)))


@pytest.mark.parametrize("said", [0, 1, COUNT // 8, COUNT - 1, COUNT + 1, 2 * COUNT, 1 << 35])
def test_a_flac_has_the_samples_that_its_header_has_the_hash_of(said):
    data = sound("FLAC", "PCM_16")
    number = int.from_bytes(data[21:26], "big") >> 36 << 36 | said
    with pytest.raises(MediaError):
        length_of(with_bytes(data, 21, number.to_bytes(5, "big")))


@pytest.mark.parametrize("said", [0, 2 * COUNT, COUNT // 8])
def test_the_number_of_frames_of_aiff_and_nist_is_compared_too(said):
    data = sound("AIFF", "PCM_16")
    lying = [with_bytes(data, data.index(b"COMM") + 10, struct.pack(">I", said))]
    lying += [
        sound("NIST", "PCM_16").replace(
            f"-i {COUNT}\n".encode(), f"-i {said:5}\n".replace("-i ", "-i ").encode()
        )
    ]
    for file in lying[: 1 if said < 10_000 else 2]:
        if said > COUNT:
            with pytest.raises(MediaError, match="cut off"):
                length_of(file)
        else:
            assert read_samples(io.BytesIO(file), RATE)[1:] == (RATE, ("header",))
            assert length_of(file) == COUNT


@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("has_tag", [False, True])
def test_an_mp3_is_as_long_as_its_frames(rate, has_tag):
    data = sound("MP3", "MPEG_LAYER_III", NOISE, rate)
    at, count = data.index(b"Xing"), length_of(data)
    tag = b"ID3\x04\0\0\0\0\0\x0a" + bytes(10) if has_tag else b""
    for frames in (0, 1, 3):
        samples, own_rate, notices = read_samples(
            io.BytesIO(tag + with_bytes(data, at + 8, frames.to_bytes(4, "big"))), RATE
        )
        assert (len(samples), own_rate, notices) == (count, rate, ("header",))
    with pytest.raises(MediaError, match="cut off: its header says 300 frames"):
        length_of(tag + with_bytes(data, at + 8, (300).to_bytes(4, "big")))
    # without the number libsndfile guesses from the first frame, which is another one than those
    # that follow
    assert length_of(tag + with_bytes(data, at, bytes(4))) > count
    assert length_of(tag + data + b"TAG" + bytes(125)) == count
    with pytest.raises(MediaError, match="the bytes after frame"):
        length_of(tag + data + b"no frame")


def test_the_number_of_frames_of_an_mp3_stands_behind_a_checksum():
    data = sound("MP3", "MPEG_LAYER_III")
    at = data.index(b"Xing")
    protected = with_bytes(data, 1, bytes([data[1] & ~1]))
    protected = with_bytes(protected, at, bytes(2) + data[at : at + 100])  # a table fills the frame
    assert not check_sound(io.BytesIO(protected)).says_less
    assert check_sound(io.BytesIO(with_bytes(protected, at + 2 + 8, bytes(4)))).says_less


def test_what_follows_the_samples_of_a_wav_is_no_sample():
    data = sound("WAV", "PCM_16")
    odd = sound("WAV", "PCM_U8")  # with a byte that fills it up
    note = b"LIST" + struct.pack("<I", 12) + b"INFOISFT\0\0\0\0"
    for file in (
        data + note,
        data + note + note,
        odd + note,
        odd[:-1] + note,
        odd,
        odd[:-1],
        data + b"\0",
    ):
        assert read_samples(io.BytesIO(file), RATE)[1:] == (RATE, ())
        assert length_of(file) == COUNT
    streamed = with_bytes(data, data.index(b"data") + 4, b"\xff" * 4)
    assert read_samples(io.BytesIO(streamed), RATE)[1:] == (RATE, ())
    assert length_of(streamed) == COUNT


def test_several_streams_in_an_ogg_are_refused():
    with pytest.raises(MediaError, match="2 streams"):
        length_of(sound("OGG", "VORBIS") + sound("OGG", "VORBIS", NOISE[:500]))


def test_other_formats_are_refused():
    with pytest.raises(MediaError, match="it is none of WAV, FLAC, Ogg, MP3"):
        length_of(sound("VOC", "PCM_16"))


FEATURES = AudioFeatures(log_mel=LogMel(bands=8))
SETTINGS = TableColumn(column="sound", kind="audio", rate=RATE, features=FEATURES)


def test_a_fault_has_the_line_of_the_table_and_a_notice_the_number_of_files(tmp_path):
    data = sound("WAV", "PCM_16")
    short = with_bytes(data, data.index(b"data") + 4, struct.pack("<I", BYTES // 8))
    for name, content in (("a.wav", data), ("b.wav", short), ("c.wav", short)):
        (tmp_path / name).write_bytes(content)
    names = ["a.wav", "b.wav", "c.wav"]
    whole = encode_features(FileNames(names, tmp_path), SETTINGS, "t.tsv")
    assert [(remark.kind, remark.count, remark.line) for remark in whole.remarks] == [
        ("header", 2, 2)
    ]
    assert len(set(whole.lengths().tolist())) == 1
    (tmp_path / "c.wav").write_bytes(data[:-100])
    with pytest.raises(DataError, match="cut off") as caught:
        encode_features(FileNames(names, tmp_path), SETTINGS, "t.tsv")
    assert [(fault.file, fault.line) for fault in caught.value.faults] == [("t.tsv", 3)]


@pytest.mark.parametrize(
    ("kind", "subtype"),
    [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")],
)
def test_a_part_beyond_what_is_there_is_refused(kind, subtype):
    data = sound(kind, subtype)
    assert len(read_samples(io.BytesIO(data), RATE, (0.5, 0.75))[0]) == RATE // 4
    with pytest.raises(MediaError, match="this part of it is not there"):
        read_samples(io.BytesIO(data), RATE, (1.0, 2.0))
    with pytest.raises(MediaError):
        read_samples(io.BytesIO(data[: len(data) // 2]), RATE, (0.8, 0.95))


@pytest.mark.parametrize(
    ("end", "notices"), [(0.9, ()), (COUNT / RATE, ()), (1.01, ()), (1.1, ("end",)), (None, ())]
)
def test_a_part_that_would_end_after_its_recording_is_reported(end, notices):
    samples, _, own = read_samples(io.BytesIO(sound("WAV", "PCM_16")), RATE, (0.5, end))
    assert (len(samples), own) == (min(COUNT, round((end or 9) * RATE)) - RATE // 2, notices)

"""Files of sounds: samples that a header declares, and samples that are there.

A file is walked to its end without decoding it. A header that says more than there is makes an
error; of one that says less a copy is read whose header says what is there.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Literal, NamedTuple

from composer.data.media_files import MediaError

FORMATS = "WAV, FLAC, Ogg, MP3, AIFF, AU, CAF, W64 and NIST SPHERE"
"""The formats that are read: those whose end can be compared with their header."""
STREAMED = 0x7FFF0000
"""Bytes of samples in a WAV header from which on the number means a stream of unknown size."""
UNKNOWN = 0xFFFFFFFF
"""The number of bytes in a header of 4 bytes for it that says none."""
NIST_FIELD = re.compile(rb"^(channel_count|sample_n_bytes|sample_count) -i (\d+)\s*$", re.MULTILINE)
TAGS_BEHIND = (b"TAG", b"APETAGEX", b"LYRICS", b"ID3", b"3DI")
"""Tags that may follow the last frame of an MP3."""
OGG_ENDS = 4
"""The flag of the last page of a stream."""
KILOBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
LOW_KILOBITS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
"""Kilobits a second by their number in the head of a frame: of MPEG 1, and of MPEG 2 and 2.5."""
GET_AGAIN = "get the file again, or remove the line"
EMPTY_TAG = b"ID3\x04\0\0\0\0\0\x0a" + bytes(10)
"""A tag without a word: libsndfile knows an MP3 without a file name by its tag alone."""


class Checked(NamedTuple):
    """A complete sound, as it is or with a mended header, and whether its header declared less."""

    file: IO[bytes]
    says_less: bool = False


class Layout(NamedTuple):
    """Chunks of a format: where the first begins, bytes of an id and a size, the chunk of samples.

    `skip` bytes of that chunk come before the samples. A chunk begins at a multiple of `align` from
    the first.
    """

    start: int
    id_bytes: int
    size_bytes: int
    order: Literal["little", "big"]
    align: int
    samples: bytes
    skip: int = 0
    counts_itself: bool = False


W64_DATA = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
LAYOUTS = {
    b"RIFF": Layout(12, 4, 4, "little", 2, b"data"),
    b"RIFX": Layout(12, 4, 4, "big", 2, b"data"),
    b"RF64": Layout(12, 4, 4, "little", 2, b"data"),
    b"FORM": Layout(12, 4, 4, "big", 2, b"SSND", skip=8),
    b"caff": Layout(8, 4, 8, "big", 1, b"data", skip=4),
    b"riff": Layout(40, 16, 8, "little", 8, W64_DATA, counts_itself=True),
}


def check_sound(file: IO[bytes]) -> Checked:
    """Return a sound to the end that its header declares, or beyond. Raises MediaError, OSError."""
    file.seek(0)
    magic = file.read(4)
    check = CHECKS.get(magic)
    if magic[:3] == b"ID3" or _mp3_frame(magic):
        check = check_mp3
    if check is None:
        message = f"this is not a readable sound: it is none of {FORMATS}"
        raise MediaError("audio", message, "save it as WAV or FLAC, or remove the line")
    checked = check(file)
    checked.file.seek(0)
    return checked


def cut_off(declared: int, actual: int, what: str) -> MediaError:
    """Return the error of a sound whose header says more than there is."""
    message = f"it is cut off: its header says {declared:,} {what}, and there are {actual:,}"
    return MediaError("audio", message, GET_AGAIN)


def mended(file: IO[bytes], place: int, number: bytes) -> Checked:
    """Return a copy of a file with another number at a place of its header."""
    data = bytearray(_bytes_at(file, 0, -1))
    data[place : place + len(number)] = number
    return Checked(io.BytesIO(data), says_less=True)


def _bytes_at(file: IO[bytes], at: int, count: int) -> bytes:
    file.seek(at)
    return file.read(count)


# -------------------------------------------------------------------------------------------------
# formats of chunks


def check_chunks(file: IO[bytes]) -> Checked:
    """Return a checked file of chunks. One without samples is as it is: its reader says so."""
    layout, end = LAYOUTS[_bytes_at(file, 0, 4)], file.seek(0, io.SEEK_END)
    sizes = None
    for name, begin, size in read_chunks(file, layout, layout.start, end):
        if name == b"ds64":  # of RF64: the sizes that have no room elsewhere
            sizes = begin + 8
        if name == layout.samples and sizes and size == UNKNOWN:
            return _check_samples(file, layout, begin, sizes, 8)
        if name == layout.samples:
            return _check_samples(file, layout, begin, begin - layout.size_bytes, layout.size_bytes)
    return Checked(file)


def _check_samples(file: IO[bytes], layout: Layout, begin: int, place: int, width: int) -> Checked:
    """Return a file whose samples begin at `begin`; their bytes are declared at `place`."""
    end, number = file.seek(0, io.SEEK_END), _bytes_at(file, place, width)
    head = begin - place + layout.id_bytes if layout.counts_itself else 0
    declared, actual = int.from_bytes(number, layout.order) - head, end - begin
    if (width == 4 and declared >= STREAMED) or number == b"\xff" * width:
        return Checked(file)
    if declared > actual:
        raise cut_off(declared - layout.skip, actual - layout.skip, "bytes of samples")
    if any(
        _are_chunks(file, layout, begin + declared + pad, end)
        for pad in {0, -declared % layout.align}
    ):
        return Checked(file)
    return mended(file, place, (actual + head).to_bytes(width, layout.order))


def _are_chunks(file: IO[bytes], layout: Layout, at: int, end: int) -> bool:
    """True if the rest from a place on is chunks, with the padding of the last."""
    last = at
    for name, begin, size in read_chunks(file, layout, at, end):
        if not re.fullmatch(rb"[A-Za-z0-9 _-]{4}", name[:4]) or begin + size > end:
            return False
        last = begin + size
    return not _bytes_at(file, last, layout.id_bytes + layout.size_bytes).strip(b"\0")


def read_chunks(
    file: IO[bytes], layout: Layout, at: int, end: int
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the id of each chunk, the place of its content, and the bytes that it declares."""
    head = layout.id_bytes + layout.size_bytes
    while at + head <= end:
        data = _bytes_at(file, at, head)
        size = int.from_bytes(data[layout.id_bytes :], layout.order) - (
            head if layout.counts_itself else 0
        )
        yield data[: layout.id_bytes], at + head, max(0, size)
        at += head + max(0, size)
        at += -(at - layout.start) % layout.align


def check_aiff(file: IO[bytes]) -> Checked:
    """Return a checked AIFF, which says the number of its frames, too."""
    checked, layout = check_chunks(file), LAYOUTS[b"FORM"]
    end = file.seek(0, io.SEEK_END)
    chunks = {
        name: (begin, size)
        for name, begin, size in read_chunks(checked.file, layout, layout.start, end)
    }
    if _bytes_at(file, 8, 4) != b"AIFF" or not {b"COMM", b"SSND"} <= {*chunks}:
        return checked
    common = _bytes_at(file, chunks[b"COMM"][0], 8)
    channels, declared, bits = (
        int.from_bytes(common[at:to], "big") for at, to in ((0, 2), (2, 6), (6, 8))
    )
    actual = (chunks[b"SSND"][1] - layout.skip) // max(1, channels * -(-bits // 8))
    if declared > actual:
        raise cut_off(declared, actual, "samples")
    return checked._replace(says_less=checked.says_less or declared < actual)


# -------------------------------------------------------------------------------------------------
# formats without


def check_au(file: IO[bytes]) -> Checked:
    """Return a checked file of Sun's format."""
    end, number = file.seek(0, io.SEEK_END), _bytes_at(file, 8, 4)
    declared = int.from_bytes(number, "big")
    actual = max(0, end - int.from_bytes(_bytes_at(file, 4, 4), "big"))
    if declared in (actual, UNKNOWN):
        return Checked(file)
    if declared > actual:
        raise cut_off(declared, actual, "bytes of samples")
    return mended(file, 8, actual.to_bytes(4, "big"))


def check_flac(file: IO[bytes]) -> Checked:
    """Return a FLAC that says how long it is; what is decoded has a hash in its header."""
    if not int.from_bytes(_bytes_at(file, 21, 5), "big") % (1 << 36):
        message = "its header does not say how long it is"
        fix = "save it again: `flac` writes that into files"
        raise MediaError("audio", message, fix)
    return Checked(file)


def check_nist(file: IO[bytes]) -> Checked:
    """Return a checked file of NIST's format, SPHERE, which libsndfile reads to its end."""
    size = int(_bytes_at(file, 8, 8).strip() or 0)
    fields = {name: int(value) for name, value in NIST_FIELD.findall(_bytes_at(file, 0, size))}
    frame = fields.get(b"channel_count", 1) * fields.get(b"sample_n_bytes", 1)
    declared = fields.get(b"sample_count")
    actual = (file.seek(0, io.SEEK_END) - size) // max(1, frame)
    if declared is not None and declared > actual:
        raise cut_off(declared, actual, "samples")
    return Checked(file, says_less=declared is not None and declared < actual)


def check_ogg(file: IO[bytes]) -> Checked:
    """Return a file whose pages are all there, the last one with the mark of an end."""
    at, end, flags, streams = 0, file.seek(0, io.SEEK_END), 0, set[bytes]()
    while at < end:
        head = _bytes_at(file, at, 27)
        sizes = file.read(head[26]) if len(head) == 27 else b""
        if head[:4] != b"OggS" and at and flags & OGG_ENDS:
            break  # what follows an end is none of it
        at += 27 + len(sizes) + sum(sizes)
        if head[:4] != b"OggS" or at > end or len(sizes) < head[26]:
            raise MediaError(
                "audio", "it is cut off in the middle of a page, or damaged", GET_AGAIN
            )
        flags = head[5]
        streams.add(head[14:18])
    if not flags & OGG_ENDS:
        fix = "get the file again; one that is whole, save again as FLAC"
        raise MediaError("audio", "it is cut off: its last page is not marked as an end", fix)
    if len(streams) > 1:
        message = f"it has {len(streams)} streams, and only one would be read"
        raise MediaError("audio", message, "save each as a file, or all as one stream")
    return Checked(file)


# -------------------------------------------------------------------------------------------------
# MP3


def check_mp3(file: IO[bytes]) -> Checked:
    """Return a copy of an MP3 whose header has the number of its frames, as they were counted.

    Where none has, libsndfile guesses from the first frame how long the sound is, and reads no
    more.
    """
    data = _bytes_at(file, 0, -1)
    first = at = _end_of_tag(data)
    if data[first : first + 4] == b"fLaC":
        return Checked(io.BytesIO(data[first:]))
    count = 0
    while frame := _mp3_frame(data[at : at + 4]):
        count, at = count + 1, at + frame.size
    if at > len(data):
        raise MediaError("audio", "it is cut off in the middle of a frame", GET_AGAIN)
    if not count:
        fix = "save it as WAV or FLAC, or remove the line"
        raise MediaError("audio", "this is not an MP3: no frame follows its tag", fix)
    if not data.startswith(TAGS_BEHIND, at) and data[at:].strip(b"\0"):
        message = (
            f"the bytes after frame {count:,} are not an MP3 frame: the file is damaged, or cut off"
        )
        raise MediaError("audio", message, GET_AGAIN)
    head = _mp3_frame(data[first : first + 4])
    assert head is not None
    place = first + 4 + head.checksum + head.side
    if data[place : place + 4] in (b"Xing", b"Info") and data[place + 7] & 1:
        declared, actual = int.from_bytes(data[place + 8 : place + 12], "big"), count - 1
        if declared > actual + 1:  # some count the frame that has the number
            raise cut_off(declared, actual, "frames")
        says_less = declared < actual
        if says_less:
            fixed = data[: place + 8] + actual.to_bytes(4, "big") + data[place + 12 :]
        else:
            fixed = data
    else:
        says_less = False
        number = b"Xing\0\0\0\1" + count.to_bytes(4, "big")
        header = (
            data[first : first + 1] + bytes([data[first + 1] | 1]) + data[first + 2 : first + 4]
        )
        fixed = (
            data[:first]
            + (header + bytes(head.side) + number).ljust(head.size, b"\0")
            + data[first:]
        )
    return Checked(io.BytesIO(fixed if fixed[:3] == b"ID3" else EMPTY_TAG + fixed), says_less)


class Mp3Frame(NamedTuple):
    """The head of a frame: its bytes, and those of the checksum and side information behind it.

    After these the first frame has the number of all frames.
    """

    size: int
    checksum: int
    side: int


def _mp3_frame(head: bytes) -> Mp3Frame | None:
    """Return the frame that four bytes begin in MPEG's layer 3, or None."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    version, rate, speed = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version == 1 or rate in (0, 15) or speed == 3:
        return None
    is_first = version == 3
    hertz = (44_100, 48_000, 32_000)[speed] // {3: 1, 2: 2, 0: 4}[version]
    bits = (KILOBITS if is_first else LOW_KILOBITS)[rate - 1] * 1000
    is_mono = head[3] >> 6 == 3
    side = (17 if is_mono else 32) if is_first else (9 if is_mono else 17)
    size = (144 if is_first else 72) * bits // hertz + (head[2] >> 1 & 1)
    return Mp3Frame(size, 0 if head[1] & 1 else 2, side)


def _end_of_tag(data: bytes) -> int:
    """Return the place where an MP3 begins, after its tag."""
    if data[:3] != b"ID3" or len(data) < 10:
        return 0
    size = sum(byte << 7 * (3 - at) for at, byte in enumerate(data[6:10]))
    at = 10 + size + (10 if data[5] & 0x10 else 0)
    while data[at : at + 1] == b"\0":  # more room for the tag than it says
        at += 1
    return at


CHECKS: Mapping[bytes, Callable[[IO[bytes]], Checked]] = {
    **dict.fromkeys(LAYOUTS, check_chunks),
    b"FORM": check_aiff,
    b".snd": check_au,
    b"OggS": check_ogg,
    b"fLaC": check_flac,
    b"NIST": check_nist,
}
"""Checks of files, by their first four bytes."""

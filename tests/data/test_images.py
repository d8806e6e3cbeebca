"""Images as bytes: sizes, modes, what is transparent or turned; files that are none are told with
their line.
"""

from __future__ import annotations

import struct
import tarfile
import zipfile
import zlib
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from composer.data.images import FORMATS, MAX_PIXELS, read_image
from composer.data.media_files import MediaError, open_file
from composer.recipe.data_sections import TableColumn

SETTINGS = TableColumn(column="image", kind="image", size=(8, 16))


def read(image: Image.Image, kind: str = "PNG", **changes: Any) -> np.ndarray:
    file = BytesIO()
    image.save(file, kind)
    file.seek(0)
    return read_image(file, replace(SETTINGS, **changes)).array


def ramp(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.arange(width * height, dtype=np.uint8).reshape(height, width))


def test_an_image_that_fits_is_taken_as_it_is() -> None:
    assert np.array_equal(read(ramp(5, 3))[..., 0], np.arange(15).reshape(3, 5))
    assert np.array_equal(
        read(ramp(5, 3), positions="columns")[..., 0], np.arange(15).reshape(3, 5).T
    )


@pytest.mark.parametrize(
    ("width", "height", "shape"), [(32, 8, (4, 16)), (16, 32, (8, 4)), (400, 1, (1, 16))]
)
def test_a_larger_image_is_scaled_to_fit_with_its_proportions(
    width: int, height: int, shape: tuple[int, int]
) -> None:
    assert read(Image.new("L", (width, height), 7)).shape == (*shape, 1)


def test_modes_become_grey_or_colour_and_what_is_transparent_is_white() -> None:
    assert read(Image.new("RGB", (2, 2), (255, 0, 0)), channels=3)[0, 0].tolist() == [255, 0, 0]
    assert read(Image.new("1", (2, 2), 1))[0, 0].tolist() == [255]
    assert read(Image.new("RGBA", (2, 2), (0, 0, 0, 0)))[0, 0].tolist() == [255]
    assert read(Image.new("LA", (2, 2), (0, 255)))[0, 0].tolist() == [0]
    assert read(Image.fromarray(np.full((2, 2), 0x80FF, np.uint16)))[0, 0].tolist() == [0x80]
    many_bits = Image.fromarray(np.array([[0, 0xFFFF], [0x10000, 100_000]], np.int32))
    assert read(many_bits, "TIFF")[..., 0].T.tolist() == [[0, 0xFF], [0xFF, 0xFF]]
    assert read(Image.new("LAB", (2, 2), (0, 128, 128)), "TIFF")[0, 0].tolist() == [0]
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 0, 255, 0])
    assert read(palette, channels=3)[0, 0].tolist() == [0, 255, 0]


def test_a_photograph_is_turned_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    file = BytesIO()
    Image.fromarray(np.array([[0, 255], [0, 255]], np.uint8)).save(file, "PNG", exif=exif)
    file.seek(0)
    assert read_image(file, SETTINGS).array[..., 0].tolist() == [[0, 0], [255, 255]]


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image_is_refused(content: bytes) -> None:
    with pytest.raises(MediaError, match="not a readable image"):
        read_image(BytesIO(content), SETTINGS)


def test_an_image_that_is_cut_off_is_refused() -> None:
    file = BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64), dtype=np.uint8)).save(
        file, "PNG"
    )
    with pytest.raises(MediaError, match="not a readable image"):
        read_image(BytesIO(file.getvalue()[:1500]), SETTINGS)


@pytest.mark.parametrize(("width", "height"), [(10_000, 9_000), (20_000, 20_000)])
def test_a_decompression_bomb_is_refused(width: int, height: int) -> None:
    file = BytesIO()
    Image.new("1", (1, 1)).save(file, "PNG")
    data = bytearray(file.getvalue())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    with pytest.raises(MediaError) as refused:
        read_image(BytesIO(data), SETTINGS)
    assert (
        refused.value.message
        == f"this image is huge: {width * height:,} pixels, of {MAX_PIXELS:,} at most"
    )


def palette() -> Image.Image:
    image = ramp(3, 3).convert("P")
    image.putpalette([value for level in range(256) for value in (level, level, level)])
    return image


@pytest.mark.parametrize(
    ("image", "kind", "channels", "notices"),
    [
        (ramp(3, 3), "PNG", 1, []),
        (ramp(3, 3).convert("RGB"), "PNG", 1, []),
        (palette(), "PNG", 1, []),
        (ramp(3, 3).convert("RGBA"), "PNG", 3, []),
        (Image.new("L", (3, 3), 7), "PNG", 1, ["blank"]),
        (Image.new("RGBA", (3, 3), (255, 255, 255, 9)), "PNG", 3, ["transparent", "blank"]),
        (Image.fromarray(np.eye(3, dtype=np.uint8) * 200).convert("CMYK"), "TIFF", 1, ["profile"]),
        (Image.fromarray(np.eye(3, dtype=np.uint16)), "PNG", 1, ["depth", "blank"]),
        (Image.fromarray(np.eye(3, dtype=np.float32) / 2), "TIFF", 1, ["depth", "blank"]),
        (
            Image.merge("RGB", [ramp(3, 3), ramp(3, 3).rotate(180), ramp(3, 3)]).resize((9, 9)),
            "PNG",
            3,
            [],
        ),
        (Image.merge("RGB", [ramp(9, 9), ramp(9, 9).rotate(180), ramp(9, 9)]), "PNG", 1, ["grey"]),
    ],
)
def test_what_an_image_loses_is_noticed(
    image: Image.Image, kind: str, channels: int, notices: list[str]
) -> None:
    file = BytesIO()
    image.save(file, kind)
    assert [
        kind for kind, _ in read_image(file, replace(SETTINGS, channels=channels)).notices
    ] == notices


def png(colour: int, channels: int, depth: int) -> bytes:
    """Return a PNG of two by two pixels: Pillow writes none with 16 bits of colour."""
    rows = (
        b"\0" + np.arange(row, row + 2 * channels).astype(f">u{depth // 8}").tobytes()
        for row in range(2)
    )
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 2, 2, depth, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"".join(rows))),
        (b"IEND", b""),
    ]
    sums = ((name, data, zlib.crc32(name + data)) for name, data in chunks)
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)
        for name, data, crc in sums
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
@pytest.mark.parametrize("depth", [8, 16])
def test_a_png_of_16_bits_is_noticed_whatever_its_colours(
    colour: int, channels: int, depth: int
) -> None:
    notices = read_image(
        BytesIO(png(colour, channels, depth)), replace(SETTINGS, channels=3)
    ).notices
    assert [notice for notice in notices if notice[0] == "depth"] == [("depth", "16 bits")] * (
        depth == 16
    )


def test_a_bmp_of_16_bits_for_a_pixel_loses_none() -> None:
    head = struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, 16, 3, 8, 0, 0, 0, 0) + struct.pack(
        "<III", 0xF800, 0x7E0, 0x1F
    )
    data = (
        b"BM"
        + struct.pack("<IHHI", 14 + len(head) + 8, 0, 0, 14 + len(head))
        + head
        + bytes(range(8))
    )
    notices = read_image(BytesIO(data), replace(SETTINGS, channels=3)).notices
    assert "depth" not in [kind for kind, _ in notices]


@pytest.mark.parametrize("largest", [255, 256, 1023, 65_535])
def test_a_ppm_of_more_than_bytes_is_noticed(largest: int) -> None:
    data = (
        f"P6\n2 2\n{largest}\n".encode()
        + np.arange(12).astype(">u2" if largest > 255 else "u1").tobytes()
    )
    notices = read_image(BytesIO(data), replace(SETTINGS, channels=3)).notices
    assert (("depth", "16 bits") in notices) == (largest > 255)


def test_an_animation_is_noticed() -> None:
    file = BytesIO()
    ramp(3, 3).save(file, "GIF", save_all=True, append_images=[ramp(3, 3).rotate(90)])
    assert read_image(file, SETTINGS).notices == (("frames", ""),)


@pytest.mark.parametrize(
    "content", [b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xd7\xcd\xc6\x9a\x00\x00", b"FORM", b""]
)
def test_no_other_format_of_pillow_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    Image.init()
    tried: list[str] = []

    def register(name: str) -> None:
        # None: whatever it begins with
        monkeypatch.setitem(Image.OPEN, name, (lambda *_: tried.append(name), None))

    others = Image.OPEN.keys() - set(FORMATS)
    assert {"EPS", "WMF"} <= others
    for name in others:
        register(name)
    with (
        zipfile.ZipFile(tmp_path / "a.zip", "w") as packed,
        tarfile.open(tmp_path / "a.tar", "w") as archive,
    ):
        packed.writestr("0.png", content)
        entry = tarfile.TarInfo("0.png")
        entry.size = len(content)
        archive.addfile(entry, BytesIO(content))
    (tmp_path / "0.png").write_bytes(content)
    for path in ("0.png", "a.zip/0.png", "a.tar/0.png"):
        with (
            open_file(tmp_path / path) as file,
            pytest.raises(MediaError, match="PNG, JPEG, GIF, BMP, TIFF, WEBP and PPM are read"),
        ):
            read_image(file, SETTINGS)
    assert tried == []


@pytest.mark.parametrize("name", FORMATS)
def test_the_formats_of_the_list_are_read(name: str) -> None:
    assert np.ptp(read(ramp(8, 8), name)) > 0

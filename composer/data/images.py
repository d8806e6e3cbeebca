"""Images as arrays of bytes. The only door to Pillow, which is imported where an image is read."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from composer.data.features import WHITE, Reading
from composer.data.media_files import MediaError, Part, require_packages
from composer.model.features import image_size
from composer.recipe.data_sections import TableColumn

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
"""Formats that are read, by Pillow's names: for others Pillow would start programs."""
DEEP = re.compile("(?<!BGR);16")
"""Layouts of 16 bits for each colour in a file; `BGR;16` has them for a pixel."""
MAX_PIXELS = 89_478_485
"""Maximum pixels of an image: from more on Pillow warns. In colour they take 0.25 GiB."""
THUMBNAIL, COLOURED = 32, 24
"""Side of a copy in which colour is looked for, and the distance of channels that is colour."""
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
"""Modes of Pillow with numbers of 16 bits; it cuts them to 8 by leaving the higher ones out."""


def read_image(file: IO[bytes], settings: TableColumn, part: Part | None = None) -> Reading:
    """Return an image as the settings of its column say, no larger than `size`. -> (T, W, C) uint8

    T are its rows, or with `positions: columns` its columns. Transparent pixels are white. Notices
    are those of `image_notices`, and `blank`. Raises MediaError.
    """
    require_packages("PIL")
    from PIL import Image

    height, width = image_size(settings)
    image, notices = open_image(file)
    notices += image_notices(image, settings.channels)
    if image.mode in SIXTEEN_BITS:  # `I` may have more
        image = Image.fromarray((np.clip(np.asarray(image), 0, 0xFFFF) >> 8).astype(np.uint8))
    if image.mode == "LAB":  # which becomes grey in no other way
        image = image.convert("RGB")
    if is_transparent(image):
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = image.convert("L" if settings.channels == 1 else "RGB")
    scale = min(1.0, height / image.height, width / image.width)
    if scale < 1.0:
        image = image.resize(
            (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        )
    array = np.asarray(image)  # (height, width) or (height, width, 3)
    array = array[..., None] if array.ndim == 2 else array
    notices += [("blank", "")] if (array == array[0, 0]).all() else []
    turned = array.transpose(1, 0, 2) if settings.positions == "columns" else array
    return Reading(np.ascontiguousarray(turned), (*notices,))


def open_image(file: IO[bytes]) -> tuple[Any, list[tuple[str, str]]]:
    """Return an upright image, with the notice `frames` if it has several. Raises MediaError."""
    require_packages("PIL")
    from PIL import Image, ImageOps, UnidentifiedImageError

    # in all threads: files are read by several, and `catch_warnings` would catch those of others
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    try:
        image: Any = Image.open(file, formats=FORMATS)
        notices = [("frames", "")] if getattr(image, "n_frames", 1) > 1 else []
        notices += [("depth", "16 bits")] if is_cut_to_bytes(image) else []
        return ImageOps.exif_transpose(image), notices
    except (
        Image.DecompressionBombWarning,
        Image.DecompressionBombError,
    ) as error:  # the latter of twice as many
        message = (
            f"this image is huge: {int(re.findall(r'[0-9]+', str(error))[0]):,} pixels, of"
            f" {MAX_PIXELS:,} at most"
        )
        raise MediaError("image", message, "scale it down, or remove the line") from error
    except Exception as error:  # Pillow's readers raise anything
        unknown = f"; {', '.join(FORMATS[:-1])} and {FORMATS[-1]} are read"
        reason = unknown if isinstance(error, UnidentifiedImageError) else f": {error}"
        fix = "save it again, as PNG, or remove the line"
        raise MediaError("image", f"this is not a readable image{reason}", fix) from error


def is_cut_to_bytes(image: Any) -> bool:
    """True if Pillow keeps the higher half of the numbers of an open, unread image."""
    # how the numbers lie in the file, and in a PPM the largest
    packed = [tile[3] for tile in image.tile]
    is_deep = image.format == "PPM" and any(
        isinstance(part, tuple) and part[1] > WHITE for part in packed
    )
    return image.mode not in SIXTEEN_BITS and (is_deep or DEEP.search(str(packed)) is not None)


def is_transparent(image: Any) -> bool:
    """True if an image may have transparent pixels."""
    return image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info


def image_notices(image: Any, channels: int) -> Iterator[tuple[str, str]]:
    """Yield what an image loses: `profile`, `depth` of its numbers, `transparent`, `grey`."""
    if image.mode in ("CMYK", "LAB"):
        yield "profile", image.mode
    if image.mode in (*SIXTEEN_BITS, "F"):
        yield "depth", "floating point" if image.mode == "F" else "16 bits"
    if is_transparent(image) and image.convert("RGBA").getchannel("A").getextrema()[0] < WHITE:
        yield "transparent", ""
    if channels == 1 and image.mode not in ("1", "L", "LA", "F", *SIXTEEN_BITS):
        few = np.asarray(image.convert("RGB").resize((THUMBNAIL, THUMBNAIL)))  # (height, width, 3)
        if np.ptp(few, axis=-1).max() > COLOURED:
            yield "grey", ""

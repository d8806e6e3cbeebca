"""Images as arrays of bytes. The only door to Pillow, which is imported where an image is read."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from composer.data.features import MediaError

SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
"""Modes of Pillow with numbers of 16 bits; it cuts them to 8 by leaving the higher ones out."""


def read_image(file: IO[bytes], settings: Mapping[str, Any]) -> np.ndarray:
    """Return an image as the settings of its column say, no larger than `size`. -> (T, W, C) uint8

    T are its rows, or with `positions: columns` its columns. Transparent pixels are white. Raises MediaError.
    """
    if importlib.util.find_spec("PIL") is None:
        raise MediaError("package", "images are read by Pillow, which is not installed", "run `pip install pillow`")
    from PIL import Image, ImageOps, UnidentifiedImageError

    height, width = settings["size"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = ImageOps.exif_transpose(Image.open(file))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise MediaError("image", f"this image is huge: {error}", "scale it down, or remove the line") from error
    except Exception as error:  # Pillow's readers raise anything
        reason = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
        fix = "save it again, as PNG, or remove the line"
        raise MediaError("image", f"this is no image that can be read{reason}", fix) from error
    if image.mode in SIXTEEN_BITS:
        image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    image = image.convert("L" if settings["channels"] == 1 else "RGB")
    scale = min(1.0, height / image.height, width / image.width)
    if scale < 1.0:
        image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    array = np.asarray(image)  # (height, width) or (height, width, 3)
    array = array[..., None] if array.ndim == 2 else array
    return np.ascontiguousarray(array.transpose(1, 0, 2) if settings["positions"] == "columns" else array)

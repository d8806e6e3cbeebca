"""Images of lines of text in printed faces: tables and archives. Made data.

    python -m prepare_data.rendered_lines --text FILE --folder DIR [--fonts /usr/share/fonts]
        [--train 16000] [--seed 1]

FILE has a sentence on each line; pieces of at most 30 characters, cut between words, are the
answers, and no piece is in two splits. Twelve faces train; of others, whose families were never
seen, two validate and three test. A line is light on dark, 32 pixels high, and differs in size,
slant, height, ink and noise. The faces are Debian's:

    apt-get install fonts-dejavu-core fonts-liberation fonts-freefont-ttf fonts-roboto-unhinted \\
        fonts-open-sans fonts-linuxlibertine fonts-lato fonts-cantarell
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from prepare_data.media_tables import split_sentences, write_examples

HEIGHT = 32
"""Pixels of an image."""
CHARACTERS = 30
"""Of a line, at most."""
MEASURED = 1_000
"""Lines of val and of test."""
FACE_SIZE, MARGIN = 32, 4
"""Pixels of an em before a line is scaled, and around its box."""
LINE_HEIGHT = (0.78, 1.0)
"""Of a line, from the highest ascender to the lowest descender, in heights of the image."""
SLANT, INK, NOISE = 0.2, (0.7, 1.0), 0.08
"""Largest shear to either side; shares of the range of grey, of ink and of the noise's largest
deviation.
"""
FACES = {
    "train": (
        "DejaVuSans.ttf",
        "DejaVuSerif.ttf",
        "DejaVuSansMono.ttf",
        "LiberationSans-Regular.ttf",
        "LiberationSerif-Regular.ttf",
        "LiberationSerif-Italic.ttf",
        "LiberationMono-Regular.ttf",
        "LiberationSansNarrow-Regular.ttf",
        "FreeSans.ttf",
        "FreeSerif.ttf",
        "FreeMono.ttf",
        "Roboto-Regular.ttf",
    ),
    "val": ("OpenSans-Regular.ttf", "LinBiolinum_R.otf"),
    "test": ("Lato-Regular.ttf", "LinLibertine_R.otf", "Cantarell-Regular.otf"),
}
"""Files of each split's faces."""
Face = ImageFont.FreeTypeFont


def find_faces(folder: Path, names: Sequence[str]) -> dict[str, Face]:
    """Return faces by their names, of files anywhere in a folder. Raises FileNotFoundError with
    those that lack.
    """
    paths = {path.name: path for path in sorted(folder.rglob("*.[to]tf"))}
    if missing := [name for name in names if name not in paths]:
        message = (
            f"{folder} has no {', '.join(missing)}; --help names the packages of Debian that have"
            " them"
        )
        raise FileNotFoundError(message)
    return {Path(name).stem: ImageFont.truetype(paths[name], FACE_SIZE) for name in names}


def cut_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield pieces of lines, cut between words, without those that are too long or beyond ASCII."""
    for line in lines:
        pieces = textwrap.wrap(line, CHARACTERS, break_long_words=False, break_on_hyphens=False)
        yield from (piece for piece in pieces if len(piece) <= CHARACTERS and piece.isascii())


def draw_line(text: str, face: Face) -> Image.Image:
    """Return a line in white on black, as high as its face's lines are."""
    left, _, right, _ = face.getbbox(text)
    image = Image.new("L", (round(right - left) + 2 * MARGIN, sum(face.getmetrics())))
    ImageDraw.Draw(image).text((MARGIN - left, 0), text, fill=255, font=face)
    return image


def render_line(text: str, face: Face, random: np.random.Generator) -> np.ndarray:
    """Return a line scaled, slanted and moved at random, with noise. -> (HEIGHT, W) uint8"""
    line = draw_line(text, face)
    height = random.uniform(*LINE_HEIGHT) * HEIGHT
    scale, shear, top = (
        height / line.height,
        random.uniform(-SLANT, SLANT),
        random.uniform(0, HEIGHT - height),
    )
    width = round(line.width * scale + abs(shear) * height)
    # where in the line the pixel (x, y) comes from; to the right of x = 0 in every row
    indent = max(shear, 0.0) * height + shear * top
    matrix = (1 / scale, shear / scale, -indent / scale, 0.0, 1 / scale, -top / scale)
    moved = line.transform(
        (width, HEIGHT), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC
    )
    grey = np.asarray(moved) * random.uniform(*INK)
    grey += random.normal(scale=255 * random.uniform(0, NOISE), size=grey.shape)
    return grey.clip(0, 255).astype(np.uint8)


def render_lines(
    texts: Sequence[str], faces: dict[str, Face], seed: Sequence[int]
) -> Iterator[tuple[bytes, tuple[str, str]]]:
    """Yield each line as PNG, with its text and the name of a face chosen at random."""
    names = sorted(faces)
    for number, text in enumerate(texts):
        random = np.random.default_rng([*seed, number])
        name = names[random.integers(len(names))]
        file = BytesIO()
        Image.fromarray(render_line(text, faces[name], random)).save(file, "PNG")
        yield file.getvalue(), (text, name)


def write_lines(
    lines: Iterable[str], faces: dict[str, dict[str, Face]], folder: Path, train: int, seed: int
) -> None:
    """Write the tables and archives of all splits. faces: Those of each. Raises ValueError for a
    text too short.
    """
    counts = {split: train if split == "train" else MEASURED for split in faces}
    sentences = split_sentences(cut_lines(lines), counts, seed)
    for number, (split, texts) in enumerate(sentences.items()):
        examples = render_lines(texts, faces[split], (seed, number))
        write_examples(folder / f"{split}.tsv", ("image", "text", "face"), "png", examples)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"))
    parser.add_argument("--train", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    lines = options.text.read_text(encoding="utf-8").splitlines()
    try:
        faces = {split: find_faces(options.fonts, names) for split, names in FACES.items()}
        write_lines(lines, faces, options.folder, options.train, options.seed)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

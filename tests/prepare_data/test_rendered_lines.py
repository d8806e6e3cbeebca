"""Rendered lines: text in faces of their own split. What needs no face of a machine is done in
Pillow's own.
"""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image, ImageFont

from prepare_data import rendered_lines
from prepare_data.rendered_lines import (
    FACES,
    HEIGHT,
    cut_lines,
    draw_line,
    find_faces,
    render_line,
    write_lines,
)

FONTS = Path("/usr/share/fonts")
LINES = [
    f"{word} number {at} runs over a green field with its owner"
    for word in ("dog", "Cat")
    for at in range(20)
]


def own_face() -> rendered_lines.Face:
    face = ImageFont.load_default(rendered_lines.FACE_SIZE)
    assert isinstance(face, ImageFont.FreeTypeFont)
    return face


def read_split(folder: Path, split: str) -> list[dict[str, str]]:
    with (folder / f"{split}.tsv").open(encoding="utf-8") as file:
        return [*csv.DictReader(file, delimiter="\t")]


def test_lines_are_cut_between_words() -> None:
    pieces = [
        *cut_lines(["A man in a blue shirt is standing on a ladder.", "x" * 31, "naïve", "short"])
    ]
    assert pieces == ["A man in a blue shirt is", "standing on a ladder.", "short"]


def test_no_split_shares_a_face() -> None:
    names = sum(FACES.values(), ())
    assert len(names) == len(set(names))
    assert len(FACES["train"]) >= 8
    assert len(FACES["test"]) >= 2
    families = {split: {name[:7] for name in files} for split, files in FACES.items()}
    assert not families["train"] & (families["val"] | families["test"])


def test_a_line_without_jitter_is_the_line_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    line = draw_line("Hello, you", own_face())
    for name, value in {
        "SLANT": 0.0,
        "NOISE": 0.0,
        "INK": (1.0, 1.0),
        "LINE_HEIGHT": (1.0, 1.0),
    }.items():
        monkeypatch.setattr(rendered_lines, name, value)
    monkeypatch.setattr(rendered_lines, "HEIGHT", line.height)  # so that nothing is scaled
    assert np.array_equal(
        render_line("Hello, you", own_face(), np.random.default_rng(1)), np.asarray(line)
    )


@pytest.mark.parametrize("slant", [-0.2, 0.2])
def test_a_slanted_line_leans_and_loses_no_ink(
    slant: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendered_lines, "NOISE", 0.0)
    monkeypatch.setattr(rendered_lines, "INK", (1.0, 1.0))
    monkeypatch.setattr(rendered_lines, "LINE_HEIGHT", (1.0, 1.0))

    class Random:
        def uniform(self, low: float, high: float) -> float:
            return slant if (low, high) == (-rendered_lines.SLANT, rendered_lines.SLANT) else high

        def normal(self, scale: float, size: tuple[int, ...]) -> np.ndarray:
            return np.zeros(size)

    line = render_line("I", own_face(), Random())  # type: ignore[arg-type]
    rows = np.flatnonzero(line.sum(1))
    middles = [
        np.average(np.arange(line.shape[1]), weights=line[row]) for row in (rows[0], rows[-1])
    ]
    assert (middles[0] - middles[1]) / (rows[-1] - rows[0]) == pytest.approx(slant, abs=0.03)
    face = own_face()
    scale = HEIGHT / sum(face.getmetrics())
    assert line.sum() == pytest.approx(np.asarray(draw_line("I", face)).sum() * scale**2, rel=0.1)


def test_splits_share_no_line_and_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendered_lines, "MEASURED", 5)
    faces = {split: {f"{split} {name}": own_face() for name in "ab"} for split in FACES}
    for folder, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_lines(LINES, faces, tmp_path / folder, train=20, seed=seed)
    rows = {split: read_split(tmp_path / "one", split) for split in FACES}
    assert {split: len(part) for split, part in rows.items()} == {"train": 20, "val": 5, "test": 5}
    texts = [row["text"] for part in rows.values() for row in part]
    assert len(texts) == len(set(texts))
    assert set(texts) <= {*cut_lines(LINES)}
    for split, part in rows.items():
        assert {row["face"] for row in part} == set(faces[split])
        with zipfile.ZipFile(tmp_path / f"one/{split}.zip") as archive:
            images = [Image.open(io.BytesIO(archive.read(Path(row["image"]).name))) for row in part]
        assert {image.height for image in images} == {HEIGHT}
        for name in (f"{split}.tsv", f"{split}.zip"):
            content = (tmp_path / "one" / name).read_bytes()
            assert content == (tmp_path / "same" / name).read_bytes()
            assert content != (tmp_path / "other" / name).read_bytes()


def test_missing_faces_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"has no Lato-Regular\.ttf; --help names the packages"
    ):
        find_faces(tmp_path, ["Lato-Regular.ttf"])


def test_the_faces_of_debian_are_found() -> None:
    there = {path.name for path in FONTS.rglob("*.[to]tf")}
    if missing := set(sum(FACES.values(), ())) - there:
        pytest.skip(f"{FONTS} has no {', '.join(sorted(missing))}: see the script's help")
    for names in FACES.values():
        faces = find_faces(FONTS, names)
        assert len({face.getname() for face in faces.values()}) == len(names)
        images = [
            render_line("Quickly, 12!", face, np.random.default_rng(1)) for face in faces.values()
        ]
        assert min(image.mean() for image in images) > 5

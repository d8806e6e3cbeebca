"""Attention over images and sounds lies where the model has read: cells and seconds, worked out by
hand.
"""

from __future__ import annotations

import base64
import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import yaml
from PIL import Image

from blocks.core.contract import Context
from composer.model.builder import build
from composer.model.encoder_decoder import Encoder
from composer.recipe.data_sections import TableColumn
from composer.recipe.recipe import load
from composer.recipe.section import read_section
from composer.viz.media import (
    HEAT,
    MAX_SOUND,
    OPACITY,
    WHITE,
    Cells,
    Medium,
    cells_by_memory,
    example,
    medium_of_source,
    memory_cells,
    picture_strips,
    times,
)

IMAGE = {"column": "image", "kind": "image", "size": [84, 84], "channels": 1, "positions": "rows"}
SOUND = {
    "column": "sound",
    "kind": "audio",
    "rate": 8000,
    "features": {"log_mel": {"bands": 4, "window": 0.025, "hop": 0.01}},
    "normalize": True,
}


def column(settings: dict[str, Any]) -> TableColumn:
    return read_section(TableColumn, settings, ())


SCENES = [
    {"patches": {"size": [4, 4], "width": 2}},
    {"patches": {"size": [7, 7], "width": 3}},
    "flatten",
]


def encoder_of(
    tmp_path: Path, stack: list[Any], source: dict[str, Any] = IMAGE, ends_in: Any = "rnn"
) -> Encoder:
    """An encoder with random weights."""
    data = {"table": {"train": "t.tsv", "val": "v.tsv", "source": source, "target": "words"}}
    model = {"width": 4, "encoder": stack, "decoder": ["rnn", ends_in]}
    (tmp_path / "t.yaml").write_text(
        yaml.safe_dump({"recipe": 1, "data": data, "model": model}), encoding="utf-8"
    )
    return build(load(tmp_path / "t.yaml"), {"target": 9}).readers()["source"]


@pytest.mark.parametrize(
    ("stack", "size", "expected"),
    [
        (SCENES, (84, 84), Cells("source", 3, 3, Fraction(28), 28)),
        # a smaller image: 15 x 10 patches, then 3 x 2
        (SCENES, (60, 40), Cells("source", 3, 2, Fraction(28), 28)),
        ([{"patches": [5, 5]}, "flatten"], (84, 84), Cells("source", 17, 17, Fraction(5), 5)),
        ([{"conv2d": {"stride": [3, 2]}}, "pool2d", "flatten"], (13, 9), Cells("source", 3, 3, Fraction(6), 4)),
        ([{"conv2d": {"stride": [3, 3]}}, "sum_columns"], (13, 9), Cells("source", 5, 1, Fraction(3), 9)),
        ([{"patches": [4, 4]}, {"residual": ["conv2d"]}, "flatten"], (8, 8), Cells("source", 2, 2, Fraction(4), 4)),
        (["concat_columns", "linear", "pyramid"], (13, 9), Cells("source", 7, 1, Fraction(2), 9)),
    ],
)  # fmt: skip
def test_positions_are_cells_of_the_image(
    tmp_path: Path, stack: list[Any], size: tuple[int, int], expected: Cells
) -> None:
    assert memory_cells("source", encoder_of(tmp_path, stack), size) == expected


def test_a_position_changes_with_its_own_cell_alone(tmp_path: Path) -> None:
    """Of patches none sees another cell, so the mapping can be seen in what the encoder leaves."""
    encoder, size = encoder_of(tmp_path, SCENES), (60, 40)
    cells = memory_cells("source", encoder, size)
    assert cells is not None

    def encode(image: torch.Tensor) -> torch.Tensor:
        padded = torch.full((1, 60, 84, 1), torch.nan)
        padded[0, :, :40] = image
        real = ~padded[..., 0].isnan()
        output = encoder(padded, {}, Context(real, {}, {}))["encoder"]
        assert int(output.mask.sum()) == cells.rows * cells.columns
        return output.states[0]

    before = encode(torch.zeros(60, 40, 1))
    for position in range(cells.rows * cells.columns):
        row, column = divmod(position, cells.columns)
        image = torch.zeros(60, 40, 1)
        image[int(row * cells.height) + 3, column * cells.width + 11] = 1.0
        changed = (encode(image) != before).any(1).nonzero().flatten().tolist()
        assert changed == [position]


@pytest.mark.parametrize(
    "stack",
    [
        [{"patches": [4, 4]}, "flatten", "reverse"],
        [{"patches": [4, 4]}, "flatten", "pyramid"],
        [{"patches": [4, 4]}, "flatten", {"pool": "mean"}],
        [{"rows": [{"conv": {"stride": 2}}]}, "flatten"],
        [{"parallel": [[{"patches": [4, 4]}, "flatten"]]}],
    ],
)
def test_where_the_cells_are_not_known_there_are_none(tmp_path: Path, stack: list[Any]) -> None:
    assert memory_cells("source", encoder_of(tmp_path, stack), (84, 84)) is None


def test_the_outputs_that_have_a_name_have_cells_of_their_own(tmp_path: Path) -> None:
    stack = ["sum_columns", {"rnn": {"cell": "gru", "as": "rows"}}, "pyramid"]
    assert cells_by_memory("source", encoder_of(tmp_path, stack), (10, 8)) == {
        "encoder": Cells("source", 5, 1, Fraction(2), 8),
        "encoder.rows": Cells("source", 10, 1, Fraction(1), 8),
    }


def test_a_pyramid_has_a_quarter_of_the_frames(tmp_path: Path) -> None:
    stack = ["rnn", "pyramid", "rnn", "pyramid", "rnn"]
    cells = memory_cells("source", encoder_of(tmp_path, stack, SOUND), (101, 0))
    assert cells == Cells("source", 26, 1, Fraction(4), 0)
    # frames 0 to 3 are centred at 0 to 0.06 s, frames 4 to 7 at 0.08 to 0.14 s
    assert times(cells, 0.02)[:2] == ["0.03 s", "0.11 s"]


def test_the_bands_of_a_time_are_added_up(tmp_path: Path) -> None:
    stack = [{"split_columns": 4}, {"conv2d": {"kernel": [3, 3]}}, "pool2d", "flatten"]
    cells = memory_cells("source", encoder_of(tmp_path, stack, SOUND), (5, 0))
    assert cells is not None
    assert (cells.rows, cells.columns, cells.height) == (3, 2, 2)
    assert cells.grid(np.array([0.1, 0.2, 0.3, 0.4, 0.0, 0.0])).sum(-1).tolist() == pytest.approx(
        [0.3, 0.7, 0.0]
    )


# ------------------------------------------------------------------------------------------- on a
# page


def png(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_attention_is_laid_over_the_image_word_by_word() -> None:
    medium = medium_of_source("a/b/c.png", column(IMAGE), torch.zeros(60, 40, 1))
    assert medium is not None
    assert medium.label == "b/c.png"
    # what comes after is padding
    weights = np.array([[[0.5, 0, 0.25, 0, 0, 0.25, 9]], [[0, 0, 0, 0, 0, 1, 9]]])
    mean, *heads = picture_strips(["one"], weights, medium, Cells("source", 3, 2, Fraction(28), 28))
    assert [strip.title for strip in (mean, *heads)] == ["mean of 2 heads", "head 1", "head 2"]
    ((word, image, description),) = heads[0].overlays
    alpha = OPACITY * WHITE
    assert png(image)[..., 3].tolist() == [
        [round(alpha), 0],
        [round(alpha / 2), 0],
        [0, round(alpha / 2)],
    ]
    assert png(image)[0, 0, :3].tolist() == [*HEAT]
    assert word == "one"
    assert description == "one: most read in row 1 of 3, column 1 of 2, 0.50"
    assert heads[0].opaque == pytest.approx(0.5 / OPACITY)
    width, height = medium.shown_size
    # the last cells end beyond the image
    assert heads[0].size == pytest.approx((56 / 40 * width, 84 / 60 * height))
    assert mean.overlays[0][2] == "one: most read in row 3 of 3, column 2 of 2, 0.62"


def test_an_image_whose_positions_are_columns_is_turned_back() -> None:
    line = torch.arange(12.0).reshape(6, 2, 1) / WHITE  # 6 columns of 2 pixels
    line = torch.cat([line, torch.full((6, 1, 1), torch.nan)], 1)
    medium = medium_of_source("line.png", column({**IMAGE, "positions": "columns"}), line)
    assert medium is not None
    assert medium.pixels.tolist() == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]
    assert medium.size == (6, 2)
    (strip,) = picture_strips(
        ["a"], np.array([[[0.0, 1.0, 0.0]]]), medium, Cells("source", 3, 1, Fraction(2), 2)
    )
    assert (png(strip.overlays[0][1])[..., 3] > 0).tolist() == [[False, True, False]]
    assert strip.size == pytest.approx(medium.shown_size)


def test_a_spectrogram_has_its_seconds() -> None:
    frames = torch.zeros(101, 4)
    frames[50:, 3] = 1.0
    medium = medium_of_source("a.wav", column(SOUND), frames)
    assert medium is not None
    assert medium.pixels[0].tolist() == [255] * 50 + [0] * 51  # the highest band is above
    frame = medium.shown_size[0] / 101
    labels = {label: x / frame for label, x in medium.ticks}
    assert labels["0 s"] == pytest.approx(0.5)
    assert labels["1 s"] == pytest.approx(100.5)


def test_a_sound_is_on_the_page_if_it_is_short(tmp_path: Path) -> None:
    samples = np.sin(np.arange(1600) / 5).astype(np.float32) / 2
    soundfile.write(tmp_path / "a.flac", samples, 8000)
    html = example(str(tmp_path / "a.flac"), column(SOUND))
    kind, _, content = html.partition('src="')[2].partition('"')[0].partition(",")
    assert kind == "data:audio/wav;base64"
    played, rate = soundfile.read(io.BytesIO(base64.b64decode(content)))
    assert rate == 8000
    assert np.allclose(played, samples, atol=1e-4)
    soundfile.write(tmp_path / "long.wav", np.zeros(MAX_SOUND // 2 + 1), 8000)
    assert "it lasts 30.0 s, and a page holds sounds of up to 30 s" in example(
        str(tmp_path / "long.wav"), column(SOUND)
    )
    missing = Medium("gone.wav", np.zeros((4, 9)), (9, 0), False, 8000, 0.01)
    assert "its file can no longer be read" in missing.html
    assert example("gone.wav", column(SOUND)) == "gone.wav"

"""Film strips are the grids, frame by frame, with the tokens above and below."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from blocks.core.contract import Context
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import pad_with_blanks
from composer.viz.alignments import MAX_TOKENS, Alignment, alignment, alignment_page, alignments
from composer.viz.heat_maps import count_frames, describe_film, vector_colors
from composer.viz.records import MAX_CELLS, MAX_FRAMES, Film, frame_numbers, token_labels
from composer.viz.report import report
from tests.inference.untrained import WORDS, made
from tests.viz.pages import (
    by_class,
    check_self_contained,
    headings,
    read,
    size_without_plotly,
    texts,
)
from tests.viz.pages import pixels as pixels_of

NEURAL_GPU = """
encoder:
- grid: {columns: 3, max_length_ratio: 1}
- repeat: {times: length, share: true, stack: [cgru, cgru]}
- select_column: 0
decoder: [source_state]
"""
EXTENDED = """
encoder: [{grid: 2}]
decoder: [{active_memory: {stack: [{cgru: {with: tape}}]}}, {select_column: 0}]
"""
IN_A_ROW = """
encoder: [{grid: 3}, cgru, {cgru: {kernel: [1, 1]}}, {select_column: 0}]
decoder: [{cross_attention: {}}, {rnn: {cell: gru}}]
"""
LINE = "eins zwei drei vier"
EXACT = 1e-6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(made(tmp_path_factory.mktemp("films") / "run", NEURAL_GPU))


def film_of(run: Run, line: str = LINE) -> Film:
    (result,) = alignments(run, [line])
    (film,) = result.films
    return film


def page_of(film: Film) -> str:
    return alignment_page(Alignment({}, "", [], films=[film]))


def drawn(images: np.ndarray, **changes: list[str]) -> Film:
    """A film of these images, with names that tell nothing."""
    names = {
        "frames": [f"step {at + 1}" for at in range(len(images))],
        "read": ["a"] * images.shape[1],
        "output": [],
    }
    return Film("encoder[1].cgru", "source", total=len(images), images=images, **(names | changes))  # type: ignore[arg-type]


@torch.no_grad()
def by_hand(run: Run, line: str, answer: int) -> Tensor:
    """Two units after each other, as often as there are positions. -> (F, N, W, D)"""
    encoder = run.model.readers()["source"]
    (ids,) = run.tokenizers.encode("source", [line])
    mask = torch.ones(1, len(ids) + 1, dtype=torch.bool)
    x, mask = pad_with_blanks(
        encoder.embedding(torch.tensor([[*ids, 2]])), mask, torch.ones(1, answer, dtype=torch.bool)
    )
    s = torch.cat([x[:, :, None], x.new_zeros(1, x.shape[1], 2, x.shape[2])], 2)  # (B, N, W, D)
    units = [item for item in encoder.modules() if type(item).__name__ == "Cgru"]
    context, seen = Context(mask[:, :, None].expand(-1, -1, 3), {}, {}), [s[0]]
    for _ in range(x.shape[1]):
        for unit in units:
            s, _ = unit(s, (), context)
        seen.append(s[0])
    return torch.stack(seen)


def align_with_answer(run: Run, line: str, answer: str) -> Alignment:
    """A sentence with an answer that is given."""
    (ids,), (written,) = (
        run.tokenizers.encode("source", [line]),
        run.tokenizers.encode("target", [answer]),
    )
    return alignment(run, {"source": line}, {"source": ids}, written)


# ------------------------------------------------------------------------------------------- what
# is filmed


def test_a_frame_is_the_grid_as_it_begins_and_after_each_step(run: Run) -> None:
    (result,) = alignments(run, [LINE])
    (film,) = result.films
    answer = len(run.tokenizers.encode("target", [result.output])[0]) + 1
    assert film.images.shape == (6, 5, 3, 16)
    np.testing.assert_allclose(film.images, by_hand(run, LINE, answer).numpy(), atol=EXACT)
    assert film.frames == ["grid", *(f"step {number}" for number in range(1, 6))]
    assert (film.side, film.total) == ("source", 6)
    assert film.block == "encoder[1].repeat.stack[1]"


def test_source_tokens_are_above_and_output_tokens_below(run: Run) -> None:
    (film,) = align_with_answer(run, LINE, "acht neun").films
    assert film.read == ["eins", "zwei", "drei", "vier", "⟨eos⟩"]
    assert film.output == ["acht", "neun", "⟨eos⟩", "·", "·"]


def test_blanks_have_no_word(run: Run) -> None:
    (film,) = align_with_answer(run, "eins", "zwei drei vier").films
    assert film.read == ["eins", "⟨eos⟩", "·", "·"]
    assert film.output == ["zwei", "drei", "vier", "⟨eos⟩"]
    assert film.total == 5
    np.testing.assert_allclose(film.images, by_hand(run, "eins", 4).numpy(), atol=EXACT)


def test_outside_of_a_repeat_each_block_has_a_frame(tmp_path: Path) -> None:
    (result,) = alignments(open_run(made(tmp_path / "run", IN_A_ROW)), [LINE])
    (film,) = result.films
    assert (film.frames, film.output) == (["grid", "cgru", "cgru"], [])
    assert len(result.attentions) == 1
    assert not film.images[0, :, 1:].any()
    assert film.images[0, :, 0].all(-1).any()
    assert not np.allclose(film.images[1], film.images[2])


def test_the_parts_of_a_grid_that_change_their_size_have_strips_of_their_own(
    tmp_path: Path,
) -> None:
    model = IN_A_ROW.replace(
        "{select_column: 0}", "{select_column: 0}, {grid: 2}, cgru, {select_column: 1}"
    )
    (result,) = alignments(open_run(made(tmp_path / "run", model)), [LINE])
    assert [(film.total, film.images.shape[2]) for film in result.films] == [(3, 3), (2, 2)]


def test_frames_are_the_grids_that_blocks_leave(tmp_path: Path) -> None:
    """What a block adds to a grid is not the grid: of a residual, a highway and parallel stacks the
    sum is filmed.
    """
    model = """
encoder: [{grid: 2}, {residual: [conv2d]}, {highway: [cgru]}, {parallel: [[cgru], [conv2d]]},
  conv2d, select_column]
decoder: [source_state]
"""
    opened = open_run(made(tmp_path / "run", model))
    film = film_of(opened)
    assert film.frames == ["grid", "residual", "highway", "parallel", "conv2d"]
    context = Context(torch.ones(1, *film.images.shape[1:3], dtype=torch.bool), {}, {})
    with torch.no_grad():
        for at, block in enumerate(opened.model.readers()["source"].stack.inner()[1:5]):
            x = torch.from_numpy(film.images[at : at + 1])
            after, *_ = block(x, block.start(x, context), context)
            np.testing.assert_allclose(film.images[at + 1], after[0].numpy(), atol=EXACT)


def test_encoders_have_strips_of_their_own(tmp_path: Path) -> None:
    model = """
encoders: {left: [{grid: 2}, cgru, {select_column: 0}], right: [{grid: 2}, cgru, cgru,
  {select_column: 0}]}
decoder: [{cross_attention: {from: left}}, {residual: [{cross_attention: {from: right}}]}]
"""
    (result,) = alignments(open_run(made(tmp_path / "run", model)), ["eins zwei\tdrei vier"])
    assert [(film.side, film.total) for film in result.films] == [("left", 2), ("right", 3)]
    assert [film.read[:2] for film in result.films] == [["eins", "zwei"], ["drei", "vier"]]


def test_a_grid_that_nobody_changes_is_not_filmed(tmp_path: Path) -> None:
    (result,) = alignments(
        open_run(
            made(
                tmp_path / "run",
                "encoder: [{grid: 2}, {select_column: 0}]\ndecoder: [source_state]",
            )
        ),
        [LINE],
    )
    assert list(result.films) == []


def test_a_stack_with_a_name_is_filmed_at_each_use(tmp_path: Path) -> None:
    model = """
encoder: [{grid: 2}, {use: think}, {use: think}, {select_column: 0}]
stacks: {think: [cgru, {cgru: {kernel: [1, 1]}}]}
decoder: [source_state]
"""
    opened = open_run(made(tmp_path / "run", model))
    film = film_of(opened)
    first, second, *_ = (
        item for item in opened.model.encoders.modules() if type(item).__name__ == "Cgru"
    )
    context = Context(torch.ones(1, *film.images.shape[1:3], dtype=torch.bool), {}, {})
    with torch.no_grad():
        for at, unit in enumerate([first, second, first, second]):
            after, _ = unit(torch.from_numpy(film.images[at : at + 1]), (), context)
            np.testing.assert_allclose(film.images[at + 1], after[0].numpy(), atol=EXACT)
    assert (film.total, film.side, film.frames[0]) == (5, "source", "grid")


def test_a_stack_of_one_block_is_filmed_at_each_use(tmp_path: Path) -> None:
    model = """
encoder: [{grid: 2}, {use: think}, {use: think}, {select_column: 0}]
stacks: {think: [cgru]}
decoder: [source_state]
"""
    film = film_of(open_run(made(tmp_path / "run", model)))
    assert film.frames == ["grid", "cgru", "cgru"]
    assert not np.allclose(film.images[1], film.images[2])


def test_a_decoder_is_filmed_token_by_token(tmp_path: Path) -> None:
    opened = open_run(made(tmp_path / "run", EXTENDED))
    (result,) = alignments(opened, [LINE])
    written = token_labels(
        opened.tokenizers, "target", opened.tokenizers.encode("target", [result.output])[0]
    )
    (film,) = result.films
    rows = ["at first", *written, "⟨eos⟩"]
    assert (film.side, film.frames, film.output) == ("target", rows[: len(film.frames)], [])
    assert film.total == len(rows)
    assert film.read[:5] == ["eins", "zwei", "drei", "vier", "⟨eos⟩"]
    assert film.images.shape[1:] == (max(5, film.total - 1), 2, 16)
    assert film.block == "decoder[0].active_memory"
    assert not film.images[0, :, 1].any()  # the encoder's grid: the words in the first column
    ((first, *_),) = opened.tokenizers.encode("source", [LINE])
    with torch.no_grad():
        embedded = opened.model.readers()["source"].embedding(torch.tensor(first))
    np.testing.assert_allclose(film.images[0, 0, 0], embedded.numpy(), atol=EXACT)


def test_a_long_film_is_cut_evenly(run: Run) -> None:
    film = film_of(run, " ".join(WORDS * 4))
    assert (film.total, len(film.frames)) == (42, MAX_FRAMES)
    assert (film.frames[0], film.frames[-1]) == ("grid", "step 41")
    assert count_frames(film) == "24 of 42 frames, evenly spaced"
    assert count_frames(film_of(run)) == "6 frames"


@pytest.mark.parametrize(
    ("count", "size"),
    [(5, 10), (24, 10), (25, 10), (1000, 10), (1000, 1000), (1000, 10**6), (1, 9)],
)
def test_frames_are_few_enough(count: int, size: int) -> None:
    result = frame_numbers(count, size)
    assert (result[0], result[-1]) == (0, count - 1)
    assert result == sorted(set(result))
    assert len(result) <= min(count, MAX_FRAMES)
    assert len(result) * size <= MAX_CELLS or len(result) <= 2
    if len(result) < count:
        steps = np.diff(result)
        assert steps.max() - steps.min() <= 1


def test_an_answer_that_is_too_long_is_not_filmed(run: Run) -> None:
    """Its size is part of the question: with a part of the answer the grid would be another."""
    result = align_with_answer(run, "eins", " ".join(["zwei"] * (MAX_TOKENS + 1)))
    assert list(result.films) == []
    assert result.note == f"its {MAX_TOKENS + 1} tokens are more than the {MAX_TOKENS} of a picture"


# ------------------------------------------------------------------------------------------- how it
# is drawn


def test_a_strip_has_the_colours_of_its_frames(run: Run) -> None:
    (result,) = alignments(run, [LINE])
    root = read(alignment_page(result))
    check_self_contained(root)
    (figure,) = by_class(root, "film")
    wanted = vector_colors(result.films[0].images)
    images = list(figure.iter("image"))
    assert len(images) == len(wanted) == 6
    for image, frame in zip(images, wanted, strict=True):
        assert frame.shape == (3, 5, 3)
        np.testing.assert_array_equal(pixels_of(image), frame)
    assert texts(figure, "row") == result.films[0].frames
    assert texts(figure, "column") == [*result.films[0].read, *result.films[0].output]
    heights = [float(image.get("y", "")) for image in images]
    assert len({round(after - before, 3) for before, after in pairwise(heights)}) == 1


def test_a_strip_is_described_in_words() -> None:
    film = drawn(np.zeros((3, 2, 4, 5)), read=["a", "⟨eos⟩"], output=["b", "⟨eos⟩"])
    words = "encoder[1].cgru: 3 frames; 2 positions by 4 columns. Read: a ⟨eos⟩. Written: b ⟨eos⟩."
    assert describe_film(film) == words
    (svg,) = (item for item in by_class(read(page_of(film)), "film")[0].iter("svg"))
    assert (svg.get("role"), svg.get("aria-label")) == ("img", words)


def test_tokens_cannot_become_markup() -> None:
    film = drawn(
        np.zeros((1, 2, 1, 3)),
        read=["<b>", "&amp;"],
        output=["</svg>", "\0"],
        frames=['"><script>'],
    )
    root = read(page_of(film))
    assert texts(root, "column") == ["<b>", "&amp;", "</svg>", "\N{REPLACEMENT CHARACTER}"]
    assert [script.get("src") for script in root.iter("script")] == [None]
    assert not list(root.iter("b"))


def test_the_largest_strip_is_small() -> None:
    """Numbers that no packing makes small, as many as may be drawn."""
    images = np.random.default_rng(0).normal(size=(20, 100, 4, 8))
    assert images[..., 0].size == MAX_CELLS
    assert len(page_of(drawn(images))) < 70_000


# -------------------------------------------------------------------------------------------
# colours


def test_vectors_have_equal_colours_if_they_are_equal() -> None:
    kinds = np.random.default_rng(1).normal(size=(6, 10))
    places = np.random.default_rng(2).integers(6, size=(4, 7, 3))
    result = vector_colors(kinds[places]).swapaxes(1, 2)  # (F, N, W, 3)
    seen = [{tuple(colour) for colour in result[places == kind].tolist()} for kind in range(6)]
    assert [len(item) for item in seen] == [1] * 6
    assert len(set().union(*seen)) == 6


def test_two_vectors_lie_on_both_sides_of_grey() -> None:
    images = np.array([[[[1.0, 5.0], [3.0, 1.0]]]])
    first, second = vector_colors(images)[0, :, 0].astype(int)
    np.testing.assert_allclose(first + second, 255, atol=1)
    # they differ along one direction, which is light
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]


def test_the_first_direction_is_light() -> None:
    """A grid that changes along a line, with little beside it, is light and dark in the order of
    the line.
    """
    line = np.linspace(-1.0, 1.0, 9)[None, :, None, None] * np.array([0.6, 0.8])
    result = vector_colors(line)[0, 0].astype(int)  # (N, 3)
    assert (result == result[:, :1]).all()
    assert len(set(np.sign(np.diff(result[:, 0])).tolist()) - {0}) == 1


@pytest.mark.parametrize("width", [1, 2, 3, 40])
def test_grids_of_any_width_have_colours(width: int) -> None:
    images = np.random.default_rng(3).normal(size=(3, 4, 2, width))
    result = vector_colors(images)
    assert (result.shape, result.dtype) == ((3, 2, 4, 3), np.uint8)
    assert len(np.unique(result.reshape(-1, 3), axis=0)) > 4


@pytest.mark.parametrize("value", [0.0, 1e-30, 0.1, -7.0])
def test_a_grid_of_one_vector_is_grey(value: float) -> None:
    images = np.full((2, 3, 3, 7), value)
    # as rounding leaves it
    images = images * (1 + 1e-7 * np.random.default_rng(0).normal(size=images.shape))
    assert np.abs(vector_colors(images).astype(int) - 128).max() <= 1


def test_nan_and_infinity_have_colours() -> None:
    images = np.random.default_rng(0).normal(size=(1, 3, 2, 4))
    images[0, 0, 0] = np.nan
    images[0, 1, 1, 0] = np.inf
    assert vector_colors(images).shape == (1, 2, 3, 3)


# ------------------------------------------------------------------------------------------- on the
# page


def test_the_page_has_the_films_and_explains_them(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", NEURAL_GPU)
    page = report(folder)
    result = read(page)
    assert headings(result) == [
        "BLEU by source length",
        "Translations",
        "Film strips",
        "Architecture",
        "Recipe",
    ]
    check_self_contained(result)
    (section,) = (item for item in result.iter("section") if item.get("id") == "films")
    assert len(by_class(section, "film")) == len(by_class(section, "sentence")) == 3
    assert [item.get("open") for item in by_class(section, "sentence")] == ["open", None, None]
    assert "equal vectors have equal colours" in "".join(section.itertext())
    assert size_without_plotly(page) < 300_000


def test_a_page_has_maps_and_films(tmp_path: Path) -> None:
    result = read(report(made(tmp_path / "run", IN_A_ROW), sentences=[LINE]))
    assert headings(result)[2:4] == ["Alignments", "Film strips"]
    assert len(by_class(result, "film")) == len(by_class(result, "map")) == 1

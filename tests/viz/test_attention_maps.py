"""The maps are the weights, with the tokens beside them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from blocks.core.contract import Record
from composer.errors import DataError, RunError
from composer.inference.run import open_run
from composer.model.encoder_decoder import StepInputs
from composer.viz.alignments import MAX_TOKENS, Alignment, alignment_page, alignments
from composer.viz.page import ZOOM
from composer.viz.records import (
    Attention,
    join_cross_attention,
    join_self_attention,
    split_passes,
    token_labels,
)
from tests.inference.untrained import ATTENTION, LANGUAGE, TWO, made
from tests.viz.pages import by_class, check_self_contained, pixels, read, texts

SVG = "{http://www.w3.org/2000/svg}"
LINE = "eins zwei drei vier"
STRICT = 1e-6


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("attention") / "run", ATTENTION)


def maps_of(found: Alignment) -> list[ElementTree.Element]:
    return [
        item
        for figure in by_class(read(alignment_page(found)), "map")
        for item in figure.iter("image")
    ]


def test_every_attention_has_its_tokens(run: Path) -> None:
    opened = open_run(run)
    (result,) = alignments(opened, [LINE])
    assert result.texts == {"source": LINE}
    assert result.output == opened.translate([LINE])[0]
    source = ["eins", "zwei", "drei", "vier", "⟨eos⟩"]
    written = token_labels(
        opened.tokenizers, "target", opened.tokenizers.encode("target", [result.output])[0]
    )
    output = {(item.word, item.side): (item.rows, item.columns) for item in result.attentions}
    assert output == {
        ("self_attention", "source"): (source, source),
        ("self_attention", "target"): ([*written, "⟨eos⟩"], ["⟨bos⟩", *written]),
        ("cross_attention", "target"): ([*written, "⟨eos⟩"], source),
    }
    assert [item.block for item in result.attentions] == [
        "encoder, self-attention",
        "decoder, self-attention",
        "decoder, cross-attention",
    ]


def test_rows_sum_to_one_and_self_attention_is_causal(run: Path) -> None:
    (result,) = alignments(open_run(run), [LINE])
    for item in result.attentions:
        assert item.weights.shape == (2, len(item.rows), len(item.columns))
        np.testing.assert_allclose(item.weights.sum(-1), 1.0, atol=STRICT)
    after = result.attentions[1].weights * np.triu(
        np.ones(result.attentions[1].weights.shape[1:]), 1
    )
    assert not after.any()


def test_the_weights_are_those_that_the_blocks_record(run: Path) -> None:
    """The weights, times the values by hand, are what the block reads."""
    opened = open_run(run)
    (result,) = alignments(opened, [LINE])
    (ids,), (answer,) = (
        opened.tokenizers.encode("source", [LINE]),
        opened.tokenizers.encode("target", [result.output]),
    )
    records: dict[Record, list[torch.Tensor]] = {}
    with torch.no_grad():
        opened.model(
            {"source": torch.tensor([[*ids, 2]])},
            torch.tensor([[1, *answer]]),
            StepInputs(records=records),
        )
    for item, (value,) in zip(result.attentions, records.values(), strict=True):
        np.testing.assert_allclose(item.weights, value[0].transpose(0, 1).numpy(), atol=STRICT)


def test_a_picture_has_the_weights(run: Path) -> None:
    (result,) = alignments(open_run(run), [LINE])
    root = read(alignment_page(result))
    check_self_contained(root)
    drawn = maps_of(result)
    # what crosses stands first, and is open
    order = [result.attentions[2], result.attentions[0], result.attentions[1]]
    weights = [head for item in order for head in item.weights]
    assert len(drawn) == len(weights) == 6
    for image, head in zip(drawn, weights, strict=True):
        assert image.get("width") == str(14 * head.shape[1])
        np.testing.assert_allclose(1 - pixels(image) / 255, head, atol=0.5 / 255 + STRICT)
    glance = [image.get("alt") for table in by_class(root, "glance") for image in table.iter("img")]
    assert glance == ["head 1", "head 2"] * 3  # all of them in one table
    opened = [item.get("open") for item in by_class(root, "group")]
    assert opened == ["open", None, None]


def test_a_file_has_the_weights_and_tokens_of_all_maps(run: Path, tmp_path: Path) -> None:
    (result,) = alignments(open_run(run), [LINE])
    root = ElementTree.parse(result.save(tmp_path / "a.svg")).getroot()
    drawn = list(root.iter(f"{SVG}image"))
    order = [result.attentions[2], result.attentions[0], result.attentions[1]]
    weights = [head for item in order for head in item.weights]
    for image, head in zip(drawn, weights, strict=True):
        cells = pixels(image)[ZOOM // 2 :: ZOOM, ZOOM // 2 :: ZOOM]
        np.testing.assert_allclose(1 - cells / 255, head, atol=0.5 / 255 + STRICT)
    labels = {item.text for item in root.iter(f"{SVG}text")}
    assert {
        *result.attentions[2].rows,
        *result.attentions[2].columns,
        "decoder, cross-attention",
    } <= labels
    assert not [
        item
        for item in root.iter()
        if item.tag == f"{SVG}style" or item.get("class", "alignment") != "alignment"
    ]


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf", ".html"])
def test_a_file_is_overwritten_by_another_and_nothing_else_is(
    run: Path, suffix: str, tmp_path: Path
) -> None:
    (result,) = alignments(open_run(run), [LINE])
    file = tmp_path / f"a{suffix}"
    result.save(file)
    result.save(file)
    file.write_bytes(b"mine")
    with pytest.raises(RunError, match="would be lost"):
        result.save(file)


def test_every_map_uses_the_axes_of_its_tokens(run: Path) -> None:
    (result,) = alignments(open_run(run), [LINE])
    root = read(alignment_page(result))
    axes = {item.get("id"): item for item in root.iter("g") if item.get("id")}
    order = [result.attentions[2], result.attentions[0], result.attentions[1]]
    used = [
        item.get("href", "")[1:] for figure in by_class(root, "map") for item in figure.iter("use")
    ]
    for name, attention in zip(used[::2], order, strict=True):
        assert texts(axes[name], "row") == attention.rows
        assert texts(axes[name], "column") == attention.columns
    assert used[::2] == used[1::2]


def test_a_map_is_described_in_words() -> None:
    weights = np.array([[[0.9, 0.1], [0.2, 0.8]]])
    one = Attention(
        "decoder[0].cross_attention",
        "cross_attention",
        "target",
        ["ja", "⟨eos⟩"],
        ["yes", "⟨eos⟩"],
        weights,
    )
    root = read(alignment_page(Alignment({"source": "yes"}, "ja", [one])))
    (drawing,) = (item for figure in by_class(root, "map") for item in figure.iter("svg"))
    assert (
        drawing.get("aria-label")
        == "decoder[0].cross_attention, head 1. Most read: ja: yes; ⟨eos⟩: ⟨eos⟩"
    )
    assert drawing.get("role") == "img"


def test_tokens_cannot_become_markup() -> None:
    rows = ["<script>alert(1)</script>", '"', "&amp;", "\0", "שלום"]
    one = Attention("<b>", "cross_attention", "target", rows, rows, np.eye(5)[None])
    root = read(alignment_page(Alignment({"source": "<script>"}, "</title>", [one])))
    assert [item.text for item in root.iter("script")] == [
        "".join(next(root.iter("script")).itertext())
    ]
    assert texts(root, "row") == ["<script>alert…", '"', "&amp;", "�", "שלום"]
    assert [item.text for item in root.iter("bdi")] == ["<script>", "</title>"]


def test_many_maps_are_small() -> None:
    """Six blocks of eight heads over thirty tokens, with weights that no packing makes small."""
    tokens = [f"token{number}" for number in range(30)]
    weights = np.random.default_rng(0).random((8, 30, 30))
    blocks = [
        Attention(f"b[{at}]", "cross_attention", "target", tokens, tokens, weights)
        for at in range(6)
    ]
    assert len(alignment_page(Alignment({}, "", blocks))) < 140_000


# ------------------------------------------------------------------------------------------- other
# models


def test_each_encoder_has_its_own_map(tmp_path: Path) -> None:
    opened = open_run(made(tmp_path / "run", TWO))
    (result,) = alignments(opened, ["eins zwei\tdrei"])
    assert result.texts == {"left": "eins zwei", "right": "drei"}
    assert [item.columns for item in result.attentions] == [
        ["eins", "zwei", "⟨eos⟩"],
        ["drei", "⟨eos⟩"],
    ]
    with pytest.raises(
        DataError, match=r"--sentence:2:1.*1 text, and the model reads 2: left, right"
    ):
        alignments(opened, ["eins\tzwei", "eins"], "--sentence")


def test_several_memories_share_one_map(tmp_path: Path) -> None:
    model = TWO.replace("cross_attention: {from: left}", "cross_attention: {from: [left, right]}")
    (result,) = alignments(open_run(made(tmp_path / "run", model)), ["eins zwei\tdrei"])
    assert result.attentions[0].columns == ["eins", "zwei", "⟨eos⟩", "drei", "⟨eos⟩"]


def test_attention_over_branches_reads_branches(tmp_path: Path) -> None:
    model = """
encoders: {left: [{rnn: {cell: gru}}], right: [{rnn: {cell: gru}}]}
decoder:
  - parallel:
      merge: attention
      branches: {a: [{cross_attention: {from: left}}], b: [{cross_attention: {from: right}}]}
  - rnn: {cell: gru}
"""
    (result,) = alignments(open_run(made(tmp_path / "run", model)), ["eins zwei\tdrei"])
    branches = result.attentions[-1]
    assert (branches.word, branches.columns) == ("parallel", ["a", "b"])
    assert branches.weights.shape == (1, len(result.attentions[0].rows), 2)
    np.testing.assert_allclose(branches.weights.sum(-1), 1.0, atol=STRICT)


def test_a_model_without_encoders_reads_the_line(tmp_path: Path) -> None:
    model = "decoder: [positions, {residual: [{self_attention: {heads: 2}}]}]"
    (result,) = alignments(open_run(made(tmp_path / "run", model)), [LINE])
    assert (result.texts, result.output) == ({}, LINE)
    assert [item.rows for item in result.attentions] == [["eins", "zwei", "drei", "vier", "⟨eos⟩"]]
    (nothing,) = alignments(open_run(made(tmp_path / "other", LANGUAGE)), [LINE])
    assert list(nothing.attentions) == []


def test_fewer_positions_than_tokens_have_numbers(tmp_path: Path) -> None:
    model = (
        "encoder: [{conv: {kernel: 2, stride: 2}}]\ndecoder: [{cross_attention: {}}, {rnn: {cell:"
        " gru}}]"
    )
    (result,) = alignments(open_run(made(tmp_path / "run", model)), [LINE])
    assert result.attentions[0].columns == [
        str(number + 1) for number in range(result.attentions[0].weights.shape[2])
    ]
    assert len(result.attentions[0].columns) < 5


def test_each_iteration_is_named(tmp_path: Path) -> None:
    model = """
encoder: [{rnn: {cell: gru}}]
decoder: [{repeat: {times: 2, stack: [{residual: [{cross_attention: {heads: 2}}]}]}},
  {rnn: {cell: gru}}]
"""
    (result,) = alignments(open_run(made(tmp_path / "run", model)), [LINE])
    assert [item.block for item in result.attentions] == [
        "decoder layer 1, cross-attention",
        "decoder layer 2, cross-attention",
    ]


def test_blocks_with_equal_names_have_their_paths(tmp_path: Path) -> None:
    model = (
        "encoder: [{rnn: gru}]\ndecoder: [{cross_attention: {heads: 2}}, {rnn: gru},"
        " {cross_attention: {heads: 2}}]"
    )
    (result,) = alignments(open_run(made(tmp_path / "run", model)), [LINE])
    assert [item.block for item in result.attentions] == [
        "decoder, cross-attention, decoder[0].cross_attention",
        "decoder, cross-attention, decoder[2].cross_attention",
    ]


def test_a_stack_with_a_name_is_shown_at_each_use(tmp_path: Path) -> None:
    model = """
encoder: [{rnn: {cell: gru}}]
stacks: {reader: [{residual: [{cross_attention: {heads: 2}}]}]}
decoder: [{use: reader}, {rnn: {cell: gru}}, {use: reader}]
"""
    run = open_run(made(tmp_path / "run", model))
    (result,) = alignments(run, [LINE])
    assert len(result.attentions) == 2
    title = "stack reader, cross-attention"
    assert [*run.attention([LINE])[0]] == [f"{title}, run 1", f"{title}, run 2"]
    for item in result.attentions:
        assert item.rows[-1] == "⟨eos⟩"
        assert item.columns == ["eins", "zwei", "drei", "vier", "⟨eos⟩"]
    assert not np.allclose(result.attentions[0].weights, result.attentions[1].weights)


def test_decoding_position_by_position_has_the_same_weights(tmp_path: Path) -> None:
    """With feedback the attention runs once for each position; its map is whole all the same."""
    model = """
encoder: [{rnn: {cell: gru}}]
decoder:
  - recurrent:
      stack:
        - concat: [input, prev.read]
        - rnn: {cell: gru}
        - {self_attention: {heads: 2}}
        - cross_attention: {heads: 2, as: read}
"""
    (result,) = alignments(open_run(made(tmp_path / "run", model)), [LINE])
    for item in result.attentions:
        assert item.weights.shape == (2, len(item.rows), len(item.columns))
        assert item.rows[-1] == "⟨eos⟩"
        np.testing.assert_allclose(item.weights.sum(-1), 1.0, atol=STRICT)
    here = result.attentions[0]
    assert here.columns[0] == "⟨bos⟩"
    assert not np.triu(here.weights, 1).any()


def test_long_sentences_have_no_pictures(run: Path) -> None:
    (result,) = alignments(open_run(run), ["eins " * (MAX_TOKENS + 1)])
    assert (list(result.attentions), result.note) == (
        [],
        f"its {MAX_TOKENS + 1} tokens are more than the {MAX_TOKENS} of a picture",
    )


# ------------------------------------------------------------------------------------------- pieces


def causal(length: int) -> torch.Tensor:
    """Random weights of positions that see themselves and those before. (1, T, H, T)"""
    scores = torch.randn(1, length, 2, length, generator=torch.Generator().manual_seed(0))
    later = torch.ones(length, length, dtype=torch.bool).triu(1)[None, :, None]
    return scores.masked_fill(later, -torch.inf).softmax(-1)


@pytest.mark.parametrize("cuts", [[6], [1] * 6, [2, 3, 1], [5, 1]])
def test_growing_self_attention_is_joined(cuts: list[int]) -> None:
    whole, at, pieces = causal(6), 0, []
    for length in cuts:
        at += length
        pieces.append(whole[:, at - length : at, :, :at])
    assert torch.equal(join_self_attention(pieces), whole[0])


@pytest.mark.parametrize("cuts", [[5], [1] * 5, [2, 2, 1]])
def test_windowed_self_attention_is_joined(cuts: list[int]) -> None:
    """A window of three keeps two slots before its first position, which are empty at first."""
    whole, at, pieces = causal(5).tril(), 0, []
    near = (torch.arange(5)[:, None] - torch.arange(5))[None, :, None] < 3
    whole = torch.where(near, whole, 0.0)
    slots = torch.cat([torch.zeros(1, 5, 2, 2), whole], 3)
    for length in cuts:
        pieces.append(slots[:, at : at + length, :, at : at + length + 2])
        at += length
    assert torch.equal(join_self_attention(pieces), whole[0])


def test_cross_attention_of_consecutive_positions_is_joined() -> None:
    whole = torch.rand(1, 4, 2, 3)
    assert torch.equal(join_cross_attention([whole[:, :1], whole[:, 1:]]), whole[0])


def test_passes_of_a_named_stack_are_separated() -> None:
    one, two = torch.zeros(1, 4, 1, 3), torch.zeros(1, 1, 1, 3)
    assert [len(item) for item in split_passes([one, one], [4])] == [1, 1]
    assert [len(item) for item in split_passes([two] * 4, [4])] == [4]
    assert [len(item) for item in split_passes([two] * 8, [4])] == [4, 4]
    assert [len(item) for item in split_passes([one], [7])] == [1]

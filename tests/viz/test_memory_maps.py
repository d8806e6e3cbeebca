"""Pictures of memories: their weights and the names of their axes, in words too, on a page that
needs nothing else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from composer.inference.run import open_run
from composer.recipe.recipe import load
from composer.training.train import train
from composer.training.wandb_logger import WandbLogger
from composer.viz.alignments import Alignment, alignment_page, alignments
from composer.viz.heat_maps import MAX_HEIGHT, describe_panel, shorten
from composer.viz.memory import Memory, Panel, Table
from composer.viz.report import report
from tests.inference.untrained import made
from tests.training.tiny_recipes import TINY
from tests.viz.pages import by_class, check_self_contained, pixels, read, size_without_plotly, texts

NTM = """
encoder: [{rnn: {cell: gru}}, {ntm: {slots: 40, slot_width: 8, read_heads: 2, as: it}}]
decoder: [{rnn: {cell: gru}}, {ntm: {slots: 40, slot_width: 8, read_heads: 2,
  initial_state: {copy: encoder.it}}}]
"""
LINE = "eins zwei drei vier"
LEVEL = 0.5 / 255 + 1e-6


def test_a_picture_has_the_weights_and_the_names_of_its_axes(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "run", NTM))
    (result,) = alignments(run, [LINE])
    root = read(alignment_page(result))
    check_self_contained(root)
    panels = [panel for line in result.memories[0].panels for panel in line]
    axes = {item.get("id"): item for item in root.iter("g") if item.get("id")}
    figures = by_class(root, "map")
    assert texts(root, "map") == [panel.title for panel in panels]
    for figure, panel in zip(figures, panels, strict=True):
        (image,), (used,), (drawing,) = (
            list(figure.iter(kind)) for kind in ("image", "use", "svg")
        )
        np.testing.assert_allclose(1 - pixels(image) / 255, panel.values, atol=LEVEL)
        named = axes[used.get("href", "")[1:]]
        assert texts(named, "row") == [shorten(row) for row in panel.rows]
        assert texts(named, "column") == [shorten(column) for column in panel.columns]
        assert (drawing.get("role"), drawing.get("aria-label")) == ("img", describe_panel(panel))
    assert len(axes) == 2


def test_nothing_is_white_and_one_is_full() -> None:
    panel = Panel(
        "stack 1", ["top", "1 below"], ["a", "b"], np.array([[1.0, 0.0], [-1.0, -0.5]]), low=-1.0
    )
    root = read(
        alignment_page(Alignment({}, "", [], memories=[Memory(["b"], "", panels=[[panel]])]))
    )
    (figure,) = by_class(root, "map")
    (image,) = figure.iter("image")
    np.testing.assert_allclose(1 - pixels(image) / 255, [[1.0, 0.5], [0.0, 0.25]], atol=LEVEL)
    assert (figure.get("data-white"), figure.get("data-between")) == ("-1", " at ")


def test_many_rows_are_low_and_not_all_of_them_are_named() -> None:
    rows = [f"slot {at}" for at in range(128)]
    panel = Panel("write head 1", rows, ["a", "b"], np.eye(128)[:, :2])
    root = read(
        alignment_page(Alignment({}, "", [], memories=[Memory(["b"], "", panels=[[panel]])]))
    )
    (image,) = (item for figure in by_class(root, "map") for item in figure.iter("image"))
    assert float(image.get("height", "")) <= MAX_HEIGHT
    shown = [
        item for item in by_class(root, "row") if "unseen" not in item.get("class", "").split()
    ]
    places = [float(item.get("y", "")) for item in shown]
    assert min(np.diff(places)) >= 11
    assert len(by_class(root, "row")) == 128


def test_few_rows_are_as_high_as_cells_are_wide() -> None:
    panel = Panel("write head 1", [f"slot {at}" for at in range(5)], ["a", "b"], np.ones((5, 2)))
    root = read(
        alignment_page(Alignment({}, "", [], memories=[Memory(["b"], "", panels=[[panel]])]))
    )
    (image,) = (item for figure in by_class(root, "map") for item in figure.iter("image"))
    assert (image.get("height"), image.get("width")) == ("70", "28")


def test_a_map_is_described_in_words() -> None:
    panel = Panel(
        "encoder: read", ["slot 3", "slot 4"], ["a", "⟨eos⟩"], np.array([[0.9, 0.1], [0.1, 0.8]])
    )
    assert (
        describe_panel(panel) == "encoder: read. Largest at each moment: a: slot 3; ⟨eos⟩: slot 4"
    )


def test_a_table_cell_is_darker_for_a_larger_weight() -> None:
    table = Table(
        "a → b",
        "what is read",
        ["x", "y", "z"],
        ["hop 1"],
        [["1.00"], ["0.42"], [""]],
        np.array([[1.2], [0.42], [-0.1]]),
    )
    root = read(alignment_page(Alignment({}, "", [], memories=[Memory(["b"], "", tables=[table])])))
    assert [item.get("class") for row in root.iter("tr") for item in list(row)[1:]] == [
        "number",
        "number s10",
        "number s4",
        "number",
    ]


def test_tokens_cannot_become_markup() -> None:
    bad = ["<script>1", '"', "&amp;"]
    panel = Panel("<b>", bad, bad, np.eye(3))
    table = Table("<i>", "</table>", bad, bad, [bad] * 3, np.eye(3))
    root = read(
        alignment_page(
            Alignment({}, "", [], memories=[Memory(["<u>"], "", "<p>", [[panel]], [table])])
        )
    )
    assert texts(root, "row") == bad
    assert [item.text for item in root.iter("script")] == [
        "".join(next(root.iter("script")).itertext())
    ]
    assert not [*root.iter("b"), *root.iter("i"), *root.iter("u")]


def test_the_largest_picture_is_small() -> None:
    """The most positions that are drawn, over many slots, with incompressible weights."""
    noise = np.random.default_rng(0).random((128, 100))
    rows, columns = [f"slot {at}" for at in range(128)], ["01101001"] * 100
    panels = [[Panel(f"{part}: {kind}", rows, columns, noise) for part in "ab"] for kind in "cd"]
    assert (
        len(alignment_page(Alignment({}, "", [], memories=[Memory(["b"], "", panels=panels)])))
        < 140_000
    )


# ------------------------------------------------------------------------------------------- on the
# page


def test_the_page_explains_each_kind_of_memory_once(tmp_path: Path) -> None:
    page = report(made(tmp_path / "run", NTM))
    root = read(page)
    check_self_contained(root)
    (section,) = (item for item in root.iter("section") if item.get("id") == "memories")
    assert not [item for item in root.iter("section") if item.get("id") == "alignments"]
    assert "".join(section.itertext()).count("A row is a slot") == 1
    assert [item.get("open") for item in by_class(section, "sentence")] == ["open", None, None]
    names = [item.get("id") for item in section.iter("g") if item.get("id")]
    assert len(names) == len(set(names)) == 6
    assert size_without_plotly(page) < 300_000


def test_maps_of_attention_and_of_memories_have_axes_of_their_own(tmp_path: Path) -> None:
    model = "encoder: [rnn]\ndecoder: [{cross_attention: {}}, {ntm: {slots: 9}}]"
    root = read(report(made(tmp_path / "run", model), sentences=[LINE]))
    names = [item.get("id") for item in root.iter("g") if item.get("id")]
    assert len(names) == len(set(names)) == 2
    assert len([*root.iter("section")]) == len({item.get("id") for item in root.iter("section")})


def test_a_memory_without_attention_goes_to_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(
        WandbLogger, "pictures", lambda self, step, pages, lengths: given.append(pages)
    )
    monkeypatch.setattr(WandbLogger, "is_on", True)
    before, after = TINY.split("  encoder:")[0], TINY.split("  output:")[1].partition("\n")[2]
    stacks = (
        "  encoder: [{ntm: {slots: 9, as: m}}]\n  decoder: [{ntm: {slots: 9, initial_state: {copy:"
        " encoder.m}}}]"
    )
    (tmp_path / "tiny.yaml").write_text(f"{before}{stacks}\n{after}", encoding="utf-8")
    train(load(tmp_path / "tiny.yaml", ["training.max_steps=1"]), tmp_path / "run")
    (pages,) = given
    assert [len(by_class(read(page), "map")) for page in pages] == [4, 4, 4]

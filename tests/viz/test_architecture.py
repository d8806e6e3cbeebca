"""Pictures of architectures: all that is in the plan is in the picture, once, and nothing lies over
a text.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
import vl_convert
from typer.testing import CliRunner

from composer.atomic_io import sha256_of_file
from composer.checks.planner import Plan, plan_rows
from composer.cli.main import app
from composer.errors import RunError
from composer.model.builder import vocabulary_bounds
from composer.model.costs import TOKENS, Costs
from composer.model.recording_builder import RecordingBuilder
from composer.model.weights import count_parameters
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir
from composer.viz.architecture import Drawing, Picture, check_output, draw, escape_label, place
from composer.viz.architecture_graph import Box, Graph, build_graph, fold
from composer.viz.architecture_layout import Text, text_width
from composer.viz.svg_styles import COLORS, RULES, dark_rules
from tests.run_records import write_record
from tests.samples import sampled
from tests.viz import pages

HOME = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(
    path for path in HOME.rglob("*.yaml") if not {"fragments", "sweeps"} & set(path.parts)
)
SVG = "{http://www.w3.org/2000/svg}"
Area = tuple[float, float, float, float]
Point = tuple[float, float]

EVERYTHING = """recipe: 1
name: everything
data: {generate: copy}
model:
  width: 16
  output: {tie: [target]}
  stacks:
    shared: [{rnn: {cell: gru}}, norm]
  encoder:
    - linear: {as: early}
    - {use: shared}
    - {use: shared}
    - {use: {stack: shared, copy: true}}
    - parallel:
        branches: {one: [{rnn: {as: deep}}], two: [{parallel: {branches: [[linear], [{add: early}]], merge: max}}]}
        merge: gate
  decoder:
    - residual: {stack: [linear], norm: pre, as: top}
    - highway: [linear]
    - recurrent:
        stack:
          - add: prev.state
          - parallel:
              branches:
                left: [{cross_attention: {from: encoder.deep}}, {add: input}]
                right: [{cross_attention: {from: encoder}}, {add: [prev.left, top]}]
          - rnn: {cell: gru, initial_state: encoder, as: state}
          - norm
    - repeat: {times: 2, share: true, stack: [{residual: [{concat: [top, state]}, linear]}]}
    - add: [left, input]
"""


def plan_without_costs(recipe: Recipe) -> Plan:
    """Return the plan without its costs, which take seconds and are in no picture."""
    builder = RecordingBuilder(recipe)
    with torch.device("meta"):
        model = builder.model(vocabulary_bounds(recipe))
    builder.finish()
    rows = tuple(plan_rows(builder, model, Costs(Counter(), Counter(), {})))
    return Plan(rows, count_parameters(model), 0, 0, TOKENS, vocabulary_bounds(recipe))


def everything(folder: Path) -> Recipe:
    (folder / "everything.yaml").write_text(EVERYTHING, encoding="utf-8")
    return load(folder / "everything.yaml")


def box(graph: Graph, ending: str) -> Box:
    """The only box whose key ends so."""
    (actual,) = [item for item in graph.boxes() if item.key.endswith(ending)]
    return actual


def check(recipe: Recipe) -> None:
    """All that must be true of every picture."""
    plan = plan_without_costs(recipe)
    graph = build_graph(recipe, plan)
    check_graph_has_every_row(graph, plan)
    check_layout(place(graph))
    check_layout(place(fold(graph, graph.repeats)))
    drawing = Drawing(graph)
    check_svg(drawing, graph)
    check_mermaid(drawing.mermaid(), graph)


def check_layout(picture: Picture) -> None:
    """All that must be true of every picture's places."""
    check_texts_are_free(picture)
    check_nesting(picture)
    check_ends_of_edges(picture)


@pytest.mark.parametrize(
    "path", sampled(RECIPES, 30), ids=lambda path: path.relative_to(HOME).as_posix()
)
def test_every_recipe_is_drawn(path: Path) -> None:
    check(load(path))


def test_a_model_with_every_kind_of_block_is_drawn(tmp_path: Path) -> None:
    check(everything(tmp_path))


def test_edges_out_of_and_into_neighbouring_parts_do_not_overlap(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(
        "recipe: 1\n"
        "data: {parallel: {train: {image: i, text: s, target: t}}, tokenizer: char}\n"
        "model:\n"
        "  width: 6\n"
        "  encoders: {image: [linear], text: [maxout, maxout]}\n"
        "  decoder: [maxout, {residual: [{cross_attention: {from: image}}]}, "
        "{residual: [{cross_attention: {from: text}}]}]\n",
        encoding="utf-8",
    )
    check(load(tmp_path / "two.yaml"))


# ------------------------------------------------------------------------------------------- the
# laws


def check_graph_has_every_row(graph: Graph, plan: Plan) -> None:
    """Every row is a box, once; every read of a row is an arrow between boxes that there are."""
    rows = [item.row for item in graph.boxes() if item.row is not None]
    assert rows == list(plan.rows)
    assert len({id(row) for row in rows}) == len(rows)
    keys = [item.key for item in graph.boxes()]
    assert len(keys) == len(set(keys))
    readers = {item.key: item.row for item in graph.boxes() if item.row is not None}
    assert {edge.producer for edge in graph.edges} <= set(keys)
    arrows = sorted((id(readers[edge.reader]), edge.name) for edge in graph.edges)
    assert arrows == sorted((id(row), name) for row in plan.rows for name in row.reads)


def check_texts_are_free(picture: Picture) -> None:
    """No text lies on another, no arrow and no stretch of the stream on a text, and all of them in
    the picture.
    """
    areas = [area_of_text(text) for text in picture.texts]
    assert not [pair for pair in combinations(areas, 2) if overlap(*pair)]
    lines = [item.points for item in picture.lines] + [item.points for item in picture.routes]
    for line in lines:
        for stretch in map(area_of, pairwise(line)):
            assert not [area for area in areas if overlap(area, stretch)]
    for text, area in zip(picture.texts, areas, strict=True):
        assert area[2] - area[0] >= 7.22 * text.scale * sum(
            len(span.text) for span in text.spans
        ), "too narrow"
        assert min(area) >= 0


def area_of_text(text: Text) -> Area:
    width = text_width(text.spans) * text.scale
    left = text.x - width / 2 if text.centered else text.x
    return left, text.y - 11 * text.scale, left + width, text.y + 4 * text.scale


def overlap(one: Area, other: Area) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def area_of(stretch: tuple[Point, Point]) -> Area:
    (a, b), (c, d) = stretch
    assert a == c or b == d, "neither across nor down"
    return min(a, c) - 0.5, min(b, d) - 0.5, max(a, c) + 0.5, max(b, d) + 0.5


def check_nesting(picture: Picture) -> None:
    """Whatever stands in a box lies in it, and what stands beside it does not overlap."""
    for placed in picture.layout.walk():
        area = (placed.x, placed.y, placed.x + placed.w, placed.y + placed.h)
        for item in placed.children:
            assert area[0] <= item.x
            assert item.x + item.w <= area[2]
            assert area[1] <= item.y
            assert item.y + item.h <= area[3]
        for text in placed.texts():
            left, top, right, bottom = area_of_text(text)
            assert area[0] < left
            assert right < area[2]
            assert area[1] <= top
            assert bottom <= area[3]
        areas = [(item.x, item.y, item.x + item.w, item.y + item.h) for item in placed.children]
        assert not [pair for pair in combinations(areas, 2) if overlap(*pair)]


def check_ends_of_edges(picture: Picture) -> None:
    """An arrow begins at the side of who makes and ends at the side of who reads; no two lie on
    each other.
    """
    boxes = {placed.box.key: placed for placed in picture.layout.walk()}
    for route in picture.routes:
        reader, (x, y) = boxes[route.edge.reader], route.points[-1]
        assert x in (reader.x, reader.x + reader.w)
        assert reader.y < y < reader.y + reader.h
        maker, (x, y) = boxes[route.edge.producer], route.points[0]
        assert maker.x <= x <= maker.x + maker.w
        assert maker.y < y < maker.y + maker.h
    ends = {(route.edge.reader, route.points[-1]) for route in picture.routes}
    for (one, (x, y)), (other, (a, b)) in combinations(ends, 2):
        assert one != other or x != a or abs(y - b) >= 8
    kinds = {(item.edge.producer, item.edge.kind, item.edge.of_input) for item in picture.routes}
    for one, other in combinations(kinds, 2):
        for first in along(picture, one):
            assert not [second for second in along(picture, other) if covers(first, second)]


def along(picture: Picture, kind: tuple[str, str, bool]) -> Iterator[tuple[Point, Point]]:
    for item in picture.routes:
        if (item.edge.producer, item.edge.kind, item.edge.of_input) == kind:
            yield from pairwise(item.points)


def covers(one: tuple[Point, Point], other: tuple[Point, Point]) -> bool:
    """Whether two stretches run along each other, and not only across."""
    for axis in (0, 1):
        places = [point[axis] for point in (*one, *other)]
        if max(places) - min(places) < 1.5:
            a, b = sorted(point[1 - axis] for point in one)
            c, d = sorted(point[1 - axis] for point in other)
            return a < d and c < b
    return False


def check_svg(drawing: Drawing, graph: Graph) -> None:
    """The SVG is XML, tells its name and itself, and has an arrow for each read."""
    root = ElementTree.fromstring(drawing.svg())
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == f"Architecture of {graph.name}"
    assert graph.summary in str(root.findtext(f"{SVG}desc"))
    assert len(root.findall(f"{SVG}g[@class='arrow']")) == len(graph.edges)
    assert "http" not in drawing.svg().replace("http://www.w3.org/2000/svg", "")


def check_mermaid(text: str, graph: Graph) -> None:
    """Mermaid's text has a node for each box, every group ends, and every arrow is between nodes
    that there are.
    """
    nodes = re.findall(r"^ +(?:subgraph )?(n\d+)[\[(]", text, re.MULTILINE)
    assert len(nodes) == len(set(nodes)) >= len(list(graph.boxes()))
    assert text.count("subgraph ") == len(re.findall(r"^ +end$", text, re.MULTILINE))
    re.findall(r"-->|-\.->|==>", text)
    links = re.findall(r'^ +(n\d+) (?:-->|-\.->|==>)(?:\|"[^"|]*"\|)? (n\d+)$', text, re.MULTILINE)
    assert len(links) == len(re.findall(r"-->|-\.->|==>", text))
    assert {item for link in links for item in link} <= set(nodes)


# ------------------------------------------------------------------------------------------- by
# hand


def test_input_feeding_has_a_loop_with_its_arrow_back() -> None:
    graph = draw(HOME / "papers/luong2015_input_feeding.yaml").graph
    loop = box(graph, "/loop")
    assert [item.title for item in loop.children] == [
        "concat",
        "rnn",
        "cross_attention",
        "concat",
        "linear",
    ]
    output = {
        (edge.producer.split("/")[-1], edge.name, edge.reader.split("/")[-1], edge.kind)
        for edge in graph.edges
    }
    assert output == {
        ("linear", "prev.attended", "concat", "before"),
        ("rnn", "encoder.top", "rnn", "memory"),
        ("memory", "encoder", "cross_attention", "memory"),
        ("rnn", "top", "concat", "name"),
    }
    assert {edge.producer.split("/")[0] for edge in graph.edges if edge.kind == "memory"} == {
        "encoder"
    }
    picture = place(graph)
    (back,) = [item.points for item in picture.routes if item.edge.kind == "before"]
    assert back[0][1] > back[-1][1], "it leads up again"


def test_input_is_that_of_the_innermost_recurrent_or_of_the_part(tmp_path: Path) -> None:
    recipe = everything(tmp_path)
    graph = build_graph(recipe, plan_without_costs(recipe))
    actual = {
        (edge.producer.removeprefix("decoder/"), edge.of_input)
        for edge in graph.edges
        if edge.name == "input"
    }
    assert actual == {("decoder/2/recurrent", True), ("embedding", False)}


def test_input_in_rows_is_the_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    stack = "[{split_columns: 4}, {rows: [rnn, {concat: input}]}, concat_columns, {linear: 8}]"
    model = f"model: {{width: 8, encoder: {stack}, decoder: [cross_attention]}}\n"
    path.write_text(f"recipe: 1\ndata: {{generate: {{copy: {{}}}}}}\n{model}", encoding="utf-8")
    recipe = load(path)
    edges = [
        edge
        for edge in build_graph(recipe, plan_without_costs(recipe)).edges
        if edge.name == "input"
    ]
    assert [(edge.producer, edge.of_input) for edge in edges] == [("encoder/encoder/1/rows", True)]


def test_shared_stacks_are_drawn_once_in_a_part(tmp_path: Path) -> None:
    recipe = everything(tmp_path)
    graph = build_graph(recipe, plan_without_costs(recipe))
    used = [item for item in graph.boxes() if item.title == "use shared"]
    assert [[inner.title for inner in item.children] for item in used] == [["rnn", "norm"], [], []]
    assert [item.lines for item in used[1:]] == [
        ("as above, with the same parameters",),
        ("a copy, parameters of its own",),
    ]


def test_boxes_have_the_settings_of_the_recipe(tmp_path: Path) -> None:
    recipe = everything(tmp_path)
    graph = build_graph(recipe, plan_without_costs(recipe))
    assert box(graph, "3/repeat").title == "repeat \N{MULTIPLICATION SIGN} 2"
    assert box(graph, "3/repeat").lines == ("the same parameters each time",)
    assert box(graph, "2/recurrent/stack/2/rnn").lines == ("gru  initial_state=encoder",)
    assert box(graph, "decoder/0/residual").lines == ()
    assert box(graph, "decoder/0/residual").name == "top"
    assert box(graph, "output").lines[-1] == "shares its matrix with target"
    assert [item.join for item in graph.boxes() if item.join] == [
        "gate",
        "max",
        "+",
        "gate",
        "sum",
        "+",
    ]


def test_the_norm_of_a_residual_is_a_box_before_its_blocks_or_after_their_sum(
    tmp_path: Path,
) -> None:
    recipe = everything(tmp_path)
    graph = build_graph(recipe, plan_without_costs(recipe))
    residual = box(graph, "decoder/0/residual")
    assert [inner.title for inner in residual.children] == ["norm", "linear"]
    assert (residual.join, residual.bypass) == ("+", True)
    recipe = load(HOME / "papers/vaswani2017_base.yaml")
    graph = build_graph(recipe, plan_without_costs(recipe))
    frame, norm = box(graph, "decoder/decoder/2/repeat/stack/0/residual").children
    assert ([inner.title for inner in frame.children], frame.join, norm.title) == (
        ["self_attention"],
        "+",
        "norm",
    )
    placed = {item.box.key: item for item in place(graph).layout.walk()}
    assert placed[norm.key].y > placed[frame.key].join.y
    assert "#43;" not in Drawing(graph).mermaid().partition("norm")[2].partition("end")[0], (
        "the sum is before it"
    )


def test_a_repeat_folds_into_one_box_that_names_its_blocks() -> None:
    recipe = load(HOME / "papers/rnmt_plus.yaml")
    graph = build_graph(recipe, plan_without_costs(recipe))
    repeats = graph.repeats
    assert [repeat.key for repeat in repeats] == [
        "encoder/encoder/5/repeat",
        "decoder/decoder/5/repeat",
    ]
    folded = fold(graph, repeats[1:])
    repeat = box(folded, "decoder/decoder/5/repeat")
    assert (repeat.children, repeat.lines) == ((), ("concat, rnn",))
    assert ("context", "decoder/decoder/5/repeat") in {
        (edge.name, edge.reader) for edge in folded.edges
    }
    assert box(folded, "encoder/encoder/5/repeat") == repeats[0]
    check_layout(place(folded))


def test_a_repeat_in_a_folded_repeat_is_in_its_box(tmp_path: Path) -> None:
    stack = (
        "[{linear: {as: top}}, {repeat: {times: 2, stack: [{repeat: {times: 3, stack: [{add: top},"
        " rnn]}}]}}]"
    )
    (tmp_path / "r.yaml").write_text(
        f"recipe: 1\ndata: {{generate: copy}}\nmodel: {{width: 8, decoder: {stack}}}\n"
    )
    recipe = load(tmp_path / "r.yaml")
    graph = build_graph(recipe, plan_without_costs(recipe))
    outer, inner = graph.repeats
    for folded, reader in (([outer], outer), ([inner], inner), ([outer, inner], outer)):
        picture = fold(graph, folded)
        assert {edge.reader for edge in picture.edges} == {reader.key}
        assert box(picture, reader.key).lines == ("add, rnn",)


def test_a_page_has_a_drawing_for_each_choice_of_repeats(tmp_path: Path) -> None:
    recipe = load(HOME / "papers/rnmt_plus.yaml")
    drawing = Drawing(build_graph(recipe, plan_without_costs(recipe)))
    encoder, decoder = "encoder/encoder/5/repeat", "decoder/decoder/5/repeat"
    assert list(drawing.folded()) == ["", encoder, decoder, f"{encoder} {decoder}"]
    root = pages.read(drawing.html())
    shown = [
        item.get("data-folded")
        for item in pages.by_class(root, "drawing")
        if item.get("hidden") is None
    ]
    assert shown == [""]
    layers = ", ".join(["{repeat: {times: 2, stack: [linear]}}"] * 4)
    (tmp_path / "r.yaml").write_text(
        f"recipe: 1\ndata: {{generate: copy}}\nmodel: {{width: 8, decoder: [{layers}]}}\n"
    )
    keys = [key.split() for key in draw(tmp_path / "r.yaml").folded()]
    assert list(map(len, keys)) == [0, 4], "of many repeats, all fold at once"


def test_colours_are_those_of_the_families_and_texts_can_be_read_on_them(tmp_path: Path) -> None:
    recipe = everything(tmp_path)
    picture = Drawing(build_graph(recipe, plan_without_costs(recipe))).svg()
    families = {
        rules["x-family"]
        for name, rules in recipe.rules["$defs"].items()
        if name.startswith("block.")
    }
    assert families - {"memory"} <= {*COLORS}
    root = ElementTree.fromstring(picture)
    legend = [text.text for text in root.iter(f"{SVG}text") if text.text in families]
    colours = [
        item.get("class", "").split()[-1]
        for item in root.iter(f"{SVG}rect")
        if "family" in item.get("class", "")
    ]
    assert legend == list(dict.fromkeys(colours)) != []
    colored = COLORS.keys() - {"none", "ink", "soft", "name", "edge", "stream", "memory"}
    assert len(colored) == len(families) + 2
    for scheme in ("light", "dark"):
        inks, fills = (
            [getattr(COLORS[name], scheme) for name in names]
            for names in (("ink", "soft", "name"), colored)
        )
        assert not [(a, b) for a in inks for b in fills if contrast(a, b) < 4.5]


def test_every_program_draws_it(tmp_path: Path) -> None:
    """Literal colours stand at each element: to a program that knows no CSS it looks the same."""
    recipe = everything(tmp_path)
    picture = Drawing(build_graph(recipe, plan_without_costs(recipe))).svg()
    assert "var(" not in picture
    plain = re.sub(r"<style>.*?</style>", "", picture, flags=re.DOTALL)
    assert vl_convert.svg_to_png(plain) == vl_convert.svg_to_png(picture)
    for item in ElementTree.fromstring(plain).iter():
        if item.tag in (f"{SVG}rect", f"{SVG}path"):
            assert item.get("fill"), item.attrib
            assert item.get("fill") != "none" or item.get("stroke"), item.attrib


def test_dark_rules_have_all_colours_that_attributes_have() -> None:
    rules = "\n".join(dark_rules(".x"))
    for rule in RULES[1:]:
        colors = [
            f"{key}: {COLORS[value].dark};"
            for key, value in rule.attributes.items()
            if value in COLORS
        ]
        assert not colors or f".x {rule.selector} {{ {' '.join(colors)} }}" in rules


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_a_picture_for_print_is_overwritten_by_another_and_nothing_else_is(
    suffix: str, tmp_path: Path
) -> None:
    drawing, file = draw(HOME / "quickstart.yaml"), tmp_path / f"a{suffix}"
    drawing.save(file)
    first = file.read_bytes()
    drawing.save(file)
    assert file.read_bytes()[:9] == first[:9]
    file.write_bytes(first[:33])
    with pytest.raises(RunError, match="is not a drawing"):
        drawing.save(file)


def test_without_the_extra_a_picture_for_print_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(RunError, match="needs the package `vl-convert-python`"):
        check_output(tmp_path / "a.png")
    check_output(tmp_path / "a.svg")


def contrast(one: str, other: str) -> float:
    """The contrast of two colours; WCAG 2.1, 1.4.3."""
    lights = []
    for color in (one, other):
        channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
        )
        lights.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_a_block_that_ignores_the_stream_has_no_arrow_from_it() -> None:
    recipe = load(HOME / "papers/graves2014_lstm.yaml")
    graph = build_graph(recipe, plan_without_costs(recipe))
    blank = box(graph, "/no_input")
    assert not blank.reads_stream
    picture = place(graph)
    (placed,) = [item for item in picture.layout.walk() if item.box is blank]
    assert not [line for line in picture.lines if line.points[-1] == (placed.center, placed.y)]
    assert "nothing reads these tokens" in box(graph, "decoder/embedding").lines


# ------------------------------------------------------------------------------------------- the
# command


def run(*arguments: object) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, [str(item) for item in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(
        "recipe: 1\ndata: {generate: copy}\nmodel: {width: 8, decoder: [rnn]}\n", encoding="utf-8"
    )
    return file


def test_mermaid_goes_to_stdout_and_files_have_the_format_of_their_suffix(
    small: Path, tmp_path: Path
) -> None:
    chart = run("draw", small, "model.width=12")
    assert "12 wide" in chart
    assert "flowchart TB" in chart
    kinds = {"svg": "<svg ", "mmd": "%%{init", "md": "# small", "html": "<!DOCTYPE html>"}
    for kind, beginning in kinds.items():
        for _ in range(2):  # a picture may be drawn again
            assert run(
                "draw", small, "model.width=12", "--output", tmp_path / f"x.{kind}"
            ).startswith("wrote ")
        assert (tmp_path / f"x.{kind}").read_text(encoding="utf-8").startswith(beginning)
    assert (tmp_path / "x.mmd").read_text(encoding="utf-8") == chart
    assert chart in (tmp_path / "x.md").read_text(encoding="utf-8")
    assert "<svg " in (tmp_path / "x.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["x.gif", "x", "nowhere/x.svg", "notes.md", "other.svg"])
def test_unknown_formats_and_files_that_are_no_diagrams_are_refused(
    small: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "notes.md").write_text(
        "# Mine\n\n```mermaid\nflowchart TB\n```\n\nand what I think of it\n"
    )
    (tmp_path / "other.svg").write_text("<svg></svg>")
    before = {item: item.read_bytes() for item in tmp_path.iterdir()}
    with pytest.raises(RunError) as raised:
        draw(small).save(tmp_path / name)
    assert name in raised.value.render()
    assert before == {item: item.read_bytes() for item in tmp_path.iterdir()}


def test_a_run_is_drawn_with_its_own_vocabularies(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(load(small).dump(), encoding="utf-8")
    sha256 = sha256_of_file(folder / "recipe.yaml")
    write_record(RunDir(folder), {"vocabularies": {"target": 21}, "recipe_sha256": sha256})
    assert "target, 21 tokens" in draw(folder).mermaid()
    assert "target, 21 tokens" not in draw(small).mermaid()


def test_labels_are_escaped() -> None:
    assert escape_label('a"] --> b; <i>') == "a#34;] --#62; b#59; #60;i#62;"

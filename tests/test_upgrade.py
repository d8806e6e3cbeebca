"""`upgrade`: texts of older versions, rewritten with their comments; by a language that has a second version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from composer import upgrader
from composer.cli.main import app
from composer.errors import RecipeError, RunError
from composer.recipe import sections
from composer.recipe.node import Node, fault_at, plain
from composer.recipe.versions import STEPS, VERSION, Edit, upgraded
from composer.recipe.yaml_reader import dump, parse
from composer.upgrader import upgrade_files
from tests.small_recipes import SMALL

OLD = """# mine, and dear to me
recipe: 1   # the first
name: "dear"

model:
    # why so wide
  width: 64
  decoder: [norm,   linear]  # two of them
vars: {lr: 1e-3}
"""
NEW = """# mine, and dear to me
recipe: 2   # the first
name: "dear"

model:
    # why so wide
  breadth: 64
  decoder: [norm,   linear]  # two of them
vars: {lr: 1e-3}
"""


def broader(root: Node) -> Iterator[Edit]:
    """A step of a language in which `width` is called `breadth`, and `name: x` has no other form."""
    name = root.value.get("name")
    if name is not None and name.value == "x":
        raise RecipeError([fault_at(name.mark, "upgrade", "name", "there is no `x` any more", "give it a name")])
    model = root.value.get("model")
    if model is not None and "width" in model.value:
        mark = model.value["width"].place
        yield Edit(mark, mark.length, "breadth", "`width` is called `breadth`")


def last(root: Node) -> list[Edit]:
    """The next step: `vars` is removed, with all that stands in its line."""
    node = root.value.get("vars")
    return [] if node is None else [Edit(node.place, len(node.place.text) + 1, "", "`vars` is no more")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(OLD, encoding="utf-8")
    return path


def test_the_language_has_one_version() -> None:
    assert (VERSION, STEPS) == (1, {})
    assert sections.Recipe.__annotations__["recipe"] == f"Literal[{VERSION}]"
    assert upgraded(SMALL, "r").text == SMALL


def test_comments_order_and_layout_stay() -> None:
    found = upgraded(OLD, "r.yaml", {1: broader})
    assert found.text == NEW
    assert [str(each) for each in found.changes] == [
        "r.yaml:2:9: `1` -> `2`: the version of the language",
        "r.yaml:7:3: `width` -> `breadth`: `width` is called `breadth`",
    ]
    assert upgraded(found.text, "r.yaml", {1: broader}) == (NEW, ())


def test_steps_follow_each_other() -> None:
    found = upgraded(OLD, "r.yaml", {1: broader, 2: last})
    assert found.text == NEW.replace("recipe: 2", "recipe: 3").replace("vars: {lr: 1e-3}\n", "")
    assert str(found.changes[-1]) == "r.yaml:9:1: `vars: {lr: 1e-3}` is removed: `vars` is no more"


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=8)


@settings(deadline=None)
@given(
    st.dictionaries(TEXT.filter(bool), st.integers(-(10**6), 10**6) | TEXT, max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_nothing_else_changes(others: dict[str, Any], newline: str) -> None:
    model = {**others, "width": 3}
    text = dump({"a": others, "model": model, "recipe": 1}).replace("\n", newline)
    found = upgraded(text, "r.yaml", {1: broader})
    renamed = {"breadth" if key == "width" else key: value for key, value in model.items()}
    assert plain(parse(found.text, "r.yaml")) == {"a": others, "model": renamed, "recipe": 2}
    assert len(found.text.split(newline)) == len(text.split(newline))


@pytest.mark.parametrize(
    ("first", "place", "told"),
    [
        ("", (2, 1, "missing"), "write `recipe: 1` as the first line"),
        ("recipe: 0", (2, 9, "value"), "write `recipe: 1`"),
        ("recipe: -1", (2, 9, "value"), "write `recipe: 1`"),
        ('recipe: "1"', (2, 9, "value"), "write `recipe: 1`"),
        ("recipe: 1.0", (2, 9, "value"), "write `recipe: 1`"),
        ("recipe: true", (2, 9, "value"), "write `recipe: 1`"),
        ("recipe: [1]", (2, 9, "value"), "write `recipe: 1`"),
        ("recipe: 2", (2, 9, "version"), "this seqcomposer reads version 1"),
    ],
)
def test_what_has_no_version_that_is_known(first: str, place: tuple[int, int, str], told: str) -> None:
    with pytest.raises(RecipeError, match=told) as raised:
        upgraded(f"# one\n{first}{'' if first == '' else chr(10)}model: {{}}\n", "r.yaml")
    assert [(each.line, each.column, each.code) for each in raised.value.faults] == [place]


def test_two_edits_of_one_place_are_no_step() -> None:
    with pytest.raises(ValueError, match="overlap in line 7"):
        upgraded(OLD, "r.yaml", {1: lambda root: [*broader(root), *broader(root)]})


# ------------------------------------------------------------------------------------------- files


def test_files_are_rewritten_in_place(tmp_path: Path, file: Path) -> None:
    windows = tmp_path / "windows.yaml"
    windows.write_bytes(b"\xef\xbb\xbf" + OLD.replace("\n", "\r\n").encode())
    file.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to("r.yaml")
    upgrade_files([link, windows], steps={1: broader})
    assert file.read_text() == NEW
    assert link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert windows.read_bytes() == b"\xef\xbb\xbf" + NEW.replace("\n", "\r\n").encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "r.yaml", "windows.yaml"]


def test_one_that_is_refused_leaves_all_as_they_are(tmp_path: Path, file: Path) -> None:
    (tmp_path / "x.yaml").write_text("recipe: 1\nname: x\n")
    (tmp_path / "new.yaml").write_text("recipe: 9\n")
    with pytest.raises(RecipeError) as raised:
        upgrade_files([file, tmp_path / "x.yaml", tmp_path / "new.yaml", tmp_path / "none.yaml"], steps={1: broader})
    told = {(Path(each.file).name, each.code) for each in raised.value.faults}
    assert told == {("x.yaml", "upgrade"), ("new.yaml", "version"), ("none.yaml", "file")}
    assert file.read_text() == OLD


def test_what_cannot_be_written_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upgrader, "atomic_write", full)
    with pytest.raises(RunError, match="no space left"):
        upgrade_files([file], steps={1: broader})
    assert file.read_text() == OLD


def test_the_command(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["upgrade", str(file)])
    assert (done.exit_code, done.output) == (0, f"{file}: nothing to change\n")
    steps = {1: broader}
    monkeypatch.setattr(upgrader.upgrade_files, "__defaults__", (True, steps))
    done = CliRunner().invoke(app, ["upgrade", "--check", str(file)])
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == f"{file}: to be upgraded"
    assert file.read_text() == OLD
    (tmp_path / "sweep.yaml").write_text("sweep: 1\n")
    done = CliRunner().invoke(app, ["upgrade", "--json", str(file), str(tmp_path / "sweep.yaml")])
    assert done.exit_code == 0
    first, second = json.loads(done.output)
    assert [(each["line"], each["before"], each["after"]) for each in first["changes"]] == [
        (2, "1", "2"),
        (7, "width", "breadth"),
    ]
    assert second["changes"] == []
    assert file.read_text() == NEW

"""What README.md shows is true: its recipes are accepted, its error is what is told, its commands are all there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

import composer
from composer.cli.main import app

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
ERRORS = re.findall(r"```\n(\S+\.yaml:\d+:.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("text", RECIPES)
def test_recipes_are_accepted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    assert composer.load(path).plan().parameters > 0


def test_the_error_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (told,) = ERRORS
    monkeypatch.chdir(tmp_path)
    text = RECIPES[0].replace("{rnn: {cell: lstm}}", "{rnn: {cell: lstm, bidirectional: true}}")
    text = re.sub(r"\]( +)# in a decoder.*", "]", text)
    Path("mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(composer.RecipeError) as refused:
        composer.load("mine.yaml").plan()
    assert refused.value.render().strip() == told.strip()


def test_the_picture_is_what_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPES[0], encoding="utf-8")
    assert composer.draw(path).svg() == (ROOT / "docs/pictures/mixed.svg").read_text(encoding="utf-8")


def test_the_test_command_is_the_one_that_ci_runs() -> None:
    (tests,) = [line for block in COMMANDS for line in block.splitlines() if "pytest" in line]
    assert tests in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_every_command_is_told() -> None:
    there = set(get_command(app).commands)  # type: ignore[attr-defined]
    rows = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
    assert there == {command for row in rows for command in re.findall(r"`(\w+)", row)}


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (ROOT / target).exists(), target

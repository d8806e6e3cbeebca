"""README.md is correct: recipes are accepted, its error message is exact, its commands are
complete.
"""

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


def test_the_error_message_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected,) = ERRORS
    monkeypatch.chdir(tmp_path)
    text = RECIPES[0].replace("{rnn: {cell: lstm}}", "{rnn: {cell: lstm, bidirectional: true}}")
    text = re.sub(r"\]( +)# in a decoder.*", "]", text)
    Path("mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(composer.RecipeError) as refused:
        composer.load("mine.yaml").plan()
    assert refused.value.render().strip() == expected.strip()


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_picture_is_current(page: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    recipes = re.findall(
        r"```yaml[^\n]*\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL
    )
    path.write_text(recipes[0], encoding="utf-8")
    assert composer.draw(path).svg() == (ROOT / "docs/pictures/mine.svg").read_text(
        encoding="utf-8"
    )


def test_the_test_command_is_that_of_ci() -> None:
    (tests,) = [line for block in COMMANDS for line in block.splitlines() if "pytest" in line]
    assert tests in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_every_command_is_listed() -> None:
    expected = set(get_command(app).commands)  # type: ignore[attr-defined]
    rows = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
    assert expected == {command for row in rows for command in re.findall(r"`(\w+)", row)}


def test_every_link_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (ROOT / target).exists(), target

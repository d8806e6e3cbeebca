"""What the documentation says is so: recipes are accepted, commands run, Python works, outputs are as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import composer
from docs.hooks import block_pages
from tests.docs.fenced import (
    CUT,
    GENERATED,
    ROOT,
    Fenced,
    WrongPage,
    accepted,
    commands,
    fenced,
    looked_up,
    placed,
    tried,
)

LINK = re.compile(r"(?:\]\(|src(?:set)?=\")(?!https?:|#)([^)#\"\s]+)")
PAGES = sorted(ROOT.glob("docs/*.md"))
README = list(fenced("README.md", (ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    load = composer.load

    def cut(path: str | Path, overrides: tuple[str, ...] = (), data_dir: str | Path | None = None) -> composer.Recipe:
        generated = GENERATED if str(path).endswith("quickstart.yaml") else ()
        return load(path, (*overrides, *CUT, *generated), data_dir)

    monkeypatch.setattr(composer, "load", cut, raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_true(page: Path, folder: Path) -> None:
    tried(list(fenced(page.name, page.read_text(encoding="utf-8"))), folder)


def test_the_readmes_python_runs(folder: Path) -> None:
    blocks = [block for block in README if block.language == "python"]
    assert blocks
    tried(blocks, folder)


def test_the_readmes_commands_are_as_they_are_taken() -> None:
    blocks = [block for block in README if block.language == "sh"]
    assert len(blocks) > 3
    for command in (command for block in blocks for command in commands(block.text)):
        looked_up(command)
        _settings(command)


def _settings(command: list[str]) -> None:
    """What a training of ours is told is what its recipe can be told."""
    if not command[0].endswith("seqcomposer") or command[1] not in ("train", "check", "plan"):
        return
    recipe = ROOT / command[2]
    overrides = [word for word in command[3:] if "=" in word and not word.startswith("-")]
    if recipe.suffix == ".yaml" and recipe.exists() and "sweep:" not in recipe.read_text(encoding="utf-8"):
        composer.load(recipe, overrides)


def test_the_first_pages_picture_is_what_is_drawn(tmp_path: Path) -> None:
    page = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    (recipe,) = (block for block in fenced("index.md", page) if block.title == "mine.yaml")
    path = tmp_path / "mine.yaml"
    path.write_text(recipe.text, encoding="utf-8")
    assert composer.draw(path).svg() == (ROOT / "docs/pictures/mine.svg").read_text(encoding="utf-8")


def test_what_a_code_host_shows_leads_somewhere() -> None:
    written = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    links = [(page, each) for page in written for each in LINK.findall(page.read_text(encoding="utf-8"))]
    assert len(links) > 50
    assert [(page.name, each) for page, each in links if not (page.parent / each).exists()] == []


def test_every_example_of_a_block_is_accepted(tmp_path: Path) -> None:
    used = {name for name, recipes in block_pages.recipes_by_block().items() if recipes}
    assert set(block_pages.MODELS) <= set(block_pages.block_schemas()) - used
    for name in set(block_pages.block_schemas()) - used:
        place = "" if name in block_pages.MODELS else "model.encoder"
        path = tmp_path / f"{name}.yaml"
        text, _ = block_pages.example(name)
        path.write_text(yaml.safe_dump(placed(yaml.safe_load(text), place), sort_keys=False), encoding="utf-8")
        assert name in text
        accepted(path, refused=False)


WRONG = {
    "an unknown option": "```sh\nseqcomposer check --fast recipes/quickstart.yaml\n```",
    "an unknown option of what is not run": '```sh title="needs a GPU"\nseqcomposer train --fast x.yaml\n```',
    "an unknown command of what is not run": '```sh title="needs a GPU"\nseqcomposer learn x.yaml\n```',
    "a benchmark that is not there": '```sh title="needs a GPU"\npython benchmarks/fast.py\n```',
    "an option that a benchmark has not": '```sh title="needs a GPU"\npython benchmarks/fuzz.py --fast\n```',
    "a command that fails": "```sh\nseqcomposer check none.yaml\n```",
    "a failing part of a pipeline": "```sh\nseqcomposer blocks nothing | cat\n```",
    "a recipe with a typo": '```yaml title="mine.yaml"\nrecipe: 1\ndata: {generate: copi}\n```',
    "a fragment with a typo": '```yaml title="model.encoder"\n- rnn: {cells: lstm}\n```',
    "a fragment of nothing": "```yaml\n- rnn\n```",
    "a fragment that is not refused": '```yaml title="model.encoder, refused"\n- rnn\n```',
    "another output": '```text title="$ seqcomposer blocks norm"\nnorm: nothing\n```',
    "Python that raises": "```python\nimport composer\n\ncomposer.loads\n```",
    "a wrong one in a list": "- a list\n\n    ```sh\n    seqcomposer blocks nothing\n    ```",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_planted_fault_is_found(wrong: str, folder: Path) -> None:
    blocks = list(fenced("planted.md", WRONG[wrong]))
    assert len(blocks) == 1
    with pytest.raises(WrongPage, match=r"^planted\.md:"):
        tried(blocks, folder)


def test_blocks_are_found_where_they_stand() -> None:
    text = 'a\n\n```sh title="needs x"\nls\n```\n\n```text\n```sh\n```\n'
    assert next(fenced("a.md", text)) == Fenced("a.md", 3, "sh", "needs x", "ls\n")
    assert list(commands("a 'b c' | d > e && f \\\n  g # h\nX=1 i")) == [
        ["a", "b c", "|", "d", ">", "e"],
        ["f", "g"],
        ["i"],
    ]
    assert list(commands("for x in one two; do\n  run $x\ndone")) == [["run", "one"]]

"""The documentation is correct: recipes pass `check`, commands run, outputs are exact."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import composer
from composer.inference.decoders import search
from composer.inference.target_lengths import token_limit
from composer.recipe import own_blocks, registry
from docs.hooks import block_pages
from tests.docs.fenced import (
    ROOT,
    SHORT_QUICKSTART,
    SHORT_TRAINING,
    CodeBlock,
    PageError,
    check_accepted,
    check_options,
    code_blocks,
    insert_fragment,
    run_blocks,
    split_commands,
)

LINK = re.compile(r"(?:\]\(|src(?:set)?=\")(?!https?:|#)([^)#\"\s]+)")
LONGEST_ANSWER = 20  # tokens
PAGES = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/journal/*.md"))]
README = list(code_blocks("README.md", (ROOT / "README.md").read_text(encoding="utf-8")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    load = composer.load

    def load_short(
        path: str | Path, overrides: tuple[str, ...] = (), data_dir: Path | None = None
    ) -> composer.Recipe:
        quickstart = SHORT_QUICKSTART if str(path).endswith("quickstart.yaml") else ()
        return load(path, (*overrides, *SHORT_TRAINING, *quickstart), data_dir)

    monkeypatch.setattr(composer, "load", load_short, raising=False)
    # the answers of a model that has seen four batches have no end
    monkeypatch.setattr(
        search, "token_limit", lambda *given: min(LONGEST_ANSWER, token_limit(*given))
    )
    yield tmp_path
    for name in [*registry.OWN]:  # the blocks of a page are its own
        own_blocks._set_own(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_correct(page: Path, folder: Path) -> None:
    run_blocks(list(code_blocks(page.name, page.read_text(encoding="utf-8"))), folder)


def test_the_readmes_python_runs(folder: Path) -> None:
    blocks = [block for block in README if block.language == "python"]
    assert blocks
    run_blocks(blocks, folder)


def test_the_readmes_commands_are_valid() -> None:
    blocks = [block for block in README if block.language == "sh"]
    assert len(blocks) > 2
    for command in (command for block in blocks for command in split_commands(block.text)):
        check_options(command)
        _check_overrides(command)


def _check_overrides(command: list[str]) -> None:
    """Check that the overrides of a command fit its recipe."""
    if not command[0].endswith("seqcomposer") or command[1] not in ("train", "check", "plan"):
        return
    recipe = ROOT / command[2]
    overrides = [word for word in command[3:] if "=" in word and not word.startswith("-")]
    if (
        recipe.suffix == ".yaml"
        and recipe.exists()
        and "sweep:" not in recipe.read_text(encoding="utf-8")
    ):
        composer.load(recipe, overrides)


def test_the_picture_of_the_first_page_is_current(tmp_path: Path) -> None:
    page = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    (recipe,) = (block for block in code_blocks("index.md", page) if block.title == "mine.yaml")
    path = tmp_path / "mine.yaml"
    path.write_text(recipe.text, encoding="utf-8")
    assert composer.draw(path).svg() == (ROOT / "docs/pictures/mine.svg").read_text(
        encoding="utf-8"
    )


def test_relative_links_exist() -> None:
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    links = [
        (page, link) for page in pages for link in LINK.findall(page.read_text(encoding="utf-8"))
    ]
    assert len(links) > 50
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_every_example_of_a_block_is_accepted(tmp_path: Path) -> None:
    used = {name for name, recipes in block_pages.recipes_by_block().items() if recipes}
    assert set(block_pages.MODELS) <= set(block_pages.block_schemas())
    for name in set(block_pages.block_schemas()) - used | set(block_pages.MODELS):
        place = "" if name in block_pages.MODELS else "model.encoder"
        path = tmp_path / f"{name}.yaml"
        text, _ = block_pages.example(name)
        path.write_text(
            yaml.safe_dump(insert_fragment(yaml.safe_load(text), place), sort_keys=False),
            encoding="utf-8",
        )
        assert name in text
        check_accepted(path, refused=False)


FAULTS = {
    "an unknown option": "```sh\nseqcomposer check --fast recipes/quickstart.yaml\n```",
    "an unknown option of a command that is not run": (
        '```sh title="needs a GPU"\nseqcomposer train --fast x.yaml\n```'
    ),
    "an unknown command that is not run": (
        '```sh title="needs a GPU"\nseqcomposer learn x.yaml\n```'
    ),
    "a missing benchmark": '```sh title="needs a GPU"\npython -m benchmarks.fast\n```',
    "an unknown option of a benchmark": (
        '```sh title="needs a GPU"\npython verify/fuzz.py --fast\n```'
    ),
    "a command that fails": "```sh\nseqcomposer check none.yaml\n```",
    "a failing part of a pipeline": "```sh\nseqcomposer blocks nothing | cat\n```",
    "a recipe with a typo": '```yaml title="mine.yaml"\nrecipe: 1\ndata: {generate: copi}\n```',
    "a fragment with a typo": '```yaml title="model.encoder"\n- rnn: {cells: lstm}\n```',
    "a fragment without a path": "```yaml\n- rnn\n```",
    "a fragment that is not refused": '```yaml title="model.encoder, refused"\n- rnn\n```',
    "another output": '```text title="$ seqcomposer blocks norm"\nnorm: nothing\n```',
    "Python that raises": "```python\nimport composer\n\ncomposer.loads\n```",
    "a fault in a list": "- a list\n\n    ```sh\n    seqcomposer blocks nothing\n    ```",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, folder: Path) -> None:
    blocks = list(code_blocks("planted.md", FAULTS[fault]))
    assert len(blocks) == 1
    with pytest.raises(PageError, match=r"^planted\.md:"):
        run_blocks(blocks, folder)


def test_code_blocks_and_commands_are_parsed() -> None:
    text = 'a\n\n```sh title="needs x"\nls\n```\n\n```text\n```sh\n```\n'
    assert next(code_blocks("a.md", text)) == CodeBlock("a.md", 3, "sh", "needs x", "ls\n")
    assert list(split_commands("a 'b c' | d > e && f \\\n  g # h\nX=1 i")) == [
        ["a", "b c", "|", "d", ">", "e"],
        ["f", "g"],
        ["i"],
    ]
    assert list(split_commands("for x in one two; do\n  run $x\ndone")) == [["run", "one"]]

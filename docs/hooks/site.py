"""Hooks of mkdocs: the navigation, the generated pages, and links to files of the repository.

Pages link to files of the repository, so that links work there. On the site a link to a recipe, a
schema or the code of a choice leads to the page that is generated from it.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))

from composer.recipe.registry import CHOICES
from docs.hooks import block_pages, demos, gallery
from docs.hooks.corpus import ROOT, gallery_recipes
from docs.hooks.markdown import code, collapsible
from docs.hooks.pages import pages_of_code, pages_of_recipes

FILE_LINK = re.compile(r"^\[`([\w./-]+)`\]\((?:\.\./)+\1\)$", re.MULTILINE)
"""A paragraph that is a link to a file of the repository."""
LINK = re.compile(r"\]\((?:\.\./)+([\w./-]+)(#[\w-]+)?\)")
"""A link to a file outside docs/."""
INCLUDE = re.compile(r"^<!-- from (\S+): (.+) -->\n(?:.*\n)*?<!-- to here -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Fill in the navigation, with the pages of all blocks and recipes."""
    config.nav = [expand_entry(entry) for entry in config.nav]
    return config


def expand_entry(entry: Any) -> Any:
    """Replace a placeholder of the navigation by the generated pages."""
    entries = {"BLOCKS": block_entries, "GALLERY": gallery_entries, "REFERENCE": reference_entries}
    ((title, content),) = entry.items()
    return {title: entries[content]()} if isinstance(content, str) and content in entries else entry


def block_entries() -> list[Any]:
    """Return the pages of the blocks."""
    return ["blocks/index.md", *(f"blocks/{name}.md" for name in block_pages.block_schemas())]


def gallery_entries() -> list[Any]:
    """Return the pages of the recipes, by folder."""
    pages: dict[str, list[str]] = defaultdict(list)
    for recipe in gallery_recipes():
        pages[gallery.FOLDER_TITLES.get(recipe.folder, recipe.folder)].append(
            f"gallery/{recipe.slug}.md"
        )
    return ["recipes.md", *({title: paths} for title, paths in pages.items())]


def reference_entries() -> list[Any]:
    """Return the pages of the reference."""
    pages = ["reference/commands.md", "reference/keys.md", "reference/sweep.md"]
    return [*pages, *(f"reference/{table}.md" for table in CHOICES)]


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages that are not committed."""
    for name, text in {**pages_of_code(), **pages_of_recipes()}.items():
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, content=text))
    for name, content in demos.shared_files().items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace include comments by sections of other files, and resolve links to files outside."""
    name = page.file.src_uri
    if name == "recipes.md":
        page.meta["hide"] = ["toc"]  # its tables want room
    if name == "demos.md" and not demos.shared_files():
        markdown = markdown[: markdown.index("<details")] + demos.MISSING
    markdown = FILE_LINK.sub(lambda match: embed_file(match[1]), markdown)
    markdown = LINK.sub(lambda match: resolve_link(match, name), markdown)
    return INCLUDE.sub(lambda match: read_section(ROOT / match[1], match[2]), markdown)


def resolve_link(match: re.Match[str], page: str) -> str:
    """Return a link to the page that is generated from a file, if there is one."""
    target = generated_pages().get(match[1])
    if target is None:
        return match[0]
    return f"]({posixpath.relpath(target, posixpath.dirname(page))}{match[2] or ''})"


@cache
def generated_pages() -> dict[str, str]:
    """Return the page that is generated from each file of the repository."""
    pages = {
        "schemas/recipe.schema.json": "reference/keys.md",
        "schemas/sweep.schema.json": "reference/sweep.md",
        "composer/cli/main.py": "reference/commands.md",
    }
    for table, choice in CHOICES.items():
        module = choice.entries.partition(":")[0]
        pages[f"{module.replace('.', '/')}.py"] = f"reference/{table}.md"
    for recipe in gallery_recipes():
        pages[f"recipes/{recipe.slug}.yaml"] = f"gallery/{recipe.slug}.md"
    return pages


def embed_file(name: str) -> str:
    """Return the content of a file of the repository, folded."""
    language = {".py": "python", ".yaml": "yaml"}[Path(name).suffix]
    return collapsible(name, code((ROOT / name).read_text(encoding="utf-8"), language))


def read_section(file: Path, title: str) -> str:
    """Return the text below a heading of a Markdown file, up to the next heading of its level."""
    text = file.read_text(encoding="utf-8")
    match = re.search(
        rf"^(#+) {re.escape(title)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL
    )
    if match is None:
        raise ValueError(f"{file.name} has no section {title!r}")
    return match[2].strip()

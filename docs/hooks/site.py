"""Hooks of mkdocs: generated pages, sections of other files, and the navigation."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))

from composer.recipe.registry import CHOICES
from docs.hooks import block_pages, commands, gallery, reference_pages
from docs.hooks.corpus import ROOT, compute_costs, gallery_recipes

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
        pages[gallery.FOLDER_TITLES.get(recipe.folder, recipe.folder)].append(f"gallery/{recipe.slug}.md")
    return ["gallery/index.md", *({title: paths} for title, paths in pages.items())]


def reference_entries() -> list[Any]:
    """Return the pages of the reference."""
    return ["reference/commands.md", "reference/keys.md", *(f"reference/{table}.md" for table in CHOICES)]


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for path, content in generate_pages(config).items():
        if path in files.src_uris:  # a stub for readers of the repository
            files.remove(files.src_uris[path])
        files.append(File.generated(config, path, content=content))
    return files


def generate_pages(config: Any) -> dict[str, str]:
    """Return every generated page and drawing by its path."""
    source = f"{config.repo_url.rstrip('/')}/blob/main" if config.repo_url else ""
    costs = compute_costs(bool(config.extra["costs"]))
    pages = {
        "blocks/index.md": block_pages.index_page(),
        "gallery/index.md": gallery.index_page(costs),
        "reference/keys.md": reference_pages.sections_page(),
        "reference/commands.md": commands.page(),
    }
    pages |= {f"blocks/{name}.md": block_pages.block_page(name, source) for name in block_pages.block_schemas()}
    pages |= {f"gallery/{recipe.slug}.md": gallery.recipe_page(recipe, costs) for recipe in gallery_recipes()}
    pages |= {f"gallery/{slug}.svg": cost.svg for slug, cost in costs.items()}
    return pages | {f"reference/{table}.md": reference_pages.choice_page(table) for table in CHOICES}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace include comments by sections of other files."""
    return INCLUDE.sub(lambda match: read_section(ROOT / match[1], match[2]), markdown)


def read_section(file: Path, title: str) -> str:
    """Return the text below a heading of a Markdown file, up to the next heading of its level."""
    text = file.read_text(encoding="utf-8")
    match = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        raise ValueError(f"{file.name} has no section {title!r}")
    return match[2].strip()

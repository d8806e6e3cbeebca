"""The hooks of mkdocs: pages that are made from the code, parts of other files, and the order of all."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.hooks import block_pages, commands, gallery, reference_pages
from docs.hooks.corpus import ROOT, costs, shown

INCLUDE = re.compile(r"^<!-- from (\S+): (.+) -->\n(?:.*\n)*?<!-- to here -->$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """The order of the pages; those of blocks and recipes are as many as there are."""
    config.nav = [filled(each) for each in config.nav]
    return config


def filled(entry: Any) -> Any:
    """An entry of the navigation with the generated pages in their places."""
    made = {"BLOCKS": block_entries, "GALLERY": gallery_entries, "REFERENCE": reference_entries}
    ((title, inner),) = entry.items()
    return {title: made[inner]()} if isinstance(inner, str) and inner in made else entry


def block_entries() -> list[Any]:
    """The pages of the blocks."""
    return ["blocks/index.md", *(f"blocks/{name}.md" for name in block_pages.definitions())]


def gallery_entries() -> list[Any]:
    """The pages of the recipes, by their folders."""
    chapters = dict.fromkeys(each.chapter for each in shown())
    pages = {
        chapter: [f"gallery/{each.place}.md" for each in shown() if each.chapter == chapter] for chapter in chapters
    }
    return ["gallery/index.md", *({gallery.CHAPTERS.get(chapter, chapter): inner} for chapter, inner in pages.items())]


def reference_entries() -> list[Any]:
    """The pages of all else that a recipe can say."""
    return ["reference/commands.md", "reference/keys.md", *(f"reference/{table}.md" for table in reference_pages.PAGES)]


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    for path, content in generated(config).items():
        if path in files.src_uris:  # it says in a few words what the site has in its place
            files.remove(files.src_uris[path])
        files.append(File.generated(config, path, content=content))
    return files


def generated(config: Any) -> dict[str, str]:
    """Every generated page and picture by its path."""
    source = f"{config.repo_url.rstrip('/')}/blob/main" if config.repo_url else ""
    told = costs(bool(config.extra["costs"]))
    made = {
        "blocks/index.md": block_pages.index_page(),
        "gallery/index.md": gallery.index_page(told),
        "reference/keys.md": reference_pages.sections_page(),
        "reference/commands.md": commands.page(),
    }
    made |= {f"blocks/{name}.md": block_pages.block_page(name, source) for name in block_pages.definitions()}
    made |= {f"gallery/{each.place}.md": gallery.recipe_page(each, told) for each in shown()}
    made |= {f"gallery/{place}.svg": cost.svg for place, cost in told.items()}
    return made | {f"reference/{table}.md": reference_pages.choice_page(table) for table in reference_pages.PAGES}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Puts sections of other files in the place of what links to them: what is said once stays in one file."""
    return INCLUDE.sub(lambda found: section(ROOT / found[1], found[2]), markdown)


def section(file: Path, title: str) -> str:
    """What stands below a heading of a Markdown file, up to the next one as high."""
    text = file.read_text(encoding="utf-8")
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{file.name} has no section {title!r}")
    return found[2].strip()

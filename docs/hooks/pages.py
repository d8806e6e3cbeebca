"""Write the generated pages of the documentation: blocks, gallery, commands and keys, with every
drawing.

    python -m docs.hooks.pages

They are committed, so that they can be read in the repository; the site is made of the same files.
"""

from __future__ import annotations

import shutil

from composer.recipe.registry import CHOICES
from docs.hooks import block_pages, commands, gallery, reference_pages
from docs.hooks.corpus import ROOT, compute_costs, gallery_recipes

DOCS = ROOT / "docs"
FOLDERS = ("blocks", "gallery", "reference")
"""Folders of docs/ that hold nothing but generated files."""


def pages_of_code() -> dict[str, str]:
    """Return the pages of blocks, commands and keys by their path in docs/."""
    return {
        "blocks/index.md": block_pages.index_page(),
        "reference/keys.md": reference_pages.sections_page(),
        "reference/sweep.md": reference_pages.sweep_page(),
        "reference/commands.md": commands.page(),
        **{
            f"blocks/{name}.md": block_pages.block_page(name)
            for name in block_pages.block_schemas()
        },
        **{f"reference/{table}.md": reference_pages.choice_page(table) for table in CHOICES},
    }


def pages_of_recipes() -> dict[str, str]:
    """Return the pages and drawings of recipes by their path in docs/. Takes a minute, to plan and
    draw all.
    """
    costs = compute_costs()
    pages = {f"gallery/{slug}.svg": cost.svg for slug, cost in costs.items()}
    for recipe in gallery_recipes():
        pages[f"gallery/{recipe.slug}.md"] = gallery.recipe_page(recipe, costs[recipe.slug])
    return {"gallery/index.md": gallery.index_page(costs), **pages}


def write_pages() -> None:
    """Write every page, and remove those of what is there no more."""
    pages = {**pages_of_code(), **pages_of_recipes()}
    for folder in FOLDERS:
        shutil.rmtree(DOCS / folder)
    for name, text in pages.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()

"""Generate pages of the documentation: blocks, reference, gallery, and the list of recipes.

    python -m docs.hooks.pages

writes docs/blocks and docs/recipes.md, which are committed. The build of the site makes the others.
"""

from __future__ import annotations

import shutil

from composer.recipe.registry import CHOICES
from docs.hooks import block_pages, commands, gallery, reference_pages
from docs.hooks.corpus import ROOT, compute_costs, gallery_recipes

DOCS = ROOT / "docs"


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
    """Return the gallery by path in docs/. Takes a minute, unless `.cache` has all drawings."""
    costs = compute_costs()
    pages = {f"gallery/{slug}.svg": cost.svg for slug, cost in costs.items()}
    for recipe in gallery_recipes():
        pages[f"gallery/{recipe.slug}.md"] = gallery.recipe_page(recipe, costs[recipe.slug])
    return pages


def committed_pages() -> dict[str, str]:
    """Return the pages that are committed, by their path in docs/."""
    blocks = {name: text for name, text in pages_of_code().items() if name.startswith("blocks/")}
    parameters = {slug: cost.parameters for slug, cost in compute_costs().items()}
    return {**blocks, "recipes.md": gallery.list_page(parameters)}


def write_pages() -> None:
    """Write the pages that are committed, and remove those of blocks that are gone."""
    pages = committed_pages()
    shutil.rmtree(DOCS / "blocks")
    (DOCS / "blocks").mkdir()
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()

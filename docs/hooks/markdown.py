"""Markdown building blocks of the generated pages: tables, code, collapsible notes, numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SIGNS = (("M", 1e6), ("k", 1e3))
LARGE = (("T", 1e12), ("G", 1e9), *SIGNS)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a Markdown table whose last `numbers` columns are right-aligned."""
    alignment = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    cells = [
        head,
        alignment,
        *([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def code(text: str, language: str = "", title: str = "") -> str:
    """Return a code block, with a fence longer than any in the text."""
    fence = "```" if "```" not in text else "`````"
    attribute = f' title="{title}"' if title else ""
    return f"{fence}{language}{attribute}\n{text.rstrip()}\n{fence}"


def collapsible(title: str, content: str) -> str:
    """Return a note that unfolds, on the site and in the repository."""
    return f'<details markdown="1">\n<summary>{title}</summary>\n\n{content}\n\n</details>'


def file_link(name: str, page: str) -> str:
    """Return a link to a file of the repository from a page of docs/."""
    return f"[`{name}`]({'../' * (page.count('/') + 1)}{name})"


def join_parts(*parts: str) -> str:
    """Join the non-empty parts of a page with blank lines."""
    return "\n\n".join(part for part in parts if part) + "\n"


def format_si(number: float) -> str:
    """Return a number with an SI prefix: 4.18 M."""
    sign, unit = next(((sign, unit) for sign, unit in LARGE if number >= unit), ("", 1))
    return f"{number / unit:.3g} {sign}".strip() if unit > 1 else f"{number:,.0f}"

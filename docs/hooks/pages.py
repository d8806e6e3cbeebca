"""What pages are made of: tables, code, links, and the numbers of a recipe in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SIGNS = (("M", 1e6), ("k", 1e3))
LARGE = (("T", 1e12), ("G", 1e9), *SIGNS)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table in Markdown whose last `numbers` columns stand to the right."""
    places = ["---"] * (len(head) - numbers) + ["--:"] * numbers
    cells = [head, places, *([each.replace("|", "\\|").replace("\n", " ") for each in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def code(text: str, language: str = "", title: str = "") -> str:
    """A block of code; its fence is longer than any in the text."""
    fence = "```" if "```" not in text else "`````"
    named = f' title="{title}"' if title else ""
    return f"{fence}{language}{named}\n{text.rstrip()}\n{fence}"


def folded(title: str, content: str) -> str:
    """What is there to be opened."""
    inner = "\n".join(f"    {line}" if line else "" for line in content.splitlines())
    return f'??? note "{title}"\n\n{inner}'


def page(*parts: str) -> str:
    """The parts of a page that are there, one below the other."""
    return "\n\n".join(part for part in parts if part) + "\n"


def short(number: float) -> str:
    """A number as one compares it: 4.18 M."""
    sign, unit = next(((sign, unit) for sign, unit in LARGE if number >= unit), ("", 1))
    return f"{number / unit:.3g} {sign}".strip() if unit > 1 else f"{number:,.0f}"

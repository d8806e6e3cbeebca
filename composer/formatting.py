"""Numbers as one reads them."""

from __future__ import annotations

UNITS = ("", "k", "M", "G", "T", "P")


def si(number: float) -> str:
    """A number in three digits or so: 12.3M."""
    for unit in UNITS:
        if abs(number) < 1000 or unit == UNITS[-1]:
            break
        number /= 1000
    return f"{number:.3g}{unit}" if unit or number % 1 else f"{number:.0f}"


def format_bytes(number: int) -> str:
    """A number of bytes in binary units."""
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"

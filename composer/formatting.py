"""Numbers, sizes, durations and lists as people read them."""

from __future__ import annotations

import unicodedata

SI_PREFIXES = ("", "k", "M", "G", "T", "P")
BINARY_UNITS = ("B", "KiB", "MiB", "GiB")


def si(number: float) -> str:
    """Return a number in about three digits with an SI prefix: 12.3M."""
    for prefix in SI_PREFIXES:
        if abs(number) < 1000 or prefix == SI_PREFIXES[-1]:
            break
        number /= 1000
    return f"{number:.3g}{prefix}" if prefix or number % 1 else f"{number:.0f}"


def format_bytes(number: int) -> str:
    """Return a number of bytes in binary units: 1.5 MiB."""
    size = float(number)
    for unit in BINARY_UNITS:
        if size < 1024 or unit == BINARY_UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"


def significant(value: float, digits: int) -> str:
    """Write a number with so many significant digits, and without an exponent: 0.1900, 1.300, 24310."""
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:#.{digits}g}".rstrip(".")


def strip_control_characters(text: str) -> str:
    """Return a text with U+FFFD for every control character but tab and newline, and for what no page may hold."""
    return "".join("\N{REPLACEMENT CHARACTER}" if is_control(character) else character for character in text)


def is_control(character: str) -> bool:
    """Return whether a character is a control character, half of a surrogate pair, or no character."""
    if character in "\t\n":
        return False
    return unicodedata.category(character) in ("Cc", "Cs") or character in "\ufffe\uffff"

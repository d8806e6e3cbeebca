"""Lines of text: what ends one, and which have nothing to read.

All that reads or writes text asks here.

A line ends with a line feed, with or without a carriage return before it. A carriage return alone
is a character.
"""

from __future__ import annotations

import re

INVISIBLE = (
    "\x00-\x08\x0e-\x1b\x7f-\x9f"  # control characters that are no spaces
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters that print nothing: Unicode's default ignorable ones, annotation marks, and the blanks
of Hangul and Braille.
"""
VISIBLE = re.compile(f"[^\\s{INVISIBLE}]")
CR, LF, CRLF = "\r", "\n", "\r\n"


def is_blank(text: str) -> bool:
    """True if a text has nothing to see: it is empty, or only spaces and invisible characters."""
    return VISIBLE.search(text) is None


def empty_if_blank(text: str) -> str:
    """Return a text, and "" of one that is blank."""
    return "" if is_blank(text) else text


def without_break(line: str) -> str:
    """Return a line without what ends it."""
    return line.removesuffix(LF).removesuffix(CR)


def lines_of(text: str) -> list[str]:
    """Return the lines of a part of a file, without what ends them."""
    return unify_breaks(without_break(text)).split(LF)


def unify_breaks(text: str) -> str:
    """Return a text of several lines that end with a line feed alone."""
    return text.replace(CRLF, LF)


def one_line(text: str | None) -> str:
    """Return a text as one line, with spaces for line breaks; None is an empty line."""
    return unify_breaks(text or "").replace(LF, " ")


def answer_line(text: str) -> str:
    """Return an answer as one line for every reader, since models of bytes can write any break."""
    lines = text.splitlines()  # at a form feed, NEL and the separators of Unicode too
    return text if lines == [text] else " ".join(lines)

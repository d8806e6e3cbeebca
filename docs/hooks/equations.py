"""Docstrings as they are read on a page: equations, which source text writes in plain letters, with their signs."""

# ruff: noqa: RUF001
from __future__ import annotations

import html
import re
from collections.abc import Iterator

FULL = 108
"""A line of a docstring that leaves this much to the next word was broken because it was full, not to end there."""
SIGNS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "theta": "θ",
    "lambda": "λ",
    "sigma": "σ",
    "sum": "∑",
    "prod": "∏",
    "sqrt": "√",
}
OPERATORS = (
    ("&lt;=", "≤"),
    ("&gt;=", "≥"),
    ("-&gt;", "→"),
    (" - ", " − "),
    (" ...", " …"),
    (" .. ", " … "),
    (" * ", " ∗ "),
)
CODE = re.compile(r"(`[^`]*`)")
GROUP = r"\(((?:[^()]|\([^()]*\))*)\)"
LOWER = re.compile(
    rf"(?<=[\w)\]'~])_{GROUP}|(?<![A-Za-z])([A-Za-z])_([A-Za-z0-9]{{1,4}})(?![A-Za-z0-9_])"
    r"|\b(softmax|sum|prod|max|concat|module)_([A-Za-z0-9]{1,2})(?![A-Za-z0-9_])"
    r"|(?<=[)\]])_([A-Za-z0-9]{1,2})(?![A-Za-z0-9_])"
)
ARTICLE = r"a (?!tanh|softmax|sigmoid|exp|log|cos|max|relu)[a-z]{3}"
"""The word `a` in a line that is an equation for the rest: before a word, and not before a function."""
RAISED = re.compile(rf"\^{GROUP}|\^([A-Za-z0-9]+)")
MATHS = re.compile(r"(?<![\w.])[A-Za-z]'?(?:\(|_|\^|~| = )| = |softmax|tanh|sigmoid")


def lines(paragraph: str) -> Iterator[str]:
    """The lines that the author has ended, and not those that were full."""
    kept = last = ""
    for line in paragraph.splitlines():
        text = line.strip()
        full = len(last) + 1 + len(text.split(" ")[0]) > FULL
        full = full or (last.endswith(",") and not displayed(last))
        ended = not full or displayed(line) or displayed(last) or re.match(r"[a-z_]+: ", text)
        if kept and ended:
            yield kept
            kept = ""
        kept, last = f"{kept} {text}".strip(), line
    yield kept


def displayed(line: str) -> bool:
    """Whether a line is indented as an equation of its own is."""
    return line.startswith("    ") and not line.startswith("     ")


def paragraph(text: str) -> str:
    """A paragraph of a docstring in HTML: lines of prose as prose, lines that are equations as such."""
    told = [part.strip() for line in lines(text) for part in line.split(";   ")]
    return "\n".join(
        f'<p class="equation">{typeset(each, True)}</p>' if is_equation(each) else f"<p>{typeset(each)}</p>"
        for each in told
    )


def is_equation(line: str) -> bool:
    """Whether a line is one rather than prose that mentions some."""
    words = re.findall(r"(?<![\w_^(])[a-z]{3,}(?![\w_(])", re.sub(r"\([^()]*(?:equations?|section)[^()]*\)", "", line))
    return len(MATHS.findall(line)) > 0 and " = " in line and len(words) <= 3 + len(line) // 20


def typeset(text: str, equation: bool = False) -> str:
    """Plain text in HTML: indices lowered, powers raised, Greek letters and signs as themselves; code as code."""
    parts = CODE.split(text)
    return "".join(
        f"<code>{html.escape(part[1:-1])}</code>" if index % 2 else _signs(html.escape(part, quote=False), equation)
        for index, part in enumerate(parts)
    )


def _signs(text: str, equation: bool) -> str:
    for _ in range(2):  # an index may have one
        text = LOWER.sub(_lowered, text)
    text = RAISED.sub(lambda found: f"<sup>{_minus(found[1] or found[2])}</sup>", text)
    text = re.sub(r"([A-Za-z])~", "\\1\u0303", text)
    text = re.sub(r"\b(sum|prod|sqrt)(?=[(<])", lambda found: SIGNS[found[1]], text)
    for plain, sign in OPERATORS:
        text = text.replace(plain, sign)
    return _variables(re.sub(r"(?<=[ (>])-(?=\d)", "−", text), equation)


def _lowered(found: re.Match[str]) -> str:
    inner = next(each for each in (found[1], found[3], found[5], found[6]) if each is not None)
    return f"{found[2] or found[4] or ''}<sub>{_minus(inner)}</sub>"


def _minus(text: str) -> str:
    return re.sub(r" ?- ?", "−", text)


def _variables(text: str, equation: bool) -> str:
    """Single letters are variables, but for the words `a`, `A` and `I` of prose; Greek ones have names."""
    text = re.sub(r"\b(alpha|beta|gamma|theta|lambda|sigma)\b", lambda found: SIGNS[found[1]], text)
    letters = "A-Za-zα-ω" if equation else "B-HJ-Zb-zα-ω"
    text = re.sub(rf"(?<![\w&<.'’-])(?<!</)(?<!&lt;)(?!{ARTICLE})([{letters}]\u0303?)(?![\w>;-])", r"<i>\1</i>", text)
    return text if equation else re.sub(r"(?<![\w&<;.])([aA])(?=<sub>|<sup>)", r"<i>\1</i>", text)

"""Typeset docstrings as HTML: equations in plain text become subscripts, superscripts and Greek
letters.
"""

# ruff: noqa: RUF001
from __future__ import annotations

import html
import re
from collections.abc import Iterator

MIN_FULL_WIDTH = 88
"""A docstring line that would be longer than this with the next word was wrapped rather than ended.
"""
GREEK_LETTERS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "theta": "θ",
    "kappa": "κ",
    "lambda": "λ",
    "mu": "μ",
    "nu": "ν",
    "xi": "ξ",
    "rho": "ρ",
    "sigma": "σ",
    "phi": "φ",
}
GREEK = "|".join(GREEK_LETTERS)
SIGNS = {"sum": "∑", "prod": "∏", "sqrt": "√"}
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
SUBSCRIPT = re.compile(
    rf"(?<=[\w)\]'~])_{GROUP}|(?<![A-Za-z])([A-Za-z]|{GREEK})_"
    r"([A-Za-z0-9]{1,4})(?![A-Za-z0-9_])"
    r"|\b(softmax|sum|prod|max|concat|module|dt)_([A-Za-z0-9]{1,2})(?![A-Za-z0-9_])"
    r"|(?<=[)\]'])_([A-Za-z0-9]{1,2})(?![A-Za-z0-9_])"
)
ARTICLE = r"a (?!tanh|softmax|sigmoid|exp|log|cos|max|relu)[a-z]{3}"
"""The article `a` in an equation: before a word that is not a function."""
SUPERSCRIPT = re.compile(rf"\^{GROUP}|\^([A-Za-z0-9]+)")
MATH = re.compile(r"(?<![\w.])[A-Za-z]'?(?:\(|_|\^|~| = )| = |softmax|tanh|sigmoid")


def join_wrapped_lines(paragraph: str) -> Iterator[str]:
    """Yield the lines of a paragraph, joining those that were only wrapped."""
    joined = previous = ""
    for line in paragraph.splitlines():
        text = line.strip()
        wrapped = len(previous) + 1 + len(text.split(" ")[0]) > MIN_FULL_WIDTH
        wrapped = wrapped or (previous.endswith(",") and not is_displayed(previous))
        ended = (
            not wrapped
            or is_displayed(line)
            or is_displayed(previous)
            or re.match(r"[a-z_]+: ", text)
        )
        if joined and ended:
            yield joined
            joined = ""
        joined, previous = f"{joined} {text}".strip(), line
    yield joined


def is_displayed(line: str) -> bool:
    """True if a line is indented as a displayed equation."""
    return line.startswith("    ") and not line.startswith("     ")


def render_paragraph(text: str) -> str:
    """Render a paragraph of a docstring as HTML, with equations on lines of their own."""
    parts = [part.strip() for line in join_wrapped_lines(text) for part in line.split(";   ")]
    return "\n".join(
        f'<p class="equation">{typeset(part, True)}</p>'
        if is_equation(part)
        else f"<p>{typeset(part)}</p>"
        for part in parts
    )


def is_equation(line: str) -> bool:
    """True if a line is an equation rather than prose that mentions one."""
    words = re.findall(
        r"(?<![\w_^(])[a-z]{3,}(?![\w_(])",
        re.sub(r"\([^()]*(?:equations?|section)[^()]*\)", "", line),
    )
    return len(MATH.findall(line)) > 0 and " = " in line and len(words) <= 3 + len(line) // 20


def typeset(text: str, equation: bool = False) -> str:
    """Return plain text as HTML: subscripts, superscripts, Greek letters, signs, code."""
    parts = CODE.split(text)
    for index, part in enumerate(parts):  # code is at the odd places
        code, prose = html.escape(part[1:-1]), html.escape(part, quote=False)
        parts[index] = f"<code>{code}</code>" if index % 2 else _typeset_math(prose, equation)
    return "".join(parts)


def _typeset_math(text: str, equation: bool) -> str:
    for _ in range(2):  # subscripts may be nested
        text = SUBSCRIPT.sub(_subscript, text)
    text = SUPERSCRIPT.sub(lambda match: f"<sup>{_minus(match[1] or match[2])}</sup>", text)
    text = re.sub(r"([A-Za-z])~", "\\1\u0303", text)
    text = re.sub(r"\b(sum|prod|sqrt)(?=[(<])", lambda match: SIGNS[match[1]], text)
    for plain, sign in OPERATORS:
        text = text.replace(plain, sign)
    return _variables(re.sub(r"(?<=[ (>])-(?=\d)", "−", text), equation)


def _subscript(match: re.Match[str]) -> str:
    inner = next(group for group in (match[1], match[3], match[5], match[6]) if group is not None)
    return f"{match[2] or match[4] or ''}<sub>{_minus(inner)}</sub>"


def _minus(text: str) -> str:
    return re.sub(r" ?- ?", "−", text)


def _variables(text: str, equation: bool) -> str:
    """Set single letters in italics as variables, but for the words `a`, `A` and `I` in prose."""
    text = re.sub(rf"\b({GREEK})\b", lambda match: GREEK_LETTERS[match[1]], text)
    letters = "A-Za-zα-ω" if equation else "B-HJ-Zb-zα-ω"
    text = re.sub(
        rf"(?<![\w&<.'’-])(?<!</)(?<!&lt;)(?!{ARTICLE})([{letters}]\u0303?)(?![\w>;-])",
        r"<i>\1</i>",
        text,
    )
    return text if equation else re.sub(r"(?<![\w&<;.])([aA])(?=<sub>|<sup>)", r"<i>\1</i>", text)

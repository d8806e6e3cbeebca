"""YAML syntax errors: the parser's complaints in plain words, at the right line and column."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from composer.errors import Fault
from composer.recipe.node import Mark, fault_at

UNQUOTED = re.compile(r"\$\{[\w-]*\}?")  # YAML reads `$`, then a mapping, inside [...] and {...}


class SourceLines(NamedTuple):
    """The lines of a text; its first column is `start` characters into them."""

    file: str
    lines: list[str]
    start: int = 0

    def mark(self, begin: Any, end: Any | None = None) -> Mark:
        """Return the location between two marks of the parser, cut at the end of its first line."""
        line = min(begin.line, len(self.lines) - 1)
        text = self.lines[line]
        column = begin.column + self.start
        one_line = end is not None and end.line == begin.line
        length = end.column - begin.column if end is not None and one_line else len(text) - column
        return Mark(self.file, line + 1, column + 1, max(1, length), text)


# what libyaml and PyYAML's own parser say: pattern, message, fix
COMPLAINTS = (
    (r"tab character", "a tab cannot indent", "indent with spaces"),
    (r"mapping values are not allowed", "a `:` cannot stand here",
     "put quotes around a text with `: `, write `{key: value}`, or check the indentation here and in the line before"),
    (r"sequence entries are not allowed", "a list cannot begin here", "begin the list on a line of its own"),
    (r"could not find expected ':'|expected ':'", "this key has no `:`", "write `key: value`"),
    (r"expected '-' indicator", "this line is indented like a list and is no item of it",
     "begin it with `- `, or indent it like the key it belongs to"),
    (r"expected key|expected <block end>", "this does not fit the lines above it",
     "check the indentation; inside [...] and {...} a comma parts the items"),
    (r"document start", "something follows the recipe's end", "check the indentation and the brackets"),
    (r"node content", "a value is missing here", "check the commas and the brackets"),
    (r"cannot start any token", "a plain text cannot begin with this character", "put quotes around the text"),
    (r"escape", "this is no escape of a text in double quotes", "use single quotes, or double the backslash"),
    (r"expected ',' or", "a comma or a closing bracket is missing before this", "check the commas and the brackets"),
    (r"incompatible YAML", "this is written for another version of YAML", "remove the %YAML line"),
)  # fmt: skip


def syntax_fault(error: Any, text: str, lines: SourceLines, begin: Any) -> Fault:
    """Return the fault for a parser error; `begin` is the mark of the innermost open list or mapping, if any."""
    problem = error.problem or error.context or "this is not YAML"
    at = error.problem_mark or error.context_mark
    if at is None:
        return fault_at(Mark(lines.file, 1, 1, 1, lines.lines[0]), "syntax", "", f"this is not YAML: {problem}")
    index = min(at.index, len(text))
    variable = UNQUOTED.match(text, max(0, index - 1))
    mark = lines.mark(at)
    if variable:
        mark = mark._replace(column=mark.column - 1, length=len(variable.group()))
        message = f"`{variable.group()}` cannot stand inside [...] and {{...}}"
        return fault_at(mark, "syntax", "", message, _variable_hint(variable, text))
    if not text[index:].strip(" \t\r\n'\"") and (error.context_mark or begin is not None):
        context = error.context_mark
        if begin is None or (context is not None and text[context.index : context.index + 1].strip()):
            begin = context
        message = f"this `{text[begin.index : begin.index + 1]}` is never closed"
        return fault_at(lines.mark(begin)._replace(length=1), "syntax", "", message, "close it")
    problem = "tab character" if text[index : index + 1] == "\t" else problem
    explained = [(message, hint) for pattern, message, hint in COMPLAINTS if re.search(pattern, problem)]
    message, hint = explained[0] if explained else (f"this is not YAML: {problem}", "")
    return fault_at(mark._replace(length=1), "syntax", "", message, hint)


def _variable_hint(variable: re.Match[str], text: str) -> str:
    name = variable.group().strip("${}") or "name"
    # `{source: ${dir}/train.en}` is a text with a variable in it, and only quotes help
    around = text[max(0, variable.start() - 1) : variable.start()] + text[variable.end() : variable.end() + 1]
    is_alone = not around.strip(" \t\r\n,:[]{}\"'")
    return f"write `${name}`" if is_alone else f'put quotes around the whole text: "...${{{name}}}..."'

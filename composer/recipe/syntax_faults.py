"""Faults of YAML syntax. The parser stops where it is lost, so the line of the mistake itself is
looked for above.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

from composer.errors import Edit, Fault, Mark, fault_at
from composer.formatting import count_noun
from composer.suggest import character_name

_VARIABLE = re.compile(r"\$\{[\w-]*\}?")  # YAML reads `$`, then a mapping, inside [...] and {...}
CLOSING = {"[": "]", "{": "}"}
KEY = re.compile(r" *(?:- +)*(?P<key>[A-Za-z_][\w-]*|\"[\w-]+\"|'[\w-]+')")
SLIPS = (
    (re.compile(r" *(?:- +)*(?P<at>-)(?=[A-Za-z])"), "a space is missing after this `-`", " "),
    (re.compile(rf"{KEY.pattern} *(?P<at>:)(?=[^\s:/])"), "a space is missing after this `:`", " "),
    (re.compile(r" *(?:- +)*(?P<at>[A-Za-z_][\w-]*)(?= +[\[{])"), "this key has no `:`", ":"),
)
"""Mistakes that one line shows: what it looks like, what is wrong at `at`, and what is missing
after that.
"""
NO_COLON = re.compile(r"(?P<before> *(?:- +)*)(?P<at>[A-Za-z_][\w-]*)(?: +[^:]*[^: ])?$")

# what libyaml and PyYAML's own parser say: pattern, message, fix
COMPLAINTS = {
    "tab character": ("a tab cannot indent", "indent with spaces"),
    "mapping values are not allowed": (
        "a `:` is not allowed here",
        (
            "put quotes around a text with `: `, write `{key: value}`, or check the indentation"
            " here and one line above"
        ),
    ),
    "sequence entries are not allowed": (
        "a list cannot begin here",
        "begin the list on a line of its own",
    ),
    "could not find expected ':'|expected ':'": ("this key has no `:`", "write `key: value`"),
    "expected '-' indicator": (
        "this line is indented like a list and is no item of it",
        "begin it with `- `, or indent it like the key it belongs to",
    ),
    "expected key|expected <block end>": (
        "this does not fit the lines above it",
        "check the indentation; inside [...] and {...} a comma parts the items",
    ),
    "document start": (
        "something follows the recipe's end",
        "check the indentation and the brackets",
    ),
    "node content": ("a value is missing here", "check the commas and the brackets"),
    "cannot start any token|alphabetic or numeric": (
        "a plain text cannot begin with this character",
        "put quotes around the text",
    ),
    "comment or line break": (
        "a text after `|` or `>` begins in the next line",
        "put quotes around the text",
    ),
    "escape": (
        "this is no valid escape in double quotes",
        "use single quotes, or double the backslash",
    ),
    "expected ',' or": (
        "a comma or a closing bracket is missing before this",
        "check the commas and the brackets",
    ),
    "incompatible YAML": ("this is written for another version of YAML", "remove the %YAML line"),
}


class SourceLines(NamedTuple):
    """The lines of a text; its first column is `start` characters into them."""

    file: str
    lines: list[str]
    start: int = 0

    def mark(self, begin: Any, end: Any = None) -> Mark:
        """Return the location between two marks of the parser, cut at the end of its first line."""
        line = min(begin.line, len(self.lines) - 1)
        text = self.lines[line]
        column = begin.column + self.start
        length = end.column - begin.column if end and end.line == begin.line else len(text) - column
        return Mark(self.file, line + 1, column + 1, max(1, length), text)

    def after(self, end: Any) -> Mark:
        """Return the location that a mark of the parser has, without a length."""
        line = min(end.line, len(self.lines) - 1)
        return Mark(self.file, line + 1, end.column + self.start + 1, 0, self.lines[line])

    def at(self, line: int, column: int) -> Mark:
        """Return the location of a character of a line; line and column count from 0."""
        return Mark(self.file, line + 1, column + 1, 1, self.lines[line])

    def upwards(self, line: int) -> Iterator[int]:
        """Yield the number of a line and of those above it, without blank lines and comments."""
        return (at for at in range(line, -1, -1) if self.lines[at].strip(" ").partition("#")[0])


def syntax_fault(error: Any, text: str, lines: SourceLines, begin: Any, quote: Any) -> Fault:
    """Return the fault for a parser error.

    `begin` is the mark of the innermost open list or mapping, `quote` those of the last quoted text
    of several lines.
    """
    context = getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    at = getattr(error, "problem_mark", None) or context
    if at is None:
        return fault_at(
            Mark(lines.file, 1, 1, 1, lines.lines[0]), "syntax", "", f"this is not YAML: {problem}"
        )
    index = min(at.index, len(text))
    variable = _VARIABLE.match(text, max(0, index - 1))
    mark = lines.mark(at)
    if variable:
        message = f"`{variable.group()}` is not allowed inside [...] and {{...}}"
        mark = mark._replace(column=mark.column - 1)
        name = variable.group().strip("${}") or "name"
        fix = f"write `${name}`, or put quotes around a text with a variable in it"
        return _fault(mark, message, fix, len(variable.group()))
    is_flow = (
        context is not None
        and text[context.index : context.index + 1] in CLOSING
        and "flow" in error.context
    )
    if text[index : index + 1] == "\t":
        problem = "tab character"
    elif quote is not None and quote[1].line == at.line:
        return _fault(
            lines.mark(quote[0]),
            f"this quote is closed only in line {at.line + 1}",
            "close it in its line",
        )
    elif not lines.start and (slip := _find_slip(lines, mark.line - 1, is_flow)):
        return slip
    elif not text[index:].strip(" \t\r\n'\"") and (context or begin is not None):
        if begin is None or (
            context is not None and text[context.index : context.index + 1].strip()
        ):
            begin = context
        return _fault(
            lines.mark(begin),
            f"this `{text[begin.index : begin.index + 1]}` is never closed",
            "close it",
        )
    elif fault := _colon_fault(text, index, lines, mark, is_flow) or _bracket_fault(
        text[index : index + 1],
        lines,
        mark,
        context if is_flow else _bracket_above_item(begin, text, mark),
    ):
        return fault
    elif not is_flow and (indented := _indentation_fault(lines, mark.line - 1)):
        return indented
    explained = [
        explanation for pattern, explanation in COMPLAINTS.items() if re.search(pattern, problem)
    ]
    message, hint = explained[0] if explained else (f"this is not YAML: {problem}", "")
    return _fault(mark, message, hint)


def _bracket_above_item(begin: Any, text: str, mark: Mark) -> object:
    """Return the mark of the innermost open bracket where a list item, `- ...`, begins a line in
    it; None elsewhere.
    """
    is_item = mark.text.lstrip(" ").startswith("- ") and not mark.text[: mark.column - 1].strip()
    return (
        begin
        if is_item and begin is not None and text[begin.index : begin.index + 1] in CLOSING
        else None
    )


def _fault(mark: Mark, message: str, hint: str, length: int = 1, edit: Edit | None = None) -> Fault:
    return fault_at(mark._replace(length=length), "syntax", "", message, hint, edit)


def _colon_fault(
    text: str, index: int, lines: SourceLines, mark: Mark, is_flow: bool
) -> Fault | None:
    """Return the fault of a colon without a space, `stack:[norm]`, or of a missing one, `{stack
    [norm]}`; else None.
    """
    if re.match(r":[^\s,\]}]", text[index : index + 2]):
        edit = _replacement(mark._replace(length=1), ": ")
        return _fault(mark, "a space is missing after this `:`", "write `: `", edit=edit)
    start, bracket = max(0, index - 200), text[index : index + 1]
    key = re.search(r"(?P<key>[\w-]+|\"[\w-]+\"|'[\w-]+')[\s=;.]*$", text[start:index])
    if key is None or not is_flow or bracket not in CLOSING:
        return None
    before = text[: start + key.start()].split("\n")
    mark = lines.at(len(before) - 1, len(before[-1]) + lines.start)
    fix = f"write `{key['key']}: {bracket}...{CLOSING[bracket]}`, or put quotes around a text"
    return _fault(mark, "this key has no `:`", fix, len(key["key"]))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _find_slip(lines: SourceLines, error: int, is_flow: bool) -> Fault | None:
    """Return the fault of a line that shows a mistake: the line of the error, or those that it
    continues.
    """
    for line in lines.upwards(error):
        text = re.split(r" #|\r", lines.lines[line])[0].rstrip(" ")
        foreign = next((at for at, char in enumerate(text) if _is_foreign(char)), None)
        if foreign is not None:
            return _foreign_fault(lines.at(line, foreign), text[foreign])
        if not is_flow:
            for pattern, message, missing in SLIPS:
                if match := pattern.match(text):
                    return _slip_fault(match, lines, line, message, missing)
            has_deeper = _indentation(lines.lines[error]) > _indentation(lines.lines[line])
            # without a colon an item of a list is a name, unless deeper lines follow it
            if (match := NO_COLON.match(text)) and (has_deeper or "-" not in match["before"]):
                return _slip_fault(match, lines, line, "this key has no `:`", ":")
        if line != error and (is_flow or re.search(":( |$)", text)):
            return None
    return None


def _is_foreign(char: str) -> bool:
    """Return True for a sign or a space that is not ASCII."""
    return char > "~" and unicodedata.category(char)[0] in "PSZC"


def _foreign_fault(mark: Mark, char: str) -> Fault:
    plain = unicodedata.normalize("NFKC", char)
    fix = (
        f"write `{plain}`"
        if plain.isascii()
        else "write it in ASCII, or put quotes around the text"
    )
    edit = _replacement(mark, plain) if plain.isascii() else None
    return _fault(mark, f"{character_name(char)} is no sign of YAML", fix, 1, edit)


def _slip_fault(
    match: re.Match[str], lines: SourceLines, line: int, message: str, missing: str
) -> Fault:
    mark = lines.at(line, match.start("at"))._replace(length=len(match["at"]))
    key = match.groupdict().get("key") or ""
    rest = match.string[match.end("at") :].lstrip()
    fix = f"{key}{match['at']}{missing.rstrip()} {rest}".rstrip()
    edit = _replacement(mark, match["at"] + missing)
    return _fault(mark, message, f"write `{fix}`", mark.length, edit)


def _replacement(mark: Mark, text: str) -> Edit:
    """Return the edit that writes a text in place of what a location has."""
    return Edit(
        mark.file, "", (mark.line, mark.column), (mark.line, mark.column + mark.length), text
    )


def _bracket_fault(character: str, lines: SourceLines, mark: Mark, opened: object) -> Fault | None:
    """Return the fault of a bracket or a comma, inside brackets that `opened` marks or outside of
    any.
    """
    if opened is None:
        message = f"this `{character}` {'parts nothing' if character == ',' else 'closes nothing'}"
        is_extra = character in (",", "]", "}")
        edit = _replacement(mark._replace(length=1), "")
        return _fault(mark, message, "remove it", edit=edit) if is_extra else None
    place = lines.mark(opened)
    bracket = place.text[place.column - 1]
    if character and character in ")]}":
        message = (
            f"this `{character}` does not close the `{bracket}` of line {place.line}, column"
            f" {place.column}"
        )
        edit = _replacement(mark._replace(length=1), CLOSING[bracket])
        return _fault(mark, message, f"write `{CLOSING[bracket]}`", edit=edit)
    if mark.line > place.line and (
        character == "-" or _indentation(mark.text) <= _indentation(place.text)
    ):
        return _fault(
            place, f"this `{bracket}` is never closed", f"close it with `{CLOSING[bracket]}`"
        )
    key = re.search(r"[\"']?[\w-]+[\"']? *$", mark.text[: mark.column - 1])
    if character != ":" or key is None:
        return None
    word, mark = key.group().rstrip(), mark._replace(column=key.start() + 1)
    return _fault(mark, "a comma is missing before this", f"write `, {word}:`", len(word))


def _indentation_fault(lines: SourceLines, error: int) -> Fault | None:
    """Return the fault of the nearest line that is indented by an odd number of spaces, where few
    others are.
    """
    depths = {line: _indentation(lines.lines[line]) for line in lines.upwards(len(lines.lines) - 1)}
    near = [line for line in depths if line <= error][:8]
    odd = [index for index, line in enumerate(near) if depths[line] % 2]
    if not odd or sum(depth % 2 for depth in depths.values()) * 4 > len(depths):
        return None
    line, depth = near[odd[0]], depths[near[odd[0]]]
    others = [depths[other] for other in (*near[odd[0] :: -1], *near[odd[0] :])]
    fitting = next((other for other in others if abs(other - depth) == 1), depth - 1)
    message = (
        f"this line is indented by {count_noun(depth, 'space')}, and lines like it by {fitting}"
    )
    edit = _replacement(lines.at(line, 0)._replace(length=depth), " " * fitting)
    length = len(lines.lines[line].strip())
    return _fault(lines.at(line, depth), message, f"indent it by {fitting}", length, edit)

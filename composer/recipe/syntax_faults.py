"""Faults of YAML syntax. The parser stops where it is lost; the mistake itself is often above."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


class ParserMark(Protocol):
    """A place in a text as the YAML parser gives it; all of its numbers count from 0."""

    index: int
    line: int
    column: int


class SourceLines(NamedTuple):
    """The lines of a text; its first column is `start` characters into them."""

    file: str
    lines: list[str]
    start: int = 0

    def mark(self, begin: ParserMark, end: ParserMark | None = None) -> Mark:
        """Return the location between two marks of the parser, cut at the end of its first line."""
        line = min(begin.line, len(self.lines) - 1)
        text = self.lines[line]
        column = begin.column + self.start
        length = end.column - begin.column if end and end.line == begin.line else len(text) - column
        return Mark(self.file, line + 1, column + 1, max(1, length), text)

    def after(self, end: ParserMark) -> Mark:
        """Return the location that a mark of the parser has, without a length."""
        line = min(end.line, len(self.lines) - 1)
        return Mark(self.file, line + 1, end.column + self.start + 1, 0, self.lines[line])

    def at(self, line: int, column: int) -> Mark:
        """Return the location of a character of a line; line and column count from 0."""
        return Mark(self.file, line + 1, column + 1, 1, self.lines[line])

    def upwards(self, line: int) -> Iterator[int]:
        """Yield the number of a line and of those above it, without blank lines and comments."""
        for number in range(line, -1, -1):
            if self.lines[number].strip(" ").partition("#")[0]:
                yield number


@dataclass(frozen=True)
class Scene:
    """What is known where the parser stops.

    `context` is where the parser says that its construct begins, `opened` the beginning of the
    innermost open list or mapping, and `quote` both ends of the last quoted text of several lines.
    """

    text: str
    lines: SourceLines
    at: ParserMark
    problem: str
    context: ParserMark | None
    is_flow: bool
    opened: ParserMark | None
    quote: tuple[ParserMark, ParserMark] | None

    @property
    def mark(self) -> Mark:
        """Where the parser stops."""
        return self.lines.mark(self.at)

    @property
    def index(self) -> int:
        """The position in the text where the parser stops."""
        return min(self.at.index, len(self.text))

    @property
    def character(self) -> str:
        """The character where the parser stops; "" at the end."""
        return self.text[self.index : self.index + 1]

    @property
    def bracket(self) -> Mark | None:
        """The bracket around this place; None outside of any."""
        if self.is_flow and self.context is not None:
            return self.lines.mark(self.context)
        mark = self.mark
        before = mark.text[: mark.column - 1]
        begins_item = mark.text.lstrip(" ").startswith("- ") and not before.strip()
        if begins_item and self.opened is not None and _at(self.text, self.opened) in CLOSING:
            return self.lines.mark(self.opened)
        return None


def syntax_fault(
    error: Exception,
    text: str,
    lines: SourceLines,
    opened: ParserMark | None,
    quote: tuple[ParserMark, ParserMark] | None,
) -> Fault:
    """Return the fault for a parser error; `opened` and `quote` are as in `Scene`."""
    context = getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    at = getattr(error, "problem_mark", None) or context
    if at is None:
        return _fault(Mark(lines.file, 1, 1, 1, lines.lines[0]), f"this is not YAML: {problem}")
    is_flow = (
        context is not None
        and _at(text, context) in CLOSING
        and "flow" in getattr(error, "context", "")
    )
    scene = Scene(text, lines, at, problem, context, is_flow, opened, quote)
    for rule in RULES:
        if fault := rule(scene):
            return fault
    return _parser_fault(scene.mark, problem)


def _at(text: str, mark: ParserMark) -> str:
    return text[mark.index : mark.index + 1]


def _parser_fault(mark: Mark, problem: str) -> Fault:
    """Return the fault that the parser found, in other words."""
    for pattern, (message, hint) in COMPLAINTS.items():
        if re.search(pattern, problem):
            return _fault(mark, message, hint)
    return _fault(mark, f"this is not YAML: {problem}")


def _variable(scene: Scene) -> Fault | None:
    variable = _VARIABLE.match(scene.text, max(0, scene.index - 1))
    if variable is None:
        return None
    mark = scene.mark
    message = f"`{variable.group()}` is not allowed inside [...] and {{...}}"
    name = variable.group().strip("${}") or "name"
    fix = f"write `${name}`, or put quotes around a text with a variable in it"
    return _fault(mark._replace(column=mark.column - 1), message, fix, len(variable.group()))


def _tab(scene: Scene) -> Fault | None:
    return _parser_fault(scene.mark, "tab character") if scene.character == "\t" else None


def _late_quote(scene: Scene) -> Fault | None:
    """A quote that closes in the line where the parser stops probably lacks its own end above."""
    if scene.quote is None or scene.quote[1].line != scene.at.line:
        return None
    message = f"this quote is closed only in line {scene.at.line + 1}"
    return _fault(scene.lines.mark(scene.quote[0]), message, "close it in its line")


def _unclosed(scene: Scene) -> Fault | None:
    """The text ends within a list, a mapping or a quoted text."""
    context, begin = scene.context, scene.opened
    if begin is None or (context is not None and _at(scene.text, context).strip()):
        begin = context
    if begin is None or scene.text[scene.index :].strip(" \t\r\n'\""):
        return None
    message = f"this `{_at(scene.text, begin)}` is never closed"
    return _fault(scene.lines.mark(begin), message, "close it")


def _fault(
    mark: Mark, message: str, hint: str = "", length: int = 1, edit: Edit | None = None
) -> Fault:
    return fault_at(mark._replace(length=length), "syntax", "", message, hint, edit)


def _colon_without_space(scene: Scene) -> Fault | None:
    """`stack:[norm]`"""
    if not re.match(r":[^\s,\]}]", scene.text[scene.index : scene.index + 2]):
        return None
    mark = scene.mark
    edit = _replacement(mark._replace(length=1), ": ")
    return _fault(mark, "a space is missing after this `:`", "write `: `", edit=edit)


def _missing_colon(scene: Scene) -> Fault | None:
    """`{stack [norm]}`"""
    start, bracket = max(0, scene.index - 200), scene.character
    before = scene.text[start : scene.index]
    key = re.search(r"(?P<key>[\w-]+|\"[\w-]+\"|'[\w-]+')[\s=;.]*$", before)
    if key is None or not scene.is_flow or bracket not in CLOSING:
        return None
    lines = scene.text[: start + key.start()].split("\n")
    mark = scene.lines.at(len(lines) - 1, len(lines[-1]) + scene.lines.start)
    fix = f"write `{key['key']}: {bracket}...{CLOSING[bracket]}`, or put quotes around a text"
    return _fault(mark, "this key has no `:`", fix, len(key["key"]))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _slip(scene: Scene) -> Fault | None:
    """A mistake that one line shows: the line of the error, or one that it continues."""
    lines, error = scene.lines, scene.mark.line - 1
    if lines.start:
        return None
    for line in lines.upwards(error):
        text = re.split(r" #|\r", lines.lines[line])[0].rstrip(" ")
        if fault := _foreign_sign(lines, line, text):
            return fault
        if not scene.is_flow:
            for pattern, message, missing in SLIPS:
                if match := pattern.match(text):
                    return _slip_fault(match, lines, line, message, missing)
            has_deeper = _indentation(lines.lines[error]) > _indentation(lines.lines[line])
            # without a colon an item of a list is a name, unless deeper lines follow it
            if (match := NO_COLON.match(text)) and (has_deeper or "-" not in match["before"]):
                return _slip_fault(match, lines, line, "this key has no `:`", ":")
        if line != error and (scene.is_flow or re.search(":( |$)", text)):
            return None
    return None


def _foreign_sign(lines: SourceLines, line: int, text: str) -> Fault | None:
    for column, char in enumerate(text):
        if _is_foreign(char):
            return _foreign_fault(lines.at(line, column), char)
    return None


def _is_foreign(char: str) -> bool:
    """True for a sign or a space that is not ASCII."""
    return char > "~" and unicodedata.category(char)[0] in "PSZC"


def _foreign_fault(mark: Mark, char: str) -> Fault:
    plain = unicodedata.normalize("NFKC", char)
    message = f"{character_name(char)} is no sign of YAML"
    if not plain.isascii():
        return _fault(mark, message, "write it in ASCII, or put quotes around the text")
    return _fault(mark, message, f"write `{plain}`", edit=_replacement(mark, plain))


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
    """Return the edit that writes a text in place of the marked one."""
    return Edit(
        mark.file, "", (mark.line, mark.column), (mark.line, mark.column + mark.length), text
    )


def _extra_sign(scene: Scene) -> Fault | None:
    """A comma or a closing bracket outside of brackets."""
    character = scene.character
    if scene.bracket is not None or character not in (",", "]", "}"):
        return None
    message = f"this `{character}` {'parts nothing' if character == ',' else 'closes nothing'}"
    edit = _replacement(scene.mark._replace(length=1), "")
    return _fault(scene.mark, message, "remove it", edit=edit)


def _within_brackets(scene: Scene) -> Fault | None:
    """A wrong or missing closing bracket, or a missing comma."""
    mark, place, character = scene.mark, scene.bracket, scene.character
    if place is None:
        return None
    bracket = place.text[place.column - 1]
    if character in (")", "]", "}"):
        message = (
            f"this `{character}` does not close the `{bracket}` of line {place.line}, column"
            f" {place.column}"
        )
        edit = _replacement(mark._replace(length=1), CLOSING[bracket])
        return _fault(mark, message, f"write `{CLOSING[bracket]}`", edit=edit)
    is_outside = character == "-" or _indentation(mark.text) <= _indentation(place.text)
    if mark.line > place.line and is_outside:
        message = f"this `{bracket}` is never closed"
        return _fault(place, message, f"close it with `{CLOSING[bracket]}`")
    key = re.search(r"[\"']?[\w-]+[\"']? *$", mark.text[: mark.column - 1])
    if character != ":" or key is None:
        return None
    word, mark = key.group().rstrip(), mark._replace(column=key.start() + 1)
    return _fault(mark, "a comma is missing before this", f"write `, {word}:`", len(word))


def _odd_indentation(scene: Scene) -> Fault | None:
    """The nearest line that is indented by an odd number of spaces, where few others are."""
    if scene.is_flow:
        return None
    lines, error = scene.lines, scene.mark.line - 1
    depths = {line: _indentation(lines.lines[line]) for line in lines.upwards(len(lines.lines) - 1)}
    near = [line for line in depths if line <= error][:8]
    odd = [index for index, line in enumerate(near) if depths[line] % 2]
    if not odd or sum(depth % 2 for depth in depths.values()) * 4 > len(depths):
        return None
    line, depth = near[odd[0]], depths[near[odd[0]]]
    neighbours = [depths[near_line] for near_line in (*near[odd[0] :: -1], *near[odd[0] :])]
    fitting = next((other for other in neighbours if abs(other - depth) == 1), depth - 1)
    message = (
        f"this line is indented by {count_noun(depth, 'space')}, and lines like it by {fitting}"
    )
    edit = _replacement(lines.at(line, 0)._replace(length=depth), " " * fitting)
    length = len(lines.lines[line].strip())
    return _fault(lines.at(line, depth), message, f"indent it by {fitting}", length, edit)


RULES: tuple[Callable[[Scene], Fault | None], ...] = (
    _variable,
    _tab,
    _late_quote,
    _slip,
    _unclosed,
    _colon_without_space,
    _missing_colon,
    _extra_sign,
    _within_brackets,
    _odd_indentation,
)
"""In this order: the first that knows the mistake names it."""

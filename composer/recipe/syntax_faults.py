"""Faults of YAML syntax. The parser stops where it is lost, so the line of the mistake itself is looked for above."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from composer.errors import Fault, Mark, character_name, fault_at
from composer.formatting import count_noun

_VARIABLE = re.compile(r"\$\{[\w-]*\}?")  # YAML reads `$`, then a mapping, inside [...] and {...}
_INDEXED_PATH = re.compile(r"[A-Za-z_][\w.-]*(\[[0-9]+\][\w.-]*)+")
CLOSING = {"[": "]", "{": "}"}
COLONS, DASHES = "\uff1a\ufe55\u2236\ua789", "\u2013\u2014\u2212\uff0d\u2010\u2011\u2022\u00b7\u2219\u25e6"
LOOKALIKES = {
    **dict.fromkeys(COLONS, ":"),
    **dict.fromkeys(DASHES, "-"),
    **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb\uff02", '"'),
    **dict.fromkeys("\u2018\u2019\u201a\u2039\u203a\uff07", "'"),
    **dict(zip("\uff0c\uff5b\uff5d\uff3b\uff3d\uff03", ",{}[]#", strict=True)),
}
"""Characters that are taken for those of YAML."""
ITEM = r" *(?:- +)*"
KEY = rf"{ITEM}(?P<key>[\"']?[A-Za-z_][\w-]*[\"']?)"
BLANKS = "[\u00a0\u2000-\u200b\u202f\u205f\u3000]+"

NO_ITEM, NO_SPACE = "{at} begins no item of a list", "a space is missing after this `-`"
SLIPS = (
    (r"^ *(?P<at>```.*|>>>|<{7}.*|={7}.*|>{7}.*|\+)", "this is no part of a recipe", "remove it"),
    (r"^ *(?P<at>//|/\*|--+(?= ))", "this begins no comment", "begin a comment with `#`"),
    (rf"^{ITEM}-?(?P<at>{BLANKS})", "{at} is not a space", "write plain spaces"),
    (rf"^{KEY} *:(?P<at>{BLANKS})", "{at} is not a space", "write plain spaces"),
    (rf"^{KEY} *(?P<at>[{COLONS}]) *(?P<value>.*)", "{at} is not a colon", "write `{key}: {value}`"),
    (rf"^ *(?P<at>[{DASHES}*]) ?(?P<value>.*)", NO_ITEM, "write `- {value}`"),
    (rf"^{ITEM}(?P<at>-)(?P<value>[A-Za-z].*)", NO_SPACE, "write `- {value}`"),
    (rf"^{KEY} *(?P<at>:)(?P<value>[^\s:/].*)", "a space is missing after this `:`", "write `{key}: {value}`"),
    (rf"^{ITEM}(?P<at>[A-Za-z_][\w-]*) +(?P<value>[\[{{].*)", "this key has no `:`", "write `{at}: {value}`"),
    (
        rf"^{KEY} *: *(?P<at>\()(?P<value>.*:.*)\)",
        "a list is in [...], a mapping in {{...}}",
        "write `{key}: {{{value}}}`",
    ),
    (rf"^{KEY} *(?P<at>=) *(?P<value>.*)", "a key and its value are parted by `: `", "write `{key}: {value}`"),
)
"""Mistakes that one line shows: what it looks like, what is wrong at `at`, the fix; in brackets only the first two."""
LONE_ITEMS = (
    (rf"^ *(?P<at>[{DASHES}])\s(?P<value>.*)", NO_ITEM),
    (r"^ *(?P<at>-)(?P<value>[A-Za-z][^:]*)$", NO_SPACE),
)
"""An item of a list that YAML reads as a text, where no other line shows it to be a mistake."""
_NO_COLON = rf"^(?P<before>{ITEM})(?P<at>[A-Za-z_][\w-]*)(?: +(?P<value>[^:]*[^: ]))?$"

# what libyaml and PyYAML's own parser say: pattern, message, fix
COMPLAINTS = {
    "tab character": ("a tab cannot indent", "indent with spaces"),
    "mapping values are not allowed": (
        "a `:` is not allowed here",
        "put quotes around a text with `: `, write `{key: value}`, or check the indentation here and one line above",
    ),
    "sequence entries are not allowed": ("a list cannot begin here", "begin the list on a line of its own"),
    "could not find expected ':'|expected ':'": ("this key has no `:`", "write `key: value`"),
    "expected '-' indicator": (
        "this line is indented like a list and is no item of it",
        "begin it with `- `, or indent it like the key it belongs to",
    ),
    "expected key|expected <block end>": (
        "this does not fit the lines above it",
        "check the indentation; inside [...] and {...} a comma parts the items",
    ),
    "document start": ("something follows the recipe's end", "check the indentation and the brackets"),
    "node content": ("a value is missing here", "check the commas and the brackets"),
    "cannot start any token|alphabetic or numeric": (
        "a plain text cannot begin with this character",
        "put quotes around the text",
    ),
    "comment or line break": ("a text after `|` or `>` begins in the next line", "put quotes around the text"),
    "escape": ("this is no valid escape in double quotes", "use single quotes, or double the backslash"),
    "expected ',' or": ("a comma or a closing bracket is missing before this", "check the commas and the brackets"),
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

    def at(self, line: int, column: int) -> Mark:
        """Return the location of a character of a line; line and column count from 0."""
        return Mark(self.file, line + 1, column + 1, 1, self.lines[line])

    def upwards(self, line: int) -> Iterator[int]:
        """Yield the number of a line and of those above it, without blank lines and comments."""
        return (at for at in range(line, -1, -1) if self.lines[at].strip(" ").partition("#")[0])


def syntax_fault(error: Any, text: str, lines: SourceLines, begin: Any, quote: Any) -> Fault:
    """Return the fault for a parser error.

    `begin` is the mark of the innermost open list or mapping, `quote` those of the last quoted text of several lines.
    """
    context = getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    at = getattr(error, "problem_mark", None) or context
    if at is None:
        return fault_at(Mark(lines.file, 1, 1, 1, lines.lines[0]), "syntax", "", f"this is not YAML: {problem}")
    index = min(at.index, len(text))
    variable = _VARIABLE.match(text, max(0, index - 1))
    mark = lines.mark(at)
    if variable:
        message = f"`{variable.group()}` is not allowed inside [...] and {{...}}"
        mark = mark._replace(column=mark.column - 1)
        return _fault(mark, message, _variable_hint(variable, text), len(variable.group()))
    is_flow = context is not None and text[context.index : context.index + 1] in CLOSING and "flow" in error.context
    if text[index : index + 1] == "\t":
        problem = "tab character"
    elif quote is not None and quote[1].line == at.line:
        return _fault(lines.mark(quote[0]), f"this quote is closed only in line {at.line + 1}", "close it in its line")
    elif not lines.start and (slip := _find_slip(lines, mark.line - 1, is_flow)):
        return slip
    elif not text[index:].strip(" \t\r\n'\"") and (context or begin is not None):
        if begin is None or (context is not None and text[context.index : context.index + 1].strip()):
            begin = context
        return _fault(lines.mark(begin), f"this `{text[begin.index : begin.index + 1]}` is never closed", "close it")
    elif fault := _colon_fault(text, index, lines, mark, is_flow) or _bracket_fault(
        text[index : index + 1], lines, mark, context if is_flow else _bracket_above_item(begin, text, mark)
    ):
        return fault
    elif not is_flow and (indented := _indentation_fault(lines, mark.line - 1)):
        return indented
    explained = [explanation for pattern, explanation in COMPLAINTS.items() if re.search(pattern, problem)]
    message, hint = explained[0] if explained else (f"this is not YAML: {problem}", "")
    return _fault(mark, message, hint)


def _bracket_above_item(begin: Any, text: str, mark: Mark) -> Any:
    """Return the mark of the innermost open bracket where a list item, `- ...`, begins a line in it; None elsewhere."""
    is_item = mark.text.lstrip(" ").startswith("- ") and not mark.text[: mark.column - 1].strip()
    return begin if is_item and begin is not None and text[begin.index : begin.index + 1] in CLOSING else None


def _fault(mark: Mark, message: str, hint: str, length: int = 1) -> Fault:
    return fault_at(mark._replace(length=length), "syntax", "", message, hint)


def _colon_fault(text: str, index: int, lines: SourceLines, mark: Mark, is_flow: bool) -> Fault | None:
    """Return the fault of a colon without a space, `stack:[norm]`, or of a missing one, `{stack [norm]}`; else None."""
    if re.match(r":[^\s,\]}]", text[index : index + 2]):
        return _fault(mark, "a space is missing after this `:`", "write `: `")
    start, bracket = max(0, index - 200), text[index : index + 1]
    key = re.search(r"(?P<key>[\w-]+|\"[\w-]+\"|'[\w-]+')[\s=;.]*$", text[start:index])
    if key is None or not is_flow or bracket not in CLOSING:
        return None
    word = re.split(r"[^\w.-]", text[start:index])[-1]
    path = _INDEXED_PATH.match(text, index - len(word))
    begin = path.start() if path else start + key.start()
    before = text[:begin].split("\n")
    mark = lines.at(len(before) - 1, len(before[-1]) + lines.start)
    if path:
        message, word = "inside [...] and {...} a text with brackets needs quotes", path.group()
        return _fault(mark, message, f'write `"{word}"`', len(word))
    return _fault(mark, "this key has no `:`", f"write `{key['key']}: {bracket}...{CLOSING[bracket]}`", len(key["key"]))


def _variable_hint(variable: re.Match[str], text: str) -> str:
    name = variable.group().strip("${}") or "name"
    # `{source: ${dir}/train.en}` is a text with a variable in it, and only quotes help
    around = text[max(0, variable.start() - 1) : variable.start()] + text[variable.end() : variable.end() + 1]
    is_alone = not around.strip(" \t\r\n,:[]{}\"'")
    return f"write `${name}`" if is_alone else f'put quotes around the whole text: "...${{{name}}}..."'


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _find_slip(lines: SourceLines, error: int, is_flow: bool) -> Fault | None:
    """Return the fault of a line that shows a mistake: the line of the error, or those that it continues."""
    for line in lines.upwards(error):
        text = re.split(r" #|\r", lines.lines[line])[0].rstrip(" ")
        for pattern, message, fix in SLIPS[:2] if is_flow else SLIPS:
            if match := re.match(pattern, text):
                return _slip_fault(match, lines, line, message, fix)
        has_deeper = _indentation(lines.lines[error]) > _indentation(lines.lines[line])
        # without a colon an item of a list is a name, unless deeper lines follow it
        if not is_flow and (match := re.match(_NO_COLON, text)) and (has_deeper or "-" not in match["before"]):
            return _slip_fault(match, lines, line, "this key has no `:`", "write `{at}: {value}`")
        if line == error and (match := re.search(f"(?P<at>[{''.join(LOOKALIKES)}])", text)):
            message, fix = "{at} is not the `{meant}` of YAML", "write `{meant}`, or quotes around the text"
            return _slip_fault(match, lines, line, message, fix)
        if line != error and (is_flow or re.search(":( |$)", text)):
            return None
    return None


def item_fault(lines: SourceLines, mark: Mark) -> Fault | None:
    """Return the fault of a text that is its line's first and should have been an item of a list: `-x`, `– x`."""
    line = lines.lines[mark.line - 1].rstrip()
    for pattern, message in LONE_ITEMS:
        if (match := re.match(pattern, line)) and match.end("at") == mark.column:
            return _slip_fault(match, lines, mark.line - 1, message, "write `- {value}`")
    return None


def _slip_fault(match: re.Match[str], lines: SourceLines, line: int, message: str, fix: str) -> Fault:
    groups = {key: value or "" for key, value in match.groupdict().items()}
    groups["meant"] = LOOKALIKES.get(match["at"], "")
    message = message.format_map(groups | {"at": character_name(match["at"][0])})
    fix = fix.format_map(groups).replace(": `", ":`")
    return _fault(lines.at(line, match.start("at")), message, fix, len(match["at"]))


def _bracket_fault(character: str, lines: SourceLines, mark: Mark, opened: Any) -> Fault | None:
    """Return the fault of a bracket or a comma, inside brackets that `opened` marks or outside of any."""
    if opened is None:
        message = f"this `{character}` {'parts nothing' if character == ',' else 'closes nothing'}"
        is_extra = character in (",", "]", "}")
        return _fault(mark, message, "remove it") if is_extra else None
    place = lines.mark(opened)
    bracket = place.text[place.column - 1]
    if character and character in ")]}":
        message = f"this `{character}` does not close the `{bracket}` of line {place.line}, column {place.column}"
        return _fault(mark, message, f"write `{CLOSING[bracket]}`")
    if mark.line > place.line and (character == "-" or _indentation(mark.text) <= _indentation(place.text)):
        return _fault(place, f"this `{bracket}` is never closed", f"close it with `{CLOSING[bracket]}`")
    key = re.search(r"[\"']?[\w-]+[\"']? *$", mark.text[: mark.column - 1])
    if character != ":" or key is None:
        return None
    word, mark = key.group().rstrip(), mark._replace(column=key.start() + 1)
    return _fault(mark, "a comma is missing before this", f"write `, {word}:`", len(word))


def _indentation_fault(lines: SourceLines, error: int) -> Fault | None:
    """Return the fault of the nearest line that is indented by an odd number of spaces, where few others are."""
    depths = {line: _indentation(lines.lines[line]) for line in lines.upwards(len(lines.lines) - 1)}
    near = [line for line in depths if line <= error][:8]
    odd = [index for index, line in enumerate(near) if depths[line] % 2]
    if not odd or sum(depth % 2 for depth in depths.values()) * 4 > len(depths):
        return None
    line, depth = near[odd[0]], depths[near[odd[0]]]
    others = [depths[other] for other in (*near[odd[0] :: -1], *near[odd[0] :])]
    fitting = next((other for other in others if abs(other - depth) == 1), depth - 1)
    message = f"this line is indented by {count_noun(depth, 'space')}, and lines like it by {fitting}"
    return _fault(lines.at(line, depth), message, f"indent it by {fitting}", len(lines.lines[line].strip()))

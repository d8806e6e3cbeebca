"""YAML reader: text to plain data in which every key and value has its line and column.

The only door to PyYAML.

It reads the parser's events with a stack of its own: nothing recurses, nothing is constructed from
a tag, and size, depth and number of values are bounded. Scalars follow YAML 1.2's core schema:
`1e-3` is a number, `no` is text, `010` is ten. All faults of a text are reported together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml

from composer.atomic_io import open_regular
from composer.errors import Edit, Fault, Mark, RecipeError, error_at, fault_at
from composer.recipe.syntax_faults import SourceLines, syntax_fault
from composer.suggest import suggest_file

COMMAND_LINE = "<command line>"
MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_VALUES = 50_000
MAX_NUMBER = 40  # characters of a number
MAX_SYNTAX_FAULTS = 100
_SETTING = re.compile(r"(vars|data|model|training|trainer|decoding|evaluation|logging)\.[\w.]+$")
NO_ALIASES = (
    "define a value once under `vars` and write `$name`; define a stack once under `model.stacks`,"
    " and `use` it"
)

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BREAK = re.compile(r"\r\n|\r|\n")
# what YAML does not print, and the line breaks that only YAML knows: they would shift every line
# number after them
_REFUSED = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_ESCAPED = re.compile("[\0\ud800-\udfff]")  # no file and no path can hold them
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NUMBERS: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"[-+]?[0-9]+"), int),
    (_FLOAT, float),
    (re.compile(r"0o[0-7]+"), lambda text: int(text[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    (
        re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        lambda text: float(text.replace(".", "", 1)),
    ),
)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True)
class Node:
    """A value with its source location.

    `value` is a scalar, a list of nodes or a dictionary of nodes.

    `key` is the location of the key that leads to it, `text` a scalar as it was typed, `quoted`
    True if in quotes; `replaced` is the value of a base that it replaces whole; `end` is the
    location after the value, if it was read.
    """

    value: Any
    mark: Mark
    key: Mark | None = None
    text: str = ""
    quoted: bool = False
    replaced: Node | None = None
    end: Mark | None = None

    @property
    def place(self) -> Mark:
        """The location to show: that of its key, or its own if it has none."""
        return self.key or self.mark

    @property
    def value_mark(self) -> Mark:
        """The location of its value; that of its key if nothing is written."""
        return self.place if self.value is None and not self.text else self.mark


def to_data(node: Node) -> Any:
    """Return the data of a node without locations."""
    if isinstance(node.value, dict):
        return {key: to_data(value) for key, value in node.value.items()}
    if isinstance(node.value, list):
        return [to_data(value) for value in node.value]
    return node.value


def items_of(data: object) -> Iterable[tuple[Any, Any]]:
    """Return the keys and values of a mapping, the indices and items of a list, or nothing."""
    if isinstance(data, dict):
        return data.items()
    return enumerate(data) if isinstance(data, list) else ()


def strings_in(data: object) -> Iterator[str]:
    """Yield every string that is a value somewhere in plain data."""
    if isinstance(data, str):
        yield data
    for _, value in items_of(data):
        yield from strings_in(value)


def reachable(
    starts: list[Any], named: Mapping[str, Any], names_in: Callable[[Any], Iterable[str]]
) -> set[str]:
    """Return the names that some data use, directly or through what other names stand for."""
    todo, used = list(starts), set[str]()
    while todo:
        new = set(names_in(todo.pop())) & named.keys() - used
        used |= new
        todo += [named[name] for name in new]
    return used


def nesting_depth(node: Node) -> int:
    """Return the depth of lists and mappings; 0 for a scalar."""
    if not isinstance(node.value, (dict, list)):
        return 0
    return 1 + max((nesting_depth(child) for _, child in items_of(node.value)), default=0)


def read(path: Path, shown: str, language: Literal["recipe", "sweep"] = "recipe") -> Node:
    """Return the mapping in a file; `shown` is the file's name in faults. Raise RecipeError."""
    try:
        if path.is_dir():
            raise _file_error(
                shown, "file", "this is a folder", f"name a {language}: a text file in YAML"
            )
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
        message, fix = f"this file cannot be read: {reason.lower()}", "check the path"
        if _SETTING.match(shown):
            fix = f"write `{shown}=VALUE`, if it is a setting"
        elif isinstance(error, FileNotFoundError) and (
            close := suggest_file(path, Path(), (".yaml", ".yml"))
        ):
            message, fix = f"{message}; did you mean `{close}`?", f"write `{close}`"
        raise _file_error(shown, "file", message, fix) from None
    if len(data) > MAX_BYTES:
        raise _file_error(
            shown, "size", "the file is larger than 1 MiB", "a recipe is a few kilobytes of text"
        )
    return read_bytes(data, shown, language)


def read_bytes(data: bytes, shown: str, language: str = "recipe") -> Node:
    """Return the mapping in a file's bytes. Raise RecipeError."""
    if encoding := _wide_encoding(data[:4]):
        raise _file_error(shown, "encoding", f"this text is {encoding}", "save the file as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # the decoder counts from after the byte order mark, if there is one
        mark = _end_mark(error.object[: error.start].decode("utf-8"), shown)
        message = f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise error_at(mark, "encoding", "", message, "save the file as UTF-8") from None
    if bad := _REFUSED.search(text):
        raise _bad_character(
            _end_mark(text[: bad.start()], shown), bad.group(), "remove it; a recipe is text"
        )
    return parse(text, shown, language)


def _wide_encoding(start: bytes) -> str:
    """Return UTF-32 or UTF-16 if the first four bytes of a text are such; else ""."""
    if start in (b"\xff\xfe\0\0", b"\0\0\xfe\xff") or start.count(0) == 3:
        return "UTF-32"
    is_marked = start[:2] in (b"\xff\xfe", b"\xfe\xff")
    zeros = [byte == 0 for byte in start]
    is_wide = is_marked or zeros in ([True, False] * 2, [False, True] * 2)
    return "UTF-16" if is_wide else ""


def _file_error(shown: str, code: str, message: str, hint: str) -> RecipeError:
    return RecipeError([Fault(shown, 1, 1, code, "", message, hint)])


def _end_mark(text: str, shown: str) -> Mark:
    *before, line = _BREAK.split(text)
    return Mark(shown, len(before) + 1, len(line) + 1, 1, line)


def _bad_character(mark: Mark, character: str, hint: str) -> RecipeError:
    message = f"the character U+{ord(character):04X} is not allowed in a recipe"
    return error_at(mark, "encoding", "", message, hint)


# ------------------------------------------------------------------------------------------- text


def parse(text: str, file: str, language: str = "recipe") -> Node:
    """Return the mapping in a YAML text, which is a recipe or a sweep.

    Raise RecipeError with all its faults.
    """
    root = _parse(text, SourceLines(file, _BREAK.split(text)))
    if root is None:
        raise _file_error(
            file, "empty", "there is nothing in this file", f"begin with `{language}: 1`"
        )
    if not isinstance(root.value, dict):
        kind = "list" if isinstance(root.value, list) else "single value"
        message = f"a {language} is a mapping of keys, and this is a {kind}"
        raise error_at(root.mark, "type", "", message, f"begin with `{language}: 1`")
    return root


def parse_value(text: str, start: int) -> Node:
    """Return the YAML value that begins at `start` of an override from the command line.

    Raise RecipeError.
    """
    text = _BREAK.sub(" ", text)
    if bad := _REFUSED.search(text):
        raise _bad_character(
            Mark(COMMAND_LINE, 1, bad.start() + 1, 1, text), bad.group(), "remove it"
        )
    root = _parse(text[start:], SourceLines(COMMAND_LINE, [text], start))
    if root is None:
        mark = Mark(COMMAND_LINE, 1, start + 1, 1, text)
        raise error_at(
            mark, "override", "", "there is no value here", "write `null` to remove the key"
        )
    return root


def _parse(text: str, lines: SourceLines) -> Node | None:
    builder = _Builder(lines)
    try:
        for event in yaml.parse(text, Loader=_PARSER):
            builder.take(event)
    except yaml.YAMLError as error:
        begin = builder.open[-1].begin if builder.open else None
        builder.faults.append(syntax_fault(error, text, lines, begin, builder.long_quote))
    if builder.faults:
        raise RecipeError(builder.faults)
    return builder.root


@dataclass
class _Open:
    """A list or mapping whose end has not been read yet.

    `key` is the name and the place of the key whose value comes next; the value of a key that
    cannot be used, whose name is None, is read and dropped. `is_flow` says that it is in brackets,
    `end` where its last item ends.
    """

    value: list[Node] | dict[str, Node]
    begin: Any
    is_flow: bool
    end: Mark | None = None
    key: tuple[str | None, Mark] | None = None


@dataclass
class _Builder:
    """Builds nodes from the parser's events, on a stack of its own."""

    lines: SourceLines
    faults: list[Fault] = field(default_factory=list)
    open: list[_Open] = field(default_factory=list)
    root: Node | None = None
    num_documents: int = 0
    num_values: int = 0
    long_quote: tuple[Any, Any] | None = None

    def take(self, event: Any) -> None:
        """Add one event of the parser."""
        mark = self.lines.mark(event.start_mark, event.end_mark)
        if isinstance(event, yaml.DocumentStartEvent):
            self.num_documents += 1
            if self.num_documents > 1:
                self._stop(
                    mark, "syntax", "a second document begins here", "one file holds one recipe"
                )
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            closed = self.open.pop()
            mark = self.lines.mark(closed.begin, event.end_mark)
            # the parser ends a list or a mapping in lines where the next token begins, after
            # comments
            assert event.end_mark is not None
            end = self.lines.after(event.end_mark) if closed.is_flow else closed.end
            self._add(Node(closed.value, mark, end=end))
        elif isinstance(event, yaml.AliasEvent):
            self._fault(
                mark, "alias", f"`*{event.anchor}` is an alias; a recipe has none", NO_ALIASES
            )
            self._add(Node(None, mark))
        elif isinstance(event, (yaml.ScalarEvent, yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._refuse_anchor_and_tag(event, mark)
            self.num_values += 1
            if self.num_values > MAX_VALUES:
                hint = "write a stack once, in a `repeat` or under `model.stacks`"
                self._stop(mark, "size", f"there are more than {MAX_VALUES} values here", hint)
            self._scalar(event, mark) if isinstance(event, yaml.ScalarEvent) else self._begin(event)

    def _fault(
        self, mark: Mark, code: str, message: str, hint: str, edit: Edit | None = None
    ) -> None:
        self.faults.append(fault_at(mark, code, "", message, hint, edit))
        if len(self.faults) == MAX_SYNTAX_FAULTS:
            message = f"after {MAX_SYNTAX_FAULTS} faults the rest is not read"
            self._stop(
                mark, "size", message, "fix the first ones; they may be the cause of the others"
            )

    def _stop(self, mark: Mark, code: str, message: str, hint: str) -> NoReturn:
        """Raise RecipeError with the faults so far and one that ends the reading."""
        raise RecipeError([*self.faults, fault_at(mark, code, "", message, hint)])

    def _refuse_anchor_and_tag(self, event: Any, mark: Mark) -> None:
        if event.anchor is not None:
            message = f"`&{event.anchor}` is an anchor; a recipe has none"
            self._fault(mark._replace(length=len(event.anchor) + 1), "alias", message, NO_ALIASES)
        if event.tag is not None:
            tag = re.sub("^tag:yaml.org,2002:", "!!", event.tag)
            message = f"`{tag}` is a tag; a recipe is plain data"
            hint = "remove the tag; put quotes around what shall be text"
            self._fault(mark._replace(length=len(tag)), "tag", message, hint)

    def _begin(self, event: Any) -> None:
        if len(self.open) == MAX_DEPTH:
            mark = self.lines.mark(event.start_mark)._replace(length=1)
            message = f"this is nested deeper than {MAX_DEPTH} levels"
            self._stop(
                mark, "depth", message, "give stacks names under `model.stacks`, and `use` them"
            )
        value: dict[str, Node] | list[Node] = (
            {} if isinstance(event, yaml.MappingStartEvent) else []
        )
        self.open.append(_Open(value, event.start_mark, event.flow_style))

    def _scalar(self, event: Any, mark: Mark) -> None:
        value, is_plain = event.value, event.implicit[0]
        if event.style in ("'", '"') and event.start_mark.line < event.end_mark.line:
            self.long_quote = event.start_mark, event.end_mark
        if is_plain:
            try:
                value = parse_scalar(event.value)
            except ValueError:
                hint = f"a number has at most {MAX_NUMBER} characters; put quotes around text"
                self._fault(mark, "type", f"a number of {len(value)} characters is too long", hint)
        elif (bad := _ESCAPED.search(value)) is not None:
            message = f"the character U+{ord(bad.group()):04X} is not allowed in a text"
            self._fault(mark, "encoding", message, "remove its escape")
        end = self.lines.after(event.end_mark)
        self._add(Node(value, mark, text=event.value, quoted=not is_plain, end=end))

    def _add(self, node: Node) -> None:
        if not self.open:
            self.root = node
            return
        parent = self.open[-1]
        parent.end = node.end
        if isinstance(parent.value, list):
            parent.value.append(node)
        elif parent.key is None:
            parent.key = self._key(parent.value, node)
        else:
            (name, mark), parent.key = parent.key, None
            if name is not None:
                parent.value[name] = replace(node, key=mark)

    def _key(self, siblings: dict[str, Node], node: Node) -> tuple[str | None, Mark]:
        mark = node.mark
        if isinstance(node.value, (dict, list)):
            message = "a key is a word, not a list or a mapping"
            hint = "put quotes around it if it is text"
            self._fault(mark._replace(length=1), "syntax", message, hint)
        elif node.text == "<<" and not node.quoted:
            hint = "use `extends`, or name a stack under `model.stacks`"
            self._fault(mark, "merge", "`<<` is a merge key; a recipe has none", hint)
        elif not isinstance(node.value, str) or not node.value:
            text = f"`{node.text}`" if node.text else "nothing"
            hint = f'write `"{node.text}"`' if node.text else "write a name before the colon"
            if isinstance(node.value, int) and mark.text[: mark.column - 1].endswith(","):
                hint = "write a decimal point in place of the comma before it"
            self._fault(mark, "type", f"a key is text, and this is {text}", hint)
        elif node.value in siblings:
            line = siblings[node.value].place.line
            message = f"`{node.value}` is a duplicate key; the first is in line {line}"
            self._fault(mark, "duplicate", message, "keep one of the two")
        else:
            return node.value, mark
        return None, mark


def parse_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar in YAML 1.2's core schema.

    Raise ValueError for an endless number.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    for pattern, convert in _NUMBERS:
        if pattern.fullmatch(text):
            if len(text) > MAX_NUMBER:
                raise ValueError(text)
            return convert(text)
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes texts that PyYAML (YAML 1.1) or this reader (YAML 1.2) would read otherwise."""

    def ignore_aliases(self, data: object) -> bool:
        """Write everything out: a recipe has no aliases."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    try:
        needs_quotes = not isinstance(parse_scalar(text), str) or not text.isprintable()
    except ValueError:
        needs_quotes = True
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if needs_quotes else None
    )


def _represent_float(dumper: yaml.SafeDumper, number: float) -> yaml.ScalarNode:
    if not math.isfinite(number):
        return dumper.represent_float(number)
    return dumper.represent_scalar("tag:yaml.org,2002:float", repr(number))


# without it, PyYAML puts a tag before 1e-05
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), list("-+.0123456789")
)
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)


def dump(data: object) -> str:
    """Return plain data as YAML that reads back as the same data."""
    return yaml.dump(
        data,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=110,
        default_flow_style=None,
    )


def dump_on_line(data: object) -> str:
    """Return plain data as YAML on one line, which reads back the same in every place."""
    text = yaml.dump(
        [data],
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=math.inf,
        default_flow_style=True,
    )
    return text.removesuffix("\n")[1:-1]

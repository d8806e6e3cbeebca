"""YAML text to plain data in which every key and value knows its line and column. The only door to PyYAML.

Reading goes over the parser's events with a stack of its own: nothing recurses, nothing is constructed from a tag, and
size, depth and number of values are bounded. Scalars follow YAML 1.2's core schema: `1e-3` is a number, `no` is text,
`010` is ten. All faults of a text are told together.
"""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from composer.errors import Fault, RecipeError
from composer.recipe.node import COMMAND_LINE, Mark, Node, fault_at
from composer.recipe.yaml_errors import SourceLines, syntax_fault

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_VALUES = 50_000
MAX_NUMBER = 40  # characters of a number
MAX_FAULTS = 100
ONCE = "say a value once under `vars` and write `$name`; say a stack once under `model.stacks`, and `use` it"

_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BREAK = re.compile(r"\r\n|\r|\n")
# what YAML does not print, and the line breaks that only YAML knows: they would shift every line number after them
_REFUSED = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_ESCAPED = re.compile("[\0\ud800-\udfff]")  # no file and no path can hold them
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


# ------------------------------------------------------------------------------------------- files


def read(path: Path, shown: str) -> Node:
    """The mapping that a file holds; `shown` is the file's name in faults. Raises RecipeError."""
    return read_bytes(_read_file(path, shown), shown)


def read_bytes(data: bytes, shown: str) -> Node:
    """The mapping that a file's bytes are. Raises RecipeError."""
    return parse(_decode(data, shown), shown)


def _read_file(path: Path, shown: str) -> bytes:
    try:
        # without O_NONBLOCK, opening a FIFO would wait for a writer
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        raise _unreadable_error(shown, error) from None
    try:
        _check_regular(os.fstat(handle).st_mode, shown)
        with open(handle, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable_error(shown, error) from None
    finally:
        os.close(handle)
    if len(data) > MAX_BYTES:
        raise _file_error(shown, "size", "the file is larger than 1 MiB", "a recipe is a few kilobytes of text")
    return data


def _check_regular(mode: int, shown: str) -> None:
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise _file_error(shown, "file", f"this is {what}", "name a recipe: a text file in YAML")


def _unreadable_error(shown: str, error: Exception) -> RecipeError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a path"
    return _file_error(shown, "file", f"this file cannot be read: {reason.lower()}", "check the path")


def _file_error(shown: str, code: str, message: str, hint: str) -> RecipeError:
    return RecipeError([Fault(shown, 1, 1, code, "", message, hint)])


def _decode(data: bytes, shown: str) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise _file_error(shown, "encoding", "this text is UTF-16", "save the file as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # the decoder counts from after the byte order mark, if there is one
        good = error.object[: error.start].decode("utf-8")
        mark = _end_of(good, shown)
        message = f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise RecipeError([fault_at(mark, "encoding", "", message, "save the file as UTF-8")]) from None
    bad = _REFUSED.search(text)
    if bad is not None:
        mark = _end_of(text[: bad.start()], shown)
        message = f"the character U+{ord(bad.group()):04X} cannot stand in a recipe"
        raise RecipeError([fault_at(mark, "encoding", "", message, "remove it; a recipe is text")])
    return text


def _end_of(text: str, shown: str) -> Mark:
    lines = _BREAK.split(text)
    return Mark(shown, len(lines), len(lines[-1]) + 1, 1, lines[-1])


# ------------------------------------------------------------------------------------------- text


def parse(text: str, file: str) -> Node:
    """The mapping that a YAML text holds. Raises RecipeError with all its faults."""
    root = _parse(text, SourceLines(file, _BREAK.split(text)))
    if root is None:
        top = Mark(file, 1, 1, 1, "")
        raise RecipeError([fault_at(top, "empty", "", "there is nothing in this file", "begin with `recipe: 1`")])
    if not isinstance(root.value, dict):
        what = "a list" if isinstance(root.value, list) else "a single value"
        message = f"a recipe is a mapping of keys, and this is {what}"
        raise RecipeError([fault_at(root.mark, "type", "", message, "begin with `recipe: 1`")])
    return root


def parse_value(whole: str, start: int) -> Node:
    """The YAML value that stands at `start` of a setting from the command line. Raises RecipeError."""
    whole = _BREAK.sub(" ", whole)
    bad = _REFUSED.search(whole)
    if bad is not None:
        mark = Mark(COMMAND_LINE, 1, bad.start() + 1, 1, whole)
        message = f"the character U+{ord(bad.group()):04X} cannot stand in a recipe"
        raise RecipeError([fault_at(mark, "encoding", "", message, "remove it")])
    root = _parse(whole[start:], SourceLines(COMMAND_LINE, [whole], start))
    if root is None:
        mark = Mark(COMMAND_LINE, 1, start + 1, 1, whole)
        raise RecipeError([fault_at(mark, "override", "", "there is no value here", "write `null` to remove the key")])
    return root


def _parse(text: str, places: SourceLines) -> Node | None:
    builder = _Builder(places)
    try:
        for event in yaml.parse(text, Loader=_PARSER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        opened = builder.open[-1].begin if builder.open else None
        builder.faults.append(syntax_fault(error, text, places, opened))
    except yaml.YAMLError as error:
        mark = Mark(places.file, 1, 1, 1, places.lines[0])
        builder.faults.append(fault_at(mark, "syntax", "", f"this is not YAML: {error}"))
    except _Stop as stop:
        builder.faults.append(stop.fault)
    if builder.faults:
        raise RecipeError(builder.faults)
    return builder.root


class _Stop(Exception):
    """A fault after which reading on makes no sense."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


class _Key(NamedTuple):
    name: str | None  # None where the key cannot be used; its value is then read and dropped
    mark: Mark


@dataclass
class _Open:
    """A list or mapping whose end has not been read yet."""

    value: list[Node] | dict[str, Node]
    begin: Any
    key: _Key | None = None
    seen: dict[str, Mark] = field(default_factory=dict)

    @property
    def wants_key(self) -> bool:
        return isinstance(self.value, dict) and self.key is None


class _Builder:
    """Nodes from the parser's events."""

    def __init__(self, places: SourceLines) -> None:
        self.places = places
        self.faults: list[Fault] = []
        self.open: list[_Open] = []
        self.root: Node | None = None
        self.documents = 0
        self.values = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._decorations(event)
            self._scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._decorations(event)
            self._begin(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._end(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._document(event)

    def _fault(self, mark: Mark, code: str, message: str, hint: str) -> None:
        self.faults.append(fault_at(mark, code, "", message, hint))
        if len(self.faults) == MAX_FAULTS:
            message = f"after {MAX_FAULTS} faults the rest is not read"
            raise _Stop(fault_at(mark, "size", "", message, "mend the first; they may be the cause of the others"))

    def _document(self, event: yaml.Event) -> None:
        self.documents += 1
        if self.documents > 1:
            mark = self.places.mark(event.start_mark, event.end_mark)
            raise _Stop(fault_at(mark, "syntax", "", "a second document begins here", "one file holds one recipe"))

    def _decorations(self, event: Any) -> None:
        mark = self.places.mark(event.start_mark, event.end_mark)
        if event.anchor is not None:
            self._fault(
                mark._replace(length=len(event.anchor) + 1),
                "alias",
                f"`&{event.anchor}` is an anchor; a recipe has none",
                ONCE,
            )
        if event.tag is not None:
            shown = _tag(event.tag)
            self._fault(
                mark._replace(length=len(shown)),
                "tag",
                f"`{shown}` is a tag; a recipe is plain data",
                "remove the tag; put quotes around what shall be text",
            )

    def _alias(self, event: Any) -> None:
        mark = self.places.mark(event.start_mark, event.end_mark)
        self._fault(mark, "alias", f"`*{event.anchor}` is an alias; a recipe has none", ONCE)
        self._add(Node(None, mark))

    def _begin(self, event: Any) -> None:
        self._count(event)
        if len(self.open) == MAX_DEPTH:
            mark = self.places.mark(event.start_mark)._replace(length=1)
            message = f"this is nested deeper than {MAX_DEPTH} levels"
            raise _Stop(fault_at(mark, "depth", "", message, "give stacks names under `model.stacks`, and `use` them"))
        self.open.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else [], event.start_mark))

    def _end(self, event: Any) -> None:
        done = self.open.pop()
        self._add(Node(done.value, self.places.mark(done.begin, event.end_mark)))

    def _scalar(self, event: Any) -> None:
        self._count(event)
        mark = self.places.mark(event.start_mark, event.end_mark)
        is_plain = event.implicit[0]
        value = event.value
        if is_plain:
            try:
                value = parse_scalar(event.value)
            except ValueError:
                self._fault(
                    mark,
                    "type",
                    f"a number of {len(value)} characters is too long",
                    f"a number has at most {MAX_NUMBER} characters; put quotes around text",
                )
        elif (bad := _ESCAPED.search(value)) is not None:
            self._fault(
                mark, "encoding", f"the character U+{ord(bad.group()):04X} cannot stand in a text", "remove its escape"
            )
        self._add(Node(value, mark, text=event.value, quoted=not is_plain))

    def _count(self, event: Any) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            mark = self.places.mark(event.start_mark, event.end_mark)
            message = f"there are more than {MAX_VALUES} values here"
            raise _Stop(fault_at(mark, "size", "", message, "say a stack once, in a `repeat` or under `model.stacks`"))

    def _add(self, node: Node) -> None:
        if not self.open:
            self.root = node
            return
        parent = self.open[-1]
        if isinstance(parent.value, list):
            parent.value.append(node)
        elif parent.wants_key:
            parent.key = self._key(parent, node)
        else:
            self._put(parent, node)

    def _put(self, parent: _Open, node: Node) -> None:
        key, parent.key = parent.key, None
        if key is not None and key.name is not None and isinstance(parent.value, dict):
            parent.value[key.name] = replace(node, key=key.mark)

    def _key(self, parent: _Open, node: Node) -> _Key:
        if isinstance(node.value, (dict, list)):
            self._fault(
                node.mark._replace(length=1),
                "syntax",
                "a key is a word, not a list or a mapping",
                "put quotes around it if it is text",
            )
            return _Key(None, node.mark)
        if node.text == "<<" and not node.quoted:
            self._fault(
                node.mark,
                "merge",
                "`<<` is a merge key; a recipe has none",
                "use `extends`, or name a stack under `model.stacks`",
            )
            return _Key(None, node.mark)
        if not isinstance(node.value, str) or not node.value:
            shown = f"`{node.text}`" if node.text else "nothing"
            hint = f'write "{node.text}"' if node.text else "write a name before the colon"
            self._fault(node.mark, "type", f"a key is text, and this is {shown}", hint)
            return _Key(None, node.mark)
        return self._new_key(parent, node)

    def _new_key(self, parent: _Open, node: Node) -> _Key:
        if node.value in parent.seen:
            first = parent.seen[node.value]
            self._fault(
                node.mark,
                "duplicate",
                f"`{node.value}` stands here a second time; the first is in line {first.line}",
                "keep one of the two",
            )
            return _Key(None, node.mark)
        parent.seen[node.value] = node.mark
        return _Key(node.value, node.mark)


def _tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!", 1) if tag.startswith("tag:yaml.org,2002:") else tag


def parse_scalar(text: str) -> Any:
    """What an unquoted scalar stands for in YAML 1.2's core schema. Raises ValueError for an endless number."""
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


def _not_finite(text: str) -> float:
    return float(text.replace(".", "", 1))


_NUMBERS: tuple[tuple[re.Pattern[str], Any], ...] = (
    (_INT, int),
    (_FLOAT, float),
    (_OCTAL, lambda text: int(text[2:], 8)),
    (_HEX, lambda text: int(text[2:], 16)),
    (_NOT_FINITE, _not_finite),
)


# ------------------------------------------------------------------------------------------- writing


class _Dumper(yaml.SafeDumper):
    """Quotes what PyYAML (YAML 1.1) or this reader (YAML 1.2) would not read back as the same text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _needs_quotes(text) else None)


def _needs_quotes(text: str) -> bool:
    try:
        return not isinstance(parse_scalar(text), str) or not text.isprintable()
    except ValueError:
        return True


def _represent_float(dumper: yaml.SafeDumper, number: float) -> yaml.ScalarNode:
    if not math.isfinite(number):
        return dumper.represent_float(number)
    return dumper.represent_scalar("tag:yaml.org,2002:float", repr(number))


# without it, PyYAML puts a tag before 1e-05
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"^(?:{_FLOAT.pattern})$"), list("-+.0123456789"))
_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)


def dump(data: Any) -> str:
    """Plain data as YAML that reads back as the same data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)

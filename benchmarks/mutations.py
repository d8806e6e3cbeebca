"""Recipes changed at random: their bytes, their words, their tree. Every choice is `random`'s."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import yaml

from composer.errors import RecipeError
from composer.recipe import schema
from composer.recipe.node import to_data
from composer.recipe.yaml_reader import MAX_BYTES, dump, parse

Path = tuple[str | int, ...]

LARGEST = 1 << 16  # bytes that a case may grow to, but for what is meant to be larger than a recipe may be
BYTES = (
    b"\x00",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xef\xbf\xbf",
    b"\r",
    b"\r\n",
    b"\n",
    b"\t",
    "\u2028".encode(),
    "\u0085".encode(),
    "\u202e".encode(),
    "é".encode(),
    "e\u0301".encode(),
    "\U0001f600".encode(),
)
TAGS = ("!!str ", "!!binary ", "!!set ", "!!int ", "!x ", "!", "!!python/object/apply:os.system ", "!!python/name:os ")
MARKS = (
    *TAGS,
    ": ",
    "- ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "#",
    " #",
    "&a ",
    "*a",
    "|\n",
    ">-\n",
    "'",
    '"',
    '"\\',
    "---\n",
    "%YAML 1.1\n",
    "...\n",
    "<<: ",
    "@",
    "`",
    "${",
    "${a}",
    "$",
    "\n",
    "\n  ",
    "  ",
    "\t",
    "~",
    "=",
    "\\",
)
SCALARS = (
    "0",
    "-1",
    "1",
    "1.0",
    "0.5",
    "1e-4",
    "1e999",
    "-1e999",
    ".nan",
    ".inf",
    "010",
    "0o17",
    "0x" + "f" * 30,
    "1_000",
    "1:20",
    "12:30:45",
    "2026-01-01",
    "2026-13-45",
    "9" * 39,
    "9" * 41,
    "9" * 5000,
    "1e" + "9" * 36,
    "1000000000000",
    "1000000",
    "-0",
    "+",
    "yes",
    "no",
    "on",
    "off",
    "y",
    "true",
    "True",
    "null",
    "~",
    "''",
    '""',
    "' '",
    "'\\n'",
    '"\\x00"',
    '"\\ud800"',
    '"\\U0001f600"',
    "a b",
    "a.b",
    "../../etc/passwd",
    "/dev/zero",
    "/",
    ".",
    "é",
    "x" * 300,
    "[]",
    "{}",
    "[[]]",
    "{a: }",
    "norm",
    "${x}",
)
JUNK = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    1.5,
    -0.0,
    1e-05,
    float("nan"),
    float("inf"),
    10**12,
    10**30,
    -(10**18),
    2**31,
    2**63,
    "",
    " ",
    "norm",
    "x y",
    "${w}",
    "null",
    "1_000",
    "é\u0301",
    "\U0001f600",
    "\x00",
    "a\nb",
    "..",
    [],
    [[]],
    ["norm"],
    [None],
    {},
    {"a": 1},
    {"norm": {}},
    {"norm": None, "linear": 3},
    [{"residual": {"norm": "pre"}}],
    {"type": "rnn"},
    {"": ""},
)
PIECES = (b"# x\n", b"x", b"- a\n", b"[", b"{a: ", b"- ", b"? ", b"a: &a *a\n", b"[&x 1, ", b"\n", b"!x ", b"'")
_TOKEN = re.compile(r"[\w.+-]+|\s+|.", re.DOTALL)


def words() -> list[str]:
    """Every word of the language."""
    found = set(re.findall(r'"([A-Za-z_][\w-]{0,30})"', str(schema.load()).replace("'", '"')))
    return sorted(found)


WORDS = words()


def mutated(data: bytes, random: Random, other: bytes) -> bytes:
    """`data` with one change, or as it is where the change cannot be written; `other` is what may be taken from."""
    change = random.choice(CHANGES)
    try:
        return change(data, random, other)[: LARGEST if change is not oversized else None]
    except RecursionError:  # a tree that was made deeper than PyYAML can write
        return data


# ------------------------------------------------------------------------------------------- bytes


def flipped(data: bytes, random: Random, _: bytes) -> bytes:
    """One bit another."""
    if not data:
        return b"\x00"
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def inserted(data: bytes, random: Random, _: bytes) -> bytes:
    """Bytes that are no text, or text that is rare."""
    at = random.randint(0, len(data))
    return data[:at] + random.choice(BYTES) * random.choice((1, 1, 2, 50)) + data[at:]


def cut(data: bytes, random: Random, _: bytes) -> bytes:
    """A part taken away: often the end."""
    begin, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    return data[:begin] + (data[end:] if random.random() < 0.7 else b"")


def spliced(data: bytes, random: Random, other: bytes) -> bytes:
    """A part of another recipe in the middle of this one."""
    begin, end = sorted((random.randint(0, len(other)), random.randint(0, len(other))))
    at = random.randint(0, len(data))
    return data[:at] + other[begin:end] + data[at:]


def raw(_: bytes, random: Random, __: bytes) -> bytes:
    """No recipe at all."""
    letters = random.choice((bytes(range(256)), b"ab01: -[]{},#&*!|>'\"%@`\n\t?~<=.$", b"[{", b"- \n", b"? :\n"))
    return bytes(random.choice(letters) for _ in range(random.choice((3, 30, 300))))


def encoded(data: bytes, random: Random, _: bytes) -> bytes:
    """The same text for another system."""
    text = data.decode("utf-8", errors="replace")
    return random.choice(
        (
            lambda: text.encode("utf-16"),
            lambda: text.encode("utf-32-le"),
            lambda: text.encode("utf-8-sig"),
            lambda: text.encode("latin-1", errors="replace"),
            lambda: text.replace("\n", "\r\n").encode(),
            lambda: text.replace("\n", "\r").encode(),
            lambda: text.replace("  ", "\t").encode(),
            lambda: text.replace("\n", "\u2028").encode(),
            lambda: text.rstrip("\n").encode(),
        )
    )()


def oversized(data: bytes, random: Random, _: bytes) -> bytes:
    """More of it than there may be: bytes, values, levels."""
    piece = random.choice((*PIECES, data))
    most = MAX_BYTES // max(1, len(piece)) + 1
    return data + piece * min(most, random.choice((70, 1000, 20_000, most)))


# ------------------------------------------------------------------------------------------- words


def reworded(data: bytes, random: Random, _: bytes) -> bytes:
    """A word swapped with another, gone, twice, or another word."""
    tokens = _TOKEN.findall(data.decode("utf-8", errors="surrogateescape")) or ["a"]
    at, there = random.randrange(len(tokens)), random.randrange(len(tokens))
    kind = random.randrange(5)
    if kind == 0:
        tokens[at], tokens[there] = tokens[there], tokens[at]
    elif kind == 1:
        del tokens[at]
    elif kind == 2:
        tokens.insert(there, tokens[at])
    elif kind == 3:
        tokens.insert(at, random.choice(MARKS))
    else:
        tokens[at] = random.choice((random.choice(SCALARS), random.choice(WORDS)))
    return "".join(tokens).encode("utf-8", errors="surrogateescape")


def relined(data: bytes, random: Random, other: bytes) -> bytes:
    """A line moved, twice, indented in another way, or from another recipe."""
    lines = data.split(b"\n")
    at, there = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(4)
    if kind == 0:
        lines.insert(there, lines.pop(at))
    elif kind == 1:
        lines.insert(there, lines[at])
    elif kind == 2:
        lines[at] = random.choice((b" ", b"  ", b"\t", b"")) + lines[at].lstrip()
    else:
        lines.insert(at, random.choice(other.split(b"\n")))
    return b"\n".join(lines)


def quoted(data: bytes, random: Random, _: bytes) -> bytes:
    """A value behind an anchor or a tag, or in a text of several lines."""
    lines = data.decode("utf-8", errors="surrogateescape").split("\n")
    at = random.randrange(len(lines))
    key, colon, value = lines[at].partition(":")
    before = random.choice((*TAGS, "&a ", "*a ", "|\n   ", ">-\n   ", "? ", "<<: "))
    lines[at] = f"{key}{colon} {before}{value.strip()}" if colon else before + lines[at]
    return "\n".join(lines).encode("utf-8", errors="surrogateescape")


# ------------------------------------------------------------------------------------------- trees


def edited(data: bytes, random: Random, other: bytes) -> bytes:
    """The tree of a recipe with a part changed; what is no recipe any more, changed by its words."""
    try:
        tree = to_data(parse(data.decode("utf-8", errors="replace"), ""))
    except RecipeError:
        return reworded(data, random, other)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = list(paths(tree))
        if places:
            random.choice(EDITS)(tree, random.choice(places), random, other)
    return written(tree, random)


def written(tree: Any, random: Random) -> bytes:
    """A tree in one of the ways to write it."""
    if random.random() < 0.7:
        return dump(tree).encode("utf-8", errors="replace")
    style = random.choice((True, False, None))
    return yaml.safe_dump(
        tree,
        default_flow_style=style,
        allow_unicode=random.random() < 0.5,
        sort_keys=False,
        width=random.choice((20, 80, 10_000)),
    ).encode("utf-8", errors="replace")


def paths(tree: Any) -> Iterator[Path]:
    """The path of every value."""
    waiting: list[tuple[Path, Any]] = [((), tree)]
    while waiting:
        path, value = waiting.pop()
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in pairs:
            yield (*path, key)
            waiting.append(((*path, key), inner))


def at_path(tree: Any, path: Path) -> Any:
    """What stands at a path."""
    for step in path:
        tree = tree[step]
    return tree


def retyped(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Something else altogether."""
    at_path(tree, path[:-1])[path[-1]] = random.choice((random.choice(JUNK), random.choice(WORDS)))


def removed(tree: Any, path: Path, _: Random, __: bytes) -> None:
    """Nothing."""
    del at_path(tree, path[:-1])[path[-1]]


def swapped(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """What stands elsewhere in the same mapping or list."""
    parent = at_path(tree, path[:-1])
    there = random.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[path[-1]], parent[there] = parent[there], parent[path[-1]]


def moved(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """A copy of what stands anywhere else, itself included."""
    taken = yaml.safe_load(dump(at_path(tree, random.choice(list(paths(tree))))))
    at_path(tree, path[:-1])[path[-1]] = taken


def grafted(tree: Any, path: Path, random: Random, other: bytes) -> None:
    """A part of another recipe."""
    try:
        theirs = to_data(parse(other.decode("utf-8", errors="replace"), ""))
    except RecipeError:
        return
    at_path(tree, path[:-1])[path[-1]] = at_path(theirs, random.choice([*paths(theirs), ()]))


def renamed(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Another key, misspelt or of another place."""
    parent = at_path(tree, path[:-1])
    if isinstance(parent, dict):
        key = str(path[-1])
        new = random.choice((random.choice(WORDS), key[1:], key + "x", key.upper(), "a b", "é", "1", "true"))
        parent[new] = parent.pop(path[-1])


def scaled(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """A number of another size."""
    parent = at_path(tree, path[:-1])
    if isinstance(parent[path[-1]], (int, float)):
        parent[path[-1]] *= random.choice((-1, 0, 0.5, 2, 10, 1000, 10**6, 10**12, 1e300, 1e-300))


def wrapped(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """The same, deeper."""
    parent = at_path(tree, path[:-1])
    for _ in range(random.choice((1, 1, 2, 30, 70))):
        parent[path[-1]] = random.choice(
            ([parent[path[-1]]], {"a": parent[path[-1]]}, {"residual": [parent[path[-1]]]})
        )


def repeated(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """A list with an item many times."""
    parent = at_path(tree, path[:-1])
    if isinstance(parent, list):
        parent.extend(parent[path[-1]] for _ in range(random.choice((1, 2, 20, 300))))


Change = Callable[[bytes, Random, bytes], bytes]
CHANGES: tuple[Change, ...] = (
    flipped,
    inserted,
    cut,
    spliced,
    raw,
    encoded,
    oversized,
    reworded,
    reworded,
    relined,
    relined,
    quoted,
    *(edited,) * 8,
)
EDITS = (retyped, retyped, removed, swapped, moved, grafted, renamed, scaled, wrapped, repeated)

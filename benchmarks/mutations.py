"""Random mutations of recipes: bytes, words, tree. All choices are made by `random`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import yaml

from composer.errors import RecipeError
from composer.recipe import schema_generator
from composer.recipe.yaml_reader import MAX_BYTES, dump, parse, to_data

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
    return sorted(set(re.findall(r'"([A-Za-z_][\w-]{0,30})"', str(schema_generator.load()).replace("'", '"'))))


WORDS = words()


def mutate(data: bytes, random: Random, other: bytes) -> bytes:
    """`data` with one change, or as it is where the change cannot be written; `other` is what may be taken from."""
    change = random.choice(CHANGES)
    try:
        return change(data, random, other)[: LARGEST if change is not oversize else None]
    except RecursionError:  # a tree that was made deeper than PyYAML can write
        return data


# ------------------------------------------------------------------------------------------- bytes


def flip_bit(data: bytes, random: Random, _: bytes) -> bytes:
    """Flip one bit."""
    if not data:
        return b"\x00"
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def insert_bytes(data: bytes, random: Random, _: bytes) -> bytes:
    """Insert bytes that are not UTF-8, or rare characters."""
    at = random.randint(0, len(data))
    return data[:at] + random.choice(BYTES) * random.choice((1, 1, 2, 50)) + data[at:]


def cut_bytes(data: bytes, random: Random, _: bytes) -> bytes:
    """Remove a part, often the end."""
    begin, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    return data[:begin] + (data[end:] if random.random() < 0.7 else b"")


def splice(data: bytes, random: Random, other: bytes) -> bytes:
    """Insert a part of another recipe."""
    begin, end = sorted((random.randint(0, len(other)), random.randint(0, len(other))))
    at = random.randint(0, len(data))
    return data[:at] + other[begin:end] + data[at:]


def random_bytes(_: bytes, random: Random, __: bytes) -> bytes:
    """Return random bytes."""
    letters = random.choice((bytes(range(256)), b"ab01: -[]{},#&*!|>'\"%@`\n\t?~<=.$", b"[{", b"- \n", b"? :\n"))
    return bytes(random.choice(letters) for _ in range(random.choice((3, 30, 300))))


def reencode(data: bytes, random: Random, _: bytes) -> bytes:
    """Encode the text in another way."""
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


def oversize(data: bytes, random: Random, _: bytes) -> bytes:
    """Exceed a limit: bytes, values, levels."""
    piece = random.choice((*PIECES, data))
    most = MAX_BYTES // max(1, len(piece)) + 1
    return data + piece * min(most, random.choice((70, 1000, 20_000, most)))


# ------------------------------------------------------------------------------------------- words


def change_word(data: bytes, random: Random, _: bytes) -> bytes:
    """Swap, delete, repeat or replace a word."""
    tokens = _TOKEN.findall(data.decode("utf-8", errors="surrogateescape")) or ["a"]
    at, other_at = random.randrange(len(tokens)), random.randrange(len(tokens))
    kind = random.randrange(5)
    if kind == 0:
        tokens[at], tokens[other_at] = tokens[other_at], tokens[at]
    elif kind == 1:
        del tokens[at]
    elif kind == 2:
        tokens.insert(other_at, tokens[at])
    elif kind == 3:
        tokens.insert(at, random.choice(MARKS))
    else:
        tokens[at] = random.choice((random.choice(SCALARS), random.choice(WORDS)))
    return "".join(tokens).encode("utf-8", errors="surrogateescape")


def change_line(data: bytes, random: Random, other: bytes) -> bytes:
    """Move, repeat or reindent a line, or insert one of another recipe."""
    lines = data.split(b"\n")
    at, other_at = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(4)
    if kind == 0:
        lines.insert(other_at, lines.pop(at))
    elif kind == 1:
        lines.insert(other_at, lines[at])
    elif kind == 2:
        lines[at] = random.choice((b" ", b"  ", b"\t", b"")) + lines[at].lstrip()
    else:
        lines.insert(at, random.choice(other.split(b"\n")))
    return b"\n".join(lines)


def tag_value(data: bytes, random: Random, _: bytes) -> bytes:
    """Put an anchor, a tag or a block scalar before a value."""
    lines = data.decode("utf-8", errors="surrogateescape").split("\n")
    at = random.randrange(len(lines))
    key, colon, value = lines[at].partition(":")
    before = random.choice((*TAGS, "&a ", "*a ", "|\n   ", ">-\n   ", "? ", "<<: "))
    lines[at] = f"{key}{colon} {before}{value.strip()}" if colon else before + lines[at]
    return "\n".join(lines).encode("utf-8", errors="surrogateescape")


# ------------------------------------------------------------------------------------------- trees


def edit_tree(data: bytes, random: Random, other: bytes) -> bytes:
    """Change the tree of a recipe; if it does not parse, change a word."""
    try:
        tree = to_data(parse(data.decode("utf-8", errors="replace"), ""))
    except RecipeError:
        return change_word(data, random, other)
    for _ in range(random.choice((1, 1, 2, 3))):
        tree_paths = list(paths(tree))
        if tree_paths:
            random.choice(EDITS)(tree, random.choice(tree_paths), random, other)
    return write_tree(tree, random)


def write_tree(tree: Any, random: Random) -> bytes:
    """Write a tree in a random YAML style."""
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
    """Yield the path of every value."""
    waiting: list[tuple[Path, Any]] = [((), tree)]
    while waiting:
        path, value = waiting.pop()
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in pairs:
            yield (*path, key)
            waiting.append(((*path, key), inner))


def at_path(tree: Any, path: Path) -> Any:
    """Return the value at a path."""
    for step in path:
        tree = tree[step]
    return tree


def retype(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Replace a value by one of another type."""
    at_path(tree, path[:-1])[path[-1]] = random.choice((random.choice(JUNK), random.choice(WORDS)))


def remove(tree: Any, path: Path, _: Random, __: bytes) -> None:
    """Delete a value."""
    del at_path(tree, path[:-1])[path[-1]]


def swap(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Swap a value with another in the same mapping or list."""
    parent = at_path(tree, path[:-1])
    other_key = random.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
    parent[path[-1]], parent[other_key] = parent[other_key], parent[path[-1]]


def copy_within(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Replace a value by a copy of any other, itself included."""
    copy = yaml.safe_load(dump(at_path(tree, random.choice(list(paths(tree))))))
    at_path(tree, path[:-1])[path[-1]] = copy


def graft(tree: Any, path: Path, random: Random, other: bytes) -> None:
    """Replace a value by a part of another recipe."""
    try:
        theirs = to_data(parse(other.decode("utf-8", errors="replace"), ""))
    except RecipeError:
        return
    at_path(tree, path[:-1])[path[-1]] = at_path(theirs, random.choice([*paths(theirs), ()]))


def rename_key(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Rename a key: misspelt, or a key of another section."""
    parent = at_path(tree, path[:-1])
    if isinstance(parent, dict):
        key = str(path[-1])
        new = random.choice((random.choice(WORDS), key[1:], key + "x", key.upper(), "a b", "é", "1", "true"))
        parent[new] = parent.pop(path[-1])


def scale(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Scale a number."""
    parent = at_path(tree, path[:-1])
    if isinstance(parent[path[-1]], (int, float)):
        parent[path[-1]] *= random.choice((-1, 0, 0.5, 2, 10, 1000, 10**6, 10**12, 1e300, 1e-300))


def wrap(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Nest a value deeper."""
    parent = at_path(tree, path[:-1])
    for _ in range(random.choice((1, 1, 2, 30, 70))):
        parent[path[-1]] = random.choice(
            ([parent[path[-1]]], {"a": parent[path[-1]]}, {"residual": [parent[path[-1]]]})
        )


def repeat_item(tree: Any, path: Path, random: Random, _: bytes) -> None:
    """Repeat an item of a list many times."""
    parent = at_path(tree, path[:-1])
    if isinstance(parent, list):
        parent.extend(parent[path[-1]] for _ in range(random.choice((1, 2, 20, 300))))


Change = Callable[[bytes, Random, bytes], bytes]
CHANGES: tuple[Change, ...] = (
    flip_bit,
    insert_bytes,
    cut_bytes,
    splice,
    random_bytes,
    reencode,
    oversize,
    change_word,
    change_word,
    change_line,
    change_line,
    tag_value,
    *(edit_tree,) * 8,
)
EDITS = (retype, retype, remove, swap, copy_within, graft, rename_key, scale, wrap, repeat_item)

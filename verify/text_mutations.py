"""Random mutations of a recipe's text: bytes, words, lines."""

from __future__ import annotations

import re
from random import Random

from composer.recipe import schema_generator
from composer.recipe.yaml_reader import MAX_BYTES

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
TAGS = (
    "!!str ",
    "!!binary ",
    "!!set ",
    "!!int ",
    "!x ",
    "!",
    "!!python/object/apply:os.system ",
    "!!python/name:os ",
)
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
PIECES = (
    b"# x\n",
    b"x",
    b"- a\n",
    b"[",
    b"{a: ",
    b"- ",
    b"? ",
    b"a: &a *a\n",
    b"[&x 1, ",
    b"\n",
    b"!x ",
    b"'",
)
_TOKEN = re.compile(r"[\w.+-]+|\s+|.", re.DOTALL)


def words() -> list[str]:
    """Return every word of the language."""
    return sorted(
        set(re.findall(r'"([A-Za-z_][\w-]{0,30})"', str(schema_generator.load()).replace("'", '"')))
    )


WORDS = words()


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
    letters = random.choice(
        (bytes(range(256)), b"ab01: -[]{},#&*!|>'\"%@`\n\t?~<=.$", b"[{", b"- \n", b"? :\n")
    )
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

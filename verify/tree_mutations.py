"""Random mutations of a recipe's tree of mappings, lists and values."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import yaml

from composer.errors import RecipeError
from composer.recipe.yaml_reader import dump, parse, to_data
from verify.text_mutations import WORDS, change_word

Path = tuple[str | int, ...]

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
        pairs = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
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
        new = random.choice(
            (random.choice(WORDS), key[1:], key + "x", key.upper(), "a b", "é", "1", "true")
        )
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


EDITS = (retype, retype, remove, swap, copy_within, graft, rename_key, scale, wrap, repeat_item)

"""Every cache of data: its key has all that a value depends on, and no damage of an entry changes a
value.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from composer.data import cache_entries, csv_files, line_hashes, text_files, token_cache
from composer.data.cache_entries import (
    CORPORA,
    ENTRY,
    FEATURES,
    Damaged,
    cached_array,
    cached_entry,
    cached_facts,
    read_entry,
)
from composer.data.columns import FileNames, TextColumn
from composer.data.csv_files import csv_index
from composer.data.documents import CorpusFile, Documents, DocumentSubset, inspect
from composer.data.encoding import load_data
from composer.data.feature_files import encode_features
from composer.data.pairs import TARGET
from composer.data.sources import DataSource
from composer.data.token_cache import encode_column, encode_documents
from composer.data.tokenizer_cache import cached_tokenizers
from composer.data.tokenizer_training import train_tokenizers
from composer.errors import RunError
from composer.recipe.data_sections import TableColumn
from composer.recipe.section import read_section
from tests.data.conftest import Make

LINES = ["a b", "", "c d e", "f", '{"text": "g h"}', '{"text": "i", "other": "j k"}']
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, in which small files are, too."""
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(text_files, "READ_BYTES", 8)
    monkeypatch.setattr(csv_files, "READ_BYTES", 8)
    monkeypatch.setattr(line_hashes, "CACHED_LINES", 2)
    monkeypatch.setattr(token_cache, "CACHED_LINES", 2)
    return tmp_path / "store"


class Place(NamedTuple):
    """A folder of data, and what makes recipes in it."""

    folder: Path
    make: Make

    def named(self, name: str, lines: list[str]) -> Path:
        """Return a file of some lines under a name: a link to one inode, whatever its name."""
        file, link = self.folder / "content", self.folder / name
        content = "".join(f"{line}\n" for line in lines).encode()
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)
        if not link.is_symlink():
            link.symlink_to(file)
        return link


def starts(place: Place, lines: list[str] = LINES) -> Any:
    return text_files.line_starts(place.named("a.txt", lines)).tolist()


def rows(place: Place, lines: list[str] = LINES) -> Any:
    return [
        part.tolist()
        for part in csv_index(place.named("a.csv", [line.replace('"', "") for line in lines]))
    ]


def hashes(
    place: Place,
    lines: list[str] = LINES,
    skip: int = 0,
    name: str = "",
    of_field: int | None = None,
) -> Any:
    pick = (
        None
        if of_field is None
        else lambda line: line.split()[of_field : of_field + 1][0] if line.split() else ""
    )
    return line_hashes.line_hashes(
        TextColumn(place.named("a.txt", lines), skip, name, pick)
    ).tolist()


def files(place: Place, content: str = "a", names: tuple[str, ...] = ("1", "2")) -> Any:
    for name in ("1", "2", "3"):
        path = place.folder / name
        if not path.exists() or path.read_text() != content + name:
            path.write_text(content + name)
    return line_hashes.file_hashes([str(place.folder / name) for name in names]).tolist()


def kinds(
    place: Place, name: str = "c.txt", unit: str = "line", column: str = "text", more: int = 0
) -> Any:
    rows = [
        '{"text": "g h", "other": "l"}',
        '{"text": "i", "other": "j k"}',
        *['{"text": "x", "other": "y"}'] * more,
    ]
    return inspect(place.named(name, rows), unit, column)


def heads(
    place: Place, first: int = 0, last: int = 3, characters: int = 9, lines: list[str] = LINES
) -> Any:
    text = Documents([CorpusFile(place.named("a.txt", lines), ())], "line", "text")
    return DocumentSubset(text, np.isin(np.arange(len(text)), np.arange(first, last))).head(
        characters
    )


def tokenizers(place: Place, kind: Any = "bpe", lowercase: bool = False, seed: int = 1) -> Any:
    task = {"reverse": {"train": 20, "val": 2, "test": 2, "seed": seed}}
    data = {"generate": task, "tokenizer": kind, "lowercase": lowercase}
    return cached_tokenizers(DataSource(place.make(data), [])).text


def corpora(
    place: Place,
    lines: list[str] = LINES,
    unit: str = "line",
    words: str = "a b c",
    low: bool = False,
) -> Any:
    tokenizer = train_tokenizers({"tokenizer": {"word": {}}, "lowercase": low}, {TARGET: [words]})
    encoded = encode_documents(
        Documents([CorpusFile(place.named("a.txt", lines), ())], unit, "text"), tokenizer
    )
    return [*encoded.target], encoded.counts


def column(place: Place, lines: list[str] = LINES, words: str = "a b c", skip: int = 0) -> Any:
    tokenizer = train_tokenizers({"tokenizer": {"word": {}}}, {TARGET: [words]})
    return [*encode_column(TextColumn(place.named("a.txt", lines), skip), TARGET, tokenizer)]


def pairs(place: Place, max_length: int = 5, val: Any = 1, **parallel: Any) -> Any:
    (place.folder / "s").write_text("a\na\nb c\nd e f\ng\n") if not (
        place.folder / "s"
    ).exists() else None
    (place.folder / "t").write_text("1\n1\n2\n3\n4 5 6\n") if not (
        place.folder / "t"
    ).exists() else None
    split = {"train": {"source": "s", "target": "t"}, "val": val, **parallel}
    data = {"parallel": split, "max_length": max_length, "tokenizer": {"word": {}}}
    loaded = load_data(place.make(data), [place.folder])
    assert loaded.train is not None
    return (
        [[*ids] for ids in loaded.train.sides.values()],
        loaded.train.originals.tolist(),
        loaded.notes,
    )


def features(
    place: Place, value: float = 1.0, kind: str = "vectors", width: int = 3, scale: int = 8
) -> Any:
    path = place.folder / ("0.npy" if kind == "vectors" else "0.png")
    array = np.full((2, width), value, np.float32)
    if kind == "vectors" and (not path.exists() or not np.array_equal(np.load(path), array)):
        np.save(path, array)
    if kind == "image":
        image = pytest.importorskip("PIL.Image")
        image.fromarray(np.arange(36, dtype=np.uint8).reshape(6, 6) * 7).save(
            path
        ) if not path.exists() else None
    values = {"column": "file", "kind": kind, "width": width, "size": [scale, scale]}
    settings = read_section(TableColumn, values, ())
    encoded = encode_features(FileNames([path.name] * 2, place.folder), settings, "a column")
    return repr([np.asarray(encoded[row]).tolist() for row in range(2)]), encoded.remarks


OTHER = ["x y", "z", *LINES]
Value = Callable[..., Any]
Changes = Callable[[Path], list[Callable[[], object]]]
CACHES: Mapping[str, list[tuple[Value, list[dict[str, Any]]]]] = {
    "starts": [(starts, [{"lines": OTHER}])],
    "rows": [(rows, [{"lines": OTHER}])],
    "lines": [(hashes, [{"lines": OTHER}, {"skip": 1}, {"name": "x", "of_field": 0}])],
    "files": [(files, [{"content": "b"}, {"names": ("1", "3")}, {"names": ("2", "1")}])],
    "texts": [
        (
            kinds,
            [
                {"name": "c.jsonl"},
                {"unit": "file"},
                {"more": 1},
                {"name": "c.jsonl", "column": "other"},
            ],
        )
    ],
    "heads": [(heads, [{"first": 1}, {"last": 1}, {"characters": 1}, {"lines": OTHER}])],
    "tokenizers": [
        (
            tokenizers,
            [{"kind": {"bpe": {"size": 300}}}, {"kind": "word"}, {"lowercase": True}, {"seed": 2}],
        )
    ],
    CORPORA: [
        (
            corpora,
            [{"lines": OTHER}, {"unit": "file"}, {"words": "c f"}, {"words": "A b", "low": True}],
        ),
        (column, [{"lines": OTHER}, {"words": "c f"}, {"skip": 1}]),
    ],
    "pairs": [
        (
            pairs,
            [{"max_length": 3}, {"val": 2}, {"deduplicate": True}, {"max_ratio": 1.5}, {"test": 1}],
        ),
    ],
    FEATURES: [
        (features, [{"value": 2.0}, {"width": 2}, {"kind": "image"}, {"kind": "image", "scale": 4}])
    ],
}
"""Of each kind of entry, what makes values of it, and changes of each of its ingredients."""
CASES = [(kind, value, changes) for kind, values in CACHES.items() for value, changes in values]
IDS = [f"{kind}-{value.__name__}" for kind, value, _ in CASES]


@pytest.fixture
def place(tmp_path: Path, make: Make) -> Place:
    return Place(tmp_path, make)


def entries(store: Path, kind: str) -> list[Path]:
    return sorted(path.parent for path in store.glob(f"{kind}/*/{ENTRY}"))


def test_all_caches_are_here() -> None:
    """The first argument of every call of the functions that make entries."""
    kinds: set[str] = set()
    for path in (ROOT / "composer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = (
                node.func.id
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                else ""
            )
            if (
                name in ("cached_entry", "cached_facts", "cached_array")
                and path.name != "cache_entries.py"
            ):
                kind = ast.unparse(node.args[0])  # type: ignore[attr-defined]
                kinds.add({"CORPORA": CORPORA, "FEATURES": FEATURES}.get(kind, kind.strip("'")))
    assert kinds == set(CACHES)


@pytest.mark.parametrize(("kind", "value", "changes"), CASES, ids=IDS)
def test_a_key_has_all_that_the_value_depends_on(
    kind: str, value: Value, changes: list[dict[str, Any]], place: Place, store: Path
) -> None:
    base = value(place)
    assert entries(store, kind)
    for change in changes:
        remembered = value(place, **change)
        shutil.rmtree(store)
        assert remembered == value(place, **change), change
        assert remembered != base, change
        shutil.rmtree(store)
        assert value(place) == base


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


def rewrite(head: Path, change: Callable[[Any], Any]) -> None:
    """Change what an entry says, and its hash: so would a program that writes another format."""
    text = json.dumps(change(json.loads(head.read_text(encoding="utf-8").partition("\n")[2])))
    head.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}", encoding="utf-8")


def damages(entry: Path) -> list[Callable[[], object]]:
    """Return what can happen to the files of an entry."""
    head = entry / ENTRY
    result: list[Callable[[], object]] = [partial(flip, head, at) for at in (0, 70, -3)]
    result += [partial(head.write_bytes, data) for data in (b"", b"\xff\xfe", b"[" * 99_999)]
    for path in sorted(entry.glob("*.bin")):
        result += [partial(flip, path, at) for at in (0, 7, -1) if path.stat().st_size]
        result += [partial(path.write_bytes, b"12345"), path.unlink]
    return result


def forgeries(entry: Path) -> list[Callable[[], object]]:
    """Return how a program could write an entry that is none, with hashes that fit."""
    head = entry / ENTRY

    def with_key(key: str, value: Any) -> None:
        rewrite(head, lambda it: {**it, key: value})

    facts = (None, {}, [[1]], [[], 1], "", 3, {"unknown": -1, "sha256": None}, [["x"], "y"])
    result: list[Callable[[], object]] = [partial(with_key, "facts", value) for value in facts]
    result += [partial(with_key, "arrays", None), partial(rewrite, head, lambda it: [])]
    for path in sorted(entry.glob("*.bin")):
        result += [partial(overwrite, path, number) for number in (0x7F, 0xFF)]
        result += [
            partial(retype, path, dtype)
            for dtype in ("|O", "<M8[s]", "|S1", "<f4", "|V8", "nonsense", 3)
        ]
    return result


def overwrite(path: Path, number: int) -> None:
    data = bytes([number]) * path.stat().st_size
    path.write_bytes(data)

    def change(head: Any) -> Any:
        head["arrays"][path.stem]["sha256"] = hashlib.sha256(data).hexdigest()
        return head

    rewrite(path.parent / ENTRY, change)


def retype(path: Path, dtype: Any) -> None:
    def change(head: Any) -> Any:
        head["arrays"][path.stem]["type"] = dtype
        return head

    rewrite(path.parent / ENTRY, change)


ANY_NUMBERS = ("files", "lines", FEATURES)
"""Kinds whose numbers are any: where their hash fits, nothing tells that they are others."""


SLOW = [
    pytest.param(*case, marks=[pytest.mark.slow] if case[0] == "pairs" else []) for case in CASES
]


@pytest.mark.parametrize("changes", [damages, forgeries])
@pytest.mark.parametrize(("kind", "value", "_"), SLOW, ids=IDS)
def test_a_damaged_entry_is_made_anew(
    kind: str,
    value: Value,
    _: Any,
    changes: Changes,
    place: Place,
    store: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = value(place)
    for number in range(len(changes(entries(store, kind)[0]))):
        shutil.rmtree(store)
        value(place)
        cache_entries.VERIFIED.clear()  # as in another process
        entry = entries(store, kind)[0]
        before = {path.name: path.read_bytes() for path in entry.iterdir()}
        changes(entry)[number]()
        if before == {path.name: path.read_bytes() for path in entry.iterdir()}:
            continue
        capsys.readouterr()
        if value(place) != base:
            assert changes is forgeries
            assert kind in ANY_NUMBERS
        elif changes is damages:
            assert "damaged and made anew" in capsys.readouterr().err


def test_an_entry_is_verified_once_on_a_machine_and_again_when_it_has_changed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_entries, "LARGE", 8)
    hashed: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(
        cache_entries.hashlib,
        "file_digest",
        lambda file, name: (hashed.append(file.name), digest(file, name))[1],
    )

    def read() -> list[int]:
        cache_entries.VERIFIED.clear()  # as in another process
        return [
            *cached_array(
                "numbers", [1], lambda: np.arange(9), lambda array: array.shape == (9,)
            ).tolist()
        ]

    assert read() == [*range(9)]
    assert read() == [*range(9)]
    assert not hashed  # but while it was written
    monkeypatch.setattr(cache_entries.platform, "node", lambda: "another machine")
    assert read() == [*range(9)]
    assert len(hashed) == 1
    (entry,) = entries(store, "numbers")
    flip(entry / "array.bin", 0)
    with pytest.raises(Damaged):
        read_entry(entry, lambda entry: True)
    assert read() == [*range(9)]


def test_an_entry_that_is_not_what_it_is_called_is_refused_by_who_made_it(store: Path) -> None:
    """Its arrays are not hashed again, but looked at."""
    with pytest.raises(RunError, match="this entry of the cache cannot be read"):
        cached_entry("numbers", [1], lambda append: append(array=np.arange(9)), lambda entry: False)


def test_a_store_that_others_own_is_read_and_verified_by_each_process(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_entries, "LARGE", 1)

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    expected = cached_array("numbers", [1], lambda: np.arange(9), lambda array: True).tolist()
    for path in store.rglob("verified-*"):
        path.unlink()
    monkeypatch.setattr(cache_entries, "atomic_write", refuse)
    for _ in range(2):
        cache_entries.VERIFIED.clear()
        assert (
            cached_array("numbers", [1], lambda: np.zeros(1), lambda array: True).tolist()
            == expected
        )


def test_a_value_that_is_not_valid_is_made_each_time(store: Path) -> None:
    for number in range(2):
        assert (
            cached_facts("facts", [1], lambda number=number: number, lambda value: False) == number
        )  # type: ignore[misc]


def test_names_decide_how_a_file_is_read(place: Place) -> None:
    """One file under two names: packed, and as its bytes are."""
    file = place.folder / "content"
    file.write_bytes(gzip.compress(b"one\ntwo\nthree\n", mtime=0).replace(b"\x8b", b"\x8b"))
    for name in ("a.gz", "a.txt"):
        (place.folder / name).symlink_to(file)
    packed = text_files.line_starts(place.folder / "a.gz").tolist()
    assert packed == [0, 4, 8, 14]
    with pytest.raises(UnicodeDecodeError):
        text_files.line_starts(place.folder / "a.txt")

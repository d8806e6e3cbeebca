"""Pairs from several files, packed or not: lists, weights, filters, and ids from the cache."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from composer.api import check
from composer.data import cache_entries, encoding, line_hashes, sources, token_cache
from composer.data.columns import Concatenation, PackedColumn, RowSubset, TextColumn
from composer.data.encoding import Data, load_data
from composer.data.pairs import TARGET
from composer.data.sampler import TrainBatchSampler, global_batches, plan_buckets
from composer.data.sources import DataSource
from composer.data.token_cache import encode_column
from composer.data.tokenizer_training import train_tokenizers
from composer.data.windows import file_weights
from composer.errors import ComposerError
from composer.fingerprint import fingerprints
from composer.recipe.recipe import Recipe
from composer.training.dry_run import dry_run
from composer.training.preflight import check_recipe
from tests.data.conftest import Make

LINES = ["the cat sat", "on the mat", " ", "it purred", "a b c"]
READ = {"encoder": ["rnn"], "decoder": ["rnn", "cross_attention"]}
Texts = Callable[..., dict[str, str]]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def load(recipe: Recipe) -> Data:
    return load_data(recipe, recipe.folders())


def write(path: Path, lines: Sequence[str]) -> Path:
    """Write lines, packed as the name says."""
    text = "".join(f"{line}\n" for line in lines).encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text))
    elif path.suffix == ".zst":
        with pyarrow.output_stream(str(path), compression="zstd") as stream:
            stream.write(text)
    else:
        path.write_bytes(text)
    return path


COLUMNS: dict[str, Callable[[Path], Sequence[str]]] = {
    "plain": lambda folder: TextColumn(write(folder / "a.txt", LINES)),
    "gzip": lambda folder: PackedColumn(write(folder / "a.gz", LINES)),
    "zstd": lambda folder: PackedColumn(write(folder / "a.zst", LINES)),
    "several": lambda folder: Concatenation(
        [
            TextColumn(write(folder / "a", LINES[:2])),
            PackedColumn(write(folder / "b.gz", LINES[2:])),
        ]
    ),
    "a part": lambda folder: RowSubset(
        PackedColumn(write(folder / "a.gz", ["x", *LINES, "y"])), np.arange(1, 1 + len(LINES))
    ),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_the_cache_has_the_ids_of_the_lines(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = COLUMNS[kind](tmp_path)
    assert [*lines] == LINES
    assert [lines[row] for row in range(5)] == LINES
    assert lines[1:4] == LINES[1:4]
    tokenizers = train_tokenizers({"tokenizer": {"word": {}}}, {TARGET: LINES})
    expected = [*encode_column(LINES, TARGET, tokenizers)]
    assert expected[2] == []  # nothing can be learned from a line of spaces
    monkeypatch.setattr(token_cache, "CACHED_LINES", 2)
    ids = encode_column(lines, TARGET, tokenizers)
    assert isinstance(ids.values, np.memmap)
    assert [*ids] == expected
    monkeypatch.setattr(
        cache_entries, "write_entry", lambda *given: pytest.fail("these lines are in the cache")
    )
    assert [*encode_column(COLUMNS[kind](tmp_path), TARGET, tokenizers)] == expected


def test_hashes_of_a_file_are_remembered_until_it_changes(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = write(tmp_path / "a.txt", LINES), line_hashes.line_hashes(LINES)
    assert np.flatnonzero(expected == 0).tolist() == [2]
    assert len(set(expected.tolist())) == 5
    monkeypatch.setattr(line_hashes, "CACHED_LINES", 2)
    assert line_hashes.line_hashes(TextColumn(path)).tolist() == expected.tolist()
    assert len([path for path in (store / "lines").iterdir() if path.suffix != ".lock"]) == 1
    with monkeypatch.context() as patch:
        patch.setattr(line_hashes, "hash_chunk", lambda lines: pytest.fail("they are remembered"))
        assert line_hashes.line_hashes(TextColumn(path)).tolist() == expected.tolist()
    write(path, LINES[::-1])
    assert line_hashes.line_hashes(TextColumn(path)).tolist() == expected[::-1].tolist()


@pytest.mark.parametrize("name", ["p.tsv", "p.tsv.gz", "p.jsonl", "p.jsonl.zst"])
def test_packed_tables_are_read_as_others(name: str, make: Make, tmp_path: Path) -> None:
    rows = [(f"a {row}", f"b {row}") for row in range(6)]
    lines = ["s\tt", *("\t".join(row) for row in rows)]
    if "json" in name:
        lines = [json.dumps({"s": one, "t": two}) for one, two in rows]
    write(tmp_path / name, lines)
    recipe = make(
        {"parallel": {"train": {"file": name, "source": "s", "target": "t"}, "val": 2}}, READ
    )
    check_recipe(recipe)
    pairs = load(recipe).pairs
    assert [*pairs["train"].sides["source"], *pairs["val"].sides["source"]] == [
        "a 0",
        "a 2",
        "a 3",
        "a 5",
        "a 1",
        "a 4",
    ]


def test_files_in_a_list_are_one_text_however_they_are_packed(
    make: Make, tmp_path: Path, texts: Texts
) -> None:
    one = make({"parallel": {"train": texts("all", source=LINES, target=LINES[::-1]), "val": 1}})
    expected = fingerprints(one)["data"]
    for side, lines in (("source", LINES), ("target", LINES[::-1])):
        write(tmp_path / f"x.{side}.gz", lines[:3])
        write(tmp_path / f"y.{side}", lines[3:])
    parts = [
        {"source": "x.source.gz", "target": "x.target.gz"},
        {"source": "y.source", "target": "y.target"},
    ]
    assert fingerprints(make({"parallel": {"train": parts, "val": 1}}))["data"] == expected


Y = {"source": "y.source", "target": "y.target"}
FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "not there": ({"source": "y.sorce", "target": "y.target"}, ".source", "mean `y.source`"),
    "another number": ({"source": "y.source", "target": "x.target"}, ".target", "has 3"),
    "damaged": ({"source": "z.gz", "target": "y.target"}, ".source", "cannot be unpacked"),
    "not utf-8": ({"source": "l.gz", "target": "y.target"}, ".source", "not UTF-8 at line 2"),
    "no such key": ({**Y, "w": "2"}, ".w", "no key `w`"),
    "no target": ({"source": "y.source"}, "", "target"),
    "packed csv": ({"file": "t.csv.gz", "source": "a", "target": "b"}, ".file", "is csv, packed"),
    "no weight": ({**Y, "weight": 0}, ".weight", "0"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_a_file_is_at_its_place_in_the_list(
    case: str, make: Make, tmp_path: Path, texts: Texts
) -> None:
    part, key, message = FAULTS[case]
    texts("x", source=LINES[:3], target=LINES[:3])
    texts("y", source=LINES[:2], target=LINES[:2])
    (tmp_path / "z.gz").write_bytes(gzip.compress(b"a\nb\n" * 1000)[:-20])
    (tmp_path / "l.gz").write_bytes(gzip.compress(b"a\nb\xff\n"))
    write(tmp_path / "t.csv.gz", ["a,b", "1,2"])
    with pytest.raises(ComposerError) as refused:
        check_recipe(
            make(
                {"parallel": {"train": [{"source": "x.source", "target": "x.target"}, part]}}, READ
            )
        )
    (fault,) = refused.value.faults
    assert fault.path == f"data.parallel.train[1]{key}"
    assert fault.line > 1
    assert message in fault.message


def test_pairs_are_there_as_often_as_their_files_weigh(make: Make, texts: Texts) -> None:
    parts: list[dict[str, Any]] = [
        {
            **texts(name, source=[f"{name} {row}" for row in range(40)], target=["x"] * 40),
            "weight": weight,
        }
        for name, weight in (("once", 1), ("twice", 2), ("half", 0.5))
    ]
    recipe = make({"parallel": {"train": parts, "val": 6}})
    data = load(recipe)
    assert data.train is not None
    choose = file_weights(recipe, data)
    sampler = TrainBatchSampler(data.train, tokens_per_batch=64, seed=1, choose=choose)
    names = [line.split()[0] for line in data.pairs["train"].sides["source"]]
    epochs, halves = [], set()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        rows = [row for batch in sampler.batches() for row in batch]
        epochs.append(Counter(names[row] for row in rows))
        halves.add(tuple(sorted(row for row in rows if names[row] == "half")))
    assert {counts["once"] for counts in epochs} == {38}
    assert {counts["twice"] for counts in epochs} == {76}
    assert {counts["half"] for counts in epochs} == {19}
    assert len(halves) == 3  # drawn anew


def test_weights_beside_a_curriculum_are_refused(make: Make, texts: Texts) -> None:
    part = {**texts("a", source=LINES, target=LINES), "weight": 2}
    recipe = make({"parallel": {"train": [part]}})
    recipe.file.write_text(recipe.file.read_text() + "training: {curriculum: {}}\n")
    from composer.recipe.recipe import load as load_recipe

    with pytest.raises(ComposerError) as refused:
        load_recipe(recipe.file)
    (fault,) = refused.value.faults
    assert fault.path == "data.parallel.train[0].weight"


def test_filters_leave_out_what_they_say(make: Make, texts: Texts) -> None:
    source = ["a b", "a b", "c d e f", "g", "tested", "h i", " "]
    target = ["1 2", "1 2", "1", "2", "3 3", "4 4", "5"]
    parallel = {
        "train": texts("train", source=source, target=target),
        "val": texts("val", source=["tested"], target=["9"]),
        "test": texts("test", source=["new"], target=["4 4"]),
        "max_ratio": 3,
        "deduplicate": True,
        "decontaminate": True,
    }
    data = load(make({"parallel": parallel}))
    assert data.train is not None
    assert data.train.originals.tolist() == [0, 3]
    assert data.notes[:5] == [
        "left out 1 of 7 training pairs with an empty side",
        "left out 1 of 7 training pairs with a side more than 3 times as long as another",
        "left out 1 of 7 training pairs whose source is measured",
        "left out 1 of 7 training pairs whose target is measured",
        "left out 1 of 7 training pairs that are repeated",
    ]


@pytest.fixture
def filtered(make: Make, texts: Texts, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recipe]:
    """Make a recipe with filters, of whose pairs the cache has the choice; given settings of
    `parallel` are others.
    """
    monkeypatch.setattr(token_cache, "CACHED_LINES", 2)
    train = texts(
        "train",
        source=["a b", "a b", "c d e", "g", "h i j k"],
        target=["1 2", "1 2", "1", "2", "3 3"],
    )

    def _filtered(**changes: Any) -> Recipe:
        val = texts("val", source=["g"], target=["4"])
        parallel = {
            "train": train,
            "val": val,
            "test": 1,
            "deduplicate": True,
            "decontaminate": True,
        }
        return make({"parallel": parallel | changes})

    return _filtered


def test_which_pairs_are_trained_on_is_remembered_and_mapped(
    filtered: Callable[..., Recipe], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "CACHED_LINES", 100)
        expected = load(filtered())
    first = load(filtered())
    (entry,) = (path for path in (store / "pairs").iterdir() if path.is_dir())
    with monkeypatch.context() as patch:
        patch.setattr(
            encoding,
            "trainable_rows",
            lambda *_: pytest.fail("it is remembered which are trained on"),
        )
        again = load(filtered())
    (entry / "3.bin").unlink()  # others have it mapped
    (entry / "3.bin").write_bytes(b"12345")
    for data in (first, again, load(filtered())):
        assert data.train is not None
        assert expected.train is not None
        assert [[*ids] for ids in data.train.sides.values()] == [
            [*ids] for ids in expected.train.sides.values()
        ]
        assert data.train.originals.tolist() == expected.train.originals.tolist()
        assert (data.train.sha256, data.notes) == (expected.train.sha256, expected.notes)
        assert data.train.keep(np.arange(len(data.train))).sha256 == expected.train.sha256
        spans = [span for ids in data.train.sides.values() for span in (ids.starts, ids.ends)]
        assert all(isinstance(array.base, np.memmap) for array in (data.train.originals, *spans))


def test_other_settings_and_other_measured_lines_are_another_choice(
    filtered: Callable[..., Recipe], texts: Texts
) -> None:
    def rows(recipe: Recipe) -> list[int]:
        train = load(recipe).train
        assert train is not None
        return [int(row) for row in train.originals]

    assert rows(filtered()) == [0, 3]
    assert rows(filtered(max_ratio=1.5)) == [0]
    assert rows(filtered(deduplicate=False)) == [0, 1, 3]
    recipe = filtered()
    texts("val", source=["h i j k"], target=["1"])
    assert rows(recipe) == [0, 2]


def test_faults_of_many_pairs_are_those_of_few(filtered: Callable[..., Recipe], make: Make) -> None:
    with pytest.raises(ComposerError, match="none of the 5 training pairs is left"):
        load(
            make(
                {
                    "parallel": {
                        **filtered(test=None).canonical["data"]["parallel"],
                        "max_ratio": 1.0,
                    },
                    "max_length": 1,
                }
            )
        )


def test_without_a_cache_for_them_pairs_are_chosen_anew(
    filtered: Callable[..., Recipe], store: Path
) -> None:
    store.mkdir(exist_ok=True)
    (store / "pairs").write_text("a file")
    assert len(load(filtered()).train or ()) == 2


def test_an_order_of_pairs_is_one_of_short_integers() -> None:
    rows = np.random.default_rng(0)
    target, source = rows.integers(1, 30, (2, 1000))
    long = global_batches(plan_buckets(target, source, 200), target, source, 1, 2)
    short = [lengths.astype(np.int32) for lengths in (target, source)]
    batches = global_batches(plan_buckets(*short, 200), *short, 1, 2)
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in long]
    assert {batch.dtype for batch in batches} == {np.dtype(np.int32)}


def test_filters_that_leave_nothing_are_refused(make: Make, texts: Texts) -> None:
    train = texts("train", source=["a b c d"], target=["x"])
    with pytest.raises(ComposerError, match="1 are left out by the filters"):
        load(make({"parallel": {"train": train, "max_ratio": 2}}))


@pytest.mark.parametrize(
    "change",
    [{"max_ratio": 2.0}, {"deduplicate": True}, {"decontaminate": True}, {"weight": 2.0}],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_which_pairs_are_trained_on_counts_in_the_fingerprint(
    change: dict[str, Any], make: Make, texts: Texts
) -> None:
    train = texts("train", source=LINES, target=LINES)
    parallel = {"train": train, "val": texts("val", source=["v"], target=["w"])}
    plain = fingerprints(make({"parallel": parallel}))
    other = {"train": {**train, **change}} if "weight" in change else change
    changed = fingerprints(make({"parallel": {**parallel, **other}}))
    assert changed["data"] != plain["data"]
    assert changed["run"] != plain["run"]


def test_further_references_are_not_trained_on(make: Make, texts: Texts) -> None:
    parallel = {
        "train": texts("train", source=["a", "b"], target=["1", "2"]),
        "val": {
            **texts("val", source=["x"], target=["9"], more=["2"]),
            "target": ["val.target", "val.more"],
        },
        "decontaminate": True,
    }
    del parallel["val"]["more"]
    data = load(make({"parallel": parallel}))
    assert data.train is not None
    assert data.train.originals.tolist() == [0]


def test_an_empty_list_of_files_is_refused(make: Make) -> None:
    with pytest.raises(ComposerError) as refused:
        check_recipe(make({"parallel": {"train": []}}, READ))
    (fault,) = refused.value.faults
    assert fault.path == "data.parallel.train"


def test_a_packed_file_that_changes_in_use_is_noticed(tmp_path: Path) -> None:
    column = PackedColumn(write(tmp_path / "a.gz", LINES))
    write(tmp_path / "a.gz", LINES[::-1])
    for read in (lambda: [*column], lambda: column[2]):
        with pytest.raises(ComposerError, match="changed while it was in use"):
            read()


def test_lines_without_text_teach_a_tokenizer_nothing() -> None:
    one, two = (
        train_tokenizers({"tokenizer": {"char": {}}}, {TARGET: ["ab", line]})
        for line in ("   ", "\u3000")
    )
    assert one.sha256 == two.sha256


def test_a_fault_names_the_line_of_its_file(make: Make, texts: Texts) -> None:
    numbers = [str(row % 5) for row in range(40)]
    texts("one", source=numbers, target=numbers)
    texts("two", source=[*numbers[:36], "x", *numbers[37:]], target=numbers)
    parts = [{side: f"{name}.{side}" for side in ("source", "target")} for name in ("one", "two")]
    with pytest.raises(ComposerError, match=r"does not know `x` in line 37 of `.*two.source`"):
        load(
            make({"parallel": {"train": parts, "val": 10}, "tokenizer": {"integers": {"below": 5}}})
        )


def test_steps_of_an_epoch_are_estimated_with_the_weights(make: Make, texts: Texts) -> None:
    train = {**texts(source=LINES, target=LINES), "weight": 10}
    recipe = make({"parallel": {"train": train}}, READ)
    source = DataSource(recipe, recipe.folders())
    sample = dry_run(source, {})
    assert sample is not None
    assert sample.steps_per_epoch(4096) == 10


def test_weights_have_a_bound_and_so_have_the_rows_of_an_epoch(
    make: Make, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = texts(source=LINES, target=LINES)
    with pytest.raises(ComposerError, match="at most 1000"):
        make({"parallel": {"train": {**train, "weight": 1e9}}}, READ)
    recipe = make({"parallel": {"train": {**train, "weight": 1_000}}}, READ)
    assert load(recipe)
    monkeypatch.setattr(sources, "MOST_ROWS", 1_000 * len(LINES) - 1)
    (fault,) = check(recipe)
    assert (fault.code, fault.path) == ("bound", "data.parallel.train")

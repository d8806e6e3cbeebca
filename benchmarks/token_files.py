"""Ids of texts and pairs in today's cache, and in Arrow files that `datasets` maps: seconds, bytes
and memory.

    python -m benchmarks.token_files --text FILE --megabytes 1000 --folder DIR [--rounds 3]

Tokenises FILE once, and writes its ids as often as makes so many megabytes of text. A text is read
in windows, a pair is a line and the one after it. Three ways, each step of each in a process of its
own, alternating in every round:

- cache: `composer.data.cache_entries`, as training uses it;
- batches: an Arrow stream that is written as the ids come, a row for each window or pair, of which
  `datasets` gathers a batch; windows are cut once, when they are written, and documents have no
  ends there;
- one batch: a single Arrow batch, which is in memory before it is written, and whose ids and
  offsets NumPy then reads where they are mapped.

All write the same facts, sync the disk, and read the same batches, or it fails. Only the cache
hashes its files, and the time of that on a machine that sees them first is a row of its own. Names
of entries are made before the clock starts, on all sides. `cold` is after the page cache of the
machine was dropped, or these files' alone where that is not permitted. Linux only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.anonymous_memory import status_bytes, watch_memory

KINDS, WAYS = ("text", "pairs"), ("cache", "batches", "one batch")
SIDES = {"text": ("ids",), "pairs": ("source", "target")}
VOCABULARY = 8_000
WINDOW, WINDOWS, PAIRS, BATCHES = 256, 32, 64, 1_000
DROP = Path("/proc/sys/vm/drop_caches")
FIGURES = {
    "write": "seconds to write",
    "written": "memory that no file backs while writing, peak, MB",
    "megabytes": "MB on disk",
    "imports": "seconds to import `datasets`, cold",
    "cold": "first batch, cold, seconds",
    "warm imports": "seconds to import `datasets`, warm",
    "warm": "first batch, warm, seconds",
    "verified": "the same on a machine that has not verified the entry",
    "batches": f"{BATCHES:,} random batches, seconds",
    "resident": "memory while reading, peak, with mapped files, MB",
    "private": "memory that no file backs after reading, MB",
}

Rows = list[list[int]]
Batch = tuple[np.ndarray, np.ndarray]
Read = Callable[[np.ndarray], Batch]
"""Returns what a model reads of these rows, and what it writes."""


class Chunk(NamedTuple):
    """Rows of ids as a tokenizer gives them, each with its end, and their lengths."""

    rows: Rows
    lengths: list[int]


class Source(NamedTuple):
    """Rows of each side, so many in a chunk, and how often they are written."""

    sides: dict[str, Rows]
    step: int
    times: int

    def chunks(self, side: str) -> Iterator[Chunk]:
        """Yield the chunks of a side."""
        rows = self.sides[side]
        for _ in range(self.times):
            for at in range(0, len(rows), self.step):
                part = rows[at : at + self.step]
                yield Chunk(part, [len(row) for row in part])


def tokenise(text: Path, megabytes: int, folder: Path) -> str:
    """Write the ids of a text and of its pairs, and return what they are."""
    from composer.data.pairs import TARGET
    from composer.data.token_cache import CHUNK
    from composer.data.tokenizer_training import train_tokenizers
    from composer.model.special_tokens import EOS

    lines = text.read_text(encoding="utf-8").splitlines()
    tokenizers = train_tokenizers({"tokenizer": {"bpe": {"size": VOCABULARY}}}, {TARGET: lines})
    rows = [[*row, EOS] for row in tokenizers.encode(TARGET, lines)]
    shifted = [*rows[1:], rows[0]]
    times = max(1, round(megabytes * 1e6 / text.stat().st_size))
    step = max(1, len(rows) * CHUNK // text.stat().st_size)
    sources = {
        "text": Source({"ids": rows}, step, times),
        "pairs": Source({"source": rows, "target": shifted}, step, -(-times // 2)),
    }
    for kind, source in sources.items():
        (folder / f"{kind}.json").write_text(json.dumps(source))
    tokens = times * sum(map(len, rows))
    return f"{times * text.stat().st_size / 1e6:,.0f} MB of text, {tokens:,} ids of each kind"


def flat(chunk: Chunk) -> np.ndarray:
    """Return the ids of a chunk one after another."""
    return np.fromiter(chain.from_iterable(chunk.rows), np.uint16, sum(chunk.lengths))


# --- today's cache


def entry(side: str, source: Source | None) -> Any:
    """Return the entry of a side, which is made of a source if it is missing."""
    from composer.atomic_io import is_hash
    from composer.data.cache_entries import CORPORA, Append, Entry, cached_entry
    from composer.data.ids import Ids
    from composer.data.token_cache import append_ids

    def make(append: Append) -> dict[str, object]:
        assert source is not None, "this entry is in the cache"
        return append_ids(append, source.chunks(side), np.uint16)

    def are_ids(made: Entry) -> bool:
        ids = Ids(made.arrays["ids"], made.arrays["starts"], made.arrays["ends"])
        return is_hash(made.facts["sha256"]) and ids.are_below(VOCABULARY)

    return cached_entry(CORPORA, ["token_files", side], make, are_ids)


def open_cache(kind: str) -> tuple[int, Read]:
    """Return the number of rows, and what reads them."""
    from composer.data.ids import Ids

    arrays = [entry(side, None).arrays for side in SIDES[kind]]
    if kind == "text":
        return windows(arrays[0]["ids"])
    return pairs(*(Ids(each["ids"], each["starts"], each["ends"]) for each in arrays))


def windows(ids: np.ndarray) -> tuple[int, Read]:
    """Return the number of whole windows of a stream of ids, and what reads them."""
    from composer.data.ids import Encoded, Ids
    from composer.data.windows import Windows, cut_windows

    nothing = np.zeros(0, np.int64)
    cuts = cut_windows(Encoded({}, Ids(ids, nothing, nothing), [], nothing), WINDOW).target
    assert isinstance(cuts, Windows)
    return len(ids) // WINDOW, lambda rows: (cuts.inputs(rows), cuts.outputs(rows))


def pairs(source: Any, target: Any) -> tuple[int, Read]:
    """Return the number of pairs, and what reads them."""
    return len(source), lambda rows: (source.padded(rows), target.outputs(rows))


# --- Arrow


def file_of(folder: Path, kind: str) -> Path:
    """Return the Arrow file of a kind."""
    return folder / f"ids-{kind}.arrow"


class Facts:
    """Hashes ids and counts the unknown ones, as the cache does, for each side."""

    def __init__(self, kind: str) -> None:
        self.digests = {side: hashlib.sha256() for side in SIDES[kind]}
        self.totals, self.unknown = dict.fromkeys(SIDES[kind], 0), dict.fromkeys(SIDES[kind], 0)

    def see(self, side: str, ids: np.ndarray, chunk: Chunk) -> None:
        """Add the ids of a chunk."""
        from composer.model.special_tokens import UNK

        ends = self.totals[side] + np.cumsum(chunk.lengths, dtype=np.int64)
        self.digests[side].update(ids.tobytes())
        self.digests[side].update(ends.tobytes())
        self.totals[side] += len(ids)
        self.unknown[side] += int((ids == UNK).sum())

    def values(self) -> list[dict[str, object]]:
        """Return the facts of each side."""
        return [
            {"unknown": self.unknown[side], "sha256": digest.hexdigest()}
            for side, digest in self.digests.items()
        ]


def lists(values: np.ndarray, lengths: Any) -> Any:
    """Return rows of ids as an Arrow array."""
    import pyarrow as arrow

    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return arrow.LargeListArray.from_arrays(offsets, values)


def without_ends(ids: np.ndarray, lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a chunk without the ends of its rows, and their lengths."""
    counts = np.asarray(lengths)
    return np.delete(ids, np.cumsum(counts) - 1), counts - 1


def window_rows(source: Source, facts: Facts) -> Iterator[Any]:
    """Yield Arrow tables of windows, each with the token before it."""
    import pyarrow as arrow

    from composer.model.special_tokens import BOS

    rest = np.array([BOS], np.uint16)
    for chunk in source.chunks("ids"):
        ids = flat(chunk)
        facts.see("ids", ids, chunk)
        rest = np.concatenate([rest, ids])
        count = (len(rest) - 1) // WINDOW
        rows = np.arange(count)[:, None] * WINDOW + np.arange(WINDOW + 1)
        yield arrow.table({"ids": lists(rest[rows].ravel(), np.full(count, WINDOW + 1))})
        rest = rest[count * WINDOW :]


def pair_rows(source: Source, facts: Facts) -> Iterator[Any]:
    """Yield Arrow tables of pairs."""
    import pyarrow as arrow

    both = zip(source.chunks("source"), source.chunks("target"), strict=True)
    for sides in both:
        columns = {}
        for side, chunk in zip(SIDES["pairs"], sides, strict=True):
            ids = flat(chunk)
            facts.see(side, ids, chunk)
            columns[side] = lists(*without_ends(ids, chunk.lengths))
        yield arrow.table(columns)


def write_batches(kind: str, path: Path, source: Source) -> list[dict[str, object]]:
    """Write an Arrow stream, batch by batch; return the facts."""
    from datasets import Features, LargeList, Value
    from datasets.arrow_writer import ArrowWriter

    facts = Facts(kind)
    features = Features({side: LargeList(Value("uint16")) for side in SIDES[kind]})
    tables = (window_rows if kind == "text" else pair_rows)(source, facts)
    with ArrowWriter(features=features, path=str(path)) as writer:
        for table in tables:
            writer.write_table(table)
        writer.finalize()
    return facts.values()


def write_one_batch(kind: str, path: Path, source: Source) -> list[dict[str, object]]:
    """Write an Arrow stream of one batch; return the facts."""
    import pyarrow as arrow

    facts, columns = Facts(kind), {}
    for side in SIDES[kind]:
        parts, lengths = list[np.ndarray](), list[np.ndarray]()
        for chunk in source.chunks(side):
            ids = flat(chunk)
            facts.see(side, ids, chunk)
            counts = np.asarray(chunk.lengths)
            if kind == "pairs":
                ids, counts = without_ends(ids, chunk.lengths)
            parts.append(ids)
            lengths.append(counts)
        columns[side] = lists(np.concatenate(parts), np.concatenate(lengths))
    table = arrow.table(columns)
    with arrow.OSFile(str(path), "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return facts.values()


def write_arrow(kind: str, way: str, path: Path, source: Source) -> list[dict[str, object]]:
    """Write the file of a kind, and its facts beside it; return these."""
    facts = (write_batches if way == "batches" else write_one_batch)(kind, path, source)
    path.with_suffix(".json").write_text(json.dumps(facts))
    for written in (path, path.with_suffix(".json")):
        with written.open("rb") as file:
            os.fsync(file.fileno())
    return facts


def ids_of(column: Any) -> Any:
    """Return the rows of an Arrow column; of one chunk, where it is mapped."""
    from composer.data.ids import Ids

    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    offsets = array.offsets.to_numpy()
    return Ids(array.values.to_numpy(), offsets[:-1], offsets[1:])


def open_arrow(kind: str, way: str, path: Path) -> tuple[int, Read]:
    """Return the number of rows, and what reads them."""
    from datasets import Dataset

    dataset = Dataset.from_file(str(path))
    if way == "one batch":
        columns = [ids_of(dataset.data.column(side)) for side in SIDES[kind]]
        return windows(columns[0].values) if kind == "text" else pairs(*columns)
    gathered = dataset.with_format("arrow")

    def read(rows: np.ndarray) -> Batch:
        table = gathered[rows]
        columns, every = [ids_of(table[side]) for side in SIDES[kind]], np.arange(len(rows))
        if kind == "pairs":
            return columns[0].padded(every), columns[1].outputs(every)
        tokens = columns[0].padded(every)
        return tokens[:, :-1], tokens[:, 1:]

    return len(dataset), read


# --- measuring


def import_all(way: str) -> float:
    """Import what training imports, and make the names of entries, which every way needs; return
    the seconds of what a way imports beside that.
    """
    from composer.data.cache_entries import code_identity
    from composer.data.windows import cut_windows  # noqa: F401

    code_identity()
    if way == "cache":
        return 0.0
    begun = time.perf_counter()
    import datasets  # noqa: F401

    return time.perf_counter() - begun


def write_here(kind: str, way: str, folder: Path) -> dict[str, Any]:
    """Write the ids in this process; return what it took, and the facts."""
    source = Source(*json.loads((folder / f"{kind}.json").read_text()))
    import_all(way)
    with watch_memory() as peak:
        begun = time.perf_counter()
        if way == "cache":
            facts = [entry(side, source).facts for side in SIDES[kind]]
        else:
            facts = write_arrow(kind, way, file_of(folder, kind), source)
        taken = time.perf_counter() - begun
    return {"write": taken, "written": peak.bytes / 1e6, "facts": facts}


def read_here(kind: str, way: str, folder: Path, batches: int) -> dict[str, Any]:
    """Read random batches in this process; return what they took, and their hash."""
    imports = import_all(way)
    begun = time.perf_counter()
    count, read = (
        open_cache(kind) if way == "cache" else open_arrow(kind, way, file_of(folder, kind))
    )
    random, digest = np.random.default_rng(0), hashlib.sha256()
    size = WINDOWS if kind == "text" else PAIRS
    draws = [random.integers(count, size=size) for _ in range(1 + batches)]
    digest.update(b"".join(array.tobytes() for array in read(draws[0])))
    first, seconds = time.perf_counter() - begun, 0.0
    for rows in draws[1:]:
        at = time.perf_counter()
        both = read(rows)
        seconds += time.perf_counter() - at
        digest.update(b"".join(array.tobytes() for array in both))
    return {
        "imports": imports,
        "first": first,
        "batches": seconds,
        "resident": status_bytes("VmHWM") / 1e6,
        "private": status_bytes("RssAnon") / 1e6,
        "sha256": digest.hexdigest(),
    }


def in_process(step: str, kind: str, way: str, folder: Path, batches: int = 0) -> dict[str, Any]:
    """Return what a step prints in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.token_files", "--folder", str(folder)]
    command += ["--step", step, kind, way, str(batches)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(printed.stdout.splitlines()[-1]))


def store_files(kind: str, way: str, folder: Path) -> list[Path]:
    """Return the files of a way."""
    if way != "cache":
        return [file_of(folder, kind), file_of(folder, kind).with_suffix(".json")]
    return [path for path in (folder / "store").rglob("*") if path.is_file()]


def drop_pages(files: list[Path]) -> None:
    """Make the next reading of files cold."""
    os.sync()
    if os.access(DROP, os.W_OK):
        DROP.write_text("3")
        return
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def load_pages(files: list[Path]) -> None:
    """Make the next reading of files warm."""
    for path in files:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def measure(kind: str, way: str, folder: Path) -> tuple[dict[str, float], list[str]]:
    """Write and read a kind in one way; return figures, and what must be the same in all ways."""
    shutil.rmtree(folder / "store", ignore_errors=True)
    write = in_process("write", kind, way, folder)
    files = store_files(kind, way, folder)
    figures = {
        "write": write["write"],
        "written": write["written"],
        "megabytes": sum(path.stat().st_size for path in files) / 1e6,
    }
    drop_pages(files)
    cold = in_process("read", kind, way, folder)
    figures |= {"imports": cold["imports"], "cold": cold["first"]}
    load_pages(files)
    warm = in_process("read", kind, way, folder, BATCHES)
    figures |= {"warm imports": warm["imports"], "warm": warm["first"]}
    figures |= {key: warm[key] for key in ("batches", "resident", "private")}
    figures["verified"] = figures["warm"]
    if marks := [path for path in files if path.name.startswith("verified-")]:
        for path in marks:
            path.unlink()
        figures["verified"] = in_process("read", kind, way, folder)["first"]
    for path in files:
        path.unlink(missing_ok=True)
    return figures, [json.dumps(write["facts"]), cold["sha256"], warm["sha256"]]


def cell(values: list[float]) -> str:
    """Return the median of a figure, and its range if it has one."""
    least, middle, most = (
        f"{value:.2g}" if value < 100 else f"{value:,.0f}"
        for value in (min(values), statistics.median(values), max(values))
    )
    return middle if least == most else f"{middle} ({least} to {most})"


def print_table(kind: str, rounds: list[dict[str, dict[str, float]]]) -> None:
    """Print the figures of each way, and the ratios to the cache of the same round."""
    others = [way for way in WAYS if way != "cache"]
    heads = [kind, *WAYS, *(f"{way} / cache" for way in others)]
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for key, name in FIGURES.items():
        cells = [cell([figures[way][key] for figures in rounds]) for way in WAYS]
        for way in others:
            ratios: list[float] = []
            for figures in rounds:
                if figures["cache"][key]:
                    ratios.append(figures[way][key] / figures["cache"][key])
            cells.append(cell(ratios) if ratios else "-")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure, and print a table of each kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="real text, UTF-8, which is repeated")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path("token_files"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--step", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    if arguments.step:
        step, kind, way, batches = arguments.step
        here = write_here(kind, way, folder) if step == "write" else None
        print(json.dumps(here or read_here(kind, way, folder, int(batches))))
        return
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["SEQCOMPOSER_STORE"] = str(folder / "store")
    print(tokenise(arguments.text, arguments.megabytes, folder))
    print("cold: after", f"3 into {DROP}" if os.access(DROP, os.W_OK) else "posix_fadvise")
    for kind in KINDS:
        rounds: list[dict[str, dict[str, float]]] = []
        for _ in range(arguments.rounds):
            measured = {way: measure(kind, way, folder) for way in WAYS}
            same = {way: facts for way, (_, facts) in measured.items()}
            assert all(facts == same["cache"] for facts in same.values()), same
            rounds.append({way: figures for way, (figures, _) in measured.items()})
        print_table(kind, rounds)


if __name__ == "__main__":
    main()

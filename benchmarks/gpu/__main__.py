"""Everything that a GPU changes: whether it is right there, and how fast it is beside others.

    python -m benchmarks.gpu --folder DIR                       every part in turn
    python -m benchmarks.gpu --folder DIR --part blocks recipes    some of them
    python -m benchmarks.gpu --folder DIR --part values --processes 12    in 12 processes
    python -m benchmarks.gpu --folder DIR --table               the results in DIR as Markdown
    python -m benchmarks.gpu --folder DIR --small --device cpu    tiny sizes, without a GPU

A part takes eight minutes at most, and runs in a process of its own: a crash is a line, and not the
end. DIR has a journal of JSON lines; the same command goes on with what has not ended well. Texts
and ids are generated. What a part needs and is not installed (transformers, ctranslate2, num2words)
is said in its line.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import PARTS, Settings
from benchmarks.gpu.journal import PART_SECONDS, Journal, describe_part, run_part, table


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    width = max(map(len, PARTS)) + 2
    parts = "\n".join(f"  {part:{width}}{describe_part(part)}" for part in PARTS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        epilog=f"parts:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--part", nargs="+", choices=PARTS, default=PARTS, metavar="NAME", help="parts to run"
    )
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="for the journal; by default a temporary one"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument(
        "--minutes", type=float, default=PART_SECONDS / 60, help="time of a part (default 8)"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="at once; more than one disturb what is timed"
    )
    parser.add_argument("--table", action="store_true", help="run nothing, and print the table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = parse_arguments(argv)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="gpu-"))
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / "journal.jsonl")
    for part in () if options.table else options.part:
        start = time.monotonic()
        print(f"{part}: {describe_part(part)}", flush=True)
        run_part(
            part,
            Settings(options.device, options.small),
            journal,
            60.0 * options.minutes,
            options.processes,
        )
        print(f"{part}: {time.monotonic() - start:.0f} s\n", flush=True)
    print(table(journal))


if __name__ == "__main__":
    main()

"""Speed of `seqcomposer serve` with one client and with many, on this machine.

    python -m benchmarks.serving RUN [--clients 1 32] [--seconds 20] [-- OPTIONS OF serve]

Starts the server on a free port of the loopback. Each client posts a request of one line, waits for
its answer and posts the next; the lines are of 5 to 25 random words of the run's vocabulary. Prints
for each number of clients the answers per second, the latency, the server's memory before and
after, and the statuses; then how many times the throughput of the first is that of the last.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from composer.inference.run import Run, open_run
from composer.model.special_tokens import UNK

WARM_UP = 1.0
"""Seconds before the measurement."""


@dataclass
class Load:
    """What clients have seen."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)


@contextmanager
def served(run: str, options: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Start a server; give its process and its address."""
    command = [sys.executable, "-m", "composer", "serve", run, "--port", "0", *options]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            if " at http://" not in line:
                sys.exit(line + server.stderr.read())
            yield server.pid, line.split(" at ")[1].strip()
        finally:
            server.terminate()


def random_lines(run: Run, count: int = 500) -> list[str]:
    """Return lines of words that the run knows."""
    draw = random.Random(1)
    side, *others = run.recipe.sources or ["target"]
    if others:
        sys.exit("this measures runs of one source")
    rows = []
    for _ in range(count):
        words = draw.randint(5, 25)
        rows.append([draw.randrange(UNK + 1, run.tokenizers.sizes[side]) for _ in range(words)])
    return run.tokenizers.decode(side, rows)


def megabytes(process: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def client(http: httpx.AsyncClient, lines: Sequence[str], end: float, load: Load) -> None:
    """Post lines one after the other until the end."""
    for line in lines:
        begun = time.monotonic()
        if begun > end:
            return
        answer = await http.post("/v1/translate", json={"lines": [line]})
        load.seconds.append(time.monotonic() - begun)
        load.statuses[answer.status_code] += 1


async def run_clients(address: str, lines: Sequence[str], clients: int, seconds: float) -> Load:
    """Let clients post side by side for some seconds."""
    load, end = Load(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as http:
        own = [[*lines[at:], *lines[:at]] * 1_000 for at in range(clients)]
        await asyncio.gather(*(client(http, one, end, load) for one in own))
    return load


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("options", nargs="*", help="of `serve`, behind --")
    settings = parser.parse_args()
    lines = random_lines(open_run(settings.run))
    print("| clients | answers/s | median ms | p95 ms | p99 ms | MB before | MB after | statuses |")
    print("|---" * 8 + "|")
    speeds = []
    with served(settings.run, settings.options) as (process, address):
        asyncio.run(run_clients(address, lines, max(settings.clients), WARM_UP))
        for clients in settings.clients:
            before = megabytes(process)
            load = asyncio.run(run_clients(address, lines, clients, settings.seconds))
            speeds.append(len(load.seconds) / settings.seconds)
            cuts = statistics.quantiles(load.seconds, n=100, method="inclusive")
            times = " | ".join(f"{1000 * cuts[at - 1]:.1f}" for at in (50, 95, 99))
            statuses = ", ".join(f"{count} x {code}" for code, count in load.statuses.items())
            memory = f"{before:.0f} | {megabytes(process):.0f}"
            print(f"| {clients} | {speeds[-1]:.1f} | {times} | {memory} | {statuses} |", flush=True)
    first, last = settings.clients[0], settings.clients[-1]
    print(f"{last} clients: {speeds[-1] / speeds[0]:.2f} times the answers of {first}")


if __name__ == "__main__":
    main()

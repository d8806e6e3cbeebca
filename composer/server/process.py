"""The process of a server, on uvicorn: its port, and its end by a signal."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from composer.errors import RunError, os_error_reason
from composer.inference.engine import decoding_models
from composer.inference.lines import write_note
from composer.inference.run import Run
from composer.processes.endings import end_process
from composer.processes.signals import end_by
from composer.server.app import create_app
from composer.server.gate import Gate
from composer.server.settings import Settings

CLOSE_SECONDS = 5
"""Seconds for connections to close once all requests are answered."""


class Server(uvicorn.Server):
    """A server that answers what has begun after a signal, and refuses what comes; a second signal
    ends it.
    """

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.signals: list[int] = []
        super().__init__(
            uvicorn.Config(
                gate,
                http="h11",
                ws="none",
                lifespan="off",
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.gate.is_draining = True
        self.should_exit = bool(self.signals)
        self.signals.append(sig)

    async def on_tick(self, counter: int) -> bool:
        if self.gate.is_draining and not self.gate.open_requests:
            self.should_exit = True
        return await super().on_tick(counter)


def serve_runs(runs: Sequence[Run], settings: Settings, page: Path | None = None) -> None:
    """Serve runs until a signal. Raises RunError; KeyboardInterrupt or SystemExit at the end.

    page: A folder of files to serve, too.
    """
    named = by_name(runs)
    with listen(settings) as listening:
        for run in runs:
            decoding_models([run], run.recipe.decoding)  # opens programs before anybody waits
        gate = create_app(named, settings, page)
        host, port = listening.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        write_note(f"serving {', '.join(named)} at http://{host}:{port}")
        server = Server(gate)
        server.run([listening])
    is_ended = gate.worker.close()
    if server.signals and not is_ended:
        end_process(128 + server.signals[0])  # the interpreter's end would abort under its thread
    if server.signals:
        end_by(server.signals[0])


def by_name(runs: Sequence[Run]) -> dict[str, Run]:
    """Return runs by the names of their folders. Raises RunError for two of one name."""
    named: dict[str, Run] = {}
    for run in runs:
        name = run.run_dir.path.absolute().name
        if name in named:
            message = f"two runs are called `{name}`, and a request names one"
            raise RunError.of(message, "rename a folder, or make a link with another name")
        named[name] = run
    return named


def listen(settings: Settings) -> socket.socket:
    """Open the port of a server. Raises RunError."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        message = f"port {settings.port} of {settings.host} cannot be opened"
        fix = "write `--port N` with another one, or 0 for a free one, or another `--host`"
        raise RunError.of(f"{message}: {os_error_reason(error)}", fix) from None

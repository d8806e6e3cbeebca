"""The process of a server, on uvicorn: its port, and its end by a signal."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from composer.errors import RunError, os_error_reason
from composer.inference.engine import decoding_models
from composer.inference.lines import write_note
from composer.inference.run import Run
from composer.inference.translate import reads_files
from composer.processes.endings import end_process
from composer.processes.signals import end_by
from composer.server.app import create_app
from composer.server.gate import Gate
from composer.server.refusals import Refused
from composer.server.settings import Settings

CLOSE_SECONDS = 5
"""Seconds for connections to close once all requests are answered."""


class Protocol(H11Protocol):
    """HTTP/1.1 in which a request that cannot be read is refused as all others are."""

    def send_400_response(self, msg: str) -> None:
        fix = "check its first line and its headers, such as `Host` and `Content-Length`"
        refused = Refused(400, "http", "this is no valid request of HTTP/1.1", fix)
        headers = {**refused.headers, "Connection": "close"}
        response = h11.Response(status_code=400, headers=[*headers.items()], reason=b"Bad Request")
        for event in (response, h11.Data(data=refused.body().encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A server that answers after a signal what has begun, and refuses what comes.

    A second signal ends the process.
    """

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.signals: list[int] = []
        super().__init__(
            uvicorn.Config(
                gate,
                http=Protocol,
                ws="none",
                lifespan="off",
                log_level="warning",
                server_header=False,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.signals:  # an end of the interpreter would wait for the model, or abort under it
            os._exit(128 + sig)
        self.gate.is_draining = True
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
        with server.capture_signals():  # until the model has ended, too
            server.run([listening])
            is_ended = gate.worker.close()
    if server.signals and not is_ended:
        end_process(128 + server.signals[0])  # the interpreter's end would abort under its thread
    if server.signals:
        end_by(server.signals[0])


def by_name(runs: Sequence[Run]) -> dict[str, Run]:
    """Return runs by the names of their folders.

    Raises RunError for two of one name, and for one that reads files: clients name none.
    """
    named: dict[str, Run] = {}
    for run in runs:
        path = run.run_dir.path
        if reads_files(run.recipe):
            message = "this model reads images, sounds or vectors, and a server opens no files"
            fix = f"leave it out, and use `seqcomposer translate {path}`"
            raise RunError.of(message, fix, str(path))
        name = path.absolute().name
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

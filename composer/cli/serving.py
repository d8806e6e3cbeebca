"""The command `serve`: runs as an HTTP server."""

from __future__ import annotations

import signal
from functools import partial
from typing import Annotated

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, complete_run, option
from composer.cli.runs import engine_overrides, split_runs
from composer.server.settings import PACKAGES, TOKEN, Settings

commands = typer.Typer()
command = partial(options.with_examples, commands)


@command(
    "seqcomposer serve runs/mine                 # at http://127.0.0.1:8000",
    "seqcomposer serve runs/en-de runs/de-en --port 9000 --engine onnxruntime",
    "SEQCOMPOSER_TOKEN=secret seqcomposer serve runs/mine --host 0.0.0.0",
)
def serve(
    runs: Annotated[
        list[str],
        argument("RUN|key=value", "Runs, then overrides for all of them.", complete_run),
    ],
    host: Annotated[
        str, option("--host ADDRESS", "Address to listen at; another than loopback needs a token.")
    ] = Settings.host,
    port: Annotated[
        int, option("--port N", "Port to listen at; 0 is a free one.", min=0, max=65535)
    ] = Settings.port,
    token: Annotated[
        str | None, option("--token TEXT", f"Token of all requests.  [default: ${TOKEN}]")
    ] = None,
    engine: options.EngineOption = None,
    wait_ms: Annotated[
        float, option("--wait-ms MS", "Wait for more requests to decode together.", min=0)
    ] = Settings.wait_ms,
    batch_lines: Annotated[
        int, option("--batch-lines N", "Decode at most N lines together.", min=1)
    ] = Settings.batch_lines,
    queue: Annotated[
        int, option("--queue N", "Let at most N requests wait.", min=1)
    ] = Settings.queue,
    timeout: Annotated[
        float, option("--timeout SECONDS", "Time limit of a request.", min=0.001)
    ] = Settings.timeout,
    max_bytes: Annotated[
        int, option("--max-bytes N", "Size limit of a request.", min=1)
    ] = Settings.max_bytes,
    max_lines: Annotated[
        int, option("--max-lines N", "Limit of the lines of a request.", min=1)
    ] = Settings.max_lines,
    max_characters: Annotated[
        int, option("--max-characters N", "Limit of the characters of a line.", min=1)
    ] = Settings.max_characters,
    page: Annotated[
        bool, option("--page", "Serve a page of the first run at /, as export --web writes it.")
    ] = Settings.page,
) -> None:
    """Serve runs over HTTP.

    POST /v1/translate takes {"lines": [...]}, /v1/generate {"prompt": "..."} for a language model;
    /healthz and /metrics (Prometheus) take GET. Each run is a model by its folder's name; the first
    is the default. Requests that arrive together are decoded together. Ctrl-C and SIGTERM end the
    server once the requests that have begun are answered; a second one ends it at once.
    """
    folders, overrides = split_runs(runs)
    with options.show_loading():
        from composer.inference.run import open_run
        from composer.model.machine import require_packages
    require_packages(PACKAGES)
    opened = []
    for folder in folders:
        opened.append(open_run(folder, [*overrides, *engine_overrides(folder, overrides, engine)]))
    try:
        api.serve(
            opened,
            host=host,
            port=port,
            token=token,
            wait_ms=wait_ms,
            batch_lines=batch_lines,
            queue=queue,
            timeout=timeout,
            max_bytes=max_bytes,
            max_lines=max_lines,
            max_characters=max_characters,
            page=page,
        )
    except (KeyboardInterrupt, SystemExit):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # or the interpreter's end shows a traceback
        raise

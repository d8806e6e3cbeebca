"""The paths of the server, on FastAPI."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles

from composer.errors import ComposerError
from composer.inference.answers import Translation
from composer.inference.run import Run
from composer.server.gate import EVENTS, JOB, Gate
from composer.server.jobs import Job, Translating, Writing
from composer.server.measures import Measures
from composer.server.refusals import GONE, Refused, refusal_of
from composer.server.requests import GenerateBody, SomeBody, TranslateBody, parse_body
from composer.server.settings import Settings
from composer.server.worker import Worker
from composer.suggest import did_you_mean

METHODS = {"/v1/translate": "POST", "/v1/generate": "POST", "/healthz": "GET", "/metrics": "GET"}
"""What each path takes; all others are those of a page."""
LOG = logging.getLogger("uvicorn.error")
"""Where uvicorn says which answers failed."""
Awaited = TypeVar("Awaited")


def create_app(runs: Mapping[str, Run], settings: Settings, page: Path | None = None) -> Gate:
    """Return the application that serves runs by their names, with a worker that has begun.

    page: A folder of files to serve, too.
    """
    measures = Measures()
    worker = Worker(settings, measures)
    measures.queue.set_function(lambda: len(worker.waiting))
    app = FastAPI(
        title="seqcomposer",
        version=version("seqcomposer"),
        openapi_url=None,
        redirect_slashes=False,
    )

    @app.post("/v1/translate")
    async def translate(request: Request) -> Response:
        body = await body_of(request, TranslateBody)
        name = model_name(runs, body.model)
        check_sizes(body, settings)
        with worker.reserve():
            job = await asyncio.to_thread(Translating.of, runs[name], body)
        add_job(job, request, worker)
        rows = await unless_gone(request, asyncio.wrap_future(job.answers))
        answers = []
        for row in rows:
            answers.append([describe(one, body.scores) for one in row if is_found(one)])
        return JSONResponse({"model": name, "answers": answers})

    @app.post("/v1/generate")
    async def generate(request: Request) -> Response:
        body = await body_of(request, GenerateBody)
        name = model_name(runs, body.model)
        check_characters([body.prompt or ""], settings)
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def write(piece: str | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server has not waited
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        with worker.reserve():
            job = await asyncio.to_thread(Writing.of, runs[name], body, write)
        add_job(job, request, worker)
        if not body.stream:
            ((text,),) = await unless_gone(request, asyncio.wrap_future(job.answers))
            return JSONResponse({"model": name, **describe(text, scores=True)})
        job.answers.add_done_callback(lambda _: write(None))
        first = await unless_gone(request, pieces.get())
        if first is None:
            job.answers.result()  # an error before any text is one of the request
        return StreamingResponse(events(job, first, pieces), media_type=EVENTS)

    @app.get("/healthz")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def read_measures() -> Response:
        return Response(measures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    if page is not None:
        app.mount("/", StaticFiles(directory=page, html=True))
    add_handlers(app)
    return Gate(app, settings, worker)


def add_handlers(app: FastAPI) -> None:
    """Give every error of an application the one form."""

    async def refuse(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 0)
        refused = refusal_of_request(request.url.path, status) or refusal_of(error)
        return Response(refused.body(), refused.status, refused.headers)

    for kind in (404, 405, Refused, ComposerError, Exception):
        app.add_exception_handler(kind, refuse)


def refusal_of_request(path: str, status: int) -> Refused | None:
    """Return what a client is told in place of the library's own words; None of another status."""
    if status not in (404, 405):
        return None
    if path in METHODS:  # files of a page take GET at every path
        fix = f"send {METHODS[path]}"
        return Refused(405, "method", "this path takes another method", fix)
    return Refused(404, "path", "there is no such path", f"the paths are {', '.join(METHODS)}")


async def body_of(request: Request, kind: type[SomeBody]) -> SomeBody:
    """Return the body of a request. Raises Refused."""
    content_type = request.headers.get("content-type", "")
    return parse_body(kind, content_type, await request.body())


def model_name(runs: Mapping[str, Run], name: str | None) -> str:
    """Return the name of a model, by default the first. Raises Refused."""
    if name is None:
        return next(iter(runs))
    if name not in runs:
        message = f"no model is called `{name[:60]}`{did_you_mean(name[:60], runs)}"
        raise Refused(404, "model", message, f"the models are {', '.join(runs)}")
    return name


def check_sizes(body: TranslateBody, settings: Settings) -> None:
    """Raise Refused for more lines, or longer ones, than are accepted."""
    if len(body.lines) > settings.max_lines:
        message = f"there are {len(body.lines):,} lines, and the limit is {settings.max_lines:,}"
        raise Refused(413, "size", message, "send several requests")
    texts = [text for line in body.lines for text in ([line] if isinstance(line, str) else line)]
    check_characters([*texts, *(body.prefixes or ())], settings)


def check_characters(texts: Sequence[str], settings: Settings) -> None:
    """Raise Refused for a text that is longer than is accepted."""
    longest = max(map(len, texts), default=0)
    if longest > settings.max_characters:
        message = f"a text has {longest:,} characters, and the limit is {settings.max_characters:,}"
        raise Refused(413, "size", message, "split it, or send its end alone")


def add_job(job: Job, request: Request, worker: Worker) -> None:
    """Let a job wait for its turn until its request ends."""
    request.scope[JOB] = job
    worker.add(job)


async def unless_gone(request: Request, awaitable: Awaitable[Awaited]) -> Awaited:
    """Return what is awaited. Raises Refused if the client leaves before."""
    result = asyncio.ensure_future(awaitable)
    left = asyncio.ensure_future(client_leaves(request))
    either: set[asyncio.Future[Awaited] | asyncio.Future[None]] = {result, left}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        raise Refused(GONE, "gone", "the client has left")
    finally:
        result.cancel()
        left.cancel()


async def client_leaves(request: Request) -> None:
    """Wait for the end of a connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def events(
    job: Job, piece: str | None, pieces: asyncio.Queue[str | None]
) -> AsyncIterator[str]:
    """Yield the text of a job as server-sent events, the first piece and the others, and its end.

    None stands behind the last piece.
    """
    while piece is not None:
        yield event({"text": piece})
        piece = await pieces.get()
    try:
        ((text,),) = job.answers.result()
    except Exception as error:
        if not isinstance(error, ComposerError):
            LOG.exception("an answer failed")
        yield refusal_of(error).event()
        return
    end = describe(text, scores=True)
    del end["text"]  # it has been sent
    yield event(end)
    yield "data: [DONE]\n\n"


def event(data: Mapping[str, object]) -> str:
    """Return data as a server-sent event."""
    return f"data: {json.dumps(data)}\n\n"


def describe(answer: Translation, scores: bool) -> dict[str, object]:
    """Return an answer for JSON, which has no infinity."""
    described: dict[str, object] = {"text": answer.text, "ended": answer.ended}
    if scores:
        described["score"] = answer.score if math.isfinite(answer.score) else None
    return described


def is_found(answer: Translation) -> bool:
    """False for what stands in place of an answer where a beam has fewer than are asked for."""
    return bool(answer.text) or math.isfinite(answer.score)

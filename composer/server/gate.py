"""What every request passes: the token, the limits, the time, and the end of the server."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from composer.server.jobs import Job
from composer.server.refusals import GONE, Refused
from composer.server.settings import Settings, is_loopback
from composer.server.worker import Worker

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
"""The types of ASGI."""
EVENTS = "text/event-stream"
LAST_SECONDS = 1.0
"""Seconds in which a client has to take the last event of a stream."""
JOB = "seqcomposer.job"
"""The key of a request's job in its scope."""


@dataclass
class Sent:
    """How much of an answer has been sent.

    status: 0 before the headers. is_stream: True of server-sent events. is_whole: True at the end.
    """

    status: int = 0
    is_stream: bool = False
    is_whole: bool = False

    def note(self, message: Message) -> None:
        """Note a message that is being sent."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kind = dict(message["headers"]).get(b"content-type", b"")
            self.is_stream = kind.startswith(EVENTS.encode())
        else:
            self.is_whole = not message.get("more_body", False)


class Gate:
    """An ASGI application around another one, which gets requests with their whole bodies.

    is_draining: True if requests that arrive are refused. open_requests: Those that have begun.
    """

    def __init__(self, app: App, settings: Settings, worker: Worker) -> None:
        self.app, self.settings, self.worker = app, settings, worker
        self.is_draining = False
        self.open_requests = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, sent = monotonic(), Sent()

        async def send_noted(message: Message) -> None:
            await send(message)
            sent.note(message)

        self.open_requests += 1
        try:
            await self._answer(scope, receive, send_noted)
        except Refused as refused:
            await send_refusal(send_noted, refused)
        except TimeoutError:
            message = f"the answer took longer than {self.settings.timeout:g} s"
            late = Refused(504, "time", message, "send less, or try again later")
            if not sent.status:
                await send_refusal(send_noted, late)
            elif sent.is_stream and not sent.is_whole:
                await send_last_event(send_noted, late)
        finally:
            self.open_requests -= 1
            job: Job | None = scope.get(JOB)
            if job is not None:
                self.worker.drop(job)
            seconds = monotonic() - begun
            self.worker.measures.add_request(scope["path"], sent.status or GONE, seconds)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on. Raises Refused and TimeoutError."""
        self._check(scope)
        end = asyncio.get_running_loop().time() + self.settings.timeout
        try:
            async with asyncio.timeout_at(end):
                body = await read_body(receive, self.settings.max_bytes)
        except TimeoutError:
            message = f"the body did not arrive in {self.settings.timeout:g} s"
            raise Refused(408, "time", message, "send it faster") from None
        arrived: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_whole() -> Message:
            return arrived.pop() if arrived else await receive()

        async with asyncio.timeout_at(end):
            await self.app(scope, receive_whole, send)

    def _check(self, scope: Message) -> None:
        """Raise Refused for a request without the token, or at the end of the server."""
        path, token = scope["path"], self.settings.token
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not token and not is_local(headers.get(b"host", b"").decode("latin-1")):
            message = "this server has no token, and answers only what names this machine as host"
            raise Refused(403, "host", message, "ask http://localhost, or give the server a token")
        if token and path != "/healthz":
            expected = f"Bearer {token}".encode()
            if not hmac.compare_digest(headers.get(b"authorization", b""), expected):
                fix = "send the header `Authorization: Bearer TOKEN`"
                raise Refused(401, "token", "the token is missing or another one", fix)
        if self.is_draining and path != "/metrics":
            raise Refused(503, "ending", "this server is ending", "try another one, or later")


def is_local(host: str) -> bool:
    """True if a header `Host` names this machine: no page of another one can send it."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return the body of a request. Raises Refused if it is too large.

    What is too much is read and dropped, so that the client gets to read the refusal.
    """
    body, size, has_more = bytearray(), 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(GONE, "gone", "the client has left")
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            body += part
        has_more = message.get("more_body", False)
    if size > limit:
        problem = f"the body has {size:,} bytes, and the limit is {limit:,}"
        raise Refused(413, "size", problem, "send several requests")
    return bytes(body)


async def send_refusal(send: Send, refused: Refused) -> None:
    """Answer with an error."""
    headers = [(key.lower().encode(), value.encode()) for key, value in refused.headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": refused.body().encode()})


async def send_last_event(send: Send, refused: Refused) -> None:
    """End a stream of events with an error; one whose client reads nothing stays cut."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_SECONDS):
            await send({"type": "http.response.body", "body": refused.event().encode()})

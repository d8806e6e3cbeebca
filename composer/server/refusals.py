"""What a client is told in place of an answer: one form for every error."""

from __future__ import annotations

import json
from dataclasses import dataclass

from composer.errors import ComposerError, RunFailed, one_line_error

GONE = 499
"""Status in the measures of a request whose client has left."""


@dataclass(eq=False)
class Refused(Exception):
    """A request that is not answered: its status, and why."""

    status: int
    code: str
    message: str
    fix: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        headers = {"Content-Type": "application/json", "Content-Length": str(len(self.body()))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if self.status == 503:
            headers["Retry-After"] = "1"
        return headers

    def event(self) -> str:
        """Return the error as a server-sent event."""
        return f"data: {self.body()}\n\n"

    def body(self) -> str:
        """Return the error as JSON, in ASCII: a message may quote half of a character."""
        error = {"code": self.code, "message": self.message, "fix": self.fix}
        return json.dumps({"error": error})


def refusal_of(error: Exception) -> Refused:
    """Return what a client is told of an error; of our own mistakes no more than that."""
    if isinstance(error, Refused):
        return error
    if not isinstance(error, ComposerError):
        message = f"this server made a mistake: {type(error).__name__}"
        return Refused(500, "internal", message, "its log says where: please report it")
    fault = error.faults[0] if error.faults else None
    if fault is None:
        return Refused(422, "run", one_line_error(error))
    place = f"line {fault.line}: " if fault.line else ""
    status = 500 if isinstance(error, RunFailed) else 422
    return Refused(status, fault.code, place + fault.message, fault.hint)

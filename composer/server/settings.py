"""Settings of a server, and what it needs to be installed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address

from composer.errors import RunError

PACKAGES = ("fastapi", "uvicorn", "prometheus_client")
"""What a server is made of."""
TOKEN = "SEQCOMPOSER_TOKEN"
"""The variable of the environment that holds the token."""


@dataclass(frozen=True)
class Settings:
    """Where a server listens, how it batches, and its limits.

    token: What requests must carry; needed unless `host` is this machine alone.
    wait_ms: Milliseconds that the first request of a batch waits for others.
    batch_lines: Lines decoded together at most, unless one request has more.
    queue: Requests that wait for the model at most.
    timeout: Seconds for a request, from its first byte to the last of its answer.
    max_bytes, max_lines, max_characters: Limits of a body, of its lines, and of each text.
    page: Whether the first run's page of `export --web` is served, too.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    wait_ms: float = 5.0
    batch_lines: int = 64
    queue: int = 128
    timeout: float = 60.0
    max_bytes: int = 1 << 20
    max_lines: int = 256
    max_characters: int = 10_000
    page: bool = False

    def __post_init__(self) -> None:
        """Raise RunError for a setting that is not possible."""
        counts = ("batch_lines", "queue", "timeout", "max_bytes", "max_lines", "max_characters")
        for name in counts:
            if getattr(self, name) <= 0:
                option = name.replace("_", "-")
                message = f"`--{option}` takes a number above 0, not {getattr(self, name):g}"
                raise RunError.of(message, "write a larger one, or leave it out")
        if not 0 <= self.port <= 65535 or self.wait_ms < 0:
            fix = "write a port from 0, a free one, to 65535, and 0 milliseconds or more"
            raise RunError.of(f"`--port {self.port} --wait-ms {self.wait_ms:g}` cannot be", fix)
        if not self.token and not is_loopback(self.host):
            message = f"whoever reaches {self.host} could use the models: there is no token"
            raise RunError.of(message, f"set {TOKEN}, or write `--token`")
        if self.token and self.page:
            message = "a browser sends no token when it opens a page"
            fix = "leave out `--page`, and give the folder of `export --web DIR` to a web server"
            raise RunError.of(message, fix)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_or_environment(token: str | None) -> str | None:
    """Return a token, by default that of the environment."""
    return token or os.environ.get(TOKEN) or None

"""Measures of a server, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PATHS = ("/v1/translate", "/v1/generate", "/healthz", "/metrics", "/")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LINES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Measures:
    """Counts of requests and lines; times; sizes of batches."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "seqcomposer_requests",
            "Requests that ended.",
            ("path", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "seqcomposer_request_seconds",
            "Seconds of a request.",
            ("path",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.lines = Counter("seqcomposer_lines", "Lines decoded.", registry=self.registry)
        self.batches = Histogram(
            "seqcomposer_batch_lines",
            "Lines of a batch.",
            buckets=LINES,
            registry=self.registry,
        )
        self.queue = Gauge(
            "seqcomposer_queue_length", "Requests that wait.", registry=self.registry
        )

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; paths that are not ours are one."""
        path = path if path in PATHS else "other"
        self.requests.labels(path, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def add_batch(self, lines: int) -> None:
        """Count the lines of a batch."""
        self.batches.observe(lines)
        self.lines.inc(lines)

    def text(self) -> str:
        """Return all measures in Prometheus's text format."""
        return generate_latest(self.registry).decode()

"""The process of a server: many clients, bad ones among them, and its end by a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch

from composer.cli import main
from composer.errors import RunError
from composer.inference.run import open_run
from composer.model.special_tokens import EOS
from composer.model.weights import save_weights
from composer.server import process
from composer.server.settings import Settings
from tests.exporters.runs import file_run
from tests.inference.untrained import GRU, LANGUAGE, made, record_hashes

PATH = "/v1/translate"
LONG = "{greedy: {max_length: 5000, max_ratio: 1000}}"


@contextmanager
def served(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address; killed if it is still there."""
    command = [sys.executable, "-m", "composer", "serve", *words, "--port", "0"]
    with subprocess.Popen(command, text=True, stderr=subprocess.PIPE) as server:
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            assert " at http://" in line, line + server.stderr.read()
            yield server, line.split(" at ")[1].strip()
        finally:
            server.kill()


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head(length: int) -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def dribble(address: str, seconds: float) -> int:
    """Send a body byte by byte, and return the status."""
    with connect(address) as client:
        client.sendall(head(1_000))
        end = time.monotonic() + seconds
        client.settimeout(0.1)
        while time.monotonic() < end:
            try:
                client.sendall(b" ")
                if answer := client.recv(1_000):
                    return status_of(answer)
            except TimeoutError:
                continue
    return 0


def leave(address: str) -> None:
    """Send a request, and be gone before its answer."""
    body = json.dumps({"lines": ["eins zwei drei"] * 50}).encode()
    with connect(address) as client:
        client.sendall(head(len(body)) + body)


def post(address: str, lines: list[str], **more: object) -> httpx.Response:
    return httpx.post(address + PATH, json={"lines": lines, **more}, timeout=60)


@pytest.mark.slow
def test_a_server_answers_among_bad_clients_and_ends_with_all_answered(tmp_path: Path) -> None:
    folder = made(tmp_path / "words")
    writer = made(tmp_path / "writer", LANGUAGE, decoding="{greedy: {max_length: 5000}}")
    expected = open_run(folder).translate(["eins zwei", "drei"])
    options = ["--timeout", "4", "--max-bytes", "100000", "--queue", "1000"]
    with served(str(folder), str(writer), *options) as (server, address):
        with ThreadPoolExecutor(24) as clients:
            good = [clients.submit(post, address, ["eins zwei", "drei"]) for _ in range(60)]
            slow = clients.submit(dribble, address, 20)
            gone = [clients.submit(leave, address) for _ in range(5)]
            huge = clients.submit(httpx.post, address + PATH, content=b" " * 3_000_000, timeout=60)
            wrong = clients.submit(post, address, ["eins"], beem=1)
            mad = clients.submit(httpx.post, address + PATH, content=b"{", timeout=60)
        answers = [one.result() for one in good]
        assert Counter(answer.status_code for answer in answers) == {200: 60}
        for answer in answers:
            assert [row[0]["text"] for row in answer.json()["answers"]] == expected
        statuses = [huge.result().status_code, wrong.result().status_code, slow.result()]
        assert statuses == [413, 422, 408]
        assert mad.result().status_code in (400, 422)
        assert all(one.exception() is None for one in gone)
        measures = httpx.get(address + "/metrics").text
        assert f'{{path="{PATH}",status="408"}} 1.0' in measures
        assert "seqcomposer_queue_length 0.0" in measures
        asyncio.run(end_in_the_middle(server, address, expected))
        assert server.wait(30) == 143
        assert server.stderr is not None
        assert "Traceback" not in server.stderr.read()


async def end_in_the_middle(
    server: subprocess.Popen[str], address: str, expected: list[str]
) -> None:
    """Send SIGTERM while requests wait: those that have begun are answered, later ones refused."""
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as http:
        await asyncio.gather(*(http.get("/healthz") for _ in range(40)))  # connections that last
        text = asyncio.ensure_future(stream(http))
        await asyncio.sleep(0.3)
        begun = [
            asyncio.ensure_future(http.post(PATH, json={"lines": ["eins zwei", "drei"] * 100}))
            for _ in range(20)
        ]
        await asyncio.sleep(0.3)
        server.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        late = await http.get("/healthz")
        assert (late.status_code, late.json()["error"]["code"]) == (503, "ending")
        for answer in await asyncio.gather(*begun):
            assert answer.status_code == 200
            texts = [row[0]["text"] for row in answer.json()["answers"]]
            assert texts == expected * 100
        await text


async def stream(http: httpx.AsyncClient) -> None:
    body = {"model": "writer", "prompt": "eins", "stream": True, "max_length": 20}
    async with http.stream("POST", "/v1/generate", json=body) as answer:
        text = "".join([piece async for piece in answer.aiter_text()])
    assert text.endswith("data: [DONE]\n\n")


@pytest.mark.slow
def test_a_client_that_leaves_a_stream_frees_the_model(tmp_path: Path) -> None:
    writer = endless(tmp_path / "writer", LANGUAGE)
    with served(str(writer), "--timeout", "300") as (server, address):
        body = {"max_length": 10_000, "stream": True}
        begun = time.monotonic()
        with httpx.stream("POST", address + "/v1/generate", json=body, timeout=60) as answer:
            assert sum(1 for _ in answer.iter_text()) > 100
        whole = time.monotonic() - begun
        with httpx.stream("POST", address + "/v1/generate", json=body, timeout=60) as answer:
            assert next(answer.iter_text())
        begun = time.monotonic()
        assert httpx.post(address + "/v1/generate", json={"max_length": 2}, timeout=60).is_success
        assert time.monotonic() - begun < whole / 2
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 130


@pytest.mark.slow
def test_streams_that_take_too_long_end_in_order_at_the_end(tmp_path: Path) -> None:
    """One that is written gets an error as its last event, one behind a long batch a status."""
    words = endless(tmp_path / "words", decoding=LONG)
    writer = endless(tmp_path / "writer", LANGUAGE)
    body = {"model": "writer", "max_length": 10_000, "stream": True}

    def post_stream(address: str) -> httpx.Response:
        return httpx.post(address + "/v1/generate", json=body, timeout=60)

    with served(str(words), str(writer), "--timeout", "3") as (server, address):
        with ThreadPoolExecutor(3) as clients:
            written = clients.submit(post_stream, address)
            time.sleep(0.5)
            clients.submit(post, address, ["eins zwei drei"] * 200)
            time.sleep(0.5)
            waiting = clients.submit(post_stream, address)
            time.sleep(0.5)
            server.send_signal(signal.SIGTERM)
        assert json.loads(written.result().text.split("\n\n")[-2][6:])["error"]["code"] == "time"
        assert waiting.result().status_code == 504
        assert waiting.result().json()["error"]["code"] == "time"
        assert server.wait(30) == 143
        assert server.stderr is not None
        assert server.stderr.read() == ""


@pytest.mark.slow
@pytest.mark.parametrize("client_seconds", [0.5, 60], ids=["its client has left", "it is awaited"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_server_at_once(
    tmp_path: Path, number: signal.Signals, client_seconds: float
) -> None:
    """While a batch is decoded, which nothing else can end."""
    folder = str(endless(tmp_path / "words", decoding=LONG))
    with served(folder, "--timeout", "300") as (server, address):
        with ThreadPoolExecutor(1) as clients:
            body = {"lines": ["eins zwei drei"] * 200}
            clients.submit(httpx.post, address + PATH, json=body, timeout=client_seconds)
            time.sleep(1)
            server.send_signal(number)
            time.sleep(0.35)
            assert server.poll() is None
            server.send_signal(number)
            begun = time.monotonic()
            assert server.wait(30) == 128 + number
            assert time.monotonic() - begun < 2
        assert server.stderr is not None
        assert server.stderr.read() == ""


def endless(folder: Path, base: str = GRU, decoding: str = "greedy") -> Path:
    """A model that never ends an answer by itself."""
    run = open_run(made(folder, base, decoding=decoding))
    with torch.no_grad():
        run.model.output.bias[EOS] = -1e4
    save_weights(run.model, folder / "model.safetensors")
    return record_hashes(folder)


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=f"port {port} of 127.0.0.1 cannot be opened"):
            process.listen(Settings(port=port))


def test_two_runs_of_one_name_are_refused(tmp_path: Path) -> None:
    run = open_run(made(tmp_path / "a"))
    with pytest.raises(RunError, match="two runs are called `a`"):
        process.by_name([run, run])


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_a_run_that_reads_files_is_refused(tmp_path: Path, kind: str) -> None:
    run, _ = file_run(tmp_path, kind)
    with pytest.raises(RunError, match=f"{run.run_dir.path}: .* a server opens no files"):
        process.by_name([open_run(made(tmp_path / "words")), run])


def test_another_host_needs_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQCOMPOSER_TOKEN", raising=False)
    folder = str(made(tmp_path / "a"))
    with pytest.raises(SystemExit) as ended:
        main.main(["serve", folder, "--host", "0.0.0.0"])
    assert ended.value.code == 2
    assert "set SEQCOMPOSER_TOKEN" in capsys.readouterr().err


def test_a_server_drains_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, by a signal to itself once it listens."""
    run = open_run(made(tmp_path / "a"))
    notes: list[str] = []
    statuses: list[int] = []
    answers: list[bytes] = []

    def note(text: str) -> None:
        notes.append(text)
        threading.Thread(target=talk, args=[text.split(" at ")[1]]).start()

    def talk(address: str) -> None:
        try:
            statuses.append(post(address, ["eins"]).status_code)
            for lines in ("X: y", "Host: localhost\r\nContent-Length: abc"):
                answers.append(send_raw(address, f"POST {PATH} HTTP/1.1\r\n{lines}\r\n\r\n"))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(process, "write_note", note)
    with pytest.raises(SystemExit) as ended:
        process.serve_runs([run], Settings(port=0))
    assert (ended.value.code, statuses) == (143, [200])
    assert notes[0].startswith("serving a at http://127.0.0.1:")
    assert len(answers) == 2
    for answer in answers:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert status_of(answer) == 400
        assert b"application/json" in head
        assert set(json.loads(body)["error"]) == {"code", "message", "fix"}


def send_raw(address: str, request: str) -> bytes:
    """Send what may be no HTTP, and return all that comes until the connection is closed."""
    with connect(address) as client:
        client.sendall(request.encode())
        return b"".join(iter(lambda: client.recv(10_000), b""))

"""Requests and their answers, in one process: what is answered, and what is refused with what."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

import composer
from composer.errors import RunError, RunFailed
from composer.inference.generate import generate
from composer.inference.run import Run, open_run
from composer.server import jobs
from composer.server.app import create_app
from composer.server.gate import Gate
from composer.server.settings import Settings
from tests.inference.untrained import LANGUAGE, TWO, made

LINES = ["eins zwei drei", "", "vier"]
LOCAL = "http://localhost"
STREAM = {"model": "writer", "prompt": "eins", "stream": True}
Build = Callable[..., Gate]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("served")
    drawing = "{sample: {seed: 3, max_length: 8}}"
    return {
        "words": open_run(made(folder / "words")),
        "two": open_run(made(folder / "two", TWO)),
        "greedy": open_run(made(folder / "greedy", decoding="greedy")),
        "short": open_run(made(folder / "short", decoding="{beam: {max_length: 1}}")),
        "drawn": open_run(made(folder / "drawn", decoding=drawing)),
        "writer": open_run(made(folder / "writer", LANGUAGE, decoding="{greedy: {max_length: 9}}")),
    }


@pytest.fixture
def build(runs: dict[str, Run]) -> Iterator[Build]:
    gates: list[Gate] = []

    def make(**settings: Any) -> Gate:
        gates.append(create_app(runs, Settings(**settings)))
        return gates[-1]

    yield make
    assert all(gate.worker.close() for gate in gates)


@pytest.fixture
def client(build: Build) -> TestClient:
    return TestClient(build(max_bytes=20_000), LOCAL, raise_server_exceptions=False)


def side_by_side(
    gate: Gate, talk: Callable[[httpx.AsyncClient], Awaitable[list[Any]]]
) -> list[Any]:
    """What a conversation of several clients with a server gives."""

    async def run() -> list[Any]:
        transport = httpx.ASGITransport(app=gate, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as http:
            return await talk(http)

    return asyncio.run(run())


def ask(http: httpx.AsyncClient, *lines: str, **more: object) -> Awaitable[httpx.Response]:
    return http.post("/v1/translate", json={"lines": lines, **more})


# -------------------------------------------------------------------------------------------
# answers


def test_lines_are_translated_as_python_translates_them(
    client: TestClient, runs: dict[str, Run]
) -> None:
    answer = client.post("/v1/translate", json={"lines": LINES}).json()
    texts = runs["words"].translate(LINES)
    assert answer["model"] == "words"
    assert [row[0]["text"] for row in answer["answers"]] == texts
    assert "score" not in answer["answers"][0][0]
    more = {"beam": 4, "n_best": 2, "scores": True, "prefixes": ["acht", "", ""]}
    rows = client.post("/v1/translate", json={"lines": LINES, **more}).json()["answers"]
    expected = runs["words"].translate(LINES, 4, 2, True, more["prefixes"])  # type: ignore[arg-type]
    for row, answers in zip(rows, expected, strict=True):
        assert [(one["text"], one["ended"]) for one in row] == [(a.text, a.ended) for a in answers]
        assert [one["score"] for one in row] == pytest.approx([a.score for a in answers])


def test_a_line_of_several_encoders_is_a_list_of_texts(
    client: TestClient, runs: dict[str, Run]
) -> None:
    body = {"model": "two", "lines": [["eins", "zwei"], "drei\tvier"]}
    rows = client.post("/v1/translate", json=body).json()["answers"]
    expected = runs["two"].translate([("eins", "zwei"), ("drei", "vier")])
    assert [row[0]["text"] for row in rows] == expected


def test_no_lines_have_no_answers(client: TestClient) -> None:
    assert client.post("/v1/translate", json={"lines": []}).json()["answers"] == []


def test_answers_that_a_beam_has_not_are_left_out(client: TestClient) -> None:
    body = {"model": "short", "lines": ["eins"], "beam": 20, "n_best": 20, "scores": True}
    (row,) = client.post("/v1/translate", json=body).json()["answers"]
    assert 1 < len(row) < 20
    assert all(answer["score"] is not None for answer in row)


def test_a_text_is_continued_at_once_and_in_events(
    client: TestClient, runs: dict[str, Run]
) -> None:
    body = {"model": "writer", "prompt": "eins", "max_length": 6, "temperature": 0.7, "seed": 5}
    settings = {"max_length": 6, "temperature": 0.7, "seed": 5}
    (text,) = generate(runs["writer"], ["eins"], **settings)  # type: ignore[arg-type]
    assert client.post("/v1/generate", json=body).json()["text"] == text
    answer = client.post("/v1/generate", json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, end, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert len(pieces) > 1
    assert "".join(json.loads(piece[6:])["text"] for piece in pieces) == text
    whole = client.post("/v1/generate", json=body).json()
    assert json.loads(end[6:]) == {"ended": whole["ended"], "score": whole["score"]}


def test_an_error_before_the_first_text_of_a_stream_has_its_status(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "write_texts", failing)
    answer = client.post("/v1/generate", json=STREAM)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "run")


@pytest.mark.parametrize(
    ("error", "code"), [(RunFailed.of("out of memory"), "run"), (KeyError("secret"), "internal")]
)
def test_an_error_in_a_stream_is_an_event_without_an_end(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    def write_texts(run: Run, begun: object, decoding: object, on_text: Any) -> Any:
        on_text(0, "eins")
        raise error

    monkeypatch.setattr(jobs, "write_texts", write_texts)
    text, end, rest = client.post("/v1/generate", json=STREAM).text.split("\n\n")
    assert json.loads(text[6:]) == {"text": "eins"}
    assert json.loads(end[6:])["error"]["code"] == code
    assert rest == ""
    assert "secret" not in end


def failing(*_: object, **__: object) -> None:
    raise RunFailed.of("out of memory")


# -------------------------------------------------------------------------------------------
# refusals

TRANSLATE, GENERATE = "/v1/translate", "/v1/generate"
REFUSED: dict[str, tuple[str, object, int, str, str]] = {
    "no list": (TRANSLATE, {"lines": "a"}, 422, "type", "`lines`"),
    "no text": (TRANSLATE, {"lines": ["a", 3]}, 422, "type", "`lines[1]`"),
    "no lines": (TRANSLATE, {}, 422, "type", "`lines`"),
    "an unknown key": (TRANSLATE, {"lines": [], "beem": 1}, 422, "key", "did you mean `beam`"),
    "half a character": (TRANSLATE, {"lines": ["a\ud800"]}, 422, "run", "surrogate"),
    "half a character as a key": (TRANSLATE, {"\ud800": 1}, 422, "request", "object"),
    "true as a number": (TRANSLATE, {"lines": [], "beam": True}, 422, "type", "`beam`"),
    "a text as a number": (TRANSLATE, {"lines": [], "beam": "3"}, 422, "type", "`beam`"),
    "a beam that is too wide": (TRANSLATE, {"lines": [], "beam": 999}, 422, "type", "`beam`"),
    "no object": (TRANSLATE, [1], 422, "request", "object"),
    "an unknown model": (TRANSLATE, {"lines": [], "model": "word"}, 404, "model", "`words`"),
    "a prefix too many": (
        TRANSLATE,
        {"lines": ["a"], "prefixes": ["a", "b"]},
        422,
        "run",
        "`prefixes` has 2 texts for 1 line",
    ),
    "a text too few": (TRANSLATE, {"lines": ["a"], "model": "two"}, 422, "columns", "line 1: "),
    "a text too many": (
        TRANSLATE,
        {"lines": ["a", ["b", "c"]]},
        422,
        "columns",
        "line 2: this line has 2 texts, and the model reads one",
    ),
    "too many lines": (TRANSLATE, {"lines": ["a"] * 257}, 413, "size", "257"),
    "a long line": (TRANSLATE, {"lines": ["a" * 10_001]}, 413, "size", "10,001"),
    "a long prefix": (
        TRANSLATE,
        {"lines": ["a"], "prefixes": ["a" * 10_001]},
        413,
        "size",
        "10,001",
    ),
    "a large body": (TRANSLATE, {"lines": ["a" * 20_000]}, 413, "size", "limit is 20,000"),
    "more answers than a beam": (
        TRANSLATE,
        {"lines": ["a"], "beam": 2, "n_best": 3},
        422,
        "n_best",
        'send `"beam": 3`',
    ),
    "answers of a method that finds one": (
        TRANSLATE,
        {"lines": ["a"], "n_best": 9, "model": "greedy"},
        422,
        "n_best",
        "`greedy` finds 1 answer, and 9 are asked for",
    ),
    "a prompt for a translator": (GENERATE, {"prompt": "a"}, 422, "model", "answers a source"),
    "a long prompt": (GENERATE, {"prompt": "a" * 10_001, "model": "writer"}, 413, "size", "10,001"),
    "an empty prompt": (GENERATE, {"prompt": "", "model": "writer"}, 422, "run", "is empty"),
    "no temperature": (GENERATE, {"temperature": 0}, 422, "type", "`temperature`"),
    "lines to continue": (GENERATE, {"lines": ["a"]}, 422, "key", "no key `lines`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused_with_what_to_do(client: TestClient, name: str) -> None:
    path, body, status, code, message = REFUSED[name]
    headers = {"content-type": "application/json"}
    answer = client.post(path, content=json.dumps(body), headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert message in error["message"] + error["fix"]
    assert error["fix"]
    assert set(error) == {"code", "message", "fix"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"lines": [}', "no JSON from line 1, column 12, on"),
        (b"", "no JSON from line 1, column 1, on"),
        (b"\xff", "send JSON in UTF-8"),
        (b"1" * 5_000, "shorter numbers"),
        (b"[" * 15_000, "nested too deeply"),
        (b'{"lines": ["ka"], "lines": ["lo"]}', "the key `lines` is there twice"),
        (b'{"lines": [{"a": 1, "a": 2}]}', "the key `a` is there twice"),
    ],
)
def test_what_is_no_json_is_refused(client: TestClient, content: bytes, message: str) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = client.post(TRANSLATE, content=content, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "json")
    assert message in f"{error['message']}; {error['fix']}"


def test_a_form_of_another_page_is_refused(client: TestClient) -> None:
    answer = client.post(TRANSLATE, content='{"lines": []}', headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "request")


def test_unknown_paths_and_methods_have_the_same_form(client: TestClient) -> None:
    answer = client.get("/v2")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "path")
    for method, path, right in (
        ("GET", TRANSLATE, "POST"),
        ("DELETE", GENERATE, "POST"),
        ("POST", "/healthz", "GET"),
    ):
        answer = client.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method")
        assert answer.json()["error"]["fix"] == f"send {right}"


def test_a_path_with_a_slash_too_many_leads_to_no_other_host(client: TestClient) -> None:
    answer = client.post(f"{TRANSLATE}/", json={"lines": []}, follow_redirects=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "path")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("localhost@evil.example", 403),
        ("192.168.0.1", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_without_a_token_only_a_name_of_this_machine_is_answered(
    client: TestClient, host: str, status: int
) -> None:
    """A page of another site whose name leads here sends that name."""
    for path in ("/metrics", "/healthz"):
        assert client.get(path, headers={"host": host}).status_code == status
    answer = client.post(TRANSLATE, json={"lines": ["eins"]}, headers={"host": host})
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["code"] == "host"


def test_a_line_that_would_be_cut_is_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_TOKENS", 3)
    answer = client.post(TRANSLATE, json={"lines": ["eins", "eins zwei drei vier"]})
    assert answer.status_code == 413
    assert "4 tokens" in answer.json()["error"]["message"]


def test_a_text_that_leaves_no_position_is_refused(tmp_path: Path) -> None:
    model = "decoder: [{positions: {kind: learned, max_length: 3}}, {rnn: {cell: gru}}]"
    gate = create_app({"bounded": open_run(made(tmp_path / "run", model))}, Settings())
    lines = {"lines": ["eins", "eins zwei drei"]}
    with TestClient(gate, LOCAL) as client:
        for path, body in ((TRANSLATE, lines), (GENERATE, {"prompt": "eins zwei drei"})):
            answer = client.post(path, json=body)
            assert answer.status_code == 422
            assert "has 3 tokens, and this model reads 2 at most" in answer.text
    assert gate.worker.close()


def test_a_mistake_of_the_server_shows_nothing_of_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("/home/me/secret")

    monkeypatch.setattr(jobs, "translate_lines", broken)
    answer = client.post(TRANSLATE, json={"lines": ["a"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert client.get("/healthz").status_code == 200


def test_a_block_that_calls_exit_ends_its_answer_alone(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaving(*_: object, **__: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(jobs, "translate_lines", leaving)
    monkeypatch.setattr(jobs, "write_texts", leaving)
    answer = client.post(TRANSLATE, json={"lines": ["a"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert client.post(GENERATE, json={"model": "writer"}).status_code == 500
    assert client.get("/healthz").status_code == 200


def test_a_failure_of_the_machine_is_no_mistake_of_the_client(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "translate_lines", failing)
    assert client.post(TRANSLATE, json={"lines": ["a"]}).status_code == 500


def test_a_token_is_needed_but_for_the_health(build: Build) -> None:
    client = TestClient(build(token="secret"), "http://models.example")
    body = {"lines": ["eins"]}
    for value in ("", "secret", "Bearer", "Bearer other", "bearer secret"):
        answer = client.post(TRANSLATE, json=body, headers={"authorization": value})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token")
    headers = {"authorization": "Bearer secret"}
    assert client.post(TRANSLATE, json=body, headers=headers).status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/healthz").status_code == 200


def test_requests_at_the_end_are_refused_and_measures_are_read(build: Build) -> None:
    gate = build()
    client = TestClient(gate, LOCAL)
    gate.is_draining = True
    for answer in (client.get("/healthz"), client.post(TRANSLATE, json={"lines": []})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "ending")
        assert answer.headers["retry-after"] == "1"
    assert client.get("/metrics").status_code == 200


# -------------------------------------------------------------------------------------------
# batches


class Spy:
    """`translate_lines` that notes the lines of each call, and waits for `go` where it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[list[object]] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.original = jobs.translate_lines
        monkeypatch.setattr(jobs, "translate_lines", self)

    def __call__(self, runs: list[Run], lines: list[Any], *more: Any) -> Any:
        self.calls.append([*lines])
        self.begun.set()
        assert self.go.wait(20)
        if "bad" in lines:
            raise RunFailed.of("this line breaks everything")
        return self.original(runs, lines, *more)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


def test_requests_of_equal_settings_are_decoded_together(
    build: Build, spy: Spy, runs: dict[str, Run]
) -> None:
    async def talk(http: httpx.AsyncClient) -> list[Any]:
        same = [ask(http, "eins", "zwei"), ask(http, "drei"), ask(http, "vier")]
        other = [ask(http, "fünf", beam=2), ask(http, "eins", model="drawn")]
        return await asyncio.gather(*same, *other)

    gate = build(wait_ms=300)
    answers = side_by_side(gate, talk)
    assert sorted(map(len, spy.calls)) == [1, 1, 4]
    texts = [[row[0]["text"] for row in answer.json()["answers"]] for answer in answers]
    words = runs["words"]
    assert texts[:4] == [
        words.translate([*lines]) for lines in (["eins", "zwei"], ["drei"], ["vier"])
    ] + [words.translate(["fünf"], beam=2)]
    measures = TestClient(gate, LOCAL).get("/metrics").text
    assert 'seqcomposer_requests_total{path="/v1/translate",status="200"} 5.0' in measures
    assert "seqcomposer_batch_lines_count 3.0" in measures
    assert "seqcomposer_lines_total 6.0" in measures
    assert "seqcomposer_queue_length 0.0" in measures


def test_a_batch_has_no_more_lines_than_it_may(build: Build, spy: Spy) -> None:
    async def talk(http: httpx.AsyncClient) -> list[Any]:
        return await asyncio.gather(*(ask(http, "eins", "zwei") for _ in range(5)))

    assert all(
        answer.is_success for answer in side_by_side(build(wait_ms=300, batch_lines=5), talk)
    )
    assert sorted(map(len, spy.calls)) == [2, 4, 4]


def test_a_sample_does_not_depend_on_its_neighbours(build: Build, runs: dict[str, Run]) -> None:
    async def talk(http: httpx.AsyncClient) -> list[Any]:
        return await asyncio.gather(*(ask(http, line, model="drawn") for line in ("zwei", "eins")))

    answers = side_by_side(build(wait_ms=100), talk)
    texts = [answer.json()["answers"][0][0]["text"] for answer in answers]
    assert texts == [runs["drawn"].translate([line])[0] for line in ("zwei", "eins")]


def test_a_mistake_hurts_no_neighbour(build: Build, spy: Spy) -> None:
    async def talk(http: httpx.AsyncClient) -> list[Any]:
        return await asyncio.gather(*(ask(http, line) for line in ("eins", "bad", "zwei")))

    answers = side_by_side(build(wait_ms=300), talk)
    assert [answer.status_code for answer in answers] == [200, 500, 200]
    assert [len(lines) for lines in spy.calls] == [3, 1, 1, 1]


def test_a_full_queue_refuses_and_recovers(build: Build, spy: Spy) -> None:
    gate = build(queue=2, wait_ms=0)
    spy.go.clear()

    async def talk(http: httpx.AsyncClient) -> list[Any]:
        first = asyncio.ensure_future(ask(http, "eins"))
        await asyncio.to_thread(spy.begun.wait, 20)
        others = [asyncio.ensure_future(ask(http, "zwei")) for _ in range(3)]
        (refused,), waiting = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        spy.go.set()
        return [refused.result(), await first, *[await one for one in waiting]]

    refused, *answered = side_by_side(gate, talk)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "full"
    assert [answer.status_code for answer in answered] == [200, 200, 200]
    assert gate.open_requests == 0


def test_requests_that_are_read_have_places_in_the_queue(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, read = threading.Event(), threading.Event(), jobs.check_lengths

    def check_lengths(*given: Any) -> None:
        begun.set()
        assert go.wait(20)
        read(*given)

    monkeypatch.setattr(jobs, "check_lengths", check_lengths)

    async def talk(http: httpx.AsyncClient) -> list[Any]:
        first = asyncio.ensure_future(ask(http, "eins"))
        await asyncio.to_thread(begun.wait, 20)
        refused = await asyncio.wait_for(ask(http, "zwei"), 10)
        go.set()
        return [refused, await first, await ask(http, "drei")]

    answers = side_by_side(build(queue=1), talk)
    assert [answer.status_code for answer in answers] == [503, 200, 200]


def test_a_request_that_takes_too_long_frees_its_place(build: Build, spy: Spy) -> None:
    gate = build(timeout=1, wait_ms=0)
    spy.go.clear()

    async def talk(http: httpx.AsyncClient) -> list[Any]:
        return await asyncio.gather(ask(http, "eins"), ask(http, "zwei", beam=1))

    for answer in side_by_side(gate, talk):
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "time")
    assert not gate.worker.waiting
    spy.go.set()
    assert TestClient(gate, LOCAL).post(TRANSLATE, json={"lines": ["drei"]}).status_code == 200
    assert ["zwei"] not in spy.calls


def test_a_stream_that_takes_too_long_has_a_status_or_ends_with_an_error(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits has no headers yet; one that has begun ends with an event."""
    go = threading.Event()

    def write_texts(run: Run, begun: object, decoding: object, on_text: Any) -> Any:
        on_text(0, "eins")
        assert go.wait(20)
        return []

    monkeypatch.setattr(jobs, "write_texts", write_texts)
    gate = build(timeout=1)

    async def talk(http: httpx.AsyncClient) -> list[Any]:
        first = asyncio.ensure_future(http.post(GENERATE, json=STREAM))
        await asyncio.sleep(0.2)
        return await asyncio.gather(first, http.post(GENERATE, json=STREAM))

    begun, waiting = side_by_side(gate, talk)
    go.set()
    text, end, rest = begun.text.split("\n\n")
    assert (json.loads(text[6:]), rest) == ({"text": "eins"}, "")
    assert json.loads(end[6:]) == waiting.json()
    assert (waiting.status_code, waiting.json()["error"]["code"]) == (504, "time")
    assert gate.open_requests == 0


def test_a_stream_that_nobody_reads_is_given_up(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client takes the headers alone, so that the event of the error does not fit either."""
    gate, ended = build(timeout=0.5), threading.Event()
    monkeypatch.setattr("composer.server.gate.LAST_SECONDS", 0.1)
    body = json.dumps(STREAM).encode()
    arriving = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if not arriving:
            await asyncio.Event().wait()
        return arriving.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": GENERATE, "headers": headers}

    async def run() -> None:
        await asyncio.wait_for(gate({**scope, "query_string": b""}, receive, send), 20)
        ended.set()

    asyncio.run(run())
    assert ended.is_set()
    assert gate.open_requests == 0


def test_a_body_that_does_not_arrive_is_given_up(build: Build) -> None:
    gate = build(timeout=0.2)

    async def dribble() -> Any:
        for _ in range(50):
            yield b" "
            await asyncio.sleep(0.1)

    async def talk(http: httpx.AsyncClient) -> list[Any]:
        return [await http.post(TRANSLATE, content=dribble())]

    (answer,) = side_by_side(gate, talk)
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "time")


def test_a_text_that_nobody_waits_for_is_not_written_to_its_end(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, dropped = [], threading.Event()

    def write_texts(run: Run, begun: object, decoding: object, on_text: Any) -> Any:
        try:
            for _ in range(2_000):
                pieces.append(1)
                on_text(0, "a")
                threading.Event().wait(0.01)
        except jobs.Dropped:
            dropped.set()
            raise

    monkeypatch.setattr(jobs, "write_texts", write_texts)
    client = TestClient(build(timeout=0.3), LOCAL, raise_server_exceptions=False)
    assert client.post(GENERATE, json={"model": "writer"}).status_code == 504
    assert dropped.wait(10)
    assert len(pieces) < 1_000


# -------------------------------------------------------------------------------------------
# settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "0.0.0.0"}, "no token"),
        ({"host": "example.org", "token": ""}, "no token"),
        ({"queue": 0}, "--queue` takes a number above 0, not 0"),
        ({"port": 70_000}, "--port"),
        ({"page": True, "token": "secret"}, "a browser sends no token"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        Settings(**settings)


def test_a_page_is_exported_and_served(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[Path] = []

    def export_web(run: Run, folder: Path, *_: object) -> Path:
        folder.mkdir()
        (folder / "index.html").write_text(f"page of {run.recipe.name}")
        (folder / "step.wasm").write_bytes(b"w")
        exported.append(folder)
        return folder

    def serve_runs(opened: list[Run], settings: Settings, page: Path) -> None:
        gate = create_app({"a": opened[0]}, settings, page)
        client = TestClient(gate, LOCAL)
        assert client.get("/").text == "page of untrained"
        assert client.get("/step.wasm").headers["content-type"] == "application/wasm"
        assert client.get("/../recipe.yaml").json()["error"]["code"] == "path"
        assert client.get(TRANSLATE).json()["error"]["fix"] == "send POST"
        assert client.post(TRANSLATE, json={"lines": ["eins"]}).status_code == 200
        assert gate.worker.close()

    monkeypatch.setattr("composer.exporters.web_export.export_web", export_web)
    monkeypatch.setattr("composer.server.process.serve_runs", serve_runs)
    composer.serve(runs["words"], page=True)
    assert len(exported) == 1
    assert not exported[0].exists()

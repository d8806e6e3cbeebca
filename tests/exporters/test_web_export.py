"""`export --web`: a page that any web server gives, and that answers as the model does."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from composer.errors import RunError
from composer.exporters import web_runtime
from composer.exporters.web_export import export_web
from composer.exporters.web_runtime import PACKAGES, sha512_of
from composer.inference.run import Run, decoding_settings, open_run, translate_lines
from tests.inference.untrained import ATTENTION, GRU, LANGUAGE, TWO, made

BROWSER = Path(__file__).parents[1] / "browser"
PROGRAMS = BROWSER / "node_modules" / ".npm"
LINES = ["eins zwei, drei", "vier", "zehn neun unbekannt acht acht eins eins"]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Archives with the names of the packages, whose files are empty."""
    folder, known = tmp_path / "npm", []
    folder.mkdir()
    for package in PACKAGES:
        with tarfile.open(folder / package.archive, "w:gz") as archive:
            for name in package.files:
                archive.addfile(tarfile.TarInfo(name))
        known.append(replace(package, sha512=sha512_of(folder / package.archive)))
    monkeypatch.setattr(web_runtime, "PACKAGES", tuple(known))
    return folder


def test_a_page_has_all_that_it_names_and_no_path_of_this_machine(
    packages: Path, tmp_path: Path
) -> None:
    run = made(tmp_path / "run")
    page = export_web(run, tmp_path / "page", packages)
    html = (page / "index.html").read_text(encoding="utf-8")
    for name in ("style.css", "page.css", "main.js", "icon.svg", "architecture.svg"):
        assert f'"{name}"' in html
        assert (page / name).stat().st_size
    assert {file.name for file in (page / "runtime").iterdir()} == {
        Path(name).name for package in PACKAGES for name in package.files
    }
    for file in page.rglob("*"):
        assert not file.is_file() or str(tmp_path).encode() not in file.read_bytes(), file


def test_packages_that_are_missing_or_others_are_refused_before_anything_is_written(
    packages: Path, tmp_path: Path
) -> None:
    run, last = made(tmp_path / "run"), packages / PACKAGES[-1].archive
    last.write_bytes(b"something else")
    with pytest.raises(RunError, match=r"is not @huggingface/tokenizers@.* as npm publishes it"):
        export_web(run, tmp_path / "page", packages)
    last.unlink()
    with pytest.raises(RunError, match=r"npm pack --pack-destination .*--runtime DIR") as caught:
        export_web(run, tmp_path / "page", packages)
    assert caught.value.faults[0].file == str(last)
    assert not (tmp_path / "page").exists()


# ------------------------------------------------------------------------------------- the browser


@pytest.fixture(scope="module")
def chromium() -> str:
    """The program; the tests are skipped where a program is missing."""
    program = shutil.which("chromium")
    for name, found in (
        ("Debian's chromium", program),
        ("Node", shutil.which("node")),
        ("`npm install` in tests/browser", (BROWSER / "node_modules" / "playwright-core").exists()),
    ):
        if not found:
            pytest.skip(f"there is no {name}")
    assert program
    return program


@pytest.fixture(scope="module")
def runtime(chromium: str) -> Path:
    """The packages of npm, which the first test of all fetches."""
    PROGRAMS.mkdir(exist_ok=True)
    if missing := [it.name for it in PACKAGES if not (PROGRAMS / it.archive).exists()]:
        command = ["npm", "pack", "--pack-destination", str(PROGRAMS), *missing]
        subprocess.run(command, check=True, capture_output=True)
    return PROGRAMS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    """A web server of `root` that sends no headers of its own."""
    handler = functools.partial(QuietHandler, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def drive(**plan: object) -> dict[str, Any]:
    """Open a page and ask it, see drive.mjs."""
    plan["chromium"] = shutil.which("chromium")
    command = ["node", str(BROWSER / "drive.mjs")]
    done = subprocess.run(command, input=json.dumps(plan), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def page(root: Path, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a GRU with attention."""
    return export_web(made(tmp_path_factory.mktemp("gru") / "run"), root / "gru", runtime)


def assert_equal_answers(run: Run, seen: dict[str, Any], lines: list[str], size: int) -> None:
    """The page's answers are those of `translate`, with their scores, and nothing went wrong."""
    decoding = decoding_settings(run.recipe, size)
    expected = translate_lines([run], lines, decoding, n_best=size)
    for answers, known in zip(seen["answers"], expected, strict=True):
        texts = [answer.text or "(empty)" for answer in known if answer.score > -1e9]
        assert [text or "(empty)" for text, _ in answers] == texts
        scores = [answer.score for answer in known if answer.score > -1e9]
        assert [score for _, score in answers] == pytest.approx(scores, abs=0.01)
    assert seen["complaints"] == []


@pytest.mark.browser
@pytest.mark.parametrize(
    ("model", "tokenizer"),
    [(GRU, "byte"), (ATTENTION, "word"), (ATTENTION, "{bpe: {size: 300}}"), (TWO, "char")],
    ids=["gru", "attention", "pieces", "two"],
)
def test_a_page_answers_as_the_model_does(
    model: str, tokenizer: str, root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    run = open_run(made(tmp_path / "run", model, tokenizer, seed=3))
    export_web(run, root / tmp_path.name, runtime)
    lines = ["\t".join([line] * len(run.recipe.sources)) for line in LINES]
    questions = [{f"source-{side}": line for side in run.recipe.sources} for line in LINES]
    for size in (1, 4):
        settings = {"size": str(size)}
        url = f"{address}/{tmp_path.name}/"
        seen = drive(url=url, questions=questions, settings=settings)
        assert_equal_answers(run, seen, lines, size)


@pytest.mark.browser
def test_a_language_model_continues_a_prompt(
    root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    run = open_run(made(tmp_path / "run", LANGUAGE))
    export_web(run, root / "language", runtime)
    url = f"{address}/language/"
    seen = drive(url=url, questions=[{"source-prompt": line} for line in LINES])
    assert_equal_answers(run, seen, LINES, 3)
    drawn = drive(url=url, questions=[{"source-prompt": ""}] * 3, settings={"method": "sample"})
    assert all(len(answers) == 1 for answers in drawn["answers"])
    assert drawn["complaints"] == []


@pytest.mark.browser
def test_a_page_asks_only_its_own_server_and_each_file_once(page: Path, address: str) -> None:
    seen = drive(url=f"{address}/gru/", questions=[{"source-source": line} for line in LINES])
    assert all(url.startswith(f"{address}/gru/") for url in seen["requests"])
    assert len(seen["requests"]) == len({*seen["requests"]})
    read = {url.removeprefix(f"{address}/gru/") or "index.html" for url in seen["requests"]}
    rest = {file.relative_to(page).as_posix() for file in page.rglob("*") if file.is_file()} - read
    assert rest == {"licences.txt", "runtime/LICENSE", "runtime/README.md"}


@pytest.mark.browser
def test_a_page_fits_a_phone_and_follows_light_and_dark(page: Path, address: str) -> None:
    question = {"source-source": " ".join(["eins"] * 60)}
    colours = set()
    for scheme in ("light", "dark"):
        seen = drive(url=f"{address}/gru/", width=360, scheme=scheme, questions=[question])
        assert seen["overflow"] <= 0
        colours.add(seen["background"])
    assert len(colours) == 2


@pytest.mark.browser
def test_a_page_needs_no_mouse(page: Path, address: str) -> None:
    keys = ["Tab", "=eins zwei", "Enter", "Tab", "Tab", "Tab"]
    seen = drive(url=f"{address}/gru/", keys=keys)
    assert seen["focused"] == ["source-source"] * 3 + ["method", "size", "go"]
    assert seen["status"].startswith("Answered in")


@pytest.mark.browser
def test_a_page_that_is_opened_as_a_file_says_what_it_needs(page: Path) -> None:
    seen = drive(url=(page / "index.html").as_uri())
    assert "python3 -m http.server" in seen["note"]
    assert not seen["form"]

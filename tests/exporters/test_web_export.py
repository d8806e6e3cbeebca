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

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import composer
from composer.errors import RunError
from composer.exporters import web_runtime
from composer.exporters.web_export import copy_page, export_web
from composer.exporters.web_runtime import PACKAGES, find_archives, sha512_of
from composer.inference.lines import encode_lines
from composer.inference.run import Run, decoding_settings, open_run, translate_lines
from tests.inference.test_story_runs import write_recipe
from tests.inference.untrained import ATTENTION, GRU, LANGUAGE, TWO, made, with_weights

BROWSER = Path(__file__).parents[1] / "browser"
PROGRAMS = BROWSER / "node_modules" / ".npm"
DEMOS = Path(__file__).parents[2] / "docs" / "demos"
LINES = ["eins zwei, drei", "vier", "zehn neun unbekannt acht acht eins eins"]
SPECIAL = "eins ⟨eos⟩ ⟨pad⟩ zwei ⟨unk⟩ ⟨bos⟩"


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


def test_a_page_says_where_its_search_is_another_one(packages: Path, tmp_path: Path) -> None:
    for word, known in (("mbr", True), ("beam", False)):
        run = made(tmp_path / word, decoding=word)
        html = (export_web(run, tmp_path / f"{word}-page", packages) / "index.html").read_text()
        assert ("The recipe decodes by mbr; this page searches by a beam" in html) == known


def test_an_option_of_another_format_is_refused(tmp_path: Path) -> None:
    for to in ("onnx", "ctranslate2"):
        with pytest.raises(RunError, match=f"`--runtime` is not for `--{to}`"):
            composer.export(tmp_path, tmp_path / "out", to, runtime=tmp_path)
    with pytest.raises(RunError, match="`--int8` is not for `--ctranslate2`"):
        composer.export(tmp_path, tmp_path / "out", "ctranslate2", int8=True)


ORT = """
export const env = { wasm: {} };
export class InferenceSession { static async create() { return {}; } }
"""
LOAD = """
import { readFile } from "node:fs/promises";
import { Network, checked } from "./network.js";
const read = async file => new Uint8Array(await readFile(file));
const settings = JSON.parse(await readFile("model.json"));
try {
  for (const { text } of settings.sources) await checked(await read(text.tokenizer), text.tokenizer, settings);
  await Network.load(settings, read);
  console.log("loaded");
} catch (error) {
  console.log(error.message);
}
"""


@pytest.mark.skipif(not shutil.which("node"), reason="there is no Node")
@pytest.mark.parametrize("file", ["", "encode.onnx", "weights.bin", "tokenizer.source.json"])
def test_a_page_refuses_a_file_of_another_export(file: str, packages: Path, tmp_path: Path) -> None:
    page = export_web(made(tmp_path / "run"), tmp_path / "page", packages)
    (page / "runtime" / "ort.wasm.bundle.min.mjs").write_text(ORT, encoding="utf-8")
    (page / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (page / "load.mjs").write_text(LOAD, encoding="utf-8")
    if file:
        content = bytearray((page / file).read_bytes())
        content[len(content) // 2] ^= 1
        (page / file).write_bytes(content)
    done = subprocess.run(["node", "load.mjs"], cwd=page, capture_output=True, text=True)
    wrong = f"{file} is not of this export: copy the whole folder again"
    assert done.stdout.strip() == (wrong if file else "loaded"), done.stderr


SOUNDS = """
import { readFile } from "node:fs/promises";
import { requireWhole } from "./sounds.js";
for (const name of process.argv.slice(2)) {
  try {
    requireWhole(new Uint8Array(await readFile(name)).buffer);
    console.log("whole");
  } catch (error) {
    console.log(error.message);
  }
}
"""


@pytest.mark.skipif(not shutil.which("node"), reason="there is no Node")
def test_a_page_refuses_a_sound_that_is_cut_off(tmp_path: Path) -> None:
    shutil.copy(Path(web_runtime.__file__).parent / "web" / "sounds.js", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    (tmp_path / "read.mjs").write_text(SOUNDS, encoding="utf-8")
    whole, empty = tmp_path / "whole.wav", tmp_path / "empty.wav"
    soundfile.write(whole, np.zeros((100, 2)), 8000, "PCM_16")
    soundfile.write(empty, np.zeros((0, 2)), 8000, "PCM_16")
    content = whole.read_bytes()
    at = content.index(b"data") + 4
    others = {
        "cut.wav": content[:-30],
        "frame.wav": content[:-1],
        "head.wav": content[:at],
        "streamed.wav": content[:at] + b"\xff" * 4 + content[at + 4 :],
        "ogg.wav": b"OggS",
    }
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    command = ["node", "read.mjs", whole.name, empty.name, *others]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    cut = "This sound is cut off: its header says 400 bytes of samples, and there are"
    none = "This sound has no samples."
    expected = ["whole", none, f"{cut} 370.", f"{cut} 399.", none, "whole", "whole"]
    assert done.stdout.splitlines() == expected, done.stderr


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
    [
        (GRU, "byte"),
        (ATTENTION, "word"),
        (ATTENTION, "{bpe: {size: 300}}"),
        (GRU, "{word: {split: spaces}}"),
        (TWO, "char"),
    ],
    ids=["gru", "attention", "pieces", "spaces", "two"],
)
def test_a_page_answers_as_the_model_does(
    model: str, tokenizer: str, root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    run = open_run(made(tmp_path / "run", model, tokenizer, seed=3))
    export_web(run, root / tmp_path.name, runtime)
    texts = [*LINES, SPECIAL]
    lines = ["\t".join([line] * len(run.recipe.sources)) for line in texts]
    questions = [{f"source-{side}": line for side in run.recipe.sources} for line in texts]
    for size in (1, 4):
        settings = {"size": str(size)}
        url = f"{address}/{tmp_path.name}/"
        seen = drive(url=url, questions=questions, settings=settings)
        assert_equal_answers(run, seen, lines, size)


@pytest.mark.browser
def test_a_page_ranks_by_the_length_penalty_of_the_recipe(
    root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    # with a length that is one less, the order of answers would be another
    decoding = "{beam: {size: 4, length_penalty: 4.0, max_length: 20}}"
    run = open_run(made(tmp_path / "run", ATTENTION, "word", seed=1, decoding=decoding))
    export_web(run, root / "penalty", runtime)
    questions = [{"source-source": line} for line in LINES]
    seen = drive(url=f"{address}/penalty/", questions=questions, settings={"size": "4"})
    assert_equal_answers(run, seen, LINES, 4)


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


NEURAL_GPU = """
encoder: [grid: {columns: 2, max_length_ratio: 2}, cgru, cgru, select_column: 0]
decoder: [source_state]
"""


@pytest.mark.browser
def test_a_model_with_room_for_its_answer_tries_every_size(
    root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    run = open_run(made(tmp_path / "run", NEURAL_GPU))
    export_web(run, root / "room", runtime)
    questions = [{"source-source": line} for line in LINES]
    seen = drive(url=f"{address}/room/", questions=questions, settings={"size": "3"})
    assert_equal_answers(run, seen, LINES, 3)
    assert len({len(answers[0][0].split()) for answers in seen["answers"]}) > 1


@pytest.mark.browser
def test_a_greedy_recipe_ranks_sizes_without_a_penalty(
    root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    run = open_run(made(tmp_path / "run", NEURAL_GPU, seed=5, decoding="greedy"))
    export_web(run, root / "greedy", runtime)
    questions = [{"source-source": line} for line in LINES]
    seen = drive(url=f"{address}/greedy/", questions=questions)
    expected = translate_lines([run], LINES, run.recipe.decoding)
    assert [row[0][0] for row in seen["answers"]] == [row[0].text for row in expected]
    beam = drive(url=f"{address}/greedy/", questions=questions, settings={"size": "3"})
    assert_equal_answers(run, beam, LINES, 3)


@pytest.mark.browser
@pytest.mark.parametrize(
    "decoding",
    ["{sample: {temperature: 0.333, max_length: 1}}", "{beam: {size: 30, max_length: 1}}"],
)
def test_the_values_of_every_recipe_can_be_sent(
    decoding: str, root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    run = open_run(made(tmp_path / "run", decoding=decoding))
    export_web(run, root / tmp_path.name, runtime)
    for settings in ({}, {"method": "beam"}, {"method": "sample"}):
        url = f"{address}/{tmp_path.name}/"
        seen = drive(url=url, questions=[{"source-source": "eins"}], settings=settings)
        assert seen["answers"][0]
        assert " s: 1 step, " in seen["status"]


ATTENDED = 'document.getElementById("attention").innerText'


@pytest.mark.browser
def test_a_text_beside_another_may_be_empty_and_attention_names_its_source(
    root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    run = open_run(made(tmp_path / "run", TWO))
    export_web(run, root / "beside", runtime)
    rows = [("eins zwei", ""), ("", "drei")]
    questions = [{"source-left": left, "source-right": right} for left, right in rows]
    seen = drive(url=f"{address}/beside/", questions=questions, script=ATTENDED)
    assert_equal_answers(run, seen, ["\t".join(row) for row in rows], 3)
    assert "a column one of “left”" in seen["result"]


ASK_WRONGLY = """
(async () => {
  const seen = [];
  for (const text of [" ", "eins\\nzwei\\n", "eins ".repeat(10_001)]) {
    document.getElementById("source-source").value = text;
    document.getElementById("question").requestSubmit();
    await new Promise(resolve => setTimeout(resolve));
    const shown = document.querySelectorAll("#answers li, #attention:not([hidden])").length;
    seen.push([document.getElementById("status").textContent, shown]);
  }
  return seen;
})()
"""


@pytest.mark.browser
def test_a_refused_question_leaves_no_answer_of_another(page: Path, address: str) -> None:
    asked = [{"source-source": "eins"}]
    seen = drive(url=f"{address}/gru/", questions=asked, script=ASK_WRONGLY)
    assert seen["result"] == [
        ["Write a text into “source”.", 0],
        ["“source” takes one line, and these are 2: join them, or ask one after the other.", 0],
        ["This text has 10001 tokens, and 10000 are read at most: shorten it.", 0],
    ]


SHOW_SCORES = """
import("./view.js").then(({ hypothesisList }) => [-0.004, -0.006, -12.5].map(
  score => hypothesisList([{ ids: [], score, rank: 0, ended: true, attention: [] }], () => "")[0].lastChild.textContent
))
"""


@pytest.mark.browser
def test_no_score_is_minus_zero(page: Path, address: str) -> None:
    seen = drive(url=f"{address}/gru/", script=SHOW_SCORES)
    assert seen["result"] == ["log p 0.00", "log p \u22120.01", "log p \u221212.50"]


@pytest.mark.browser
def test_a_page_reads_stories(root: Path, runtime: Path, address: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    recipe = write_recipe(tmp_path).rename(tmp_path / "run" / "recipe.yaml")
    run = open_run(with_weights(recipe.parent, tmp_path))
    export_web(run, root / "stories", runtime)
    story, question = "A went to hall.  B went to OFFICE. A went to garden.", "Where is A?"
    asked = [{"source-question": question, "source-story": story}]
    seen = drive(url=f"{address}/stories/", questions=asked, settings={"size": "2"})
    assert_equal_answers(run, seen, [f"{question}\t{story}"], 2)


READ_PICTURE = """
(async () => {
  const { readImage } = await import("./images.js");
  const { sources: [{ column, shape }] } = await (await fetch("model.json")).json();
  const { values } = await readImage(await (await fetch("a.png")).blob(), column, shape);
  return Array.from(values, value => (Number.isNaN(value) ? -1 : value));
})()
"""
"""The cells of a picture on the server, as the page reads them; -1 is none."""
MEDIA = """
recipe: 1
data:
  table: {{train: train.tsv, source: {column}, target: text}}
  tokenizer: char
model:
  width: 8
  encoder: {encoder}
  decoder: [{{rnn: {{cell: gru}}}}, residual: [cross_attention: {{heads: 1}}]]
decoding: {{beam: {{size: 3, max_length: 8}}}}
"""


def run_of_files(folder: Path, names: list[str], column: str, encoder: str) -> Run:
    """A run that reads files, which lie beside it."""
    rows = [f"{name}\t{'abc'[at % 3] * (at + 1)}" for at, name in enumerate(names)]
    (folder / "train.tsv").write_text("\n".join(["file\ttext", *rows]) + "\n", encoding="utf-8")
    (folder / "run").mkdir()
    recipe = MEDIA.format(column=column, encoder=encoder)
    (folder / "run" / "recipe.yaml").write_text(recipe, encoding="utf-8")
    return open_run(with_weights(folder / "run", folder))


@pytest.mark.browser
@pytest.mark.parametrize("settings", ["channels: 1, positions: columns", "channels: 3"])
def test_a_page_scales_pictures_as_pillow_does(
    settings: str, root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    names = []
    for height, width in ((40, 61), (9, 70), (5, 4)):
        small = random.integers(0, 256, (height // 4 + 1, width // 4 + 1, 4), dtype=np.uint8)
        small[..., 3] |= 254  # browsers keep fewer bits of a colour that is more transparent
        names.append(f"{height}.png")
        Image.fromarray(small).resize((width, height)).save(tmp_path / names[-1])
    column = f"{{column: file, kind: image, size: [10, 16], {settings}}}"
    run = run_of_files(tmp_path, names, column, "[sum_columns, rnn]")
    export_web(run, root / tmp_path.name, runtime)
    files = [str(tmp_path / name) for name in names]
    shutil.copy(files[0], root / tmp_path.name / "a.png")
    url, asked = f"{address}/{tmp_path.name}/", [{"source-source": it} for it in files]
    seen = drive(url=url, questions=asked, script=READ_PICTURE)
    assert_equal_answers(run, seen, files, 3)
    cells = encode_lines(run.recipe, run.tokenizers, {1: (files[0],)})[1]["source"][0]
    expected = torch.as_tensor(cells).nan_to_num(-1).flatten()
    assert (torch.tensor(seen["result"]) - expected).abs().max() < 1.5 / 255


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["audio", "fixed audio", "vectors"])
def test_a_page_reads_sounds_and_vectors(
    kind: str, root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    names = []
    for count in (700, 2400, 5000):
        names.append(f"{count}.{'npy' if kind == 'vectors' else 'wav'}")
        if kind != "vectors":
            samples = 0.3 * np.sin(np.arange(count) ** 1.3 / 9) + 0.1 * random.random(count)
            soundfile.write(tmp_path / names[-1], samples, 8000)
        else:
            np.save(tmp_path / names[-1], random.random((count // 100, 5)))
    mel = "bands: 8, fft: 200, padding: reflect"
    settings = {
        "audio": "kind: audio, rate: 8000, features: {log_mel: {bands: 8}}",
        "fixed audio": "kind: audio, rate: 8000, seconds: 0.4, normalize: range,"
        f" features: {{log_mel: {{{mel}}}}}",
        "vectors": "kind: vectors, width: 5",
    }
    run = run_of_files(tmp_path, names, f"{{column: file, {settings[kind]}}}", "[rnn]")
    export_web(run, root / tmp_path.name, runtime)
    files = [str(tmp_path / name) for name in names]
    seen = drive(
        url=f"{address}/{tmp_path.name}/", questions=[{"source-source": it} for it in files]
    )
    assert_equal_answers(run, seen, files, 3)
    assert len({str(answers) for answers in seen["answers"]}) == len(files)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "line", "answer"),
    [
        ("numbers", "four hundred and twenty-one", "vierhunderteinundzwanzig"),
        ("reverse", "a b c d e f", "f e d c b a"),
    ],
)
def test_the_models_of_the_site_answer(
    name: str, line: str, answer: str, root: Path, runtime: Path, address: str, tmp_path: Path
) -> None:
    site = root / tmp_path.name
    shutil.copytree(DEMOS, site)
    copy_page(find_archives(runtime), site)
    url = f"{address}/{site.name}/{name}/index.html"
    seen = drive(url=url, questions=[{"source-source": line}])
    assert [text for text, _ in seen["answers"][0]] == [answer]
    assert seen["complaints"] == []


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

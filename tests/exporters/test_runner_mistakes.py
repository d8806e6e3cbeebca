"""`run.py` as a command: what it writes, and its one line for each mistake."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer.data.audio import read_sound
from composer.data.media_files import MediaError
from composer.errors import RecipeError
from composer.exporters import runner as module
from composer.exporters.onnx_export import export_onnx
from composer.exporters.runner import Runner, RunnerError, Settings
from composer.inference.methods import Beam, Sample
from composer.inference.run import open_run, translate_lines
from composer.recipe.data_sections import TableColumn
from composer.recipe.recipe import load_text
from tests.exporters.conftest import Exports
from tests.exporters.runs import exported
from tests.exporters.test_runner import LINES, PREFIXES, assert_same, lines_of, replace_attribute
from tests.inference.untrained import GRU, LANGUAGE, made


def run_py(runner: Path, text: str | bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run an export without this project."""
    content = text.encode() if isinstance(text, str) else text
    command = [sys.executable, "-I", str(runner / "run.py"), *options]
    return subprocess.run(command, input=content, capture_output=True, cwd=runner)


def test_the_command_line_writes_what_translate_writes(
    folder: Path, exports: Exports, tmp_path: Path
) -> None:
    run, _ = exports("two")
    (tmp_path / "begun").write_text("\n".join(PREFIXES) + "\n", encoding="utf-8")
    options = ["--beam", "4", "--n-best", "2", "--scores", "--prefix", str(tmp_path / "begun")]
    lines = lines_of("two")
    done = run_py(folder, "\ufeff" + "\r\n".join(lines), *options, "--max-length", "9")
    assert done.returncode == 0, done.stderr
    decoding = Beam(size=4, max_length=9)
    native = translate_lines([run], lines, decoding, PREFIXES, n_best=2)
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()]
    answers = [answer for row in native for answer in row]
    assert [float(score) for score, _ in rows] == pytest.approx(
        [answer.score for answer in answers], abs=2e-4
    )
    assert [text for _, text in rows] == [answer.text for answer in answers]
    cut = [at for at, row in enumerate(native, 1) if not row[0].ended]
    listed = f"{', '.join(map(str, cut[:10]))}{' ...' if len(cut) > 10 else ''}"
    sentence = f"answers that were cut: {len(cut)} of 24 (lines: {listed}): raise --max-length"
    assert sentence in done.stderr.decode()


def test_a_mistake_is_one_line_and_exit_status_2(folder: Path, tmp_path: Path) -> None:
    cases = [
        ("eins", [], "line 1: texts: 1, and the model reads 2: right, left, tabs between"),
        ("eins\tzwei\n\neins\tzwei\tdrei", [], "line 3: texts: 3, and the model reads 2"),
        (b"a\tb\n\xff\n", [], "stdin, line 2: not UTF-8: convert the file"),
        ("a\tb", ["lines.txt"], "lines are read from stdin: write `python run.py < lines.txt`"),
        ("a\tb", ["--temperature", "0"], "--temperature takes a number above 0, not 0.0"),
        ("a\tb", ["--beam", "2", "--top-k", "2"], "beam has no --top-k"),
        ("a\tb", ["--greedy", "--length-penalty", "1"], "greedy has no --length-penalty"),
        ("a\tb", ["--greedy", "--n-best", "2"], "write --beam 2"),
        ("a\tb", ["--beam", "2", "--n-best", "3"], "write --beam 3"),
        ("a\tb", ["--batch", "0"], "--batch takes an integer of 1 or more"),
        ("", ["--n-best", "-1"], "--n-best takes an integer of 1 or more"),
        ("a\tb", ["--beam", "x"], "argument --beam: invalid int value: 'x': see --help"),
        ("a\tb", ["--beams", "4"], "unrecognized arguments: --beams"),
        ("a\tb", ["--prefix", "nowhere"], "nowhere: No such file or directory: name a file of"),
        ("a\tb", ["--prefix", str(tmp_path)], "Is a directory: name a file of lines"),
        ("a\tb\na\tb", ["--prefix", "model.json"], "more lines than the 2 of stdin"),
        ("a\tb\n" * 9999, ["--prefix", "model.json"], " lines, and stdin has more"),
    ]
    for text, options, sentence in cases:
        done = run_py(folder, text, *options)
        message = done.stderr.decode().splitlines()[-1]
        assert message.startswith("run.py: error: "), (options, message)
        assert sentence in message
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1 or "cut" in done.stderr.decode()


@pytest.mark.parametrize("file", ["weights.bin", "step.onnx", "tokenizer.left.json"])
@pytest.mark.parametrize("damage", ["changed", "empty", "missing"])
def test_an_export_that_is_not_whole_is_refused(
    file: str, damage: str, folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other") / file
    content = bytearray(other.read_bytes())
    content[len(content) // 2] ^= 1
    other.write_bytes(content if damage == "changed" else b"")
    if damage == "missing":
        other.unlink()
    wrong = "No such file" if damage == "missing" else f"{file} is not of this export"
    with pytest.raises(RunnerError, match=f"{wrong}.*: copy the whole folder again"):
        Runner(other.parent)


def test_a_file_of_another_export_is_refused(folder: Path, exports: Exports) -> None:
    files = json.loads((folder / "model.json").read_text(encoding="utf-8"))["files"]
    own = {file.name for file in folder.iterdir()} - {"model.json", "run.py"}
    assert {*files} == own
    assert {"encode.onnx", "start.onnx", "tokenizer.target.json"} < own


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "its format is 2, and run.py reads 1"),
        ({"files": None}, "cannot be opened"),
        ({"impossible": ...}, "impossible"),
        ({"decoding": {}}, "not enough values"),
        ({"decoding": {"beam": {"size": "x"}}}, "--beam takes an integer of 1 or more"),
        ({"decoding": {"beam": {"size": -3}}}, "--beam takes an integer of 1 or more"),
        ({"sources": []}, "model.json has other sources"),
        ({"sources": "renamed"}, "model.json has other sources than the programs"),
    ],
)
def test_a_model_file_that_was_edited_is_refused(
    change: dict[str, Any], sentence: str, folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other") / "model.json"
    described = {**json.loads(other.read_text(encoding="utf-8")), **change}
    if change == {"sources": "renamed"}:
        described["sources"] = json.loads((folder / "model.json").read_text())["sources"]
        described["sources"][0]["name"] = "middle"
    kept = {name: value for name, value in described.items() if value is not ...}
    other.write_text(json.dumps(kept), encoding="utf-8")
    with pytest.raises(RunnerError, match=sentence):
        Runner(other.parent)


@pytest.mark.parametrize("content", [None, "", "[]", "{}", "null", "\xff"])
def test_what_is_no_model_file_is_one_line(
    content: str | None, folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "model.json").unlink()
    if content is not None:
        (other / "model.json").write_bytes(content.encode("latin-1"))
    done = run_py(other, "a\tb")
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("run.py: error: this export cannot be opened: ")
    assert line.endswith(": copy the whole folder again")


OUTSIDE = [
    ("beam", [0, 1001, float("nan")]),
    ("length_penalty", [-0.1, float("nan"), float("inf")]),
    ("temperature", [0, -1, float("nan"), float("inf")]),
    ("top_k", [0]),
    ("top_p", [0, 1.5]),
    ("min_p", [-1, 0, 1.5]),
    ("repetition_penalty", [0.5, float("inf")]),
    ("seed", [-1, 2**31]),
    ("no_repeat_ngram", [-1]),
    ("max_length", [0, 1_000_001]),
    ("max_ratio", [0, float("nan"), float("inf")]),
]


@pytest.mark.parametrize(("name", "values"), OUTSIDE)
def test_settings_have_the_bounds_of_a_recipe(
    name: str, values: list[float], exports: Exports
) -> None:
    _, runner = exports("language")
    word = "beam" if name in ("beam", "length_penalty") else "sample"
    own = partial(MINIMAL.format, word=word, name="size" if name == "beam" else name)
    assert load_text(own(value=1)).decoding.word == word
    runner.translate(["eins"], **{"max_length": 2, name: 1})
    for value in values:
        with pytest.raises(RunnerError, match=f"--{name.replace('_', '-')} takes an? "):
            runner.translate(["eins"], **{name: value})
        with pytest.raises(RecipeError):
            load_text(own(value=YAML.get(str(value), value)))


def test_the_bounds_of_all_settings_are_tested() -> None:
    assert [name for name, _ in OUTSIDE] == [own.name for own in dataclasses.fields(Settings)[1:]]


YAML = {"nan": ".nan", "inf": ".inf"}
MINIMAL = """
recipe: 1
data: {{generate: {{copy: {{}}}}}}
model: {{width: 4, encoder: [{{rnn: {{}}}}], decoder: [{{rnn: {{}}}}]}}
decoding: {{{word}: {{{name}: {value}}}}}
"""


def test_no_repeat_ngram_of_a_recipe_can_be_switched_off(exports: Exports) -> None:
    _, runner = exports("language")
    strict = replace_attribute(runner, decoding={"greedy": {"no_repeat_ngram": 1}})
    free = runner.translate(LINES, method="greedy", max_length=9)
    assert strict.translate(LINES, max_length=9) != free
    assert strict.translate(LINES, max_length=9, no_repeat_ngram=0) == free


@pytest.mark.parametrize("option", ["temperature", "top_k", "top_p", "min_p", "seed"])
def test_a_setting_of_sampling_selects_it_as_in_generate(option: str, exports: Exports) -> None:
    _, runner = exports("language")
    assert Settings.of({"beam": {}}, ["beam", "sample"], {option: 1}).method == "sample"
    beam = runner.translate(LINES, beam=5, max_length=9)
    draws = runner.translate(LINES, max_length=9, temperature=9.0)
    assert draws != beam


def test_texts_are_lists(exports: Exports) -> None:
    _, runner = exports("language")
    with pytest.raises(RunnerError, match="lines are a list of texts"):
        runner.translate("eins")
    with pytest.raises(RunnerError, match="prompts are a list of texts"):
        runner.generate("eins")
    _, runner = exports("gru")
    with pytest.raises(RunnerError, match="prefixes are a list of texts"):
        runner.translate(["eins", "zwei"], "ab")


@pytest.mark.parametrize(
    ("lines", "settings", "sentence"),
    [
        (["a\tb"], {"beams": 4}, "there is no setting beams: they are beam, length_penalty"),
        (["a\tb"], {"beam": "4"}, "--beam takes an integer of 1 or more, 1,000 at most, not '4'"),
        (["a\tb"], {"beam": 2.5}, "--beam takes an integer .* not 2.5"),
        (["a\tb"], {"beam": None}, "--beam takes an integer .* not None"),
        (["a\tb"], {"temperature": "1"}, "--temperature takes a number above 0, not '1'"),
        (["a\tb"], {"n_best": 0}, "--n-best takes an integer of 1 or more"),
        (["a\tb"], {"n_best": -1}, "--n-best takes an integer of 1 or more"),
        (None, {}, "lines are a list of texts"),
        (b"a", {}, "lines are a list of texts"),
        (["a\tb", None], {}, "line 2: expected a text, not None"),
        (["a\tb", b"a"], {}, "line 2: expected a text, not b'a'"),
        ([("dog.", None)], {}, "line 1: expected a text, not None"),
        (["a\tb\ud800"], {}, r"line 1: it has half of a character, '\\ud800'"),
        (["a\tb"], {"prefixes": [None]}, "line 1: expected a text, not None"),
        (["a\tb"], {"prefixes": ["a", "b"]}, "2 prefixes for 1 lines: write one for each"),
    ],
)
def test_a_mistake_in_python_is_a_runner_error(
    lines: Any, settings: dict[str, Any], sentence: str, exports: Exports
) -> None:
    _, runner = exports("two")
    with pytest.raises(RunnerError, match=sentence):
        runner.translate(lines, **settings)


def test_numbers_of_numpy_are_settings(exports: Exports) -> None:
    _, runner = exports("gru")
    lines = ["eins zwei"]
    own = runner.translate(lines, beam=np.int64(2), length_penalty=np.float64(0.5), max_length=5)
    assert own == runner.translate(lines, beam=2, length_penalty=0.5, max_length=5)


def test_a_mistake_of_a_prompt_names_it(exports: Exports) -> None:
    _, runner = exports("language")
    assert runner.generate([]) == []
    limited = replace_attribute(runner, max_positions=4)
    long, most = "eins zwei drei vier", "it has 4 tokens, and this model reads 3 at most"
    with pytest.raises(RunnerError, match=f"prompt 2: {most}"):
        limited.generate(["eins", long])
    with pytest.raises(RunnerError, match="prompt 1: expected a text, not None"):
        runner.generate([None])
    with pytest.raises(RunnerError, match="line 1: texts: 2, and the model reads 1"):
        runner.translate([("eins", "zwei")])
    with pytest.raises(RunnerError, match="begin them with the prefixes"):
        runner.translate(["eins"], ["zwei"])


def test_methods_that_it_lacks_are_named(exports: Exports) -> None:
    _, runner = exports("two")
    other = replace_attribute(runner, decoding={"mbr": {"samples": 4}})
    sentence = "this export decodes by greedy, beam, sample, not by mbr: write --beam 5"
    with pytest.raises(RunnerError, match=sentence):
        other.translate(["eins\tzwei"])
    assert other.translate(["eins\tzwei"], beam=2, max_length=4)[0][0].score < 0


def test_an_export_notes_a_method_that_its_runner_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(tmp_path / "run", LANGUAGE)
    export_onnx(open_run(path, ["decoding=mbr"]), tmp_path / "mbr")
    sentence = "run.py decodes by greedy, beam, sample, and not by mbr: call it with `--beam 5`"
    assert sentence in capsys.readouterr().err
    export_onnx(open_run(path, ["decoding=sample"]), tmp_path / "sample")
    assert "run.py" not in capsys.readouterr().err


@pytest.mark.parametrize(("weight", "answers"), [("0", False), ("0.7", True), ("null", True)])
def test_sampling_is_refused_where_the_programs_have_another_weight_of_ctc(
    weight: str, answers: bool, tmp_path: Path
) -> None:
    run = open_run(
        made(tmp_path / "run", f"{GRU.strip()}\noutput: {{ctc: {{weight: 0.7}}}}"),
        [f"decoding={{greedy: {{ctc_weight: {weight}, max_length: 9}}}}"],
    )
    runner = exported(run, tmp_path / "export")
    lines = ["eins", "zwei drei"]
    native = translate_lines([run], lines, run.recipe.decoding)
    assert_same(native, runner.translate(lines))
    if answers:
        native = translate_lines([run], lines, Sample(top_k=1, max_length=9))
        assert_same(native, runner.translate(lines, top_k=1, max_length=9))
        return
    with pytest.raises(RunnerError, match="decodes by greedy, beam, not by sample"):
        runner.translate(lines, top_k=1)


# ------------------------------------------------------------------------------------------ sounds

SOUND = TableColumn(column="x", kind="audio", rate=8000)
SETTINGS = {
    "rate": 8000,
    "seconds": None,
    "normalize": True,
    "features": {
        "log_mel": {"bands": 40, "window": 0.025, "hop": 0.01, "fft": None, "padding": "zeros"}
    },
}


def wav(channels: int, count: int = 900) -> bytes:
    import soundfile

    file = io.BytesIO()
    samples = np.sin(np.arange(count * channels) * 0.1).reshape(count, channels) / 2
    soundfile.write(file, samples, 8000, "PCM_16", format="WAV")
    return file.getvalue()


def with_size(content: bytes, size: int) -> bytes:
    """A WAV whose header says another number of bytes of samples."""
    at = content.index(b"data") + 4
    return content[:at] + size.to_bytes(4, "little") + content[at + 4 :]


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("missing", [1, 2, 3, 4, 1600])
def test_a_sound_that_is_cut_off_is_refused(channels: int, missing: int, tmp_path: Path) -> None:
    content = wav(channels)[:-missing]
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(MediaError) as native:
        read_sound(io.BytesIO(content), SOUND, None)
    sentence = f"its header says {1800 * channels:,} bytes of samples"
    assert sentence in native.value.message
    with pytest.raises(ValueError, match=re.escape(native.value.message)):
        module.read_sound(tmp_path / "a.wav", SETTINGS, (40,))


def test_a_sound_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(2, 0))
    (tmp_path / "b.wav").write_bytes(wav(2)[:30])
    source = module.Source("sound", "audio", None, (40,), SETTINGS, 0.0)
    with pytest.raises(RunnerError, match=r"a\.wav` cannot be read: this sound has no samples"):
        source.read(str(tmp_path / "a.wav"))
    with pytest.raises(RunnerError, match=r"b\.wav` cannot be read: it is cut off"):
        source.read(str(tmp_path / "b.wav"))
    with pytest.raises(RunnerError, match="it has no file for sound: write the file's name"):
        source.read(" ")


@pytest.mark.parametrize("size", [0, 400, 0x7FFF0000, 0xFFFFFFFF])
@pytest.mark.parametrize("rest", [b"", b"\1"])
def test_a_sound_whose_header_was_written_before_its_end_is_read_to_the_end(
    size: int, rest: bytes, tmp_path: Path
) -> None:
    content = with_size(wav(2), size) + rest
    (tmp_path / "a.wav").write_bytes(content)
    expected = read_sound(io.BytesIO(content), SOUND, None).array
    frames = module.read_sound(tmp_path / "a.wav", SETTINGS, (40,))
    np.testing.assert_allclose(frames, expected, atol=2e-3)


def test_what_follows_the_samples_is_no_sound(tmp_path: Path) -> None:
    content = wav(1) + b"LIST\4\0\0\0abcd"
    (tmp_path / "a.wav").write_bytes(content)
    expected = read_sound(io.BytesIO(content), SOUND, None).array
    frames = module.read_sound(tmp_path / "a.wav", SETTINGS, (40,))
    np.testing.assert_allclose(frames, expected, atol=2e-3)


# ------------------------------------------------------------------------------------ command line


@pytest.mark.parametrize("bad", [b"\xff", b"eins zwei drei"])
def test_answers_of_the_lines_before_a_mistake_are_written(bad: bytes, tmp_path: Path) -> None:
    model = "decoder: [{positions: {kind: learned, max_length: 3}}, {rnn: {cell: gru}}]"
    run = open_run(made(tmp_path / "run", model))
    folder = export_onnx(run, tmp_path / "export")
    done = run_py(folder, b"eins\nzwei\n" + bad + b"\nvier\n")
    (line,) = done.stderr.decode().splitlines()
    assert line in (
        "run.py: error: stdin, line 3: not UTF-8: convert the file",
        "run.py: error: line 3: it has 3 tokens, and this model reads 2 at most: give it the end alone",
    )
    assert done.returncode == 2
    answers = [row[0].text for row in translate_lines([run], ["eins", "zwei"], Beam(size=3))]
    assert done.stdout.decode().splitlines() == answers


def test_help_teaches(folder: Path) -> None:
    text = run_py(folder, "", "--help").stdout.decode()
    assert text.startswith("usage: python run.py [options] < lines > answers\n")
    assert "python run.py --beam 5 --n-best 3 --scores" in text
    for own in dataclasses.fields(Settings)[1:]:
        assert own.metadata["help"] in " ".join(text.split())


def test_lines_are_answered_while_the_pipe_is_open(folder: Path) -> None:
    command = [sys.executable, "-I", str(folder / "run.py"), "--greedy"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for line in (b"eins\tzwei\ndrei\tvier\n", b"\n"):
            process.stdin.write(line)
            process.stdin.flush()
            for _ in line.splitlines():
                ready, _, _ = select.select([process.stdout], [], [], 60)
                assert ready
                assert os.read(process.stdout.fileno(), 1 << 16)
                break
        process.stdin.close()
        assert process.wait() == 0


def test_an_interrupt_ends_it_with_130(folder: Path) -> None:
    command = [sys.executable, "-I", str(folder / "run.py"), "--greedy"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"eins\tzwei\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()


def test_a_reader_that_leaves_ends_it_quietly(folder: Path) -> None:
    command = [sys.executable, "-I", str(folder / "run.py"), "--greedy"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        process.stdin.write(b"eins\tzwei\n")
        process.stdin.close()
        process.wait(60)
        assert process.stderr.read() == b""


def test_it_imports_nothing_of_this_project() -> None:
    source = Path(module.__file__).read_text(encoding="utf-8")
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    allowed = {"numpy", "onnxruntime", "tokenizers", "PIL", *sys.stdlib_module_names}
    assert names <= allowed


def test_a_missing_package_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('No module named onnxruntime')")
    path = os.pathsep.join([str(tmp_path)])
    command = [sys.executable, str(folder / "run.py")]
    done = subprocess.run(
        command, input=b"", capture_output=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 2
    assert b"pip install onnxruntime numpy tokenizers" in done.stderr

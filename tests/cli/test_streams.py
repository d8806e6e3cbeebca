"""Output: no control characters, no NaN in JSON, one error if it cannot be written."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from composer.cli.options import echo, print_json
from composer.formatting import make_console
from composer.inference import translate as filter_
from composer.inference.run import Sample, Translation
from composer.training.loggers import ProgressDisplay

HOSTILE = "a\x1b]0;owned\x07\x9b31m\x7f\u202eb\u2066c\rd"
CLEAN = "a�]0;owned��31m��b�c�d"


def run(arguments: str, redirection: str) -> tuple[int, str]:
    """Return the status and the errors of a command in a shell."""
    command = f"{sys.executable} -m composer.cli.main {arguments} {redirection}"
    done = subprocess.run(
        command, shell=True, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "redirection"),
    [("blocks", ">/dev/full"), ("--help", ">&-"), ("schema", ">/dev/full")],
)
def test_output_that_cannot_be_written_is_one_error(arguments: str, redirection: str) -> None:
    status, errors = run(arguments, redirection)
    assert status == 1
    assert errors.startswith("<stdout>: error[run]: ")
    assert errors.count("\n") == 3


def test_a_fault_keeps_its_status_where_nothing_can_be_written() -> None:
    assert run("check nothing.yaml", ">/dev/full 2>/dev/full")[0] == 2
    assert run("blocks", ">/dev/null 2>&-") == (0, "")


def test_nothing_printed_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    echo(HOSTILE)
    ProgressDisplay().say(HOSTILE)
    ProgressDisplay().show([Sample(HOSTILE, HOSTILE, HOSTILE)])
    make_console().print(HOSTILE, markup=False)
    out = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\x7f", "\u202e", "\u2066", "\r"} & set(out)
    assert out.startswith(f"{CLEAN}\n")


def test_json_has_neither_nan_nor_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": float("nan"), "rows": [{"perplexity": float("inf")}], "text": HOSTILE})
    out = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\x7f", "\u202e", "\u2066", "\r"} & set(out)
    assert json.loads(out) == {"loss": None, "rows": [{"perplexity": None}], "text": HOSTILE}


class Terminal(io.BytesIO):
    """A terminal that remembers what it was sent."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "expected"), [(Terminal, CLEAN), (io.BytesIO, HOSTILE)])
def test_a_pipe_gets_every_byte_of_a_translation(
    stream: type[io.BytesIO], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    output = stream()
    monkeypatch.setattr(filter_, "unbuffered_stdout", lambda: output)
    monkeypatch.setattr(filter_, "decoding_settings", lambda recipe, beam: {})
    monkeypatch.setattr(filter_, "translate_lines", lambda *_, **__: [[Translation(HOSTILE, 0.0)]])
    (tmp_path / "in").write_text("x\n")

    class Opened:
        recipe = SimpleNamespace(sources=[])

    monkeypatch.setattr(filter_, "open_run", lambda *_: Opened)
    filter_.translate(["run"], source=tmp_path / "in")
    assert output.getvalue().decode() == f"{expected}\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "koi8-r"])
def test_letters_that_a_terminal_lacks_end_no_training(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", terminal)
    display = ProgressDisplay()
    display.say("a 字")
    display.show([Sample("字", "b", "c")])
    terminal.flush()
    assert terminal.buffer.getvalue().startswith(b"a ?\n")  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["composer", "composer.cli.main"])
def test_commands_print_in_any_encoding(module: str, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    (tmp_path / "typer.py").write_text("raise SystemExit('not this one')\n", encoding="utf-8")
    command = [
        sys.executable,
        *(["-P"] if module != "composer" else []),
        "-m",
        module,
        "check",
        "字.yaml",
    ]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"?.yaml:1:1: error[")

"""`translate` as a filter."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from composer.cli.main import main
from composer.data.encoding import MAX_TOKENS
from composer.data.pairs import TARGET
from composer.data.tokenizer_training import train_tokenizers
from composer.errors import DataError, RunError, RunFailed
from composer.inference import answers
from composer.inference.answers import SourceLines, Translation, answer_lines
from composer.inference.decode import Row
from composer.inference.decoders.search import Hypothesis
from composer.inference.line_streams import BATCH_LINES, decode_utf8, read_chunks
from composer.inference.lines import cut_line
from composer.inference.methods import Beam, Greedy, Sample
from composer.inference.run import open_run, translate_lines
from composer.inference.translate import translate
from tests.inference.untrained import TWO, WORDS, made

TEXT = "eins zwei\n\ndrei vier fünf\nsechs\n"


def command(run: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "composer.cli.main", "translate", str(run), *arguments]


def test_lines_are_answered_at_once_and_a_closed_pipe_prints_no_error(gru: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(command(gru), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        for line in (b"eins\n", b"zwei drei\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"zwei\n" * 50)
        process.stdin.close()
        assert process.wait(300) == 1
        assert process.stderr.read() == b""


# ------------------------------------------------------------------------------------------- in
# this process


def through(
    monkeypatch: pytest.MonkeyPatch, runs: Path | list[Path], text: str | bytes, **more: Any
) -> list[str]:
    source = io.TextIOWrapper(io.BytesIO(text.encode() if isinstance(text, str) else text))
    target = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdin", source)
    monkeypatch.setattr(sys, "stdout", target)
    try:
        translate(runs if isinstance(runs, list) else [runs], **more)
    finally:
        monkeypatch.undo()
    content = target.buffer
    assert isinstance(content, io.BytesIO)
    return content.getvalue().decode().split("\n")[:-1]


def test_one_line_out_per_line_in_until_invalid_utf8(
    gru: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    expected = through(monkeypatch, gru, TEXT)
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode() + b"drei \xff\nvier\n"))
    )
    capfdbinary.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main(["translate", str(gru), "--beam", "3"])
    printed = capfdbinary.readouterr()
    lines = printed.out.decode().split("\n")
    assert [bool(line) for line in lines] == [True, False, True, True, False]
    assert lines[:-1] == expected
    assert printed.err.decode() == (
        "<stdin>:5:6: error[encoding]: this is not UTF-8 at line 5, byte 6 of the line: 0xff\n"
        "   fix: convert it, with `iconv -f ISO-8859-1 -t UTF-8` if it is Latin-1\n1 error\n"
    )


BOUNDED = "decoder: [{positions: {kind: learned, max_length: 6}}, {rnn: {cell: gru}}]"


def test_a_text_that_leaves_no_position_is_refused_after_the_lines_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = made(tmp_path / "run", BOUNDED, decoding="{greedy: {max_length: 20}}")
    good = ["eins zwei drei", "", "eins zwei drei vier fünf"]
    lines = [*good, " ".join(WORDS[:6]), "eins"]
    expected = through(monkeypatch, run, "\n".join(good) + "\n")
    note = capfdbinary.readouterr().err.decode()
    assert note.endswith(": this model has 6 positions: shorten them\n")
    text = io.BytesIO("\n".join(lines).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text))
    with pytest.raises(SystemExit, match="2"):
        main(["translate", str(run)])
    printed = capfdbinary.readouterr()
    assert printed.out.decode().split("\n")[:-1] == expected
    assert printed.err.decode() == (
        "<stdin>:4:1: error[positions]: this line has 6 tokens, and this model reads 5 at most\n"
        "   fix: give it the end of the text alone\n1 error\n"
    )


def test_lines_before_one_with_too_few_texts_are_translated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run = made(tmp_path / "run", TWO)
    good = "eins\tzwei\ndrei\tvier\n"
    expected = through(monkeypatch, run, good, scores=True)
    assert len({*expected}) == 2
    capfdbinary.readouterr()
    text = io.BytesIO(f"{good}fünf\n{good}".encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text))
    with pytest.raises(SystemExit, match="2"):
        main(["translate", str(run), "--scores"])
    assert capfdbinary.readouterr().out.decode().split("\n")[:-1] == expected


def test_a_packed_text_is_told_to_be_unpacked() -> None:
    _, fault = decode_utf8(gzip.compress(b"one").split(b"\n"), "one.gz", 0)
    assert fault
    assert (fault.message.rpartition("; ")[2], fault.hint) == (
        "it looks like gzip",
        "unpack it with `gunzip`",
    )


def test_n_best_lists_hypotheses_with_their_scores(
    gru: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = through(monkeypatch, gru, TEXT, n_best=3, scores=True)
    assert len(lines) == 12
    assert lines[3:6] == ["0.0000\t"] * 3
    assert all(float(line.split("\t")[0]) < 0 for line in lines[:3])
    assert through(monkeypatch, gru, TEXT) == [line.split("\t")[1] for line in lines[::3]]


def test_n_best_above_the_beam_size_is_refused(gru: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match="a beam of 3 has no 4 best answers"):
        through(monkeypatch, gru, TEXT, n_best=4)
    assert len(through(monkeypatch, gru, TEXT, n_best=4, beam=4)) == 16


def test_several_runs_form_an_ensemble(
    gru: Path, attention: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = through(monkeypatch, [gru, attention], TEXT, scores=True)
    assert both != through(monkeypatch, [gru], TEXT, scores=True)
    again = through(monkeypatch, [gru, gru], TEXT, scores=True)
    assert [line.split("\t")[1] for line in again] == through(monkeypatch, [gru], TEXT)


def test_files_are_read_and_written(
    gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    translate([gru], source=source, output=output)
    assert output.read_text(encoding="utf-8").split("\n")[:-1] == through(monkeypatch, gru, TEXT)
    with pytest.raises(RunError, match="this file is being read"):
        translate([gru], source=source, output=source)
    with pytest.raises(RunError, match="cannot be read: no such file"):
        translate([gru], source=tmp_path / "none", output=output)
    with pytest.raises(RunError, match="cannot be written"):
        translate([gru], source=source, output=tmp_path / "no" / "folder")
    assert source.stat().st_size > 10


def test_a_prefix_begins_each_answer(
    gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "prefix.txt"
    prefix.write_text("acht neun\nzehn\n\nvier\n", encoding="utf-8")
    first, empty, _, last = through(monkeypatch, gru, TEXT, prefix=prefix)
    assert (first.startswith("acht neun"), empty, last.startswith("vier")) == (True, "", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eins\n", "prefix.txt:1:1: error.lines.: this file ends before the text does"),
        (
            "eins\n" * 5,
            "prefix.txt:5:1: error.lines.: this file has more lines than the 4 of <stdin>",
        ),
    ],
)
def test_prefixes_are_as_many_as_lines(
    text: str, message: str, gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prefix.txt").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        through(monkeypatch, gru, TEXT, prefix=tmp_path / "prefix.txt")


def test_other_line_ends_of_unicode_stay_inside_a_line(
    gru: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(through(monkeypatch, gru, "eins\x0bzwei\u2028drei\x85\x00\nvier\n")) == 2


def test_chunks_have_the_lines_that_are_available() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(write, "wb", buffering=0) as other:
        chunks = read_chunks(stream, BATCH_LINES)
        other.write(b"one\ntwo\nthr")
        assert next(chunks) == [b"one", b"two"]
        other.write(b"ee\n")
        assert next(chunks) == [b"three"]
        other.write(b"four")
        other.close()
        assert list(chunks) == [[b"four"]]


def test_large_files_come_in_chunks_of_a_limited_size() -> None:
    text = b"a\n" * (3 * BATCH_LINES + 5)
    sizes = [len(chunk) for chunk in read_chunks(io.BytesIO(text), BATCH_LINES)]
    assert sum(sizes) == 3 * BATCH_LINES + 5
    assert max(sizes) == BATCH_LINES


def test_a_line_without_end_is_read_once() -> None:
    class Drops(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return self.read(512)

    began = time.process_time()
    assert [*read_chunks(Drops(b"a" * 10_000_000 + b"\nb\nc"), BATCH_LINES)] == [
        [b"a" * 10_000_000, b"b"],
        [b"c"],
    ]
    assert time.process_time() - began < 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_reported(gru: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text(TEXT)
    with pytest.raises(RunFailed, match="no space left"):
        translate([gru], source=source, output="/dev/full")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_reported_once_by_a_process(gru: Path) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(gru),
            input=TEXT.encode(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=300,
            env=buffered,
        )
    assert done.returncode == 1
    assert b"error[run]: the translations cannot be written: no space left" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_alone_and_the_output_is_the_same(
    gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.formatting.SHOWN_SECONDS", 0.0)
    (tmp_path / "in.txt").write_text(TEXT, encoding="utf-8")
    outputs: list[Any] = []
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", screen)
        translate([gru], source=tmp_path / "in.txt", output=tmp_path / "out.txt")
        outputs.append((tmp_path / "out.txt").read_bytes())
        (tmp_path / "out.txt").unlink()
        outputs.append(screen.getvalue().replace("\r", "\n").splitlines())
    with_terminal, progress, without_terminal, no_progress = outputs
    assert with_terminal == without_terminal
    assert progress[-1].endswith(f"wrote {tmp_path / 'out.txt'}")
    assert any("translating" in line and "100%" in line for line in progress)
    assert [line for line in no_progress if "cut at the maximum length" not in line] == []


def test_a_prefix_without_end_is_cut(
    gru: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("composer.inference.lines.MAX_TOKENS", 3)
    translate_lines([open_run(gru)], ["eins"], Greedy(max_length=2, max_ratio=1.0), ["one " * 9])
    assert (
        ":1: the prefix of this line has 9 tokens, and only its first 3 are read"
        in capsys.readouterr().err
    )


def test_a_line_without_end_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(cut_line([5] * 1_000_000, "in.txt:2")) == MAX_TOKENS
    assert (
        "in.txt:2: this line has 1,000,000 tokens, and only its first 10,000 are read"
        in capsys.readouterr().err
    )
    assert cut_line([5, 6], "in.txt:3") == [5, 6]


def test_answers_that_are_cut_are_reported_with_their_lines(
    gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = open_run(gru, ["decoding={beam: {size: 3, max_length: 2}}"])
    lines = ["eins zwei", "", "drei vier fünf", "sechs"] * 3
    rows = translate_lines([run], lines, run.recipe.decoding)
    cut = [number for number, (best, *_) in enumerate(rows, start=1) if not best.ended]
    assert 0 < len(cut) <= len(lines)
    capsys.readouterr()
    text = "".join(f"{line}\n" for line in lines)
    for n_best in (1, 2):
        settings = ["decoding={beam: {size: 3, max_length: 2}}"]
        out = through(monkeypatch, gru, text, overrides=settings, n_best=n_best)
        assert len(out) == n_best * len(lines)
        (note,) = capsys.readouterr().err.splitlines()
        assert note.startswith(
            f"{len(cut)} of 12 answers were cut at the maximum length, lines {cut[0]}"
        )
        assert note.endswith(": raise `decoding.beam.max_length` (now 2)")
    through(monkeypatch, gru, "\n\n")
    assert capsys.readouterr().err == ""


def test_the_texts_of_an_n_best_differ_though_their_tokens_do_not_spell_them_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizers = train_tokenizers(
        {"tokenizer": {"bpe": {"size": 300}}, "lowercase": False}, {TARGET: ["lower"] * 9}
    )
    merged, other = tokenizers.encode(TARGET, ["lower", "low"])
    letters = tokenizers.encode(TARGET, [*"lower"])  # a space and a letter each
    rows = [merged, [letters[0][0], *(letter for _, letter in letters)], other]
    assert merged != rows[1]
    same = ["lower", "lower"]
    assert tokenizers.decode(TARGET, rows) == [*same, "low"]
    found = [Hypothesis(ids, -float(at), -float(at), True) for at, ids in enumerate(rows)]
    monkeypatch.setattr(
        answers,
        "decode_all",
        lambda models, rows, how, options, on_batch: [found[: options.n_best]],
    )
    lines = SourceLines(2, [1], [Row({"source": [5]})])
    for decoding, is_distinct in ((Beam(), True), (Sample(), False)):
        blank, texts = answer_lines([], tokenizers, lines, decoding, 3)
        assert blank == [Translation("", 0.0)] * 3
        assert len(texts) == 3
        expected = [*dict.fromkeys([*same, "low"])] if is_distinct else [*same, "low"]
        assert [text.text for text in texts] == [*expected, *[""] * (3 - len(expected))]
        assert [text.score for text in texts if text.text == "low"] == [-2.0]
    _, two = answer_lines([], tokenizers, lines, Beam(), 2)
    assert [text.text for text in two] == [same[0], "low"]
    _, one = answer_lines([], tokenizers, lines, Beam(), 1)
    assert [text.text for text in one] == [same[0]]


def test_a_prefix_that_the_tokenizer_does_not_know_is_noted(
    gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = open_run(gru)
    known = run.tokenizers.vocabulary(TARGET)[-1]
    prefixes = ["unheard-of", known, "", "unheard-of"]
    (tmp_path / "prefix").write_text("\n".join(prefixes) + "\n", encoding="utf-8")
    through(monkeypatch, gru, "eins\nzwei\ndrei\n\n", prefix=tmp_path / "prefix")
    assert (
        "<stdin>: the tokenizer does not know all of the prefix of line 1\n"
        in capsys.readouterr().err
    )

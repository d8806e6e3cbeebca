"""Scripts of benchmarks/ that have no test of their own run on a tiny budget and print numbers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import (
    accuracy,
    active_memory,
    by_length,
    counting,
    devices,
    large_corpora,
    memory,
    mixers,
    packing,
    padding,
    plan_memory,
    scans,
    serving,
    speculative,
    startup,
    table,
    token_files,
    training,
)
from composer.recipe.recipe import load
from composer.training.train import train

TASK = """
recipe: 1
name: short
data:
  generate: {copy: {symbols: 3, max_length: 6, test_lengths: [4, 6], train: 30, val: 5, test: 3}}
  tokenizer: {word: {split: spaces}}
model: {width: 4, encoder: [rnn], decoder: [source_state]}
training: {max_steps: 2, tokens_per_batch: 100}
logging: {wandb: false}
decoding: greedy
"""
COUNTING = """
recipe: 1
name: counter
data: {generate: {counting: {strings: 5, max_length: 6, train: 40, val: 10, test: 5}}}
model: {width: 4, decoder: [rnn]}
training: {max_steps: 2, tokens_per_batch: 100}
logging: {wandb: false}
"""


def trained(folder: Path, text: str) -> Path:
    (folder / "t.yaml").write_text(text, encoding="utf-8")
    train(load(folder / "t.yaml"), run=folder / "seed-1")
    return folder / "seed-1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("task"), TASK)


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("counter"), COUNTING)


class Script:
    """Runs the `main` of a script with arguments, and returns the lines that it prints."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = patch, capsys

    def __call__(self, module: ModuleType, *arguments: Any, **constants: Any) -> list[str]:
        for name, value in constants.items():
            self.patch.setattr(module, name, value)
        self.patch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        module.main()
        return self.capsys.readouterr().out.splitlines()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    monkeypatch.chdir(Path(__file__).parents[2])
    return Script(monkeypatch, capsys)


def test_accuracy(script: Script, run: Path, tmp_path: Path) -> None:
    chart = tmp_path / "f.svg"
    lines = script(accuracy, run, "--lengths", "6", "9", "--lines", "5", "--chart", chart)
    assert lines[0] == "| copy at length | 4 (3 lines) | 6 (3 lines) | 9 (5 lines) |"
    four, six = json.loads((run / "run.json").read_text())["by_length"]["test"]
    for entry, cell in zip((four, six), lines[2].split("|")[2:4], strict=True):
        exact, positional = map(float, re.findall(r"([\d.]+) %", cell))
        assert exact == pytest.approx(100 * entry["exact_match"], abs=0.1)
        assert positional == pytest.approx(100 * entry["positional_accuracy"], abs=0.1)
    measured = accuracy.measure(run, "copy", 4, 3)[2]
    assert measured == pytest.approx(four["positional_accuracy"])
    assert "<svg" in chart.read_text()


def test_by_length(script: Script, run: Path, tmp_path: Path) -> None:
    lines = script(by_length, run, "--edges", "4", "--tokenised", "--chart", tmp_path / "f.svg")
    assert re.fullmatch(r"\| .*seed-1 (\| [\d.]+ ± [\d.]+ ){2}\|", lines[2])
    assert lines[-1].startswith("BLEU ")


def test_every_line_is_in_one_bucket_which_scores_it_alone() -> None:
    sources = ["w " * words for words in (1, 3, 4, 4, 9)]
    references = ["a b c d e f", "b c d e f g", "c d e f g h", "d e f g h i", "e f g h i j"]
    translated = by_length.Translated("run", sources, [*references[:4], "x y z"], references)
    buckets = by_length.by_length(translated, by_length.bleu_metric(tokenised=True), [3, 5])
    assert [(bucket.words, bucket.lines) for bucket in buckets] == [
        ("0-3", 2),
        ("4-5", 2),
        ("6+", 1),
    ]
    assert [bucket.bleu for bucket in buckets] == pytest.approx([100.0, 100.0, 0.0])


def test_counting(script: Script, counter: Path) -> None:
    lines = script(counting, counter, "--lengths", "3", "5", "--lines", "2")
    assert re.fullmatch(r"\| .*seed-1 (\| \d+% \([\d.]+%\) ){2}\|", lines[2])


@pytest.mark.parametrize(
    ("words", "predictions", "right"),
    [
        # random letters do not count, nor what follows the last string, nor earlier strings
        ("abaaabbb", ["a", "a", "b", "a", "a", "b", "b", ""], [True, True, True]),
        ("abaaabbb", [*"bbbaabb", "a"], [True, True, True]),
        ("abaaabbb", [*"aabaabb", "b"], [True, True, False]),
        ("abaaabbb", [*"aabaab", "a", "a"], [True, False, True]),
    ],
)
def test_a_string_is_right_if_its_certain_letters_are(
    words: str, predictions: list[str], right: list[bool]
) -> None:
    assert counting.check_letters(list(words), predictions, "anbn") == right


def test_with_three_letters_the_second_is_certain_too() -> None:
    assert counting.check_letters(list("abcaabbcc"), list("abcabbcca"), "anbncn") == [True] * 4


def test_padding(script: Script, run: Path) -> None:
    (line,) = script(padding, run / "recipe.yaml", "--tokens", "50")
    assert re.match(r"50 tokens per batch: \d+ batches; real tokens: source [\d.]+%", line)


def test_table(script: Script, run: Path) -> None:
    heads, _, row = script(table, run)
    assert heads.count("|") == row.count("|")
    assert "short" in row


@pytest.mark.slow
def test_active_memory(script: Script) -> None:
    small = active_memory.Size(4, 2, (3, 3), 2, 5)
    lines = script(active_memory, "--rounds", "1", SIZES=(small,), SHORT=3, LONG=6)
    assert len(lines) == 6
    assert all(re.search(r"\| [\d.]+ \|$", line) for line in lines[2:])


@pytest.mark.slow
def test_memory(script: Script) -> None:
    _, row = script(memory, "--rounds", "1", "--steps", "2", SIZES=((2, 8, 4),))
    assert all(float(number) > 0 for number in row.split()[2:])


@pytest.mark.slow
def test_mixers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"LENGTH": 8, "LENGTHS": (8, 16), "PREFIXES": (4, 8), "TOKENS": 2}.items():
        monkeypatch.setattr(mixers, name, value)
    for print_table in mixers.TABLES.values():
        print_table()
        assert len(re.findall(r"\d\.\d\d", capsys.readouterr().out)) > 5


@pytest.mark.slow
def test_scans(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scans, "LENGTH", 8)
    monkeypatch.setattr(scans, "WIDTH", 16)
    scans.compare_recurrences()
    scans.time_blocks()
    assert len(re.findall(r"\d\.\d+", capsys.readouterr().out)) > 12


@pytest.mark.slow
def test_packing(script: Script) -> None:
    model = "encoder and decoder, GRU"
    lines = script(packing, "--rounds", "1", "--models", model, TOKENS=100)
    assert [line.split("|")[2].strip() for line in lines[2:]] == ["bucketed", "drawn evenly"]
    assert all(float(line.split("|")[6]) < 1e-4 for line in lines[2:])


@pytest.mark.slow
def test_plan_memory(script: Script) -> None:
    (line,) = script(plan_memory, "memory/dynamic_ngrams_lstm")[2:]
    assert 0.8 < float(line.split("|")[6]) < 1.3


@pytest.mark.slow
def test_speculative(script: Script, counter: Path) -> None:
    lines = script(
        speculative, counter, counter, "--tokens", "9", "--rounds", "1", "--prompt", "a b"
    )
    assert "parameters, the draft" in lines[0]
    assert len(lines) > 2


@pytest.mark.slow
def test_serving(script: Script, run: Path) -> None:
    lines = script(serving, run, "--seconds", "1", "--clients", "1", "3", WARM_UP=0.1)
    assert [line.split("|")[1].strip() for line in lines[2:4]] == ["1", "3"]
    assert all(re.search(r"\| \d+ x 200 \|$", line) for line in lines[2:4])
    assert re.fullmatch(r"3 clients: [\d.]+ times the answers of 1", lines[4])


@pytest.mark.slow
def test_startup(script: Script) -> None:
    lines = script(startup, "--rounds", "1")
    assert sum(line.startswith("check ") for line in lines) == 2
    assert any(re.match(r"train .*, x \d\.\d\d", line) for line in lines)


@pytest.mark.slow
def test_devices(script: Script, run: Path) -> None:
    options = ["--devices", "1", "--rounds", "1", "--steps", "8", "--accelerator", "cpu"]
    lines = script(devices, run / "recipe.yaml", *options)
    assert "1.00 of a single device's speed per device" in lines[-1]


@pytest.mark.slow
def test_large_corpora(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path))
    lines = script(large_corpora, "--folder", tmp_path, "--pairs", "2000", FEW=300)
    assert len(lines) == 6
    assert all(re.search(r"first step, seconds \d+\.\d", line) for line in lines)


@pytest.mark.slow
def test_token_files(script: Script, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("".join(f"line {row} of {row * row}\n" for row in range(20_000)))
    options = ["--text", text, "--megabytes", "1", "--folder", tmp_path / "ids", "--rounds", "1"]
    lines = script(token_files, *options, DROP=tmp_path / "missing")
    assert lines[1] == "cold: after posix_fadvise"
    heads = [line for line in lines if "one batch / cache" in line]
    assert [line.split("|")[1].strip() for line in heads] == ["text", "pairs"]
    rows = [line.split("|")[2:5] for line in lines if line.startswith("| MB on disk")]
    assert len(rows) == 2
    for cache, batches, one_batch in rows:
        assert 0 < float(batches) <= float(cache)
        assert 0 < float(one_batch) <= float(cache)


@pytest.mark.slow
def test_training(script: Script, tmp_path: Path) -> None:
    (tmp_path / "multi30k").mkdir()
    for split, count in (("train", 400), ("val", 2), ("test_2016_flickr", 2)):
        for language in ("en", "de"):
            rows = [
                " ".join(f"{language}{row * word % 97}" for word in range(8))
                for row in range(count)
            ]
            (tmp_path / "multi30k" / f"{split}.{language}").write_text("\n".join(rows) + "\n")
    options = ["--models", "gru_attention", "--rounds", "1", "--steps", "1", "--precision", "32"]
    lines = script(training, "--data", tmp_path, *options, WARM_UP=1)
    assert "ours 32 to bare 32" in lines[-1]

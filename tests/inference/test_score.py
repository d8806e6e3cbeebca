"""`score`: log-probabilities of given lines, and minimal pairs in BLiMP's form."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import composer
from composer.cli import main
from composer.errors import DataError, RunError
from composer.inference.run import open_run
from composer.inference.score import minimal_pairs, read_pairs
from composer.model.special_tokens import BOS, EOS
from tests.inference.untrained import LANGUAGE, TWO, made

LINES = ["eins zwei", "", "drei vier fünf sechs", "unbekannt", "eins"]
PAIR = {"sentence_good": "eins zwei", "sentence_bad": "zwei eins"}


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("language") / "run", LANGUAGE)


@pytest.fixture
def score(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """What the command prints, or the text of its error."""

    def call(*arguments: Any, stdin: str = "", status: int = 0) -> str:
        monkeypatch.setattr(
            sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin.encode()), isatty=lambda: False)
        )
        capsys.readouterr()
        with pytest.raises(SystemExit, match=str(status)):
            main.main(["score", *map(str, arguments)])
        out, err = capsys.readouterr()
        return err if status else out

    return call


def test_a_row_for_each_line_and_one_of_all(
    language: Path, tmp_path: Path, score: Callable[..., str]
) -> None:
    """Compared with the sums over the logits of each line alone."""
    run, expected = open_run(language), []
    for line in LINES:
        ids = [*run.tokenizers.encode("target", [line])[0], EOS]
        log_p = run.model({}, torch.tensor([[BOS, *ids[:-1]]]))[0].detach().log_softmax(-1)
        expected.append((float(sum(log_p[at, token] for at, token in enumerate(ids))), len(ids)))
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n")
    *rows, last = map(json.loads, score(language, tmp_path / "lines", "--json").splitlines())
    assert [row["text"] for row in rows] == LINES
    assert [row["tokens"] for row in rows] == [tokens for _, tokens in expected]
    assert [row["log_probability"] for row in rows] == pytest.approx(
        [total for total, _ in expected], abs=1e-4
    )
    assert [row["perplexity"] for row in rows] == pytest.approx(
        [math.exp(-a / b) for a, b in expected], rel=1e-4
    )
    total, tokens = (sum(column) for column in zip(*expected, strict=True))
    assert last == pytest.approx(
        {
            "log_probability": total,
            "tokens": tokens,
            "perplexity": math.exp(-total / tokens),
            "lines": 5,
        },
        rel=1e-4,
    )
    assert [one.total for one in composer.score(language, LINES)] == [
        row["log_probability"] for row in rows
    ]
    table = [line.split("\t") for line in score(language, stdin="\n".join(LINES)).splitlines()]
    assert [row[3] for row in table] == [*LINES, "all 5 lines"]
    assert [float(row[0]) for row in table[:-1]] == pytest.approx(
        [row["log_probability"] for row in rows], abs=1e-3
    )
    twice = score(language, tmp_path / "lines", tmp_path / "lines", "--json").splitlines()
    assert json.loads(twice[-1])["lines"] == 10
    assert score(language, "--target", tmp_path / "lines") == score(language, tmp_path / "lines")


def test_pairs_of_a_table_and_of_two_files(
    gru: Path, tmp_path: Path, score: Callable[..., str]
) -> None:
    sources, targets = ["eins zwei", "drei", "sechs"], ["zwei", "drei vier", ""]
    (tmp_path / "a").write_text("\n".join(sources) + "\n")
    (tmp_path / "b").write_text("\n".join(targets) + "\n")
    expected = [one.total for one in open_run(gru).score(sources, targets)]
    of_files = score(gru, "--source", tmp_path / "a", "--target", tmp_path / "b", "--json")
    table = "".join(
        f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)
    )
    assert score(gru, "--json", stdin=table) == of_files
    assert [json.loads(row)["log_probability"] for row in of_files.splitlines()[:-1]] == expected
    assert composer.score(gru, sources, targets)[1].total == expected[1]


def test_several_encoders_read_a_column_each(tmp_path: Path, score: Callable[..., str]) -> None:
    run = made(tmp_path / "run", TWO)
    for name, text in (("a", "eins\n"), ("b", "zwei drei\n"), ("c", "vier\n")):
        (tmp_path / name).write_text(text)
    files = ("--source", tmp_path / "a", "--source", tmp_path / "b", "--target", tmp_path / "c")
    (one,) = open_run(run).score(["eins\tzwei drei"], ["vier"])
    assert json.loads(score(run, *files, "--json").splitlines()[0])["log_probability"] == one.total
    assert score(run, stdin="eins\tzwei drei\tvier\n") == score(run, *files)
    refused = score(run, *files[2:], status=2)
    assert (
        "`--source news.left --source news.right --target news.target`, and no other file"
        in refused
    )


def test_faults_have_their_place(
    gru: Path, language: Path, tmp_path: Path, score: Callable[..., str]
) -> None:
    (tmp_path / "short").write_text("eins\n")
    (tmp_path / "long").write_text("eins\nzwei\n")
    assert "<stdin>:2:1: error[columns]" in score(gru, stdin="a\tb\nc\n", status=2)
    assert "this file ends before the text does" in score(
        gru, "--source", tmp_path / "long", "--target", tmp_path / "short", status=2
    )
    assert "this file has more lines than the 1" in score(
        gru, "--source", tmp_path / "short", "--target", tmp_path / "long", status=2
    )
    for arguments in (
        ("--source", "a"),
        ("--target", "a"),
        ("a", "--source", "a", "--target", "a"),
    ):
        assert "a `--source` for each encoder, source, and a `--target`" in score(
            gru, *arguments, status=2
        )
    refused = score(language, "--source", "a", "--target", "b", status=2)
    assert f"{language}: error[run]: this model has no source" in refused
    assert f"fix: write `seqcomposer score {language} lines.txt`" in refused
    assert "cannot be read" in score(language, tmp_path / "none", status=2)
    assert "several runs are for `translate`" in score(
        language, language, tmp_path / "none", status=2
    )
    (tmp_path / "empty").touch()
    for arguments in ((tmp_path / "empty",), (), ("--minimal-pairs",)):
        assert "there is no line to score" in score(language, *arguments, status=2)
    (tmp_path / "latin").write_bytes(b"eins\nf\xfcnf\n")
    assert f"{tmp_path / 'latin'}:2:2: error[encoding]" in score(
        language, tmp_path / "latin", status=2
    )
    refused = score(language, "texts.jsonl", status=2)
    assert "texts.jsonl: error[run]: this file is JSON, and lines of text are scored" in refused
    assert "this file is Parquet" in score(
        gru, "--source", "a.parquet", "--target", "b.parquet", status=2
    )


# -------------------------------------------------------------------------------------------
# minimal pairs


def test_the_accuracy_of_minimal_pairs_by_paradigm(
    language: Path, tmp_path: Path, score: Callable[..., str]
) -> None:
    run = open_run(language)
    rows = [{**PAIR, "UID": "a", "field": "x"}, {**PAIR, "UID": "b", "field": "x"}]
    rows[1] |= {"sentence_good": PAIR["sentence_bad"], "sentence_bad": PAIR["sentence_good"]}
    rows.append(
        {
            "sentence_good": "eins",
            "sentence_bad": "eins vier drei zwei zehn eins",
            "UID": "b",
            "field": "b",  # a name of two groups
        }
    )
    good, bad, short, long = (
        one.total for one in run.score([*PAIR.values(), *[*rows[2].values()][:2]])
    )
    right = [good > bad, bad > good, short > long]
    assert right[:2] in ([True, False], [False, True])
    result = run.minimal_pairs(rows)
    assert (result["pairs"], result["accuracy"]) == (3, sum(right) / 3)
    assert result["by_UID"] == {
        "a": {"pairs": 1, "accuracy": float(right[0])},
        "b": {"pairs": 2, "accuracy": sum(right[1:]) / 2},
    }
    assert result["by_field"]["x"] == {"pairs": 2, "accuracy": 0.5}
    assert "by_linguistics_term" not in result
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (
        json.loads(score(language, tmp_path / "pairs.jsonl", "--minimal-pairs", "--json")) == result
    )
    table = score(language, "--minimal-pairs", stdin=(tmp_path / "pairs.jsonl").read_text())
    assert [line.split()[:2] for line in table.rstrip().splitlines()[-5:]] == [
        ["all", "3"],
        ["x", "2"],
        ["b", "1"],
        ["a", "1"],
        ["b", "2"],
    ]


def test_ties_are_wrong(language: Path) -> None:
    """Whatever stands beside them in a batch: what differs in unknown words alone is the same to
    the model.
    """
    run = open_run(language)
    unknown = {"sentence_good": "eins alpha zwei", "sentence_bad": "eins beta zwei"}
    same = {"sentence_good": "drei", "sentence_bad": "drei"}
    others = [
        {"sentence_good": " ".join(["eins"] * n), "sentence_bad": "zwei"} for n in range(1, 60)
    ]
    for pair in (unknown, same):
        assert minimal_pairs(run, [pair])["accuracy"] == 0.0
    with_others = minimal_pairs(run, [*others, unknown, same, *others])
    assert round(with_others["accuracy"] * 120) == 2 * round(
        minimal_pairs(run, others)["accuracy"] * 59
    )
    with torch.no_grad():  # every token is as probable as every other
        run.model.output.weight.zero_()
        run.model.output.bias.zero_()
    assert minimal_pairs(run, [PAIR] * 3)["accuracy"] == 0.0
    assert math.isnan(minimal_pairs(run, [])["accuracy"])


def test_minimal_pairs_that_are_none(gru: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="this model has an encoder"):
        open_run(gru).minimal_pairs([PAIR])
    (tmp_path / "pairs").write_text(json.dumps(PAIR) + '\n{"sentence_good": "a"}\nnone\n[1]\n')
    with pytest.raises(DataError) as raised:
        read_pairs([tmp_path / "pairs"])
    assert [(fault.line, fault.code) for fault in raised.value.faults] == [
        (2, "pair"),
        (3, "pair"),
        (4, "pair"),
    ]

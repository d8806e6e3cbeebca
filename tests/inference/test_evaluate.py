"""`evaluate`: every score against its definition."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch

from composer.atomic_io import sha256_of_file
from composer.cli.runs import print_evaluation
from composer.data.columns import PackedColumn
from composer.errors import DataError, RunError
from composer.evaluation import scores as evaluation
from composer.evaluation.by_length import accuracy_by_length, bleu_by_length, bucket
from composer.evaluation.scores import evaluate
from composer.inference import decode
from composer.inference.perplexity import perplexity_interval
from composer.inference.run import open_run
from composer.metrics.choice import choose_metrics
from composer.model.special_tokens import EOS
from composer.recipe.recipe import load
from composer.training.train import train
from tests.inference.untrained import GRU, LANGUAGE, TWO, made, record_hashes

KEYS = {"loss", "perplexity", "token_accuracy"}
TEXTS = {"exact_match", "bleu", "chrf", "bleu_signature", "chrf_signature", "bleu_by_source_length"}
CUT = "test/truncated"


COPY = (
    "{copy: {symbols: 5, min_length: 2, max_length: 6, test_lengths: [4, 7], train: 60, val: 9,"
    " test: 8}}"
)


def lines(run: Path, name: str) -> list[str]:
    return (run.parent / "data" / name).read_text(encoding="utf-8").splitlines()


def test_bleu_and_chrf_equal_those_of_sacrebleu(gru: Path) -> None:
    run = open_run(gru)
    scores = evaluate(run)
    assert set(scores) - {CUT} == {f"test/{key}" for key in {"measured"} | KEYS | TEXTS}
    references = lines(gru, "test.1")
    hypotheses = run.translate(lines(gru, "test.0"))
    assert scores["test/bleu"] == pytest.approx(
        sacrebleu.corpus_bleu(hypotheses, [references]).score
    )
    assert scores["test/chrf"] == pytest.approx(
        sacrebleu.corpus_chrf(hypotheses, [references]).score
    )
    assert scores["test/bleu_signature"].startswith(
        "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
    )
    assert scores["test/chrf_signature"].startswith(
        "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:"
    )
    assert sum(bucket["lines"] for bucket in scores["test/bleu_by_source_length"]) == len(
        references
    )


def test_the_loss_is_nats_per_token(gru: Path) -> None:
    run = open_run(gru)
    nats, right, tokens = 0.0, 0, 0
    for source, target in zip(lines(gru, "test.0"), lines(gru, "test.1"), strict=True):
        (read,), (write,) = (
            run.tokenizers.encode("source", [source]),
            run.tokenizers.encode("target", [target]),
        )
        with torch.no_grad():
            logits = run.model({"source": torch.tensor([[*read, 2]])}, torch.tensor([[1, *write]]))[
                0
            ].log_softmax(-1)
        answer = torch.tensor([*write, 2])
        nats -= float(logits.gather(1, answer[:, None]).sum())
        right += int((logits.argmax(-1) == answer).sum())
        tokens += len(answer)
    scores = evaluate(gru)
    assert scores["test/loss"] == pytest.approx(nats / tokens, rel=1e-4)
    assert scores["test/perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert scores["test/token_accuracy"] == pytest.approx(right / tokens)


def test_a_model_in_training_is_measured_without_dropout(tmp_path: Path) -> None:
    run = open_run(
        made(
            tmp_path / "run",
            "encoder: [dropout: 0.5]\ndecoder: [{cross_attention: {}}, {rnn: {cell: gru}}]",
        )
    )
    scores = evaluate(run)
    run.model.train()
    assert evaluate(run) == scores
    assert run.model.training


def test_another_split_can_be_evaluated(gru: Path) -> None:
    assert "train/bleu" in evaluate(gru, "train", overrides=["decoding=greedy"])
    with pytest.raises(RunError, match="no data called `val`"):
        evaluate(gru, "val")
    with pytest.raises(RunError, match="no data called `tset`"):
        evaluate(gru, "tset")


@pytest.mark.parametrize("model", [GRU, LANGUAGE])
def test_of_train_what_is_trained_on_is_measured(tmp_path: Path, model: str) -> None:
    """All scores, and `measured`, are of the same lines."""
    run = made(tmp_path / "run", model)
    names = ("train.0", "train.1") if "encoder" in model else ("train.0",)
    trained = {
        name: [line for line in lines(run, name) if len(line.split()) < 14] for name in names
    }
    recipe = run / "recipe.yaml"
    recipe.write_text(
        recipe.read_text(encoding="utf-8").replace("tokenizer:", "max_length: 14\n  tokenizer:"),
        "utf-8",
    )
    record_hashes(run)
    scores = evaluate(
        run, "train", hypotheses=tmp_path / "out.jsonl" if "encoder" in model else None
    )
    measured = scores["train/measured"]
    assert 0 < measured["lines"] == len(trained[names[-1]]) < len(lines(run, "train.0"))
    for name, side in zip(names[::-1], ("target", "source"), strict=False):
        (tmp_path / name).write_text(
            "".join(f"{line}\n" for line in trained[name]), encoding="utf-8"
        )
        assert measured["sha256"][side] == sha256_of_file(tmp_path / name)
    if "encoder" in model:
        rows = [
            json.loads(line)
            for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        assert [row["ref"] for row in rows] == trained["train.1"]
        assert sum(row["lines"] for row in scores["train/bleu_by_source_length"]) == len(
            trained["train.1"]
        )


def test_data_files_are_looked_up_in_the_data_folder_first(gru: Path, tmp_path: Path) -> None:
    shutil.copytree(gru.parent / "data", tmp_path / "data")
    (tmp_path / "data" / "test.1").write_text("zehn\n" * 12, encoding="utf-8")
    assert evaluate(gru, data=tmp_path / "data")["test/loss"] != evaluate(gru)["test/loss"]
    with pytest.raises(DataError, match=r"no file `test\.0`"):
        evaluate(gru, data=tmp_path)


def test_files_are_evaluated_as_a_split_is(gru: Path, tmp_path: Path) -> None:
    data = gru.parent / "data"
    files = {"sources": [data / "test.0"], "targets": [data / "test.1"], "name": "news"}
    result = evaluate(gru, **files, hypotheses=tmp_path / "out.jsonl")
    assert result["news/measured"] == {
        "lines": 12,
        "sha256": {
            "source": sha256_of_file(data / "test.0"),
            "target": sha256_of_file(data / "test.1"),
        },
    }
    assert {key.partition("/")[2]: value for key, value in result.items()} == {
        key.partition("/")[2]: value for key, value in evaluate(gru).items()
    }
    rows = [
        json.loads(line)
        for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [row["ref"] for row in rows] == lines(gru, "test.1")
    assert [row["mt"] for row in rows] == open_run(gru).translate([row["src"] for row in rows])


def test_a_long_evaluation_counts_its_lines(gru: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "DECODING_SECONDS", 0.0)
    monkeypatch.setattr(decode, "MAX_ROWS", 8)
    messages: list[str] = []
    evaluate(gru, say=messages.append)
    assert messages[0] == f"decoded 8 of {len(lines(gru, 'test.0'))} lines"
    monkeypatch.setattr(evaluation, "DECODING_SECONDS", 60.0)
    count = len(messages)
    evaluate(gru, say=messages.append)
    assert len(messages) == count


def test_packed_files_are_not_unpacked_for_each_line(
    gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, packed = gru.parent / "data", [tmp_path / "a.txt.gz", tmp_path / "b.txt.gz"]
    plain = [data / "test.0", data / "test.1"]
    for path, file in zip(plain, packed, strict=True):
        file.write_bytes(gzip.compress(path.read_bytes()))
    expected = evaluate(gru, sources=plain[:1], targets=plain[1:], name="news")
    monkeypatch.setattr(
        PackedColumn, "read", lambda self, rows: pytest.fail("this unpacks the file once more")
    )
    assert evaluate(gru, sources=packed[:1], targets=packed[1:], name="news") == expected


def test_a_line_may_have_several_references(gru: Path, tmp_path: Path) -> None:
    data = gru.parent / "data"
    decoded = open_run(gru).translate(lines(gru, "test.0"))
    (tmp_path / "second").write_text("".join(f"{line}\n" for line in decoded), encoding="utf-8")
    result = evaluate(
        gru, sources=[data / "test.0"], targets=[data / "test.1", tmp_path / "second"]
    )
    assert result["test.1/exact_match"] == 1.0
    assert "nrefs:2" in result["test.1/bleu_signature"]


WRONG_FILES = {
    "no source": ((), ("test.1",), "news", "a `--source` for each encoder, source"),
    "two sources": (("test.0", "test.0"), ("test.1",), "news", "a `--source` for each encoder"),
    "no target": (("test.0",), (), "news", "and a `--target`"),
    "a name that is taken": (("test.0",), ("test.1",), "val", "`val` is the name of a split"),
    "other lines": (("test.0",), ("train.1",), "news", "has 12 lines and"),
    "no file": (("nothing",), ("test.1",), "news", "nothing"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_files_that_do_not_fit_are_refused(gru: Path, case: str) -> None:
    sources, targets, name, message = WRONG_FILES[case]
    data = gru.parent / "data"
    with pytest.raises((RunError, DataError), match=message):
        evaluate(
            gru,
            sources=[data / one for one in sources],
            targets=[data / one for one in targets],
            name=name,
        )


def test_what_would_be_ignored_is_refused(gru: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="`--name` is for files"):
        evaluate(gru, name="news")
    language = made(tmp_path / "language" / "run", LANGUAGE)
    with pytest.raises(RunError, match="without encoders decodes nothing"):
        evaluate(language, hypotheses=tmp_path / "out.jsonl")
    with pytest.raises(
        RunError,
        match=r"this model has no source(.|\n)*example, `--target news.target --name news`",
    ):
        evaluate(language, sources=["a"], targets=["a"])


def test_models_with_two_encoders_or_none_are_evaluated(tmp_path: Path) -> None:
    assert set(evaluate(made(tmp_path / "two" / "run", TWO))) - {CUT} == {
        f"test/{key}" for key in {"measured"} | KEYS | TEXTS
    }
    language = evaluate(made(tmp_path / "language" / "run", LANGUAGE))
    assert set(language) == {f"test/{key}" for key in {"measured"} | KEYS}


def test_accuracy_is_grouped_by_source_length() -> None:
    rows = [("a b", "x y", "x y"), ("a b", "x", "x y"), ("a b c", "y x z w", "x y z"), ("", "", "")]
    assert accuracy_by_length(*zip(*rows, strict=True)) == [
        {"words": 2, "lines": 2, "exact_match": 0.5, "positional_accuracy": 0.75},
        {"words": 3, "lines": 1, "exact_match": 0.0, "positional_accuracy": pytest.approx(1 / 3)},
    ]


def test_a_run_is_evaluated_on_other_lengths_of_its_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "run", tokenizer="{word: {split: spaces}}", task=COPY)
    scores = evaluate(run)
    assert [(row["words"], row["lines"]) for row in scores["test/accuracy_by_length"]] == [
        (4, 8),
        (7, 8),
    ]
    rows = scores["test/accuracy_by_length"]
    assert sum(row["exact_match"] for row in rows) / 2 == pytest.approx(scores["test/exact_match"])
    other = evaluate(
        run, overrides=["data.generate.copy.test_lengths=[11]", "data.generate.copy.test=5"]
    )
    assert [(row["words"], row["lines"]) for row in other["test/accuracy_by_length"]] == [(11, 5)]
    print_evaluation(
        scores
        | {
            "test/accuracy_by_length": [
                rows[0] | {"exact_match": 0.625, "positional_accuracy": 0.75}
            ]
        }
    )
    assert ["4", "8", "62.5%", "75.0%"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]
    with pytest.raises(DataError, match="longer than the longest"):
        evaluate(run, overrides=["data.generate.copy.min_length=9"])


def test_the_interval_of_few_documents_has_no_perplexity_below_one() -> None:
    bounds = perplexity_interval(np.array([1.0, 10.0]), np.array([19, 39]))
    assert bounds["perplexity_low"] == 1
    assert bounds["perplexity_high"] > math.exp(11 / 40)


def test_truncated_answers_are_reported(gru: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = open_run(gru, ["decoding=greedy", "decoding.greedy.max_length=7"])
    torch.nn.init.zeros_(run.model.output.bias)
    run.model.output.bias.data[EOS] = -1e4
    scores = evaluate(run)
    assert (
        scores[CUT] == "12 of 12 outputs were cut at `decoding.greedy.max_length` and `max_ratio`"
    )
    print_evaluation(scores)
    assert "12 of 12 outputs were cut" in capsys.readouterr().out
    run.model.output.bias.data[EOS] = 1e4
    assert CUT not in evaluate(run)


def test_training_records_accuracy_by_length_and_reports_truncated_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(
        tmp_path / "run",
        tokenizer="{word: {split: spaces}}",
        task=COPY,
        decoding="{greedy: {max_length: 2}}",
    )
    training = (
        "training: {max_steps: 1, optimizer: {adam: {learning_rate: 1e-9}}}\nlogging: {wandb:"
        " false}\n"
    )
    recipe = tmp_path / "copy.yaml"
    recipe.write_text(
        (run / "recipe.yaml").read_text(encoding="utf-8") + training, encoding="utf-8"
    )
    record = train(load(recipe), run=tmp_path / "trained").record
    scores = evaluate(tmp_path / "trained")
    assert [*record.by_length["test"]] == scores["test/accuracy_by_length"]
    assert f"test: {scores[CUT]}" in "".join(capsys.readouterr())
    assert CUT not in record.scores


def test_buckets_are_of_ten_words() -> None:
    buckets = {0: "0", 1: "1-10", 10: "1-10", 11: "11-20", 50: "41-50", 51: "51+", 300: "51+"}
    assert {words: bucket(words)[1] for words in buckets} == buckets
    sources = ["a " * words for words in (60, 3, 12, 4)]
    rows = bleu_by_length(
        sources, ["x y z w"] * 4, [["x y z w"] * 4], choose_metrics([], ["bleu"], "13a")
    )
    assert [(row["words"], row["lines"]) for row in rows] == [("1-10", 2), ("11-20", 1), ("51+", 1)]

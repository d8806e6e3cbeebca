"""`evaluate`: every score against its definition."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import sacrebleu
import torch
from untrained import LANGUAGE, TWO, made

from composer.errors import DataError, RunError
from composer.evaluate import evaluate
from composer.runs import open_run
from composer.scores import bleu_by_length, bucket, text_scores

KEYS = {"loss", "perplexity", "token_accuracy"}
TEXTS = {"exact_match", "bleu", "chrf", "bleu_signature", "chrf_signature", "bleu_by_source_length"}


def lines(run: Path, name: str) -> list[str]:
    return (run.parent / "data" / name).read_text(encoding="utf-8").splitlines()


def test_scores_are_what_they_say(gru: Path) -> None:
    run = open_run(gru)
    found = evaluate(run)
    assert set(found) == {f"test/{key}" for key in KEYS | TEXTS}
    references = lines(gru, "test.1")
    hypotheses = run.translate(lines(gru, "test.0"))
    assert found["test/bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert found["test/chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    assert found["test/bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert found["test/chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")
    assert sum(bucket["lines"] for bucket in found["test/bleu_by_source_length"]) == len(references)


def test_the_loss_is_nats_per_token(gru: Path) -> None:
    run = open_run(gru)
    nats, right, tokens = 0.0, 0, 0
    for source, target in zip(lines(gru, "test.0"), lines(gru, "test.1"), strict=True):
        (read,), (write,) = run.tokenizers.encode("source", [source]), run.tokenizers.encode("target", [target])
        with torch.no_grad():
            logits = run.model({"source": torch.tensor([[*read, 2]])}, torch.tensor([[1, *write]]))[0].log_softmax(-1)
        answer = torch.tensor([*write, 2])
        nats -= float(logits.gather(1, answer[:, None]).sum())
        right += int((logits.argmax(-1) == answer).sum())
        tokens += len(answer)
    found = evaluate(gru)
    assert found["test/loss"] == pytest.approx(nats / tokens, rel=1e-4)
    assert found["test/perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert found["test/token_accuracy"] == pytest.approx(right / tokens)


def test_a_model_in_training_is_measured_without_dropout(tmp_path: Path) -> None:
    run = open_run(
        made(tmp_path / "run", "encoder: [dropout: 0.5]\ndecoder: [{cross_attention: {}}, {rnn: {cell: gru}}]")
    )
    found = evaluate(run)
    run.model.train()
    assert evaluate(run) == found
    assert run.model.training


def test_another_split(gru: Path) -> None:
    assert "train/bleu" in evaluate(gru, "train", overrides=["decoding=greedy"])
    with pytest.raises(RunError, match="no data called `val`"):
        evaluate(gru, "val")
    with pytest.raises(RunError, match="no data called `tset`"):
        evaluate(gru, "tset")


def test_data_are_found_where_they_are_said_to_be(gru: Path, tmp_path: Path) -> None:
    shutil.copytree(gru.parent / "data", tmp_path / "data")
    (tmp_path / "data" / "test.1").write_text("zehn\n" * 12, encoding="utf-8")
    assert evaluate(gru, data=tmp_path / "data")["test/loss"] != evaluate(gru)["test/loss"]
    with pytest.raises(DataError, match=r"no file `test\.0`"):
        evaluate(gru, data=tmp_path)


def test_several_encoders_and_none(tmp_path: Path) -> None:
    assert set(evaluate(made(tmp_path / "two" / "run", TWO))) == {f"test/{key}" for key in KEYS | TEXTS}
    assert set(evaluate(made(tmp_path / "language" / "run", LANGUAGE))) == {f"test/{key}" for key in KEYS}


def test_right_answers_have_full_scores() -> None:
    texts = ["the cat sat on the mat .", "and so did I"]
    assert text_scores(texts, texts) == pytest.approx({"exact_match": 1.0, "bleu": 100.0, "chrf": 100.0})
    assert text_scores(["the cat sat on the mat . ", "no"], texts)["exact_match"] == 0.5
    assert text_scores([], []) == {"exact_match": 0.0, "bleu": 0.0, "chrf": 0.0}


def test_buckets_are_of_ten_words() -> None:
    buckets = {0: "0", 1: "1-10", 10: "1-10", 11: "11-20", 50: "41-50", 51: "51+", 300: "51+"}
    assert {words: bucket(words) for words in buckets} == buckets
    sources = ["a " * words for words in (60, 3, 12, 4)]
    found = {words: lines for words, lines, _ in bleu_by_length(sources, ["x y z w"] * 4, ["x y z w"] * 4)}
    assert list(found.items()) == [("1-10", 2), ("11-20", 1), ("51+", 1)]

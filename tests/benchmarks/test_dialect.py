"""The dialect benchmark: what a model reads of its own output, and its loss relative to the
optimum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import dialect
from composer.data.tasks.sequences import mark
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.training.train import train
from tests.run_records import change_record

RECIPE = """
recipe: 1
name: spoken
data:
  generate: {{dialect: {{symbols: 3, dialects: 2, every: {every}, min_length: 4, max_length: 8,
    test_lengths: [4, 6],
                       train: 40, val: 5, test: 3}}}}
  tokenizer: {{word: {{split: spaces}}}}
model:
  width: 8
  encoder: [rnn]
  decoder: {decoder}
training: {{max_steps: 2, tokens_per_batch: 100}}
logging: {{wandb: false}}
decoding: greedy
"""
DECODERS = {
    "nothing": "[source_state]",
    "last": "[source_state, {concat: input}]",
    "all": "[{rnn: {initial_state: encoder}}]",
}


def trained(folder: Path, reads: str, every: int) -> Path:
    (folder / "t.yaml").write_text(
        RECIPE.format(every=every, decoder=DECODERS[reads]), encoding="utf-8"
    )
    train(load(folder / "t.yaml"), run=folder / reads)
    return folder / reads


@pytest.mark.parametrize(
    ("reads", "every", "guesses"), [("nothing", 2, 15), ("last", 1, 6), ("all", 2, 6)]
)
def test_a_loss_is_compared_with_the_models_own_optimum(
    tmp_path: Path, reads: str, every: int, guesses: int
) -> None:
    run = trained(tmp_path, reads, every)
    row = dialect.read_run(run)
    # three lines of four symbols and three of six, each with its eos
    assert row.least == pytest.approx(guesses * math.log(2) / (3 * 5 + 3 * 7))
    assert (row.name, row.reads) == (reads, reads)
    assert row.loss == json.loads((run / "run.json").read_text())["scores"]["test/loss"]
    assert row.loss > row.least
    change_record(RunDir(run), scores={})
    with pytest.raises(SystemExit, match="no finished run of the task `dialect`"):
        dialect.read_run(run)


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("dialects", [2, 3])
def test_the_dialect_optimum_is_that_of_an_enumeration(every: int, dialects: int):
    sources = [" ".join(mark(list("abcdefg"[:length]), every)) for length in (1, 2, 3, 5, 7)]
    tokens = sum(len(source.split()) + 1 for source in sources)
    for reads in ("nothing", "last", "all"):
        nats = sum(entropy(source.lower().split(), every, dialects, reads) for source in sources)
        assert dialect.dialect_optimum(sources, dialects, every, reads) == pytest.approx(
            nats / tokens
        )


def entropy(row: Sequence[str], every: int, dialects: int, reads: str) -> float:
    """The entropy of an answer, word by word, given what is read of the words before: from all
    answers there are.
    """
    answers = [[*mark(row, every, str(which)), "</s>"] for which in range(1, dialects + 1)]

    def known(answer: Sequence[str], place: int) -> tuple[str, ...]:
        begin = {"nothing": place, "last": max(place - 1, 0), "all": 0}[reads]
        return tuple(answer[begin:place])

    nats = 0.0
    for place in range(len(row) + 1):
        for answer in answers:
            alike = [other for other in answers if known(other, place) == known(answer, place)]
            share = sum(other[place] == answer[place] for other in alike) / len(alike)
            nats -= math.log(share) / len(answers)
    return nats

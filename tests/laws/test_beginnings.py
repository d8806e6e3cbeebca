"""What stands before a document is the same in training and in all that a model is asked, whatever
the rows are.

Rows and packed rows begin with bos. In the windows of a text a document stands after the end of
another: so does the first one of a text, and each that is scored or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from composer.evaluation.scores import evaluate
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import Embedding
from composer.model.special_tokens import BOS, EOS
from composer.recipe.recipe import Recipe, load
from composer.training.train import train

KINDS: dict[str, dict[str, Any]] = {
    "rows": {},
    "packed": {"data": {"packing": True}},
    "windows": {"training": {"window": 5}},
    "windows with context": {"training": {"window": 8}, "evaluation": {"stride": 3}},
    "carried": {"training": {"window": 5, "carry": True}},
}
STARTS = ["these", "those", "where", "there"]


def recipe_of(folder: Path, kind: str, **changes: Any) -> Recipe:
    """Write the recipe of a small language model, with the settings of a kind of row."""
    recipe: dict[str, Any] = {
        "recipe": 1,
        "name": "text",
        "data": {
            "text": {"train": "train.txt", "val": "val.txt", "test": "val.txt"},
            "tokenizer": "word",
        },
        "model": {"width": 8, "decoder": [{"rnn": {"cell": "gru"}}]},
        "training": {"tokens_per_batch": 40, "max_steps": 6, "validate_every": 3},
        "logging": {"wandb": False},
    }
    for settings in (KINDS[kind], changes):
        for section, values in settings.items():
            recipe[section] = recipe.get(section, {}) | values
    (folder / "text.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return load(folder / "text.yaml")


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    """Lines of a file for training and of one for validation, which they are returned of."""
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(list("abcdefg"), size)) for size in random.integers(1, 20, 40)]
    (tmp_path / "train.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "val.txt").write_text("\n".join(texts[:9]) + "\n")
    return texts[:9]


@contextmanager
def reading() -> Iterator[set[int]]:
    """Collect which of bos and eos the embedding is given."""
    read: set[int] = set()
    forward = Embedding.forward

    def record(self: Embedding, ids: Tensor) -> Tensor:
        # and no shape without numbers, of a plan or an estimate
        if type(ids) is Tensor and ids.device.type == "cpu":
            read.update({BOS, EOS} & {*ids.unique().tolist()})
        return forward(self, ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Embedding, "forward", record)
        yield read


@pytest.mark.parametrize("kind", KINDS)
def test_one_token_stands_before_every_document(
    kind: str, lines: list[str], tmp_path: Path
) -> None:
    expected = {EOS if "window" in KINDS[kind].get("training", {}) else BOS}
    with reading() as read:
        train(recipe_of(tmp_path, kind), tmp_path / "run")
        assert read == expected
    run = open_run(tmp_path / "run")
    pair = {"sentence_good": lines[0], "sentence_bad": lines[1]}
    asked: list[Any] = [
        lambda: evaluate(run, "test"),
        lambda: run.score(lines),
        lambda: run.logits(lines),
        lambda: run.minimal_pairs([pair]),
        lambda: run.generate(samples=2, max_length=3),
        lambda: run.generate(["a b"], max_length=3),
        lambda: run.generate(["a b"], max_length=3, temperature=1.0, draft=tmp_path / "run"),
        lambda: run.translate(["a b"]),
    ]
    for ask in asked:
        with reading() as read:
            ask()
            assert read == expected


def loss_of(run: Run, folder: Path, lines: list[str]) -> float:
    """Return the sum of the losses of a text of these lines, as `evaluate` measures it."""
    (folder / "text").write_text("\n".join(lines) + "\n")
    scores = evaluate(run, targets=[folder / "text"], name="lines")
    tokens = sum(len(line.split()) + 1 for line in lines)
    return float(scores["lines/loss"]) * tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_is_scored_as_a_text_of_it_is_evaluated(
    kind: str, lines: list[str], tmp_path: Path
) -> None:
    """Of a text of several this is true of the first; of all where each is a row."""
    train(recipe_of(tmp_path, kind), tmp_path / "run")
    run = open_run(tmp_path / "run")
    scores = run.score(lines)
    for line, result in zip(lines, scores, strict=True):
        assert len(result.tokens) == len(result.log_probabilities) == len(line.split()) + 1
        assert -result.total == pytest.approx(loss_of(run, tmp_path, [line]), rel=1e-5)
        assert [one.total for one in run.score([line])] == pytest.approx([result.total], rel=1e-5)
    if not run.recipe.window:
        assert -sum(one.total for one in scores) == pytest.approx(
            loss_of(run, tmp_path, lines), rel=1e-5
        )


def test_a_first_token_is_as_probable_as_after_the_end_of_a_document(tmp_path: Path) -> None:
    """Documents begin with one of four words, so ln 4 nats at best: a model that begins otherwise
    is far above.
    """
    random = np.random.default_rng(0)
    texts = [
        " ".join([STARTS[at % 4], *random.choice(["are", "then", "else"], 3)]) for at in range(60)
    ]
    (tmp_path / "train.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "val.txt").write_text("\n".join(texts[:9]) + "\n")
    training = {"tokens_per_batch": 256, "max_steps": 100, "validate_every": 100, "window": 32}
    training["optimizer"] = {"adamw": {"learning_rate": 1e-2}}
    recipe = recipe_of(
        tmp_path, "windows", training=training, data={"tokenizer": "char"}, model={"width": 32}
    )
    train(recipe, tmp_path / "run")
    run = open_run(tmp_path / "run")
    begun = np.mean([one.log_probabilities[0] for one in run.score(texts)])
    first, second = (run.tokenizers.encode("target", [line])[0] for line in texts[:2])
    with torch.no_grad():
        log_p = run.model({}, torch.tensor([[BOS, *first, EOS]]))[0, -1].log_softmax(-1)
    after_end = np.mean(
        [float(log_p[run.tokenizers.encode("target", [line])[0][0]]) for line in texts]
    )
    assert second
    assert begun == pytest.approx(after_end, abs=0.2)
    (written,) = run.generate(samples=20, max_length=20)
    assert sum(text.partition(" ")[0] in STARTS for text in written) > 15


@pytest.mark.parametrize(
    ("kind", "prompts", "beyond"), [("windows", 2, "1 of 2"), ("carried", 1, ""), ("rows", 1, "")]
)
def test_texts_beyond_a_window_are_reported_once(
    kind: str,
    prompts: int,
    beyond: str,
    lines: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(recipe_of(tmp_path, kind), tmp_path / "run")
    capsys.readouterr()
    open_run(tmp_path / "run").generate(["a b c d e f g", "a"][:prompts], max_length=3)
    error = capsys.readouterr().err
    assert error.count("longer than the 5 tokens of a window") == bool(beyond)
    assert beyond in error

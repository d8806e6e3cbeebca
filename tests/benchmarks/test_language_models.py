"""Training speed of language models: the plain models are ours, and both loops run to their end on
a few lines.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import language_models
from composer.model.builder import build
from composer.recipe.recipe import load


def write_texts(folder: Path) -> None:
    stream = random.Random(0)
    for name, splits in (
        ("ptb", ("ptb.train", "ptb.valid", "ptb.test")),
        ("shakespeare", ("train", "val")),
    ):
        (folder / name).mkdir()
        for split in splits:
            words = ["".join(stream.choices("abcde", k=3)) for _ in range(9000)]
            lines = (" ".join(words[at : at + 9]) for at in range(0, len(words), 9))
            (folder / name / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("model", language_models.NAMES)
def test_both_loops_train_the_same_model(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path)
    ours = build(
        load(language_models.RECIPES / f"{language_models.NAMES[model]}.yaml"), {"target": 69}
    )
    plain = language_models.PLAIN[model](69)
    count = sum(weights.numel() for weights in ours.parameters())
    # torch's LSTM adds two vectors where one would do
    second_biases = 2 * 4 * 200 if model == "lstm" else 0
    assert sum(weights.numel() for weights in plain.parameters()) - count in (0, second_biases)
    monkeypatch.setattr(language_models, "WARM_UP", 1)
    language_models.main(
        ["--data", str(tmp_path), "--models", model, "--rounds", "1", "--steps", "1"]
    )
    assert f"{model}: " in capsys.readouterr().out.splitlines()[-1]

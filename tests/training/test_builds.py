"""How often a command builds the model: once on the meta device, for its plan, and once with memory
to train it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import composer
from composer.model.builder import Builder
from composer.model.encoder_decoder import EncoderDecoder

RECIPE = """recipe: 1
data: {generate: {copy: {train: 40, val: 10, test: 5}}}
model: {width: 8, encoder: [rnn], decoder: [rnn, cross_attention]}
training: {max_steps: 2}
logging: {wandb: false}
"""
BITS = """recipe: 1
data: {generate: {vector_copy: {bits: 3, max_length: 3, train: 40, val: 10, test: 5}},
  tokenizer: {bits: {size: 3}}}
model: {width: 8, encoder: [rnn], decoder: [rnn, cross_attention], embedding: linear,
  output: {kind: sigmoid}}
training: {max_steps: 2}
"""


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Models that were built, by the kind of device."""
    counts: Counter[str] = Counter()
    build = Builder.model

    def counted(builder: Builder, vocabularies: Mapping[str, int]) -> EncoderDecoder:
        model = build(builder, vocabularies)
        counts[model.device.type] += 1
        return model

    monkeypatch.setattr(Builder, "model", counted)
    return counts


def test_a_check_builds_the_model_once(builds: Counter[str], tmp_path: Path) -> None:
    for number, text in enumerate((RECIPE, BITS), start=1):
        (tmp_path / "recipe.yaml").write_text(text)
        assert not composer.check(tmp_path / "recipe.yaml")
        assert builds == {"meta": number}


def test_a_training_builds_the_model_once_to_plan_and_once_to_train(
    builds: Counter[str], tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    composer.train(tmp_path / "recipe.yaml", run=tmp_path / "run")
    assert builds == {"meta": 1, "cpu": 1}


def test_pictures_for_weights_and_biases_are_of_the_same_plan(
    builds: Counter[str], tmp_path: Path
) -> None:
    """Of a tokenizer whose size is known before it is trained; of another, the plan is made again
    with its size.
    """
    (tmp_path / "recipe.yaml").write_text(BITS)
    composer.train(tmp_path / "recipe.yaml", run=tmp_path / "run")
    assert builds == {"meta": 1, "cpu": 1}

"""Viterbi's algorithm finds what no search can beat where a token depends on the last one alone;
else it says so.
"""

from __future__ import annotations

import importlib
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.errors import ComposerError, RunError
from composer.inference.methods import Beam, Greedy, Viterbi
from composer.model.encoder_decoder import EncoderDecoder, has_state
from composer.recipe.recipe import load
from tests.inference.small_models import (
    CROSS,
    DECODERS,
    PLACES,
    SIZED,
    decode,
    every_answer,
    model_of,
    sized,
)

FIRST_ORDER: list[Any] = [PLACES, CROSS, {"feed_forward": {"hidden": 8}}, {"norm": {}}]
"""A Transformer's decoder without self-attention."""
LENGTH, VOCABULARY = 4, 6


def first_order(seed: int, target: int = VOCABULARY) -> EncoderDecoder:
    return model_of(FIRST_ORDER, seed, target=target, sharp=4.0)


def answer(model: Any, how: dict[str, Any], source: list[int], prefix: tuple[int, ...] = ()) -> Any:
    models = model if isinstance(model, list) else [model]
    return decode(models, {"source": [source]}, how, [prefix])[0][0]


@pytest.mark.parametrize("prefix", [(), (4, 5)])
def test_viterbi_finds_the_best_of_all_answers(prefix: tuple[int, ...]) -> None:
    lengths = set()
    for seed in range(8):
        model, source = first_order(seed), [5, 6, 7]
        best, ids = every_answer(model, source, LENGTH, prefix)[0]
        result = answer(model, Viterbi(max_length=LENGTH), source, prefix)
        assert result.ids == ids
        assert result.score == pytest.approx(best, abs=1e-4)
        lengths.add(len(ids))
    assert len(lengths) > 1


def test_no_beam_finds_a_better_answer_than_viterbi() -> None:
    models = [first_order(seed, 12) for seed in range(4)] + [
        sized(kind, 1, 12) for kind in ("plain", "markov")
    ]
    better = 0
    for model in models:
        for source in ([5, 6, 7], [4], []):
            best = answer(model, Viterbi(max_length=12), source)
            for how in (Greedy(max_length=12), Beam(size=3, max_length=12, length_penalty=0.0)):
                other = answer(model, how, source)
                assert not other.ended or other.score <= best.score + 1e-4
                better += other.score < best.score - 1e-2
    assert better > 0, "every search was as good, so nothing was shown"


def test_parts_of_the_vocabulary_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources = first_order(3, 11), {"source": [[5, 6, 7], [4], [9, 9]]}
    at_once = decode([model], sources, Viterbi(max_length=9))
    for cells in (1, 100):
        monkeypatch.setattr(
            importlib.import_module("composer.inference.decoders.viterbi"), "CELLS", cells
        )
        results = decode([model], sources, Viterbi(max_length=9))
        assert [row[0].ids for row in results] == [row[0].ids for row in at_once]


def test_first_order_models_form_an_ensemble() -> None:
    models, source = [first_order(1), first_order(2)], [5, 6]
    result = answer(models, Viterbi(max_length=LENGTH), source)
    scores = {}
    for count in range(LENGTH):
        for ids in itertools.product(range(3, VOCABULARY), repeat=count):
            votes = [probabilities(model, source, [*ids, 2]) for model in models]
            scores[ids] = sum(math.log(sum(products) / 2) for products in zip(*votes, strict=True))
    best = max(scores, key=lambda ids: scores[ids])
    assert result.ids == [*best]
    assert result.score == pytest.approx(scores[best], abs=1e-4)


def probabilities(model: EncoderDecoder, source: list[int], tokens: list[int]) -> list[float]:
    with torch.no_grad():
        logits = model({"source": torch.tensor([[*source, 2]])}, torch.tensor([[1, *tokens[:-1]]]))[
            0
        ]
    return logits.softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


# ------------------------------------------------------------------------------------------- what
# it is refused for


def test_only_first_order_decoders_have_no_state() -> None:
    assert [kind for kind in DECODERS if not has_state(model_of(kind))] == []
    assert [kind for kind in SIZED if not has_state(sized(kind))] == ["plain", "markov"]
    assert not has_state(first_order(0))


def test_viterbi_refuses_a_decoder_with_state() -> None:
    with pytest.raises(RunError, match="the last one alone"):
        answer(model_of("lstm"), Viterbi(), [5])
    with pytest.raises(RunError, match="the last one alone"):
        answer([first_order(0, 7), model_of("lstm")], Viterbi(), [5])


def test_viterbi_refuses_n_best() -> None:
    with pytest.raises(RunError, match="2 are requested"):
        decode([first_order(0)], {"source": [[5]]}, Viterbi(), n_best=2)


RECIPE = """\
recipe: 1
data: {generate: copy}
model:
  width: 6
  encoder: [rnn]
  decoder: [%s, {residual: [cross_attention]}]
decoding: viterbi
"""


def test_a_recipe_is_refused_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(RECIPE % "positions", encoding="utf-8")
    load(file).plan()
    file.write_text(RECIPE % "rnn", encoding="utf-8")
    with pytest.raises(ComposerError) as refused:
        load(file).plan()
    (fault,) = refused.value.faults
    assert (fault.code, fault.path, fault.line) == ("markov", "decoding", 7)
    assert "beam" in fault.hint

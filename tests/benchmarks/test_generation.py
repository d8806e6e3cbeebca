"""The loops by hand write what ours do with the same weights."""

from __future__ import annotations

import pytest
import torch

from benchmarks import generation


@pytest.mark.parametrize("name", generation.DECODERS)
def test_the_loops_by_hand_write_the_same_text(name: str) -> None:
    model = generation.untrained(name, vocabulary=50)
    with torch.inference_mode():
        texts, seconds = generation.compare(
            generation.sides_of(name, model, draws=False), tokens=40, rounds=2
        )
        drawn, _ = generation.compare(
            generation.sides_of(name, model, draws=True), tokens=40, rounds=0
        )
    assert texts["ours"] == texts["by hand"]
    assert len({*texts["ours"]}) > 5
    assert {len(text) for text in (*texts.values(), *drawn.values())} == {48}
    assert [len(rounds) for rounds in seconds.values()] == [2, 2]

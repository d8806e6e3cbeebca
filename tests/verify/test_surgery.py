"""A mixer with the projections of the attention in whose place it is learns sooner than a new one."""

from __future__ import annotations

from pathlib import Path

import pytest

from verify.surgery import ATTENTION, MIXERS, losses_after_surgery, recipe_with, val_loss


@pytest.mark.slow
def test_projections_of_an_attention_are_a_better_start(tmp_path: Path) -> None:
    source = tmp_path / "source"
    val_loss(recipe_with(ATTENTION, 300, tmp_path), source)
    mixer = MIXERS["linear_attention"]
    inherited, fresh = losses_after_surgery(mixer, 5, source, tmp_path)
    assert inherited < 0.8 * fresh

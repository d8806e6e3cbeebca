"""Blocks with an outer-product state wherever a block may stand: accepted, they train and keep the
laws of models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verify.stack_laws import outcome

MIXERS: dict[str, dict[str, Any]] = {
    "linear_attention": {"heads": 2},
    "retention": {"heads": 3, "short_conv": 2},
    "gated_linear_attention": {"heads": 2, "rank": 3},
    "mamba2": {"head_width": 3, "state": 4, "groups": 2},
    "mlstm": {"heads": 2},
    "delta_net": {"heads": 2, "negative_eigenvalues": True},
    "gated_delta_net": {"heads": 2, "decay": "vector"},
    "rwkv7": {"heads": 2, "rank": 3},
}


SAMPLE = ("mamba2", "gated_delta_net")
"""One with a decay and one with a delta rule, every day."""


@pytest.mark.parametrize(
    "word",
    [pytest.param(word, marks=() if word in SAMPLE else pytest.mark.slow) for word in MIXERS],
)
def test_a_mixer_stands_anywhere(word: str, tmp_path: Path) -> None:
    def mixer(**settings: Any) -> dict[str, Any]:
        return {word: {**MIXERS[word], **settings}}

    fed_back = [
        {"concat": ["prev.top"]},
        "linear",
        mixer(initial_state={"copy": "encoder.read"}),
        {"linear": {"as": "top"}},
    ]
    model = {
        "width": 6,
        "stacks": {"shelf": [{"residual": [mixer()]}]},
        "encoder": [mixer(**{"as": "read"}), {"parallel": {"branches": [[mixer()], ["linear"]]}}],
        "decoder": [
            mixer(initial_state="encoder"),
            {"recurrent": fed_back},
            {"repeat": {"times": 2, "share": True, "stack": [{"residual": [mixer(chunk=2)]}]}},
            {
                "parallel": {
                    "branches": [
                        [{"use": "shelf"}],
                        [{"use": "shelf"}, mixer(initial_state="learned")],
                    ]
                }
            },
        ],
    }
    data = {"parallel": {"train": {"source": "source.txt", "target": "target.txt"}}}
    assert (
        outcome({"recipe": 1, "data": data, "model": model}, tmp_path / "everywhere.yaml")
        == "accepted"
    )

"""Short stacks that the variants of combinators hold."""

from __future__ import annotations

from typing import Any

Stack = list[dict[str, Any]]

RNN: Stack = [{"rnn": {"cell": "tanh"}}]
ATTENTION: Stack = [{"self_attention": {"heads": 2}}]
TANH: Stack = [{"linear": {"activation": "tanh"}}]
NARROWER: Stack = [{"linear": {"width": 6}}]
CGRU: Stack = [{"cgru": {"kernel": [3, 2]}}]
WIDER: Stack = [
    {"linear": {"width": 16, "activation": "tanh"}},
    {"rnn": {"cell": "gru", "as": "inside"}},
]

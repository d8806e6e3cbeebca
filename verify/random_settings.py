"""Random settings of the recipe language: choices, tables and numbers, small ones, as the schema
lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from composer.recipe import schema_generator
from verify.scene import WIDTH, Draw

BITS, CELLS = (1, 2, 3), (4, WIDTH)

VALUES: Mapping[str, Sequence[Any]] = {
    # tasks
    "bits": BITS,
    "cells": CELLS,
    "vectors": (1, 2),
    "min_length": (1, 2),
    "max_length": (3, 5, 6),
    "test_lengths": ([2], [1, 4], None),
    "symbols": (2, 5, 9),
    "strings": (2, 3),
    "modulus": (2, 3),
    "keys": (8, 9),
    "values": (2, 9),
    "dialects": (2, 3),
    "every": (1, 2),
    "context": (0, 2),
    "maximum": (99, 999),
    "kinds": (1, 3),
    "share": (0.5, 1.0),
    "min_repeats": (1, 2),
    "max_repeats": (2, 4),
    "test_repeats": ([3], None),
    "train": (9, 30),
    "val": (4,),
    "test": (5,),
    "seed": (1, 7),
    # tokenizers
    "size": (300, 320),
    "word.size": (5, 12, 300),
    "char.size": (5, 12, 300),
    "bits.size": BITS,
    "marks": ([], [";"], [";", "?"]),
    "below": CELLS,
    "min_count": (1, 2),
    "path": ("tokenizer.json",),
    # characters and output heads
    "width": (2, 3),
    "kernels": ([1, 2], [3, 1]),
    "features": ([2, 3], [4, 1]),
    "highway": (0, 1, 2),
    "characters.max_length": (3, 8),
    "cnn.max_length": (3, 8),
    "correction": (0, 2),
    **dict.fromkeys(("cnn.samples", "sampled.samples"), (2, 5, 50)),
    "cutoffs": ([3], [2, 6], [8, 200]),
    "div_value": (1.0, 2.0),
    # texts
    "unit": ("line", "paragraph", "file"),
    "column": ("text", "a.b"),
    # optimizers, schedules and initializations
    "learning_rate": (1e-3, 1e-2),
    "weight_decay": (0.0, 0.01),
    **dict.fromkeys(
        ("rmsprop.decay", "adadelta.decay", "ema.decay", "gradientnoise.decay"), (0.5, 0.9)
    ),
    "eps": (1e-8, 1e-6),
    "initial": (0.0, 0.1),
    "adamw_learning_rate": (1e-3, None),
    "muon.scale": ("match_rms_adamw", "original"),
    "eps2": (1e-3, 1e-2),
    "schedule_free.beta1": (0.5, 0.9),
    "clip_threshold": (1.0, 2.0),
    "beta2_decay": (0.5, 0.8),
    "warmup_steps": (1, 2),
    "final": (0.0, 0.1),
    "factor": (0.5,),
    **dict.fromkeys(("patience", "after"), (1, 2)),
    "threshold": (0.0, 1.0),
    "bound": (0.05, 0.1),
    "shares": ([0.5], [0.3, 0.6]),
    **dict.fromkeys(("gain", "repetition_penalty"), (1.0, 1.4)),
    # decoding
    "beam.size": (1, 2, 5),
    "length_penalty": (0, 1),
    "ctc_weight": (0.0, 0.5, 1.0),
    "max_ratio": (0.5, 2),
    "temperature": (0.5, 1.5),
    "no_repeat_ngram": (1, 2),
    "samples": (2, 4),
    "top_k": (1, 3),
    **dict.fromkeys(("top_p", "min_p"), (0.5, 1.0)),
    # sections of the training
    "scale": (0.01, 1.0),
    "rate": (0.2, 1.0),
    "warmup": (0.0, 0.5),
    "start": (2, 6),
    "step": (1, 3),
    "error": (0.1, 1.0),
    "beyond": (0.0, 0.2),
    "by": ("target", None),
    "mbr.metric": ("chrf", "bleu"),
    "metric": ("val/loss", "val/perplexity", "val/token_accuracy", "val/bleu"),
    "min_delta": (0.0, 0.1),
    "goal": (0.1, None),
}
"""Values of a number, a text or a list, by `choice.setting` or by the setting alone; small ones, so
that runs are.
"""


@st.composite
def optional(draw: Draw, table: Mapping[str, Sequence[Any]], rarity: int) -> dict[str, Any]:
    """Settings of a table, each of them one time in `rarity`."""
    return {
        key: draw(st.sampled_from(values)) for key, values in table.items() if draw(one_in(rarity))
    }


@st.composite
def choice(draw: Draw, kind: str) -> dict[str, Any]:
    """One of the optimizers, of the tasks ..., with some of its settings."""
    word = draw(st.sampled_from(sorted(definitions()[kind]["properties"])))
    return {word: draw(settings_of(f"{kind}.{word}"))}


@st.composite
def settings_of(draw: Draw, name: str) -> dict[str, Any]:
    """Some of the settings of a definition in the schema, and those that are of no use alone or
    have no default.
    """
    definition = definitions()[name]
    together = {"kernels", "features"} if draw(st.integers(0, 7)) else set()
    return {
        key: draw(st.sampled_from(values_of(name, key, setting)))
        for key, setting in definition["properties"].items()
        if draw(one_in(3)) or key in together or key in definition.get("required", ())
    }


def values_of(name: str, key: str, setting: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values that a setting is drawn from."""
    word = name.rpartition(".")[2]
    for known in (f"{word}.{key}", key):
        if known in VALUES:
            return VALUES[known]
    alternatives = setting["anyOf"]
    words = [value for alternative in alternatives for value in alternative.get("enum", ())]
    if any(alternative.get("type") == "boolean" for alternative in alternatives):
        words += [True, False]
    if words:
        return words
    if {"minimum": 0.0, "exclusiveMaximum": 1.0}.items() <= alternatives[0].items():
        return (0.5, 0.9)
    raise KeyError(f"no values for the setting `{key}` of `{name}`: add them to VALUES")


@cache
def definitions() -> Mapping[str, Any]:
    return schema_generator.load()["$defs"]


def one_in(count: int) -> st.SearchStrategy[bool]:
    """True one time in `count`; never in the smallest example, where all numbers are 0."""
    return st.integers(0, count - 1).map(lambda number: number == count // 2)

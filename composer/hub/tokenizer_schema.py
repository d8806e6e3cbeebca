"""tokenizer.json of somebody else: one of ours, or refused.

The library can do more than a recipe's tokenizers do: fill each text up to a length, put long texts in place of short
ones, look for patterns that take for ever. None of it is needed, so none of it is taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer.hub.pack_contents import refuse
from composer.hub.run_schema import count, each, text, truth

MOST_SIDES = 16

KINDS = {
    "word": "WordLevel",
    "char": "WordLevel",
    "bits": "WordLevel",
    "integers": "WordLevel",
    "bpe": "BPE",
    "unigram": "Unigram",
}
"""Tokenizers of a recipe, and what the library calls what they have learned."""
STEPS: Mapping[str, tuple[Any, ...]] = {
    "normalizer": (None, {"type": "Prepend", "prepend": " "}),
    "pre_tokenizer": (
        None,
        {"type": "WhitespaceSplit"},
        {"type": "ByteLevel"},
        {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated"},
    ),
    "decoder": (
        None,
        {"type": "Fuse"},
        {
            "type": "Sequence",
            "decoders": [{"type": "ByteLevel"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
    ),
    "post_processor": (None,),
    "truncation": (None,),
    "padding": (None,),
    "added_tokens": (None, []),
}
"""What surrounds it: nothing that takes more time or memory than the text has characters."""
SWITCHES = ("add_prefix_space", "trim_offsets", "use_regex", "invert")
"""What a step can also say, true or false."""


def check_tokenizer(data: bytes, wanted: Mapping[str, Any], origin: str | Path) -> None:
    """Raises RunError where a tokenizer.json is none of ours; `wanted` is the tokenizer of its recipe."""
    (kind,) = wanted
    try:
        told = json.loads(data.decode())
        good = is_ours(told, kind)
    except (ValueError, RecursionError):
        good = False
    if not good:
        refuse(
            origin,
            f"tokenizer.json is not what a training with the tokenizer `{kind}` writes; nothing was taken",
            "take recipe.yaml and tokenizer.json from the same run",
        )


def is_ours(told: Any, kind: str) -> bool:
    """Whether plain data are tokenizers of a kind, as they are saved."""
    if not isinstance(told, dict) or not text(told.get("format")):
        return False
    settings, parts, sides = told.get("settings"), told.get("parts"), told.get("sides")
    if not isinstance(settings, dict) or set(settings) != {kind} or not isinstance(settings[kind], dict):
        return False
    if not isinstance(parts, list) or len(parts) > MOST_SIDES or not isinstance(sides, dict) or not each(count)(sides):
        return False
    placed = bool(sides) and all(at < len(parts) for at in sides.values())
    return placed and truth(told.get("lowercase")) and all(is_part(part, kind) for part in parts)


def is_part(part: Any, kind: str) -> bool:
    """Whether something is one tokenizer of a kind, as the library saves it."""
    if not isinstance(part, dict) or not isinstance(part.get("model"), dict):
        return False
    return part["model"].get("type") == KINDS.get(kind) and all(
        without_switches(part.get(step)) in known for step, known in STEPS.items()
    )


def without_switches(step: Any) -> Any:
    """A step of a tokenizer without what it can say in several ways."""
    if isinstance(step, list):
        return [without_switches(inner) for inner in step]
    if isinstance(step, dict):
        return {key: without_switches(one) for key, one in step.items() if key not in SWITCHES or not truth(one)}
    return step

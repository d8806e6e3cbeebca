"""Memories with states of their own in random recipes: what they begin with, and what goes on with
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from verify.scene import WIDTH, Scene, drop_keys, drop_none, readable_name


def ntm(scene: Scene) -> dict[str, Any]:
    slots, (heads, width) = scene.one_of(3, 4, 5), scene.one_of((1, 6), (2, 3), (3, 2))
    settings = {
        "slots": slots,
        "slot_width": width,
        "read_heads": heads,
        "write_heads": scene.one_of(None, 2),
    }
    settings |= {"shift": 2 if slots == 5 or scene.mistake() else scene.one_of(None, 0, 1)}
    return settings | begun(scene, "ntm", {"memory": scene.one_of(None, "learned", "random")})


def stack_memory(scene: Scene) -> dict[str, Any]:
    return {"width": None if scene.keeps else scene.one_of(None, 4)} | begun(
        scene, "stack_memory", {}
    )


def queue_memory(scene: Scene) -> dict[str, Any]:
    return {"width": None if scene.keeps else scene.one_of(None, 4)} | begun(
        scene, "queue_memory", {}
    )


def deque_memory(scene: Scene) -> dict[str, Any]:
    return {"width": WIDTH // 2 if scene.keeps else scene.one_of(None, 2, 3)} | begun(
        scene, "deque_memory", {}
    )


def discrete_stacks(scene: Scene) -> dict[str, Any]:
    stacks, depth = scene.one_of((3, 2), (2, 3), (6, 1))
    cells = 2 if scene.mistake() else scene.one_of(3, 4, None)
    settings = {
        "stacks": stacks,
        "depth": depth,
        "cells": cells,
        "no_op": scene.one_of(None, False),
    }
    return (
        settings
        | {"rounding": scene.one_of(None, "evaluation")}
        | begun(scene, "discrete_stacks", {})
    )


def begun(scene: Scene, word: str, otherwise: Mapping[str, Any]) -> dict[str, Any]:
    """How it begins: where an encoder leaves one of its kind often as that one ended, and with its
    settings.
    """
    alike = {
        name: settings
        for name, (kind, settings) in scene.encoder_memories.items()
        if kind == word and width_fits(scene, word, settings)
    }
    if alike and scene.draw(st.integers(0, 3)):
        name = scene.draw(st.sampled_from(sorted(alike)))
        copied = drop_keys(alike[name], "memory", "as") | {"initial_state": {"copy": name}}
        return copied | ({"slots": 4} if word == "ntm" and scene.mistake() else {})
    if scene.encoder_memories and scene.mistake():
        return {
            "initial_state": {"copy": scene.draw(st.sampled_from(sorted(scene.encoder_memories)))}
        }
    tape = word == "ntm" or scene.mistake()
    return {
        "initial_state": scene.one_of(
            None, "zeros", *(["learned", *scene.memories] if tape else [])
        ),
        **otherwise,
    }


def width_fits(scene: Scene, word: str, settings: Mapping[str, Any]) -> bool:
    """Whether what reads so many numbers may stand where the width is kept."""
    ends = 2 if word == "deque_memory" else 1
    return (
        not scene.keeps
        or "width" not in CONTINUABLE[word]
        or ends * settings.get("width", WIDTH) == WIDTH
    )


def nram(scene: Scene) -> dict[str, Any]:
    return {
        "steps": scene.one_of(2, 3),
        "registers": scene.one_of(1, 2),
        "hidden": 4,
        "layers": scene.one_of(None, 2),
        "entropy": scene.one_of(None, 0.1),
    }


def memory_network(scene: Scene) -> dict[str, Any]:
    """Asks with the stream, or with the words of a memory."""
    return {
        **asking(scene),
        "hops": scene.one_of(1, 2, None),
        "tying": scene.one_of(None, "layer_wise"),
        "time": scene.one_of(None, 0, 3),
        "noise": scene.one_of(None, 0.0),
        "linear_start": scene.one_of(None, 0.5),
        "answer": "words" if not scene.keeps and scene.sometimes() else None,
    }


def supporting_facts(scene: Scene) -> dict[str, Any]:
    return {
        **asking(scene, needed=not scene.mistake()),
        "hops": scene.one_of(None, 2),
        "margin": scene.one_of(None, 1.0),
    }


def episodic_memory(scene: Scene) -> dict[str, Any]:
    return {
        **asking(scene, needed=not scene.mistake()),
        "hops": scene.one_of(1, 2, None),
        "gate": scene.one_of(None, "softmax"),
        "supervision": scene.one_of(None, 0.0, 0.5),
    }


def asking(scene: Scene, needed: bool = False) -> dict[str, Any]:
    """What is read, now and then a grid, and what asks."""
    sequences = [*scene.memories, *scene.copies]
    read = scene.one_of(*sequences, *scene.grids) if sequences else "nobody"
    asker = readable_name(scene) if scene.mistake() or not sequences else scene.one_of(*sequences)
    query = asker if needed or scene.sometimes() else None
    return {
        "from": read,
        "query": query,
        "width": None if scene.keeps else scene.one_of(None, 4),
        "encoding": scene.one_of(None, "bag", "position", "position_code"),
    }


MEMORIES: Mapping[str, Callable[[Scene], dict[str, Any]]] = {
    "ntm": ntm,
    "stack_memory": stack_memory,
    "queue_memory": queue_memory,
    "deque_memory": deque_memory,
    "discrete_stacks": discrete_stacks,
    "nram": nram,
    "memory_network": memory_network,
    "supporting_facts": supporting_facts,
    "episodic_memory": episodic_memory,
}
CONTINUABLE: Mapping[str, tuple[str, ...]] = {
    "ntm": ("slots",),
    "stack_memory": ("width",),
    "queue_memory": ("width",),
    "deque_memory": ("width",),
    "discrete_stacks": ("stacks",),
}
"""The blocks that another one can go on with, and the settings that say how much they read."""


def memory(scene: Scene) -> tuple[str, dict[str, Any]]:
    """One that can be continued: its word and its settings."""
    word = scene.draw(st.sampled_from(sorted(CONTINUABLE)))
    return word, drop_none(MEMORIES[word](scene))

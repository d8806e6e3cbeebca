"""Blocks with an outer-product state in random recipes: a stream is 6 wide, and so few heads divide
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verify.scene import Scene, drop_keys


def linear_attention(scene: Scene) -> dict[str, Any]:
    heads = scene.one_of(1, 2)
    return begun(
        scene, "linear_attention", {"heads": heads, "state": scene.one_of(None, 2), **shared(scene)}
    )


def retention(scene: Scene) -> dict[str, Any]:
    heads, state = scene.one_of((1, None), (2, 4))
    return begun(scene, "retention", {"heads": heads, "state": state, **shared(scene)})


def gated_linear_attention(scene: Scene) -> dict[str, Any]:
    settings = {
        "heads": scene.one_of(1, 2),
        "state": scene.one_of(None, 2),
        "rank": scene.one_of(None, 2),
    }
    return begun(scene, "gated_linear_attention", {**settings, **shared(scene)})


def mamba2(scene: Scene) -> dict[str, Any]:
    groups = scene.one_of(None, 2)
    settings = {"head_width": scene.one_of(3, 6), "state": scene.one_of(2, 4), "groups": groups}
    return begun(scene, "mamba2", {**settings, **shared(scene)})


def mlstm(scene: Scene) -> dict[str, Any]:
    settings = {"heads": scene.one_of(1, 2), "forget_gate": scene.one_of(None, "exp")}
    return begun(scene, "mlstm", {**settings, **shared(scene)})


def delta_net(scene: Scene) -> dict[str, Any]:
    heads = scene.one_of(1, 2)
    settings = {
        "heads": heads,
        "state": scene.one_of(None, 3),
        "negative_eigenvalues": scene.one_of(None, True),
    }
    return begun(scene, "delta_net", {**settings, **shared(scene)})


def gated_delta_net(scene: Scene) -> dict[str, Any]:
    settings = {
        "heads": scene.one_of(1, 2),
        "state": scene.one_of(None, 2),
        "decay": scene.one_of(None, "vector"),
    }
    return begun(scene, "gated_delta_net", {**settings, **shared(scene)})


def rwkv7(scene: Scene) -> dict[str, Any]:
    heads = scene.one_of(1, 2)
    return begun(
        scene,
        "rwkv7",
        {"heads": heads, "rank": scene.one_of(None, 2), "chunk": scene.one_of(None, 1, 3)},
    )


def shared(scene: Scene) -> dict[str, Any]:
    return {"chunk": scene.one_of(None, 1, 2, 3), "short_conv": scene.one_of(None, 0, 1, 3)}


def begun(scene: Scene, word: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """How it begins: where an encoder leaves one of its kind, often as that one ended, and with its
    settings.
    """
    alike = {name: there for name, (kind, there) in scene.encoder_memories.items() if kind == word}
    if alike and not scene.sometimes():
        name = scene.one_of(*sorted(alike))
        return {**drop_keys(alike[name], "as"), "initial_state": {"copy": name}}
    if scene.copies and scene.mistake():
        return {**settings, "initial_state": {"copy": scene.one_of(*scene.copies)}}
    return {
        **settings,
        "initial_state": scene.one_of(None, None, "zeros", "learned", *scene.memories),
    }


MIXERS: Mapping[str, Callable[[Scene], dict[str, Any]]] = {
    "linear_attention": linear_attention,
    "retention": retention,
    "gated_linear_attention": gated_linear_attention,
    "mamba2": mamba2,
    "mlstm": mlstm,
    "delta_net": delta_net,
    "gated_delta_net": gated_delta_net,
    "rwkv7": rwkv7,
}

"""What the writer of a random recipe knows at one place, and the names that it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
WIDTH = 6
ACTIVATIONS = ["none", "relu", "gelu", "silu", "tanh", "sigmoid", "glu", "swiglu", "geglu"]


@dataclass
class Scene:
    """What the writer of a recipe knows at one place: what can be read, and how deep the stacks may
    still nest.
    """

    draw: Draw
    causal: bool
    names: list[str] = field(default_factory=lambda: ["input"])
    memories: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    depth: int = 2
    keeps: bool = False  # whether the stack must keep width and length
    repeated: bool = False  # whether a repeat stands around it
    on_shelf: bool = False  # whether the stack has a name, and so may be used twice
    careless: bool = False  # whether the recipe may have mistakes
    # names of grids; a decoder's are those that the encoders left
    grids: list[str] = field(default_factory=list)
    # block and settings by name
    named_memories: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    # those of the encoders
    encoder_memories: Mapping[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    # shared by all places of one recipe, so that names differ
    pool: list[str] = field(default_factory=list)

    def one_of(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def mistake(self) -> bool:
        """Whether to write what is likely to be refused: one time in thirty, in careless recipes
        only.
        """
        return self.careless and self.draw(st.integers(0, 29)) == 7

    def sometimes(self) -> bool:
        return self.draw(st.integers(0, 3)) == 2


def new_name(scene: Scene) -> str:
    """A name, nearly always a new one."""
    if scene.pool and scene.mistake():
        return scene.draw(st.sampled_from(scene.pool))
    scene.pool.append(f"n{len(scene.pool)}")
    return scene.pool[-1]


def readable_name(scene: Scene) -> str:
    """A name that can be read here, nearly always."""
    known = [*scene.names, *(scene.copies if scene.sometimes() else ())]
    return scene.draw(
        st.sampled_from(["nobody", *scene.pool] if scene.mistake() or not known else known)
    )


def inside(scene: Scene, **changes: Any) -> Scene:
    """The scene inside a combinator; names that are given there can be read afterwards."""
    return replace(scene, depth=scene.depth - 1, **changes)


def drop_keys(settings: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The settings without some of them."""
    return {key: value for key, value in settings.items() if key not in keys}


def drop_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are set."""
    return {key: value for key, value in settings.items() if value is not None}


def draw_case(strategy: st.SearchStrategy[Any], number: str) -> Any:
    """Return an example of a strategy, always the same for a number and independent of those of
    other numbers.
    """
    examples: list[Any] = []
    calm = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

    # the first example is the smallest one, whatever the seed, and the second one is sure to differ
    # from it in what is drawn first, which is therefore a number that nobody reads; later ones
    # would vary those before them
    @seed(number)
    @settings(max_examples=2, phases=[Phase.generate], **calm)
    @given(st.integers(0, 1 << 32), strategy)
    def collect(_: int, example: Any) -> None:
        examples.append(example)

    collect()
    return examples[-1]

"""Number of blocks and steps that a recipe asks for, counted before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from composer.errors import RecipeError
from composer.recipe.node import Steps
from composer.recipe.recipe import Recipe

MOST_BLOCKS = 10_000
"""Blocks of one model, each as often as it has parameters of its own, and each layer of one."""
MOST_STEPS = 100_000
"""Steps through blocks for one position: a model with more would train for ever."""
FACTORS = ("times", "layers", "hops")
"""Settings that say how often something is done."""


def check_block_count(recipe: Recipe) -> None:
    """Raise RecipeError at the setting, or the block, with which a model has more blocks or steps than can train."""
    model = recipe.model
    counter = _Counter(recipe, model["stacks"] or {})
    encoders = {("encoder",): model["encoder"]} | {("encoders", n): s for n, s in (model["encoders"] or {}).items()}
    for path, stack in {**encoders, ("decoder",): model["decoder"]}.items():
        if stack is not None:
            counter.count(stack, ("model", *path))


@dataclass
class _Counter:
    recipe: Recipe
    stacks: dict[str, Any]
    named: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, value: Any, path: Steps) -> tuple[int, int]:
        """Return the blocks and the steps in a stack, or in anything that contains stacks."""
        blocks = steps = 0
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            here: Steps = (*path, key)
            if isinstance(value, list) and isinstance(item, dict) and len(item) == 1:
                inner, here = self.block(item, here), (*here, next(iter(item)))
            elif isinstance(item, (dict, list)):
                inner = self.count(item, here)
            else:
                continue
            blocks, steps = blocks + inner[0], steps + inner[1]
            self.check(blocks, steps, here, "this stack")
        return blocks, steps

    def block(self, entry: dict[str, Any], path: Steps) -> tuple[int, int]:
        """Return the blocks and the steps of one block with all inside it."""
        ((word, settings),) = entry.items()
        blocks, steps = self.use(settings["stack"]) if word == "use" else self.count(settings, (*path, word))
        blocks, steps = max(1, blocks), max(1, steps)
        for name in FACTORS:
            times = settings.get(name)
            if type(times) is int:
                is_shared = bool(settings.get("share") or settings.get("relaxation"))
                blocks, steps = blocks * (1 if is_shared else times), steps * times
                self.check(blocks, steps, (*path, word, name), f"`{name}: {times}`")
        return blocks, steps

    def use(self, name: str) -> tuple[int, int]:
        """Return the blocks and the steps of a named stack; one that is unknown, or uses itself, is found later."""
        if name not in self.named:
            self.named[name] = 1, 1
            self.named[name] = self.count(self.stacks.get(name, []), ("model", "stacks", name))
        return self.named[name]

    def check(self, blocks: int, steps: int, path: Steps, cause: str) -> None:
        for count, most, noun in ((blocks, MOST_BLOCKS, "blocks"), (steps, MOST_STEPS, "steps")):
            if count > most:
                message = f"{cause} makes {count:,} {noun}, and a model has at most {most:,}"
                fix = "repeat less often, or write fewer blocks"
                raise RecipeError([self.recipe.fault("size", path, message, fix)])

"""What is written in the boxes of a picture: settings as the recipe says them, sizes as one reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from composer.formatting import si
from composer.model.planner import Plan, PlanRow
from composer.recipe.json_schema import holds_stacks
from composer.recipe.recipe import Recipe

TIMES = "\N{MULTIPLICATION SIGN}"
LONGEST = 34
"""Characters of a line; what does not fit goes to the next one."""
CUT = 60
"""Characters of one setting; of a longer one the beginning is shown."""
TOLD = {"as", "share", "times"}
"""Settings that are told elsewhere in the box."""


def about(recipe: Recipe, plan: Plan) -> str:
    """The sizes of a whole model, in a line."""
    return (
        f"width {recipe.model['width']:,}; {si(plan.parameters)} parameters; {si(plan.flops)} FLOPs for one "
        f"pair of {plan.tokens} + {plan.tokens} tokens"
    )


def title_of(row: PlanRow, settings: Mapping[str, Any]) -> str:
    """A block's word, with what one wants to know first."""
    if row.block == "repeat":
        times = settings["times"]
        return f"repeat {TIMES} {times}" if isinstance(times, int) else "repeat, as often as there are positions"
    return f"use {settings['stack']}" if row.block == "use" else row.block


def lines_of(recipe: Recipe, row: PlanRow, settings: Mapping[str, Any], again: bool) -> tuple[str, ...]:
    """What matters of a block's settings: what is not its default, and what is usually set; then what it reads."""
    rules = recipe.rules["$defs"][f"block.{row.block}"]
    told = {key: value for key, value in settings.items() if matters(recipe, row, key, value, rules)}
    told = {} if row.block == "use" else told
    first = rules.get("x-first")
    items = [said(key, value, key == first and value not in row.reads) for key, value in told.items()]
    unsaid = [name for name in row.reads if not any(name in names_in(value) for value in told.values())]
    items += [f"reads {', '.join(unsaid)}"] if unsaid else []
    return (*wrapped(items), *sharing(row, settings, again))


def matters(recipe: Recipe, row: PlanRow, key: str, value: Any, rules: Mapping[str, Any]) -> bool:
    """Whether a setting is worth its place."""
    if value is None or key in TOLD or holds_stacks(rules["properties"].get(key, {})):
        return False
    if (key == "width" and value == row.width) or (key == "columns" and value == row.columns):
        return False
    if key == "dropout":
        return value not in (0.0, recipe.model["dropout"])
    return key == rules.get("x-first") or value != rules["properties"].get(key, {}).get("default")


def sharing(row: PlanRow, settings: Mapping[str, Any], again: bool) -> list[str]:
    """How the parameters of what runs or is used several times belong together."""
    if row.block == "use":
        if settings["copy"]:
            return ["a copy, parameters of its own"]
        return ["as above, with the same parameters"] if again else []
    shared = row.block == "repeat" and (settings["share"] or not isinstance(settings["times"], int))
    return ["the same parameters each time"] if shared and settings["sets"] == 1 else []


def names_in(value: Any) -> list[str]:
    """The words in a setting that could be names."""
    if isinstance(value, Mapping):
        return [str(each) for each in value.values()]
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def said(key: str, value: Any, is_first: bool) -> str:
    """One setting: `heads=8`, `gru`, `bidirectional`."""
    word = (is_first and isinstance(value, str)) or key == "of"
    text = plain(value) if word else key if value is True else f"{key}={plain(value)}"
    return text if len(text) <= CUT else f"{text[: CUT - 1]}…"


def plain(value: Any) -> str:
    """A value as one would say it: true, 3×3, copy encoder.top."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    if isinstance(value, list):
        numbers = all(isinstance(each, int) for each in value)
        return (TIMES if numbers else ", ").join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def wrapped(items: Iterable[str]) -> list[str]:
    """Settings in lines."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 2 + len(item) <= LONGEST:
            lines[-1] += f"  {item}"
        else:
            lines.append(item)
    return lines


def foot(row: PlanRow) -> str:
    """How wide a block leaves the stream, and how many numbers it learns."""
    columns = f" {TIMES} {row.columns} columns" if row.columns else ""
    learned = f", {si(row.parameters)} parameters" if row.parameters else ""
    return f"{row.width:,} wide{columns}{learned}"


def embedding_lines(recipe: Recipe, row: PlanRow, plan: Plan) -> tuple[str, ...]:
    """What an embedding makes vectors of."""
    key = {"encoder": "source", "decoder": "target"}.get(str(row.place[-1]), str(row.place[-1]))
    kind = {"learned": "", "linear": "linear", "one_hot": "one-hot"}[recipe.model["embedding"]]
    unread = ["nothing reads these tokens"] if not row.parameters and kind != "one-hot" else []
    tied = ["shares its matrix with the output"] if key in recipe.model["output"]["tie"] else []
    return (f"{key}, {plan.vocabularies[key]:,} tokens", *([kind] if kind else []), *unread, *tied)


def output_lines(recipe: Recipe, plan: Plan) -> tuple[str, ...]:
    """What the output makes of the decoder's last block."""
    settings = recipe.model["output"]
    kind = {"linear": "", "sigmoid": "a sigmoid for each bit", "identity": "the logits as they arrive"}
    tied = f"shares its matrix with {', '.join(settings['tie'])}" if settings["tie"] else ""
    length = f"answers of length {settings['length']}" if settings["length"] else ""
    told = (f"target, {plan.vocabularies['target']:,} tokens", kind[settings["kind"]], tied, length)
    return tuple(line for line in told if line)

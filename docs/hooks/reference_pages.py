"""A page for each kind of choice that is no block: tasks, tokenizers, optimizers, schedules, decoders."""

from __future__ import annotations

from composer.recipe import schema
from docs.hooks.block_pages import settings
from docs.hooks.equations import typeset
from docs.hooks.pages import page

PAGES = {
    "tasks": ("Tasks", "What `data.generate` makes: pairs without a data file."),
    "tokenizers": ("Tokenizers", "What `data.tokenizer` can be: how text becomes tokens and is written again."),
    "optimizers": ("Optimizers", "What `training.optimizer` can be."),
    "schedules": ("Schedules", "What `training.schedule` can be: how the learning rate goes with the steps."),
    "initializations": ("Initializations", "What `training.initialization` can be: how weights begin."),
    "decoders": ("Decoders", "What `decoding` can be: how an answer is searched."),
}
SECTIONS = (
    "data",
    "model",
    "output",
    "training",
    "curriculum",
    "earlystopping",
    "gradientnoise",
    "scheduledsampling",
    "trainer",
    "logging",
    "wandb",
    "parallel",
    "hub",
    "babi",
    "split",
)


def choice_page(table: str) -> str:
    """All that can be chosen from one table, with the settings of each."""
    title, what = PAGES[table]
    parts = [f"# {title}", what]
    for key, described in schema.load()["$defs"].items():
        if key.startswith(f"{table}."):
            parts += [f"## {key.removeprefix(f'{table}.')}", typeset(described["description"]), settings(described)]
    return page(*parts)


def sections_page() -> str:
    """Every key of a recipe that is neither a block nor a choice."""
    rules = schema.load()
    parts = ["# Every key", "What a recipe's sections hold. `seqcomposer schema` prints the same for editors."]
    top = {key: each for key, each in rules["properties"].items() if not each.get("$ref")}
    parts += ["## At the top", settings({"properties": top, "required": rules.get("required", ())})]
    for name in SECTIONS:
        described = rules["$defs"][name]
        parts += [
            f"## {name}",
            typeset(described.get("description", "")),
            settings({**described, "properties": plain(described)}),
        ]
    return page(*parts)


def plain(described: dict[str, object]) -> dict[str, object]:
    """The keys that are not defaults of blocks, which the blocks' own pages tell."""
    keys: dict[str, dict[str, str]] = described["properties"]  # type: ignore[assignment]
    return {key: each for key, each in keys.items() if not str(each.get("$ref", "")).startswith("#/$defs/defaults.")}

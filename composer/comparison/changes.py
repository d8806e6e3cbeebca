"""What differs between two recipes or runs: settings, fingerprints, and what the models cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from composer.comparison.tree import CHOICE, NAME, STACKS, TreeNode, format_value
from composer.data import text_files
from composer.data.sources import available_splits
from composer.errors import ComposerError, format_path
from composer.fingerprint import fingerprint_data
from composer.model.builder import Builder
from composer.model.planner import BlockCost, BlockFailed, count_parameters, measure_costs, vocabulary_bounds
from composer.recipe.json_schema import Schema, dereference
from composer.recipe.recipe import Recipe
from composer.run_dir import recorded_vocabularies

SECTIONS = ("model", "data", "training", "decoding", "trainer", "logging")
Kind = Literal["set", "replaced", "inserted", "removed", "moved", "wrapped", "unwrapped", "renamed"]
SENTENCES: Mapping[str, str] = {
    "inserted": "inserted {after}",
    "removed": "removed {before}",
    "moved": "{before} moved to {to}",
    "wrapped": "{before} now inside {after}",
    "unwrapped": "{after} no longer inside {before}",
    "renamed": "now called {after}",
}


@dataclass(frozen=True)
class Side:
    """One of the two that are compared. Of a run, `record` is its run.json and `folder` its folder."""

    name: str
    recipe: Recipe
    record: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def is_run(self) -> bool:
        return self.folder is not None

    @property
    def scores(self) -> dict[str, float]:
        """The scores of a run that has finished."""
        scores = self.record.get("scores")
        return {} if not isinstance(scores, dict) else {key: x for key, x in scores.items() if isinstance(x, float)}


@dataclass(frozen=True)
class Change:
    """One difference.

    `path` is its path in A, `other_path` in B; "" where it is not there. `word` is the block's word in the recipe,
    `setting` the setting of that block or of the section, `before` and `after` its values; of blocks, their notation.
    """

    kind: Kind
    section: str
    path: str
    other_path: str
    word: str
    setting: str
    before: Any
    after: Any

    @property
    def where(self) -> str:
        """The path that is printed: A's, where it has one."""
        return self.path or self.other_path

    @property
    def block(self) -> str:
        """The path of the block whose setting it is: `encoder[0].repeat`."""
        return ".".join(filter(None, (self.where, self.word)))

    @property
    def what(self) -> str:
        """What happened there; equal for all places where the same happened."""
        if self.is_name and self.before is None:
            return f"now named {self.after}"
        if self.is_name:
            return f"no longer named {self.before}" if self.after is None else f"named {self.after}, was {self.before}"
        if self.kind in SENTENCES:
            return SENTENCES[self.kind].format(before=self.before, after=self.after, to=self.other_path)
        return f"{self.setting} {self.values}" if self.setting else self.values

    @property
    def is_name(self) -> bool:
        """True for a block's `as`: the name by which others read it."""
        return self.kind == "set" and self.setting == NAME and bool(self.word)

    @property
    def values(self) -> str:
        """`before -> after`."""
        pair = (self.before, self.after)
        if self.kind != "set":
            return " -> ".join(f"[{', '.join(x)}]" if isinstance(x, list) else str(x) for x in pair)
        texts = [format_value(value) for value in pair]
        return " -> ".join(texts if texts[0] != texts[1] else map(repr, pair))

    def text(self) -> str:
        """Return the change in one line."""
        if self.kind != "set":
            return f"{self.where}: {self.what}"
        if self.is_name:
            return f"{self.block}: {self.what}"
        return f"{self.block}.{self.setting}: {self.values}" if self.block else f"{self.setting}: {self.values}"


def setting_changes(one: Recipe, other: Recipe) -> list[Change]:
    """Return every setting outside the stacks that differs, section by section."""
    changes: list[Change] = []
    for section in SECTIONS:
        hidden = STACKS if section == "model" else ()
        sections = (recipe.frozen[section].items() for recipe in (one, other))
        before, after = ({key: value for key, value in items if key not in hidden} for items in sections)
        path = ("decoding",) if section == "decoding" else ()
        walk = SettingWalk(one.rules["$defs"], section)
        changes += walk.compare(before, after, one.rules["properties"][section], path)
    return changes


@dataclass(frozen=True)
class SettingWalk:
    """Walk over two values of one section, side by side with their JSON Schema."""

    defs: Schema
    section: str

    def compare(self, before: Any, after: Any, schema: Schema, path: tuple[str | int, ...]) -> Iterator[Change]:
        """Yield the changes from one value to the other."""
        if before == after:
            return
        rules = dereference(self.defs, schema)
        table = str(rules.get("x-choice") or "")
        if table and before is not None and after is not None:
            ((one, settings),), ((other, others),) = before.items(), after.items()
            if one == other:
                yield from self.compare(settings, others, self.defs.get(f"{table}.{one}", {}), (*path, one))
                return
            texts = (self._choice_text(value, table) for value in (before, after))
            yield Change("replaced", self.section, format_path(path), format_path(path), "", "", *texts)
        elif isinstance(before, Mapping) and isinstance(after, Mapping):
            known, more = rules.get("properties", {}), rules.get("additionalProperties")
            for key in dict.fromkeys((*before, *after)):
                inner = known.get(key, more if isinstance(more, Mapping) else {})
                yield from self.compare(before.get(key), after.get(key), inner, (*path, key))
        else:
            values = (self._choice_text(value, table) for value in (before, after))
            yield Change("set", self.section, "", "", "", format_path(path), *values)

    def _choice_text(self, value: Any, table: str) -> Any:
        """Return a choice in short, `adam(learning_rate=0.001)`; any other value unchanged."""
        if not table or value is None:
            return value
        ((word, settings),) = value.items()
        schema = self.defs.get(f"{table}.{word}", {})
        defaults = {key: entry.get("default") for key, entry in schema.get("properties", {}).items()}
        return TreeNode(CHOICE, word, (), settings, (), defaults, schema.get("x-first")).head()


KEYS = ("model", "data", "run")
MAX_DATA_BYTES = 1 << 28
"""Larger files are compared by name: hashing them would take a minute."""


@dataclass(frozen=True)
class Agreement:
    """The fingerprints of both. `by_content`: of the lines in the data files; else of their names in the recipes.

    `unreadable` is why data files that are there could not be read.
    """

    one: Mapping[str, str]
    other: Mapping[str, str]
    by_content: bool
    unreadable: str = ""

    def same(self, key: str) -> bool:
        """Return whether a fingerprint agrees: `model`, `data` or `run`."""
        return self.one[key] == self.other[key]

    def text(self) -> str:
        """Return which fingerprints agree, in words."""
        same = [key for key in KEYS if self.same(key)]
        differing = [key for key in KEYS if not self.same(key)]
        parts = [f"{_enumerate(same)} the same"] if same else []
        parts += [f"{_enumerate(differing)} {'not' if same else 'differ'}"] if differing else []
        why = f", which cannot be read: {self.unreadable}" if self.unreadable else ""
        return f"{', '.join(parts)}{'' if self.by_content else f' (data by the names of their files{why})'}"

    def as_json(self) -> Mapping[str, Any]:
        a, b = ({key: prints[key] for key in KEYS} for prints in (self.one, self.other))
        return {"same": {key: self.same(key) for key in KEYS}, "by_content": self.by_content, "a": a, "b": b}


def _enumerate(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def compare_fingerprints(one: Side, other: Side, data: Path | None) -> Agreement:
    """Compare the fingerprints of both, by the content of their data where that is known. data: see `diff`."""
    unreadable = ""
    try:
        first, second = content_fingerprints(one, data), content_fingerprints(other, data)
        if first and second:
            return Agreement(first, second, by_content=True)
    except ComposerError as error:
        unreadable = error.faults[0].message
    # generated data, and files that both look up in the same folders, are the same if the recipes say the same
    generated = all(side.recipe.dataset.get("generate") for side in (one, other))
    same_data = one.recipe.dataset == other.recipe.dataset and one.recipe.folders(data) == other.recipe.folders(data)
    by_content = generated or (same_data and not one.is_run and not other.is_run)
    return Agreement(one.recipe.fingerprints, other.recipe.fingerprints, by_content, unreadable)


def content_fingerprints(side: Side, data: Path | None) -> Mapping[str, str]:
    """Return run.json's fingerprints, or those of a recipe with its data files; {} where they are unknown.

    Raises:
        DataError: Where the files cannot be used.
    """
    recorded = side.record.get("fingerprints")
    if isinstance(recorded, dict) and "recipe" in recorded:
        return recorded
    if side.is_run:
        return {}
    parallel = side.recipe.dataset.get("parallel") or {}
    mappings = [parallel[split] for split in available_splits(side.recipe) if isinstance(parallel.get(split), dict)]
    names = [name for mapping in mappings for name in mapping.values() if name]
    files = [text_files.find_file(name, side.recipe.folders(data)) for name in names]
    if not files or not all(files) or sum(file.stat().st_size for file in files if file) > MAX_DATA_BYTES:
        return {}
    return fingerprint_data(side.recipe, side.recipe.folders(data))


@dataclass(frozen=True)
class Costs:
    """What a model costs; FLOPs and bytes for one pair, as `plan` counts them.

    `parts` are the parameters of the encoders, the decoder, and of embeddings and output, each counted once.
    `vocabularies` are those of the tokenizer if `trained`, else the bounds that the recipe sets.
    """

    parameters: int
    flops: int
    state_bytes: int
    parts: Mapping[str, int]
    vocabularies: Mapping[str, int]
    trained: bool


def compare_costs(one: Side, other: Side) -> tuple[Costs, Costs]:
    """Return the costs of both. A recipe takes the vocabulary sizes of the other's run on the same data and tokenizer.

    Raises:
        RecipeError: Where a model cannot be built.
    """
    sizes = []
    for side in (one, other):
        recorded, needed = recorded_vocabularies(side.record) or {}, vocabulary_bounds(side.recipe)
        sizes.append({key: recorded[key] for key in needed} if needed.keys() <= recorded.keys() else {})
    if one.recipe.dataset == other.recipe.dataset:
        sizes = [sizes[0] or sizes[1], sizes[1] or sizes[0]]
    first = model_costs(one.recipe, sizes[0])
    alike = one.recipe.model == other.recipe.model and sizes[0] == sizes[1]
    same_bounds = sizes[1] or vocabulary_bounds(other.recipe) == first.vocabularies
    return first, first if alike and same_bounds else model_costs(other.recipe, sizes[1])


def model_costs(recipe: Recipe, vocabularies: Mapping[str, int]) -> Costs:
    """Build a model on the meta device and measure_costs it; without `vocabularies` at the recipe's bounds.

    Raises:
        RecipeError: With every fault of the model.
    """
    bounds = vocabularies or vocabulary_bounds(recipe)
    builder = Builder(recipe)
    with torch.device("meta"):
        model = builder.model(bounds)
    builder.finish()
    try:
        tallies, flops = measure_costs(model)
    except BlockFailed:
        recipe.plan()  # raises the same as a RecipeError with its place
        raise
    state = tallies.get(id(model.decoder), BlockCost()).state_bytes
    encoders = {encoder.memory: encoder.stack for encoder in model.readers().values()}
    named = {name if name == "encoder" else f"encoder {name}": stack for name, stack in encoders.items()}
    modules: dict[str, nn.Module] = {**named, "decoder": model.decoder, "embeddings and output": model}
    counted: set[int] = set()
    parts = {}
    for name, module in modules.items():
        own = {id(parameter): parameter.numel() for parameter in module.parameters() if id(parameter) not in counted}
        counted |= own.keys()
        parts[name] = sum(own.values())
    return Costs(count_parameters(model), flops, state, parts, bounds, bool(vocabularies))

"""Fingerprints, costs and scores of two recipes or runs, their paired significance tests, and
tables of them.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from composer.comparison.outputs import Comparison, compare_trials, comparison_text
from composer.data import text_files
from composer.errors import ComposerError
from composer.fingerprint import averaged_sha256, current_fingerprints, fingerprint_data
from composer.formatting import align_columns, format_bound, format_bytes, si
from composer.model.builder import Builder, vocabulary_bounds
from composer.model.costs import BlockFailed, measure_costs
from composer.model.weights import count_parameters
from composer.recipe.fingerprints import FINGERPRINT_VERSION
from composer.recipe.metrics import format_score, is_share
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import strings_in
from composer.run_dir import RunDir
from composer.runs.record import RunRecord


@dataclass(frozen=True)
class Side:
    """One of the two that are compared. Of a run, `record` is its run.json and `folder` its folder."""

    name: str
    recipe: Recipe
    record: RunRecord = field(default_factory=RunRecord)
    folder: Path | None = None

    @property
    def scores(self) -> dict[str, float]:
        """The scores of a run that has finished."""
        return {key: x for key, x in self.record.scores.items() if isinstance(x, float)}


KEYS = ("model", "data", "run")
MAX_DATA_BYTES = 1 << 28
"""Larger files are compared by name: hashing them would take a minute."""


@dataclass(frozen=True)
class Agreement:
    """The fingerprints of both. `by_content`: of the lines in the data files; else of their names
    in the recipes.
    """

    one: Mapping[str, str]
    other: Mapping[str, str]
    by_content: bool

    def same(self, key: str) -> bool:
        """Return whether a fingerprint agrees: `model`, `data` or `run`."""
        return self.one[key] == self.other[key]

    def text(self) -> str:
        """Return which fingerprints agree, in words."""
        same = [key for key in KEYS if self.same(key)]
        differing = [key for key in KEYS if not self.same(key)]
        parts = [f"{_enumerate(same)} the same"] if same else []
        parts += [f"{_enumerate(differing)} {'not' if same else 'differ'}"] if differing else []
        return (
            f"{', '.join(parts)}{'' if self.by_content else ' (data by the names of their files)'}"
        )

    def as_json(self) -> Mapping[str, object]:
        a, b = ({key: prints[key] for key in KEYS} for prints in (self.one, self.other))
        return {
            "same": {key: self.same(key) for key in KEYS},
            "by_content": self.by_content,
            "a": a,
            "b": b,
        }


def _enumerate(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def compare_fingerprints(
    one: Side, other: Side, data: Path | None, log: Callable[[str], None]
) -> Agreement:
    """Compare the fingerprints of both, by the content of their data where that is known. data,
    log: see `diff`.
    """
    with suppress(ComposerError):  # of data files that cannot be read
        first, second = content_fingerprints(one, data, log), content_fingerprints(other, data, log)
        if first and second:
            return Agreement(first, second, by_content=True)
    # generated data, and files that both look up in the same folders, are the same if the recipes
    # say the same
    generated = all(side.recipe.data.generate for side in (one, other))
    same_data = one.recipe.data == other.recipe.data and one.recipe.folders(
        data
    ) == other.recipe.folders(data)
    by_content = generated or (same_data and not one.folder and not other.folder)
    return Agreement(recipe_fingerprints(one), recipe_fingerprints(other), by_content)


def recipe_fingerprints(side: Side) -> Mapping[str, str]:
    """Return the fingerprints of a recipe, in which data files count by their names; of an average,
    with its own.
    """
    prints = side.recipe.fingerprints
    if not side.record.averaged:
        return prints
    return {**prints, "run": averaged_sha256(prints["run"], side.record)}


def content_fingerprints(
    side: Side, data: Path | None, log: Callable[[str], None]
) -> Mapping[str, str]:
    """Return a run's fingerprints, or those of a recipe and its data; {} where unknown. Raises
    DataError.
    """
    if side.folder:
        recorded = side.record.fingerprints
        is_earlier = recorded is not None and recorded.get("version") != FINGERPRINT_VERSION
        if is_earlier and side.record.fingerprint_parts is None:
            # data of any size: nothing else tells whether a run of before was trained on the same
            # lines
            log(
                f"{side.name}: its fingerprints are of an earlier version, and are computed anew"
                " from all of its data"
            )
        prints = current_fingerprints(side.recipe, side.record, data)
        return prints if prints.keys() >= {*KEYS} else {}
    parallel = side.recipe.canonical["data"]["parallel"] or {}
    files = [text_files.find_file(name, side.recipe.folders(data)) for name in strings_in(parallel)]
    if (
        not files
        or not all(files)
        or sum(file.stat().st_size for file in files if file) > MAX_DATA_BYTES
    ):
        return {}
    return fingerprint_data(side.recipe, side.recipe.folders(data))


@dataclass(frozen=True)
class Costs:
    """What a model costs; FLOPs and bytes for one pair, as `plan` counts them.

    `parts` are the parameters of the encoders, the decoder, and of embeddings and output, each
    counted once. `at_most`: `vocabularies` are the bounds that the recipe sets, and so all sizes
    are upper bounds.
    """

    parameters: int
    flops: int
    state_bytes: int
    parts: Mapping[str, int]
    vocabularies: Mapping[str, int]
    at_most: bool


def compare_costs(one: Side, other: Side) -> tuple[Costs, Costs]:
    """Return the costs of both. Raises RecipeError.

    A recipe takes the vocabulary sizes of the other's run on the same data and tokenizer.
    """
    sizes = []
    for side in (one, other):
        recorded, needed = side.record.vocabularies, vocabulary_bounds(side.recipe)
        sizes.append(
            {key: recorded[key] for key in needed} if needed.keys() <= recorded.keys() else {}
        )
    if one.recipe.data == other.recipe.data:
        sizes = [sizes[0] or sizes[1], sizes[1] or sizes[0]]
    return model_costs(one.recipe, sizes[0]), model_costs(other.recipe, sizes[1])


def model_costs(recipe: Recipe, vocabularies: Mapping[str, int]) -> Costs:
    """Build a model on the meta device and measure it, by default with vocabulary_bounds. Raises
    RecipeError.
    """
    at_most = not vocabularies and recipe.tokenizer.is_trained
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
    state = tallies.state_bytes[id(model.decoder)]
    encoders = {encoder.memory: encoder.stack for encoder in model.readers().values()}
    named = {
        name if name == "encoder" else f"encoder {name}": stack for name, stack in encoders.items()
    }
    modules: dict[str, nn.Module] = {
        **named,
        "decoder": model.decoder,
        "embeddings and output": model,
    }
    counted: set[int] = set()
    parts = {}
    for name, module in modules.items():
        own = {
            id(parameter): parameter.numel()
            for parameter in module.parameters()
            if id(parameter) not in counted
        }
        counted |= own.keys()
        parts[name] = sum(own.values())
    return Costs(count_parameters(model), flops, state, parts, bounds, at_most)


def run_tests(
    one: Side, other: Side, data: Path | None, log: Callable[[str], None]
) -> Comparison | str:
    """Compare what both runs decode for the same test lines, by paired tests; or return why they
    are not compared.

    data, log: see `diff`.
    """
    if one.folder is None or other.folder is None:
        return ""
    unfinished = [side.name for side in (one, other) if not side.record.is_finished]
    if unfinished:
        return f"{' and '.join(unfinished)}: not finished"
    a, b = RunDir(one.folder).weights, RunDir(other.folder).weights
    # equal weights decode equally only with the same tokenizer: `unigram` differs with each
    # training
    same_tokenizers = one.record.tokenizer_sha256 == other.record.tokenizer_sha256
    decode_equally = one.recipe.decoding == other.recipe.decoding and same_tokenizers
    if decode_equally and a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False):
        return "the weights of both are the same, to the last bit"
    try:
        return compare_trials(one.folder, other.folder, data, log)
    except ComposerError as error:
        return error.faults[0].message


def costs_table(one: Costs, other: Costs) -> Iterator[str]:
    """Yield the lines of a table of both costs, then an empty one."""
    if one == other:
        figures = (
            f"{si(one.parameters)} parameters, {si(one.flops)} FLOPs,"
            f" {format_bytes(one.state_bytes)} of state"
        )
        yield from (f"costs the same: {format_bound(figures, one.at_most)}", "")
        return
    rows: list[tuple[str, int, int, Callable[[int], str]]] = [
        ("parameters", one.parameters, other.parameters, si)
    ]
    for part in dict.fromkeys((*one.parts, *other.parts)):
        before, after = one.parts.get(part, 0), other.parts.get(part, 0)
        rows += [(f"  {part}", before, after, si)] if before != after else []
    rows += [
        ("FLOPs", one.flops, other.flops, si),
        ("state", one.state_bytes, other.state_bytes, format_bytes),
    ]
    heads = [
        f"{name}{', at most' if costs.at_most else ''}"
        for name, costs in (("A", one), ("B", other))
    ]
    cells = [(name, form(a), form(b), format_change(a, b, form)) for name, a, b, form in rows]
    yield from table("costs", cells, heads)
    if one.vocabularies != other.vocabularies or one.at_most != other.at_most:
        sizes = [
            ", ".join(f"{key} {size:,}" for key, size in x.vocabularies.items())
            for x in (one, other)
        ]
        a, b = (
            format_bound(text, costs.at_most)
            for text, costs in zip(sizes, (one, other), strict=True)
        )
        yield f"  vocabularies: A: {a}; B: {b}"
    yield ""


def format_change(before: int, after: int, form: Callable[[int], str] = si) -> str:
    """Return a difference, absolute and as a percentage where `before` is not 0; `=` if there is
    none.
    """
    if before == after:
        return "="
    share = f" ({format_percent(before, after)})" if before else ""
    return f"{'+' if after > before else '-'}{form(abs(after - before))}{share}"


def format_percent(before: float, after: float) -> str:
    """Return a difference in percent with two significant digits, or as a factor from ten times on."""
    percent = 100 * (after - before) / before
    if percent >= 900:
        return f"x {after / before:.0f}"
    return f"{percent:+.0f} %" if abs(percent) >= 10 else f"{percent:+.2g} %"


def table(
    title: str, rows: Sequence[tuple[str, str, str, str]], heads: Sequence[str] = ("A", "B")
) -> list[str]:
    """Return aligned rows under the heads of both sides."""
    lines = [(title, *heads, ""), *((f"  {name}", *rest) for name, *rest in rows)]
    return align_columns(lines, (True, False, False, True))


def scores_table(
    one: Mapping[str, float], other: Mapping[str, float], tested: Comparison | str
) -> Iterator[str]:
    """Yield the lines of a table of the scores that both have, then the tests' results, then an
    empty line.
    """
    rows = []
    for name, before in one.items():
        if name in other:
            after = other[name]
            scale, unit = (100, " points") if is_share(name) else (1, "")  # "%" would be relative
            digits = 2 if abs(after - before) * scale >= 0.1 and abs(before) * scale >= 1 else 4
            change = "=" if before == after else f"{(after - before) * scale:+.{digits}f}{unit}"
            rows.append((name, format_score(name, before), format_score(name, after), change))
    if rows:
        yield from table("scores", rows)
    if isinstance(tested, Comparison):
        yield from (f"  {line}" for line in comparison_text(tested).splitlines())
    elif tested:
        yield f"  no p: {tested}"
    if rows or tested:
        yield ""

"""Fingerprints, costs, scores and significance tests of two recipes or runs, as tables."""

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
from composer.metrics.table import format_score, is_share
from composer.model.builder import Builder, vocabulary_bounds
from composer.model.costs import BlockFailed, measure_costs
from composer.model.weights import count_parameters
from composer.recipe.fingerprints import FINGERPRINT_VERSION
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import strings_in
from composer.run_dir import RunDir
from composer.runs.record import RunRecord


@dataclass(frozen=True)
class Side:
    """One of the two that are compared; a run has its run.json and its folder."""

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
    """The fingerprints of both.

    `by_content`: data count by the lines in their files, else by the names of the files.
    """

    one: Mapping[str, str]
    other: Mapping[str, str]
    by_content: bool

    def same(self, key: str) -> bool:
        """True if a fingerprint agrees: `model`, `data` or `run`."""
        return self.one[key] == self.other[key]

    def text(self) -> str:
        """Say which fingerprints agree."""
        same = [key for key in KEYS if self.same(key)]
        differing = [key for key in KEYS if not self.same(key)]
        parts = [f"{_enumerate(same)} the same"] if same else []
        if differing:
            parts.append(f"{_enumerate(differing)} {'not' if same else 'differ'}")
        basis = "" if self.by_content else " (data by the names of their files)"
        return f"{', '.join(parts)}{basis}"

    def as_json(self) -> Mapping[str, object]:
        return {
            "same": {key: self.same(key) for key in KEYS},
            "by_content": self.by_content,
            "a": {key: self.one[key] for key in KEYS},
            "b": {key: self.other[key] for key in KEYS},
        }


def _enumerate(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def compare_fingerprints(
    first: Side, second: Side, data: Path | None, log: Callable[[str], None]
) -> Agreement:
    """Compare the fingerprints of both, by the content of their data where that is known.

    data, log: see `diff`.
    """
    with suppress(ComposerError):  # of data files that cannot be read
        hashes = [content_fingerprints(side, data, log) for side in (first, second)]
        if all(hashes):
            return Agreement(hashes[0], hashes[1], by_content=True)
    a, b = first.recipe, second.recipe
    # generated data, and files in the same folders, are the same if the recipes say the same
    is_generated = bool(a.data.generate and b.data.generate)
    same_files = a.data == b.data and a.folders(data) == b.folders(data)
    by_content = is_generated or (same_files and not first.folder and not second.folder)
    return Agreement(recipe_fingerprints(first), recipe_fingerprints(second), by_content)


def recipe_fingerprints(side: Side) -> Mapping[str, str]:
    """Return the fingerprints of a recipe; its data files count by their names."""
    prints = side.recipe.fingerprints
    if not side.record.averaged:
        return prints
    return {**prints, "run": averaged_sha256(prints["run"], side.record)}


def content_fingerprints(
    side: Side, data: Path | None, log: Callable[[str], None]
) -> Mapping[str, str]:
    """Return the fingerprints of a run, or of a recipe and its data; {} where unknown."""
    if side.folder:
        recorded = side.record.fingerprints
        is_earlier = recorded is not None and recorded.get("version") != FINGERPRINT_VERSION
        if is_earlier and side.record.fingerprint_parts is None:
            # data of any size: nothing else shows that an earlier run had the same lines
            log(
                f"{side.name}: its fingerprints are of an earlier version, and are computed anew"
                " from all of its data"
            )
        prints = current_fingerprints(side.recipe, side.record, data)
        return prints if prints.keys() >= {*KEYS} else {}
    parallel = side.recipe.canonical["data"]["parallel"] or {}
    files = [text_files.find_file(name, side.recipe.folders(data)) for name in strings_in(parallel)]
    present = [file for file in files if file]
    if not files or len(present) < len(files):
        return {}
    if sum(file.stat().st_size for file in present) > MAX_DATA_BYTES:
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


def compare_costs(first: Side, second: Side) -> tuple[Costs, Costs]:
    """Return the costs of both. Raises RecipeError.

    A recipe takes the vocabulary sizes of the other's run on the same data and tokenizer.
    """
    sizes_a, sizes_b = _recorded_sizes(first), _recorded_sizes(second)
    if first.recipe.data == second.recipe.data:
        sizes_a, sizes_b = sizes_a or sizes_b, sizes_b or sizes_a
    return model_costs(first.recipe, sizes_a), model_costs(second.recipe, sizes_b)


def _recorded_sizes(side: Side) -> dict[str, int]:
    """Return the sizes of a run's vocabularies by data key; {} if some are not recorded."""
    recorded, needed = side.record.vocabularies, vocabulary_bounds(side.recipe)
    if not needed.keys() <= recorded.keys():
        return {}
    return {key: recorded[key] for key in needed}


def model_costs(recipe: Recipe, vocabularies: Mapping[str, int]) -> Costs:
    """Build a model on the meta device and measure it. Raises RecipeError.

    vocabularies: {} for `vocabulary_bounds`.
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
    modules: dict[str, nn.Module] = {}
    for encoder in model.readers().values():
        name = encoder.memory
        modules[name if name == "encoder" else f"encoder {name}"] = encoder.stack
    modules |= {"decoder": model.decoder, "embeddings and output": model}
    return Costs(count_parameters(model), flops, state, _count_parts(modules), bounds, at_most)


def _count_parts(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """Return the parameters of each module that no module before it has."""
    counts, counted = {}, set[int]()
    for name, module in modules.items():
        counts[name] = 0
        for parameter in module.parameters():
            if id(parameter) not in counted:
                counts[name] += parameter.numel()
                counted.add(id(parameter))
    return counts


def run_tests(
    first: Side, second: Side, data: Path | None, log: Callable[[str], None]
) -> Comparison | str:
    """Compare the outputs of two runs for the same test lines, or say why they cannot be compared.

    data, log: see `diff`.
    """
    if first.folder is None or second.folder is None:
        return ""
    unfinished = [side.name for side in (first, second) if not side.record.is_finished]
    if unfinished:
        return f"{' and '.join(unfinished)}: not finished"
    a, b = RunDir(first.folder).weights, RunDir(second.folder).weights
    # equal weights decode equally only with the same tokenizer, and `unigram` differs each time
    same_tokenizers = first.record.tokenizer_sha256 == second.record.tokenizer_sha256
    decode_equally = first.recipe.decoding == second.recipe.decoding and same_tokenizers
    if decode_equally and a.is_file() and b.is_file() and filecmp.cmp(a, b, shallow=False):
        return "the weights of both are the same, to the last bit"
    try:
        return compare_trials(first.folder, second.folder, data, log)
    except ComposerError as error:
        return error.faults[0].message


def costs_table(first: Costs, second: Costs) -> Iterator[str]:
    """Yield the lines of a table of both costs, then an empty one."""
    if first == second:
        figures = (
            f"{si(first.parameters)} parameters, {si(first.flops)} FLOPs,"
            f" {format_bytes(first.state_bytes)} of state"
        )
        yield from (f"costs the same: {format_bound(figures, first.at_most)}", "")
        return
    rows = [_costs_row("parameters", first.parameters, second.parameters)]
    for part in dict.fromkeys((*first.parts, *second.parts)):
        before, after = first.parts.get(part, 0), second.parts.get(part, 0)
        if before != after:
            rows.append(_costs_row(f"  {part}", before, after))
    rows.append(_costs_row("FLOPs", first.flops, second.flops))
    rows.append(_costs_row("state", first.state_bytes, second.state_bytes, format_bytes))
    heads = ["A, at most" if first.at_most else "A", "B, at most" if second.at_most else "B"]
    yield from table("costs", rows, heads)
    if first.vocabularies != second.vocabularies or first.at_most != second.at_most:
        yield f"  vocabularies: A: {_sizes_text(first)}; B: {_sizes_text(second)}"
    yield ""


def _costs_row(
    name: str, before: int, after: int, form: Callable[[int], str] = si
) -> tuple[str, str, str, str]:
    return name, form(before), form(after), format_change(before, after, form)


def _sizes_text(costs: Costs) -> str:
    sizes = ", ".join(f"{key} {size:,}" for key, size in costs.vocabularies.items())
    return format_bound(sizes, costs.at_most)


def format_change(before: int, after: int, form: Callable[[int], str] = si) -> str:
    """Return a difference, absolute and in percent unless `before` is 0; `=` if there is none."""
    if before == after:
        return "="
    share = f" ({format_percent(before, after)})" if before else ""
    return f"{'+' if after > before else '-'}{form(abs(after - before))}{share}"


def format_percent(before: float, after: float) -> str:
    """Return a difference in percent with two digits, or as a factor of ten or more."""
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
    first: Mapping[str, float], second: Mapping[str, float], tested: Comparison | str
) -> Iterator[str]:
    """Yield the lines of a table of common scores, then the tests' results, then an empty line."""
    rows = []
    for name, before in first.items():
        if name in second:
            after = second[name]
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

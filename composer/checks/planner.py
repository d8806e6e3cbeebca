"""Plan a recipe: width, parameters, FLOPs and state of every block, and faults of the model.

The model is built and run on the meta device, by the same code as `build`, for one pair of `TOKENS`
source and target tokens. Autograd runs there too: a parameter that the loss does not reach is a
fault, since it would never learn, and distributed training fails on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from blocks.core.contract import Block, Path, Stream
from composer.checks import block_values, built_model
from composer.checks.problem import faults
from composer.errors import Fault, RecipeError
from composer.model.adapters import (
    AdapterSize,
    adapter_sites,
    add_adapters,
    count_frozen,
)
from composer.model.builder import encoder_stacks, vocabulary_bounds
from composer.model.costs import (
    TOKENS,
    BlockFailed,
    Costs,
    attribute_failures,
    measure_costs,
    wrap_blocks,
)
from composer.model.ctc import ctc_frames, ctc_of
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.footprint import Sizes
from composer.model.meta_device import MetaCache, without_compiler
from composer.model.recording_builder import RecordingBuilder
from composer.model.trained_parameters import count_decaying, count_states
from composer.model.weights import count_parameters, parameter_ids
from composer.recipe.recipe import Recipe, source_path


@dataclass(frozen=True)
class PlanRow:
    """One block of the recipe with the blocks inside it.

    FLOPs and bytes are those of one pair of `TOKENS` tokens.

    `loops` says why a `recurrent` runs it position by position, "" where it does not. `name` is its
    `as`, `reads` what it reads itself beside the stream, `columns` those of a grid that it leaves,
    `place` its path in `canonical`, and `reads_stream` whether anything depends on the stream that
    arrives. `at_most`: its sizes are upper bounds. A `repeat` has `times`, and its rows are sums
    over them. `tied_to` is an earlier row with the same parameters, which the total counts once.
    """

    path: str
    block: str
    width: int
    parameters: int
    flops: int
    state_bytes: int
    loops: str = ""
    name: str = ""
    reads: tuple[str, ...] = ()
    columns: int = 0
    place: Path = ()
    reads_stream: bool = True
    at_most: bool = False
    times: int | str = 1
    tied_to: str = ""


@dataclass(frozen=True)
class Plan:
    """Rows in the order of the recipe, and the totals; `vocabularies` are sizes by data key.

    `at_most`: these, and so all totals, are upper bounds, since a tokenizer that is yet to be
    trained may learn fewer. `max_target_ratios` is how many times as long as its source an answer
    may be, by the encoders' keys; 0: any length. `warnings` are those of the recipe's text and of
    its model; `frozen` of its parameters are not trained, and weight decay falls on `decaying`.
    The optimizer remembers `states` numbers of them.
    `adapters` are beside them, by the paths of their blocks.
    `draws_random_numbers` says whether a training step does: dropout, noise, scheduled sampling.
    Each process draws its own, so that their number changes the result.
    """

    rows: tuple[PlanRow, ...]
    parameters: int
    flops: int
    state_bytes: int
    tokens: int
    vocabularies: Mapping[str, int]
    at_most: bool = False
    warnings: tuple[Fault, ...] = ()
    max_target_ratios: Mapping[str, float] = field(default_factory=dict)
    frozen: int = 0
    decaying: int = 0
    states: int = 0
    ctc_frames: tuple[str, Stream] | None = None
    draws_random_numbers: bool = False
    adapters: Mapping[str, AdapterSize] = field(default_factory=dict)

    @property
    def sizes(self) -> Sizes:
        """What its weights take memory for."""
        return Sizes(self.parameters, self.frozen, self.states)

    @property
    def example(self) -> str:
        """The input that FLOPs and state are given for, in words."""
        is_language_model = not self.max_target_ratios
        if is_language_model:
            return f"a text of {self.tokens} tokens"
        return f"one pair of {self.tokens} + {self.tokens} tokens"

    def as_json(self) -> dict[str, object]:
        """Return the plan as plain data: `blocks`, and totals such as `parameters`."""
        data = asdict(self)
        inner = ("warnings", "max_target_ratios", "ctc_frames", "draws_random_numbers", "states")
        for key in inner:
            del data[key]
        return {"blocks": data.pop("rows"), **data}


@without_compiler()
def plan(recipe: Recipe, vocabularies: Mapping[str, int] | None = None) -> Plan:
    """Build and run `recipe` on the meta device. Raises RecipeError with every fault of its model.

    `vocabularies` are the sizes of a run's tokenizers, by data key; without them the tokenizer's
    settings bound them.
    """
    at_most = not vocabularies and recipe.tokenizer.is_trained
    vocabularies = vocabularies or vocabulary_bounds(recipe)
    builder = RecordingBuilder(recipe, at_most=at_most)
    with torch.device("meta"), MetaCache():
        model = builder.model(vocabularies)
    builder.faults += builder.unused_stack_faults()
    measured = _check_and_measure(builder, model)
    values = block_values.planned_values(recipe, vocabularies, count_parameters(model))
    if errors := [*faults(recipe, values)]:
        raise RecipeError(errors)
    rows: Iterable[PlanRow] = plan_rows(builder, model, measured.costs)
    rows = [*_with_bounds(recipe, rows)] if at_most else [*rows]
    parameters, sites = count_parameters(model), adapter_sites(recipe, model)
    add_adapters(recipe, model)
    draws = measured.draws_random_numbers or model.output.draws_samples
    encoders = model.readers().items()
    return Plan(
        rows=tuple(rows),
        parameters=parameters,
        flops=measured.flops,
        state_bytes=measured.costs.state_bytes[id(model.decoder)],
        tokens=TOKENS,
        vocabularies=vocabularies,
        at_most=at_most,
        warnings=tuple(sorted({*recipe.warnings, *builder.warnings})),
        max_target_ratios={key: encoder.max_target_ratio for key, encoder in encoders},
        frozen=count_frozen(recipe, model),
        decaying=count_decaying(recipe, model),
        states=count_states(recipe, model),
        ctc_frames=ctc_frames(model),
        draws_random_numbers=draws or bool(recipe.training.scheduled_sampling),
        adapters=sites.sizes() if sites else {},
    )


class Measured(NamedTuple):
    """What running a model shows."""

    costs: Costs
    flops: int
    draws_random_numbers: bool


def _check_and_measure(builder: RecordingBuilder, model: EncoderDecoder) -> Measured:
    """Run a model and the rules of built models. Raises RecipeError with the errors of a group."""
    built = built_model.BuiltModel(builder, model)
    built_model.check(built, built_model.STRUCTURE)
    try:
        costs, flops = measure_costs(model)
        with wrap_blocks(model, attribute_failures), MetaCache() as step:
            built_model.check(built, built_model.LEARNED)
            built_model.check(built, built_model.DECODED)
        built_model.check(built, built_model.CARRIED)
    except BlockFailed as failed:
        builder.fault(failed.code, failed.block.path or ("model",), failed.message, failed.fix)
        raise RecipeError(builder.faults) from failed.__cause__
    return Measured(costs, flops, step.draws)


def _with_bounds(recipe: Recipe, rows: Iterable[PlanRow]) -> Iterator[PlanRow]:
    """Mark the rows whose sizes grow with the vocabularies, which are upper bounds."""
    # a one-hot vector is as wide as the vocabulary, and so may be everything computed from it
    are_all = recipe.model.embedding.depends_on_size
    for row in rows:
        grows = are_all or row.block in ("embedding", "output", "ctc")
        yield replace(row, at_most=True) if grows else row


def at_sizes(planned: Plan, recipe: Recipe, vocabularies: Mapping[str, int]) -> Plan:
    """Return a plan for known vocabulary sizes; the model is built again only if they differ."""
    if dict(planned.vocabularies) == dict(vocabularies):
        rows = tuple(replace(row, at_most=False) for row in planned.rows)
        return replace(planned, rows=rows, at_most=False)
    return replace(plan(recipe, vocabularies), warnings=planned.warnings)


def plan_rows(builder: RecordingBuilder, model: EncoderDecoder, costs: Costs) -> Iterator[PlanRow]:
    """Yield one row for each path in the recipe, in its order; repeated blocks are summed."""
    recipe = builder.recipe
    for stack in encoder_stacks(recipe.model):
        encoder = model.readers()[stack.key]
        stream = Stream(encoder.embedding.embedding_dim, columns=encoder.columns)
        yield _plan_row(recipe, stack.path, "embedding", [encoder.embedding], stream, costs)
        # an encoder runs once, so it keeps no state between decoding steps
        yield from _block_rows(builder, encoder.stack, costs._replace(state_bytes=Counter()))
    embeddings = [model.embedding] if model.embedding is not None else []
    if recipe.model.decoder is not None:
        path: Path = ("model", "decoder")
        yield _plan_row(recipe, path, "embedding", embeddings, Stream(model.width), costs)
    yield from _block_rows(builder, model.decoder, costs)
    out, ctc = Stream(model.vocabulary), ctc_of(model)
    if model.output is not ctc:
        yield _plan_row(recipe, ("model", "output"), "output", [model.output], out, costs)
    if ctc is not None:
        path = ("model", "output", "ctc")
        yield _plan_row(recipe, path, "ctc", [ctc], out, costs, reads=(ctc.memory,))


def _block_rows(builder: RecordingBuilder, stack: nn.Module, costs: Costs) -> Iterator[PlanRow]:
    by_path: dict[Path, list[Block]] = {}
    for block in stack.modules():
        if isinstance(block, Block) and block.path:
            by_path.setdefault(block.path, []).append(block)
    for path, blocks in by_path.items():
        word = str(path[-1])
        details: dict[str, object] = {
            "loops": blocks[0].loops,
            "reads_stream": blocks[0].reads_stream,
            "name": builder.names[path],
            "reads": tuple(builder.reads[path]),
        }
        if word == "repeat":
            details["times"] = builder.recipe.settings_at(path)["times"]
        yield _plan_row(builder.recipe, path, word, blocks, blocks[-1].out, costs, **details)


def _plan_row(
    recipe: Recipe,
    path: Path,
    word: str,
    modules: list[Any],
    out: Stream,
    costs: Costs,
    **details: Any,
) -> PlanRow:
    flops = sum(costs.flops[id(module)] for module in modules)
    state_bytes = sum(costs.state_bytes[id(module)] for module in modules)
    numbers = (out.width, count_parameters(nn.ModuleList(modules)), flops, state_bytes)
    place, tied_to = source_path(recipe, path), set[str]()
    if word in ("embedding", "output", "use"):
        label = place if place.endswith(word) else f"{place} {word}"
        for module in modules:
            for key in parameter_ids(module):
                tied_to.add(costs.owners.setdefault(key, label))
        tied_to.discard(label)
    details["tied_to"] = min(tied_to, default="")
    return PlanRow(place, word, *numbers, columns=out.columns, place=path, **details)

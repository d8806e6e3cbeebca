"""Plan a recipe: width, parameters, FLOPs and state bytes of every block, and whether the model can be trained.

The model is built and run on the meta device, by the same code as `build`, for one pair of `TOKENS` source and target
tokens. Autograd runs there too: a parameter that the loss does not reach is a fault, since it would never learn, and
distributed training fails on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from blocks.core.contract import Block, Path, State, Stream
from composer.errors import Fault, RecipeError
from composer.model.builder import AUTHOR, Builder, RecordingBuilder, encoder_stacks
from composer.model.encoder_decoder import (
    FEW,
    EncoderDecoder,
    OneHot,
    StepInputs,
    example_ids,
    example_sources,
    state_leaves,
)
from composer.model.no_effect import no_effect_faults
from composer.recipe.recipe import Recipe, source_path
from composer.recipe.registry import CHOICES

TOKENS = 32
"""Source and target tokens of the pair for which FLOPs and state bytes are given."""
MOST_CALLS = 100_000
"""Calls of blocks for one pair: a model with more would train for ever."""


@dataclass(frozen=True)
class PlanRow:
    """One block of the recipe with the blocks inside it. FLOPs and bytes are those of one pair of `TOKENS` tokens.

    `loops` says why a `recurrent` runs it position by position, "" where it does not. `name` is its `as`, `reads` what
    it reads itself beside the stream, `columns` those of a grid that it leaves, `place` its path in `canonical`, and
    `reads_stream` whether anything depends on the stream that arrives. `at_most`: its sizes are upper bounds.
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


@dataclass(frozen=True)
class Plan:
    """Rows in the order of the recipe, and the totals; `vocabularies` are sizes by data key.

    `at_most`: these, and so all totals, are upper bounds, since a tokenizer that is yet to be trained may learn fewer.
    `max_target_ratios` is how many times as long as its source an answer may be, by the encoders' keys; 0: any length.
    `warnings` are those of the recipe's text and of its model.
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

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data: `blocks`, and the totals `parameters`, `flops`, `state_bytes`."""
        data = asdict(self)
        del data["warnings"], data["max_target_ratios"]
        return {"blocks": data.pop("rows"), **data}


@dataclass
class BlockCost:
    """FLOPs of one block, and the bytes of its state after the last position."""

    flops: int = 0
    state_bytes: int = 0


Costs = dict[int, BlockCost]
"""Costs of blocks by the module's id."""


class BlockFailed(Exception):
    """A block cannot compute with what arrives, or leaves another stream than its constructor has said."""

    def __init__(self, block: Block, message: str, fix: str = AUTHOR, code: str = "block") -> None:
        super().__init__(message)
        self.block, self.message, self.fix, self.code = block, message, fix, code


def plan(recipe: Recipe, vocabularies: Mapping[str, int] | None = None) -> Plan:
    """Build and run `recipe` on the meta device. Raises RecipeError with every fault of its model.

    `vocabularies` are the sizes of a run's tokenizers, by data key; without them the tokenizer's settings bound them.
    """
    at_most = not vocabularies and recipe.tokenizer.is_trained
    vocabularies = vocabularies or vocabulary_bounds(recipe)
    builder = RecordingBuilder(recipe)
    with torch.device("meta"):
        model = builder.model(vocabularies)
    no_effects = no_effect_faults(builder, vocabularies)
    builder.faults += [fault for fault in no_effects if fault.severity == "error"]
    builder.warnings += [fault for fault in no_effects if fault.severity == "warning"]
    builder.finish()
    try:
        costs, flops = measure_costs(model)
        with wrap_blocks(model, attribute_failures):
            check_gradients(builder, model)
            check_decoder(builder, model)
    except BlockFailed as failed:
        builder.fault(failed.code, failed.block.path or ("model",), failed.message, failed.fix)
        raise RecipeError(builder.faults) from failed.__cause__
    builder.finish()
    rows = tuple(plan_rows(builder, model, costs))
    if at_most:
        # a one-hot vector is as wide as the vocabulary, and so perhaps what is computed from it
        everywhere, sized = recipe.model["embedding"] == "one_hot", ("embedding", "output")
        rows = tuple(replace(row, at_most=everywhere or row.block in sized) for row in rows)
    decoder = costs.get(id(model.decoder), BlockCost())
    max_target_ratios = {key: encoder.max_target_ratio for key, encoder in model.readers().items()}
    warnings = tuple(sorted({*recipe.warnings, *builder.warnings}))
    parameters, state = count_parameters(model), decoder.state_bytes
    return Plan(rows, parameters, flops, state, TOKENS, vocabularies, at_most, warnings, max_target_ratios)


def plan_known(recipe: Recipe, vocabularies: Mapping[str, int]) -> None:
    """Raise RecipeError if the model does not suit vocabularies of these sizes, where its widths depend on them."""
    if recipe.model["embedding"] == "one_hot" or recipe.model["output"]["kind"] == "identity":
        plan(recipe, vocabularies)


def vocabulary_bounds(recipe: Recipe) -> dict[str, int]:
    """Return an upper bound of each vocabulary, by data key, from the settings of the tokenizer."""
    keys = [key for key, _, _, _ in encoder_stacks(recipe.model)]
    return {key: recipe.tokenizer.max_size(key == "target") for key in (*keys, "target")}


def count_parameters(model: nn.Module) -> int:
    """Return the number of learned numbers, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def measure_costs(model: EncoderDecoder) -> tuple[Costs, int]:
    """Return the costs of every block, embedding and output head, and the FLOPs of the model, in evaluation mode.

    Raises BlockFailed if a block fails, or if there are too many calls.
    """
    costs: Costs = {}
    model.eval()
    # With gradients, though none are wanted: without, the counter stumbles over a state that is a view of a parameter.
    counter, calls = FlopCounterMode(display=False), count()

    def metered(block: Block, name: str) -> Callable[..., Any]:
        call, cost = attribute_failures(block, name), costs.setdefault(id(block), BlockCost())

        def run(*args: Any) -> Any:
            if block.path and next(calls) >= MOST_CALLS:
                message = f"more than {MOST_CALLS:,} steps are taken for one pair of {TOKENS} tokens"
                raise BlockFailed(block, message, "repeat less often, or fewer blocks", "size")
            before = counter.get_total_flops()
            result = call(*args)
            cost.flops += counter.get_total_flops() - before
            # a block may run many times: in a loop from the state that it left, in a shared repeat from another one
            if name == "forward":
                cost.state_bytes += state_bytes(result[1]) - state_bytes(args[1])
            elif name == "start":
                cost.state_bytes += state_bytes(result)
            return result

        return run

    with counter, torch.enable_grad(), wrap_blocks(model, metered):
        model(example_sources(model, TOKENS), example_ids(model, TOKENS))
    model.train()
    by_module = counter.get_flop_counts()
    for name, module in model.named_modules():
        if id(module) not in costs:  # blocks have been metered by their calls: one built twice has one name here
            costs[id(module)] = BlockCost(sum(by_module.get(f"{type(model).__name__}.{name}", {}).values()))
    return costs, counter.get_total_flops()


@contextmanager
def wrap_blocks(model: nn.Module, wrap: Callable[[Block, str], Callable[..., Any]]) -> Iterator[None]:
    """Replace `start`, `forward` and `mask` of every block by what `wrap` makes of them, while entered.

    Forward hooks do not serve: `start` and `mask` have none, and a hook does not see that a call raises.
    """
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    methods = [(block, name) for block in blocks for name in ("start", "forward", "mask")]
    for block, name in methods:
        # set on the instance, so that it is found before the class's own and can be removed again
        setattr(block, name, wrap(block, name))
    try:
        yield
    finally:
        for block, name in methods:
            delattr(block, name)


def state_bytes(state: State) -> int:
    """Return the bytes of all tensors of a state."""
    return sum(leaf.numel() * leaf.element_size() for leaf in state_leaves(state))


def attribute_failures(block: Block, name: str) -> Callable[..., Any]:
    """Return a method of a block which raises BlockFailed for the innermost block of the recipe that fails."""
    call = getattr(block, name)

    def checked(x: Tensor, *rest: Any) -> Any:
        try:
            result = call(x, *rest)
        except Exception as error:  # a plug-in's block may raise anything
            if not block.path or isinstance(error, BlockFailed):
                raise
            message = f"`{block.path[-1]}` fails where {tuple(x.shape)} arrives: {type(error).__name__}: {error}"
            raise BlockFailed(block, message, failure_hint(block, x)) from error
        violation = contract_violation(block, name, result) if block.path else ""
        if violation:
            raise BlockFailed(block, violation, failure_hint(block, x))
        return result

    return checked


def failure_hint(block: Block, x: Tensor) -> str:
    """Return the fix for a block that fails on x: perhaps it was never meant for grids."""
    if x.dim() != 4:
        return AUTHOR
    return (
        f"put `- select_column: 0`, `- sum_columns` or `- flatten` before it; its author refuses a grid with "
        f'`self.out = site.sequence("{block.path[-1]}")`'
    )


def contract_violation(block: Block, name: str, result: Any) -> str:
    """Return how a method's result differs from what the contract or the block itself promises; "" if it does not."""
    word, out = block.path[-1], block.out
    if name == "mask":
        return "" if isinstance(result, Tensor) else f"`mask` of `{word}` returns no tensor"
    if name == "start":
        return "" if is_state(result) else f"`start` of `{word}` returns what is neither a tensor nor a tuple of them"
    # combinators return their named outputs too
    is_step = isinstance(result, tuple) and 2 <= len(result) <= 3 and isinstance(result[0], Tensor)
    if not (is_step and is_state(result[1]) and all(isinstance(outputs, Mapping) for outputs in result[2:])):
        return f"`forward` of `{word}` does not return its output and its state after, tensors or tuples of them"
    if result[0].shape[2:] == ((out.columns, out.width) if out.grid else (out.width,)):
        return ""
    return f"`{word}` says that it leaves {out.described}, {out.width} wide, and leaves {tuple(result[0].shape)}"


def is_state(state: Any) -> bool:
    """Return True for a tensor or a tuple of states."""
    return isinstance(state, Tensor) or (isinstance(state, tuple) and all(map(is_state, state)))


def check_gradients(builder: Builder, model: EncoderDecoder) -> None:
    """Add a fault for each parameter that the loss does not reach, at the outermost block that lost it."""
    unreached = unreached_parameters(builder.recipe, model)
    paths = {memory: path for _, memory, path, _ in encoder_stacks(builder.recipe.model)}
    for encoder in model.readers().values():
        # the embedding may be the target's too; a stack without parameters has nothing else to go by
        own = parameter_ids(encoder.stack) or parameter_ids(encoder) or {id(buffer) for buffer in encoder.buffers()}
        if own <= unreached:
            message = f"nothing reads `{encoder.memory}`, so it would never learn"
            fix = "add a `cross_attention` that reads it, or remove it"
            builder.fault("unused", paths[encoder.memory], message, fix)
            unreached -= parameter_ids(encoder)
    for block in model.modules():
        if isinstance(block, Block) and block.path and not isinstance(block, type(model.decoder)):
            own = parameter_ids(block)
            inner = (child for child in block.modules() if isinstance(child, Block) and child is not block)
            outer = own - set().union(*(parameter_ids(child) for child in inner))
            if own & unreached and (own <= unreached or outer & unreached):
                message = "the result does not depend on this block's parameters: nothing reads what it makes"
                builder.fault("unused", block.path, message, "read it, or remove it")
                unreached -= own
    if builder.faults:
        return
    embeddings = {paths[encoder.memory]: encoder.embedding for encoder in model.readers().values()}
    for path, embedding in (*embeddings.items(), (("model", "decoder"), model.embedding)):
        if embedding is not None and parameter_ids(embedding) & unreached:
            message = "nothing here reads the tokens, so their embedding would never learn"
            fix = "read the stream or `input`, or share the embedding with `output: {tie: ...}`"
            builder.fault("unused", path, message, fix)


def unreached_parameters(recipe: Recipe, model: EncoderDecoder) -> set[int]:
    """Return the ids of the parameters, and of tables of one-hot vectors, that get no gradient from the loss.

    The loss of one pair is the sum of its logits, and of all penalties that blocks add in training.
    """
    embeddings = [encoder.embedding for encoder in model.readers().values()]
    tables = [embedding.table for embedding in embeddings if isinstance(embedding, OneHot)]
    leaves = [*model.parameters(), *(table.requires_grad_() for table in tables)]
    penalties: dict[str, list[Tensor]] = {}
    with torch.enable_grad():
        logits = training_logits(recipe, model, penalties)
        loss = torch.stack([logits.sum(), *(penalty for values in penalties.values() for penalty in values)]).sum()
        try:
            loss.backward()
        except Exception as error:  # a plug-in may bring gradients of its own
            raise BlockFailed(model.decoder, f"no gradient can be computed: {type(error).__name__}: {error}") from error
    unreached = {id(leaf) for leaf in leaves if leaf.grad is None}
    for leaf in leaves:
        leaf.grad = None
    for table in tables:
        table.requires_grad_(False)
    return unreached


def training_logits(recipe: Recipe, model: EncoderDecoder, penalties: dict[str, list[Tensor]]) -> Tensor:
    """Return the logits of one short pair, as a training step computes them; it adds the blocks' penalties."""
    facts = torch.zeros(1, FEW if recipe.dataset.get("babi") else 0, dtype=torch.long, device=model.device)
    inputs = StepInputs(None, penalties, torch.zeros((), device=model.device), facts)
    logits: Tensor = model(example_sources(model, FEW), example_ids(model, FEW), inputs)
    return logits


def parameter_ids(module: nn.Module) -> set[int]:
    """Return the ids of all parameters of a module."""
    return {id(parameter) for parameter in module.parameters()}


def check_decoder(builder: Builder, model: EncoderDecoder) -> None:
    """Add a fault if scheduled sampling has no tokens to replace, or if the decoding method does not suit the model."""
    if model.embedding is None and builder.recipe.training["scheduled_sampling"]:
        message = "the decoder reads no tokens, so none of them can be replaced"
        builder.fault("unused", ("training", "scheduled_sampling"), message, "remove it")
    (word,) = builder.recipe.decoding
    decoder: Any = CHOICES["decoders"].constructors()[word]
    if not builder.faults and (message := decoder.model_problem([model])):
        fix = "write `decoding: {beam: {size: 5}}`; recurrence, self-attention, convolution and memories have a state"
        builder.fault("markov", ("decoding",), message, fix)


def plan_rows(builder: RecordingBuilder, model: EncoderDecoder, costs: Costs) -> Iterator[PlanRow]:
    """Yield one row for each path in the recipe, in its order; a path built several times (a repeat) is summed."""
    recipe = builder.recipe
    for key, _, path, _ in encoder_stacks(recipe.model):
        encoder = model.readers()[key]
        stream = Stream(encoder.embedding.embedding_dim, columns=encoder.columns)
        yield _plan_row(recipe, path, "embedding", [encoder.embedding], stream, costs)
        # an encoder runs once, so it keeps no state between decoding steps
        yield from _block_rows(builder, encoder.stack, {key: BlockCost(cost.flops) for key, cost in costs.items()})
    embeddings = [model.embedding] if model.embedding is not None else []
    yield _plan_row(recipe, ("model", "decoder"), "embedding", embeddings, Stream(model.width), costs)
    yield from _block_rows(builder, model.decoder, costs)
    yield _plan_row(recipe, ("model", "output"), "output", [model.output], Stream(model.vocabulary), costs)


def _block_rows(builder: RecordingBuilder, stack: nn.Module, costs: Costs) -> Iterator[PlanRow]:
    by_path: dict[Path, list[Block]] = {}
    for block in stack.modules():
        if isinstance(block, Block) and block.path:
            by_path.setdefault(block.path, []).append(block)
    for path, blocks in by_path.items():
        details: dict[str, Any] = {"loops": blocks[0].loops, "reads_stream": blocks[0].reads_stream}
        details |= {"name": builder.names[path], "reads": tuple(builder.reads[path])}
        yield _plan_row(builder.recipe, path, str(path[-1]), blocks, blocks[-1].out, costs, **details)


def _plan_row(
    recipe: Recipe, path: Path, word: str, modules: list[Any], out: Stream, costs: Costs, **details: Any
) -> PlanRow:
    measured = [costs.get(id(module), BlockCost()) for module in modules]
    flops, state_bytes = sum(cost.flops for cost in measured), sum(cost.state_bytes for cost in measured)
    numbers = (out.width, count_parameters(nn.ModuleList(modules)), flops, state_bytes)
    return PlanRow(source_path(recipe, path), word, *numbers, columns=out.columns, place=path, **details)

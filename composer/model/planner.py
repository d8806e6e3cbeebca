"""What a recipe will cost, and whether it can be built: the model on the meta device, by the same code as `build`.

Parameters are counted, FLOPs and state bytes measured, for one pair of `TOKENS` source and target tokens. Autograd runs
there too: a parameter that the loss does not reach is a fault (it would never learn, and several devices trip over it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from blocks.core.contract import Block, Named, Path, Site, State, Stream
from blocks.core.stack import Stack
from composer.errors import RecipeError
from composer.model.builder import AUTHOR, Builder, encoder_stacks
from composer.model.encoder_decoder import (
    FEW,
    EncoderDecoder,
    OneHot,
    StepInputs,
    example_ids,
    example_sources,
    has_state,
    state_leaves,
)
from composer.model.vocabulary import max_vocabulary
from composer.recipe.recipe import Recipe, source_path

TOKENS = 32
"""Source and target tokens of the pair for which FLOPs and state bytes are given."""
MOST_CALLS = 100_000
"""Calls of blocks for one pair: a model with more would train for ever."""


@dataclass(frozen=True)
class PlanRow:
    """One block of the recipe with all that stands inside it. FLOPs and bytes are those of one pair of `TOKENS`.

    `loops` says why a `recurrent` runs it position by position, "" where it does not. `name` is its `as`, `reads` what
    it reads itself beside the stream, `columns` those of a grid that it leaves, `place` its path in `frozen`, and
    `reads_stream` whether anything depends on the stream that arrives.
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


@dataclass(frozen=True)
class Plan:
    """The rows in the order of the recipe, and the totals; `vocabularies` are bounds from the tokenizer."""

    rows: tuple[PlanRow, ...]
    parameters: int
    flops: int
    state_bytes: int
    tokens: int
    vocabularies: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """The plan as plain data: `blocks`, and the totals `parameters`, `flops`, `state_bytes`."""
        data = asdict(self)
        return {"blocks": data.pop("rows"), **data}


@dataclass
class BlockCost:
    """What was seen of one block: its FLOPs, and the bytes of state after its last position."""

    flops: int = 0
    state_bytes: int = 0


class BlockFailed(Exception):
    """A block cannot compute with what arrives, or leaves another stream than its constructor has said."""

    def __init__(self, block: Block, message: str, fix: str = AUTHOR, code: str = "block") -> None:
        super().__init__(message)
        self.block, self.message, self.fix, self.code = block, message, fix, code


def plan(recipe: Recipe, vocabularies: Mapping[str, int] | None = None) -> Plan:
    """Builds and runs `recipe` without memory. Raises RecipeError with every fault of its model.

    `vocabularies` are the sizes that a run has found, by data key; without them they are what the tokenizer is told.
    """
    vocabularies = vocabularies or vocabulary_bounds(recipe)
    builder = RecordingBuilder(recipe)
    with torch.device("meta"):
        model = builder.model(vocabularies)
    builder.finish()
    try:
        tallies, flops = measure_costs(model)
        with wrap_blocks(model, attribute_failures):
            check_gradients(builder, model)
            find_nothing_to_sample(builder, model)
            check_viterbi(builder, model)
    except BlockFailed as failed:
        builder.fault(failed.code, failed.block.path or ("model",), failed.message, failed.fix)
        raise RecipeError(builder.faults) from failed.__cause__
    builder.finish()
    rows = tuple(plan_rows(builder, model, tallies))
    decoder = tallies.get(id(model.decoder), BlockCost())
    return Plan(rows, count_parameters(model), flops, decoder.state_bytes, TOKENS, vocabularies)


def vocabulary_bounds(recipe: Recipe) -> dict[str, int]:
    """An upper bound for each vocabulary, by data key: the size that the tokenizer is told."""
    keys = [key for key, _, _, _ in encoder_stacks(recipe.model)]
    return {key: max_vocabulary(recipe.dataset["tokenizer"], key == "target") for key in (*keys, "target")}


def measure_costs(model: EncoderDecoder) -> tuple[dict[int, BlockCost], int]:
    """FLOPs and state bytes of every block (by the module's id), and the FLOPs of the whole, in evaluation mode."""
    tallies: dict[int, BlockCost] = {}
    model.eval()
    # With gradients, though none are wanted: without, the counter stumbles over a state that is a view of a parameter.
    counter = FlopCounterMode(display=False)
    with counter, torch.enable_grad(), wrap_blocks(model, CostMeter(counter, tallies).counted):
        model(example_sources(model, TOKENS), example_ids(model, TOKENS))
    model.train()
    return tallies, counter.get_total_flops()


@contextmanager
def wrap_blocks(model: nn.Module, wrap: Callable[[Block, str], Callable[..., Any]]) -> Iterator[None]:
    """While entered, `start`, `forward` and `mask` of every block are what `wrap` makes of them."""
    names = ("start", "forward", "mask")
    found = [block for block in model.modules() if isinstance(block, Block)]
    for block in found:
        for name in names:
            # Set on the instance, so that it is found before the class's own and can be taken away again.
            setattr(block, name, wrap(block, name))
    try:
        yield
    finally:
        for block in found:
            for name in names:
                delattr(block, name)


@dataclass
class CostMeter:
    """Adds to the tally of every block, by its id, what its calls cost. Raises BlockFailed where one fails."""

    counter: FlopCounterMode
    tallies: dict[int, BlockCost]
    calls: int = 0

    def counted(self, block: Block, name: str) -> Callable[..., Any]:
        """What stands for the method of that name while the block is metered."""
        call, tally = attribute_failures(block, name), self.tallies.setdefault(id(block), BlockCost())

        def counted(*given: Any) -> Any:
            self.calls += bool(block.path)
            if self.calls > MOST_CALLS:
                raise too_often(block)
            before = self.counter.get_total_flops()
            result = call(*given)
            tally.flops += self.counter.get_total_flops() - before
            # a block may run many times: in a loop from the state that it left, in a shared repeat from another one
            if name == "forward":
                tally.state_bytes += state_bytes(result[1]) - state_bytes(given[1])
            elif name == "start":
                tally.state_bytes += state_bytes(result)
            return result

        return counted


def too_often(block: Block) -> BlockFailed:
    """That a model takes more steps than anybody waits for."""
    message = f"more than {MOST_CALLS:,} steps are taken for one pair of {TOKENS} tokens"
    return BlockFailed(block, message, "repeat less often, or fewer blocks", "size")


def attribute_failures(block: Block, name: str) -> Callable[..., Any]:
    """A method of a block, for whose failure the block answers that stands innermost in the recipe."""
    call = getattr(block, name)

    def judged(x: Tensor, *rest: Any) -> Any:
        try:
            result = call(x, *rest)
        except Exception as error:  # a plug-in's block may raise anything
            if not block.path or isinstance(error, BlockFailed):
                raise
            told = f"`{block.path[-1]}` fails where {tuple(x.shape)} arrives: {type(error).__name__}: {error}"
            raise BlockFailed(block, told, failure_hint(block, x)) from error
        lie = contract_violation(block, name, result) if block.path else ""
        if lie:
            raise BlockFailed(block, lie, failure_hint(block, x))
        return result

    return judged


def failure_hint(block: Block, x: Tensor) -> str:
    """What to do about a block that fails where x arrives: maybe it was never meant for grids."""
    if x.dim() != 4:
        return AUTHOR
    return (
        f"put `- select_column: 0`, `- sum_columns` or `- flatten` before it; its author refuses a grid with "
        f'`self.out = site.sequence("{block.path[-1]}")`'
    )


def contract_violation(block: Block, name: str, result: Any) -> str:
    """How what a method returned differs from what the contract or the block itself promises; "" where it does not."""
    word = block.path[-1]
    if name == "mask":
        return "" if isinstance(result, Tensor) else f"`mask` of `{word}` returns no tensor"
    if name == "start":
        return "" if is_state(result) else f"`start` of `{word}` returns what is neither a tensor nor a tuple of them"
    if not is_result(result):
        return f"`forward` of `{word}` does not return its output and its state after, tensors or tuples of them"
    if is_of(result[0], block.out):
        return ""
    said = f"`{word}` says that it leaves {block.out.described}, {block.out.width} wide"
    return f"{said}, and leaves {tuple(result[0].shape)}"


def is_result(result: Any) -> bool:
    """Tell whether a value is what `forward` may return: an output, a state, and of combinators the named outputs."""
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        return False
    y, state, *named = result
    return isinstance(y, Tensor) and is_state(state) and all(isinstance(outputs, Mapping) for outputs in named)


def is_state(state: Any) -> bool:
    """Whether a value is a tensor or a tuple of states."""
    return isinstance(state, Tensor) or (isinstance(state, tuple) and all(map(is_state, state)))


def is_of(y: Tensor, out: Stream) -> bool:
    """Whether a tensor is what its stream says, but for the number of positions."""
    return y.shape[2:] == ((out.columns, out.width) if out.grid else (out.width,))


def state_bytes(state: State) -> int:
    """Bytes of all leaves of a state."""
    return sum(leaf.numel() * leaf.element_size() for leaf in state_leaves(state))


def check_gradients(builder: Builder, model: EncoderDecoder) -> None:
    """Adds a fault for each parameter that the loss does not reach: for the outermost thing that lost it."""
    tables = [each.embedding.table for each in model.readers().values() if isinstance(each.embedding, OneHot)]
    leaves = [*model.parameters(), *(table.requires_grad_() for table in tables)]
    with torch.enable_grad():
        loss = probe_loss(builder.recipe, model)
        try:
            loss.backward()
        except Exception as error:  # a plug-in may bring gradients of its own
            raise BlockFailed(model.decoder, f"no gradient can be computed: {type(error).__name__}: {error}") from error
    unreached = {id(leaf) for leaf in leaves if leaf.grad is None}
    for leaf in leaves:
        leaf.grad = None
    for table in tables:
        table.requires_grad_(False)
    paths = {memory: path for _, memory, path, _ in encoder_stacks(builder.recipe.model)}
    for encoder in model.readers().values():
        # The embedding may be the target's too; a stack without parameters has nothing else to go by.
        own = parameter_ids(encoder.stack) or parameter_ids(encoder) or {id(each) for each in encoder.buffers()}
        if own <= unreached:
            builder.fault(
                "unused",
                paths[encoder.memory],
                f"nothing reads `{encoder.memory}`, so it would never learn",
                "add a `cross_attention` that reads it, or remove it",
            )
            unreached -= {id(parameter) for parameter in encoder.parameters()}
    for block in model.modules():
        if isinstance(block, Block) and block.path and not isinstance(block, type(model.decoder)):
            own, inner = parameter_ids(block), inner_parameters(block)
            if own & unreached and (own <= unreached or (own - inner) & unreached):
                builder.fault(
                    "unused",
                    block.path,
                    "the result does not depend on this block's parameters: nothing reads what it makes",
                    "read it, or remove it",
                )
                unreached -= own
    if not builder.faults:
        check_embeddings_used(builder, model, unreached)


def probe_loss(recipe: Recipe, model: EncoderDecoder) -> Tensor:
    """What stands for the loss of one pair: the sum of its logits, and all that blocks add in training."""
    facts = torch.zeros(1, FEW if recipe.dataset.get("babi") else 0, dtype=torch.long, device=model.device)
    penalties: dict[str, list[Tensor]] = {}
    beside = StepInputs(None, penalties, torch.zeros((), device=model.device), facts)
    logits = model(example_sources(model, FEW), example_ids(model, FEW), beside)
    return torch.stack([logits.sum(), *(each for name in penalties for each in penalties[name])]).sum()


def check_embeddings_used(builder: Builder, model: EncoderDecoder, unreached: set[int]) -> None:
    """Adds a fault for each encoder or decoder that makes nothing of its own tokens."""
    paths = {memory: path for _, memory, path, _ in encoder_stacks(builder.recipe.model)}
    embeddings = {paths[each.memory]: each.embedding for each in model.readers().values()}
    for path, embedding in (*embeddings.items(), (("model", "decoder"), model.embedding)):
        if embedding is not None and parameter_ids(embedding) & unreached:
            builder.fault(
                "unused",
                path,
                "nothing here reads the tokens, so their embedding would never learn",
                "read the stream or `input`, or share the embedding with `output: {tie: ...}`",
            )


def find_nothing_to_sample(builder: Builder, model: EncoderDecoder) -> None:
    """Adds a fault where the decoder reads no tokens and scheduled sampling should replace some."""
    if model.embedding is None and builder.recipe.training["scheduled_sampling"]:
        builder.fault(
            "unused",
            ("training", "scheduled_sampling"),
            "the decoder reads no tokens, so none of them can be replaced",
            "remove it",
        )


def parameter_ids(block: nn.Module) -> set[int]:
    """The ids of all parameters of a block."""
    return {id(parameter) for parameter in block.parameters()}


def inner_parameters(block: Block) -> set[int]:
    """The ids of those that the blocks inside have."""
    inner = (each for each in block.modules() if isinstance(each, Block) and each is not block)
    return set().union(*(parameter_ids(each) for each in inner))


def check_viterbi(builder: Builder, model: EncoderDecoder) -> None:
    """Adds a fault where `viterbi` is to search with a decoder that remembers more than the last token."""
    if "viterbi" in builder.recipe.decoding and not builder.faults and has_state(model):
        builder.fault(
            "markov",
            ("decoding",),
            "`viterbi` needs a decoder whose next token depends on the last one alone, and this one remembers more",
            "write `decoding: {beam: {size: 5}}`; what remembers is recurrence, self-attention, convolution "
            "and memories",
        )


def plan_rows(builder: RecordingBuilder, model: EncoderDecoder, tallies: Mapping[int, BlockCost]) -> Iterator[PlanRow]:
    """One row for each place in the recipe, in its order; a place built several times (a repeat) is summed."""
    recipe = builder.recipe
    for key, _, path, _ in encoder_stacks(recipe.model):
        encoder = model.readers()[key]
        stream = Stream(encoder.embedding.embedding_dim, columns=encoder.columns)
        yield plan_row(recipe, path, "embedding", [encoder.embedding], stream, tallies)
        yield from block_rows(builder, encoder.stack, {key: BlockCost(each.flops) for key, each in tallies.items()})
    written = [model.embedding] if model.embedding is not None else []
    yield plan_row(recipe, ("model", "decoder"), "embedding", written, Stream(model.width), tallies)
    yield from block_rows(builder, model.decoder, tallies)
    yield plan_row(recipe, ("model", "output"), "output", [model.output], Stream(model.vocabulary), tallies)


def block_rows(builder: RecordingBuilder, stack: nn.Module, tallies: Mapping[int, BlockCost]) -> Iterator[PlanRow]:
    """The rows of all blocks below `stack`."""
    places: dict[Path, list[Block]] = {}
    for block in (each for each in stack.modules() if isinstance(each, Block) and each.path):
        places.setdefault(block.path, []).append(block)
    for path, built in places.items():
        told = plan_row(builder.recipe, path, str(path[-1]), built, built[-1].out, tallies)
        yield replace(
            told,
            loops=built[0].loops,
            name=builder.names[path],
            reads=tuple(builder.reads[path]),
            reads_stream=built[0].reads_stream,
        )


def plan_row(
    recipe: Recipe, path: Path, word: str, built: list[Any], out: Stream, tallies: Mapping[int, BlockCost]
) -> PlanRow:
    """The row of what was built at one place."""
    seen = [tallies.get(id(module), BlockCost()) for module in built]
    return PlanRow(
        source_path(recipe, path),
        word,
        out.width,
        count_parameters(nn.ModuleList(built)),
        sum(each.flops for each in seen),
        sum(each.state_bytes for each in seen),
        columns=out.columns,
        place=path,
    )


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model learns, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class RecordingSite(Site):
    """A site that notes in `asked` every name and memory that the block standing on it looks up."""

    asked: dict[str, None] = field(default_factory=dict)

    def named(self, name: str, setting: str) -> Named:
        """As Site says."""
        self.asked[name] = None
        return super().named(name, setting)

    def memory(self, name: str | None, setting: str = "from") -> str:
        """As Site says."""
        found = super().memory(name, setting)
        self.asked[found] = None
        return found

    def dry_build(self, setting: Path, blocks: Sequence[Any], **changes: Any) -> Stack:
        """As Site says; what is thrown away has asked for nothing."""
        return super().dry_build(setting, blocks, asked={}, **changes)


@dataclass
class RecordingBuilder(Builder):
    """A builder that keeps, by the path of each block, its name and what it reads: `prev.x`, `encoder.x`, `input`."""

    reads: dict[Path, dict[str, None]] = field(default_factory=dict)
    names: dict[Path, str] = field(default_factory=dict)

    def block(self, site: Site, word: str, settings: Mapping[str, Any]) -> Block:
        """As Builder says."""
        self.names[site.path] = settings.get("as") or ""
        asked = self.reads.setdefault(site.path, {})
        if isinstance(site, RecordingSite):
            return super().block(replace(site, asked=asked), word, settings)
        known = {each.name: getattr(site, each.name) for each in fields(site)}
        return super().block(RecordingSite(**known, asked=asked), word, settings)

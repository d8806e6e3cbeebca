"""The contract of every block: state in, state out. Read this file first.

One method carries training, prefill, one-token decoding, carried state and copied state: `forward`
takes any number of positions and the state before them, and returns as many outputs and the state
after them.

Tensor letters, the same in the whole project:
    B batch   T target time   S source time   D width
    W grid columns   H heads   K beams   V vocabulary

The four laws (`composer.testing` checks them, and more, over every block and every recipe):
    1. Chunks. On a causal site, cutting the positions into chunks of any size gives the same
       outputs and the same last state.
    2. Padding. A masked position never affects an output or a state. Padding is on the right of
       its chunk, so counters are per row.
    3. In an encoder x is the whole sequence and the state is the one that `start` returns; the last
       state is the state after each row's last real position.
    4. Packing. If a row has several documents, no output and no gradient of one depends on another.

State is a value: a tensor or a tuple of states, every leaf with the batch first; `()` of a block
that keeps nothing from one position to the next, which defines no `start`. Nothing is kept on
`self`, and nothing is changed in place; a cache that grows does so by `kv_cache.append`, where no
other state sees it. A leaf that a step does not change is handed on as the same tensor: a beam
search then knows that it need not be reordered. No `.item()`, no `.cpu()`, no shape that depends on
a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from blocks.core.documents import Documents
from blocks.core.fixes import Fix as Fix
from blocks.core.fixes import Remove as Remove
from blocks.core.fixes import Rename as Rename
from blocks.core.fixes import Set as Set
from blocks.core.fixes import as_fix
from blocks.core.fixes import remove as remove
from blocks.core.fixes import write as write
from blocks.core.records import Path as Path
from blocks.core.records import Penalties as Penalties
from blocks.core.records import Record as Record
from blocks.core.records import Records as Records
from blocks.core.records import Reduction as Reduction
from blocks.core.records import reduce_penalties as reduce_penalties
from blocks.core.settings import Blocks as Blocks
from blocks.core.settings import Bounds as Bounds
from blocks.core.settings import Branches as Branches
from blocks.core.settings import Chunk as Chunk
from blocks.core.settings import Count as Count
from blocks.core.settings import Distinct as Distinct
from blocks.core.settings import Few as Few
from blocks.core.settings import InitialState as InitialState
from blocks.core.settings import Kind as Kind
from blocks.core.settings import LargeCount as LargeCount
from blocks.core.settings import Memories as Memories
from blocks.core.settings import Memory as Memory
from blocks.core.settings import Name as Name
from blocks.core.settings import NameList as NameList
from blocks.core.settings import NonNegative as NonNegative
from blocks.core.settings import NonNegativeInt as NonNegativeInt
from blocks.core.settings import Positive as Positive
from blocks.core.settings import PositiveProportion as PositiveProportion
from blocks.core.settings import Proportion as Proportion
from blocks.core.settings import Rate as Rate
from blocks.core.settings import ShortKernel as ShortKernel
from blocks.core.stream import Stream as Stream

if TYPE_CHECKING:
    from blocks.core.attention_parts import AttentionParts
    from blocks.core.scope import Scope
    from blocks.core.stack import Stack

State = Any
"""A Tensor or a tuple of States; every leaf has the batch first; `()` where there is none."""


# ------------------------------------------------------------------------------------------- what
# is known before data


class Named(NamedTuple):
    """A stream that has a name, and the kind of its block's state (`()`: nothing that could be
    copied).
    """

    stream: Stream
    state_kind: tuple[object, ...] = ()


class BlockError(ValueError):
    """A block cannot stand where the recipe puts it. It knows no YAML: the builder adds file, line
    and column.

    `setting` is the setting at fault ("" for the block itself), `inside` the path in it of a block
    of a stack, `code` the error's code, `fix` what to write instead: in words, or as
    `write("heads", 4)` and `remove("heads")`, which a program can apply.
    """

    def __init__(
        self,
        setting: str,
        message: str,
        *,
        fix: str | Fix = "",
        code: str = "setting",
        inside: Path = (),
    ) -> None:
        super().__init__(message)
        self.inside = inside
        self.setting, self.message, self.code = setting, message, code
        self.fix = as_fix(fix)


class NoEffect(BlockError):
    """A setting changes nothing beside the others: a fault where it is written, a warning where it
    is a default.

    The builder then goes on without the setting, and so may a program: whatever the words of `fix`
    are, it removes it.
    """

    def __init__(self, setting: str, message: str, *, fix: str | Fix = "") -> None:
        words = as_fix(fix).text or f"remove `{setting}`"
        super().__init__(setting, message, fix=Fix(words, Remove((setting,))), code="unused")


@dataclass(frozen=True)
class Site:
    """Where a block stands: all that its constructor may know.

    `causal` is the reason why the block may not look ahead ("" where it may): "a decoder",
    "`recurrent`". `width` is `model.width`. Every name and memory is looked up here, so that a
    fault is found where it stands.
    """

    stream: Stream
    width: int
    names: Scope
    memories: Mapping[str, Named] = field(default_factory=dict)
    encoders: Sequence[str] = ()
    causal: str = ""
    path: Path = ()
    builder: Callable[[Site, Sequence[Any]], Stack] | None = None
    dry_builder: Callable[[Site, Sequence[object]], Stack] | None = None
    shared_stacks: Callable[[Site, str, bool], Stack] | None = None

    def stack(self, setting: Path, blocks: Sequence[object], **changes: Any) -> Stack:
        """Build the stack written under `setting` of this block, for this site (with `changes` to
        it).
        """
        if self.builder is None:
            raise BlockError(str(setting[0]), "a stack needs a builder, and this site has none")
        return self.builder(replace(self, path=(*self.path, *setting), **changes), blocks)

    def dry_build(self, setting: Path, blocks: Sequence[object], **changes: Any) -> Stack:
        """Build a stack on the meta device, its faults ignored, to learn widths from it and throw
        it away.
        """
        if self.dry_builder is None:
            raise BlockError(str(setting[0]), "a stack needs a builder, and this site has none")
        return self.dry_builder(replace(self, path=(*self.path, *setting), **changes), blocks)

    def named_stack(self, name: str, copy: bool) -> Stack:
        """Build the stack called `name` under `stacks:`; its uses share parameters unless `copy`.
        Raises BlockError.
        """
        if self.shared_stacks is None:
            raise BlockError("stack", f"no stack is called `{name}`", code="name")
        return self.shared_stacks(self, name, copy)

    def read(self, name: str, setting: str) -> Stream:
        """Return the stream called `name`: an earlier output here, `input`, or a memory's. Raises
        BlockError.
        """
        return self.named(name, setting).stream

    def named(self, name: str, setting: str) -> Named:
        """Return the output or memory called `name`. Raises BlockError if none is readable."""
        if name in self.memories:
            return self.memories[name]
        readable = []
        for output, named in self.names.visible.items():
            if named.stream.length_ratio == 0 or named.stream.same_length(self.stream):
                readable.append(output)
        for memory, named in self.memories.items():
            if named.stream.length_ratio == 0:
                readable.append(memory)
        return self.names.read(name, setting, readable)

    def memory(self, name: str | None, setting: str = "from") -> str:
        """Return the memory to read: `name`, or the only encoder's. Raises BlockError for none, or
        several.
        """
        if name is not None:
            return self._known_memory(name, setting)
        if not self.encoders:
            message, fix = (
                "there is nothing to read here: ",
                "give the model an encoder, or use `self_attention`",
            )
            if self.causal:
                raise BlockError("", f"{message}no encoder comes before", code="memory", fix=fix)
            message += "an encoder has no memory of its own, and no encoder comes before"
            fix = "write `self_attention`, or with `from` the name of another encoder"
            raise BlockError("", message, code="memory", fix=fix)
        if len(self.encoders) > 1:
            listed = ", ".join(f"`{encoder}`" for encoder in self.encoders)
            message = (
                f"there are {len(self.encoders)} memories to read ({listed}), and no `{setting}`"
                " chooses one"
            )
            raise BlockError("", message, code="memory", fix=write(setting, self.encoders[0]))
        return self.encoders[0]

    def _known_memory(self, name: str, setting: str) -> str:
        if name not in self.memories:
            add = (
                "write the name of an encoder that comes before; of two that read each other none"
                " does"
            )
            raise self.names.unknown_name(name, setting, self.memories, "no memory", add)
        return name

    def sequence(self, block: str) -> Stream:
        """Return the stream that arrives. Raises BlockError where that is a grid, which `block`
        cannot take.
        """
        if self.stream.grid:
            message = f"`{block}` works on a sequence, and a grid arrives"
            fix = "put `- select_column: 0`, `- sum_columns` or `- flatten` before it"
            raise BlockError("", message, code="kind", fix=fix)
        return self.stream

    def grid(self, block: str) -> Stream:
        """Return the stream that arrives. Raises BlockError where that is a sequence, which `block`
        cannot take.
        """
        if not self.stream.grid:
            has_grid = any(memory.stream.grid for memory in self.memories.values())
            fix = (
                Fix("put `active_memory` before it")
                if has_grid
                else remove(rest=": nothing here leaves a grid")
            )
            fix = fix if self.causal else Fix("put `- grid: 4` before it")
            raise BlockError(
                "", f"`{block}` works on a grid, and a sequence arrives", code="kind", fix=fix
            )
        return self.stream

    def require_repeat(self, setting: str) -> None:
        """Raise NoEffect for a setting that counts the iterations of a `repeat`, where none is
        around the block.
        """
        # whether the uses of a named stack are inside a repeat is not known here
        in_model, in_named_stack = self.path[:1] == ("model",), self.path[1:2] == ("stacks",)
        if in_model and not in_named_stack and "repeat" not in self.path:
            message = "there is no `repeat` around it, so no iteration to count"
            fix = f"remove `{setting}`, or move this block into the stack of a `repeat`"
            raise NoEffect(setting, message, fix=fix)

    def require_full_context(self, setting: str, what: str, fix: str | Fix) -> None:
        """Raise BlockError on a causal site: `what` names what looks ahead, `fix` says what to
        write instead.
        """
        if self.causal:
            raise BlockError(
                setting,
                f"{self.causal} may not read the future, and {what} does",
                code="causality",
                fix=fix,
            )


# ------------------------------------------------------------------------------------------- what
# flows beside the data


class Output(NamedTuple):
    """A memory, or a named output."""

    states: Tensor  # (B, T, D) or (B, T, W, D)
    mask: Tensor  # (B, T) or (B, T, W), True = a real token
    last: State = ()  # of a named block: its state after each row's last real position
    # of a memory whose rows are packed: where its documents are
    documents: Documents | tuple[()] = ()


NamedOutputs = Mapping[str, Output]
"""Outputs by the names that `as` gives them."""


class Context(NamedTuple):
    """What flows beside the stream: this chunk's mask, the named outputs so far, the memories.

    `records` and `penalties` are None unless somebody asked; `progress` is the fraction of training
    done; `facts` are the places in a story of what bears the answer, in order, -1 for none, and are
    known in training only; `path` is the block's, known where there are records; `iterations` has
    the iteration of each `repeat` around it, outermost first;
    `memo` has the results of `once`, which are those of one call of the model. Where rows are
    packed, `starts` is True where a document begins, as every row does; `documents` says the same,
    for who must not wait for the device.
    """

    mask: Tensor  # (B, T) bool, True = a real token; of a grid (B, T, W)
    named_outputs: Mapping[str, Output]
    memories: Mapping[str, Output]
    records: Records | None = None
    penalties: Penalties | None = None
    progress: Tensor | None = None
    facts: Tensor | None = None  # (B, F)
    path: Path = ()
    iterations: tuple[Any, ...] = ()
    memo: dict[Any, Any] | None = None
    starts: Tensor | None = None  # (B, T) bool
    documents: Documents | None = None

    @property
    def iteration(self) -> int:
        """That of the innermost `repeat`, from 0; 0 without one.

        Raises BlockError in a program for any number of iterations.
        """
        number = self.iterations[-1] if self.iterations else 0
        if not isinstance(number, int):
            message = "what depends on the number of the iteration fits no program for any number"
            raise BlockError("", message, fix="write a number for `times`, or export another model")
        return number

    def once(self, function: Callable[..., object], *arguments: Any) -> Any:
        """Return `function(*arguments)`, computed once for all blocks that ask with these tensors.

        For values that need no gradient and are alike in all layers: masks, positions, angles.
        """
        # the compiler finds what is computed twice
        if torch.compiler.is_compiling() or self.memo is None:
            return function(*arguments)
        key: tuple[object, ...] = (function,)
        for value in arguments:
            key += (id(value) if isinstance(value, Tensor) else value,)
        if key not in self.memo:
            # which keeps their ids from being used again
            self.memo[key] = function(*arguments), arguments
        return self.memo[key][0]

    def read(self, name: str) -> Output:
        """Return the output or memory called `name`; `Site.read` has checked that it exists."""
        return self.memories[name] if name in self.memories else self.named_outputs[name]

    def with_outputs(self, outputs: Mapping[str, Output]) -> Context:
        """Return a context in which `outputs` can be read too; this one stays as it is."""
        return self._replace(named_outputs={**self.named_outputs, **outputs})

    def record(self, name: str, value: Tensor) -> None:
        """Record a tensor (B, T, ...) for reports; free when nobody asked for records."""
        if self.records is not None:
            self.records.setdefault(Record(self.path, self.iterations, name), []).append(
                value.detach()
            )

    def penalty(self, name: str, value: Tensor, reduction: Reduction = "mean") -> None:
        """Add a cost to the training loss; of several with one name their mean, or their sum where
        each is a part of it, as those of the chunks of a row. It does nothing outside training.

        value: The cost of each row (B,), whose mean counts, or a scalar, a cost of the weights
        alone: then a batch that is dealt out to several devices costs what it costs on one.
        """
        if self.penalties is not None:
            self.penalties.setdefault((name, reduction), []).append(value)


# ------------------------------------------------------------------------------------------- the
# block


Result = tuple[Tensor, State] | tuple[Tensor, State, NamedOutputs]
"""What `forward` returns: the output, the state after it and, of a block that holds stacks, what is
named in them.
"""


class Block(nn.Module):
    """One part of a stack. A subclass states `out` in its constructor and defines `forward`.

    The constructor is the schema: `def __init__(self, site: Site, *, heads: Count = 8)`. Its
    keyword-only arguments, their types and defaults, and the section `Settings:` of the class's
    docstring become the JSON Schema.
    """

    out: Stream
    path: Path = ()
    state_kind: tuple[object, ...] = ()
    loops: str = ""  # why a `recurrent` runs it position by position, if it does
    # how many times as long as the source an answer may be, if it has to fit in here
    max_target_ratio: float = 0.0
    # how many positions of a sequence it can tell apart, if not all
    max_positions: int | None = None
    family: str = "other"  # the heading under which `seqcomposer blocks` lists it
    reads_stream: bool = True  # whether anything depends on the stream that arrives
    # whether it keeps packed documents apart itself, as what looks at one position does
    packs: bool = False
    not_packed: str = ""  # why no row of several documents may reach it, if so

    def __call__(self, x: Tensor, state: State, context: Context) -> Any:
        """Run `forward`, its hooks too; over documents side by side where rows are packed, unless
        the block `packs`.
        """
        if context.starts is None or self.packs:
            return super().__call__(x, state, context)
        from blocks.core.packing import run_documents  # late: it needs the contract

        return run_documents(super().__call__, self.start, x, context)

    def start(self, x: Tensor, context: Context) -> State:
        """Return the state before the first position; `()`: nothing is kept. x: any (B, 1, .), for
        batch and dtype.
        """
        return ()

    def forward(self, x: Tensor, state: State, context: Context) -> Result:
        """Run any number of positions from a state. x: (B, T, D) -> (B, T, out.width), and the
        state after them.

        A block that holds stacks returns as a third value what is named inside them, so that later
        blocks can read it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def attention_parts(self) -> AttentionParts | None:
        """Return its maps to queries, keys and values and back, as views of parameters; else None.

        Where a block takes the place of an attention, `train --from` copies those that fit.
        """
        return None

    def make_room(self, state: State, length: int) -> State:
        """Return the state with room for what so many positions add to it.

        For a loop of which a program runs any number of them, whose state must not grow. Only what
        adds to its state, or holds stacks, redefines it.
        """
        return state

    def set_progress(self, progress: float) -> None:
        """Change buffers by the share of the training that is done, 0 to 1; called between two
        training steps.
        """

    def finish_step(self, total: Callable[[Tensor], Tensor]) -> None:
        """Change buffers by what a training step left in them; called once a step, after its
        gradients, on each device.

        total: Sum a tensor over all devices.
        """

    def initial_outputs(self, x: Tensor, state: State) -> dict[str, Tensor]:
        """Return the outputs that `prev` reads at the first position, by name: (B, 1, .) each.

        x and state are those of `start` and its result. Only a block that holds stacks redefines
        it.
        """
        return {}

    def mask(self, mask: Tensor) -> Tensor:
        """Return the output's mask; only a block that changes the length or the kind of the stream
        redefines it.
        """
        return mask

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        """Return the output that `prev` reads at the first position: (B, 1, out.width).

        Zeros, unless the block starts from something else.
        """
        return x.new_zeros(x.shape[0], 1, self.out.width)

"""From a frozen recipe to a model: the one walk that builds with real memory and, on the meta device, plans.

Building and shape inference are one: each block's constructor is told the stream that arrives, and says which leaves.
"""

from __future__ import annotations

import keyword
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from blocks.core.contract import Block, BlockError, Context, Named, Path, Site, State, Stream
from blocks.core.scope import Scope
from blocks.core.stack import Stack
from composer.errors import Fault, RecipeError
from composer.model.encoder_decoder import (
    AnyEmbedding,
    AnyOutput,
    Embedding,
    Encoder,
    EncoderDecoder,
    IdentityOutput,
    LinearEmbedding,
    LinearOutput,
    OneHot,
    SigmoidOutput,
)
from composer.model.vocabulary import NUM_SPECIAL, bits_features
from composer.recipe.registry import block_class

if TYPE_CHECKING:  # an exported model is built without recipe files: from the sections alone
    from composer.recipe.recipe import Recipe

AUTHOR = "its author finds the fault with `composer.testing.check_block`"


MOST_BLOCKS = 10_000
"""Blocks that are built for one model; those count too that only show how wide something is."""


MOST_PARAMETERS = 100_000
"""Matrices and vectors that one model learns."""


NO_MEMORY = "a single matrix here takes more memory than there is"


class ModelTooLarge(Exception):
    """A model that would take for ever to build, or more memory than there is. `path` is the block that is too much."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.message, self.path = message, path


@dataclass
class ModelSizeGuard:
    """What has been built so far of one model, with all that was built for it and thrown away."""

    blocks: int = 0
    parameters: int = 0
    octets: int = 0
    held: list[weakref.ref[torch.Tensor]] = field(default_factory=list)

    def block(self, path: Path) -> None:
        """Counts a block. Raises TooLarge."""
        self.blocks += 1
        if self.blocks > MOST_BLOCKS:
            raise ModelTooLarge(f"the model has more than {MOST_BLOCKS:,} blocks", outermost_block(path))

    @contextmanager
    def limits(self) -> Iterator[None]:
        """While entered, every parameter of a module is counted. Raises TooLarge, before a parameter has its values."""
        hook = nn.modules.module.register_module_parameter_registration_hook(self._parameter)
        try:
            yield
        finally:
            hook.remove()

    def _parameter(self, module: nn.Module, name: str, parameter: torch.Tensor) -> None:
        self.parameters += 1
        if self.parameters > MOST_PARAMETERS:
            raise ModelTooLarge(f"the model has more than {MOST_PARAMETERS:,} matrices and vectors")
        if parameter.device.type == "cpu":
            self.octets += parameter.nbytes
            self.held.append(weakref.ref(parameter))
        memory = available_memory()
        if self.octets > memory and self._recounted() > memory:
            message = f"the parameters take more than the {memory / 2**30:.3g} GiB of memory that this machine has"
            raise ModelTooLarge(message)

    def _recounted(self) -> int:
        """The bytes of what is still there: tied and shared parameters have given way to others."""
        there = {id(each): each for ref in self.held if (each := ref()) is not None}
        self.held = [weakref.ref(each) for each in there.values()]
        self.octets = sum(each.nbytes for each in there.values())
        return self.octets


@contextmanager
def oom_as_too_large() -> Iterator[None]:
    """While entered, memory that nobody could give is told as TooLarge."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ModelTooLarge(NO_MEMORY) from error


@cache
def available_memory() -> float:
    """The bytes of memory of this machine, or of the container that this runs in; infinitely many where unknown."""
    try:
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(found, float(file.read()))
    except (OSError, ValueError):  # no container, or one without a limit: `max`
        return found


def outermost_block(path: Path) -> Path:
    """The block of an encoder, a decoder or a named stack in which a path ends."""
    return next((path[: at + 2] for at, step in enumerate(path) if isinstance(step, int)), path)


def is_out_of_memory(error: Exception) -> bool:
    """Whether so much memory was asked for that there is no use in asking."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "not enough memory" in str(error)


def build(recipe: Recipe, vocabularies: Mapping[str, int]) -> EncoderDecoder:
    """The model of `recipe`, with the sizes of the vocabularies by data key. Raises RecipeError with every fault."""
    builder = Builder(recipe)
    model = builder.model(vocabularies)
    builder.finish()
    return model


class StandIn(Block):
    """Takes the place of a block at fault, so that the faults after it are found too."""

    def __init__(self, out: Stream) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Any, state: State, context: Context) -> tuple[Any, State]:
        raise BlockError("", "a model with faults cannot run")


@dataclass
class Builder:
    """Builds the stacks of one recipe and collects their faults.

    `widened` has, by the path of a stack, the last block in it that changes the width; `given` the blocks by the names
    that they have in the encoder or decoder that is being built.
    """

    recipe: Recipe
    faults: list[Fault] = field(default_factory=list)
    shelved: dict[str, Stack] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    size: ModelSizeGuard = field(default_factory=ModelSizeGuard)
    widened: dict[Path, Path] = field(default_factory=dict)
    given: dict[str, Path] = field(default_factory=dict)

    def finish(self) -> None:
        """Raises RecipeError where anything was at fault, each fault once."""
        if self.faults:
            raise RecipeError(sorted(set(self.faults)))

    def fault(self, code: str, path: Path, message: str, hint: str = "") -> None:
        self.faults.append(self.recipe.fault(code, path, message, hint))

    # ------------------------------------------------------------------------------------------- the model

    def model(self, vocabularies: Mapping[str, int]) -> EncoderDecoder:
        """The encoders and the decoder. Raises RecipeError where they would be too large to be built here."""
        try:
            with self.size.limits(), oom_as_too_large():
                return self.parts(vocabularies)
        except ModelTooLarge as large:
            self.fault(
                "size",
                large.path or ("model", "width"),
                large.message,
                "make the model smaller: fewer or narrower blocks, a smaller vocabulary, less often repeated",
            )
            raise RecipeError(sorted(set(self.faults))) from None

    def parts(self, vocabularies: Mapping[str, int]) -> EncoderDecoder:
        """Encoders in the order of their names, then the decoder; a later encoder may read an earlier one."""
        settings = self.recipe.model
        self.check_names(settings)
        encoders: dict[str, Encoder] = {}
        memories: dict[str, Named] = {}
        tie = set(settings["output"]["tie"])
        target = self.embedding("target", vocabularies["target"])
        for key, memory, path, stack in encoder_stacks(settings):
            embedding = target if "source" in tie else self.embedding(key, vocabularies[key])
            arriving = self.arriving(key, embedding)
            site, built = self.top(path, stack, arriving, memories, encoders, causal="")
            memories |= {memory: Named(built.out)} | {f"{memory}.{n}": named for n, named in site.names.visible.items()}
            encoders[key] = Encoder(memory, embedding, built, arriving.columns)
        arriving = self.arriving("target", target)
        top, decoder = self.top(("model", "decoder"), settings["decoder"], arriving, memories, encoders, "a decoder")
        output = self.output(decoder.out, vocabularies["target"])
        if tie:
            self.check_tie(decoder.out, vocabularies, encoders)
            output.weight = target.weight
        reads_tokens = decoder.reads_stream or "input" in top.names.reads
        return EncoderDecoder(
            encoders,
            target if reads_tokens or tie else None,
            decoder,
            output,
            arriving.width,
            settings["output"]["length"],
        )

    def check_names(self, settings: Mapping[str, Any]) -> None:
        """Raises RecipeError where an encoder would have the name of what every torch module has, `forward` or such."""
        taken = [path for key, _, path, _ in encoder_stacks(settings) if hasattr(nn.ModuleDict(), key)]
        for path in taken:
            self.fault(
                "name",
                path,
                f"`{path[-1]}` is a word of PyTorch's and cannot be an encoder's name",
                "choose another name",
            )
        if taken:
            raise RecipeError(sorted(set(self.faults)))

    def embedding(self, key: str, vocabulary: int) -> AnyEmbedding:
        """What the ids of one side of the data become."""
        kind = self.recipe.model["embedding"]
        if kind == "one_hot":
            return OneHot(vocabulary)
        if kind == "linear":
            known = bits_features(self.recipe.dataset["tokenizer"]["bits"], key == "target")
            return LinearEmbedding(known, self.recipe.model["width"])
        return Embedding(vocabulary, self.recipe.model["width"])

    def arriving(self, key: str, embedding: AnyEmbedding) -> Stream:
        """The stream with which a stack begins: a sequence, or of a story the grid of its sentences."""
        columns = words_per_sentence(self.recipe, key)
        return Stream(embedding.embedding_dim, grid=columns > 0, columns=columns)

    def output(self, out: Stream, vocabulary: int) -> AnyOutput:
        """What maps the decoder's end to the vocabulary."""
        if out.grid:
            self.fault(
                "kind",
                ("model", "decoder"),
                "the decoder ends with a grid, and the output reads a sequence",
                "end it with `- select_column: 0`",
            )
        kind = self.recipe.model["output"]["kind"]
        if kind == "sigmoid":
            return SigmoidOutput(out.width, self.recipe.dataset["tokenizer"]["bits"]["size"])
        if kind == "linear":
            return LinearOutput(out.width, vocabulary)
        if out.width != vocabulary - NUM_SPECIAL:
            self.fault(
                "width",
                ("model", "output", "kind"),
                f"the decoder ends {out.width} wide, and there are {vocabulary - NUM_SPECIAL} tokens to choose from",
                "end it with what makes one logit a token, or write `kind: linear`",
            )
        return IdentityOutput(out.width)

    def top(
        self,
        path: Path,
        stack: Sequence[Any],
        arriving: Stream,
        memories: Mapping[str, Named],
        encoders: Mapping[str, Encoder],
        causal: str,
    ) -> tuple[Site, Stack]:
        """The outermost stack of an encoder or decoder, and the site at which it stands."""
        readable = [encoder.memory for encoder in encoders.values()]
        reserved = [memory for _, memory, _, _ in encoder_stacks(self.recipe.model)]
        self.given.clear()
        names = Scope.root(arriving, declared=set(output_names(stack)), reserved=reserved)
        site = Site(arriving, self.recipe.model["width"], names, dict(memories), readable, causal, path)
        return site, self.stack(site, stack)

    def check_tie(self, out: Stream, vocabularies: Mapping[str, int], encoders: Mapping[str, Encoder]) -> None:
        """Faults of a tied output: widths that differ, vocabularies that are not the same."""
        path: Path = ("model", "output", "tie")
        width = self.recipe.model["width"]
        if out.width != width:
            self.fault(
                "width",
                path,
                f"the decoder ends {out.width} wide, and the tied matrix is {width} wide",
                f"end the decoder with `- linear: {width}`",
            )
        joint = all(vocabularies[key] == vocabularies["target"] for key in encoders) and self.recipe.joint
        if "source" in self.recipe.model["output"]["tie"] and not joint:
            self.fault(
                "tie",
                path,
                "source and target have vocabularies of their own, and `tie` needs a joint one",
                "set `joint: true` in `data.tokenizer`, or tie only the target",
            )

    # ------------------------------------------------------------------------------------------- stacks and blocks

    def stack(self, site: Site, written: Sequence[Any]) -> Stack:
        """The blocks of one list in order, each told what arrives from the one before."""
        built: list[Block] = []
        names: list[str | None] = []
        reads: list[frozenset[str]] = []
        gives: list[frozenset[str]] = []
        site = replace(site, builder=self.stack, dry_builder=self.dry_build, shared_stacks=self.shared_stack)
        stream = site.stream
        for index, entry in enumerate(written):
            ((word, settings),) = entry.items()
            here = replace(site, stream=stream, path=(*site.path, index, word))
            read, taken = len(site.names.reads), frozenset(site.names.taken)
            block = self.block(here, word, settings)
            name = settings.get("as")
            if name is not None:
                self.give(here, name, block)
            built.append(block)
            names.append(name)
            reads.append(frozenset(site.names.reads[read:]))
            gives.append(frozenset(site.names.taken - taken))
            if block.out.width != stream.width:
                self.widened[site.path] = here.path
            stream = block.out
        return Stack(site.stream, built, names, reads, gives)

    def dry_build(self, site: Site, written: Sequence[Any]) -> Stack:
        """The same stack on the meta device, its faults passed over; nothing of it stays here."""
        scratch = DryBuilder(self.recipe, shelved=dict(self.shelved), opened=list(self.opened), size=self.size)
        with torch.device("meta"):
            return scratch.stack(site, written)

    def block(self, site: Site, word: str, settings: Mapping[str, Any]) -> Block:
        """One block; a stand-in, and a fault, where it cannot be built."""
        self.size.block(site.path)
        chosen = {python_name(key): value for key, value in settings.items() if key != "as"}
        try:
            block = block_class(word)(site, **chosen)
            check_block_attributes(block)
        except BlockError as error:
            setting = (error.setting,) if error.setting else ()
            told = error.message + (self.elsewhere(site, error.message) if error.code == "width" else "")
            self.fault(error.code, (*site.path, *setting), told, error.fix)
            block = StandIn(site.stream)
        except ModelTooLarge as large:
            large.path = large.path or site.path
            raise
        except Exception as error:  # a plug-in's constructor may raise anything, and torch's refuses overflowing sizes
            if is_out_of_memory(error):
                raise ModelTooLarge(NO_MEMORY, site.path) from error
            told = f"`{word}` cannot be built: {type(error).__name__}: {error}"
            self.fault("block", site.path, told, f"make its numbers smaller, or {AUTHOR}")
            block = StandIn(site.stream)
        block.path = site.path
        return block

    def elsewhere(self, site: Site, message: str) -> str:
        """The other places of a fault between widths: what changes the width inside, and the names that are told."""
        inside = [
            path
            for stack, path in self.widened.items()
            if stack[:-1] == site.path or (stack[:-2] == site.path and stack[-2] == "branches")
        ]
        named = [path for name, path in self.given.items() if f"`{name}`" in message]
        nodes = [(path[-1], self.recipe.written_at(path)[0].place) for path in (*inside, *named)]
        here = self.recipe.written_at(site.path)[0].place.file
        return "".join(
            f"; `{word}` stands in {'' if at.file == here else f'{at.file}, '}line {at.line}" for word, at in nodes
        )

    def give(self, site: Site, name: str, block: Block) -> None:
        """Lets later blocks read `block` as `name`."""
        try:
            site.names.define(name, Named(block.out, block.state_kind))
            self.given[name] = site.path
        except BlockError as error:
            self.fault(error.code, (*site.path, "as"), error.message, error.fix)

    def shared_stack(self, site: Site, name: str, copy: bool) -> Stack:
        """The stack called `name` under `stacks:`, built for this site; all its uses but copies share parameters."""
        stacks = self.recipe.model["stacks"]
        if name not in stacks:
            raise site.names.unknown_name(name, "stack", stacks, what="no stack")
        if name in self.opened:
            raise BlockError(
                "stack",
                f"`{name}` stands inside itself",
                code="cycle",
                fix="write `repeat` to run a stack several times",
            )
        known = len(self.faults)
        self.opened.append(name)
        stack = self.stack(replace(site, path=("model", "stacks", name)), stacks[name])
        self.opened.remove(name)
        if copy or len(self.faults) > known:
            return stack
        if not share_parameters(stack, self.shelved.setdefault(name, stack)):
            raise BlockError(
                "stack",
                f"`{name}` is used where another stream arrives than at its first use, so its "
                "parameters cannot be shared",
                code="width",
                fix="write `copy: true`",
            )
        return stack


class DryBuilder(Builder):
    """Builds what is thrown away: its faults will be told when the stack is built in earnest."""

    def fault(self, code: str, path: Path, message: str, hint: str = "") -> None:
        pass


def check_block_attributes(block: Block) -> None:
    """Raises TypeError where a constructor has left out what every block needs."""
    if "_modules" not in vars(block):
        raise TypeError("its constructor does not call `super().__init__()`")
    if not isinstance(getattr(block, "out", None), Stream):
        raise TypeError("it does not say in `self.out` which stream it leaves")


def share_parameters(stack: nn.Module, first: nn.Module) -> bool:
    """Gives `stack` the parameters of `first`, built of the same blocks; False where their shapes differ."""
    mine, theirs = dict(stack.named_parameters()), dict(first.named_parameters())
    if {key: each.shape for key, each in mine.items()} != {key: each.shape for key, each in theirs.items()}:
        return False
    for key, parameter in theirs.items():
        module, _, name = key.rpartition(".")
        setattr(stack.get_submodule(module), name, parameter)
    return True


def encoder_stacks(model: Mapping[str, Any]) -> Iterator[tuple[str, str, Path, list[Any]]]:
    """Of each encoder: its key in the data, its memory's name, its path in the recipe and its stack."""
    if model.get("encoder") is not None:
        yield "source", "encoder", ("model", "encoder"), model["encoder"]
    for name, stack in (model.get("encoders") or {}).items():
        yield name, name, ("model", "encoders", name), stack


def words_per_sentence(recipe: Recipe, key: str) -> int:
    """How many words a sentence of this side of the data has room for; 0 where it is no story."""
    stories = recipe.dataset.get("babi")
    return int(stories["words"]) if stories and key == "story" else 0


def output_names(written: Any) -> Iterator[str]:
    """Every name that `as` gives anywhere in a stack."""
    if isinstance(written, Mapping):
        if isinstance(written.get("as"), str):
            yield written["as"]
        for value in written.values():
            yield from output_names(value)
    elif isinstance(written, list):
        for value in written:
            yield from output_names(value)


def python_name(key: str) -> str:
    """The keyword of a setting: `from` is `from_`, as every word that Python keeps for itself."""
    return f"{key}_" if keyword.iskeyword(key) else key

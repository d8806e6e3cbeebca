"""Build a model from a canonical recipe, with memory or, to plan it, on the meta device.

Building and shape inference are one: each block's constructor gets the stream that arrives, and
sets the one it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Named,
    NoEffect,
    Path,
    Site,
    State,
    Stream,
)
from blocks.core.fixes import Fix, Remove, remove, write
from blocks.core.initial_state import UNKNOWN_STATE
from blocks.core.packing import packing_error
from blocks.core.scope import FOLLOWS, Scope
from blocks.core.stack import Stack
from composer.errors import BlockCodeErrors, Fault, RecipeError, error_of_code
from composer.model.ctc import Ctc, CtcModel, JointModel
from composer.model.encoder_decoder import (
    Embedding,
    Encoder,
    EncoderDecoder,
    OutputHead,
    TokenEmbedding,
)
from composer.model.features import FeatureInput, feature_settings, feature_shape
from composer.model.output_heads import BEYOND_VOCABULARY, LinearOutput
from composer.model.weights import (
    NO_MEMORY,
    ModelSizeGuard,
    ModelTooLarge,
    is_out_of_memory,
    share_parameters,
)
from composer.recipe.choices import TokenPlace
from composer.recipe.model_sections import Model
from composer.recipe.recipe import Recipe
from composer.recipe.registry import block_class
from composer.recipe.section import BlockSpec, output_names, python_name, read_stack

DEPENDS_ON_PLACE = ("name", "memory", "kind", "causality", "pace")
"""Codes of faults that a stack may have in one place and not in another."""
ASK_AUTHOR = "its author finds the fault with `composer.check_block`"
"""Hint for a fault that no recipe can avoid."""


def build(recipe: Recipe, vocabularies: Mapping[str, int]) -> EncoderDecoder:
    """Build the model of `recipe`, with the sizes of the vocabularies by data key.

    Raises RecipeError, all faults.
    """
    return Builder(recipe).model(vocabularies)


class IdleSetting(NamedTuple):
    """Why a setting changes nothing, and the fix."""

    reason: str
    fix: Fix


class Use(NamedTuple):
    """A use of a named stack, and whether it is a copy with parameters of its own."""

    path: Path
    is_copy: bool


class StandIn(Block):
    """Placeholder for a block at fault, so that the faults after it are found too."""

    def __init__(self, out: Stream) -> None:
        super().__init__()
        self.out, self.state_kind = out, UNKNOWN_STATE

    def forward(self, x: Any, state: State, context: Context) -> tuple[Any, State]:
        raise BlockError("", "a model with faults cannot run")


@dataclass
class Builder:
    """Builder of the stacks of one recipe, which collects their faults and warnings.

    `widened` has, by the path of a stack, the last block in it that changes the width;
    `named_paths` the blocks by the names that they have in the encoder or decoder that is being
    built. Of named stacks, `shared` are the first uses, `uses` all of them, and `open_stacks` those
    that are being built. `idle_settings` change nothing, by their paths. `refused` are the memories
    that refused blocks would have left. `is_dry`: count no fault. `at_most`: vocabularies are
    bounds.
    """

    recipe: Recipe
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    idle_settings: dict[Path, IdleSetting] = field(default_factory=dict)
    shared: dict[str, Stack] = field(default_factory=dict)
    open_stacks: list[str] = field(default_factory=list)
    size: ModelSizeGuard = field(default_factory=ModelSizeGuard)
    widened: dict[Path, Path] = field(default_factory=dict)
    named_paths: dict[str, Path] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    is_dry: bool = False
    at_most: bool = False

    def finish(self) -> None:
        """Raise RecipeError if there was any fault, with each fault once."""
        if self.faults:
            raise RecipeError(sorted(set(self.faults)))

    def fault(self, code: str, path: Path, message: str, fix: str | Fix = "") -> None:
        if code == BEYOND_VOCABULARY and self.at_most:
            message += " at most"
        if not self.is_dry and code != FOLLOWS:
            self.faults.append(self.recipe.fault(code, path, message, fix))

    def refuse(self, error: BlockError, path: Path, message: str = "") -> None:
        """Add the fault of something at `path` that cannot be built.

        message: In place of the error's own.
        """
        setting = (error.setting, *error.inside) if error.setting else ()
        self.fault(error.code, (*path, *setting), message or error.message, error.fix.below(path))

    def model(self, vocabularies: Mapping[str, int]) -> EncoderDecoder:
        """Build the encoders and the decoder.

        Raises RecipeError with all faults, or if they are too large for here.
        """
        try:
            with self.size.limits():
                model = self._model(vocabularies)
        except ModelTooLarge as error:
            fix = (
                "make the model smaller: fewer or narrower blocks, a smaller vocabulary, less often"
                " repeated"
            )
            self.fault("size", error.path or ("model", "width"), error.message, fix)
            raise RecipeError(sorted(set(self.faults))) from None
        self.finish()
        return model

    def _model(self, vocabularies: Mapping[str, int]) -> EncoderDecoder:
        self._check_encoder_names()
        output = self.recipe.model.output
        is_ctc_alone = output.ctc is not None and output.ctc.weight == 1
        sides = Sides(self, vocabularies)
        target = None if is_ctc_alone else sides.embedding("target")
        encoders, memories = self._encoders(sides)
        site, decoder = self._decoder(target, memories)
        ctc = self._ctc(site, encoders.values(), vocabularies["target"])
        if ctc is not None and is_ctc_alone:
            return CtcModel(encoders, decoder, ctc, site.stream.width)
        head = self._output_head(decoder.out, vocabularies["target"])
        if sides.tied is not None:
            self._check_tie(decoder.out, vocabularies)
            # of a kind that has a row for each token, or the recipe had been refused
            head.weight = sides.tied.weight
        sides.note_tokens_read("target", site, decoder)
        self._note_idle_ties(sides)
        if "target" not in sides.tokens_read:
            target = None
        parts = encoders, target, decoder, head, site.stream.width
        if ctc is not None and output.ctc is not None:
            return JointModel(*parts, ctc, output.ctc.weight)
        model = EncoderDecoder(*parts, output.length)
        model.begins_after_end = self.recipe.begins_after_end
        return model

    def _encoders(self, sides: Sides) -> tuple[dict[str, Encoder], dict[str, Named]]:
        """Build the encoders by data key, and the memories that they leave by name."""
        encoders: dict[str, Encoder] = {}
        memories: dict[str, Named] = {}
        for key, memory, path, blocks in encoder_stacks(self.recipe.model):
            embedding = sides.embedding(key)
            stream = self._input_stream(key, embedding)
            site, stack = self._outer_stack(path, blocks, stream, memories, causal="")
            self._check_answer_room(path, stream, stack)
            sides.note_tokens_read(key, site, stack)
            self.refused.update(f"{memory}.{name}" for name in site.names.refused)
            memories[memory] = Named(stack.out)
            for name, named in site.names.visible.items():
                memories[f"{memory}.{name}"] = named
            encoders[key] = Encoder(memory, embedding, stack, stream.columns)
        return encoders, memories

    def _decoder(
        self, target: TokenEmbedding | None, memories: Mapping[str, Named]
    ) -> tuple[Site, Stack]:
        model = self.recipe.model
        stream = Stream(model.width) if target is None else self._input_stream("target", target)
        path = ("model", "decoder")
        return self._outer_stack(path, model.decoder or [], stream, memories, causal="a decoder")

    def _check_answer_room(self, path: Path, arriving: Stream, stack: Stack) -> None:
        if not arriving.grid:
            return
        for block in stack.modules():
            if isinstance(block, Block) and block.max_target_ratio:
                message = (
                    "`grid` makes room for an answer after words, and this encoder reads no line of"
                    " words"
                )
                self.fault("kind", path, message, "remove `grid`")
                return

    def _note_idle_ties(self, sides: Sides) -> None:
        for index, side in enumerate(self.recipe.model.output.tie):
            if side not in sides.tokens_read:
                path = ("model", "output", "tie", index)
                fix = Fix(f"remove `{side}`", Remove(path))
                reason = f"nothing reads the tokens of `{side}`"
                self.idle_settings[path] = IdleSetting(reason, fix)

    def _check_encoder_names(self) -> None:
        """Raise RecipeError if an encoder has the name of a module's attribute, `forward` say."""
        for encoder in encoder_stacks(self.recipe.model):
            if hasattr(nn.ModuleDict(), encoder.key):
                message = (
                    f"`{encoder.path[-1]}` is an attribute of PyTorch's modules and cannot be an"
                    " encoder's name"
                )
                self.fault("name", encoder.path, message, "choose another name")
        self.finish()

    def token_embedding(self, key: str, vocabulary: int) -> TokenEmbedding:
        """Return a new embedding of a side's tokens, or of its images, sounds or vectors."""
        embedding = self._embedding_of_kind(key, vocabulary)
        embedding.dropout = self.recipe.model.embedding_dropout
        return embedding

    def _embedding_of_kind(self, key: str, vocabulary: int) -> TokenEmbedding:
        if features := feature_settings(self.recipe.data, key):
            return FeatureInput(*feature_shape(features))
        chosen, width = self.recipe.model.embedding, self.recipe.model.width
        place = TokenPlace(vocabulary, width, self.recipe.data.tokenizer, key == "target")
        try:
            return chosen.build(place)
        except BlockError as error:
            self.refuse(error, chosen.at)
            return Embedding(vocabulary, width)

    def _input_stream(self, key: str, embedding: TokenEmbedding) -> Stream:
        """Return the stream at the start of a stack: a sequence; a grid for a story or an image."""
        stories = self.recipe.data.babi
        columns = int(stories.words) if stories and key == "story" else embedding.columns
        return Stream(embedding.embedding_dim, grid=columns > 0, columns=columns)

    def _output_head(self, out: Stream, vocabulary: int) -> OutputHead:
        if out.grid:
            message = "the decoder ends with a grid, and the output reads a sequence"
            self.fault("kind", ("model", "decoder"), message, "end it with `- select_column: 0`")
        output, tokenizer = self.recipe.model.output, self.recipe.data.tokenizer
        place = TokenPlace(vocabulary, out.width, tokenizer, has_bias=output.bias)
        try:
            return output.kind.build(place)
        except BlockError as error:
            self.refuse(error, output.kind.at if error.setting else ("model", "output", "kind"))
            return LinearOutput(out.width, vocabulary)

    def _ctc(self, site: Site, encoders: Iterable[Encoder], vocabulary: int) -> Ctc | None:
        """Return CTC over the memory that the recipe names; None without CTC or with a fault."""
        settings, path = self.recipe.model.output.ctc, ("model", "output", "ctc")
        if settings is None:
            return None
        try:
            memory = site.memory(settings.from_)
            frames = site.read(memory, "from")
        except BlockError as error:
            self.refuse(error, path)
            return None
        if frames.grid:
            message = f"CTC reads a sequence, and `{memory}` is a grid"
            self.fault("kind", path, message, "end that encoder with `- flatten`")
        elif not frames.length_ratio:
            message = f"CTC reads a sequence, and `{memory}` is one position for all"
            self.fault("kind", path, message, "read another output")
        elif any(encoder.max_target_ratio for encoder in encoders):
            message = (
                "CTC cannot be combined with `grid`: the number of frames must not depend on the"
                " answer"
            )
            self.fault("kind", path, message, remove(path, ", or the block `grid`"))
        return Ctc(memory, frames, vocabulary)

    def _outer_stack(
        self,
        path: Path,
        stack: Sequence[BlockSpec],
        stream: Stream,
        memories: Mapping[str, Named],
        causal: str,
    ) -> tuple[Site, Stack]:
        """Build the outermost stack of an encoder or decoder; return the site of its blocks too."""
        reserved = [encoder.memory for encoder in encoder_stacks(self.recipe.model)]
        readable = [memory for memory in reserved if memory in memories]
        self.named_paths.clear()
        declared = set(output_names(stack))
        names = Scope.root(stream, declared=declared, reserved=reserved, refused=self.refused)
        site = Site(stream, self.recipe.model.width, names, dict(memories), readable, causal, path)
        return site, self.stack(site, stack)

    def _check_tie(self, out: Stream, vocabularies: Mapping[str, int]) -> None:
        path: Path = ("model", "output", "tie")
        width = self.recipe.model.width
        if out.width != width:
            message = f"the decoder ends {out.width} wide, and the tied matrix is {width} wide"
            self.fault("width", path, message, f"end the decoder with `- linear: {width}`")
        tie = set(self.recipe.model.output.tie) - {"target"}
        has_one_vocabulary = self.recipe.joint and all(
            vocabularies.get(key) == vocabularies["target"] for key in tie
        )
        if tie and not has_one_vocabulary:
            names = ", ".join(f"`{key}`" for key in sorted(tie))
            message = (
                f"{names} and `target` have vocabularies of their own, and `tie` needs a joint one"
            )
            fix = "set `joint: true` in `data.tokenizer`, or tie only the target"
            self.fault("tie", path, message, fix)

    def stack(self, site: Site, entries: Sequence[Any]) -> Stack:
        """Build the blocks of a list in order, each from the stream that the one before leaves."""
        blocks: list[Block] = []
        names: list[str | None] = []
        reads: list[frozenset[str]] = []
        gives: list[frozenset[str]] = []
        site = replace(
            site, builder=self.stack, dry_builder=self.dry_build, shared_stacks=self.shared_stack
        )
        stream = site.stream
        for spec in read_stack(entries, site.path):
            num_reads, taken = len(site.names.reads), frozenset(site.names.taken)
            block_site = replace(site, stream=stream, path=spec.path)
            block = self.block(block_site, spec.word, spec.settings)
            name = spec.settings.get("as")
            if name is not None:
                self._define(block_site, name, block)
            blocks.append(block)
            names.append(name)
            reads.append(frozenset(site.names.reads[num_reads:]))
            gives.append(frozenset(site.names.taken - taken))
            if block.out.width != stream.width:
                self.widened[site.path] = spec.path
            stream = block.out
        return Stack(site.stream, blocks, names, reads, gives)

    def _define(self, site: Site, name: str, block: Block) -> None:
        try:
            site.names.define(name, Named(block.out, block.state_kind))
            self.named_paths[name] = site.path
        except BlockError as error:
            self.refuse(error, site.path)

    def dry_build(self, site: Site, entries: Sequence[Any]) -> Stack:
        """Build a stack on the meta device, to be thrown away; its faults are ignored."""
        shared, open_stacks = dict(self.shared), list(self.open_stacks)
        scratch = Builder(
            self.recipe, shared=shared, open_stacks=open_stacks, size=self.size, is_dry=True
        )
        with torch.device("meta"):
            return scratch.stack(site, entries)

    def block(self, site: Site, word: str, settings: Mapping[str, Any]) -> Block:
        """Build one block without settings that have no effect; a stand-in if that fails."""
        self.size.count_block(site.path)
        effective = dict(settings)
        try:
            block = self._construct(site, word, effective)
        except BlockError as error:
            self._refuse_block(site, error)
            block = self._stand_in(site, effective)
        except ModelTooLarge as error:
            error.path = error.path or site.path
            raise
        except BlockCodeErrors as error:  # torch refuses sizes that overflow, too
            if is_out_of_memory(error):
                raise ModelTooLarge(NO_MEMORY, site.path) from error
            message = f"`{word}` cannot be built: {error_of_code(error)}"
            self.fault("block", site.path, message, f"make its numbers smaller, or {ASK_AUTHOR}")
            block = self._stand_in(site, effective)
        block.path = site.path
        packs = self.recipe.data.packing and not (site.stream.grid or isinstance(block, StandIn))
        if packs and (problem := packing_error(block, site.stream, effective)):
            message = f"`{word}` cannot be trained on packed rows: {problem.message}"
            self.refuse(problem, site.path, message)
        return block

    def _construct(self, site: Site, word: str, settings: dict[str, Any]) -> Block:
        """Construct a block without the settings that have no effect, which this removes."""
        while True:
            arguments = {python_name(key): value for key, value in settings.items() if key != "as"}
            try:
                return checked_block(block_class(word)(site, **arguments))
            except NoEffect as error:
                if error.setting not in settings:
                    raise
                idle = IdleSetting(error.message, error.fix.below(site.path))
                self.idle_settings[*site.path, error.setting] = idle
                del settings[error.setting]

    def _refuse_block(self, site: Site, error: BlockError) -> None:
        message = error.message
        # a dry build is thrown away with its faults
        if error.code == "width" and not self.is_dry:
            message += self.related_places(site, message)
        self.refuse(error, site.path, message)

    def _stand_in(self, site: Site, settings: Mapping[str, Any]) -> Block:
        """Return a placeholder for a block that cannot be built."""
        if not self.is_dry:
            site.names.refused.update(output_names(list(settings.values())))
        # with the width that is written, the blocks after it get no faults that only follow from it
        width = settings.get("width") or site.stream.width
        return StandIn(site.stream._replace(width=width))

    def related_places(self, site: Site, message: str) -> str:
        """Name the inner blocks that change the width, and the blocks that a message mentions."""
        related = []
        for stack, path in self.widened.items():
            is_branch = stack[:-2] == site.path and stack[-2] == "branches"
            if stack[:-1] == site.path or is_branch:
                related.append(path)
        for name, path in self.named_paths.items():
            if f"`{name}`" in message:
                related.append(path)
        own_file = self.recipe.locate(site.path).node.place.file
        text = ""
        for path in related:
            mark = self.recipe.locate(path).node.place
            file = "" if mark.file == own_file else f"{mark.file}, "
            text += f"; see `{path[-1]}`, {file}line {mark.line}"
        return text

    def shared_stack(self, site: Site, name: str, copy: bool) -> Stack:
        """Build the stack `name` of `stacks:` here; all uses but copies share parameters."""
        stacks = self.recipe.model.stacks
        if name not in stacks:
            add = f"define it: `model: {{stacks: {{{name}: [...]}}}}`"
            raise site.names.unknown_name(name, "stack", stacks, "no stack", add)
        self.uses.setdefault(name, []).append(Use(site.path, copy))
        if name in self.open_stacks:
            fix = "write `repeat` to run a stack several times"
            raise BlockError("stack", f"`{name}` contains itself", code="cycle", fix=fix)
        faults = len(self.faults)
        self.open_stacks.append(name)
        stack = self.stack(replace(site, path=("model", "stacks", name)), stacks[name])
        self.open_stacks.remove(name)
        if copy or len(self.faults) > faults:
            return stack
        if not share_parameters(stack, self.shared.setdefault(name, stack)):
            message = (
                f"`{name}` is used where another stream arrives than at its first use, so its"
                " parameters cannot be shared"
            )
            raise BlockError("stack", message, code="width", fix=write("copy", True))
        return stack

    def unused_stack_faults(self) -> Iterator[Fault]:
        """Yield the faults of the named stacks that no `use` names."""
        for name in self.recipe.model.stacks or {}:
            if name not in self.uses:
                yield from self._stack_faults(name)

    def _stack_faults(self, name: str) -> list[Fault]:
        """Return the faults that a named stack would have wherever it was used."""
        width = self.recipe.model.width
        attempts = (
            self._faults_of_use(name, Stream(width), causal=""),
            self._faults_of_use(name, Stream(width), causal="a decoder"),
            self._faults_of_use(name, Stream(width, True, columns=4), causal=""),
        )
        best = min(attempts, key=_num_faults)
        return [fault for fault in best if fault.code not in DEPENDS_ON_PLACE]

    def _faults_of_use(self, name: str, arriving: Stream, causal: str) -> list[Fault]:
        """Return the faults of a named stack in one place."""
        model = self.recipe.model
        stack, path = model.stacks[name], ("model", "stacks", name)
        scratch = Builder(self.recipe, open_stacks=[name], size=self.size)
        names = Scope.root(arriving, declared=set(output_names(stack)))
        with torch.device("meta"):
            scratch.stack(Site(arriving, model.width, names, {}, [], causal, path), stack)
        return scratch.faults


class Sides:
    """The embeddings of the sides of a model. `tied` is the one that `tie` shares with the output.

    `tokens_read` are the sides whose embedding a stack reads.
    """

    def __init__(self, builder: Builder, vocabularies: Mapping[str, int]) -> None:
        self.builder, self.vocabularies = builder, vocabularies
        self.tied: TokenEmbedding | None = None
        self.tokens_read: set[str] = set()

    def embedding(self, key: str) -> TokenEmbedding:
        """Return the embedding of a side: the shared one if the side is tied, or a new one."""
        is_tied = key in self.builder.recipe.model.output.tie and key in self.vocabularies
        if is_tied and self.tied is not None:
            return self.tied
        embedding = self.builder.token_embedding(key, self.vocabularies.get(key, 0))
        if is_tied:
            self.tied = embedding
        return embedding

    def note_tokens_read(self, key: str, site: Site, stack: Stack) -> None:
        """Add a side to `tokens_read` if its stack reads the tokens."""
        if stack.reads_stream or "input" in site.names.reads:
            self.tokens_read.add(key)


def _num_faults(faults: list[Fault]) -> tuple[int, int]:
    """Return the number of faults that depend on the place, and of all."""
    return sum(fault.code in DEPENDS_ON_PLACE for fault in faults), len(faults)


def checked_block(block: Block) -> Block:
    """Return the block. Raises BlockError if its constructor is not complete."""
    if "_modules" not in vars(block):
        message, fix = "its constructor does not call `super().__init__()`", "call it first"
    elif not isinstance(getattr(block, "out", None), Stream):
        message = "it does not say in `self.out` which stream it leaves"
        fix = 'write `self.out = site.sequence("NAME")`'
    else:
        return block
    message = f"`{type(block).__name__}` cannot be built: {message}"
    raise BlockError(
        "", message, fix=f"{fix} in its constructor, as in docs/extending.md", code="block"
    )


class EncoderStack(NamedTuple):
    """An encoder of a recipe: its key in the data, its memory, its path and its blocks."""

    key: str
    memory: str
    path: Path
    blocks: Sequence[BlockSpec]


def encoder_stacks(model: Model) -> Iterator[EncoderStack]:
    """Yield the encoders of a model."""
    if model.encoder is not None:
        yield EncoderStack("source", "encoder", ("model", "encoder"), model.encoder)
    for name, blocks in (model.encoders or {}).items():
        yield EncoderStack(name, name, ("model", "encoders", name), blocks)


def vocabulary_bounds(recipe: Recipe) -> dict[str, int]:
    """Return upper bounds of the vocabularies by data key, from the tokenizer or its file."""
    if faults := recipe.tokenizer_faults():
        raise RecipeError(faults)
    bounds = {}
    for encoder in encoder_stacks(recipe.model):
        if feature_settings(recipe.data, encoder.key) is None:
            bounds[encoder.key] = recipe.tokenizer.max_size(encoder.key == "target")
    return bounds | {"target": recipe.tokenizer.max_size(target=True)}

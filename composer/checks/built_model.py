"""Rules of a built model, without numbers: parameters that never learn, decoding, carried state.

Planning runs them group by group: of its STRUCTURE, of what is LEARNED from the loss of a short
pair, of how it is DECODED, and of states that are CARRIED. A group presupposes that those before it
have found no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from blocks.core.contract import Block, Penalties, reduce_penalties
from blocks.core.fixes import Fix, Remove, write
from composer.checks.no_effect import idle_in_blocks, idle_settings
from composer.checks.problem import Problem, Problems, faults, unused
from composer.errors import BlockCodeErrors, KeyPath, error_of_code
from composer.model.adapters import adapter_sites
from composer.model.builder import encoder_stacks
from composer.model.costs import BlockFailed, wrap_blocks
from composer.model.encoder_decoder import (
    EXAMPLE_LENGTH,
    EncoderDecoder,
    OneHotEmbedding,
    example_ids,
    has_state,
    state_bytes,
    training_logits,
)
from composer.model.meta_device import MetaCache
from composer.model.parameter_paths import (
    GROUPS,
    GroupPath,
    group_paths,
    learning_rate_factors,
    module_owners,
)
from composer.model.recording_builder import RecordingBuilder
from composer.model.weights import parameter_ids
from composer.recipe.recipe import Recipe
from composer.suggest import did_you_mean


@dataclass(frozen=True)
class BuiltModel:
    """A model on the meta device, and the builder that built it from its recipe."""

    builder: RecordingBuilder
    model: EncoderDecoder

    @property
    def recipe(self) -> Recipe:
        """The recipe of the model."""
        return self.builder.recipe


Rule = Callable[[BuiltModel], Problems]


def check(built: BuiltModel, rules: Sequence[Rule]) -> None:
    """Add the warnings of a group of rules to those of the builder.

    Raises RecipeError with its errors.
    """
    builder = built.builder
    for rule in rules:
        for fault in faults(built.recipe, rule(built)):
            (builder.faults if fault.severity == "error" else builder.warnings).append(fault)
    builder.finish()


def no_effect(built: BuiltModel) -> Problems:
    """Every setting changes something."""
    yield from idle_in_blocks(built.builder)
    yield from idle_settings(built.recipe, built.model)


def parameter_groups(built: BuiltModel) -> Problems:
    """Each path of `training.parameter_groups` is a block's and has an effect; something trains."""
    recipe, model = built.recipe, built.model
    paths, owners, known = group_paths(recipe), module_owners(recipe, model), known_paths(built)
    effective = set[KeyPath]()
    for name, _ in model.named_parameters():
        text = owners[name.rpartition(".")[0]].text(recipe)
        covering = [group for group in paths if group.covers(text)]
        covering.append(GroupPath("", 1.0, -1.0, ()))
        effective |= _deciding([(group, group.factor) for group in covering])
        effective |= _deciding([(group, group.weight_decay) for group in covering])
    for group in sorted(paths, key=lambda group: group.place):
        if group.path not in known:
            yield _unknown_path(group.path, group.place, known)
        elif group.place not in effective:
            message = f"`{group.path}` changes no parameter's learning rate, nor its weight decay"
            yield unused(group.place, message, Fix("remove it", Remove(group.place)))
    if (factors := learning_rate_factors(recipe, model)) and not any(factors.values()):
        hint = "leave a block out of the groups of factor 0"
        yield Problem("path", GROUPS, "every parameter is frozen", hint)


def adapters(built: BuiltModel) -> Problems:
    """Each path of `training.adapters.lora` is a block's, and has matrices of which none is shared
    with a block that has no adapters.
    """
    sites = adapter_sites(built.recipe, built.model)
    if sites is None:
        return
    known = known_paths(built)
    for index, block in enumerate(sites.lora.blocks):
        path, place = block.removeprefix("model."), (*sites.lora.at, "blocks", index)
        covered = sites.in_block(path)
        if path not in known:
            yield _unknown_path(path, place, known)
        elif not covered:
            message = f"`{path}` has no linear map, so nothing in it would be trained"
            yield Problem("unused", place, message, Fix("remove it", Remove(place)))
        for site in covered:
            if other := sites.shared.get(site.block):
                message = f"`{site.block}` has a matrix that is also `{other}`'s, which is left out"
                yield Problem("tie", place, message, f"add `{other}` if it is linear, or remove it")
                break


def known_paths(built: BuiltModel) -> set[str]:
    """Return the paths of all blocks of a model, of what is around them, embeddings and output."""
    known = set[str]()
    for owner in module_owners(built.recipe, built.model).values():
        text = owner.text(built.recipe)
        known.update(text[: match.start()] for match in re.finditer(r"[.[]|$", text))
    return known - {""}


def _unknown_path(path: str, place: KeyPath, known: set[str]) -> Problem:
    hint = "write a path as `plan` prints it: `encoder`, `decoder[1].repeat`, `output`"
    return Problem(
        "path", place, f"no block has the path `{path}`{did_you_mean(path, known)}", hint
    )


def _deciding(numbers: Sequence[tuple[GroupPath, float | None]]) -> set[KeyPath]:
    """Return the place of the group that decides a number of a parameter.

    Empty where the next shorter path gives the same number.

    numbers: Of the groups that cover the parameter, the longest path first, the default last.
    """
    (first, own), *rest = [(group, number) for group, number in numbers if number is not None]
    for group, number in rest:
        if group.path != first.path:
            return set() if number == own else {first.place}
    return set()


def gradients(built: BuiltModel) -> Problems:
    """The loss reaches each parameter; at fault is the outermost block that lost it."""
    model, unreached = built.model, unreached_by_loss(built.model)
    paths = {stack.memory: stack.path for stack in encoder_stacks(built.recipe.model)}
    lost = [*_unread_encoders(model, paths, unreached), *_unread_blocks(model, unreached)]
    yield from lost or _unread_tokens(model, paths, unreached)


def _unread_encoders(
    model: EncoderDecoder, paths: dict[str, KeyPath], unreached: set[int]
) -> Iterator[Problem]:
    """Yield the encoders that nothing reads; removes their parameters from `unreached`."""
    for encoder in model.readers().values():
        # the embedding may be the target's too; a stack without parameters has nothing else to go
        # by
        own = (
            parameter_ids(encoder.stack)
            or parameter_ids(encoder)
            or {id(buffer) for buffer in encoder.buffers()}
        )
        if own <= unreached:
            path = paths[encoder.memory]
            message = f"nothing reads `{encoder.memory}`, so it would never learn"
            fix = Fix("add a `cross_attention` that reads it, or remove it", Remove(path))
            yield Problem("unused", path, message, fix)
            unreached -= parameter_ids(encoder)


def _unread_blocks(model: EncoderDecoder, unreached: set[int]) -> Iterator[Problem]:
    """Yield the outermost blocks whose parameters nothing reads; removes these from `unreached`."""
    for block in model.modules():
        if isinstance(block, Block) and block.path and not isinstance(block, type(model.decoder)):
            own = parameter_ids(block)
            outer = set(own)
            for child in block.modules():
                if isinstance(child, Block) and child is not block:
                    outer -= parameter_ids(child)
            if own & unreached and (own <= unreached or outer & unreached):
                message = (
                    "the result does not depend on this block's parameters: nothing reads what it"
                    " makes"
                )
                fix = Fix("read it, or remove it", Remove(block.path))
                yield Problem("unused", block.path, message, fix)
                unreached -= own


def _unread_tokens(
    model: EncoderDecoder, paths: dict[str, KeyPath], unreached: set[int]
) -> Iterator[Problem]:
    """Yield the stacks that do not read their tokens, whose embedding would never learn."""
    embeddings = {paths[encoder.memory]: encoder.embedding for encoder in model.readers().values()}
    for path, embedding in (*embeddings.items(), (("model", "decoder"), model.embedding)):
        if embedding is not None and parameter_ids(embedding) & unreached:
            message = "nothing here reads the tokens, so their embedding would never learn"
            yield Problem("unused", path, message, "read the stream or `input`")


def unreached_by_loss(model: EncoderDecoder) -> set[int]:
    """Return the ids of parameters and one-hot tables that the loss does not reach.

    They get no gradient, neither from the logits nor from a penalty.
    """
    embeddings = [encoder.embedding for encoder in model.readers().values()]
    tables = [embedding.table for embedding in embeddings if isinstance(embedding, OneHotEmbedding)]
    leaves = [*model.parameters(), *(table.requires_grad_() for table in tables)]
    penalties: Penalties = {}
    try:
        with torch.enable_grad():
            logits = training_logits(model, penalties)
            torch.stack([logits.sum(), *reduce_penalties(penalties).values()]).sum().backward()
    except BlockFailed:
        raise
    except BlockCodeErrors as error:  # a plug-in may bring gradients of its own
        raise BlockFailed(
            model.decoder, f"no gradient can be computed: {error_of_code(error)}"
        ) from error
    unreached = {id(leaf) for leaf in leaves if leaf.grad is None}
    for leaf in leaves:
        leaf.grad = None
    for table in tables:
        table.requires_grad_(False)
    return unreached


def decoding(built: BuiltModel) -> Problems:
    """The way of decoding suits the model."""
    search, path = built.recipe.decoding, ("decoding",)
    if search.first_order and has_state(built.model):
        fix = write(
            path,
            {"beam": {"size": 5}},
            "; recurrence, self-attention, convolution and memories have a state",
        )
        yield Problem("markov", path, search.state_problem, fix)


def carried_state(built: BuiltModel) -> Problems:
    """No carried state grows with the text, or counts on past the end of a table of positions."""
    if not built.recipe.carries_state:
        return
    carry = Remove(("training", "carry"))
    for block in growing_blocks(built.model):
        message = (
            "its state grows with the text, and `training.carry` hands it from window to window"
        )
        hint = "remove `carry`, or put a block of fixed state in its place"
        if block.path[-1] == "self_attention":
            hint = "write how far it sees, `window: 128`, or remove `carry`"
        yield Problem("conflict", block.path, message, Fix(hint, carry))
    blocks = (block for block in built.model.decoder.modules() if isinstance(block, Block))
    tables = {
        block.path: block.max_positions for block in blocks if block.max_positions is not None
    }
    for path, size in tables.items():
        message = (
            "`training.carry` counts positions on from window to window, and all after the first"
            f" {size:,} would be the last of the table"
        )
        fix = Fix("write `positions: sinusoidal`, or remove `carry`", carry)
        yield Problem("conflict", path, message, fix)


def growing_blocks(model: EncoderDecoder) -> list[Block]:
    """Return the innermost blocks whose state grows from the first step to the second."""
    growing: list[Block] = []

    def watched(block: Block, name: str) -> Callable[..., object]:
        call = getattr(block, name)

        def run(*args: Any) -> object:
            result = call(*args)
            if name != "forward" or not block.path:
                return result
            has_inner = any(inner.path[: len(block.path)] == block.path for inner in growing)
            if not has_inner and state_bytes(result[1]) > state_bytes(args[1]):
                growing.append(block)
            return result

        return run

    with torch.no_grad():
        ids = example_ids(model, EXAMPLE_LENGTH)
        state = model.step(ids, None, {})[1]
        with wrap_blocks(model, watched), MetaCache():
            model.step(ids, state, {})
    return growing


STRUCTURE: Sequence[Rule] = (no_effect, parameter_groups, adapters)
LEARNED: Sequence[Rule] = (gradients,)
DECODED: Sequence[Rule] = (decoding,)
CARRIED: Sequence[Rule] = (carried_state,)

"""A standard Transformer as a model of CTranslate2, which translates fast on CPUs and GPUs: the only door to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from blocks.core.contract import Block
from blocks.core.stack import Stack
from blocks.cross_attention import CrossAttention
from blocks.dropout import Dropout
from blocks.feed_forward import FeedForward
from blocks.norm import Norm
from blocks.positions import Positions, sinusoidal
from blocks.repeat import Repeat
from blocks.residual import Residual
from blocks.self_attention import SelfAttention
from composer.atomic_io import atomic_directory, require_absent
from composer.data.sources import TARGET
from composer.errors import RunError
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import NEVER, Embedding, LinearOutput
from composer.model.vocabulary import BOS, EOS, PAD, UNK
from composer.recipe.recipe import Recipe

OPTION = "--ctranslate2"
POSITIONS = 4096
"""Positions for which the exported model has encodings; CTranslate2 refuses longer texts."""
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "glu": "Sigmoid",
    "swiglu": "SWISH",
}
"""Ours, and CTranslate2's; of the gated ones, what the gate goes through."""
GATE_FIRST = {"glu": False, "swiglu": True}
"""Whether the first half of a gated map is the gate."""
DEFAULTS: dict[type[Block], dict[str, Any]] = {
    SelfAttention: {"window": None, "positions": "none"},
    CrossAttention: {
        "score": "scaled_dot",
        "query": None,
        "keys": None,
        "values": None,
        "local": "none",
        "merge": "concat",
        "sqrt_length": False,
    },
    Positions: {"per_iteration": False},
    Residual: {"scale": 1.0},
    Norm: {"kind": "layer"},
}
"""The settings that CTranslate2 has no other value for."""
THE_ENCODER = (None, "encoder", ["encoder"])
"""How a recipe names the one encoder, or leaves it unsaid."""
NORM_EPSILON = 1e-5
"""That of every LayerNorm of PyTorch's that is told no other."""
ENCODER = (SelfAttention, FeedForward)
DECODER = (SelfAttention, CrossAttention, FeedForward)

Kinds = tuple[type[Block], ...]


class Unlike(Exception):
    """Why a model is not the Transformer that CTranslate2 knows."""


@dataclass(frozen=True)
class Part:
    """An encoder or a decoder in the terms of Vaswani et al. 2017: positions, layers of residuals, a last norm."""

    positions: Positions
    layers: list[list[Residual]]
    last: Norm | None
    heads: int
    norm: str
    activation: str


def export_ctranslate2(run: str | Path | Run, folder: str | Path) -> Path:
    """Writes a run's model as a folder of CTranslate2, with the run's tokenizer.json beside it.

    Raises RunError where the model is no standard Transformer (sinusoidal or learned positions; layers of residuals
    with one norm around self-attention, attention over the encoder, feed-forward), where CTranslate2 is not installed,
    or where `folder` is there already.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    target = Path(folder)
    require_absent(target, OPTION)
    specs = _library()
    try:
        spec = spec_of(opened, specs)
    except Unlike as unlike:
        raise RunError.of(
            f"CTranslate2 has no such model: {unlike}",
            "every model can be exported as a script: `seqcomposer export RUN --script DIR`",
            str(opened.folder.path),
        ) from None
    with atomic_directory(target, OPTION) as draft:
        spec.save(str(draft))
        shutil.copy(opened.folder.tokenizer, draft / opened.folder.tokenizer.name)
    return target


def _library() -> ModuleType:
    try:
        import ctranslate2
    except ModuleNotFoundError:
        raise RunError.of("the package `ctranslate2` is not installed", "pip install ctranslate2") from None
    return ctranslate2.specs


# ------------------------------------------------------------------------------------------- what the model is


def parts_of(run: Run) -> tuple[Part, Part]:
    """The encoder and the decoder. Raises Unlike."""
    model = run.model
    encoders = list(model.readers().values())
    if len(encoders) != 1:
        raise Unlike(f"it has {len(encoders)} encoders, and one is known")
    if not isinstance(encoders[0].embedding, Embedding) or not isinstance(model.embedding, Embedding):
        raise Unlike("its embeddings are not learned vectors")
    if not isinstance(model.output, LinearOutput) or model.length is not None:
        raise Unlike("its output is not a linear map to the vocabulary, ended by the model")
    return part_of(run.recipe, encoders[0].stack, ENCODER), part_of(run.recipe, model.decoder, DECODER)


def part_of(recipe: Recipe, stack: Stack, kinds: Kinds) -> Part:
    """A stack in the paper's terms. Raises Unlike."""
    first, *rest = list(blocks_in(recipe, stack)) or [stack]
    if not isinstance(first, Positions):
        raise Unlike(f"{_where(stack, first)} comes first, and `positions` should")
    last = cast(Norm, rest.pop()) if rest and isinstance(rest[-1], Norm) else None
    if not rest or len(rest) % len(kinds):
        raise Unlike(f"{len(rest)} residuals are no layers of {len(kinds)}")
    around = [residual_around(recipe, each, kinds[at % len(kinds)]) for at, each in enumerate(rest)]
    layers = [[one for one, _ in around[at : at + len(kinds)]] for at in range(0, len(rest), len(kinds))]
    inner = [each for _, each in around]
    for each in inner:
        if isinstance(each, CrossAttention) and recipe.settings_at(each.path)["from"] not in THE_ENCODER:
            raise Unlike(f"{_where(stack, each)} reads something else than the encoder's end")
    norm = _one("norm", (each.placed for each, _ in around))
    if norm == "none" or (norm == "post" and last is not None):
        raise Unlike("its residuals have no norm" if norm == "none" else "a norm comes after the last layer's own")
    attentions = [each for each in inner if not isinstance(each, FeedForward)]
    heads = _one("heads", (recipe.settings_at(each.path)["heads"] for each in attentions))
    activation = _one("activation", (each.activation for each in inner if isinstance(each, FeedForward)))
    if activation not in ACTIVATIONS:
        raise Unlike(f"the activation `{activation}` is not known")
    return Part(first, layers, last, heads, norm, activation)


def blocks_in(recipe: Recipe, stack: Stack) -> Iterator[Block]:
    """The blocks that run one after another, repeats written out. Raises Unlike."""
    for block in stack.inner():
        for setting, value in DEFAULTS.get(type(block), {}).items():
            if recipe.settings_at(block.path)[setting] != value:
                raise Unlike(f"`{setting}` of {_where(stack, block)} is not {value}")
        if isinstance(block, Repeat):
            if block.times is None or len(block.stacks) not in (1, block.times):
                raise Unlike(f"{_where(stack, block)} repeats as often as the text is long, or has sets of parameters")
            for iteration in range(block.times):
                yield from blocks_in(recipe, cast(Stack, block.stacks[iteration % len(block.stacks)]))
        elif not isinstance(block, Dropout):
            yield block


def residual_around(recipe: Recipe, block: Block, kind: type[Block]) -> tuple[Residual, Block]:
    """A block that must be a residual around one block of this kind, and what is in it. Raises Unlike."""
    if isinstance(block, Residual):
        inner, *more = [*blocks_in(recipe, block.stack), None]
        if isinstance(inner, kind) and more == [None]:
            return block, inner
    raise Unlike(f"{_where(block, block)} stands where a residual around one `{_word(kind)}` should")


def _one(what: str, values: Iterator[Any]) -> Any:
    found = set(values)
    if len(found) != 1:
        raise Unlike(f"its layers differ in `{what}`: {', '.join(map(str, sorted(found, key=str)))}")
    return found.pop()


def _where(stack: Block, block: Block) -> str:
    return f"`{'.'.join(map(str, block.path or stack.path))}`"


def _word(kind: type[Block]) -> str:
    return kind.__module__.rpartition(".")[2]


# ------------------------------------------------------------------------------------------- in CTranslate2's terms


def spec_of(run: Run, specs: Any) -> Any:
    """The model's specification with its weights and vocabularies. Raises Unlike."""
    encoder, decoder = parts_of(run)
    kinds = specs.transformer_spec
    spec = kinds.TransformerSpec(
        kinds.TransformerEncoderSpec(len(encoder.layers), encoder.heads, **_options(encoder, specs)),
        kinds.TransformerDecoderSpec(len(decoder.layers), decoder.heads, **_options(decoder, specs)),
    )
    model: Any = run.model
    ((side, reader),) = run.model.readers().items()
    _embed(spec.encoder.embeddings[0], reader.embedding)
    _embed(spec.decoder.embeddings, model.embedding)
    _linear(spec.decoder.projection, model.output.weight, model.output.bias)
    spec.decoder.projection.bias[[PAD, BOS]] = NEVER  # no search of ours writes them
    for part, told, fill in ((encoder, spec.encoder, _encoder_layer), (decoder, spec.decoder, _decoder_layer)):
        _fill(part, told, fill)
    tokens = {each: run.tokenizers.vocabulary(each) for each in (side, TARGET)}
    spec.register_source_vocabulary(tokens[side])
    spec.register_target_vocabulary(tokens[TARGET])
    config = spec.config
    config.layer_norm_epsilon, config.add_source_eos = NORM_EPSILON, True
    names = tokens[TARGET]
    config.bos_token = config.decoder_start_token = names[BOS]
    config.eos_token, config.unk_token = names[EOS], names[UNK]
    spec.validate()
    return spec


def _options(part: Part, specs: Any) -> dict[str, Any]:
    activation = getattr(specs.common_spec.Activation, ACTIVATIONS[part.activation], None)
    if activation is None:
        raise Unlike(f"this version of CTranslate2 has no activation `{part.activation}`")
    pre = part.norm == "pre"
    return {
        "pre_norm": pre,
        "no_final_norm": part.last is None,
        "activation": activation,
        "ffn_glu": part.activation in GATE_FIRST,
    }


def _fill(part: Part, told: Any, fill: Callable[[Any, Sequence[Residual], str], None]) -> None:
    told.position_encodings.encodings = encodings(part.positions)
    if part.last is not None:
        _norm(told.layer_norm, part.last.normalise)
    for layer, residuals in zip(told.layer, part.layers, strict=True):
        fill(layer, residuals, part.activation)


def encodings(positions: Positions) -> np.ndarray:
    """What is added at each position: (POSITIONS, D)"""
    if positions.table is None:
        return _array(sinusoidal(torch.arange(POSITIONS)[None], positions.width)[0])
    rows = torch.arange(POSITIONS).clamp(max=positions.table.num_embeddings - 1)
    return _array(positions.table.weight[rows])


def _encoder_layer(told: Any, residuals: Sequence[Residual], activation: str) -> None:
    attention, feed_forward = residuals
    _attention(told.self_attention, attention)
    _feed_forward(told.ffn, feed_forward, activation)


def _decoder_layer(told: Any, residuals: Sequence[Residual], activation: str) -> None:
    attention, cross, feed_forward = residuals
    _attention(told.self_attention, attention)
    _cross_attention(told.attention, cross)
    _feed_forward(told.ffn, feed_forward, activation)


def _attention(told: Any, residual: Residual) -> None:
    block = _only(residual)
    _norm(told.layer_norm, residual.norm)
    _linear(told.linear[0], block.project.weight, block.project.bias)
    _linear(told.linear[1], block.merge.weight, block.merge.bias)


def _cross_attention(told: Any, residual: Residual) -> None:
    block = _only(residual)
    _norm(told.layer_norm, residual.norm)
    for spec, made in zip(told.linear, (block.query, block.project, block.merge), strict=True):
        _linear(spec, made.weight, made.bias)


def _feed_forward(told: Any, residual: Residual, activation: str) -> None:
    block = _only(residual)
    _norm(told.layer_norm, residual.norm)
    _linear(told.linear_1, block.contract.weight, block.contract.bias)
    if activation not in GATE_FIRST:
        _linear(told.linear_0, block.expand.weight, block.expand.bias)
        return
    halves = list(zip(block.expand.weight.chunk(2), block.expand.bias.chunk(2), strict=True))
    gate, other = halves if GATE_FIRST[activation] else halves[::-1]
    _linear(told.linear_0, *gate)
    _linear(told.linear_0_noact, *other)


def _only(residual: Residual) -> Any:
    return next(block for block in residual.stack.inner() if not isinstance(block, Dropout))


def _embed(told: Any, embedding: Any) -> None:
    told.weight = _array(embedding.weight)  # the square root of the width is multiplied there, too


def _norm(told: Any, norm: nn.Module) -> None:
    told.gamma, told.beta = _array(norm.weight), _array(norm.bias)


def _linear(told: Any, weight: Tensor, bias: Tensor) -> None:
    told.weight, told.bias = _array(weight), _array(bias)


def _array(value: Any) -> np.ndarray:
    found: np.ndarray = value.detach().float().cpu().numpy().copy()
    return found

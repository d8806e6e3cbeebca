"""`export --ctranslate2`: export a standard Transformer to CTranslate2, a fast inference engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from blocks.core.contract import Block
from blocks.core.functional import sinusoidal
from blocks.core.stack import Stack
from blocks.cross_attention import CrossAttention
from blocks.dropout import Dropout
from blocks.feed_forward import FeedForward
from blocks.norm import Norm
from blocks.positions import Positions
from blocks.repeat import Repeat
from blocks.residual import Residual
from blocks.self_attention import SelfAttention
from composer.atomic_io import atomic_directory, require_absent
from composer.data.pairs import TARGET
from composer.errors import RunError
from composer.inference.run import Run, open_run
from composer.model.ctc import JointModel
from composer.model.encoder_decoder import NEVER, Embedding
from composer.model.output_heads import LinearOutput
from composer.model.special_tokens import BOS, EOS, PAD, UNK
from composer.recipe.recipe import Recipe

POSITIONS = 4096
"""Number of exported position encodings; CTranslate2 refuses longer texts."""
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
ACTIVATIONS |= {"gelu_tanh": "GELUTanh", "glu": "Sigmoid", "swiglu": "SWISH", "geglu": "GELU"}
"""CTranslate2's names of activations; of a gated one, the activation of the gate."""
GATE_FIRST = {"glu": False, "swiglu": True, "geglu": True}
"""True for gated activations whose gate is the first half of the projection."""
DEFAULTS: dict[type[Block], dict[str, object]] = {
    SelfAttention: {
        "window": None,
        "positions": "none",
        "bias": (True, "all"),
        "qk_norm": False,
        "sinks": False,
    }
    | dict.fromkeys(("kv_heads", "head_width", "soft_cap")),
    FeedForward: {"bias": True},
    CrossAttention: {
        "score": "scaled_dot",
        "local": "none",
        "merge": "concat",
        "sqrt_length": False,
        "gate": False,
    }
    | dict.fromkeys(("query", "keys", "values")),
    Positions: {"per_iteration": False},
    Residual: {"scale": 1.0},
    Norm: {"kind": "layer", "eps": 1e-5},
}
"""Settings of which CTranslate2 supports one value, or several equivalent ones."""
ONLY_ENCODER = (None, "encoder", ["encoder"])
"""Values of `from` that mean the only encoder."""
LAYER_PARTS: dict[type[Block], str] = {
    SelfAttention: "self_attention",
    CrossAttention: "attention",
    FeedForward: "ffn",
}
"""Names of the parts of a layer in CTranslate2's specification."""


class UnsupportedModel(Exception):
    """Reason why a model is not the Transformer that CTranslate2 knows."""


@dataclass(frozen=True)
class TransformerStack:
    """Encoder or decoder of Vaswani et al. 2017; a layer is (residual, inner block) pairs."""

    positions: Positions
    layers: list[list[tuple[Residual, Block]]]
    final_norm: Norm | None
    heads: int
    norm: str
    activation: str


def export_ctranslate2(run: str | Path | Run, folder: str | Path) -> Path:
    """Write a run's model as a CTranslate2 folder with the run's tokenizer.json; return its path.

    Raises RunError if the model is not a standard Transformer (sinusoidal or learned positions;
    layers of residual blocks with one norm around self-attention, cross-attention and
    feed-forward), CTranslate2 is not installed, or `folder` exists.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    target = Path(folder)
    require_absent(target)
    try:
        import ctranslate2
    except ModuleNotFoundError:
        message = "the package `ctranslate2` is not installed"
        raise RunError.of(message, "pip install ctranslate2") from None
    try:
        spec = build_spec(opened, ctranslate2.specs)
    except UnsupportedModel as reason:
        message = f"CTranslate2 does not support this model: {reason}"
        fix = "translate with it here: `seqcomposer translate RUN`"
        raise RunError.of(message, fix, str(opened.run_dir.path)) from None
    with atomic_directory(target) as draft:
        spec.save(str(draft))
        opened.tokenizers.save(draft / opened.run_dir.tokenizer.name)
    return target


def transformer_stacks(run: Run) -> tuple[TransformerStack, TransformerStack]:
    """Return the encoder and the decoder. Raises UnsupportedModel."""
    model = run.model
    encoders = list(model.readers().values())
    if len(encoders) != 1:
        raise UnsupportedModel(f"it has {len(encoders)} encoders, and only one is supported")
    for embedding in (encoders[0].embedding, model.embedding):
        if not isinstance(embedding, Embedding):
            raise UnsupportedModel("its embeddings are not learned vectors")
    is_linear = isinstance(model.output, LinearOutput) and not isinstance(model, JointModel)
    if not is_linear or model.length is not None:
        raise UnsupportedModel("its output is not a linear layer that predicts the end of a text")
    encoder_kinds = (SelfAttention, FeedForward)
    decoder_kinds = (SelfAttention, CrossAttention, FeedForward)
    encoder = to_transformer_stack(run.recipe, encoders[0].stack, encoder_kinds)
    return encoder, to_transformer_stack(run.recipe, model.decoder, decoder_kinds)


def to_transformer_stack(
    recipe: Recipe, stack: Stack, kinds: Sequence[type[Block]]
) -> TransformerStack:
    """Return a stack as layers of `kinds`, with their settings. Raises UnsupportedModel."""
    first, *rest = list(unrolled_blocks(recipe, stack)) or [stack]
    if not isinstance(first, Positions):
        raise UnsupportedModel(f"it starts with {_path(stack, first)}, not with `positions`")
    final_norm = cast(Norm, rest.pop()) if rest and isinstance(rest[-1], Norm) else None
    if not rest or len(rest) % len(kinds):
        raise UnsupportedModel(f"{len(rest)} residuals do not make layers of {len(kinds)}")
    pairs = [*map(partial(residual_and_inner, recipe), rest, cycle(kinds))]
    layers = [pairs[index : index + len(kinds)] for index in range(0, len(pairs), len(kinds))]
    inner = [block for _, block in pairs]
    attentions = [block for block in inner if isinstance(block, CrossAttention)]
    for block in attentions:
        if recipe.settings_at(block.path)["from"] not in ONLY_ENCODER:
            raise UnsupportedModel(f"{_path(stack, block)} does not read the encoder's output")
    norm = _shared_value("norm", (residual.placed for residual, _ in pairs))
    if norm == "none":
        raise UnsupportedModel("its residuals have no norm")
    if norm == "post" and final_norm is not None:
        raise UnsupportedModel("it has a norm after the last layer's own")
    with_heads = [block for block in inner if not isinstance(block, FeedForward)]
    heads = _shared_value(
        "heads", (recipe.settings_at(block.path)["heads"] for block in with_heads)
    )
    feed_forwards = [block for block in inner if isinstance(block, FeedForward)]
    activation = _shared_value("activation", (block.activation for block in feed_forwards))
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"the activation `{activation}` is not supported")
    return TransformerStack(first, layers, final_norm, heads, norm, activation)


def unrolled_blocks(recipe: Recipe, stack: Stack) -> Iterator[Block]:
    """Yield the blocks in order, repeats unrolled, without dropout. Raises UnsupportedModel."""
    for block in stack.inner():
        for setting, value in DEFAULTS.get(type(block), {}).items():
            supported = value if isinstance(value, tuple) else (value,)
            if recipe.settings_at(block.path)[setting] not in supported:
                raise UnsupportedModel(
                    f"`{setting}` of {_path(stack, block)} is not {supported[0]}"
                )
        if isinstance(block, Repeat):
            if block.times is None or len(block.stacks) not in (1, block.times):
                reason = "has a variable number of iterations, or shares sets of parameters"
                raise UnsupportedModel(f"{_path(stack, block)} {reason}")
            for iteration in range(block.times):
                inner = block.stacks[iteration % len(block.stacks)]
                yield from unrolled_blocks(recipe, cast(Stack, inner))
        elif not isinstance(block, Dropout):
            yield block


def residual_and_inner(recipe: Recipe, block: Block, kind: type[Block]) -> tuple[Residual, Block]:
    """Return a residual block and its only inner block, of `kind`. Raises UnsupportedModel."""
    if isinstance(block, Residual):
        inner, *more = [*unrolled_blocks(recipe, block.stack), None]
        if isinstance(inner, kind) and more == [None]:
            return block, inner
    name = kind.__module__.rpartition(".")[2]
    raise UnsupportedModel(f"expected a residual around one `{name}` at {_path(block, block)}")


def _shared_value(setting: str, values: Iterator[object]) -> Any:
    distinct = set(values)
    if len(distinct) != 1:
        listing = ", ".join(map(str, sorted(distinct, key=str)))
        raise UnsupportedModel(f"its layers differ in `{setting}`: {listing}")
    return distinct.pop()


def _path(stack: Block, block: Block) -> str:
    return f"`{'.'.join(map(str, block.path or stack.path))}`"


def build_spec(run: Run, specs: Any) -> Any:
    """Return CTranslate2's specification with weights and vocabularies. Raises UnsupportedModel."""
    encoder, decoder = transformer_stacks(run)
    kinds = specs.transformer_spec
    options = _options(encoder, specs), _options(decoder, specs)
    spec = kinds.TransformerSpec(
        kinds.TransformerEncoderSpec(len(encoder.layers), encoder.heads, **options[0]),
        kinds.TransformerDecoderSpec(len(decoder.layers), decoder.heads, **options[1]),
    )
    model: Any = run.model
    ((side, reader),) = model.readers().items()
    # CTranslate2 also multiplies embeddings by the square root of the width
    spec.encoder.embeddings[0].weight = _to_numpy(reader.embedding.weight)
    spec.decoder.embeddings.weight = _to_numpy(model.embedding.weight)
    bias = model.output.bias
    if bias is None:
        bias = model.output.weight.new_zeros(len(model.output.weight))
    _copy_linear(spec.decoder.projection, model.output.weight, bias)
    spec.decoder.projection.bias[[PAD, BOS]] = NEVER  # decoding here never outputs them
    _copy_stack(spec.encoder, encoder)
    _copy_stack(spec.decoder, decoder)
    tokens = run.tokenizers.vocabulary(TARGET)
    spec.register_source_vocabulary(run.tokenizers.vocabulary(side))
    spec.register_target_vocabulary(tokens)
    config = spec.config
    config.layer_norm_epsilon, config.add_source_eos = 1e-5, True  # see DEFAULTS
    config.bos_token = config.decoder_start_token = tokens[BOS]
    config.eos_token, config.unk_token = tokens[EOS], tokens[UNK]
    spec.validate()
    return spec


def _options(stack: TransformerStack, specs: Any) -> dict[str, object]:
    activation = getattr(specs.common_spec.Activation, ACTIVATIONS[stack.activation], None)
    if activation is None:
        message = f"this version of CTranslate2 has no activation `{stack.activation}`"
        raise UnsupportedModel(message)
    return {
        "pre_norm": stack.norm == "pre",
        "no_final_norm": stack.final_norm is None,
        "activation": activation,
        "ffn_glu": stack.activation in GATE_FIRST,
    }


def _copy_stack(spec: Any, stack: TransformerStack) -> None:
    spec.position_encodings.encodings = position_encodings(stack.positions)
    if stack.final_norm is not None:
        _copy_norm(spec.layer_norm, stack.final_norm.normalise)
    for layer, residuals in zip(spec.layer, stack.layers, strict=True):
        for residual, block in residuals:
            part = getattr(layer, LAYER_PARTS[type(block)])
            _copy_norm(part.layer_norm, residual.norm)
            if isinstance(block, FeedForward):
                _copy_feed_forward(part, block, stack.activation)
                continue
            attention: Any = block
            query = [attention.query] if isinstance(block, CrossAttention) else []
            modules = (*query, attention.project, attention.merge)
            for linear, module in zip(part.linear, modules, strict=True):
                _copy_linear(linear, module.weight, module.bias)


def position_encodings(positions: Positions) -> np.ndarray:
    """Return the encoding of each position, (POSITIONS, D); a table repeats its last row."""
    if positions.table is None:
        return _to_numpy(sinusoidal(torch.arange(POSITIONS)[None], positions.width)[0])
    rows = torch.arange(POSITIONS).clamp(max=positions.table.num_embeddings - 1)
    return _to_numpy(positions.table.weight[rows])


def _copy_feed_forward(spec: Any, block: Any, activation: str) -> None:
    _copy_linear(spec.linear_1, block.contract.weight, block.contract.bias)
    if activation not in GATE_FIRST:
        _copy_linear(spec.linear_0, block.expand.weight, block.expand.bias)
        return
    # one matrix here holds the gate and the gated part; CTranslate2 has two
    halves = list(zip(block.expand.weight.chunk(2), block.expand.bias.chunk(2), strict=True))
    gate, gated = halves if GATE_FIRST[activation] else halves[::-1]
    _copy_linear(spec.linear_0, *gate)
    _copy_linear(spec.linear_0_noact, *gated)


def _copy_norm(spec: Any, norm: nn.Module) -> None:
    spec.gamma, spec.beta = _to_numpy(norm.weight), _to_numpy(norm.bias)


def _copy_linear(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight, spec.bias = _to_numpy(weight), _to_numpy(bias)


def _to_numpy(value: Any) -> np.ndarray:
    return np.array(value.detach().float().cpu().numpy())

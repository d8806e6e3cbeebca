"""`export --ctranslate2`: a standard Transformer for CTranslate2, a fast inference engine for CPUs
and GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
"""Names of activations, ours to CTranslate2's; of a gated one, the activation of the gate."""
GATE_FIRST = {"glu": False, "swiglu": True, "geglu": True}
"""Of gated activations, whether the gate is the first half of the projection."""
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
"""Settings of which CTranslate2 supports one value alone, or several that mean the same."""
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
    """Encoder or decoder of Vaswani et al. 2017; a layer is its residuals, with the block in each."""

    positions: Positions
    layers: list[list[tuple[Residual, Block]]]
    final_norm: Norm | None
    heads: int
    norm: str
    activation: str


def export_ctranslate2(run: str | Path | Run, folder: str | Path) -> Path:
    """Write a run's model as a folder of CTranslate2, with the run's tokenizer.json in it, and
    return its path.

    Raises RunError where the model is no standard Transformer (sinusoidal or learned positions;
    layers of residual blocks with one norm around self-attention, cross-attention and
    feed-forward), where CTranslate2 is not installed, or where `folder` exists.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    target = Path(folder)
    require_absent(target)
    try:
        import ctranslate2
    except ModuleNotFoundError:
        raise RunError.of(
            "the package `ctranslate2` is not installed", "pip install ctranslate2"
        ) from None
    try:
        spec = build_spec(opened, ctranslate2.specs)
    except UnsupportedModel as reason:
        message = f"CTranslate2 has no such model: {reason}"
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
        raise UnsupportedModel(f"it has {len(encoders)} encoders, and one is known")
    if not isinstance(encoders[0].embedding, Embedding) or not isinstance(
        model.embedding, Embedding
    ):
        raise UnsupportedModel("its embeddings are not learned vectors")
    if (
        not isinstance(model.output, LinearOutput)
        or model.length is not None
        or isinstance(model, JointModel)
    ):
        raise UnsupportedModel(
            "its output is not a linear map to the vocabulary, ended by the model"
        )
    encoder = to_transformer_stack(run.recipe, encoders[0].stack, (SelfAttention, FeedForward))
    return encoder, to_transformer_stack(
        run.recipe, model.decoder, (SelfAttention, CrossAttention, FeedForward)
    )


def to_transformer_stack(
    recipe: Recipe, stack: Stack, kinds: Sequence[type[Block]]
) -> TransformerStack:
    """Return a stack as layers of `kinds`, with the settings that all of them share. Raises
    UnsupportedModel.
    """
    first, *rest = list(unrolled_blocks(recipe, stack)) or [stack]
    if not isinstance(first, Positions):
        raise UnsupportedModel(f"expected `positions` first, and found {_path(stack, first)}")
    final_norm = cast(Norm, rest.pop()) if rest and isinstance(rest[-1], Norm) else None
    if not rest or len(rest) % len(kinds):
        raise UnsupportedModel(f"{len(rest)} residuals are no layers of {len(kinds)}")
    pairs = [
        residual_and_inner(recipe, block, kinds[index % len(kinds)])
        for index, block in enumerate(rest)
    ]
    layers = [pairs[index : index + len(kinds)] for index in range(0, len(pairs), len(kinds))]
    inner = [block for _, block in pairs]
    for block in inner:
        if (
            isinstance(block, CrossAttention)
            and recipe.settings_at(block.path)["from"] not in ONLY_ENCODER
        ):
            raise UnsupportedModel(
                f"{_path(stack, block)} reads something else than the encoder's end"
            )
    norm = _shared_value("norm", (residual.placed for residual, _ in pairs))
    if norm == "none":
        raise UnsupportedModel("its residuals have no norm")
    if norm == "post" and final_norm is not None:
        raise UnsupportedModel("a norm comes after the last layer's own")
    attentions = [block for block in inner if not isinstance(block, FeedForward)]
    heads = _shared_value(
        "heads", (recipe.settings_at(block.path)["heads"] for block in attentions)
    )
    activation = _shared_value(
        "activation", (block.activation for block in inner if isinstance(block, FeedForward))
    )
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"the activation `{activation}` is not known")
    return TransformerStack(first, layers, final_norm, heads, norm, activation)


def unrolled_blocks(recipe: Recipe, stack: Stack) -> Iterator[Block]:
    """Yield the blocks in running order, with every `repeat` unrolled and no dropout. Raises
    UnsupportedModel.
    """
    for block in stack.inner():
        for setting, value in DEFAULTS.get(type(block), {}).items():
            supported = value if isinstance(value, tuple) else (value,)
            if recipe.settings_at(block.path)[setting] not in supported:
                raise UnsupportedModel(
                    f"`{setting}` of {_path(stack, block)} is not {supported[0]}"
                )
        if isinstance(block, Repeat):
            if block.times is None or len(block.stacks) not in (1, block.times):
                reason = "repeats as often as the text is long, or has sets of parameters"
                raise UnsupportedModel(f"{_path(stack, block)} {reason}")
            for iteration in range(block.times):
                yield from unrolled_blocks(
                    recipe, cast(Stack, block.stacks[iteration % len(block.stacks)])
                )
        elif not isinstance(block, Dropout):
            yield block


def residual_and_inner(recipe: Recipe, block: Block, kind: type[Block]) -> tuple[Residual, Block]:
    """Return a residual block and the one block of `kind` in it. Raises UnsupportedModel where it
    is anything else.
    """
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
    """Return CTranslate2's specification of the model, with weights and vocabularies. Raises
    UnsupportedModel.
    """
    encoder, decoder = transformer_stacks(run)
    kinds = specs.transformer_spec
    spec = kinds.TransformerSpec(
        kinds.TransformerEncoderSpec(
            len(encoder.layers), encoder.heads, **_options(encoder, specs)
        ),
        kinds.TransformerDecoderSpec(
            len(decoder.layers), decoder.heads, **_options(decoder, specs)
        ),
    )
    model: Any = run.model
    ((side, reader),) = model.readers().items()
    # CTranslate2 multiplies embeddings by the square root of the width, too
    spec.encoder.embeddings[0].weight = _to_numpy(reader.embedding.weight)
    spec.decoder.embeddings.weight = _to_numpy(model.embedding.weight)
    bias = (
        model.output.weight.new_zeros(len(model.output.weight))
        if model.output.bias is None
        else model.output.bias
    )
    _copy_linear(spec.decoder.projection, model.output.weight, bias)
    spec.decoder.projection.bias[[PAD, BOS]] = NEVER  # our decoding never outputs them
    _copy_stack(spec.encoder, encoder)
    _copy_stack(spec.decoder, decoder)
    tokens = run.tokenizers.vocabulary(TARGET)
    spec.register_source_vocabulary(run.tokenizers.vocabulary(side))
    spec.register_target_vocabulary(tokens)
    config = spec.config
    config.layer_norm_epsilon, config.add_source_eos = 1e-5, True  # the epsilon of all our norms
    config.bos_token = config.decoder_start_token = tokens[BOS]
    config.eos_token, config.unk_token = tokens[EOS], tokens[UNK]
    spec.validate()
    return spec


def _options(stack: TransformerStack, specs: Any) -> dict[str, object]:
    activation = getattr(specs.common_spec.Activation, ACTIVATIONS[stack.activation], None)
    if activation is None:
        raise UnsupportedModel(
            f"this version of CTranslate2 has no activation `{stack.activation}`"
        )
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
            for linear, module in zip(
                part.linear, (*query, attention.project, attention.merge), strict=True
            ):
                _copy_linear(linear, module.weight, module.bias)


def position_encodings(positions: Positions) -> np.ndarray:
    """Return what is added at each position, (POSITIONS, D); a learned table repeats its last row."""
    if positions.table is None:
        return _to_numpy(sinusoidal(torch.arange(POSITIONS)[None], positions.width)[0])
    rows = torch.arange(POSITIONS).clamp(max=positions.table.num_embeddings - 1)
    return _to_numpy(positions.table.weight[rows])


def _copy_feed_forward(spec: Any, block: Any, activation: str) -> None:
    _copy_linear(spec.linear_1, block.contract.weight, block.contract.bias)
    if activation not in GATE_FIRST:
        _copy_linear(spec.linear_0, block.expand.weight, block.expand.bias)
        return
    # one matrix of ours holds the gate and what it gates; CTranslate2 has two
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

"""The models of `bare.py` with the weights of a run of `recipes/multi30k/transformer.yaml` or
`gru_attention.yaml`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.bare import GRU, Attention, Layer, Transformer
from blocks.core.contract import Block
from blocks.core.stack import Stack
from blocks.rnn import Rnn
from composer.inference.run import Run


def copy_to_bare(run: Run) -> Transformer | GRU:
    """Return the plain model that a run's recipe describes, with the run's weights."""
    is_recurrent = any(isinstance(block, Rnn) for block in run.model.decoder.blocks)
    bare = (copy_gru if is_recurrent else copy_transformer)(run).eval()
    bare.embedding.weight.data.copy_(run.model.embedding.weight)
    bare.bias.data.copy_(run.model.output.bias)
    return bare


def copy_transformer(run: Run) -> Transformer:
    stacks = {"encoder": encoder_of(run), "decoder": run.model.decoder}
    repeats = {
        side: block.stacks
        for side, stack in stacks.items()
        for block in stack.blocks
        if hasattr(block, "stacks")
    }
    attention, feed_forward = inner_blocks(repeats["encoder"][0])
    hidden = feed_forward.contract.in_features
    bare = Transformer(*sizes_of(run), heads_of(run, attention), hidden, len(repeats["encoder"]))
    for side, layers in (("encoder", bare.encoder), ("decoder", bare.decoder)):
        for layer, stack in zip(layers, repeats[side], strict=True):
            copy_layer(layer, stack)
    for side, norm in (("encoder", bare.encoder_norm), ("decoder", bare.decoder_norm)):
        norm.load_state_dict(stacks[side].blocks[-1].normalise.state_dict())
    return bare


def copy_layer(into: Layer, stack: Stack) -> None:
    """Copy the weights of a layer, with cross-attention or without."""
    residuals, inner = list(stack.blocks), inner_blocks(stack)
    into.norm.load_state_dict(residuals[0].norm.state_dict())
    copy_attention(into.attention, inner[0].project.weight, inner[0].project.bias, inner[0].merge)
    if into.cross is not None:
        into.cross_norm.load_state_dict(residuals[1].norm.state_dict())
        copy_cross_attention(into.cross, inner[1])
    norm, expand, _, contract = into.feed_forward
    norm.load_state_dict(residuals[-1].norm.state_dict())
    expand.load_state_dict(inner[-1].expand.state_dict())
    contract.load_state_dict(inner[-1].contract.state_dict())


def copy_gru(run: Run) -> GRU:
    _, below, _, above, encoder_norm = encoder_of(run).blocks
    _, first, attention, middle_norm, second, feed_forward, decoder_norm = run.model.decoder.blocks
    (cross,), (expansion,) = attention.stack.blocks, feed_forward.stack.blocks
    bare = GRU(*sizes_of(run), heads_of(run, cross), expansion.contract.in_features)
    rnns = (below, above.stack.blocks[0], first, second.stack.blocks[0])
    for into, rnn in zip((bare.below, bare.above, bare.state, bare.second), rnns, strict=True):
        for weights, layer in zip(into.all_weights, rnn.layers, strict=True):
            for weight, value in zip(weights, layer.weights(), strict=True):
                weight.data.copy_(value)
    copy_cross_attention(bare.cross, cross)
    bare.initial.load_state_dict(first.initial.project.state_dict())
    bare.expand.load_state_dict(expansion.expand.state_dict())
    bare.contract.load_state_dict(expansion.contract.state_dict())
    norms = (bare.encoder_norm, bare.middle_norm, bare.decoder_norm)
    for into, norm in zip(norms, (encoder_norm, middle_norm, decoder_norm), strict=True):
        into.load_state_dict(norm.normalise.state_dict())
    return bare


def encoder_of(run: Run) -> Stack:
    return run.model.encoders["source"].stack


def sizes_of(run: Run) -> tuple[int, int]:
    """Return the vocabulary and the width."""
    return run.tokenizers.sizes["target"], run.model.embedding.embedding_dim


def heads_of(run: Run, attention: Block) -> int:
    return run.recipe.settings_at(attention.path)["heads"]


def inner_blocks(layer: Stack) -> list[Block]:
    return [residual.stack.blocks[0] for residual in layer.blocks]


def copy_cross_attention(into: Attention, block: Block) -> None:
    weight = torch.cat((block.query.weight, block.project.weight))
    copy_attention(into, weight, torch.cat((block.query.bias, block.project.bias)), block.merge)


def copy_attention(into: Attention, weight: Tensor, bias: Tensor, merge: nn.Linear) -> None:
    """Copy weights whose rows are those of query, keys and values."""
    width = merge.out_features
    into.query.load_state_dict({"weight": weight[:width], "bias": bias[:width]})
    into.pair.load_state_dict({"weight": weight[width:], "bias": bias[width:]})
    into.merge.load_state_dict(merge.state_dict())

"""GPT-2 (Radford et al. 2019): a decoder with learned positions and norms before its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from composer.importers.checkpoint import Checkpoint, Config
from composer.importers.family import (
    ACTIVATIONS,
    Family,
    Theirs,
    language_model_roles,
    layers_of,
    part_of,
)
from composer.importers.layers import norm
from composer.importers.vocabulary import Roles, Vocabulary

TRAINING_ALONE = [
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "n_ctx",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
]
"""Keys of what counts in training alone, or of heads that are not imported."""
TEMPLATE = """\
model:
  width: {width}
  embedding: {{learned: {{scale: false}}}}
  decoder:
    - positions: {{kind: learned, max_length: {positions}}}
    - repeat:
        times: {layers}
        stack:
          - residual: [norm: {norm}, self_attention: {{heads: {heads}}}]
          - residual: [norm: {norm}, feed_forward: {{hidden: {hidden}, activation: {activation}}}]
    - norm: {norm}
{output}"""


@dataclass(frozen=True)
class Gpt2(Family):
    """Sizes and settings of a model, as config.json says them."""

    model_types: ClassVar = ("gpt2",)
    sides: ClassVar = ("target",)
    constants: ClassVar = r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias"
    width: int
    layers: int
    heads: int
    hidden: int
    eps: float
    activation: str
    positions: int
    is_tied: bool

    @classmethod
    def read(cls, config: Config) -> Gpt2:
        config.expect("scale_attn_weights", True)
        config.expect("scale_attn_by_inverse_layer_idx", False)
        config.expect("add_cross_attention", False)
        config.ignore(*TRAINING_ALONE, "reorder_and_upcast_attn")
        width = config.count("n_embd")
        return cls(
            width=width,
            layers=config.count("n_layer"),
            heads=config.count("n_head"),
            hidden=config.count("n_inner", 4 * width),
            eps=config.value("layer_norm_epsilon", 1e-5),
            activation=config.choice("activation_function", ACTIVATIONS, "gelu_new"),
            positions=config.count("n_positions"),
            is_tied=config.value("tie_word_embeddings", True),
        )

    @classmethod
    def of_recipe(cls, model: Mapping[str, Any]) -> Gpt2:
        times, (first, second) = layers_of(model["decoder"], 1)
        network, width = part_of(second, 1, "feed_forward"), model["width"]
        theirs = {ours: name for name, ours in ACTIVATIONS.items()}
        return cls(
            width=width,
            layers=times,
            heads=part_of(first, 1, "self_attention")["heads"],
            hidden=network["hidden"] or 4 * width,
            eps=part_of(first, 0, "norm")["eps"],
            activation=ACTIVATIONS[theirs[network["activation"]]],
            positions=model["decoder"][0]["positions"]["max_length"] or 512,
            is_tied=model["output"]["tie"] == ["target"],
        )

    def config(self) -> dict[str, object]:
        theirs = {ours: name for name, ours in ACTIVATIONS.items()}
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": self.hidden,
            "n_positions": self.positions,
            "layer_norm_epsilon": self.eps,
            "activation_function": theirs[self.activation],
            "tie_word_embeddings": self.is_tied,
        }

    def roles(self, checkpoint: Checkpoint) -> Roles:
        return language_model_roles(checkpoint)

    def recipe(self) -> str:
        return TEMPLATE.format(
            width=self.width,
            positions=self.positions,
            layers=self.layers,
            norm="layer" if self.eps == 1e-5 else f"{{eps: {self.eps:g}}}",
            heads=self.heads,
            hidden=self.hidden,
            activation=self.activation,
            output="  output: {tie: [target]}\n" if self.is_tied else "",
        )

    def weights(self, theirs: Theirs, vocabulary: Vocabulary, rows: int) -> dict[str, Tensor]:
        start = "" if "wte.weight" in theirs else "transformer."
        embedding = theirs.take(f"{start}wte.weight", rows, self.width)
        ours = {
            "embedding.weight": vocabulary.embedding(embedding),
            "decoder.blocks.0.table.weight": theirs.take(
                f"{start}wpe.weight", self.positions, self.width
            ),
            "output.bias": vocabulary.bias(),
            **norm(theirs, f"{start}ln_f", "decoder.blocks.2.normalise", self.width),
        }
        for layer in range(self.layers):
            name, path = f"{start}h.{layer}", f"decoder.blocks.1.stacks.{layer}.blocks"
            attention, feed_forward = f"{path}.0.stack.blocks", f"{path}.1.stack.blocks"
            maps = (
                ("attn.c_attn", f"{attention}.1.project", 3 * self.width, self.width),
                ("attn.c_proj", f"{attention}.1.merge", self.width, self.width),
                ("mlp.c_fc", f"{feed_forward}.1.expand", self.hidden, self.width),
                ("mlp.c_proj", f"{feed_forward}.1.contract", self.width, self.hidden),
            )
            for their_map, our_map, leaving, arriving in maps:
                # theirs are of a convolution, transposed
                matrix = theirs.take(f"{name}.{their_map}.weight", arriving, leaving)
                ours[f"{our_map}.weight"] = matrix.T.contiguous()
                ours[f"{our_map}.bias"] = theirs.take(f"{name}.{their_map}.bias", leaving)
            ours |= norm(theirs, f"{name}.ln_1", f"{attention}.0.normalise", self.width)
            ours |= norm(theirs, f"{name}.ln_2", f"{feed_forward}.0.normalise", self.width)
        if not self.is_tied:
            output = theirs.take("lm_head.weight", rows, self.width)
            ours["output.weight"] = vocabulary.embedding(output)
        elif "lm_head.weight" in theirs:
            theirs.take_copy("lm_head.weight", embedding)
        return ours

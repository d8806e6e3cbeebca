"""T5 (Raffel et al. 2020, arXiv 1910.10683): a Transformer that knows buckets of distances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from composer.importers.checkpoint import Checkpoint, Config
from composer.importers.family import Family, Theirs, layers_of, part_of, sequence_roles
from composer.importers.vocabulary import Roles, Vocabulary

TRAINING_ALONE = (
    "classifier_dropout",
    "dropout_rate",
    "initializer_factor",
    "is_gated_act",
    "n_positions",
    "scale_decoder_outputs",
)
"""Keys of what counts in training alone, or that follow from others."""
NETWORKS = {"relu": "relu", "gated-gelu": "geglu_tanh", "gated-silu": "swiglu"}
"""Our activation of a feed-forward network by theirs."""
DENSE = {"relu": ("relu",), "geglu_tanh": ("gelu_new", "gelu"), "swiglu": ("silu",)}
"""What they may say of its parts."""
TEMPLATE = """\
model:
  width: {width}
  embedding: {{learned: {{scale: false}}}}
  encoder:
    - repeat:
        times: {encoder_layers}
        stack:
          - residual: [norm: {norm}, self_attention: {attention}]
          - residual: [norm: {norm}, feed_forward: {feed_forward}]
    - norm: {norm}
  decoder:
    - repeat:
        times: {decoder_layers}
        stack:
          - residual: [norm: {norm}, self_attention: {attention}]
          - residual: [norm: {norm}, cross_attention: {{heads: {heads}}}]
          - residual: [norm: {norm}, feed_forward: {feed_forward}]
    - norm: {norm}
{output}"""


@dataclass(frozen=True)
class T5(Family):
    """Sizes and settings of a model, as config.json says them."""

    model_types: ClassVar = ("t5",)
    sides: ClassVar = ("source", "target")
    constants: ClassVar = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias.*"
    width: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    hidden: int
    eps: float
    activation: str
    max_distance: int
    is_tied: bool

    @classmethod
    def read(cls, config: Config) -> T5:
        width, heads = config.count("d_model"), config.count("num_heads")
        config.expect("d_kv", width // heads)
        config.expect("is_encoder_decoder", True)
        config.expect("relative_attention_num_buckets", 32)
        config.ignore(*TRAINING_ALONE)
        layers = config.count("num_layers")
        activation = config.choice("feed_forward_proj", NETWORKS, "relu")
        config.expect(
            "dense_act_fn", {"relu": "relu", "swiglu": "silu"}.get(activation, "gelu_new")
        )
        return cls(
            width=width,
            encoder_layers=layers,
            decoder_layers=config.count("num_decoder_layers", layers),
            heads=heads,
            hidden=config.count("d_ff"),
            eps=config.value("layer_norm_epsilon", 1e-6),
            activation=activation,
            max_distance=config.count("relative_attention_max_distance", 128),
            is_tied=config.value("tie_word_embeddings", True),
        )

    @classmethod
    def of_recipe(cls, model: Mapping[str, Any]) -> T5:
        encoder_layers, (first, second) = layers_of(model["encoder"], 0)
        decoder_layers, _ = layers_of(model["decoder"], 0)
        attention = part_of(first, 1, "self_attention")
        network, width = part_of(second, 1, "feed_forward"), model["width"]
        return cls(
            width=width,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            heads=attention["heads"],
            hidden=network["hidden"] or 4 * width,
            eps=part_of(first, 0, "norm")["eps"],
            activation=network["activation"],
            max_distance=attention["max_distance"] or 128,
            is_tied=bool(model["output"]["tie"]),
        )

    def config(self) -> dict[str, object]:
        theirs = {ours: name for name, ours in NETWORKS.items()}
        return {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "d_model": self.width,
            "d_kv": self.width // self.heads,
            "d_ff": self.hidden,
            "num_layers": self.encoder_layers,
            "num_decoder_layers": self.decoder_layers,
            "num_heads": self.heads,
            "layer_norm_epsilon": self.eps,
            "feed_forward_proj": theirs[self.activation],
            "relative_attention_max_distance": self.max_distance,
            "tie_word_embeddings": self.is_tied,
        }

    def roles(self, checkpoint: Checkpoint) -> Roles:
        return sequence_roles(checkpoint)

    def recipe(self) -> str:
        distance = "" if self.max_distance == 128 else f", max_distance: {self.max_distance}"
        attention = f"{{heads: {self.heads}, positions: t5{distance}, bias: none}}"
        network = f"{{hidden: {self.hidden}, activation: {self.activation}, bias: false}}"
        return TEMPLATE.format(
            width=self.width,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            norm=f"{{kind: rms, eps: {self.eps:g}}}",
            attention=attention,
            feed_forward=network,
            heads=self.heads,
            output="  output: {tie: [source, target]}\n" if self.is_tied else "",
        )

    def weights(self, theirs: Theirs, vocabulary: Vocabulary, rows: int) -> dict[str, Tensor]:
        shared = theirs.take("shared.weight", rows, self.width)
        for copy in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
            if copy in theirs:
                theirs.take_copy(copy, shared)
        ours = {
            "encoders.source.embedding.weight": vocabulary.embedding(shared),
            "output.bias": vocabulary.bias(),
            **self._stack(theirs, "encoder", "encoders.source.stack", self.encoder_layers),
            **self._stack(theirs, "decoder", "decoder", self.decoder_layers),
        }
        if self.is_tied:
            if "lm_head.weight" in theirs:
                theirs.take_copy("lm_head.weight", shared)
            # what is tied has the scale of an embedding, and logits are divided
            last = "decoder.blocks.1.normalise.weight"
            ours[last] = ours[last] * self.width**-0.5
        else:
            ours["embedding.weight"] = ours["encoders.source.embedding.weight"].clone()
            output = theirs.take("lm_head.weight", rows, self.width)
            ours["output.weight"] = vocabulary.embedding(output)
        return ours

    def _stack(self, theirs: Theirs, name: str, path: str, layers: int) -> dict[str, Tensor]:
        """Return the tensors of the encoder or the decoder."""
        width, is_decoder = self.width, path == "decoder"
        bias = theirs.take(
            f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", 32, self.heads
        )
        ours = {
            f"{path}.blocks.1.normalise.weight": theirs.take(
                f"{name}.final_layer_norm.weight", width
            )
        }
        for layer in range(layers):
            block, blocks = f"{name}.block.{layer}", f"{path}.blocks.0.stacks.{layer}.blocks"
            query, *memory = self._maps(theirs, f"{block}.layer.0.SelfAttention")
            at = f"{blocks}.0.stack.blocks.1"
            ours[f"{at}.project.weight"] = torch.cat((query, *memory[:2]))
            ours[f"{at}.merge.weight"] = memory[2]
            ours[f"{at}.relative.bias"] = bias.clone()
            if is_decoder:
                query, *memory = self._maps(theirs, f"{block}.layer.1.EncDecAttention")
                at = f"{blocks}.1.stack.blocks.1"
                ours[f"{at}.query.weight"] = query
                ours[f"{at}.project.weight"] = torch.cat(memory[:2])
                ours[f"{at}.merge.weight"] = memory[2]
                for linear, features in (
                    ("query", width),
                    ("project", 2 * width),
                    ("merge", width),
                ):
                    ours[f"{at}.{linear}.bias"] = torch.zeros(features)
            number = 2 if is_decoder else 1
            for part in range(number + 1):
                ours[f"{blocks}.{part}.stack.blocks.0.normalise.weight"] = theirs.take(
                    f"{block}.layer.{part}.layer_norm.weight", width
                )
            network = f"{block}.layer.{number}.DenseReluDense"
            ours |= self._network(theirs, network, f"{blocks}.{number}.stack.blocks.1")
        return ours

    def _maps(self, theirs: Theirs, name: str) -> list[Tensor]:
        """Return an attention's maps of queries, keys, values and the result.

        Theirs has no factor 1/sqrt(d).
        """
        query, *others = (
            theirs.take(f"{name}.{part}.weight", self.width, self.width) for part in "qkvo"
        )
        return [query * (self.width / self.heads) ** 0.5, *others]

    def _network(self, theirs: Theirs, name: str, path: str) -> dict[str, Tensor]:
        """Return the tensors of a feed-forward network."""
        parts = ("wi",) if self.activation == "relu" else ("wi_0", "wi_1")
        expand = [theirs.take(f"{name}.{part}.weight", self.hidden, self.width) for part in parts]
        return {
            f"{path}.expand.weight": torch.cat(expand),
            f"{path}.contract.weight": theirs.take(f"{name}.wo.weight", self.width, self.hidden),
        }

"""BART (Lewis et al. 2020, arXiv 1910.13461) and Marian (Junczys-Dowmunt et al. 2018), which are
Transformers with the norm after each residual.
"""

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
    layers_of,
    part_of,
    sequence_roles,
)
from composer.importers.layers import cross_attention, feed_forward, norm, self_attention
from composer.importers.vocabulary import Roles, Vocabulary

OFFSET = 2
"""Rows of BART's table of positions before that of the first position."""
TRAINING_ALONE = [
    "activation_dropout",
    "attention_dropout",
    "classifier_dropout",
    "classif_dropout",
    "decoder_layerdrop",
    "dropout",
    "encoder_layerdrop",
    "init_std",
    "max_position_embeddings",
    "num_hidden_layers",
    "bad_words_ids",
    "early_stopping",
    "no_repeat_ngram_size",
    "length_penalty",
    "force_bos_token_to_be_generated",
]
"""Keys of what counts in training alone, or of their search."""
TEMPLATE = """\
model:
  width: {width}
{scale}  residual: {{norm: post}}
  encoder:
{positions}    - repeat:
        times: {encoder_layers}
        stack:
          - residual: [self_attention: {{heads: {encoder_heads}}}]
          - residual: [feed_forward: {{hidden: {encoder_hidden}, activation: {activation}}}]
  decoder:
{positions}    - repeat:
        times: {decoder_layers}
        stack:
          - residual: [self_attention: {{heads: {decoder_heads}}}]
          - residual: [cross_attention: {{heads: {decoder_heads}}}]
          - residual: [feed_forward: {{hidden: {decoder_hidden}, activation: {activation}}}]
  output: {{tie: [source, target]}}
"""


@dataclass(frozen=True)
class Bart(Family):
    """Sizes and settings of a model, as config.json says them."""

    model_types: ClassVar = ("bart", "marian")
    sides: ClassVar = ("source", "target")
    is_marian: bool
    width: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_hidden: int
    decoder_hidden: int
    activation: str
    scale: bool
    positions: int

    @classmethod
    def read(cls, config: Config) -> Bart:
        is_marian = config.value("model_type", "") == "marian"
        config.expect("is_encoder_decoder", True)
        config.expect("tie_word_embeddings", True)
        config.expect("share_encoder_decoder_embeddings", True)
        config.expect("decoder_vocab_size", config.count("vocab_size"))
        # of the first versions, which had other forms of the model
        config.expect("normalize_before", False)
        config.expect("add_final_layer_norm", False)
        config.expect("add_bias_logits", False)
        config.expect("extra_pos_embeddings", OFFSET)
        config.expect("normalize_embedding", not is_marian)
        config.expect("static_position_embeddings", is_marian)
        config.ignore(*TRAINING_ALONE)
        return cls(
            is_marian=is_marian,
            width=config.count("d_model"),
            encoder_layers=config.count("encoder_layers"),
            decoder_layers=config.count("decoder_layers"),
            encoder_heads=config.count("encoder_attention_heads"),
            decoder_heads=config.count("decoder_attention_heads"),
            encoder_hidden=config.count("encoder_ffn_dim"),
            decoder_hidden=config.count("decoder_ffn_dim"),
            activation=config.choice("activation_function", ACTIVATIONS, "gelu"),
            scale=config.value("scale_embedding", False),
            positions=config.count("max_position_embeddings"),
        )

    @classmethod
    def of_recipe(cls, model: Mapping[str, Any]) -> Bart:
        positions = model["encoder"][0]["positions"]
        is_marian = positions["kind"] == "sinusoidal"
        at, width = 1 if is_marian else 2, model["width"]
        encoder_layers, encoder = layers_of(model["encoder"], at)
        decoder_layers, decoder = layers_of(model["decoder"], at)
        networks = [part_of(stack[-1], 0, "feed_forward") for stack in (encoder, decoder)]
        heads = [part_of(stack[0], 0, "self_attention")["heads"] for stack in (encoder, decoder)]
        return cls(
            is_marian=is_marian,
            width=width,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            encoder_heads=heads[0],
            decoder_heads=heads[1],
            encoder_hidden=networks[0]["hidden"] or 4 * width,
            decoder_hidden=networks[1]["hidden"] or 4 * width,
            activation=networks[0]["activation"],
            scale=model["embedding"]["learned"]["scale"],
            positions=positions["max_length"] or 512,
        )

    def config(self) -> dict[str, object]:
        theirs = {ours: name for name, ours in ACTIVATIONS.items()}
        return {
            "model_type": "marian" if self.is_marian else "bart",
            "architectures": [
                "MarianMTModel" if self.is_marian else "BartForConditionalGeneration"
            ],
            "is_encoder_decoder": True,
            "d_model": self.width,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "encoder_attention_heads": self.encoder_heads,
            "decoder_attention_heads": self.decoder_heads,
            "encoder_ffn_dim": self.encoder_hidden,
            "decoder_ffn_dim": self.decoder_hidden,
            "activation_function": theirs[self.activation],
            "scale_embedding": self.scale,
            "max_position_embeddings": self.positions,
            "tie_word_embeddings": True,
            "forced_eos_token_id": None,
            "forced_bos_token_id": None,
        }

    def roles(self, checkpoint: Checkpoint) -> Roles:
        return sequence_roles(checkpoint)

    def recipe(self) -> str:
        positions = "    - positions\n"
        if not self.is_marian:
            positions = (
                f"    - positions: {{kind: learned, max_length: {self.positions}}}\n    - norm\n"
            )
        return TEMPLATE.format(
            width=self.width,
            scale="" if self.scale else "  embedding: {learned: {scale: false}}\n",
            positions=positions,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            encoder_heads=self.encoder_heads,
            decoder_heads=self.decoder_heads,
            encoder_hidden=self.encoder_hidden,
            decoder_hidden=self.decoder_hidden,
            activation=self.activation,
        )

    def prefixes(self) -> Mapping[str, str]:
        return {} if self.is_marian else {"source": "<s>", "target": "<s>"}

    def weights(self, theirs: Theirs, vocabulary: Vocabulary, rows: int) -> dict[str, Tensor]:
        shared = theirs.take("model.shared.weight", rows, self.width)
        for copy in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
            if f"{copy}.weight" in theirs:
                theirs.take_copy(f"{copy}.weight", shared)
        bias = (
            theirs.take("final_logits_bias", 1, rows)[0] if "final_logits_bias" in theirs else None
        )
        ours = {
            "encoders.source.embedding.weight": vocabulary.embedding(shared),
            "output.bias": vocabulary.bias(bias),
        }
        ours |= self._stack(theirs, "model.encoder", "encoders.source.stack", self.encoder_layers)
        ours |= self._stack(theirs, "model.decoder", "decoder", self.decoder_layers)
        return ours

    def _stack(self, theirs: Theirs, name: str, path: str, layers: int) -> dict[str, Tensor]:
        """Return the tensors of the encoder or the decoder."""
        ours: dict[str, Tensor] = {}
        if not self.is_marian:
            table = theirs.take(
                f"{name}.embed_positions.weight", self.positions + OFFSET, self.width
            )
            ours[f"{path}.blocks.0.table.weight"] = table[OFFSET:]
            ours |= norm(
                theirs, f"{name}.layernorm_embedding", f"{path}.blocks.1.normalise", self.width
            )
        is_decoder = path == "decoder"
        hidden = self.decoder_hidden if is_decoder else self.encoder_hidden
        start = 1 if self.is_marian else 2
        for layer in range(layers):
            their_layer = f"{name}.layers.{layer}"
            blocks = f"{path}.blocks.{start}.stacks.{layer}.blocks"
            at = f"{blocks}.0"
            ours |= self_attention(
                theirs, f"{their_layer}.self_attn", f"{at}.stack.blocks.0", self.width
            )
            ours |= norm(theirs, f"{their_layer}.self_attn_layer_norm", f"{at}.norm", self.width)
            if is_decoder:
                at = f"{blocks}.1"
                ours |= cross_attention(
                    theirs, f"{their_layer}.encoder_attn", f"{at}.stack.blocks.0", self.width
                )
                ours |= norm(
                    theirs, f"{their_layer}.encoder_attn_layer_norm", f"{at}.norm", self.width
                )
            at = f"{blocks}.{2 if is_decoder else 1}"
            names = f"{their_layer}.fc1", f"{their_layer}.fc2"
            ours |= feed_forward(theirs, names, f"{at}.stack.blocks.0", self.width, hidden)
            ours |= norm(theirs, f"{their_layer}.final_layer_norm", f"{at}.norm", self.width)
        return ours

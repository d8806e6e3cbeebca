"""BERT (Devlin et al. 2019, arXiv 1810.04805) and sentence encoders of its form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from composer.importers.checkpoint import Checkpoint, Config
from composer.importers.family import ACTIVATIONS, Family, Theirs
from composer.importers.layers import feed_forward, norm, self_attention
from composer.importers.vocabulary import Roles, Vocabulary

START, END = "[CLS]", "[SEP]"
TRAINING_ALONE = (
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "hidden_dropout_prob",
    "max_position_embeddings",
)
"""Keys of what counts in training alone, or that say nothing of what is computed."""
PARTS = ("attention.self.query", "attention.self.key", "attention.self.value")
TEMPLATE = """\
model:
  width: {width}
  embedding: {{learned: {{scale: false}}}}
  encoder:
    - positions: {{kind: learned, max_length: {positions}}}
    - norm: {norm}
    - repeat:
        times: {layers}
        stack:
          - residual: [self_attention: {{heads: {heads}}}]
          - norm: {norm}
          - residual: [feed_forward: {{hidden: {hidden}, activation: {activation}}}]
          - norm: {norm}
"""


@dataclass(frozen=True)
class Bert(Family):
    """Sizes and settings of a model, as config.json says them.

    kinds: Rows of the table of segments, of which all texts here have the first.
    """

    model_types: ClassVar = ("bert",)
    sides: ClassVar = ("source",)
    is_encoder_alone: ClassVar = True
    is_exported: ClassVar = False
    constants: ClassVar = r"(bert\.)?embeddings\.position_ids"
    left_out: ClassVar = r"(bert\.)?pooler\..*|cls\..*"
    width: int
    layers: int
    heads: int
    hidden: int
    eps: float
    activation: str
    positions: int
    kinds: int

    @classmethod
    def read(cls, config: Config) -> Bert:
        config.expect("position_embedding_type", "absolute")
        config.expect("is_decoder", False)
        config.expect("add_cross_attention", False)
        config.ignore(*TRAINING_ALONE)
        return cls(
            width=config.count("hidden_size"),
            layers=config.count("num_hidden_layers"),
            heads=config.count("num_attention_heads"),
            hidden=config.count("intermediate_size"),
            eps=config.value("layer_norm_eps", 1e-12),
            activation=config.choice("hidden_act", ACTIVATIONS, "gelu"),
            positions=config.count("max_position_embeddings"),
            kinds=config.count("type_vocab_size", 2),
        )

    def roles(self, checkpoint: Checkpoint) -> Roles:
        return Roles(checkpoint.id_of(START), checkpoint.id_of(END))

    def recipe(self) -> str:
        return TEMPLATE.format(
            width=self.width,
            positions=self.positions,
            norm=f"{{eps: {self.eps:g}}}",
            layers=self.layers,
            heads=self.heads,
            hidden=self.hidden,
            activation=self.activation,
        )

    def prefixes(self) -> Mapping[str, str]:
        return {"source": START}

    def weights(self, theirs: Theirs, vocabulary: Vocabulary, rows: int) -> dict[str, Tensor]:
        start = "bert." if "bert.embeddings.word_embeddings.weight" in theirs else ""
        words = theirs.take(f"{start}embeddings.word_embeddings.weight", rows, self.width)
        table = theirs.take(
            f"{start}embeddings.position_embeddings.weight", self.positions, self.width
        )
        segments = theirs.take(
            f"{start}embeddings.token_type_embeddings.weight", self.kinds, self.width
        )
        path = "encoders.source.stack.blocks"
        ours = {
            "encoders.source.embedding.weight": vocabulary.embedding(words),
            f"{path}.0.table.weight": table + segments[0],
            **norm(theirs, f"{start}embeddings.LayerNorm", f"{path}.1.normalise", self.width),
        }
        for layer in range(self.layers):
            name, at = f"{start}encoder.layer.{layer}", f"{path}.2.stacks.{layer}.blocks"
            attention, network = f"{at}.0.stack.blocks.0", f"{at}.2.stack.blocks.0"
            names = f"{name}.intermediate.dense", f"{name}.output.dense"
            parts = (*PARTS, "attention.output.dense")
            ours |= self_attention(theirs, name, attention, self.width, parts)
            ours |= feed_forward(theirs, names, network, self.width, self.hidden)
            after = f"{name}.attention.output.LayerNorm"
            ours |= norm(theirs, after, f"{at}.1.normalise", self.width)
            ours |= norm(theirs, f"{name}.output.LayerNorm", f"{at}.3.normalise", self.width)
        return ours

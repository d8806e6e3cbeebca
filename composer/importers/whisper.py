"""Whisper (Radford et al. 2022, arXiv 2212.04356): a Transformer that writes what it hears.

Its sounds have 30 seconds, filled with silence, and its answers begin with special tokens: the
language, the task, and that there are no times. What its search never answers, `suppress_tokens`,
is impossible here; a text to train on should not have it. What transformers leaves out at the first
position alone, `begin_suppress_tokens`, is possible: silence may have an empty answer. A longer
sound is cut, not read window by window, and no lower beam is tried again (section 4.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from composer.errors import RunError
from composer.importers.checkpoint import (
    AGAIN,
    GENERATION,
    PREPROCESSOR,
    TOKENIZER,
    Checkpoint,
    Config,
    read_object,
)
from composer.importers.family import ACTIVATIONS, Family, Theirs, generation_values, sequence_roles
from composer.importers.layers import cross_attention, feed_forward, norm, self_attention
from composer.importers.vocabulary import Roles, Vocabulary, ids_by_token

RATE, HOP, POINTS = 16_000, 160, 400
"""Samples a second, between frames, and of a frame: section 2.2."""
STRIDE = 2
"""Frames to a position of the encoder."""
MULTILINGUAL_ROWS = 51_865
"""Rows of the embedding of models for several languages, or more, as OpenAI's code has it."""
NO_TIMES = "<|notimestamps|>"
TRAINING_ALONE = [
    "activation_dropout",
    "apply_spec_augment",
    "attention_dropout",
    "begin_suppress_tokens",
    "classifier_proj_size",
    "decoder_layerdrop",
    "dropout",
    "encoder_layerdrop",
    "forced_decoder_ids",
    "init_std",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "max_length",
    "median_filter_width",
    "num_hidden_layers",
    "suppress_tokens",
]
"""Keys of what counts in training alone, or of their search, or that `prefixes` stands for."""
DATA = """\
  table:
    train: train.tsv
    val: val.tsv
    test: test.tsv
    source:
      column: sound
      kind: audio
      seconds: {seconds:g}
      normalize: range
      features: {{log_mel: {{bands: {bands}, fft: 400, padding: reflect}}}}
    target: text
"""
TEMPLATE = """\
model:
  width: {width}
  embedding: {{learned: {{scale: false}}}}
  residual: {{norm: pre}}
  encoder:
    - conv: {{kernel: 3, activation: gelu}}
    - conv: {{kernel: 3, stride: 2, activation: gelu}}
    - positions: {{kind: learned, max_length: {sounds}}}
    - repeat:
        times: {encoder_layers}
        stack:
          - residual: [self_attention: {{heads: {encoder_heads}}}]
          - residual: [feed_forward: {{hidden: {encoder_hidden}, activation: {activation}}}]
    - norm
  decoder:
    - positions: {{kind: learned, max_length: {positions}}}
    - repeat:
        times: {decoder_layers}
        stack:
          - residual: [self_attention: {{heads: {decoder_heads}}}]
          - residual: [cross_attention: {{heads: {decoder_heads}}}]
          - residual: [feed_forward: {{hidden: {decoder_hidden}, activation: {activation}}}]
    - norm
  output: {{tie: [target]}}
"""


@dataclass(frozen=True)
class Whisper(Family):
    """Sizes and settings of a model, as config.json says them.

    sounds: Positions of the encoder. prefix: What every answer begins with.
    """

    model_types: ClassVar = ("whisper",)
    sides: ClassVar = ("target",)
    is_exported: ClassVar = False
    width: int
    bands: int
    encoder_layers: int
    decoder_layers: int
    encoder_heads: int
    decoder_heads: int
    encoder_hidden: int
    decoder_hidden: int
    activation: str
    sounds: int
    positions: int
    prefix: str

    @classmethod
    def read(cls, config: Config) -> Whisper:
        config.expect("is_encoder_decoder", True)
        config.expect("tie_word_embeddings", True)
        config.expect("scale_embedding", False)
        config.expect("use_weighted_layer_sum", False)
        config.ignore(*TRAINING_ALONE)
        checkpoint = Checkpoint(config.file.parent)
        bands = config.count("num_mel_bins", 80)
        check_features(checkpoint, bands)
        return cls(
            width=config.count("d_model"),
            bands=bands,
            encoder_layers=config.count("encoder_layers"),
            decoder_layers=config.count("decoder_layers"),
            encoder_heads=config.count("encoder_attention_heads"),
            decoder_heads=config.count("decoder_attention_heads"),
            encoder_hidden=config.count("encoder_ffn_dim"),
            decoder_hidden=config.count("decoder_ffn_dim"),
            activation=config.choice("activation_function", ACTIVATIONS, "gelu"),
            sounds=config.count("max_source_positions", 1500),
            positions=config.count("max_target_positions", 448),
            prefix=task_prefix(checkpoint),
        )

    def roles(self, checkpoint: Checkpoint) -> Roles:
        """Return the special ids, with those that never are an answer in their search.

        Those of the prefix are possible: it is trained on. Raises RunError for a tokenizer without
        the prefix's tokens.
        """
        roles, path = sequence_roles(checkpoint), checkpoint.folder / TOKENIZER
        ids = ids_by_token(read_object(path))
        begun = set()
        for token in self.prefix.replace("><", "> <").split():
            if token not in ids:
                raise RunError.of(f"it has no token `{token}`", AGAIN, str(path))
            begun.add(ids[token])
        suppressed = generation_values(checkpoint).get("suppress_tokens")
        if not isinstance(suppressed, list):
            return roles
        listed = (row for row in suppressed if type(row) is int and row >= 0)
        return replace(roles, impossible=frozenset(listed) - begun - {roles.start, roles.end})

    def data(self) -> str:
        return DATA.format(seconds=self.sounds * STRIDE * HOP / RATE, bands=self.bands)

    def recipe(self) -> str:
        return TEMPLATE.format(
            width=self.width,
            sounds=self.sounds,
            encoder_layers=self.encoder_layers,
            encoder_heads=self.encoder_heads,
            encoder_hidden=self.encoder_hidden,
            activation=self.activation,
            positions=self.positions,
            decoder_layers=self.decoder_layers,
            decoder_heads=self.decoder_heads,
            decoder_hidden=self.decoder_hidden,
        )

    @classmethod
    def of_recipe(cls, model: Mapping[str, Any]) -> Whisper:
        raise ValueError("what its sounds and answers are is not said by the model")

    def config(self) -> dict[str, object]:
        raise ValueError("it is not exported")

    def prefixes(self) -> Mapping[str, str]:
        return {"target": self.prefix}

    def weights(self, theirs: Theirs, vocabulary: Vocabulary, rows: int) -> dict[str, Tensor]:
        embedding = theirs.take("model.decoder.embed_tokens.weight", rows, self.width)
        if "proj_out.weight" in theirs:
            theirs.take_copy("proj_out.weight", embedding)
        encoder, decoder = "encoders.source.stack", "decoder"
        ours = {
            "embedding.weight": vocabulary.embedding(embedding),
            "output.bias": vocabulary.bias(),
            f"{encoder}.blocks.2.table.weight": theirs.take(
                "model.encoder.embed_positions.weight", self.sounds, self.width
            ),
            f"{decoder}.blocks.0.table.weight": theirs.take(
                "model.decoder.embed_positions.weight", self.positions, self.width
            ),
            **norm(theirs, "model.encoder.layer_norm", f"{encoder}.blocks.4.normalise", self.width),
            **norm(theirs, "model.decoder.layer_norm", f"{decoder}.blocks.2.normalise", self.width),
        }
        for at, arriving in enumerate((self.bands, self.width)):
            name, path = f"model.encoder.conv{at + 1}", f"{encoder}.blocks.{at}"
            ours[f"{path}.weight"] = theirs.take(f"{name}.weight", self.width, arriving, 3)
            ours[f"{path}.bias"] = theirs.take(f"{name}.bias", self.width)
        for layer in range(self.encoder_layers):
            path = f"{encoder}.blocks.3.stacks.{layer}.blocks"
            ours |= self._layer(theirs, f"model.encoder.layers.{layer}", path, False)
        for layer in range(self.decoder_layers):
            path = f"{decoder}.blocks.1.stacks.{layer}.blocks"
            ours |= self._layer(theirs, f"model.decoder.layers.{layer}", path, True)
        return ours

    def _layer(self, theirs: Theirs, name: str, path: str, is_decoder: bool) -> dict[str, Tensor]:
        """Return the tensors of a layer."""
        attention = f"{path}.0"
        ours = self_attention(
            theirs, f"{name}.self_attn", f"{attention}.stack.blocks.0", self.width
        )
        ours |= norm(theirs, f"{name}.self_attn_layer_norm", f"{attention}.norm", self.width)
        if is_decoder:
            reading = f"{path}.1"
            ours |= cross_attention(
                theirs, f"{name}.encoder_attn", f"{reading}.stack.blocks.0", self.width
            )
            ours |= norm(theirs, f"{name}.encoder_attn_layer_norm", f"{reading}.norm", self.width)
        last = f"{path}.{2 if is_decoder else 1}"
        hidden = self.decoder_hidden if is_decoder else self.encoder_hidden
        names = f"{name}.fc1", f"{name}.fc2"
        ours |= feed_forward(theirs, names, f"{last}.stack.blocks.0", self.width, hidden)
        ours |= norm(theirs, f"{name}.final_layer_norm", f"{last}.norm", self.width)
        return ours


def check_features(checkpoint: Checkpoint, bands: int) -> None:
    """Refuse a checkpoint whose sounds are not read as those of Whisper. Raises RunError."""
    settings = checkpoint.optional(PREPROCESSOR)
    expected: dict[str, object] = {
        "sampling_rate": RATE,
        "hop_length": HOP,
        "n_fft": POINTS,
        "feature_size": bands,
        "dither": 0.0,
        "do_normalize": False,
    }
    for key, value in expected.items():
        if settings.get(key, value) not in (value, None):
            message = f"`{key}`: sounds are read with {value}, and this is {settings[key]!r:.60}"
            fix = "import another model; what can be imported is in docs/import.md"
            raise RunError.of(message, fix, str(checkpoint.folder / PREPROCESSOR))


def task_prefix(checkpoint: Checkpoint) -> str:
    """Return the tokens with which answers begin (section 2.3), as text: of the language, English
    where none is said, and of the task; a model for English alone has neither.

    Raises RunError for a language without a token.
    """
    values = generation_values(checkpoint)
    is_multilingual = values.get("is_multilingual")
    if is_multilingual is None:
        is_multilingual = checkpoint.config.count("vocab_size") >= MULTILINGUAL_ROWS
    if not is_multilingual:
        return NO_TIMES
    language = str(values.get("language") or "en").strip("<|>").lower()
    languages = values.get("lang_to_id")
    if isinstance(languages, dict) and f"<|{language}|>" not in languages:
        message = f"`language`: the tokenizer has no token `<|{language}|>`"
        fix = "write the code of the language, such as `en`"
        raise RunError.of(message, fix, str(checkpoint.folder / GENERATION))
    return f"<|{language}|><|{values.get('task') or 'transcribe'}|>{NO_TIMES}"

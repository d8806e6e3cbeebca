"""Models and data that are measured: recipes, generated texts, and the peers' models at the same
sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.bare import Attention, Transformer
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import BOS, EOS, NUM_SPECIAL, PAD
from composer.recipe.recipe import Recipe, load_text


class Size(NamedTuple):
    """Sizes of a model and of its batches. tokens: target positions of a batch; words: of a
    sentence.
    """

    width: int
    heads: int
    hidden: int
    layers: int
    vocabulary: int
    tokens: int
    words: tuple[int, int]
    pairs: int
    warm_up: int
    steps: int


FULL = Size(512, 8, 2048, 6, 32_000, 25_000, (24, 29), 12_000, 30, 60)
SMALL = Size(16, 2, 32, 1, 40, 100, (3, 6), 60, 1, 2)
WINDOWS = 6
"""Parts of the measured steps, of which the median counts."""

RECIPE = """
recipe: 1
name: {name}
data:
  parallel: {{train: {{source: train.source, target: train.target}}}}
  tokenizer: {{word: {{joint: true, size: {vocabulary}}}}}
model:
  width: {width}
  dropout: 0.1
  output: {{tie: [source, target]}}
  self_attention: {{heads: {heads}, dropout: 0.0}}
  feed_forward: {{hidden: {hidden}, dropout: 0.0}}
  residual: {{norm: pre}}
{stacks}
training:
  optimizer: {{adam: {{learning_rate: 1e-4, beta2: 0.98}}}}
  tokens_per_batch: {tokens}
  max_steps: 1000000
  validate_every: 1000000
  label_smoothing: 0.1
  clip_norm: 1.0
logging: {{wandb: false}}
"""
TRANSFORMER = """
  cross_attention: {{heads: {heads}, dropout: 0.0}}
  encoder:
    - positions
    - dropout
    - repeat: {{times: {layers}, stack: [residual: [self_attention], residual: [feed_forward]]}}
    - norm
  decoder:
    - positions
    - dropout
    - repeat:
        times: {layers}
        stack: [residual: [self_attention], residual: [cross_attention], residual: [feed_forward]]
    - norm
"""
GRU_ATTENTION = """
  cross_attention: {{score: additive, dropout: 0.0}}
  rnn: {{cell: gru}}
  encoder: [dropout, {{rnn: {{bidirectional: true}}}}]
  decoder:
    - dropout
    - recurrent:
        stack:
          - concat: [prev.attended]
          - rnn: {{initial_state: encoder, as: state}}
          - cross_attention: {{query: state}}
          - concat: [state]
          - linear: {{activation: tanh, as: attended}}
"""
MODELS = {"transformer": TRANSFORMER, "GRU with attention and input feeding": GRU_ATTENTION}


def recipe_text(model: str, size: Size) -> str:
    """Return the recipe of a model at a size."""
    sizes = size._asdict()
    return RECIPE.format(name="measured", stacks=MODELS[model].strip("\n").format(**sizes), **sizes)


def build_model(model: str, size: Size) -> EncoderDecoder:
    """Return a model with random weights."""
    return build(recipe_of(model, size), dict.fromkeys(("source", "target"), size.vocabulary))


def recipe_of(model: str, size: Size) -> Recipe:
    return load_text(recipe_text(model, size))


def random_ids(size: Size, rows: int, length: int, seed: int) -> Tensor:
    """Return sentences of one length, with bos and eos. -> (B, T + 2)"""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(NUM_SPECIAL, size.vocabulary, (rows, length), generator=generator)
    return torch.cat((torch.full((rows, 1), BOS), ids, torch.full((rows, 1), EOS)), 1)


def write_texts(folder: Path, size: Size) -> None:
    """Write parallel files of random words; every word of the vocabulary is there."""
    numbers = np.random.default_rng(1)
    words = np.array([f"w{number}" for number in range(size.vocabulary - NUM_SPECIAL)])
    for side in ("source", "target"):
        lengths = numbers.integers(size.words[0], size.words[1] + 1, size.pairs)
        ids = np.concatenate(
            [np.arange(len(words)), numbers.integers(0, len(words), lengths.sum())]
        )[: lengths.sum()]
        rows = np.split(words[ids], np.cumsum(lengths)[:-1])
        (folder / f"train.{side}").write_text(
            "".join(f"{' '.join(row)}\n" for row in rows), encoding="utf-8"
        )


# ------------------------------------------------------------------------------------------- the
# peers


class Logits(nn.Module):
    """A Hugging Face model as a function of source and target ids to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        outputs = self.model(
            source, attention_mask=(source != PAD).long(), decoder_input_ids=target, use_cache=False
        )
        return outputs.logits


def marian(size: Size, dropout: float = 0.1) -> Any:
    """Return Hugging Face's MarianMTModel at a size. Raises ModuleNotFoundError where transformers
    is missing.
    """
    from transformers import MarianConfig, MarianMTModel

    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", size.layers),
            ("attention_heads", size.heads),
            ("ffn_dim", size.hidden),
        )
    }
    config = MarianConfig(
        **{"vocab_size": size.vocabulary, "d_model": size.width, "dropout": dropout, **sides},
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        max_position_embeddings=512,
        scale_embedding=True,
    )
    return MarianMTModel(config)


def plain_transformer(
    size: Size, attention: type[Attention] = Attention, dropout: float = 0.1
) -> Transformer:
    """Return the plain PyTorch Transformer at a size."""
    return Transformer(
        size.vocabulary, size.width, size.heads, size.hidden, size.layers, dropout, attention
    )

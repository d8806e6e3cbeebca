"""The section `model` of a recipe, except its blocks: see `composer.recipe.sections`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from blocks.core.settings import Count, Kind, PositiveProportion, Rate
from composer.recipe.choices import EmbeddingKind, OutputKind, default
from composer.recipe.data_sections import Identifier
from composer.recipe.section import Section, Stack

Names = Annotated[Sequence[str], Kind("texts")]

EMPTY: Any = ()
"""The default of a list or mapping: empty, and nobody can fill it."""


@dataclass(frozen=True, kw_only=True)
class Ctc(Section):
    """CTC over the positions that an encoder leaves, beside the decoder or alone (Graves et al.
    2006). Its answers have no more tokens than these positions.

    The training minimises (1 - w) times the decoder's cross-entropy plus w times the cost of CTC,
    and a search ranks by (1 - w) log p of the decoder plus w log p of CTC (Watanabe et al. 2017).
    Losses and perplexities of measured splits are those of this sum, normalised at each token.

    Settings:
        from: The memory whose positions are the frames: an encoder's name, or `encoder.x` for its
            output named x.
        weight: w, above 0 and at most 1. With 1 CTC is alone, and there is no `decoder`.
    """

    from_: Annotated[str, Kind("memory")] | None = None
    weight: PositiveProportion = 0.3


@dataclass(frozen=True, kw_only=True)
class Output(Section):
    """From the decoder's last output to the vocabulary.

    Settings:
        tie: Sides whose embeddings share one matrix with the output: `source`, `target`, or an
            encoder's name.
        kind: Output head: how logits are computed, and the training cost.
        length: Number of tokens of every target, if all have the same; their end then costs
            nothing.
        ctc: A second way to the vocabulary, from the positions of an encoder.
        bias: Whether each token has a bias, of the heads `linear` and `sampled`.
    """

    tie: Names = EMPTY
    kind: Annotated[OutputKind, Kind("choice:outputs")] = default("linear")
    length: Count | None = None
    ctc: Ctc | None = None
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Model(Section):
    """The model: an encoder, several or none, and a decoder, each a stack of blocks. A block's name
    holds its defaults.

    Settings:
        width: The width of the stream; learned token embeddings have it, and blocks with a `width`
            default to it.
        embedding: How a token becomes a vector.
        embedding_dropout: Probability of dropping a word, 0 <= embedding_dropout < 1: its vector is
            zero wherever it stands in a batch (Gal & Ghahramani 2016, section 4; Merity et al.
            2018, section 4.3).
        dropout: The default of every setting called `dropout`, and of the block `dropout`.
        encoder: The stack that reads the source. Without an encoder the model is a language model
            over the target.
        encoders: Several encoders by name, each a stack; the data then has one key per encoder. A
            line to translate has their texts in this order.
        decoder: The stack that writes the target, one position after another; none where CTC does,
            `output.ctc`.
        output: What maps the decoder's last output to the vocabulary.
        stacks: Named stacks for the block `use`; a second use shares the parameters.
    """

    width: Count
    embedding: Annotated[EmbeddingKind, Kind("choice:embeddings")] = default("learned")
    embedding_dropout: Rate = 0.0
    dropout: Rate = 0.0
    encoder: Stack | None = None
    encoders: dict[Identifier, Stack] | None = None
    decoder: Stack | None = None
    output: Output = Output()
    stacks: dict[Identifier, Stack] = EMPTY

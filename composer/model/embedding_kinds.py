"""Embeddings by their words in a recipe. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from blocks.core.settings import Bounds, Count, Few, Positive
from composer.recipe.choices import EmbeddingKind, TokenPlace

if TYPE_CHECKING:
    from composer.model.encoder_decoder import TokenEmbedding

MaxLength = Annotated[int, Bounds(minimum=3, maximum=1000)]
"""How many bytes of a word count, the two marks included."""
NumLayers = Annotated[int, Bounds(minimum=0, maximum=100)]
"""How many layers, or none."""


class Learned(EmbeddingKind):
    """Learned vector for each token, as wide as `model.width`, with entries of variance 1: sqrt(D)
    E, E ~ N(0, 1/D).

    So Vaswani et al. 2017, section 3.4.

    Settings:
        scale: Whether the vectors are multiplied by sqrt(D), as in the paper.
    """

    word = "learned"
    has_rows = True
    scale: bool = True

    def build(self, place: TokenPlace) -> TokenEmbedding:
        """Return the embedding."""
        from composer.model.encoder_decoder import Embedding

        return Embedding(place.vocabulary, place.width, self.scale)


class Linear(EmbeddingKind):
    """Linear map of the bits of a token of the tokenizer `bits`, or other features: W f(id), W ~
    N(0, 1/F).
    """

    word = "linear"
    is_of_bits = True

    def build(self, place: TokenPlace) -> TokenEmbedding:
        """Return the embedding."""
        from composer.model.bits import LinearEmbedding

        return LinearEmbedding(place.tokenizer.features(place.is_target), place.width)


class OneHot(EmbeddingKind):
    """Unit vector for each token, zeros for the special ones: their sum is a bag of words. Learns
    nothing.

    It is as wide as there are tokens.
    """

    word = "one_hot"
    depends_on_size = True

    def build(self, place: TokenPlace) -> TokenEmbedding:
        """Return the embedding."""
        from composer.model.encoder_decoder import OneHotEmbedding

        return OneHotEmbedding(place.vocabulary)


class Characters(EmbeddingKind):
    """Convolution over the characters of a token, and highway layers (Kim et al. 2016): as wide as
    its features.

    Settings:
        width: The width of a character's vector.
        kernels: How many characters each kernel spans.
        features: How many features each kernel has.
        highway: How many highway layers, 0 or more.
        max_length: How many bytes of a token count, the two marks included.
        padding: Whether windows run on over zeros after the token, as in the authors' program.
        bound: How large any number is at first, drawn evenly; by default each layer draws its own.
    """

    word = "characters"
    width: Few = 15
    kernels: Sequence[Few] = (1, 2, 3, 4, 5, 6)
    features: Sequence[Count] = (25, 50, 75, 100, 125, 150)
    highway: NumLayers = 1
    max_length: MaxLength = 50
    padding: bool = False
    bound: Positive | None = None

    def build(self, place: TokenPlace) -> TokenEmbedding:
        """Return the embedding. Raises BlockError where kernels and features do not fit one
        another, or a word.
        """
        from composer.model.characters import CharacterEmbedding

        return CharacterEmbedding(place.vocabulary, self)


EMBEDDINGS: dict[str, type[EmbeddingKind]] = {
    kind.word: kind for kind in (Learned, Linear, OneHot, Characters)
}
"""Every embedding by its word in a recipe."""

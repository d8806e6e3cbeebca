"""Output heads by their words in a recipe. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from blocks.core.settings import Bounds, Count, Few, NonNegativeInt
from composer.model.embedding_kinds import MaxLength, NumLayers
from composer.recipe.choices import OutputKind, TokenPlace

if TYPE_CHECKING:
    from composer.model.encoder_decoder import OutputHead

Divisor = Annotated[float, Bounds(minimum=1.0)]
"""What the width of each cluster is divided by."""


class Linear(OutputKind):
    """Linear map to a logit for each token: W y + b, without b if `model.output.bias` is false."""

    word = "linear"
    has_rows = True
    depends_on_size = False

    def build(self, place: TokenPlace) -> OutputHead:
        """Return the head."""
        from composer.model.output_heads import LinearOutput

        return LinearOutput(place.width, place.vocabulary, place.has_bias)


class Sigmoid(OutputKind):
    """Sigmoid for each bit of the answer's vectors (tokenizer `bits`), and one for eos (Graves et
    al. 2014, section 4).

    The tokens that are no vector and not eos are impossible.
    """

    word = "sigmoid"
    is_of_bits = has_impossible_tokens = True

    def build(self, place: TokenPlace) -> OutputHead:
        """Return the head."""
        from composer.model.output_heads import SigmoidOutput

        return SigmoidOutput(place.width, place.tokenizer.size)


class Identity(OutputKind):
    """The decoder's last output as it is: a logit for each token but the special ones, which are
    impossible.
    """

    word = "identity"
    has_impossible_tokens = True
    has_end = False

    def build(self, place: TokenPlace) -> OutputHead:
        """Return the head. Raises BlockError where the decoder does not end as wide as there are
        tokens.
        """
        from composer.model.output_heads import IdentityOutput

        return IdentityOutput(place.width, place.vocabulary)


class Adaptive(OutputKind):
    """Adaptive softmax (Grave et al. 2017): a softmax over the first ids and a token for each
    cluster of later ones.

    Settings:
        cutoffs: The first id of each cluster, ascending.
        div_value: By what the width of a cluster is divided, d, from one to the next.
    """

    word = "adaptive"
    trains_on_cost = True
    compile_problem = (
        "sorts the tokens of a batch into clusters of any size, each of which is compiled anew"
    )
    cutoffs: Sequence[Count]
    div_value: Divisor = 4.0

    def build(self, place: TokenPlace) -> OutputHead:
        """Return the head. Raises BlockError where cutoffs do not ascend, or a cluster would have
        no width.
        """
        from composer.model.output_heads import AdaptiveOutput

        return AdaptiveOutput(place.width, place.vocabulary, self)


class Sampled(OutputKind):
    """Linear map to a logit for each token that trains on a few of them (Jean et al. 2015;
    Jozefowicz et al. 2016).

    Settings:
        samples: How many tokens are drawn for a batch, fewer than there are.
    """

    word = "sampled"
    has_rows = trains_on_cost = True
    samples: Count

    def build(self, place: TokenPlace) -> OutputHead:
        """Return the head. Raises BlockError where there are no more tokens than samples."""
        from composer.model.output_heads import SampledOutput

        return SampledOutput(place.width, place.vocabulary, self.samples, place.has_bias)


class Cnn(OutputKind):
    """Scalar products with vectors made of each word's characters (CNN softmax: Jozefowicz et al.
    2016, section 3.2).

    Settings:
        width: The width of a character's vector.
        kernels: How many characters each kernel spans.
        features: How many features each kernel has.
        highway: How many highway layers, 0 or more.
        max_length: How many bytes of a token count, the two marks included.
        correction: The width of c_w; 0 for none.
        samples: How many tokens are drawn for a batch; all without it.
    """

    word = "cnn"
    width: Few = 15
    kernels: Sequence[Few] = (1, 2, 3, 4, 5, 6)
    features: Sequence[Count] = (25, 50, 75, 100, 125, 150)
    highway: NumLayers = 1
    max_length: MaxLength = 50
    correction: NonNegativeInt = 128
    samples: Count | None = None

    @property
    def trains_on_cost(self) -> bool:
        """Whether it trains without the logits of all tokens."""
        return self.samples is not None

    def build(self, place: TokenPlace) -> OutputHead:
        """Return the head. Raises BlockError as `characters` and `sampled` do."""
        from composer.model.output_heads import CnnOutput

        return CnnOutput(place.width, place.vocabulary, self)


class CharLstm(OutputKind):
    """LSTM over the characters of a token, given the decoder's output (Jozefowicz et al. 2016,
    section 3.3).

    Settings:
        width: The width of the LSTM and of a character's vector.
        max_length: How many bytes of a token count, the two marks included; tokens that are alike
            in them are one.
    """

    word = "char_lstm"
    trains_on_cost = evaluates_on_cost = True
    width: Count = 128
    max_length: MaxLength = 50

    def build(self, place: TokenPlace) -> OutputHead:
        """Return the head."""
        from composer.model.char_lstm import CharLstmOutput

        return CharLstmOutput(place.width, place.vocabulary, self)


OUTPUTS: dict[str, type[OutputKind]] = {
    kind.word: kind for kind in (Linear, Sigmoid, Identity, Adaptive, Sampled, Cnn, CharLstm)
}
"""Every output head by its word in a recipe."""

"""Ways of decoding by their words in a recipe: settings and search. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from blocks.core.settings import (
    Bounds,
    Count,
    NonNegative,
    Positive,
    PositiveProportion,
    Proportion,
)
from composer.recipe.choices import Decoder, Engine, Precision

if TYPE_CHECKING:
    from composer.inference.decoders.search import Hypothesis, Search
    from composer.model.encoder_decoder import EncoderDecoder

MAX_BEAM = 1000
MaxLength = Annotated[Count, "tokens of an answer at most, eos included; a longer one is cut"]
MAX_RATIO = (
    "tokens of an answer at most for each token of its source, beside 50 that are always allowed"
)
MaxRatio = Annotated[Positive, MAX_RATIO]
NO_REPEAT = "no n-gram of this many tokens occurs twice in an answer, its forced prefix included"
NoRepeatNgram = Annotated[Count | None, NO_REPEAT]
PRECISION = (
    "what is computed with: bfloat16, or int8 weights on a CPU, where the processor multiplies them"
    " faster"
)
DecodingPrecision = Annotated[Precision, PRECISION]
ENGINE = (
    "what runs the model: PyTorch, or onnxruntime with the programs of `export --onnx`, which are"
    " made once and cached; for trained runs, not for validation"
)
DecodingEngine = Annotated[Engine, ENGINE]
CTC_WEIGHT = (
    "of log p of CTC beside that of the decoder, in place of `model.output.ctc.weight`; 0 is the"
    " decoder alone"
)
CtcWeight = Annotated[Proportion | None, CTC_WEIGHT]
"""Settings that several decoding methods have."""
Temperature = Annotated[
    Positive, "what the logits are divided by, above 0; the lower, the more probable the tokens"
]
TOP_P = (
    "draw among the fewest most probable tokens that have this much together (Holtzman et al. 2020)"
)
TopP = Annotated[PositiveProportion | None, TOP_P]
MIN_P = (
    "draw among the tokens with at least this share of the highest probability (Nguyen et al. 2024)"
)
MinP = Annotated[PositiveProportion | None, MIN_P]
Seed = Annotated[int, Bounds(minimum=0, maximum=2**31 - 1), "where the random numbers start"]


class Greedy(Decoder):
    """Greedy search: choose the most probable token at every position."""

    word = "greedy"
    one_answer = True
    takes_draft = True
    ctc_weight: CtcWeight = None
    no_repeat_ngram: NoRepeatNgram = None
    precision: DecodingPrecision = "float32"
    engine: DecodingEngine = "torch"
    max_length: MaxLength = 512
    max_ratio: MaxRatio = 3.0

    def decode(self, search: Search) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each row."""
        from composer.inference.decoders.greedy import greedy

        return greedy(search, self)


class Sample(Decoder):
    """Sample tokens by their probability; draws depend on the seed and the row's number alone.

    Settings:
        top_k: draw among this many most probable tokens only (Fan et al. 2018)
        repetition_penalty: what the logit of a token that the prompt or the answer has already is
            divided by where it is positive, and multiplied with where it is negative (Keskar et al.
            2019, section 4.1)
    """

    word = "sample"
    takes_draft = True
    draws = True
    temperature: Temperature = 1.0
    top_k: Count | None = None
    top_p: TopP = None
    min_p: MinP = None
    repetition_penalty: Annotated[float, Bounds(minimum=1.0)] = 1.0
    seed: Seed = 1
    no_repeat_ngram: NoRepeatNgram = None
    precision: DecodingPrecision = "float32"
    engine: DecodingEngine = "torch"
    max_length: MaxLength = 512
    max_ratio: MaxRatio = 3.0

    def decode(self, search: Search) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each row."""
        from composer.inference.decoders.sampling import sample

        return sample(search, self)


class Beam(Decoder):
    """Beam search with a length penalty (Wu et al. 2016, section 7).

    A hypothesis y of n tokens, eos counted, is ranked by log p(y) / ((5 + n) / 6) ^ length_penalty.
    A hypothesis that ends keeps its place in the beam, so the beam of the others narrows
    (Sutskever et al. 2014, section 3.2), and a beam of 1 is greedy search. A sequence is done when
    no open hypothesis can still reach a better rank than the n best; a hypothesis that was cut
    ranks behind all that ended.

    Settings:
        size: hypotheses side by side; 1 is greedy search
        length_penalty: exponent of ((5 + n) / 6); 0 ranks by the sum of log p, more favours longer
            answers
    """

    word = "beam"
    size: Annotated[int, Bounds(minimum=1, maximum=MAX_BEAM)] = 5
    length_penalty: NonNegative = 0.6
    ctc_weight: CtcWeight = None
    no_repeat_ngram: NoRepeatNgram = None
    precision: DecodingPrecision = "float32"
    engine: DecodingEngine = "torch"
    max_length: MaxLength = 512
    max_ratio: MaxRatio = 3.0

    def num_hypotheses(self, models: Sequence[EncoderDecoder]) -> int:
        """Return the number of hypotheses decoded at once for each row."""
        return self.size

    def decode(self, search: Search) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each row."""
        from composer.inference.decoders.beam_search import beam

        return beam(search, self)


class Viterbi(Decoder):
    """Find the most probable answer of a decoder that depends on the last token (Viterbi 1967).

    best_t(v) = max over u of best_(t-1)(u) p_t(v | u). Such is the decoder of the Markovian Neural
    GPU, or one that reads no tokens. A token costs a step for each word of the vocabulary, or one
    step if no tokens are read.

    Settings:
        max_length: tokens of an answer at most, eos included
    """

    word = "viterbi"
    first_order = True
    one_answer = True
    precision: DecodingPrecision = "float32"
    engine: DecodingEngine = "torch"
    max_length: MaxLength = 512
    max_ratio: MaxRatio = 3.0

    def num_hypotheses(self, models: Sequence[EncoderDecoder]) -> int:
        """Return the number of hypotheses decoded at once for each row."""
        return models[0].vocabulary if any(model.embedding is not None for model in models) else 1

    def decode(self, search: Search) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each row."""
        from composer.inference.decoders.viterbi import viterbi

        return viterbi(search, self)


class Mbr(Decoder):
    """Minimum Bayes risk: choose the sample most like all samples (Eikema & Aziz 2020, section 5).

    The mean score against the samples estimates the expected score of an answer, which its
    log-probability does not. A model that allocates positions for its answer compares answers of
    different lengths by log-probability.

    Settings:
        samples: samples of each row, which are candidates and references at once; the time grows
            with their square
        metric: sacreBLEU's score of a sentence by which they are compared; bleu is for words with
            spaces between
    """

    word = "mbr"
    samples: Annotated[int, Bounds(minimum=2, maximum=MAX_BEAM)] = 16
    metric: Literal["chrf", "bleu"] = "chrf"
    temperature: Temperature = 1.0
    top_p: TopP = None
    seed: Seed = 1
    no_repeat_ngram: NoRepeatNgram = None
    precision: DecodingPrecision = "float32"
    engine: DecodingEngine = "torch"
    max_length: MaxLength = 512
    max_ratio: MaxRatio = 3.0

    def num_hypotheses(self, models: Sequence[EncoderDecoder]) -> int:
        """Return the number of hypotheses decoded at once for each row."""
        return self.samples

    def decode(self, search: Search) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of each row."""
        from composer.inference.decoders.minimum_bayes_risk import mbr

        return mbr(search, self)


DECODERS: dict[str, type[Decoder]] = {
    kind.word: kind for kind in (Greedy, Sample, Beam, Viterbi, Mbr)
}
"""Every way of decoding by its word in a recipe."""

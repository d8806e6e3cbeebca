"""What each score of an evaluation means: those of `METRICS`, and what is measured of a text beside
them.

The latter say how far a score can be trusted; no training watches them, and no sweep ranks by them.
"""

from __future__ import annotations

from functools import partial

from composer.formatting import significant
from composer.recipe.metrics import Metric, metric_name, metric_of

_Bound = partial(
    Metric, unit="per token", format=partial(significant, digits=4), lower_is_better=True
)
BESIDE: dict[str, Metric] = {
    "unknown_share": Metric(
        label="unknown share",
        meaning=(
            "tokens that the tokenizer does not know, of all but the ends of documents; lower is"
            " better"
        ),
        unit="0 to 1",
        format="{:.1%}".format,
        lower_is_better=True,
    ),
    "perplexity_low": _Bound(
        label="perplexity, low", meaning="lower end of its 95 % interval over documents"
    ),
    "perplexity_high": _Bound(
        label="perplexity, high", meaning="upper end of its 95 % interval over documents"
    ),
}
"""Scores of texts by their names, beside the metrics."""


def score_entry(key: str) -> Metric | None:
    """Return the entry of a score such as `test/bleu` or `test/unknown_share`; None where it has
    none.
    """
    return metric_of(key) or BESIDE.get(metric_name(key))

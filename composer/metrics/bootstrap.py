"""Paired bootstrap of two systems' BLEU (Koehn 2004)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer.metrics.references import References, Texts
from composer.metrics.table import METRICS


def paired_bootstrap(
    systems: Sequence[Texts], references: References, resamples: int, bleu_tokenizer: str
) -> tuple[list[Any], str]:
    """Return sacreBLEU's paired bootstrap of two systems, and its signature.

    A result has the BLEU of a system, `score`, half the width of its 95 % interval, `ci`, and for
    the second system the `p_value`.
    """
    from sacrebleu.significance import PairedTest

    first, second = (list(lines) for lines in systems)
    metrics = {"bleu": METRICS["bleu"].scorer(bleu_tokenizer)}
    columns = [list(lines) for lines in references]
    test = PairedTest(
        [("one", first), ("other", second)], metrics, columns, test_type="bs", n_samples=resamples
    )
    settings, scores = test()
    (results,) = (value for name, value in scores.items() if name != "System")
    return results, str(next(iter(settings.values())))

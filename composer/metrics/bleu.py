"""BLEU's tokenizers: the one that suits a text, their packages, texts that BLEU cannot score."""

from __future__ import annotations

import re
from pathlib import Path

from composer.metrics.references import Compared, References, Texts
from composer.metrics.table import METRICS

MANY_LINES = 1000
"""Lines that are looked at to choose a tokenizer or metrics."""
NGRAM_WORDS = 4
"""Words of a line from which on BLEU says something."""
LONG_WORD = 8
"""Characters that words have on average where no spaces part them."""
UNSPACED_SCRIPTS = {
    "ja-mecab": re.compile("[\u3040-\u30ff]"),  # kana
    # Thai, Lao, Tibetan, Burmese, Khmer
    "char": re.compile("[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff]"),
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),  # Han
}
"""Characters of scripts without spaces, by the tokenizer of BLEU that suits them."""
TOKENIZER_PACKAGES = {
    "ja-mecab": ("MeCab", "sacrebleu[ja]"),
    "flores200": ("sentencepiece", "sentencepiece"),
}
"""The module that a tokenizer of BLEU needs besides sacreBLEU, and what installs it."""
KANA = 0.1
"""Share of kana above which Han characters are Japanese."""
TOKENISED_LINES = 100
"""Lines that end in ` .` from which on sacreBLEU takes a text for a tokenised one."""


def is_downloaded(tokenizer: str) -> bool:
    """True if the pieces of a tokenizer, which are downloaded once, are on this machine."""
    from sacrebleu.tokenizers.tokenizer_spm import SACREBLEU_DIR, SPM_MODELS

    return Path(SACREBLEU_DIR, "models", Path(SPM_MODELS[tokenizer]["url"]).name).exists()


def suggest_bleu_tokenizer(lines: Texts) -> str:
    """Return the tokenizer that suits a text: `13a`, or another where no spaces part its words."""
    text = "".join(lines[:MANY_LINES])
    letters = sum(map(str.isalnum, text))
    words = sum(len(line.split()) for line in lines[:MANY_LINES])
    counts = {name: len(script.findall(text)) for name, script in UNSPACED_SCRIPTS.items()}
    if sum(counts.values()) <= letters / 2 or len(text) <= LONG_WORD * words:
        return "13a"
    if counts["ja-mecab"] > KANA * letters:
        return "ja-mecab"
    return max(counts, key=lambda name: counts[name])


def describe_tokenised(references: References) -> str:
    """Return in words that references look tokenised, as sacreBLEU warns of outputs; "" if not."""
    count = 0
    for column in references:
        count = max(count, sum((line or "").endswith(" .") for line in column))
    if count < TOKENISED_LINES:
        return ""
    return (
        f"{count:,} references end in ` .`, as tokenised text does: BLEU is to be of detokenised"
        " text"
    )


def describe_short(compared: Compared, tokenizer: str) -> str:
    """Return in words that BLEU is 0 since all outputs or all references are short; "" if not."""
    split = METRICS["bleu"].scorer(tokenizer).tokenizer
    references: list[str] = []
    for column in compared.references:
        references += filter(None, column)
    for noun, lines in (("reference", references), ("output", compared.hypotheses)):
        if not any(len(split(line).split()) >= NGRAM_WORDS for line in lines):
            return (
                f"no {noun} has {NGRAM_WORDS} words by BLEU's tokenizer `{tokenizer}`, and so BLEU"
                " is 0"
            )
    return ""

"""Rules of answers and references: scores that come out too low, or not at all."""

from __future__ import annotations

import math

import numpy as np

from blocks.core.fixes import Fix, Remove, Set
from composer.checks.problem import Problems, warning
from composer.checks.read_data import ReadData, Rules
from composer.data.answer_limits import MORE_FRAMES, NO_FRAMES
from composer.data.pairs import TARGET, split_path
from composer.data.round_trips import lost_references
from composer.inference.target_lengths import MIN_LENGTH_LIMIT
from composer.metrics.bleu import describe_tokenised, suggest_bleu_tokenizer

BLEU_TOKENIZER = ("evaluation", "bleu_tokenizer")
WRITE_CASE = Fix(
    "remove `lowercase: true`, or give references in small letters and say that scores ignore case",
    Remove(("data", "lowercase")),
)
WRITE_ALL = Fix(
    "write `tokenizer: bpe` or `unigram`, which write every text, or leave out of the text what is"
    " lost",
    Set(("data", "tokenizer"), "bpe"),
)


def lengths(read: ReadData) -> Problems:
    """No reference is longer than answers may be by default, where no answer can equal it."""
    recipe, data, decoding = read.recipe, read.data, read.recipe.decoding
    if not recipe.sources:
        return
    limits = {"max_length": decoding.max_length, "max_ratio": decoding.max_ratio}
    most, rate = limits.values()
    if recipe.locate((*decoding.at, "max_length")).is_written:
        most = math.inf
    if recipe.locate((*decoding.at, "max_ratio")).is_written:
        rate = math.inf
    measured = [encoded for split, encoded in data.splits.items() if split != "train"]
    measured = measured or [*data.splits.values()]
    cut, longest, ratio = 0, 0, 0.0
    for encoded in measured:
        source = np.max([ids.positions() for ids in encoded.sources.values()], axis=0)  # (rows,)
        target = encoded.target.lengths() + 1  # (rows,) with eos
        limit = np.minimum(most, np.ceil(rate * source) + MIN_LENGTH_LIMIT)
        if (longer := target > limit).any():
            cut, longest = cut + int(longer.sum()), max(longest, int(target[longer].max()))
            needed = (target - MIN_LENGTH_LIMIT)[longer] / np.maximum(source[longer], 1)
            ratio = max(ratio, float(needed.max()))
    if cut:
        needs = {"max_length": longest, "max_ratio": math.ceil(ratio)}
        larger = {key: value for key, value in needs.items() if value > limits[key]}
        counts = f"{cut:,} of {sum(map(len, measured)):,} references"
        message = f"{counts} have more tokens, up to {longest:,}, than answers may have"
        settings = ", ".join(f"{key}: {value}" for key, value in larger.items())
        (key, value), *others = larger.items()
        change = None if others else Set((*decoding.at, key), value)
        fix = Fix(f"write `{decoding.word}: {{{settings}}}`, or more", change)
        yield warning("cut", decoding.at, message, fix)


def references(read: ReadData) -> Problems:
    """The tokenizer can write the references of each split, and they do not look tokenised."""
    recipe, data = read.recipe, read.data
    are_words_known = read.is_all or not recipe.tokenizer.is_trained
    for split, pairs in data.pairs.items() if recipe.sources else ():
        if split == "train":
            continue
        texts = [pairs.sides[TARGET], *pairs.references]
        if message := lost_references(data.tokenizers, texts, are_words_known).describe():
            fix = WRITE_CASE if recipe.data.lowercase else WRITE_ALL
            yield warning("unwritable", recipe.data.tokenizer.at, f"{split}: {message}", fix)
        if _measures_bleu(read) and (message := describe_tokenised(texts)):
            hint = "detokenise them; until then BLEU cannot be compared with that of others"
            yield warning("tokenised", split_path(recipe, split), f"{split}: {message}", hint)


def script(read: ReadData) -> Problems:
    """The references have spaces between words where BLEU's tokenizer splits only at spaces."""
    measured: list[str] = []
    for split, encoded in read.data.splits.items():
        if split != "train":
            measured += encoded.lines
    suggested, word = suggest_bleu_tokenizer(measured), read.recipe.evaluation.bleu_tokenizer
    if word == "13a" != suggested and read.recipe.sources and _measures_bleu(read):
        message = (
            "the references have no spaces between words, so `13a` finds no 4-grams for BLEU in"
            " them"
        )
        text = f"write `evaluation: {{bleu_tokenizer: {suggested}}}`"
        fix = Fix(text, Set(BLEU_TOKENIZER, suggested))
        yield warning("script", BLEU_TOKENIZER, message, fix)


def _measures_bleu(read: ReadData) -> bool:
    return "bleu" in (read.recipe.evaluation.metrics or ["bleu"])


def frames(read: ReadData) -> Problems:
    """CTC has frames enough for answers, which are else left out of the loss."""
    splits = read.data.splits
    counts = {
        split: int((~read.limits.have_frames(encoded)).sum()) for split, encoded in splits.items()
    }
    if any(counts.values()):
        total, impossible = sum(map(len, splits.values())), sum(counts.values())
        of_splits = ", ".join(f"{count:,} of {split}" for split, count in counts.items() if count)
        message = (
            f"{impossible:,} of {total:,} {NO_FRAMES} ({of_splits}); they are left out of the loss"
        )
        yield warning("length", ("model", "output", "ctc"), message, MORE_FRAMES)


RULES: Rules = (lengths, references, script, frames)

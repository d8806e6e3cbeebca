"""`evaluate`: how good a run is on a part of its data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.nn import functional as F

from composer.data.collate import EvalBatchSampler, data_loader
from composer.data.encoding import Encoded
from composer.data.load import load_data
from composer.data.sources import SPLITS, sources, splits
from composer.errors import RunError
from composer.evaluation.metrics import accuracy_by_length, by_length, signatures, text_scores
from composer.inference.decode import evaluation_mode
from composer.inference.run import Run, Translation, decoding_of, open_run, translations
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.output_heads import SigmoidOutput, bits_of
from composer.model.vocabulary import PAD
from composer.recipe.recipe import Recipe

POSITIONS = 2048
"""Target positions whose logits are computed at once."""


def evaluate(
    run: Run | str | Path,
    split: str = "test",
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """All scores of a run on a split, by the names under which they are logged: `test/bleu` and so on.

    `test/bleu_by_source_length` is a list of `{words, lines, bleu}`; of generated data, `test/accuracy_by_length` is
    one of `{tokens, lines, exact_match, in_place}`, each length of the source alone. Where an answer is of vectors of
    bits, these have `bits` too, and `test/bits_per_sequence` is what an answer costs. `test/answers_cut` is a sentence,
    there only if answers were cut at their maximum length. A model without encoders has no translations, so only loss,
    perplexity and token accuracy. overrides: `decoding...=value`, and `data.generate...=value` or
    `data.babi.tasks=[...]`, to ask the run about other data of its task. Raises RunError, RecipeError and DataError.
    """
    opened = run if isinstance(run, Run) else open_run(run, overrides)
    if split not in splits(opened.recipe):
        raise absent(opened.recipe, split)
    found = load_data(opened.recipe, opened.folders(data), opened.tokenizers, [split])
    encoded = found.split(split)
    if not encoded:
        raise RunError.of(f"`{split}` has no lines", "check the files of the recipe", str(opened.folder.recipe))
    scores: dict[str, Any] = token_scores(opened.model, encoded)
    bits = bits_of_rows(opened.model, encoded)
    scores |= {"bits_per_sequence": sum(bits) / len(bits)} if bits else {}
    read = sources(opened.recipe)
    if read:
        texts = found.pairs[split].sides
        scores |= translation_scores(opened, [list(texts[side]) for side in read], list(encoded.lines), bits)
    return {f"{split}/{name}": value for name, value in scores.items()}


def absent(recipe: Recipe, split: str) -> RunError:
    """That a run's data has no such split."""
    there = ", ".join(f"`{each}`" for each in splits(recipe))
    hint = f"say one of {there} with `--split`" if split not in SPLITS else f"the recipe's data has only {there}"
    return RunError.of(f"this run has no data called `{split}`", hint, str(recipe.file))


def token_scores(model: EncoderDecoder, encoded: Encoded) -> dict[str, float]:
    """Loss in nats per target token (eos counted), perplexity and token accuracy, given the true beginning."""
    device = model.device
    nats = right = tokens = 0.0
    with evaluation_mode([model]):
        for batch in data_loader(encoded, EvalBatchSampler(encoded, tokens_per_batch=POSITIONS)):
            read = {side: ids.to(device) for side, ids in batch["sources"].items()}
            target = batch["target_out"].to(device)  # (B, T)
            real = target != PAD
            logits = model(read, batch["target_in"].to(device))[real].float()  # (N, V)
            nats += float(F.cross_entropy(logits, target[real], reduction="sum"))
            right += float((logits.argmax(-1) == target[real]).sum())
            tokens += len(logits)
    loss = nats / tokens
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "token_accuracy": right / tokens}


def bits_of_rows(model: EncoderDecoder, encoded: Encoded) -> list[float]:
    """What the vectors of each answer cost in bits, given the true beginning; nothing where none are written."""
    if not isinstance(model.output, SigmoidOutput):
        return []
    found = [0.0] * len(encoded)
    with evaluation_mode([model]):
        for batch in data_loader(encoded, EvalBatchSampler(encoded, tokens_per_batch=POSITIONS)):
            read = {side: ids.to(model.device) for side, ids in batch["sources"].items()}
            target = batch["target_out"].to(model.device)  # (B, T)
            bits = bits_of(model(read, batch["target_in"].to(model.device)), target)  # (B, T)
            for row, each in zip(batch["rows"].tolist(), bits.sum(1).tolist(), strict=True):
                found[row] = each
    return found


def translation_scores(
    run: Run, texts: Sequence[Sequence[str]], references: Sequence[str], bits: Sequence[float] = ()
) -> dict[str, Any]:
    """The run's translations beside the references. texts: the lines that each encoder reads; bits: of the answers."""
    lines = ["\t".join(row) if len(row) > 1 else row[0] for row in zip(*texts, strict=True)]
    decoding = decoding_of(run.recipe)
    found = [best for best, *_ in translations([run], lines, decoding)]
    hypotheses = [best.text for best in found]
    scores: dict[str, Any] = {**text_scores(hypotheses, references), **signatures()}
    if not run.recipe.dataset.get("babi"):  # how long a question is says nothing of its story
        scores["bleu_by_source_length"] = by_length(texts[0], hypotheses, references)
    if run.recipe.dataset.get("generate"):
        scores["accuracy_by_length"] = accuracy_by_length(texts[0], hypotheses, references, bits)
    return scores | answers_cut(found, next(iter(decoding)))


def answers_cut(found: Sequence[Translation], decoder: str) -> dict[str, str]:
    """A sentence where answers were cut at their maximum length, else nothing."""
    cut = sum(not each.ended for each in found)
    limits = f"`decoding.{decoder}.max_length` and `max_ratio`"
    return {"answers_cut": f"{cut:,} of {len(found):,} answers were cut at {limits}"} if cut else {}

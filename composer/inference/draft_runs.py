"""A run as a draft, which proposes tokens to another run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from composer.data.pairs import TARGET
from composer.errors import RunError
from composer.inference.decoders.speculative import check_draft
from composer.inference.drafts import Draft
from composer.inference.lines import source_form
from composer.inference.run import Run, open_run
from composer.model.ctc import CtcModel
from composer.model.features import feature_settings
from composer.recipe.choices import Decoder
from composer.run_dir import RunDir, find_run


def open_draft(draft: str | Path | Run, runs: Sequence[Run], decoding: Decoder) -> Draft:
    """Return a run, opened or a folder, as what proposes tokens to the only one of some runs.

    It has the same target vocabulary, token by token, and reads nothing else. Raises RunError, also
    where the decoding method takes no draft.
    """
    check_draft([run.model for run in runs], decoding)
    run = runs[0]
    if not isinstance(draft, Run) and not RunDir(find_run(draft)).recipe.exists():
        fix = "write the folder of a smaller run with the same tokenizer"
        raise RunError.of(f"the draft `{draft}` is no run", fix)
    opened = open_run(draft)
    if problem := mismatch(opened, run):
        fix = f"train it with the tokenizer.json of {run.run_dir.path}"
        raise RunError.of(problem, fix, str(opened.run_dir.path))
    return Draft(opened.model.to(run.model.device).with_ctc_weight(0.0))


def mismatch(draft: Run, run: Run) -> str:
    """Return the reason why a run cannot propose tokens to another one; "" if it can."""
    if draft.tokenizers.vocabulary(TARGET) != run.tokenizers.vocabulary(TARGET):
        return (
            "the draft writes other tokens: its target vocabulary is not that of the run that it"
            " drafts for"
        )
    read = run.recipe.sources
    for side in draft.recipe.sources:
        if side not in read:
            return f"the draft reads a `{side}`, and the run that it drafts for has no such encoder"
        if source_form(draft.recipe, side) != source_form(run.recipe, side):
            return f"the draft reads `{side}` as something else than the run that it drafts for"
        is_text = feature_settings(run.recipe.data, side) is None
        if is_text and draft.tokenizers.vocabulary(side) != run.tokenizers.vocabulary(side):
            return (
                f"the draft reads other tokens: the vocabulary of `{side}` is not that of the run"
                " it drafts for"
            )
    if draft.model.max_target_ratio or isinstance(draft.model, CtcModel):
        return "the draft does not write its answer token by token, from the first to the last"
    return ""

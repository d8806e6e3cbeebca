"""Evaluate a run on a split: teacher-forced scores and scores of decoded texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from composer.atomic_io import check_output, refuse_overwriting
from composer.checks.machine import bleu_package
from composer.checks.problem import faults
from composer.data.answer_limits import NO_FRAMES, AnswerLimits
from composer.data.columns import open_texts
from composer.data.corpora import open_documents
from composer.data.encoding import encode_pairs, load_data, story_faults
from composer.data.ids import Encoded
from composer.data.pairs import TARGET, Pairs, available_splits, file_options
from composer.data.round_trips import lost_references
from composer.data.split_faults import split_faults
from composer.errors import DataError, RecipeError, RunError, one_line_error
from composer.evaluation.by_length import scores_by_length
from composer.evaluation.hypotheses import write_hypotheses
from composer.fingerprint import sha256_of_columns
from composer.inference.answers import (
    SourceLines,
    Translation,
    answer_lines,
    encoded_lines,
    read_lines,
)
from composer.inference.engine import decoding_models
from composer.inference.lines import Line
from composer.inference.perplexity import teacher_forced
from composer.inference.run import IN_MEMORY, Run, check_compatible, open_run
from composer.metrics.bleu import describe_short, describe_tokenised
from composer.metrics.choice import TextMetrics, choose_metrics
from composer.metrics.references import References, compare, references_of
from composer.metrics.table import metric_name, text_metrics
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.recipe import Recipe
from composer.recipe.schema_reader import REFERENCE, SPLITS, quote_all

Say = Callable[[str], object]
DECODING_SECONDS = 10.0
"""Seconds between two lines about how much has been decoded."""


def evaluate(
    run: Run | str | Path | Sequence[Run | str | Path],
    split: str | None = None,
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    sources: Sequence[str | Path] = (),
    targets: Sequence[str | Path] = (),
    name: str | None = None,
    hypotheses: str | Path | None = None,
    checkpoint: str | int | None = None,
    say: Say | None = None,
) -> dict[str, Any]:
    """Return all scores of a run on a split, by the names under which they are logged: `test/bleu`.

    Beside scores there are, under names that begin with the split:

    - `measured`: the number of `lines`, and the `sha256` of each side: of its texts, or of its
      files' contents.
    - `bleu_by_source_length`: a list of `{words, lines, bleu}`.
    - `accuracy_by_length`, of generated data: a list of `{words, lines, exact_match,
      positional_accuracy}`, and `bits` where answers are vectors of bits.
    - Sentences, only where there is something to say: `without_reference` if lines have no
      reference, which metrics leave out; `unwritable` if the tokenizer cannot write all references;
      `impossible` if CTC has too few frames for answers; `truncated` if outputs were cut at their
      maximum length; `left_out` and others about BLEU.

    A model without encoders has no translations, so only loss, perplexity and token accuracy.

    Args:
        run: The path of a run's folder, or an open run, which takes no overrides and no checkpoint;
            or several of them, an ensemble, which votes by the mean of its probabilities. Data,
            metrics and overrides are the first's.
        split: val, test (the default), the name of one of the recipe's test sets, or train: what is
            trained on of it.
        data: Folder of the data files; by default the one that the run was trained with.
        overrides: `decoding...=value`, `evaluation...=value`, and `data.generate...=value` or
            `data.babi.tasks=[...]`, to evaluate on other data of the same task.
        sources: Text files in place of a split, one for each encoder, in the recipe's order.
        targets: The files of their references: one or more for each line.
        name: What the scores of these files are called in place of a split; by default the first
            target's name.
        checkpoint: `last`, `best` or a step, for the weights of a checkpoint of the run in this
            folder.
        say: What to call with a line about the progress, every ten seconds of decoding.
        hypotheses: File to write with the decoded lines, as JSON lines with `src`, `mt` and `ref`,
            which COMET reads, and `refs` where lines have several references.

    Raises:
        RunError: If the run has no such split.
        RecipeError: If an override is at fault.
        DataError: If the data files are.
    """
    runs = [*run] if isinstance(run, Sequence) and not isinstance(run, str) else [run]
    opened: list[Run] = []
    for item in runs:
        opened.append(open_run(item, () if opened else overrides, checkpoint))
    if not opened:
        raise TypeError("this takes at least one run")
    check_compatible(opened)
    run, *ensemble = opened
    has_files = bool(sources or targets)
    if name and not has_files:
        raise RunError.of(
            "`--name` is for files", "add `--source F --target F`, or choose a split with `--split`"
        )
    if has_files and (data is not None or split is not None):
        raise RunError.of(
            "`--split` and `--data` are for the recipe's own data", "leave them out beside files"
        )
    if hypotheses is not None:
        if not run.recipe.sources:
            message = "a model without encoders decodes nothing to write"
            raise RunError.of(message, "leave out `--hypotheses`")
        check_output(Path(hypotheses), "--hypotheses")
        refuse_overwriting(Path(hypotheses), "--hypotheses")
    if has_files:
        file = Path((*targets, *sources)[0])
        name = name or (file.name if file.stem in available_splits(run.recipe) else file.stem)
        pairs, encoded = _encode_files(run, name, sources, targets)
    else:
        name = split or "test"
        if name not in available_splits(run.recipe):
            raise missing_split(run.recipe, name)
        pairs, encoded = read_split(run, name, data)
    return evaluate_pairs(run, name, pairs, encoded, hypotheses, say, ensemble)


def read_split(run: Run, name: str, data: str | Path | None = None) -> tuple[Pairs, Encoded]:
    """Return the pairs of a split and their ids; of `train` the pairs that are trained on.

    Raises DataError.
    """
    loaded = load_data(run.recipe, run.folders(data), run.tokenizers, [name])
    pairs, encoded = loaded.pairs[name], loaded.splits[name]
    if len(encoded) != len(pairs):
        pairs = pairs.keep(encoded.originals)
    return pairs, encoded


def evaluate_pairs(
    run: Run,
    name: str,
    pairs: Pairs,
    encoded: Encoded,
    hypotheses: str | Path | None = None,
    say: Say | None = None,
    ensemble: Sequence[Run] = (),
) -> dict[str, object]:
    """Return all scores of a run on pairs and their ids, by names that begin with `name`.

    See `evaluate`. ensemble: Further runs that vote.
    """
    models = [run.model, *(voter.model for voter in ensemble)]
    scores, bits = teacher_forced(run.recipe, models, encoded)
    decoded: dict[str, object] = {}
    if run.recipe.sources:
        # in memory: scores by length read single lines, and a packed file is unpacked for each
        references = [list(lines) for lines in (pairs.sides[TARGET], *pairs.references)]
        lines = source_texts(run.recipe, pairs)
        searched = decoding_models([run, *ensemble], run.recipe.decoding)
        decoded, outputs = _decoded_scores(run, searched, lines, encoded, references, bits, say)
        possible = [AnswerLimits.of(model).have_frames(encoded) for model in models]
        if impossible := int((~np.logical_and.reduce(possible)).sum()):
            decoded["impossible"] = (
                f"{impossible:,} of {len(encoded):,} {NO_FRAMES}; they are left out of the loss"
            )
        if hypotheses is not None:
            write_hypotheses(Path(hypotheses), [line[0] for line in lines], outputs, references)
    measured = {"lines": len(encoded), "sha256": sha256_of_columns(run.recipe, pairs)}
    results = decoded | scores | {"measured": measured}
    return {f"{name}/{key}": value for key, value in results.items()}


def _encode_files(
    run: Run, name: str, sources: Sequence[str | Path], targets: Sequence[str | Path]
) -> tuple[Pairs, Encoded]:
    """Return the lines of text files and their ids; further references are sides `target-2` etc."""
    recipe = run.recipe
    check_files(recipe, name, len(sources), len(targets))
    if recipe.reads_text:  # as the recipe's own
        text, hub = recipe.data.text, recipe.data.hub
        unit, column = (text.unit, text.column) if text else ("line", hub.target if hub else "text")
        pairs = Pairs({TARGET: open_documents([*map(Path, targets)], unit, column)})
    else:
        more = [f"{REFERENCE}{number}" for number in range(2, len(targets) + 1)]
        names = [*recipe.sources, TARGET, *more]
        pairs = Pairs(open_texts(dict(zip(names, map(Path, (*sources, *targets)), strict=True))))
        if faults := [*story_faults(recipe, pairs.sides, name)]:
            raise DataError(faults)
    encoded = encode_pairs(recipe, pairs, run.tokenizers)
    if faults := split_faults(recipe, name, encoded, pairs):
        raise DataError(faults)
    return pairs, encoded


def check_files(recipe: Recipe, name: str, sources: int, targets: int) -> None:
    """Raise RunError if so many files do not suit the encoders, or `name` is that of a split."""
    encoders = recipe.sources
    if name in {*SPLITS, *available_splits(recipe)}:
        message = f"`{name}` is the name of a split"
    elif sources == len(encoders) and targets:
        return
    elif encoders:
        message = (
            f"files need a `--source` for each encoder, {', '.join(encoders)}, and a `--target`"
        )
    else:
        message = "this model has no source: files of its text are each a `--target`"
    raise RunError.of(message, f"write, for example, `{file_options(recipe)} --name news`")


def source_texts(recipe: Recipe, pairs: Pairs, count: int | None = None) -> list[Line]:
    """Return the sources of some pairs, the first `count` or all, in memory."""
    columns = [pairs.sides[side] for side in recipe.sources]
    return [*islice(zip(*columns, strict=True), count)]


def run_metrics(run: Run, references: Sequence[str]) -> TextMetrics:
    """Return the metrics that a run's training chose, the same for all its splits.

    Where it chose none, or `evaluation` has other settings now, those of `recipe_metrics` for these
    references.
    """
    recorded = None if run.run_dir == IN_MEMORY else run.run_dir.read().metrics
    settings = run.recipe.evaluation
    if recorded is None or settings.metrics is not None:
        return recipe_metrics(run.recipe, references)
    if recorded.bleu_tokenizer != settings.bleu_tokenizer:
        return recipe_metrics(run.recipe, references)
    if not {*recorded.names} <= {*text_metrics()}:
        raise run.run_dir.invalid_record("in run.json `metrics` is not what a training writes")
    return TextMetrics(recorded.names, recorded.bleu_tokenizer, recorded.left_out)


def recipe_metrics(recipe: Recipe, references: Sequence[str], of: str = "") -> TextMetrics:
    """Return the metrics that suit a recipe and these references, and the watched one.

    of: The split of the references in words, " of val".

    Raises RecipeError if this machine lacks a package of BLEU's tokenizer, RunError if its pieces
    cannot be downloaded.
    """
    if lacking := [*faults(recipe, bleu_package(recipe))]:
        raise RecipeError(lacking)
    try:
        chosen, word = recipe.evaluation.metrics, recipe.evaluation.bleu_tokenizer
        metrics = choose_metrics(
            references, chosen, word, recipe.data.tokenizer.is_of_characters, of
        )
    except OSError as error:  # flores200 is downloaded once
        message = f"BLEU's tokenizer `{word}` cannot be downloaded: {one_line_error(error)}"
        raise RunError.of(
            message, "connect to the network once, or write `bleu_tokenizer: char`"
        ) from error
    stopping = recipe.training.early_stopping
    watched = metric_name(stopping.metric) if stopping else ""
    is_missing = watched in text_metrics() and watched not in metrics.names
    if not is_missing:
        return metrics
    left_out = "" if watched == "bleu" else metrics.left_out
    return replace(metrics, names=(*metrics.names, watched), left_out=left_out)


def missing_split(recipe: Recipe, split: str) -> RunError:
    """Return the error of a split that a run's data does not have."""
    names = available_splits(recipe)
    hint = f"choose one of {quote_all(names)} with `--split`"
    if len(names) == 1:
        hint = f"write `--split {names[0]}`"
    return RunError.of(f"this run has no data called `{split}`", hint, str(recipe.file))


def _decoded_scores(
    run: Run,
    models: Sequence[EncoderDecoder],
    lines: Sequence[Line],
    encoded: Encoded,
    references: References,
    bits: Sequence[float],
    say: Say | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Decode as the recipe says and compare with the references; return scores and outputs."""
    outputs = _decode(run, models, encoded_lines(run.tokenizers, lines, encoded), say)
    texts = [output.text for output in outputs]
    compared = compare(texts, references)
    first = [references_of(row)[0] for row in zip(*compared.references, strict=True)]
    metrics = run_metrics(run, first)
    scores: dict[str, Any] = metrics.scores(texts, references)
    if compared.rows:
        scores |= metrics.signatures(compared.per_line)
    sources = [line[0] for line in lines]
    scores |= scores_by_length(run.recipe, metrics, sources, texts, references, bits)
    if metrics.left_out:
        scores["left_out"] = metrics.left_out
    if without := len(lines) - len(compared.rows):
        scores["without_reference"] = (
            f"{without:,} of {len(lines):,} lines have no reference; they are left out of all"
            " metrics"
        )
    if "bleu" in metrics.names:
        short = describe_short(compared, metrics.bleu_tokenizer) if compared.rows else ""
        if short:
            scores["short_references"] = short
        if tokenised := describe_tokenised(references):
            scores["tokenised_references"] = tokenised
    if unwritable := lost_references(run.tokenizers, references).describe():
        scores["unwritable"] = unwritable
    if cut := sum(not output.ended for output in outputs):
        limits = f"`decoding.{run.recipe.decoding.word}.max_length` and `max_ratio`"
        scores["truncated"] = f"{cut:,} of {len(outputs):,} outputs were cut at {limits}"
    return scores, texts


def decode_lines(run: Run, lines: Sequence[Line], say: Say | None = None) -> list[Translation]:
    """Return the best translation of each line; now and then say the count."""
    models = decoding_models([run], run.recipe.decoding)
    return _decode(run, models, read_lines(run.recipe, run.tokenizers, lines), say)


def _decode(
    run: Run, models: Sequence[EncoderDecoder], lines: SourceLines, say: Say | None
) -> list[Translation]:
    shown = time.monotonic()

    def on_batch(share: float) -> None:
        nonlocal shown
        if say and share < 1 and time.monotonic() - shown >= DECODING_SECONDS:
            shown = time.monotonic()
            say(f"decoded {share * len(lines.rows):,.0f} of {len(lines.rows):,} lines")

    answers = answer_lines(models, run.tokenizers, lines, run.recipe.decoding, on_batch=on_batch)
    return [best for best, *_ in answers]

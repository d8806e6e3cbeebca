"""Evaluate a run on a split: teacher-forced scores, decoded scores, both by source length; hints
from its losses.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

import numpy as np

from composer.atomic_io import atomic_open, check_output, parse_json, read_text, refuse_overwriting
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
from composer.fingerprint import sha256_of_columns
from composer.inference.answers import (
    SourceLines,
    Translation,
    answer_lines,
    encoded_lines,
    read_lines,
)
from composer.inference.lines import Line
from composer.inference.perplexity import teacher_forced
from composer.inference.run import IN_MEMORY, Run, check_compatible, open_run
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.features import feature_settings
from composer.recipe.canonical_form import BUDGET_KEYS
from composer.recipe.metrics import (
    References,
    TextMetrics,
    Texts,
    choose_metrics,
    compare,
    describe_short,
    describe_tokenised,
    is_exact,
    metric_name,
    references_of,
    suggest_bleu_tokenizer,
    text_metrics,
)
from composer.recipe.recipe import Recipe
from composer.recipe.schema_reader import REFERENCE, SPLITS, quote_all
from composer.recipe.training_sections import Training

Say = Callable[[str], object]
Key = TypeVar("Key", int, tuple[int, str])
BUCKET_WIDTH, LAST_BUCKET = 10, 51
"""Words of the source by which a bucket is wide, and with which the last one begins, which is open.
"""


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
    """Return all scores of a run on a split, by the names under which they are logged: `test/bleu`
    and so on.

    `test/measured` has the number of `lines`, and the `sha256` of each side: of its texts, or of
    its files' contents. `test/without_reference` is a sentence, and only there if lines have no
    reference: metrics leave them out. So is `test/unwritable`, if the tokenizer cannot write all
    references, and what is said of BLEU. `test/bleu_by_source_length` is a list of `{words, lines,
    bleu}`. Of generated data, `test/accuracy_by_length` is a list of `{words, lines, exact_match,
    positional_accuracy}`, and `bits` where answers are vectors of bits. `test/impossible` is one if
    CTC has too few frames for answers, `test/truncated` if outputs were cut at their maximum
    length; `test/left_out` says why there is no BLEU. A model without encoders has no translations,
    so only loss, perplexity and token accuracy.

    Args:
        run: The path of a run's folder, or an open run, which takes no overrides and no checkpoint;
            or several of them, an ensemble, which votes by the mean of its probabilities. Data,
            metrics and overrides are the first's.
        split: val, test (the default), the name of one of the recipe's test sets, or train: what is
            trained on of it.
        data: Folder of the data files; the one that the run was trained with by default.
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
    opened = [open_run(one, () if at else overrides, checkpoint) for at, one in enumerate(runs)]
    if not opened:
        raise TypeError("this takes at least one run")
    check_compatible(opened)
    run, *ensemble = opened
    if name and not (sources or targets):
        raise RunError.of(
            "`--name` is for files", "add `--source F --target F`, or choose a split with `--split`"
        )
    if (sources or targets) and (data is not None or split is not None):
        raise RunError.of(
            "`--split` and `--data` are for the recipe's own data", "leave them out beside files"
        )
    if hypotheses is not None and not run.recipe.sources:
        raise RunError.of(
            "a model without encoders decodes nothing to write", "leave out `--hypotheses`"
        )
    if hypotheses is not None:
        check_output(Path(hypotheses), "--hypotheses")
        refuse_overwriting(Path(hypotheses), "--hypotheses")
    if sources or targets:
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
    """Return the pairs of a split and their ids, of `train` those that are trained on. Raises
    DataError.
    """
    loaded = load_data(run.recipe, run.folders(data), run.tokenizers, [name])
    pairs, encoded = loaded.pairs[name], loaded.splits[name]
    return (pairs if len(encoded) == len(pairs) else pairs.keep(encoded.originals)), encoded


def evaluate_pairs(
    run: Run,
    name: str,
    pairs: Pairs,
    encoded: Encoded,
    hypotheses: str | Path | None = None,
    say: Say | None = None,
    ensemble: Sequence[Run] = (),
) -> dict[str, object]:
    """Return all scores of a run on pairs and their ids, by names that begin with `name`; see
    `evaluate`.

    ensemble: Further runs that vote.
    """
    models = [run.model, *(other.model for other in ensemble)]
    scores, bits = teacher_forced(run.recipe, models, encoded)
    decoded: dict[str, object] = {}
    if run.recipe.sources:
        # in memory: scores by length read single lines, and a packed file is unpacked for each
        references = [list(lines) for lines in (pairs.sides[TARGET], *pairs.references)]
        lines = source_texts(run.recipe, pairs)
        decoded, outputs = _decoded_scores(run, models, lines, encoded, references, bits, say)
        have_frames = np.logical_and.reduce(
            [AnswerLimits.of(model).have_frames(encoded) for model in models]
        )
        impossible = int((~have_frames).sum())
        if impossible:
            decoded["impossible"] = (
                f"{impossible:,} of {len(encoded):,} {NO_FRAMES}; they are left out of the loss"
            )
        if hypotheses is not None:
            write_hypotheses(Path(hypotheses), [line[0] for line in lines], outputs, references)
    measured = {"lines": len(encoded), "sha256": sha256_of_columns(run.recipe, pairs)}
    return {
        f"{name}/{key}": value for key, value in (decoded | scores | {"measured": measured}).items()
    }


def _encode_files(
    run: Run, name: str, sources: Sequence[str | Path], targets: Sequence[str | Path]
) -> tuple[Pairs, Encoded]:
    """Return the lines of text files, further references as sides `target-2` and so on, and their
    ids.
    """
    encoders = run.recipe.sources
    is_split = name in {*SPLITS, *available_splits(run.recipe)}
    if len(sources) != len(encoders) or not targets or is_split:
        needed = (
            f"files need a `--source` for each encoder, {', '.join(encoders)}, and a `--target`"
        )
        needed = (
            needed
            if encoders
            else "this model has no source: files of its text are each a `--target`"
        )
        message = f"`{name}` is the name of a split" if is_split else needed
        raise RunError.of(message, f"write, for example, `{file_options(run.recipe)} --name news`")
    if run.recipe.reads_text:  # as the recipe's own
        text, hub = run.recipe.data.text, run.recipe.data.hub
        unit, column = (text.unit, text.column) if text else ("line", hub.target if hub else "text")
        pairs = Pairs({TARGET: open_documents([*map(Path, targets)], unit, column)})
    else:
        names = [
            *encoders,
            TARGET,
            *(f"{REFERENCE}{number + 2}" for number in range(len(targets) - 1)),
        ]
        pairs = Pairs(open_texts(dict(zip(names, map(Path, (*sources, *targets)), strict=True))))
        if faults := [*story_faults(run.recipe, pairs.sides, name)]:
            raise DataError(faults)
    encoded = encode_pairs(run.recipe, pairs, run.tokenizers)
    if faults := split_faults(run.recipe, name, encoded, pairs):
        raise DataError(faults)
    return pairs, encoded


def source_texts(recipe: Recipe, pairs: Pairs, count: int | None = None) -> list[Line]:
    """Return what the encoders read of some pairs, the first `count` or all, in memory."""
    return [*islice(zip(*(pairs.sides[side] for side in recipe.sources), strict=True), count)]


def write_hypotheses(
    file: Path, sources: Sequence[str], outputs: Sequence[str], references: References
) -> None:
    """Write decoded lines as JSON lines with `src`, `mt` and `ref`, which COMET reads; `refs` has
    all of several.

    A blank reference is none: a line without any has no `ref`.
    """
    with atomic_open(file) as target:
        for src, mt, *of in zip(sources, outputs, *references, strict=True):
            refs = references_of(of)
            row = {
                "src": src,
                "mt": mt,
                **({"ref": refs[0]} if refs else {}),
                **({"refs": refs} if refs[1:] else {}),
            }
            target.write(f"{json.dumps(row, ensure_ascii=False)}\n".encode())


def read_hypotheses(file: Path, references: References) -> list[str]:
    """Return the decoded lines of a file of `write_hypotheses`; [] if there is none, or one of
    other references.
    """
    try:
        rows = [parse_json(line) for line in read_text(file).rstrip("\n").split("\n")]
        # an older file has blank references too
        known = [references_of([row.get("ref"), *row.get("refs", [])])[:1] for row in rows]
        expected = [references_of(row)[:1] for row in zip(*references, strict=True)]
        return [str(row["mt"]) for row in rows] if known == expected else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # an older run has none
        return []


def run_metrics(run: Run, references: Sequence[str]) -> TextMetrics:
    """Return the metrics by which a run compares outputs: those that its training chose, the same
    for all its splits.

    Where it chose none, or settings of `evaluation` are others now, those of `recipe_metrics` for
    these references.
    """
    recorded = None if run.run_dir == IN_MEMORY else run.run_dir.read().metrics
    word = run.recipe.evaluation.bleu_tokenizer
    if (
        recorded is None
        or run.recipe.evaluation.metrics is not None
        or recorded.bleu_tokenizer != word
    ):
        return recipe_metrics(run.recipe, references)
    if not {*recorded.names} <= {*text_metrics()}:
        raise run.run_dir.invalid_record("in run.json `metrics` is not what a training writes")
    return TextMetrics(recorded.names, word, recorded.left_out)


def recipe_metrics(recipe: Recipe, references: Sequence[str], of: str = "") -> TextMetrics:
    """Return the metrics by which a recipe compares outputs with these references, with the one
    that stopping watches.

    of: The split of the references in words, " of val".

    Raises RecipeError if this machine lacks what BLEU's tokenizer needs, RunError if it cannot be
    downloaded.
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
    """Return the error for a split that a run's data does not have."""
    names = available_splits(recipe)
    hint = (
        f"write `--split {names[0]}`"
        if len(names) == 1
        else f"choose one of {quote_all(names)} with `--split`"
    )
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
    outputs = _decode(run, models, encoded_lines(lines, encoded), say)
    hypotheses = [output.text for output in outputs]
    compared = compare(hypotheses, references)
    metrics = run_metrics(
        run, [references_of(row)[0] for row in zip(*compared.references, strict=True)]
    )
    scores: dict[str, Any] = metrics.scores(hypotheses, references)
    scores |= metrics.signatures(compared.per_line) if compared.rows else {}
    scores |= scores_by_length(
        run.recipe, metrics, [line[0] for line in lines], hypotheses, references, bits
    )
    if metrics.left_out:
        scores["left_out"] = metrics.left_out
    if without := len(lines) - len(compared.rows):
        scores["without_reference"] = (
            f"{without:,} of {len(lines):,} lines have no reference; they are left out of all"
            " metrics"
        )
    if (
        "bleu" in metrics.names
        and compared.rows
        and (short := describe_short(compared, metrics.bleu_tokenizer))
    ):
        scores["short_references"] = short
    if "bleu" in metrics.names and (tokenised := describe_tokenised(references)):
        scores["tokenised_references"] = tokenised
    if unwritable := lost_references(run.tokenizers, references).describe():
        scores["unwritable"] = unwritable
    if cut := sum(not output.ended for output in outputs):
        limits = f"`decoding.{run.recipe.decoding.word}.max_length` and `max_ratio`"
        scores["truncated"] = f"{cut:,} of {len(outputs):,} outputs were cut at {limits}"
    return scores, hypotheses


def decode_lines(run: Run, lines: Sequence[Line], say: Say | None = None) -> list[Translation]:
    """Return the best translation of each line, as the recipe decodes; say now and then how many
    there are.
    """
    return _decode(run, [run.model], read_lines(run.recipe, run.tokenizers, lines), say)


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


def scores_by_length(
    recipe: Recipe,
    metrics: TextMetrics,
    sources: Texts,
    hypotheses: Texts,
    references: References,
    bits: Sequence[float] = (),
) -> dict[str, list[dict[str, object]]]:
    """Return the tables of scores by source length that suit a recipe's data, by their names in an
    evaluation.
    """
    # a question's length says nothing of its story, nor a file's name of what is in it
    if recipe.data.babi or feature_settings(recipe.data, recipe.sources[0]):
        return {}
    tables = {}
    if recipe.data.generate:
        tables["accuracy_by_length"] = accuracy_by_length(sources, hypotheses, references[0], bits)
    if "bleu" in metrics.names:
        tables["bleu_by_source_length"] = bleu_by_length(sources, hypotheses, references, metrics)
    return tables


def bleu_by_length(
    sources: Texts, hypotheses: Texts, references: References, metrics: TextMetrics
) -> list[dict[str, object]]:
    """Return BLEU (0 to 100) by the length of the source, in buckets, shortest first: `{words:
    "1-10", lines, bleu}`.

    Lengths are in `characters` where the script has no spaces between words. Lines without a
    reference are left out.
    """
    results = []
    is_spaced = suggest_bleu_tokenizer(sources) == "13a"
    unit = "words" if is_spaced else "characters"
    for (_, name), rows in group_rows(
        bucket(len(source.split() if is_spaced else source)) for source in sources
    ):
        columns = [[column[row] for row in rows] for column in references]
        compared = compare([hypotheses[row] for row in rows], columns)
        if compared.rows:
            results.append(
                {unit: name, "lines": len(compared.rows), "bleu": metrics.score("bleu", compared)}
            )
    return results


def group_rows(keys: Iterable[Key]) -> list[tuple[Key, list[int]]]:
    """Return every key, in ascending order, with the row numbers that have it."""
    groups: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return sorted(groups.items())


def bucket(length: int) -> tuple[int, str]:
    """Return the shortest length and the name of a source's bucket: 0, 1-10, ..., 51+."""
    if length == 0:
        return 0, "0"
    first = min((length - 1) // BUCKET_WIDTH * BUCKET_WIDTH + 1, LAST_BUCKET)
    return first, f"{first}+" if first == LAST_BUCKET else f"{first}-{first + BUCKET_WIDTH - 1}"


def accuracy_by_length(
    sources: Texts, hypotheses: Texts, references: Sequence[str | None], bits: Sequence[float] = ()
) -> list[dict[str, Any]]:
    """Return accuracies by the words of the source, shortest first: `{words, lines, exact_match,
    positional_accuracy}`.

    exact_match is the share of outputs equal to the reference, positional_accuracy the share of
    reference words that the output has at the same position, both from 0 to 1. With bits (the cost
    of each reference in bits), their mean is in `bits`. Lines without a reference are left out.
    """
    results = []
    of_rows = [(row, text) for row, text in enumerate(references) if references_of([text])]
    for length, places in group_rows(len(sources[row].split()) for row, _ in of_rows):
        rows = [of_rows[at][0] for at in places]
        exact = sum(is_exact(hypotheses[row], [references[row]]) for row in rows)
        pairs = [(hypotheses[row].split(), (references[row] or "").split()) for row in rows]
        right = sum(word == other for pair in pairs for word, other in zip(*pair, strict=False))
        words = sum(len(reference) for _, reference in pairs)
        result = {"words": length, "lines": len(rows), "exact_match": exact / len(rows)}
        result["positional_accuracy"] = right / max(words, 1)
        results.append(
            result | ({"bits": sum(bits[row] for row in rows) / len(rows)} if bits else {})
        )
    return results


MIN_VALIDATIONS = 3
"""Validations that a learning curve needs before anything is concluded from it."""
MIN_EPOCHS = 3
"""Epochs below which the curve says little about the model."""
MIN_PAIRS = 100
"""Pairs below which scores differ by chance more than by what was changed."""
STILL_FALLING = 0.03
"""Relative fall of val/loss in the last quarter of a training that was stopped too early."""
CONVERGED_LOSS = 0.1
"""Loss, in nats, below which ups and downs mean nothing."""
OVERFITTING = 1.01
"""Final loss as a multiple of the best above which it has risen, rather than fluctuated."""
MOSTLY_UNKNOWN = 0.5
"""Share of unknown tokens above which the loss of a validation says nothing about the model."""
DECODING_SECONDS = 10.0
"""Seconds between two lines about how much has been decoded."""


def training_hints(
    rows: Sequence[Mapping[str, object]],
    pairs: Mapping[str, int],
    epochs: float,
    training: Training,
    unknown: float = 0.0,
) -> list[str]:
    """Say what the learning curve of a finished training suggests to try next; [] if too little is
    known.

    rows: those of metrics.jsonl; pairs: the size of each split; epochs: how often the training saw
    its pairs; training: the recipe's section, which has the budget; unknown: the share of the
    validation's tokens that the tokenizer does not know.
    """
    budget = " and ".join(
        f"`training.{key}`" for key in BUDGET_KEYS if training.limits[key] is not None
    )
    unless = ", unless `training.early_stopping` has ended it" if training.early_stopping else ""
    hint = _curve_hint(rows, epochs, unknown, f"`--resume` with a larger {budget} goes on{unless}")
    hints = [hint] if hint else []
    small = {
        split: pairs[split] for split in ("val", "test") if 0 < pairs.get(split, 0) < MIN_PAIRS
    }
    if small:
        sizes = " and ".join(
            f"{split} has {size} pair{'s' if size > 1 else ''}" for split, size in small.items()
        )
        hints.append(f"{sizes}: so few that scores vary by chance")
    return hints


def _curve(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return the finite values of a metric, each with its step."""
    values = [(int(row["step"]), row.get(name)) for row in rows]
    return [
        (step, value)
        for step, value in values
        if isinstance(value, int | float) and math.isfinite(value)
    ]


def _curve_hint(
    rows: Sequence[Mapping[str, object]], epochs: float, unknown: float, longer: str
) -> str:
    if unknown > MOSTLY_UNKNOWN:
        message = (
            f"{unknown:.0%} of the validation's tokens are unknown to the tokenizer, so that"
            " val/loss says little"
        )
        return f"{message}: validate with texts in the alphabet and language of the training's"
    if 0 < epochs < MIN_EPOCHS:
        return f"trained for only {epochs:.2f} epochs: {longer}"
    losses, trained = (_curve(rows, name) for name in ("val/loss", "train/loss"))
    if len(losses) < MIN_VALIDATIONS:
        return ""
    (best_step, best), (end, last) = min(losses, key=lambda row: row[1]), losses[-1]
    if best < CONVERGED_LOSS:
        return ""
    if last > OVERFITTING * best:
        curve = f"val/loss was lowest after step {best_step:,} of {end:,}"
        if losses[-2][0] <= best_step:
            return f"{curve}, and one validation after it says little: {longer}"
        previous = max((step for step, _ in losses if step < best_step), default=0)
        until = [loss for step, loss in trained if previous < step <= best_step]
        since = [loss for step, loss in trained if step > best_step]
        if until and since and mean(since) >= mean(until):
            return (
                f"{curve}, and train/loss has not fallen since, so this is no overfitting: {longer}"
            )
        curve += (
            " and rose from then on, while train/loss fell" if since else " and rose from then on"
        )
        return (
            f"{curve}: the model overfits. More data helps most, then a larger `model.dropout` or a"
            " smaller model"
        )
    # the best loss before the last quarter, or the first one if the training validated only later
    before = min(loss for step, loss in losses if step <= max(0.75 * end, losses[0][0]))
    fall = 1 - last / before
    if fall > STILL_FALLING:
        curve = f"val/loss was still falling, by {fall:.0%} in the last quarter"
        return f"{curve}. {longer}"
    curve = f"val/loss had converged, it changed by {abs(fall):.1%} in the last quarter"
    return f"{curve}: more data or another model will help more than more time"

"""A run that has been trained: its recipe, its tokenizers and its model, ready to translate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from blocks.core.contract import Output
from composer.data.collate import Batch, BatchDataset
from composer.data.encoding import MAX_TOKENS
from composer.data.pairs import text_names
from composer.data.sampler import BatchSlice
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.fingerprint import check_checkpoint, known_changes, read_verified
from composer.inference.answers import Translation, answer_lines, read_lines
from composer.inference.decode import evaluation_mode
from composer.inference.drafts import Draft
from composer.inference.lines import (
    LINES,
    GivenLine,
    Score,
    check_lines,
    check_positions,
    encode_targets,
    score_targets,
    source_form,
    to_device,
    write_note,
)
from composer.inference.methods import MAX_BEAM, Beam
from composer.metrics.table import best_validation
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.weights import load_weights, set_weights
from composer.recipe.choices import Decoder
from composer.recipe.earlier_versions import TEXTS_AFTER_END
from composer.recipe.recipe import Recipe, load
from composer.run_dir import (
    RESUME,
    RunDir,
    checkpoint_history,
    checkpoint_step,
    checkpoint_weights,
    find_run,
    latest_checkpoint,
    list_checkpoints,
)

if TYPE_CHECKING:
    from composer.runs.record import RunRecord
    from composer.viz.alignments import Alignment

OVERRIDABLE = ("decoding", "evaluation", "data.generate", "data.babi.folder", "data.babi.tasks")
"""Settings that may differ from the training's: the search, its metrics, the task's data."""
IN_MEMORY = RunDir(Path("<in memory>"))
"""The folder of a run that has none."""


class Sample(NamedTuple):
    """A translation with its source and reference; texts of several encoders are joined by tabs."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Run:
    """A trained run. `recipe` is the recipe of the training, with the settings given on opening.

    checkpoint: Where the weights are from, None for the final ones.
    """

    run_dir: RunDir
    recipe: Recipe
    tokenizers: Tokenizers
    model: EncoderDecoder
    checkpoint: Path | None = None

    @classmethod
    def from_model(cls, recipe: Recipe, tokenizers: Tokenizers, model: EncoderDecoder) -> Run:
        """Return a run without a folder: the model of a recipe that a loop of one's own trains."""
        return cls(IN_MEMORY, recipe, tokenizers, model)

    def __fspath__(self) -> str:
        """Return its folder, so that a run can be used as a path."""
        return str(self.run_dir.path)

    def translate(
        self,
        lines: Sequence[GivenLine],
        beam: int | None = None,
        n_best: int = 1,
        scores: bool = False,
        prefix: Sequence[str] | None = None,
        ensemble: Sequence[Run] = (),
        draft: str | Path | Run | None = None,
    ) -> list[Any]:
        """Return the translation of each line, decoded as in the recipe or with this beam.

        With several encoders a line is a tuple of their texts in the recipe's order, or one text
        with tabs between, as on the command line; in a tuple a tab is a character like others. A
        file is a path. Without encoders a line is how a text begins, and the answer all of it. A
        blank line stays empty. With `n_best` above 1 each line has a list of as many, best first,
        whose texts differ; where there are fewer, empty ones of score -inf follow. With `scores`
        they are `Translation`s. `prefix`: how each translation begins. `ensemble`: runs that vote.
        `draft`: a smaller run, for speed alone. Raises DataError, RunError.
        """
        from composer.inference.draft_runs import open_draft

        texts, prefix = check_lines(self.recipe, lines, prefix, "prefixes")
        if n_best < 1:
            raise RunError.of(
                f"there are no {n_best} best translations", "write `n_best=1` or more"
            )
        decoding = decoding_settings(self.recipe, beam)
        runs = [self, *ensemble]
        drafting = None if draft is None else open_draft(draft, runs, decoding)
        results = translate_lines(runs, texts, decoding, prefix, n_best, draft=drafting)
        rows: list[list[Any]] = [list(row) for row in results]
        if not scores:
            for row in rows:
                row[:] = [translation.text for translation in row]
        return rows if n_best > 1 else [row[0] for row in rows]

    def generate(
        self, prompts: Sequence[str] | None = None, samples: int = 1, **settings: Any
    ) -> list[Any]:
        """Return the text after each prompt, or one from its beginning: see `composer.generate`."""
        from composer.inference.generate import generate

        return generate(self, prompts, samples=samples, **settings)

    def batch(self, lines: Sequence[GivenLine], targets: Sequence[str] | None = None) -> Batch:
        """Return the ids of pairs as one padded batch on the model's device, with bos and eos.

        A model without encoders takes the targets alone, as `lines`. Raises RunError and DataError.
        """
        encoded = encode_targets(self.recipe, self.tokenizers, lines, targets)
        rows = BatchSlice(np.arange(len(encoded)), tokens=int(encoded.target.positions().sum()))
        return to_device(BatchDataset(encoded)[rows], self.model.device)

    def logits(self, lines: Sequence[GivenLine], targets: Sequence[str] | None = None) -> Tensor:
        """Return the teacher-forced logits of `batch(lines, targets)`. -> (B, T, V)"""
        batch = self.batch(lines, targets)
        with evaluation_mode([self.model], for_training=True):
            return self.model(batch["sources"], batch["target_in"])

    def encode(self, lines: Sequence[GivenLine]) -> dict[str, Output]:
        """Return the outputs of the encoders by name.

        `encoder` has `states` (B, S, D) and `mask` (B, S).
        """
        sources = self.batch(lines, [""] * len(lines))["sources"]
        with evaluation_mode([self.model], for_training=True):
            return self.model.encode(sources)

    def score(
        self, lines: Sequence[GivenLine], targets: Sequence[str] | None = None
    ) -> list[Score]:
        """Return the log-probabilities of given targets, token by token and summed.

        Of a model of windows each line is measured as `evaluate` measures a text.
        """
        encoded = encode_targets(self.recipe, self.tokenizers, lines, targets)
        return score_targets(self.recipe, self.model, encoded, self.tokenizers)

    def minimal_pairs(self, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """Return the share of pairs where the model prefers `sentence_good`, as BLiMP does.

        `accuracy` is of all `pairs`; `by_UID` and so on are of each paradigm. Ties are wrong.
        Raises RunError.
        """
        from composer.inference.score import minimal_pairs

        return minimal_pairs(self, rows)

    def evaluate(
        self, split: str | None = None, data: str | Path | None = None, ensemble: Sequence[Run] = ()
    ) -> dict[str, Any]:
        """Return all scores on a split (default `test`), by their names in logs: `test/loss` etc.

        data: where data files are looked up first. ensemble: runs that vote. Raises RunError and
        DataError.
        """
        from composer.evaluation.scores import evaluate

        return evaluate([self, *ensemble], split, data)

    def report(self, output: str | Path | None = None, data: str | Path | None = None) -> Path:
        """Write the run's HTML report, `report.html` in its folder by default, and return its path.

        Raises RunError and DataError.
        """
        from composer.viz.report import report

        step = checkpoint_step(self.checkpoint) if self.checkpoint else None
        return report(self.run_dir.path, data=data, output=output, checkpoint=step)

    def alignments(
        self, lines: Sequence[GivenLine], targets: Sequence[str] | None = None
    ) -> list[Alignment]:
        """Return attentions and memory reads of each translated line; notebooks show heat maps.

        targets: What to write in place of the model's own translations. Raises DataError and
        RunFailed.
        """
        from composer.viz.alignments import alignments

        return alignments(self, lines, targets=targets)

    def attention(
        self, lines: Sequence[GivenLine], targets: Sequence[str] | None = None
    ) -> list[dict[str, np.ndarray]]:
        """Return the attention weights of each line by block, (H, T, S)."""
        from composer.viz.alignments import alignments

        lines_maps = alignments(self, lines, targets=targets, max_tokens=MAX_TOKENS)
        return [attention_weights(maps) for maps in lines_maps]

    def folders(self, data: str | Path | None = None) -> list[Path]:
        """Return the folders of data files: `data` or the training's, then the recipe's own."""
        if data is not None or self.run_dir == IN_MEMORY:
            return self.recipe.folders(data)
        return [*map(Path, self.run_dir.read().data.folders), *self.recipe.folders()]


def attention_weights(alignment: Alignment) -> dict[str, np.ndarray]:
    """Return the attention weights of a line by block."""
    return {attention.block: attention.weights for attention in alignment.attentions}


def open_run(
    path: str | Path | Run, overrides: Sequence[str] = (), checkpoint: str | int | None = None
) -> Run:
    """Open the run in a folder, on the fastest device here; return a run that is open as it is.

    overrides: `key=value` settings of OVERRIDABLE. checkpoint: `last`, `best` or a step; without
    it, the final weights, for which the run must have finished.

    Raises RunError where it is no run, has no such weights, or its parts do not belong together;
    RecipeError; TypeError where a run that is open has overrides or a checkpoint.
    """
    if isinstance(path, Run):
        if overrides or checkpoint is not None:
            raise TypeError(
                "overrides and a checkpoint apply to a folder, and this run is open: open it with"
                " them"
            )
        return path
    run = open_untrained(path, overrides)
    if checkpoint is None:
        if not os.path.lexists(run.run_dir.weights):
            raise missing_weights(run.run_dir)
        load_weights(run.model, run.run_dir.weights)
        if note := describe_unfinished(run.run_dir):
            write_note(f"{run.run_dir.path}: {note}")
        return run
    file = find_checkpoint(run.run_dir, run.recipe, str(checkpoint))
    check_checkpoint(load(run.run_dir.recipe), run.tokenizers, file)
    set_weights(run.model, checkpoint_weights(file), run.model.state_dict(), file)
    return replace(run, checkpoint=file)


def describe_unfinished(run_dir: RunDir) -> str:
    """Return a note on a run with weights whose training did not finish or was continued, or ""."""
    record = run_dir.read()
    newest = max(
        (checkpoint_step(path) or 0 for path in list_checkpoints(run_dir.checkpoints)), default=0
    )
    if record.steps is not None and newest > (used := record.steps):
        note = (
            f"these weights are of step {used:,}, and there are newer checkpoints, to step"
            f" {newest:,}"
        )
        return f"{note}: `--checkpoint best` takes the best one"
    if not record.is_finished:
        return f"these weights are whole, but their training has not finished: {RESUME} finishes it"
    return ""


def find_checkpoint(run_dir: RunDir, recipe: Recipe, name: str) -> Path:
    """Return the checkpoint of a run by its name: `last`, `best`, or its step. Raises RunError."""
    steps = {checkpoint_step(path): path for path in list_checkpoints(run_dir.checkpoints)}
    step = int(name) if name.isdecimal() else None
    if name in ("last", "best"):
        last = latest_checkpoint(run_dir.checkpoints, write_note)
        step = checkpoint_step(last) if last else None
        if last and name == "best":
            best = best_validation(recipe.training.selection_metric, checkpoint_history(last))
            step = int(best["step"]) if best else None
    if step not in steps:
        message = f"this run has no checkpoint `{name}`"
        message += (
            "; nothing was validated yet" if name == "best" and steps and step is None else ""
        )
        words = ", ".join(f"`{word}`" for word in ("last", "best") if word != name)
        known = f"write one of these: {words}, or a step: {', '.join(map(str, steps))}"
        fix = known if steps else "wait for the first validation, or continue the training"
        raise RunError.of(message, fix, str(run_dir.checkpoints))
    return steps[step]


def missing_weights(run_dir: RunDir) -> RunError:
    """Return the error of a run without final weights: those of a finished one were removed."""
    checkpoint = '`--checkpoint best` (in Python `open_run(path, checkpoint="best")`)'
    if run_dir.read().is_finished:
        message = "the weights of this run, which has finished, are missing"
        fix = "restore the file, or pass "
    elif not list_checkpoints(run_dir.checkpoints):
        message = (
            "this run has no weights, and no checkpoint: nothing of its training has been saved yet"
        )
        fix = (
            f"continue it with {RESUME}; where its loss has diverged, begin a new run with a"
            " smaller learning rate"
        )
        return RunError.of(message, fix, str(run_dir.weights))
    else:
        message = "this run has no weights yet: it has not finished"
        fix = "resume its training, or end it with `train ... --finish`; "
        fix += "`translate`, `generate`, `score`, `evaluate` and `report` take "
    return RunError.of(message, fix + checkpoint, str(run_dir.weights))


def open_untrained(path: str | Path, overrides: Sequence[str] = ()) -> Run:
    """Open a run with random weights; it need not have finished."""
    run_dir = RunDir(find_run(path))
    record = read_verified(run_dir)
    for setting in overrides:
        if "=" not in setting:
            raise RunError.of(
                f"expected `key=value`, got `{setting}`",
                "name one run; `translate` and `evaluate` take several: an ensemble",
            )
        if not f"{setting.partition('=')[0].strip()}.".startswith(
            tuple(f"{key}." for key in OVERRIDABLE)
        ):
            names = ", ".join(f"`{key}`" for key in OVERRIDABLE)
            message = f"`{setting}` cannot be set for a run: only what starts with {names} can"
            raise RunError.of(message, "write, for example, `decoding.beam.size=8`")
    recipe = as_begun(load(run_dir.recipe, overrides), record)
    tokenizers = Tokenizers.load(run_dir.tokenizer)
    if missing := {*text_names(recipe)} - set(tokenizers.sides):
        message = (
            f"the tokenizer knows no {', '.join(sorted(missing))}, which the recipe reads or writes"
        )
        raise RunError.of(
            message, "take recipe.yaml and tokenizer.json from the same run", str(run_dir.path)
        )
    model = build(recipe, tokenizers.sizes)
    return Run(run_dir, recipe, tokenizers, model.eval().to(device_for(recipe)))


def as_begun(recipe: Recipe, record: RunRecord) -> Recipe:
    """Return the recipe as a run began with it: early versions put bos before a single document."""
    is_single = record.data.pairs.get("train") == 1
    return replace(
        recipe, begins_with_bos=is_single and TEXTS_AFTER_END not in known_changes(record)
    )


def device_for(recipe: Recipe) -> torch.device:
    """Return the device a run decodes on: an accelerator, unless the recipe says otherwise."""
    wanted = torch.cuda.is_available() and recipe.trainer.accelerator != "cpu"
    return torch.device("cuda" if wanted else "cpu")


SomeDecoder = TypeVar("SomeDecoder", bound=Decoder)


def decoding_settings(recipe: Recipe, beam: int | None = None) -> Decoder:
    """Return the decoding of a recipe, or a beam of this size with all its settings that fit."""
    if beam is None:
        return recipe.decoding
    if not 1 <= beam <= MAX_BEAM:
        raise RunError.of(
            f"a beam cannot have the size {beam}", f"write a size from 1 to {MAX_BEAM}"
        )
    return replace(shared_settings(Beam, recipe.decoding), size=beam)


def shared_settings(kind: type[SomeDecoder], decoding: Decoder) -> SomeDecoder:
    """Return another way of decoding with all settings of this one that it has, too."""
    names = {setting.name for setting in fields(kind)} & {
        setting.name for setting in fields(decoding)
    } - {"at"}
    return kind(**{name: getattr(decoding, name) for name in names})


def translate_lines(
    runs: Sequence[Run],
    lines: Sequence[GivenLine],
    decoding: Decoder,
    prefixes: Sequence[str] | None = None,
    n_best: int = 1,
    first: int = 0,
    origin: str = LINES,
    draft: Draft | None = None,
) -> list[list[Translation]]:
    """Return the n best translations of each line, best first, see `answer_lines`.

    runs: One, or an ensemble. prefixes: The forced beginnings of each line's translations. first:
    Lines that came before, for sampling and for faults, which name the file `origin`. Raises
    RunError, DataError.
    """
    from composer.inference.engine import decoding_models

    check_compatible(runs)
    recipe, tokenizers = runs[0].recipe, runs[0].tokenizers
    if prefixes is not None and not recipe.sources:
        raise RunError.of(
            "a model without encoders continues its lines", "begin the lines with the prefixes"
        )
    texts, _ = check_lines(recipe, lines)
    read = read_lines(recipe, tokenizers, texts, prefixes, first, origin)
    if not recipe.sources:
        rows = {row.number + 1: row.prefix for row in read.rows}
        check_positions(continued_positions(runs), rows, origin)
    models = decoding_models(runs, decoding)
    return answer_lines(models, tokenizers, read, decoding, n_best, draft=draft)


def continued_positions(runs: Sequence[Run]) -> int | None:
    """Return the positions of the texts that language models continue; None without a limit."""
    limits = [run.model.max_positions for run in runs if not run.recipe.sources]
    return min((limit for limit in limits if limit is not None), default=None)


def check_compatible(runs: Sequence[Run]) -> None:
    """Raise RunError if runs cannot form an ensemble."""
    for run in runs[1:]:
        check_pair(run, runs[0])


def check_pair(run: Run, first: Run) -> None:
    """Raise RunError if a run cannot vote together with the first of an ensemble."""
    path, problem, fix = first.run_dir.path, "", ""
    if sorted(run.recipe.sources) != sorted(first.recipe.sources):
        read = ", ".join(sorted(run.recipe.sources)) or "nothing"
        needed = ", ".join(sorted(first.recipe.sources)) or "nothing"
        problem = (
            f"this run reads {read}, and {path} {needed}: the runs of an ensemble read the same"
        )
        fix = "give their encoders the same names"
    elif changed := changed_sides(run, first):
        problem = (
            f"this run reads `{changed[0]}` in another form than {path}, and an ensemble reads"
            " it once"
        )
        fix = f"train it with the settings of `data` of {path}"
    elif run.tokenizers.sha256 != first.tokenizers.sha256:
        problem = f"the tokenizer is not that of {path}, and the runs of an ensemble share one"
        fix = f"start the training of this run from {path}, or with the same tokenizer.json"
    if problem:
        raise RunError.of(problem, fix, str(run.run_dir.path))


def changed_sides(run: Run, first: Run) -> list[str]:
    """Return the sides that a run reads in another form than the first."""
    return [
        side
        for side in first.recipe.sources
        if source_form(first.recipe, side) != source_form(run.recipe, side)
    ]

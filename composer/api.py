"""The commands as functions.

A recipe is given as its file or as a `composer.recipe.sections.Recipe`.

Torch is imported by the first call that needs a model.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from composer.errors import ComposerError, Fault, RunError
from composer.recipe import schema_generator, sections
from composer.recipe.recipe import Recipe
from composer.run_dir import RUNS, RunDir, find_run
from composer.server.settings import PACKAGES, Settings, token_or_environment
from composer.suggest import did_you_mean

RECIPES = "a recipe's file, a composer.Recipe, or one of composer.recipe.sections"

ExportFormat = Literal["ctranslate2", "hf", "onnx", "web"]

if TYPE_CHECKING:
    from composer.comparison.diff import Difference
    from composer.data.collate import BatchLoader
    from composer.data.tokenizer import Tokenizers
    from composer.hub.push import Pushed
    from composer.inference.run import Run
    from composer.model.encoder_decoder import EncoderDecoder
    from composer.sweeps.executors.engine import Engine
    from composer.sweeps.leaderboard.board import Leaderboard
    from composer.sweeps.points import PointCost
    from composer.training.lightning import Callback, Logger
    from composer.training.module import Seq2SeqModule
    from composer.training.train import TrainingResult
    from composer.training.training_plan import TrainingPlan
    from composer.viz.architecture import Drawing

    AnyRecipe = Recipe | sections.Recipe | str | Path
    """A recipe that is loaded, one in Python, or its file."""
    AnyRun: TypeAlias = Run | str | Path
    """A run that was opened, or its folder."""


def check(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    data: str | Path | None = None,
    any_machine: bool = False,
    without_data: bool = False,
    strict: bool = False,
) -> list[Fault]:
    """Return every fault of a recipe, its model and its data; none if it trains here.

    Args:
        recipe: A file, a loaded recipe, or one in Python.
        overrides: `key=value` settings; not for a recipe that is loaded already.
        data: The folder in which data files are looked up first.
        any_machine: Whether to leave out what only this machine cannot do: its devices and its
            memory.
        without_data: Whether to read no data files, even where they are.
        strict: Whether to return the warnings, too, where there is no error.

    The file may be a sweep, of which all points are checked or the one of `axis=value` among
    `overrides`, or a part of recipes in a folder `fragments` that is no recipe by itself.

    Of a split of more than 16 MB the beginning is read, and 1,000 lines spread over the rest; of
    others all. Printing a fault's `render()` shows its line.
    """
    from composer.sweeps.check import CheckScope, check_file, check_one

    scope = CheckScope(any_machine, "none" if without_data else "required")
    try:
        if isinstance(recipe, (str, Path)):
            checked = check_file(recipe, _as_list(overrides), data, scope)
        else:
            checked = check_one(_to_recipe(recipe, overrides, data), scope)
    except ComposerError as error:
        return error.faults
    return [*checked.warnings] if strict else []


def plan(
    recipe: AnyRecipe | AnyRun,
    overrides: Sequence[str] = (),
    data: str | Path | None = None,
    time: bool = False,
) -> TrainingPlan:
    """Compute a recipe's cost, block by block: parameters, FLOPs, state; `.memory` of its training.

    data: The folder in which data files are looked up first. time: Whether to train ten steps in
    memory, `.trial`. The model is built by the same code as for training, on torch's meta device;
    that of a run has its vocabularies.
    Raises RecipeError with every fault, DataError and RunError.
    """
    subject = _recipe_or_folder(recipe, overrides, data)
    from composer.training.training_plan import (  # imports torch, and faults of the text need none
        plan_run,
        plan_training,
    )

    return (
        plan_training(subject, time)
        if isinstance(subject, Recipe)
        else plan_run(RunDir(subject), data, time)
    )


def build(
    recipe: AnyRecipe, overrides: Sequence[str] = (), vocabularies: Mapping[str, int] | None = None
) -> EncoderDecoder:
    """Build the model of a recipe, a torch module with new weights. Raises RecipeError.

    vocabularies: The size of each side's, `{"source": 8000, "target": 8000}`; by default the
    tokenizer's upper bounds.
    """
    loaded = _to_recipe(recipe, overrides)
    if vocabularies is None:
        return loaded.build()
    from composer.model.builder import build as build_model

    return build_model(loaded, vocabularies)


def train(
    recipe: AnyRecipe,
    run: str | Path | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    overrides: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    finish: bool = False,
) -> TrainingResult:
    """Train a recipe and write the run folder `run` (`runs/NAME`), which `open_run` opens.

    Args:
        recipe: A file, a loaded recipe, or one in Python.
        run: The run folder; one that is not empty is refused without `resume`.
        data: The folder in which data files are looked up first.
        resume: Whether to continue a run that was stopped or killed, or one that has finished with
            a larger budget.
        start_from: A run whose weights are the initial ones, as far as its blocks fit.
        overrides: `key=value` settings.
        callbacks: Lightning callbacks, for the Trainer.
        loggers: Lightning loggers; they get the rows of metrics.jsonl.
        finish: Whether to end a run that was stopped or killed with its best weights so far.

    A recipe that lies in a run folder, without overrides that change results, reproduces that run:
    in `runs/NAME-reproduction`, on the same data, with the same tokenizer and initial weights.
    `record.reproduces` of the result then says whether it ended with the same weights.

    Raises RecipeError, DataError and RunError before anything is written; RunFailed where training
    cannot continue.
    """
    loaded = _to_recipe(recipe, overrides, data)
    from composer.training.train import train as train_recipe

    return train_recipe(loaded, run, data, resume, start_from, callbacks, loggers, finish)


def sweep(
    file: str | Path,
    overrides: Sequence[str] = (),
    workers: int = 1,
    data: str | Path | None = None,
    run: str | Path | None = None,
    ray: str | None = None,
    slurm: bool = False,
    retry: bool = False,
    seeds: str | None = None,
) -> Leaderboard:
    """Run the sweep in a file, or resume it, and return its leaderboard.

    Args:
        file: A sweep, or with `seeds` a recipe.
        overrides: `key=value` settings of every trial.
        workers: The number of trainings at once.
        data: The folder in which data files are looked up first.
        run: The sweep's directory (`runs/NAME`).
        ray: Address of a Ray cluster to train on.
        slurm: Whether to train each trial as a job of Slurm.
        retry: Whether to try the trials again that have failed.
        seeds: Those with which a recipe is trained: `3` for 1 to 3, or a list such as `1,5`.

    Raises RecipeError, DataError and RunError before anything is trained.
    """
    from composer.sweeps.coordinator import run_sweep
    from composer.sweeps.leaderboard.board import open_leaderboard
    from composer.sweeps.spec import read_sweep

    spec = read_sweep(file, _as_list(overrides), data, seeds)
    folder = Path(run or RUNS / spec.name)
    run_sweep(spec, folder, workers, engine_of(ray, slurm), retry)
    return open_leaderboard(folder)


def engine_of(ray: str | None, slurm: bool) -> Engine:
    """Return the engine of a sweep: the Ray cluster at an address, Slurm, or this machine.

    Raises RunError if both are given.
    """
    from composer.sweeps.executors.engine import Engine

    if ray is not None and slurm:
        raise RunError.of("a sweep runs on Ray or on Slurm", "leave out `ray` or `slurm`")
    if ray is not None:
        return Engine("ray", ray)
    return Engine("slurm" if slurm else "local")


def sweep_points(
    file: str | Path, overrides: Sequence[str] = (), data: str | Path | None = None
) -> list[PointCost]:
    """Return the points of a sweep with costs and faults, like `sweep --dry-run`."""
    from composer.sweeps.points import list_points
    from composer.sweeps.spec import read_sweep

    return list_points(read_sweep(file, _as_list(overrides), data))


def leaderboard(
    sweep: str | Path, *more: str | Path, output: str | Path | None = None
) -> Leaderboard:
    """Rank the trials of one or several sweeps, running or not: `.ranked`, `.text()`, `.as_json()`.

    sweep, more: Their directories, or their files. output: An HTML page to write. Raises RunError
    and RecipeError.
    """
    from composer.sweeps.leaderboard.board import open_leaderboard

    board = open_leaderboard(*map(Path, (sweep, *more)))
    if output is not None:
        from composer.sweeps.leaderboard.page import write_leaderboard

        write_leaderboard(board, output)
    return board


def data_loader(
    recipe: AnyRecipe,
    split: str = "train",
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    tokenizers: Tokenizers | None = None,
) -> BatchLoader:
    """Return a DataLoader of a recipe's data, for your own loop: padded ids, bucketed by length.

    `loader.sampler.set_epoch(n)` orders the training batches of each epoch anew. data: The folder
    in which data files are looked up first. tokenizers: Those to encode with, as
    `loader.tokenizers` of another one; by default they are trained on the training part. Raises
    RecipeError, DataError, and RunError if there is no such split.
    """
    from composer.training.datamodule import RecipeDataModule

    return RecipeDataModule(
        _to_recipe(recipe, overrides, data), tokenizers=tokenizers
    ).split_loader(split)


def translate(
    runs: AnyRun | Seq2SeqModule | Sequence[AnyRun | Seq2SeqModule],
    lines: Sequence[str | Path],
    overrides: Sequence[str] = (),
    beam: int | None = None,
    n_best: int = 1,
    scores: bool = False,
    prefix: Sequence[str] | None = None,
    checkpoint: str | int | None = None,
    draft: AnyRun | None = None,
) -> list[object]:
    """Return the translation of each line by a run or an ensemble; an empty line stays empty.

    Args:
        runs: A run or several, opened or as folders; a Seq2SeqModule is one, trained by whom it may
            be.
        lines: One source each, a text or the path of a file; of several encoders a tuple in the
            recipe's order.
        overrides: Settings of decoding, `decoding...=value`, for a first run that is a folder.
        beam, n_best, scores, prefix, draft: As of `Run.translate`.
        checkpoint: `last`, `best` or a step, for the weights of a checkpoint of each run, all of
            them folders.

    Raises RunError, RecipeError and DataError.
    """
    ensemble = [*runs] if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    opened: list[Run] = []
    for run in ensemble:
        opened.append(_open_run(run, () if opened else _as_list(overrides), checkpoint))
    if not opened:
        raise TypeError(f"this takes at least one run, not {runs!r:.80}")
    return opened[0].translate(lines, beam, n_best, scores, prefix, opened[1:], draft)


def _open_run(
    run: AnyRun | Seq2SeqModule, overrides: Sequence[str], checkpoint: str | int | None
) -> Run:
    """Open a run's folder, or make a run of a module. Raises RunError, RecipeError, TypeError."""
    from composer.inference.run import Run, open_run

    if isinstance(run, (str, Path, Run)):
        return open_run(run, overrides, checkpoint)
    from composer.training.module import Seq2SeqModule

    if isinstance(run, Seq2SeqModule):
        return open_run(
            Run.from_model(run.recipe, run.tokenizers, run.full_model()), overrides, checkpoint
        )
    raise TypeError(
        "this takes a run's folder, a run that was opened, a Seq2SeqModule, or several; not"
        f" {run!r:.80}"
    )


def draw(recipe_or_run: AnyRecipe | AnyRun, overrides: Sequence[str] = ()) -> Drawing:
    """Draw the architecture of a recipe or a run: `.svg()`, `.mermaid()`, `.save()`.

    overrides: `key=value` settings. Raises RecipeError with every fault, and RunError.
    """
    from composer.viz.architecture import draw as draw_recipe

    return draw_recipe(_recipe_or_folder(recipe_or_run, overrides))


def diff(
    a: AnyRecipe | AnyRun,
    b: AnyRecipe | AnyRun | None = None,
    data: str | Path | None = None,
    quick: bool = False,
    overrides: Sequence[str] = (),
    log: Callable[[str], None] | None = None,
) -> Difference:
    """Compare two recipes or runs block by block: `.text()`, `.as_json()`.

    b: By default `a`, whose `overrides` are then what is shown. data: The folder in which data
    files are looked up first. quick: Skip the significance test, for which both runs translate.
    overrides: `key=value` settings of `b`; a run with these is a recipe. log: Receives a line
    before what takes long. Raises RecipeError with every fault, and RunError.
    """
    from composer.comparison.diff import diff as compare

    return compare(
        _recipe_or_reference(a),
        _recipe_or_reference(a if b is None else b, overrides),
        data,
        quick,
        log,
    )


def fingerprints(
    recipe_or_run: AnyRecipe | AnyRun, data: str | Path | None = None, overrides: Sequence[str] = ()
) -> dict[str, str]:
    """Return the SHA-256 fingerprints of a recipe or a run: `model`, `data` and `run`.

    `run` covers all that decides the training.

    data: The folder in which data files are looked up first; they count by what is read from them.
    overrides: `key=value` settings; a run with these is a recipe. Raises RecipeError, DataError and
    RunError.
    """
    from composer.fingerprint import fingerprints as compute

    return compute(_recipe_or_folder(recipe_or_run, overrides), data)


def export(
    run: AnyRun | Seq2SeqModule,
    path: str | Path,
    to: ExportFormat = "ctranslate2",
    int8: bool = False,
    runtime: str | Path | None = None,
) -> Path:
    """Export a run for machines without this project; return the new folder.

    to: `onnx`, programs of any stack with a runner, `web`, the same with a page for browsers, `hf`,
    of a model of transformers, or `ctranslate2`, of a Transformer. int8: Give the weights of
    programs 8 bits. runtime: For `web`, the folder of its packages of npm. Raises RecipeError for a
    block that has no program, and RunError where the format has no such model, or the folder cannot
    be written.
    """
    if int8 and to not in ("onnx", "web"):
        fix = "write it with `--onnx DIR` or `--web DIR`; CTranslate2 quantises while it loads"
        raise RunError.of(f"`--int8` is not for `--{to}`", fix)
    if runtime is not None and to != "web":
        raise RunError.of(f"`--runtime` is not for `--{to}`", "remove it, or write `--web DIR`")
    opened = _open_run(run, (), None)
    if to == "onnx":
        from composer.exporters.onnx_export import export_onnx

        return export_onnx(opened, path, int8)
    if to == "web":
        from composer.exporters.web_export import export_web

        return export_web(opened, path, runtime, int8)
    if to == "hf":
        from composer.exporters.hugging_face import export_hugging_face

        return export_hugging_face(opened, path)
    from composer.exporters.ctranslate2 import export_ctranslate2

    return export_ctranslate2(opened, path)


def serve(
    runs: AnyRun | Sequence[AnyRun],
    overrides: Sequence[str] = (),
    host: str = Settings.host,
    port: int = Settings.port,
    token: str | None = None,
    wait_ms: float = Settings.wait_ms,
    batch_lines: int = Settings.batch_lines,
    queue: int = Settings.queue,
    timeout: float = Settings.timeout,
    max_bytes: int = Settings.max_bytes,
    max_lines: int = Settings.max_lines,
    max_characters: int = Settings.max_characters,
    page: bool = Settings.page,
) -> None:
    """Serve runs over HTTP, each a model by its folder's name, until a signal ends this process.

    Args:
        runs: Runs, opened or as folders; the first one answers requests that name none.
        overrides: Settings of decoding, `decoding...=value`, for runs that are folders.
        host, port: Where it listens, by default on this machine alone; port 0 is a free one.
        token: What requests must carry, by default the environment's SEQCOMPOSER_TOKEN.
        wait_ms: Milliseconds that the first request of a batch waits for others.
        batch_lines: Lines decoded together at most, unless one request has more.
        queue: Requests that wait at most.
        timeout: Seconds for a request at most.
        max_bytes, max_lines, max_characters: Limits of a request, its lines, and each line.
        page: Whether to serve a page of the first run, as `export` writes it for `web`.

    Raises RunError and RecipeError before it serves; KeyboardInterrupt and SystemExit at the end.
    """
    from composer.model.machine import require_packages

    require_packages(PACKAGES)
    settings = Settings(
        host=host,
        port=port,
        token=token_or_environment(token),
        wait_ms=wait_ms,
        batch_lines=batch_lines,
        queue=queue,
        timeout=timeout,
        max_bytes=max_bytes,
        max_lines=max_lines,
        max_characters=max_characters,
        page=page,
    )
    every = [*runs] if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    opened = [_open_run(run, _as_list(overrides), None) for run in every]
    if not opened:
        raise TypeError(f"this takes at least one run, not {runs!r:.80}")
    from composer.server.process import serve_runs

    if not page:
        serve_runs(opened, settings)
        return
    with TemporaryDirectory() as folder:
        serve_runs(opened, settings, export(opened[0], Path(folder) / "page", "web"))


def push(run: AnyRun, ref: str, name: str = "", license: str = "") -> Pushed:
    """Pack a finished run, and upload the pack; return a reference to it that `pull` takes.

    ref: `hub:OWNER/NAME[@BRANCH]`, `wandb:[ENTITY/]PROJECT/NAME[:ALIAS]`, `git+URL[@BRANCH]`, a new
    folder, or `FOLDER/NAME[@ALIAS]` of a shelf. name: `NAME[@ALIAS]` on the shelf `ref`. license:
    License for a generated model card, by its identifier on the hub, such as `mit`.

    Raises RunError, with everything there as it was.
    """
    from composer.hub.push import push_run

    return push_run(run, ref, name, license)


def blocks(name: str | None = None) -> dict[str, Any]:
    """Return every block by its name, or one.

    A block is `description`, `properties` and `required` of its JSON Schema.

    Raises RunError if there is no such block.
    """
    definitions = schema()["$defs"].items()
    known = {
        key.removeprefix("block."): block for key, block in definitions if key.startswith("block.")
    }
    if name is not None and name not in known:
        raise RunError.of(
            f"no block is called `{name}`{did_you_mean(name, known)}",
            "`seqcomposer blocks` lists them",
        )
    return known if name is None else known[name]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, with blocks of plug-ins and of this process."""
    return schema_generator.load()


def _recipe_or_folder(
    recipe_or_run: AnyRecipe | AnyRun, overrides: Sequence[str] = (), data: str | Path | None = None
) -> Recipe | Path:
    """Return the folder of a run without overrides, and the recipe of all else.

    Raises RecipeError, RunError, and TypeError for overrides of a loaded recipe.
    """
    subject = _recipe_or_reference(recipe_or_run, overrides, data)
    if isinstance(subject, Recipe):
        return subject
    path = find_run(subject)
    return path if path.is_dir() else _to_recipe(path, overrides, data)


def _recipe_or_reference(
    recipe_or_run: AnyRecipe | AnyRun, overrides: Sequence[str] = (), data: str | Path | None = None
) -> Recipe | str | Path:
    """Return a Recipe of one in Python or with overrides; else the path or `SWEEP#WHICH`.

    Raises RecipeError, RunError, and TypeError for overrides of a loaded recipe.
    """
    if isinstance(recipe_or_run, (Recipe, sections.Recipe)):
        return _to_recipe(recipe_or_run, overrides, data)
    if not isinstance(recipe_or_run, (str, os.PathLike)):
        raise TypeError(
            f"this takes {RECIPES}; a run's folder, or a run that was opened; not"
            f" {recipe_or_run!r:.80}"
        )
    reference = recipe_or_run if isinstance(recipe_or_run, str) else Path(recipe_or_run)
    return _to_recipe(reference, overrides, data) if overrides else reference


def _as_list(overrides: Sequence[str]) -> Sequence[str]:
    return [overrides] if isinstance(overrides, str) else overrides


def _to_recipe(
    recipe: AnyRecipe, overrides: Sequence[str] = (), data: str | Path | None = None
) -> Recipe:
    """Load a recipe in Python or a file.

    Of a sweep it is the point of `overrides`, of a run its own recipe.

    Raises RecipeError, RunError, and TypeError for overrides of a recipe that is loaded.
    """
    overrides = _as_list(overrides)
    if isinstance(recipe, sections.Recipe):
        return recipe.recipe(overrides=overrides, data_dir=data)
    if not isinstance(recipe, Recipe):
        if not isinstance(recipe, (str, Path)):
            raise TypeError(f"a recipe is {RECIPES}; this is a {type(recipe).__name__}")
        from composer.sweeps.point_arguments import (
            load_recipe,  # late: many recipes have been loaded
        )

        return load_recipe(recipe, overrides, data)
    if overrides:
        raise TypeError(
            "overrides apply to a file or to a recipe in Python, and this recipe is loaded: load it"
            " with them"
        )
    return recipe if data is None else dataclasses.replace(recipe, data_dir=Path(data))

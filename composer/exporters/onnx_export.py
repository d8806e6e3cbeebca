"""`export --onnx`: any model as ONNX programs, with all that is needed to run them elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

from composer.atomic_io import atomic_directory, require_absent
from composer.exporters import model_file, runner
from composer.exporters.description import describe, methods_of, save_tokenizers
from composer.inference.lines import write_note
from composer.inference.run import Run, open_run
from composer.inference.run_programs import write_run_programs
from composer.model.machine import PROGRAMS, require_packages


def export_onnx(run: str | Path | Run, folder: str | Path, int8: bool = False) -> Path:
    """Write a run's model as ONNX programs in a new folder, and return its path.

    int8: Quantise its weights.

    Raises RecipeError for a block that has no program, at its line, and RunError if packages are
    missing or `folder` exists. Nothing is written then.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    target = Path(folder)
    require_absent(target)
    require_packages(PROGRAMS)
    with atomic_directory(target) as draft:
        write_onnx(opened, draft, int8)
        shutil.copyfile(Path(runner.__file__), draft / model_file.RUNNER)
    word, methods = opened.recipe.decoding.word, methods_of(opened)
    if word not in methods:
        note = f"{model_file.RUNNER} decodes by {', '.join(methods)}, and not by {word}"
        write_note(f"{note}: call it with `--beam 5`, or `--sample`")
    return target


def write_onnx(run: Run, folder: Path, int8: bool = False, attention: bool = False) -> None:
    """Write programs, and what is needed to run them, into a folder. Raises as `export_onnx`."""
    programs = write_run_programs(run, run.recipe.decoding, folder, int8, attention)
    names = save_tokenizers(run, folder)
    described = describe(run, programs, names, folder)
    (folder / model_file.MODEL).write_text(described.to_json(), encoding="utf-8")

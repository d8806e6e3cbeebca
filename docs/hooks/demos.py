"""Models that run on the site: `python -m docs.hooks.demos [--int8] RUN` writes docs/demos/NAME.

What their pages share, onnxruntime-web among it, is not committed: the site has the models where
this user's cache has the packages of npm.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

from composer.errors import RunError
from composer.exporters.onnx_export import write_onnx
from composer.exporters.web_export import copy_page, write_page
from composer.exporters.web_runtime import find_archives
from composer.inference.run import open_run
from docs.hooks.corpus import ROOT

INT8 = "--int8"
FOLDER = ROOT / "docs" / "demos"
MISSING = """!!! note

    This build of the site has no models: it was made without the packages of npm that
    `seqcomposer export RUN --web DIR` names.
"""


@cache
def shared_files() -> dict[str, bytes]:
    """Return what all models share, by name in docs; nothing without the packages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            copy_page(find_archives(None), folder)
        except RunError:
            return {}
        contents = {}
        for file in folder.rglob("*.*"):
            contents[f"demos/{file.relative_to(folder).as_posix()}"] = file.read_bytes()
        return contents


def write_demo(path: str, int8: bool) -> Path:
    """Write the model of a run for the site, and return its folder."""
    run = open_run(path)
    folder = FOLDER / run.recipe.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_onnx(run, folder, int8, attention=True)
    with tempfile.TemporaryDirectory() as shared:
        copy_page(find_archives(None), Path(shared))
        write_page(run, folder, Path(shared))
    shutil.copyfile(run.run_dir.recipe, folder / "recipe.yaml")
    return folder


if __name__ == "__main__":
    for run in sys.argv[1:]:
        if run != INT8:
            print(f"wrote {write_demo(run, INT8 in sys.argv)}")

"""A block from outside: a small package, installed with pip, adds a word to the language through
its entry point.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest

from composer.cli.main import main

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
HOME = HERE.parents[1]

METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "entry_points.txt": (
        "[seqcomposer.blocks]\ndecaying = outside.decaying:Decaying\n"
        "trusting = outside.decaying:Trusting\n"
    ),
    "RECORD": "",
}

RECIPE = """\
recipe: 1
data:
  generate: copy
model:
  width: 12
  encoder: [{decaying: {scale: 2}}]
  decoder:
    - residual: [decaying]
    - residual: [cross_attention]
    - decaying: 3
"""

TYPO = RECIPE.replace("scale: 2", "scales: 2")
GRID = RECIPE.replace(
    "encoder: [{decaying: {scale: 2}}]",
    "encoder: [{grid: 3}, {residual: [trusting]}, {select_column: 0}]",
)

CHECKED = """\
import io, json, sys, torch, composer
from contextlib import redirect_stderr, redirect_stdout
from composer.cli.main import main
from composer.model.builder import build
from composer.testing import LawError, check_block, check_model
from outside import decaying

def check(*arguments):
    with redirect_stdout(io.StringIO()) as printed, redirect_stderr(io.StringIO()) as errors:
        try:
            main(["check", *arguments])
        except SystemExit as end:
            return end.code, printed.getvalue(), errors.getvalue()

sound, typo, grid = sys.argv[1:]
commands = {"sound": check(sound), "typo": check(typo), "grid": check("--json", grid)}
recipe = composer.load(sound)
torch.manual_seed(0)
check_model(build(recipe, {"source": 11, "target": 12}))
check_block(decaying.Decaying, {}, {"scale": 3, "dropout": 0.3})
laws = {}
for name in ("LooksAhead", "KeepsOnSelf", "SeesPadding", "DeadKnob"):
    try:
        check_block(getattr(decaying, name), compiles=False)
    except LawError as error:
        laws[name] = [error.law, str(error)]
plan = recipe.plan().as_json()
words = [row["block"] for row in plan["blocks"]]
print(json.dumps({"laws": laws, "words": words, "commands": commands}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a process that has the package says: commands' statuses and outputs, laws and the
    plan's words.
    """
    folder = tmp_path_factory.mktemp("plug_in")
    wheel, site = folder / "outside-1.0-py3-none-any.whl", folder / "site"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("outside/__init__.py", "")
        archive.write(HERE / "outside" / "decaying.py", "outside/decaying.py")
        for name, text in METADATA.items():
            archive.writestr(f"outside-1.0.dist-info/{name}", text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*pip, "--target", str(site), str(wheel)], check=True, capture_output=True, timeout=400
    )
    recipes = {"sound": RECIPE, "typo": TYPO, "grid": GRID}
    for name, text in recipes.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", CHECKED, *(str(folder / f"{name}.yaml") for name in recipes)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(site), str(HOME))),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return cast("dict[str, Any]", json.loads(done.stdout))


def test_a_plug_in_recipe_runs_and_its_blocks_are_checked(seen: dict[str, Any]) -> None:
    assert seen["words"].count("decaying") == 3
    laws = {name: law for name, (law, _) in seen["laws"].items()}
    assert laws == {
        "LooksAhead": "causality",
        "KeepsOnSelf": "no_side_effects",
        "SeesPadding": "ragged_chunks",
        "DeadKnob": "settings",
    }
    assert "`window` changes nothing" in seen["laws"]["DeadKnob"][1]


def test_commands_know_a_plug_in_block_and_its_settings(seen: dict[str, Any]) -> None:
    status, _, errors = seen["commands"]["sound"]
    assert status == 0, errors
    status, _, errors = seen["commands"]["typo"]
    assert status == 2
    assert "error[" in errors
    assert "`scale`" in errors


def test_a_plug_in_block_without_grids_is_refused_at_its_line(seen: dict[str, Any]) -> None:
    status, printed, errors = seen["commands"]["grid"]
    assert status == 2, errors
    (fault,) = json.loads(printed)
    assert (fault["line"], fault["column"], fault["code"]) == (6, 36, "block")
    assert fault["message"].startswith(
        "`trusting` fails where (1, 32, 3, 12) arrives: RuntimeError: "
    )
    assert 'its author refuses a grid with `self.out = site.sequence("trusting")`' in fault["hint"]


def test_without_the_plug_in_the_block_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "outside.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(file)])
    assert "`decaying`" in capsys.readouterr().err

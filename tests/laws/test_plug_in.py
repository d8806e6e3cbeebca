"""A block from outside: a small package, installed with pip, adds a word to the language through its entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HOME = HERE.parents[1]

METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "entry_points.txt": "[seqcomposer.blocks]\ndecaying = outside.decaying:Decaying\n"
    "trusting = outside.decaying:Trusting\n",
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

CHECKED = """\
import json, sys, torch, composer
from composer.model.builder import build
from composer.testing import LawError, check_block, check_model
from outside import decaying

recipe = composer.load(sys.argv[1])
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
print(json.dumps({"laws": laws, "words": [row["block"] for row in plan["blocks"]]}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package."""
    folder = tmp_path_factory.mktemp("plug_in")
    wheel, site = folder / "outside-1.0-py3-none-any.whl", folder / "site"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("outside/__init__.py", "")
        archive.write(HERE / "outside" / "decaying.py", "outside/decaying.py")
        for name, text in METADATA.items():
            archive.writestr(f"outside-1.0.dist-info/{name}", text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, capture_output=True, timeout=400)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(HOME))), "OMP_NUM_THREADS": "1"}


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recipe") / "outside.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    return file


def test_a_plug_in_recipe_runs_and_its_blocks_are_checked(installed: dict[str, str], recipe: Path) -> None:
    done = python(installed, "-c", CHECKED, str(recipe))
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["words"].count("decaying") == 3
    laws = {name: law for name, (law, _) in output["laws"].items()}
    assert laws == {
        "LooksAhead": "causality",
        "KeepsOnSelf": "no_side_effects",
        "SeesPadding": "ragged_chunks",
        "DeadKnob": "settings",
    }
    assert "`window` changes nothing" in output["laws"]["DeadKnob"][1]


def test_commands_know_a_plug_in_block_and_its_settings(installed: dict[str, str], recipe: Path) -> None:
    sound = python(installed, "-m", "composer.cli.main", "check", str(recipe))
    assert sound.returncode == 0, sound.stderr
    recipe.write_text(RECIPE.replace("scale: 2", "scales: 2"), encoding="utf-8")
    typo = python(installed, "-m", "composer.cli.main", "check", str(recipe))
    assert typo.returncode == 2
    assert "error[" in typo.stderr
    assert "`scale`" in typo.stderr


def test_a_plug_in_block_without_grids_is_refused_at_its_line(installed: dict[str, str], recipe: Path) -> None:
    grid = "encoder: [{grid: 3}, {residual: [trusting]}, {select_column: 0}]"
    recipe.write_text(RECIPE.replace("encoder: [{decaying: {scale: 2}}]", grid), encoding="utf-8")
    refused = python(installed, "-m", "composer.cli.main", "check", "--json", str(recipe))
    assert refused.returncode == 2, refused.stderr
    (fault,) = json.loads(refused.stdout)
    assert (fault["line"], fault["column"], fault["code"]) == (6, 36, "block")
    assert fault["message"].startswith("`trusting` fails where (1, 32, 3, 12) arrives: RuntimeError: ")
    assert 'its author refuses a grid with `self.out = site.sequence("trusting")`' in fault["hint"]


def test_without_the_plug_in_the_block_is_unknown(recipe: Path) -> None:
    recipe.write_text(RECIPE, encoding="utf-8")
    plain = {**os.environ, "PYTHONPATH": str(HOME)}
    refused = python(plain, "-m", "composer.cli.main", "check", str(recipe))
    assert refused.returncode == 2
    assert "`decaying`" in refused.stderr

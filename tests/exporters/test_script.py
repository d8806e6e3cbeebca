"""A model written as one plain PyTorch file is the same model, and needs nothing of this project."""

from __future__ import annotations

import builtins
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

from composer.cli.main import app
from composer.errors import RecipeError, RunError
from composer.exporters import script as exporting
from composer.exporters.script import export_script, script
from composer.inference.decode import decode_all
from composer.inference.run import open_run
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.planner import example_ids, example_sources
from composer.model.weights import initialize
from composer.recipe.recipe import Recipe, load
from tests.inference.untrained import ATTENTION, GRU, LANGUAGE, TWO, made
from tests.laws.random_stacks import recipes
from tests.laws.test_recipes import RECIPES, name, small, vocabularies

OURS = ("composer", "blocks", "yaml", "jsonschema", "pytorch_lightning", "numpy")
ALONE = """
import runpy, sys
sys.modules.update(dict.fromkeys({ours!r}))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LONGEST = 12


def guarded(module: str, given: Mapping[str, Any] | None = None, *rest: Any) -> Any:
    """What `import` is to a script: nothing of ours is there."""
    if module.partition(".")[0] in OURS:
        raise ImportError(f"a script imports {module}")
    return builtins.__import__(module, given, *rest)


def run_alone(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that a script is."""
    module = ModuleType("plain")
    monkeypatch.setitem(sys.modules, "plain", module)
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": guarded}
    exec(compile(text, "plain.py", "exec"), module.__dict__)
    return module


def scripted(recipe: Recipe, sizes: Mapping[str, int]) -> str:
    return script(recipe, sizes, recipe.fingerprints)


def both(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> tuple[EncoderDecoder, Any, Any]:
    """Our model, the script's and the script, from one seed."""
    sizes = vocabularies(recipe)
    plain = run_alone(scripted(recipe, sizes), monkeypatch)
    torch.manual_seed(1)
    ours = build(recipe, sizes).eval()
    initialize(ours, recipe.training["initialization"])
    torch.manual_seed(1)
    return ours, plain.build().eval(), plain


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_every_recipe_is_the_same_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small(path)
    ours, theirs, plain = both(recipe, monkeypatch)
    mine, other = ours.state_dict(), theirs.state_dict()
    assert list(mine) == list(other)
    assert all(torch.equal(mine[key], other[key]) for key in mine)
    sources, target = example_sources(ours, 7), example_ids(ours, 7)
    with torch.no_grad():
        assert torch.equal(ours(sources, target), theirs(sources, target))
    assert step_by_step(ours, sources) == step_by_step(theirs, sources)
    assert answers_of_ours(ours, recipe, sources) == answers_of_script(theirs, recipe, sources, plain)


def test_random_recipes_are_the_same_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = {"same": 0}

    @settings(max_examples=12, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(recipes())
    def holds(written: dict[str, Any]) -> None:
        (tmp_path / "random.yaml").write_text(json.dumps(written), encoding="utf-8")
        try:
            recipe = load(tmp_path / "random.yaml")
            recipe.plan()
        except RecipeError:
            return
        ours, theirs, _ = both(recipe, monkeypatch)
        sources, target = example_sources(ours, 5), example_ids(ours, 5)
        with torch.no_grad():
            assert torch.equal(ours(sources, target), theirs(sources, target))
        tally["same"] += 1

    holds()
    assert tally["same"] > 3


def step_by_step(model: Any, sources: Mapping[str, torch.Tensor]) -> list[int]:
    """The most probable token after each other, from `start` and `step` alone."""
    with torch.no_grad():
        memories = model.encode(sources, room=torch.ones(1, LONGEST, dtype=torch.bool))
        state, ids = model.start(memories, 1), [1]
        for _ in range(LONGEST):
            logits, state = model.step(torch.tensor([ids[-1:]]), state, memories)
            ids.append(int(logits[0, -1, 4:].argmax()) + 4)
    return ids


def rows_like(sources: Mapping[str, torch.Tensor]) -> dict[str, list[Any]]:
    """Three questions of different lengths; of stories, lists of padded sentences."""
    told = {}
    for key, ids in sources.items():
        sentence = [4, 5, 4, *[0] * (ids.shape[-1] - 3)]
        told[key] = [[sentence] * n if ids.ndim == 3 else [4, 5, 5, 4, 5][:n] for n in (3, 5, 1)]
    return told


def settings_of(recipe: Recipe) -> tuple[str, dict[str, Any]]:
    ((word, settings),) = recipe.decoding.items()
    return word, {**settings, "max_length": LONGEST}


def answers_of_ours(model: EncoderDecoder, recipe: Recipe, sources: Mapping[str, torch.Tensor]) -> list[Any]:
    word, said = settings_of(recipe)
    rows = {
        key: [np.array(row) if isinstance(row[0], list) else row for row in each]
        for key, each in rows_like(sources).items()
    }
    found = decode_all([model], rows, {word: said}, [[]] * 3 if rows else [[5], [4, 5], [4]])
    return [tuple(each) for row in found for each in row]


def answers_of_script(model: Any, recipe: Recipe, sources: Mapping[str, torch.Tensor], plain: Any) -> list[Any]:
    word, said = settings_of(recipe)
    speech = plain.SPEECH._replace(max_length=LONGEST, answer=lambda search: getattr(plain, word)(search, **said))
    rows = rows_like(sources)
    found = plain.decode(model, rows, [[]] * 3 if rows else [[5], [4, 5], [4]], range(3), speech)
    return [tuple(each) for row in found for each in row]


WIDE = [path for path in RECIPES if path.name == "priority_sort_ntm.yaml"]


@pytest.mark.parametrize("path", [*RECIPES[::12], *WIDE], ids=name)
def test_the_text_is_clean(path: Path, tmp_path: Path) -> None:
    recipe = small(path)
    text = scripted(recipe, vocabularies(recipe))
    assert text == scripted(recipe, vocabularies(recipe))
    file = tmp_path / "plain.py"
    file.write_text(text, encoding="utf-8")
    for command in (["check", "--select", "F,E9,I"], ["format", "--check"]):
        told = ["--isolated", "--line-length", "120", str(file)]
        done = subprocess.run([sys.executable, "-m", "ruff", *command, *told], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    for word in ("BlockError", "RunError", "Annotated", "Bounds", "Kind", "registry", "import numpy", "schema.json"):
        assert not re.search(rf"\b{word}\b", text), word


# ------------------------------------------------------------------------------------------- runs


def alone(file: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, in which nothing of ours can be imported."""
    ours = tuple(each for each in OURS if each != "numpy")  # safetensors may import it
    command = [sys.executable, "-c", ALONE.format(ours=ours), str(file), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=300)


def lines_for(model: str) -> list[str]:
    if model is TWO:
        return ["eins zwei\tdrei", "sieben\tneun zehn acht"]
    return ["eins zwei drei", "", "sieben ach, neun", "zehn " * 12]


@pytest.mark.parametrize(
    ("model", "tokenizer", "decoding"),
    [
        (GRU, "{word: {size: 50}}", "{beam: {size: 3, max_length: 20}}"),
        (ATTENTION, "{bpe: {size: 300}}", "{greedy: {max_length: 15}}"),
        (TWO, "char", "{beam: {size: 2, max_length: 9}}"),
        (LANGUAGE, "{word: {split: spaces}}", "{sample: {max_length: 9, seed: 3}}"),
    ],
    ids=["gru", "attention", "two", "language"],
)
def test_a_run_says_the_same(
    model: str, tokenizer: str, decoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path / "run", model, tokenizer, decoding=decoding)
    file = export_script(run, tmp_path / "plain.py")
    plain = run_alone(file.read_text(encoding="utf-8"), monkeypatch)
    theirs = plain.load(plain.build(), str(run / "model.safetensors"))
    lines = lines_for(model)
    ours = open_run(run)
    assert plain.translate(theirs, plain.read_tokenizers(str(run / "tokenizer.json")), lines, plain.SPEECH) == (
        ours.translate(lines)
    )


def test_a_process_of_its_own_answers_stdin(tmp_path: Path) -> None:
    run = made(tmp_path / "run", GRU)
    file = export_script(run, tmp_path / "plain.py")
    lines = ["eins zwei", "", "fünf\r", "acht"]
    done = alone(
        file,
        "--weights",
        str(run / "model.safetensors"),
        "--tokenizer",
        str(run / "tokenizer.json"),
        text="\n".join(lines),
    )
    assert done.returncode == 0, done.stderr
    expected = open_run(run).translate([line.rstrip("\r") for line in lines])
    assert done.stdout.split("\n") == [*expected, ""]
    assert "".join(expected)


def test_a_process_of_its_own_tells_of_the_model_and_refuses_other_weights(tmp_path: Path) -> None:
    file = export_script(made(tmp_path / "run", GRU), tmp_path / "plain.py")
    other = made(tmp_path / "other", ATTENTION)
    told = alone(file)
    assert told.returncode == 0, told.stderr
    assert re.search(r"[\d,]+ parameters, random\n$", told.stdout)
    refused = alone(file, "--weights", str(other / "model.safetensors"))
    assert refused.returncode == 1
    assert "holds the weights of another model" in refused.stderr.splitlines()[-1]


# ------------------------------------------------------------------------------------------- the command


def test_the_command_writes_once_and_refuses_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = made(tmp_path / "run"), tmp_path / "plain.py"
    app(["export", str(run), "--script", str(file)], standalone_mode=False)
    assert f"wrote {file}" in capsys.readouterr().out
    before = file.read_bytes()
    for arguments, told in (
        ([str(run), "--script", str(file)], "something of this name"),
        ([str(run), "model.width=8", "--script", str(tmp_path / "a.py")], "cannot be set for a run"),
        ([str(run), "--script", str(tmp_path / "none" / "a.py")], "cannot be written"),
    ):
        with pytest.raises(RunError, match=told):
            app(["export", *arguments], standalone_mode=False)
    assert file.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["data", "plain.py", "run"]


def test_what_a_run_was_given_for_decoding_is_written(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    text = export_script(run, tmp_path / "plain.py", ["decoding.beam.size=7"]).read_text(encoding="utf-8")
    assert "return beam(search, size=7, " in text


# ------------------------------------------------------------------------------------------- plug-ins

BLOCK = '''
"""Blocks of a package."""
from math import sqrt

import torch
{imports}

from blocks.core.contract import Block, BlockError, Context, Rate, Site, State


def checked(width: int) -> None:
    """Raises BlockError where the width is odd."""
    if width % 2:
        raise BlockError("", "odd")


def build(x: torch.Tensor) -> torch.Tensor:
    return x / sqrt(2)


class Halved(Block):
    """Halves. Raises BlockError where the width is odd.

    Settings:
        past: unused, 0 <= past < 1
    """

    def __init__(self, site: Site, *, past: Rate = 0.0) -> None:
        super().__init__()
        checked(site.stream.width)
        self.past = past
        self.out = site.sequence("halved")

    def forward(self, x, state, context):
        return {result}, state
'''
RECIPE = """recipe: 1
data: {generate: copy}
model: {width: 6, decoder: [{rnn: {as: x}}, {halved: {past: 0.25}}, {add: x}]}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a package of one module with the block `halved`, and gives a recipe with it."""
    from importlib.metadata import EntryPoint

    from composer.recipe import registry, schema

    def forget() -> None:
        sys.modules.pop("halves", None)
        for known in (registry.blocks, schema.load, exporting.library_of):
            known.cache_clear()

    def installing(imports: str, result: str) -> Recipe:
        (tmp_path / "halves.py").write_text(BLOCK.format(imports=imports, result=result), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        points = [EntryPoint("halved", "halves:Halved", registry.GROUP)]
        monkeypatch.setattr(registry, "entry_points", lambda group: points)
        forget()
        (tmp_path / "r.yaml").write_text(RECIPE, encoding="utf-8")
        return load(tmp_path / "r.yaml")

    yield installing
    monkeypatch.undo()
    forget()


def test_a_plug_in_is_written_out_with_what_it_needs(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = installed("", "build(x)")
    ours, theirs, plain = both(recipe, monkeypatch)
    with torch.no_grad():
        assert torch.equal(ours({}, example_ids(ours, 5)), theirs({}, example_ids(ours, 5)))
    assert plain.build_halves is not plain.build  # two things called alike
    assert not hasattr(plain, "checked")


def test_a_plug_in_that_needs_another_library_is_refused(installed: Any) -> None:
    recipe = installed("import numpy as np", "x * float(np.sqrt(2))")
    with pytest.raises(RunError, match="`halves` needs the library `numpy`"):
        scripted(recipe, vocabularies(recipe))


def test_values_that_a_recipe_asks_for_are_those_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "recipe: 1\ndata: {generate: copy}\nmodel: {width: 8, decoder: [rnn]}\ntraining: {initialization: KIND}\n"
    made = {}
    for kind in ("default", "orthogonal", "{uniform_scaling: 0.5}"):
        (tmp_path / "r.yaml").write_text(text.replace("KIND", kind), encoding="utf-8")
        ours, theirs, _ = both(load(tmp_path / "r.yaml"), monkeypatch)
        made[kind] = theirs.state_dict()
        assert all(torch.equal(value, made[kind][key]) for key, value in ours.state_dict().items())
    assert len({str(each) for each in made.values()}) == 3

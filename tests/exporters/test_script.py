"""A model exported as a folder of the project's own modules is the same model, and needs PyTorch alone."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint
from io import BytesIO
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings

from composer.cli.main import app
from composer.errors import RecipeError, RunError
from composer.exporters.script import ALLOWED, OURS, ROOTS, export_script, imported_modules, needed_modules
from composer.exporters.standalone import read_lines
from composer.inference.decode import decode_all
from composer.inference.run import open_run
from composer.model.builder import build, vocabulary_bounds
from composer.model.encoder_decoder import EncoderDecoder, example_ids, example_sources
from composer.model.weights import initialize
from composer.recipe import registry, schema_generator
from composer.recipe.recipe import Recipe, load
from tests.inference.untrained import ATTENTION, GRU, LANGUAGE, SWAPPED, TWO, made
from tests.laws.random_stacks import recipes
from tests.laws.test_recipes import RECIPES, name, small
from tests.samples import sampled

ROOT = Path(__file__).parents[2]
REFUSED = [
    *("datasets", "huggingface_hub", "jinja2", "jsonschema", "lightning", "num2words", "numpy", "optuna", "plotly"),
    *("pytorch_lightning", "rich", "sacrebleu", "safetensors", "torchmetrics", "typer", "wandb", "yaml"),
]
"""Libraries of the project that an environment with PyTorch and `tokenizers` alone does not have."""
WITHOUT_LIBRARIES = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ModuleNotFoundError(f"an exported model imports {{name}}", name=name)
sys.meta_path.insert(0, Refuse())
sys.path = [sys.argv[1], *(entry for entry in sys.path if entry and entry != {root!r})]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
MAX_LENGTH = 12


@cache
def compiled(data: bytes) -> CodeType:
    """The code of a module; all exported folders have the same modules."""
    code: CodeType = compile(data, "<exported>", "exec", dont_inherit=True)
    return code


@contextmanager
def exported_modules(folder: Path) -> Iterator[ModuleType]:
    """Import the modules in an exported folder in place of ours, and yield its `standalone`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceFileLoader, "source_to_code", lambda self, data, path, **_: compiled(bytes(data)))
        patch.setattr(sys, "dont_write_bytecode", True)
        with imported_in_place_of_ours(folder) as standalone:
            yield standalone


@contextmanager
def imported_in_place_of_ours(folder: Path) -> Iterator[ModuleType]:
    ours = {key: module for key, module in sys.modules.items() if key.partition(".")[0] in OURS}
    for key in ours:
        del sys.modules[key]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        standalone = importlib.import_module("composer.exporters.standalone")
        assert Path(str(standalone.__file__)).is_relative_to(folder)
        yield standalone
    finally:
        sys.path.remove(str(folder))
        for key in [key for key in sys.modules if key.partition(".")[0] in OURS]:
            del sys.modules[key]
        sys.modules.update(ours)


def our_model(recipe: Recipe) -> EncoderDecoder:
    """Return the model with the weights that a training begins with."""
    torch.manual_seed(1)
    model = build(recipe, vocabulary_bounds(recipe)).eval()
    initialize(model, recipe.training["initialization"])
    return model


def their_model(standalone: ModuleType, folder: Path) -> Any:
    torch.manual_seed(1)
    return standalone.load_model(folder)


@pytest.mark.parametrize("path", sampled(RECIPES, 10, 30), ids=name)
def test_every_recipe_is_the_same_model(path: Path, tmp_path: Path) -> None:
    recipe = small(path)
    ours = our_model(recipe)
    sources, target = example_sources(ours, 7), example_ids(ours, 7)
    with exported_modules(export_script(recipe, tmp_path / "exported")) as standalone, torch.no_grad():
        theirs = their_model(standalone, tmp_path / "exported")
        assert type(theirs) is not EncoderDecoder
        mine, other = ours.state_dict(), theirs.state_dict()
        assert list(mine) == list(other)
        assert all(torch.equal(mine[key], other[key]) for key in mine)
        assert torch.equal(ours(sources, target), theirs(sources, target))
        assert step_by_step(ours, sources) == step_by_step(theirs, sources)
        ours_decoded = decoded(decode_all, ours, recipe.decoding, sources)
        canonical = standalone.load_recipe(tmp_path / "exported")
        assert ours_decoded == decoded(standalone.decode_all, theirs, canonical.decoding, sources)


def test_a_model_whose_loop_is_built_twice_to_find_its_widths(tmp_path: Path) -> None:
    """The conditional GRU's first cell reads the state of the second, which is wider than what the loop reads."""
    recipe = small(ROOT / "recipes" / "papers" / "sennrich2017.yaml")
    with exported_modules(export_script(recipe, tmp_path / "exported")) as standalone:
        assert (
            their_model(standalone, tmp_path / "exported").state_dict().keys() == our_model(recipe).state_dict().keys()
        )


@pytest.mark.slow
def test_random_recipes_are_the_same_models(tmp_path: Path) -> None:
    tally = {"same": 0}

    @settings(max_examples=10, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(recipes())
    def holds(stacks: dict[str, Any]) -> None:
        (tmp_path / "random.yaml").write_text(json.dumps(stacks), encoding="utf-8")
        try:
            recipe = load(tmp_path / "random.yaml")
            recipe.plan()
        except RecipeError:
            return
        ours = our_model(recipe)
        sources, target = example_sources(ours, 5), example_ids(ours, 5)
        folder = export_script(recipe, tmp_path / f"exported{tally['same']}")
        with exported_modules(folder) as standalone, torch.no_grad():
            assert torch.equal(ours(sources, target), their_model(standalone, folder)(sources, target))
        tally["same"] += 1

    holds()
    assert tally["same"] > 3


def step_by_step(model: Any, sources: Mapping[str, torch.Tensor]) -> list[int]:
    """Return the most probable token after each other, from `start` and `step` alone."""
    memories = model.encode(sources, target_mask=torch.ones(1, MAX_LENGTH, dtype=torch.bool))
    state, ids = model.start(memories, 1), [1]
    for _ in range(MAX_LENGTH):
        logits, state = model.step(torch.tensor([ids[-1:]]), state, memories)
        ids.append(int(logits[0, -1, 4:].argmax()) + 4)
    return ids


def decoded(decode: Any, model: Any, decoding: Mapping[str, Any], sources: Mapping[str, torch.Tensor]) -> list[Any]:
    """Return the hypotheses for three inputs of different lengths; of stories, lists of padded sentences."""
    rows: dict[str, list[Any]] = {}
    for key, ids in sources.items():
        if ids.is_floating_point():
            rows[key] = [ids[0, :1].expand(n, *ids.shape[2:]) for n in (3, 5, 1)]
            continue
        sentence = [4, 5, 4, *[0] * (ids.shape[-1] - 3)]
        rows[key] = [[sentence] * n if ids.ndim == 3 else [4, 5, 5, 4, 5][:n] for n in (3, 5, 1)]
    ((word, options),) = decoding.items()
    prefixes = [[]] * 3 if rows else [[5], [4, 5], [4]]
    hypotheses = decode([model], rows, {word: {**options, "max_length": MAX_LENGTH}}, prefixes)
    return [tuple(hypothesis) for row in hypotheses for hypothesis in row]


def test_stories_decode_alike_as_arrays_and_as_lists(tmp_path: Path) -> None:
    path = next(path for path in RECIPES if "babi" in path.read_text(encoding="utf-8"))
    model = our_model(small(path))
    (story,) = (key for key, ids in example_sources(model, 7).items() if ids.ndim == 3)
    words = example_sources(model, 7)[story].shape[-1]
    rows = {key: [[4, 5], [4, 5, 6]] for key in model.readers()}
    sentence = [4, 5, *[0] * (words - 2)]
    rows[story] = [[sentence] * 2, [sentence] * 3]
    arrays = {**rows, story: [np.array(row) for row in rows[story]]}
    decoding = {"greedy": {"max_length": 3, "max_ratio": 3.0}}
    assert decode_all([model], rows, decoding) == decode_all([model], arrays, decoding)


# ------------------------------------------------------------------------------------------- the folder


def test_modules_are_copied_unchanged_and_import_torch_alone(tmp_path: Path) -> None:
    folder = export_script(small(RECIPES[0]), tmp_path / "exported")
    copies = [file for file in folder.rglob("*.py") if file.name != "__main__.py"]
    assert len(copies) > 10
    for file in copies:
        assert file.read_bytes() == (ROOT / file.relative_to(folder)).read_bytes()
        libraries = {module.partition(".")[0] for module in imported_modules(file)} - OURS
        allowed = {"tokenizers"} if file.match("data/tokenizer*.py") else set()
        assert libraries <= ALLOWED - {"tokenizers"} | allowed, file


def test_only_the_blocks_of_the_recipe_are_there(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "recipe: 1\ndata: {generate: copy}\nmodel: {width: 8, decoder: [rnn]}\n", encoding="utf-8"
    )
    recipe = load(tmp_path / "r.yaml")
    folder = export_script(recipe, tmp_path / "exported")
    assert sorted(file.name for file in (folder / "blocks").glob("*.py")) == ["__init__.py", "rnn.py"]
    canonical = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    assert canonical["model"]["width"] == 8
    assert canonical["decoding"] == recipe.decoding
    assert f"python {folder.name} --info" in (folder / "README.md").read_text(encoding="utf-8")


def test_a_module_that_needs_another_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"`composer\.recipe\.validation` needs the library `jsonschema`"):
        needed_modules([*ROOTS, "composer.recipe.validation"], OURS)


# ------------------------------------------------------------------------------------------- runs


def run_alone(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run an exported folder in a process of its own, where only PyTorch and `tokenizers` can be imported."""
    code = WITHOUT_LIBRARIES.format(refused=frozenset(REFUSED), root=str(ROOT))
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder)]
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=300, cwd=folder.parent, env=environment
    )


@pytest.fixture
def main_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command line of an exported folder in this process, and returns what it prints."""

    def run(folder: Path, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(folder), *arguments])
        with exported_modules(folder) as standalone:
            standalone.main(folder)
        return capsys.readouterr().out

    return run


def lines_for(model: str) -> list[str]:
    if model in (TWO, SWAPPED):
        return ["eins zwei\tdrei", "sieben\tneun zehn acht"]
    return ["eins zwei drei", "", "sieben ach, neun", "zehn " * 12]


@pytest.mark.parametrize(
    ("model", "tokenizer", "decoding"),
    [
        (GRU, "{word: {size: 50}}", "{beam: {size: 3, max_length: 20}}"),
        (ATTENTION, "{bpe: {size: 300}}", "{greedy: {max_length: 15}}"),
        (TWO, "char", "{beam: {size: 2, max_length: 9}}"),
        (SWAPPED, "char", "{beam: {size: 2, max_length: 9}}"),
        (LANGUAGE, "{word: {split: spaces}}", "{sample: {max_length: 9, seed: 3}}"),
    ],
    ids=["gru", "attention", "two", "swapped", "language"],
)
def test_a_run_translates_the_same(model: str, tokenizer: str, decoding: str, tmp_path: Path) -> None:
    run = made(tmp_path / "run", model, tokenizer, decoding=decoding)
    folder = export_script(run, tmp_path / "exported")
    lines = lines_for(model)
    with exported_modules(folder) as standalone:
        theirs, recipe = standalone.load_model(folder), standalone.load_recipe(folder)
        outputs = standalone.translate(theirs, recipe, standalone.load_tokenizers(folder), lines)
    assert outputs == open_run(run).translate(lines)


def test_a_process_with_pytorch_alone_translates_arguments_and_stdin(
    tmp_path: Path, main_of: Callable[..., str]
) -> None:
    run = made(tmp_path / "run", GRU)
    folder = export_script(run, tmp_path / "exported")
    lines = ["eins zwei", "", "fünf\r", "acht"]
    expected = open_run(run).translate([line.rstrip("\r") for line in lines])
    assert "".join(expected)
    assert main_of(folder, *(line.rstrip("\r") for line in lines)).split("\n") == [*expected, ""]
    done = run_alone(folder, text="\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*expected, ""]


def test_lines_that_are_not_utf8_are_refused_and_a_byte_order_mark_is_no_text() -> None:
    assert [*read_lines(BytesIO(b"\xef\xbb\xbfeins\r\nzwei"))] == ["eins", "zwei"]
    with pytest.raises(RunError, match="line 2 is not UTF-8"):
        [*read_lines(BytesIO(b"eins\nf\xfcnf\n"))]


def test_a_folder_has_what_compiles_the_step(tmp_path: Path) -> None:
    decoding = "{beam: {size: 2, compile: true}}"
    folder = export_script(made(tmp_path / "run", ATTENTION, decoding=decoding), tmp_path / "exported")
    with exported_modules(folder) as standalone:
        compiled_step = importlib.import_module("composer.inference.compiled_step")
        assert compiled_step.compilation_problem(lambda: standalone.load_model(folder)) == ""


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, main_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_script(made(tmp_path / "run", GRU, decoding="{mbr: {samples: 2}}"), tmp_path / "exported")
    for module in ("sacrebleu", *(module for module in sys.modules if module.startswith("sacrebleu."))):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match=r"needs the package `sacrebleu.*\n   fix: pip install sacrebleu"):
        main_of(folder, "eins")


def test_info_describes_the_model_and_other_weights_are_refused(tmp_path: Path, main_of: Callable[..., str]) -> None:
    folder = export_script(made(tmp_path / "run", GRU), tmp_path / "exported")
    other = export_script(made(tmp_path / "other", ATTENTION), tmp_path / "exported_other")
    assert main_of(folder, "--info").endswith(" parameters, trained\n")
    (folder / "weights.pt").write_bytes((other / "weights.pt").read_bytes())
    with pytest.raises(SystemExit, match="these weights do not fit the model"):
        main_of(folder, "eins")


def test_an_exported_recipe_has_random_weights(tmp_path: Path, main_of: Callable[..., str]) -> None:
    folder = export_script(small(RECIPES[0]), tmp_path / "exported")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "__main__.py", "blocks", "composer", "recipe.json"]
    assert main_of(folder).endswith(" parameters, random weights\n")


# ------------------------------------------------------------------------------------------- the command


def test_the_command_writes_once_and_refuses_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, folder = made(tmp_path / "run"), tmp_path / "exported"
    app(["export", str(run), "--script", str(folder)], standalone_mode=False)
    assert f"wrote {folder}" in capsys.readouterr().out
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    (tmp_path / "file").write_text("", encoding="utf-8")
    for arguments, message in (
        ([str(run), "--script", str(folder)], "exists already"),
        ([str(run), "model.width=8", "--script", str(tmp_path / "a")], "cannot be set for a run"),
        ([str(run), "--script", str(tmp_path / "file" / "a")], "cannot be written"),
    ):
        with pytest.raises(RunError, match=message):
            app(["export", *arguments], standalone_mode=False)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "exported", "file", "run"]


def test_a_language_model_says_that_it_writes(tmp_path: Path) -> None:
    translator, writer = (
        export_script(made(tmp_path / name, model), tmp_path / f"exported_{name}")
        for name, model in (("gru", GRU), ("language", LANGUAGE))
    )
    texts = {folder: (folder / "README.md").read_text(encoding="utf-8") for folder in (translator, writer)}
    texts = {folder: text + (folder / "__main__.py").read_text(encoding="utf-8") for folder, text in texts.items()}
    assert 'python exported_gru "a sentence"' in texts[translator]
    assert 'python exported_language "how a text begins"' in texts[writer]
    assert not re.search(r"translat|sentence|source\b", texts[writer], re.IGNORECASE)
    lines = texts[writer].split("sys.path`:")[1].split("Ids:")[0].splitlines()
    code = "\n".join(line.removeprefix("    ") for line in lines)
    with exported_modules(writer):
        names: dict[str, Any] = {"target": torch.tensor([[1, 4, 5]]), "ids": torch.tensor([[1]])}
        exec(code.replace('Path("exported_language")', f"Path({str(writer)!r})"), names)
        assert names["logits"].shape[:2] == (1, 1)


def test_the_help_of_a_language_model_speaks_of_writing(
    tmp_path: Path, main_of: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    for model, word, other in ((GRU, "Translate", "Write"), (LANGUAGE, "Write", "Translate")):
        folder = export_script(made(tmp_path / word, model), tmp_path / f"exported_{word}")
        with pytest.raises(SystemExit):
            main_of(folder, "--help")
        text = capsys.readouterr().out
        assert word in text
        assert other not in text


def test_decoding_settings_of_a_run_are_exported(tmp_path: Path) -> None:
    folder = export_script(made(tmp_path / "run"), tmp_path / "exported", ["decoding.beam.size=7"])
    assert json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["decoding"]["beam"]["size"] == 7


def test_viterbi_is_refused_for_a_decoder_with_state(tmp_path: Path) -> None:
    run = made(tmp_path / "run", GRU)
    with pytest.raises(RunError, match="this one has a state"):
        export_script(run, tmp_path / "exported", ["decoding={viterbi: {}}"])
    assert not (tmp_path / "exported").exists()


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
def with_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Recipe]]:
    """Install a package of one module with the block `halved`, and return a recipe with it."""

    def forget() -> None:
        sys.modules.pop("halves", None)
        for cached in (registry.blocks, registry.block_class, schema_generator.load):
            cached.cache_clear()

    def install(imports: str, result: str) -> Recipe:
        (tmp_path / "halves.py").write_text(BLOCK.format(imports=imports, result=result), encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        points = [EntryPoint("halved", "halves:Halved", registry.GROUP)]
        monkeypatch.setattr(registry, "entry_points", lambda group: points)
        forget()
        (tmp_path / "r.yaml").write_text(RECIPE, encoding="utf-8")
        return load(tmp_path / "r.yaml")

    yield install
    monkeypatch.undo()
    forget()


def test_a_plug_in_is_exported_with_its_metadata(
    with_plug_in: Callable[[str, str], Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = with_plug_in("", "build(x)")
    ours = our_model(recipe)
    folder = export_script(recipe, tmp_path / "exported")
    assert (folder / "halves.py").read_bytes() == (tmp_path / "halves.py").read_bytes()
    monkeypatch.delitem(sys.modules, "halves")
    with exported_modules(folder) as standalone, torch.no_grad():
        theirs = their_model(standalone, folder)
        assert any(type(module).__name__ == "Halved" for module in theirs.modules())
        assert torch.equal(ours({}, example_ids(ours, 5)), theirs({}, example_ids(ours, 5)))


def test_a_plug_in_that_needs_another_library_is_refused(
    with_plug_in: Callable[[str, str], Recipe], tmp_path: Path
) -> None:
    recipe = with_plug_in("import numpy as np", "x * float(np.sqrt(2))")
    with pytest.raises(RunError, match="`halves` needs the library `numpy`"):
        export_script(recipe, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_initial_values_are_those_of_the_recipe_s_initialization(tmp_path: Path) -> None:
    text = "recipe: 1\ndata: {generate: copy}\nmodel: {width: 8, decoder: [rnn]}\ntraining: {initialization: KIND}\n"
    states = set()
    for index, kind in enumerate(("default", "orthogonal", "{uniform_scaling: 0.5}")):
        (tmp_path / "r.yaml").write_text(text.replace("KIND", kind), encoding="utf-8")
        recipe = load(tmp_path / "r.yaml")
        folder = export_script(recipe, tmp_path / f"exported{index}")
        with exported_modules(folder) as standalone:
            state = their_model(standalone, folder).state_dict()
        assert all(torch.equal(value, state[key]) for key, value in our_model(recipe).state_dict().items())
        states.add(str(state))
    assert len(states) == 3

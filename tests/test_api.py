"""The Python face: each command is a function of the package, for files, recipes, objects and runs
alike.
"""

from __future__ import annotations

import ast
import copy
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import composer
from composer import block
from composer.data.tasks.sequences import Copy
from composer.errors import ComposerError, DataError, RecipeError, RunError
from composer.inference.run import Run
from composer.recipe.sections import (
    Data,
    Logging,
    Model,
    Parallel,
    Recipe,
    Split,
    Trainer,
    Training,
)
from composer.training.datamodule import RecipeDataModule
from composer.training.module import Seq2SeqModule
from docs.hooks import commands as command_page

COMMANDS = command_page.commands()
FUNCTION_NAMES = {"import": "import_model"}  # a word of Python
FUNCTIONS = (
    *(FUNCTION_NAMES.get(name, name) for name in COMMANDS),
    "block",
    "check_block",
    "sweep_points",
    "sweep_status",
    "load",
    "build",
    "open_run",
)
SMALL = Recipe(
    name="small",
    data=Data(generate=Copy(symbols=5, max_length=5, train=40, val=5, test=5)),
    model=Model(
        width=8,
        encoder=[block.rnn("gru")],
        decoder=[block.self_attention(heads=2), block.cross_attention(heads=2, as_="read")],
    ),
    training=Training(max_steps=2, tokens_per_batch=100),
    trainer=Trainer(enable_progress_bar=False),
    logging=Logging(wandb=False),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("face") / "run"
    assert composer.train(SMALL, run=folder).run_dir == folder
    return composer.open_run(folder)


def count(model: torch.nn.Module) -> int:
    return sum(item.numel() for item in model.parameters())


def alone(code: str, folder: Path) -> str:
    """What a fresh interpreter prints."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# ------------------------------------------------------------------------------------------- what
# there is


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_types_and_a_docstring(name: str) -> None:
    function = getattr(composer, name)
    assert callable(function)
    assert inspect.getdoc(function)
    signature = inspect.signature(function)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(
        item.annotation is not inspect.Parameter.empty for item in signature.parameters.values()
    )
    assert name in composer.__all__
    assert name in dir(composer)


def test_type_checkers_read_the_same_names() -> None:
    stub = ast.parse(Path(composer.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert homes == {name: home for home, names in composer._HOMES.items() for name in names}


def test_a_name_stays_a_function_whatever_is_imported() -> None:
    """Importing a module sets its name in its package."""
    modules = {module.name for module in pkgutil.iter_modules(composer.__path__)}
    assert {"api", "viz"} <= modules
    assert modules.isdisjoint(composer.__all__)


def test_nothing_imports_torch_before_a_model_is_needed(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "small.yaml")
    code = (
        "import sys, composer\n"
        "from composer.recipe.sections import Recipe\n"
        "Recipe.of(composer.load('small.yaml')).recipe().fingerprints\n"
        "composer.check, composer.plan, composer.train\n"
        "print('torch' in sys.modules)"
    )
    assert alone(code, tmp_path).strip() == "False"


@pytest.mark.slow
def test_a_check_plans_without_the_compiler_of_pytorch_and_leaves_it_as_it_is(
    tmp_path: Path,
) -> None:
    SMALL.save(tmp_path / "small.yaml")
    code = (
        "import sys, composer\ncomposer.plan('small.yaml'), composer.check('small.yaml',"
        " ['training.precision=bf16-mixed'])\nprint(*{'torch._dynamo', 'torch._inductor',"
        " 'pytorch_lightning', 'datasets'} & set(sys.modules))\nimport"
        " torch\ntorch._refs.add(torch.ones(1), torch.ones(1))\nprint('torch._dynamo' in"
        " sys.modules, torch._dynamo.disable.__module__)"
    )
    imported, compiler = alone(code, tmp_path).splitlines()
    assert (imported, compiler) == ("", "True torch._dynamo.decorators")


@pytest.mark.slow
def test_a_line_is_translated_without_lightning_and_the_compiler(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a b\n")
    code = (
        "import sys\nfrom composer.cli import main\ntry:\n    main.main(['translate',"
        f" {str(run.run_dir.path)!r}, '--input', 'in', '--output', 'out'])\nexcept SystemExit as"
        " end:\n    print(end.code, *{'pytorch_lightning', 'torch._dynamo', 'sympy'} &"
        " set(sys.modules))"
    )
    assert alone(code, tmp_path).split() == ["0"]
    assert (tmp_path / "out").read_text().count("\n") == 1


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tranlate'"):
        composer.tranlate  # noqa: B018


# -------------------------------------------------------------------------------------------
# recipes


def test_a_recipe_may_be_a_file_objects_or_loaded(tmp_path: Path) -> None:
    file = SMALL.save(tmp_path / "small.yaml")
    every = [file, str(file), composer.load(file), SMALL, SMALL.recipe()]
    assert [composer.check(item) for item in every] == [[]] * len(every)
    assert len({composer.plan(item).parameters for item in every}) == 1
    assert len({str(composer.fingerprints(item)) for item in every}) == 1
    assert len({composer.draw(item).svg() for item in every}) == 1
    wider = [composer.plan(item, ["model.width=16"]).parameters for item in every[:2]]
    assert wider == [composer.plan(SMALL, ["model.width=16"]).parameters] * 2
    assert composer.plan(SMALL, "model.width=16").parameters == wider[0]
    assert (
        composer.draw(file, "model.width=16").svg() == composer.draw(file, ["model.width=16"]).svg()
    )
    with pytest.raises(TypeError, match="this recipe is loaded"):
        composer.plan(composer.load(file), ["model.width=16"])


def test_check_returns_faults_of_text_model_and_data(tmp_path: Path) -> None:
    recipe = Recipe(data=SMALL.data, model=Model(width=8, decoder=[block.self_attention(heads=3)]))
    assert [fault.code for fault in composer.check(recipe)] == ["width"]
    assert [fault.path for fault in composer.check(SMALL, ["model.width=x"])] == ["model.width"]
    parallel = Parallel(train=Split(source="a", target="b"))
    faults = composer.check(Recipe(data=Data(parallel=parallel), model=SMALL.model))
    assert {fault.path for fault in faults} == {
        "data.parallel.train.source",
        "data.parallel.train.target",
    }
    for name in "ab":
        (tmp_path / name).write_text("x\n", encoding="utf-8")
    assert (
        composer.check(Recipe(data=Data(parallel=parallel), model=SMALL.model), data=tmp_path) == []
    )
    assert (
        composer.check(
            Recipe(data=Data(parallel=parallel), model=SMALL.model).recipe(), data=tmp_path
        )
        == []
    )
    with pytest.raises(ComposerError):
        composer.plan(recipe)


def test_build_makes_the_model_with_the_vocabularies_that_are_named() -> None:
    few, many = (
        composer.build(SMALL, vocabularies={"source": size, "target": 9}) for size in (7, 8)
    )
    assert count(many) - count(few) == 8  # one more embedding
    assert count(composer.build(SMALL)) == composer.plan(SMALL).parameters


def test_diff_shows_the_changed_settings() -> None:
    other = Recipe(
        data=SMALL.data,
        model=Model(width=8, encoder=[block.rnn("lstm")], decoder=SMALL.model.decoder),
    )
    text = composer.diff(SMALL, other).text()
    assert "gru" in text
    assert "lstm" in text
    assert "lstm" not in composer.diff(SMALL, SMALL).text()


# ------------------------------------------------------------------------------------------- runs


def test_a_run_translates_evaluates_reports_and_draws(run: Run, tmp_path: Path) -> None:
    lines = ["a b", "", "c"]
    result = run.translate(lines)
    assert composer.translate(run, lines) == result
    assert composer.translate(run.run_dir.path, lines) == result
    # two votes of one mind
    assert composer.translate([run, str(run.run_dir.path)], lines) == result
    assert composer.translate(run, lines, beam=1) == run.translate(lines, beam=1)
    assert run.evaluate() == composer.evaluate(run.run_dir.path)
    page = run.report(tmp_path / "page.html")
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert composer.draw(run).svg() == composer.draw(str(run.run_dir.path)).svg()


def test_an_alignment_is_displayed_in_a_notebook(run: Run) -> None:
    first, second = run.alignments(["a b", "c d"])
    shown = first._repr_html_()
    assert shown.startswith("<iframe ")
    assert shown != second._repr_html_()
    # the page is an escaped value of the frame, and changes nothing around it
    assert "<script" not in shown


def test_a_run_is_packed_and_pulled(run: Run, tmp_path: Path) -> None:
    packed = composer.pack(run.run_dir.path, tmp_path / "small.tar")
    pulled = composer.pull(str(packed), tmp_path / "pulled")
    assert composer.translate(pulled, ["a b c"]) == run.translate(["a b c"])
    assert composer.fingerprints(pulled)["run"] == composer.fingerprints(run)["run"]


def test_user_errors_are_reported() -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        composer.load("nowhere.yaml")
    with pytest.raises(RecipeError):
        composer.build(Recipe(model=Model(width=8, decoder=[block.norm("batch")]), data=SMALL.data))
    with pytest.raises(ComposerError):
        composer.translate("nowhere", ["a"])


# -------------------------------------------------------------------------------------------
# whatever is given

WRONG = (None, 3, [], b"x", {"recipe": 1}, Model(width=8, decoder=["norm"]))
OF_RECIPES = ("check", "build", "train")
OF_BOTH = ("plan", "draw", "fingerprints", "diff")


@pytest.mark.parametrize("name", [*OF_RECIPES, *OF_BOTH, "translate", "export"])
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_an_argument_of_another_type_is_refused(name: str, wrong: object, tmp_path: Path) -> None:
    more = {"export": (tmp_path / "m.py",), "diff": (SMALL,), "translate": (["a"],)}.get(name, ())
    with pytest.raises(TypeError, match=r"this takes|a recipe is"):
        getattr(composer, name)(wrong, *more)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", OF_RECIPES)
def test_a_run_is_no_recipe(run: Run, name: str) -> None:
    with pytest.raises(TypeError, match=r"a recipe is .* this is a Run"):
        getattr(composer, name)(run)


def test_every_form_of_a_recipe_or_run_gives_the_same_result(run: Run) -> None:
    folder = run.run_dir.path
    every = [folder / "recipe.yaml", str(folder), folder, run, run.recipe, Recipe.of(run.recipe)]
    assert len({composer.fingerprints(item)["run"] for item in every}) == 1
    for alike in (every[1:4], every[4:] + every[:1]):  # of runs, and of recipes
        assert len({composer.draw(item).mermaid() for item in alike}) == 1
    assert all(composer.diff(run, item, quick=True).same for item in every)
    assert composer.diff(run, run, quick=True).tested == ""
    assert composer.diff(run, run).tested != ""


def test_an_open_run_is_accepted_in_place_of_its_folder(run: Run, tmp_path: Path) -> None:
    assert composer.open_run(run).run_dir == run.run_dir
    assert composer.evaluate(run) == run.evaluate()
    packed = composer.pack(run, tmp_path / "p.tar")
    assert composer.report(composer.pull(packed, tmp_path / "pulled")).is_file()
    assert composer.report(run, output=tmp_path / "r.html").is_file()


# -------------------------------------------------------------------------------------------
# commands

OTHER_NAMES = {
    ("train", "from_run"): "start_from",  # `from` is a word of Python
    ("export", "ctranslate2"): "path",
    ("export", "hf"): "path",
    ("export", "onnx"): "path",
    ("export", "web"): "path",
}
"""The names in Python of options that have another one there."""
NOT_IN_PYTHON = {
    "as_json": "functions return data",
    "engine": "a setting of every decoding method, as in a recipe",
    "write": "`schema --write` is for who changes this project",
    ("translate", "source"): "lines are given",
    ("translate", "output"): "lines are returned",
    ("score", "sources"): "lines are given",
    ("score", "target"): "targets are given",
    ("score", "minimal_pairs"): "`run.minimal_pairs`, since it returns something else",
    ("draw", "output"): "the drawing has `.save(file)`",
    ("sweep", "dry_run"): "`sweep_points`, since it returns something else",
    ("sweep", "status"): "`sweep_status`, since it returns something else",
}
"""Options of commands that functions do not have, and why."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_function_with_the_same_options(name: str) -> None:
    function = getattr(composer, FUNCTION_NAMES.get(name, name))
    parameters = list(inspect.signature(function).parameters)
    arguments = [
        param.name for param in COMMANDS[name].params if param.param_type_name == "argument"
    ]
    named = [param.name for param in COMMANDS[name].params if param.name not in arguments]
    assert "overrides" not in arguments or "overrides" in parameters
    assert len([argument for argument in arguments if argument != "overrides"]) <= len(parameters)
    for option in map(str, named):
        if option not in NOT_IN_PYTHON and (name, option) not in NOT_IN_PYTHON:
            assert OTHER_NAMES.get((name, option), option) in parameters, option
    assert {key[1] for key in (*OTHER_NAMES, *NOT_IN_PYTHON) if key[0] == name} <= {*named}


def test_hypotheses_scores_and_prefixes_are_asked_for_in_python(run: Run) -> None:
    lines = ["a b", "", "c"]
    for best in (
        run.translate(lines, 2, n_best=2),
        composer.translate(run, lines, beam=2, n_best=2),
    ):
        assert [len(row) for row in best] == [2, 2, 2]
        assert [row[0] for row in best] == run.translate(lines, beam=2)
    scored = run.translate(lines, scores=True)
    assert [item.text for item in scored] == run.translate(lines)
    assert scored[0].score < 0.0
    assert run.translate(lines, beam=1, scores=True)[0] == scored[0]
    # a blank line
    assert [item.score for item in run.translate(lines, 3, 2, scores=True)[1]] == [0.0, 0.0]
    with pytest.raises(RunError, match="in Python `beam=2`"):
        run.translate(lines, n_best=2)
    assert run.translate(["a b", "c"], prefix=["d", ""])[0].startswith("d")
    with pytest.raises(RunError, match="`prefixes` has 1 text for 3 lines"):
        run.translate(lines, prefix=["a"])
    with pytest.raises(RunError, match="`n_best=1` or more"):
        run.translate(lines, n_best=0)
    with pytest.raises(TypeError, match="lines are a list of texts"):
        run.translate("a b")
    with pytest.raises(DataError, match="this line has 2 texts, and the model reads one"):
        run.translate([("a", "b")])
    for line in (3, {"a": "b"}, Path("a")):
        with pytest.raises(RunError, match="expected a string"):
            run.translate([line])


def test_blocks_and_schema_are_what_the_commands_print() -> None:
    assert (
        composer.blocks("conv")
        == composer.blocks()["conv"]
        == composer.schema()["$defs"]["block.conv"]
    )
    with pytest.raises(RunError, match="no block is called `konv`; did you mean `conv`"):
        composer.blocks("konv")


def test_a_recipe_for_own_texts_is_written(tmp_path: Path) -> None:
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_text("a b c\n" * 60, encoding="utf-8")
    file = composer.new(tmp_path / "train.en", str(tmp_path / "train.de"), tmp_path / "mine.yaml")
    assert composer.check(file) == []


@pytest.mark.slow
def test_a_sweep_is_listed_trained_and_ranked(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "base.yaml")
    file = tmp_path / "tried.yaml"
    file.write_text(
        "sweep: 1\nbase: base.yaml\naxes: {width: {set: model.width, values: [8]}}\n",
        encoding="utf-8",
    )
    assert [point.status for point in composer.sweep_points(file)] == ["trained"]
    board = composer.sweep(file, run=tmp_path / "run")
    assert len(board.ranked) == 1
    again = composer.leaderboard(tmp_path / "run", output=tmp_path / "page.html")
    assert (tmp_path / "page.html").is_file()
    assert again.text() == board.text()
    assert again.as_json()["trials"][0]["rank"] == 1


# ------------------------------------------------------------------------------------------- inside
# a run


def test_given_targets_are_scored_as_translations_are(run: Run) -> None:
    lines = ["a b", "c d e", "a"]
    model = copy.deepcopy(run.model)
    with torch.no_grad():
        model.output.bias[[0, 1, 3]] = -1e4  # no ⟨unk⟩: its text is other tokens
        model.output.bias[2] += 1.0  # and answers that end
    opened = Run.from_model(run.recipe, run.tokenizers, model)
    translated = opened.translate(lines, beam=2, scores=True)
    for one, score in zip(
        translated, opened.score(lines, [one.text for one in translated]), strict=True
    ):
        # cut before its eos
        known = score.log_probabilities if one.ended else score.log_probabilities[:-1]
        assert sum(known) == pytest.approx(one.score, abs=1e-4)
    short, long = run.score(["a", "b"], ["a", "b c d"])
    assert [len(one.log_probabilities) for one in (short, long)] == [2, 4]  # with eos
    assert (short.tokens, long.tokens) == (["a", "⟨eos⟩"], ["b", "c", "d", "⟨eos⟩"])
    assert long.total == pytest.approx(sum(long.log_probabilities))
    log_p = run.logits(["a", "b"], ["a", "b c d"]).log_softmax(-1)
    target = run.batch(["a", "b"], ["a", "b c d"])["target_out"]
    assert log_p[0, :2].gather(-1, target[0, :2, None])[:, 0].tolist() == pytest.approx(
        short.log_probabilities
    )
    with pytest.raises(RunError, match="`targets` has 1 text for 2 lines"):
        run.score(["a", "b"], ["a"])
    with pytest.raises(TypeError, match="lines are a list"):
        run.score(["a", "b"], "ab")


def test_batches_states_and_attention_are_arrays(run: Run) -> None:
    batch = run.batch(["a b", "c"], ["a", "b c"])
    assert batch["sources"]["source"].shape == (2, 3)
    assert (batch["target_in"][:, 0] == 1).all()  # bos
    assert batch["target_out"][0].tolist()[1:] == [2, 0]  # eos, padding
    states = run.encode(["a b", "c"])["encoder"]
    assert states.states.shape == (2, 3, 8)
    assert states.mask.tolist() == [[True, True, True], [True, True, False]]
    probe = torch.nn.Linear(8, 1)
    probe(states.states).sum().backward()  # states may be what another model learns from
    (weights,) = run.attention(["a b"], ["c d e"])
    (read,) = [array for block, array in weights.items() if "cross" in block]
    assert read.shape == (2, 4, 3)
    assert read.sum(-1) == pytest.approx(1.0)
    long = " ".join("abcde" * 30)
    assert run.attention([long], ["a"])[0]
    assert run.alignments(["a b"], ["c d e"])[0].output == "c d e"


def test_a_loop_of_ones_own_trains_a_model_that_translates() -> None:
    recipe = SMALL.recipe()
    loader = composer.data_loader(recipe)
    assert loader.tokenizers is not None
    model = composer.build(recipe, vocabularies=loader.tokenizers.sizes)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    orders = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        batches = list(loader)
        orders.append([batch["rows"].tolist() for batch in batches])
        for batch in batches:
            logits = model(batch["sources"], batch["target_in"])
            loss = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), batch["target_out"], ignore_index=0
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert orders[0] != orders[1]
    run = Run.from_model(recipe, loader.tokenizers, model.train())
    assert run.translate(["a b"]) == run.translate(["a b"])
    assert model.training
    assert run.evaluate("val")["val/loss"] > 0.0
    assert len(list(composer.data_loader(recipe, "val", tokenizers=loader.tokenizers))) > 0
    with pytest.raises(RunError, match="this run has no data called `dev`") as refused:
        composer.data_loader(recipe, "dev")
    assert refused.value.faults[0].hint == "choose one of `train`, `val`, `test` with `--split`"
    with pytest.raises(RunError, match="not a run folder"):
        run.report()


def test_a_module_that_any_trainer_trained_translates() -> None:
    recipe = SMALL.recipe()
    module = Seq2SeqModule.from_recipe(recipe, RecipeDataModule(recipe).tokenizers)
    lines = composer.translate(module, ["a b", "c"])
    assert composer.translate([module, module], ["a b", "c"]) == lines
    assert composer.translate(module, ["a b"], beam=2, n_best=2, scores=True)[0][1].score < 0.0

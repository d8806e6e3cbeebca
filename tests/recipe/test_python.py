"""Recipes in Python: the sections that a loaded recipe has, and blocks by their words."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import composer
from composer import block, choose
from composer.data.tasks.sequences import Copy
from composer.errors import RecipeError, RunError
from composer.inference.methods import Beam, Greedy
from composer.recipe.recipe import load, load_text
from composer.recipe.registry import CHOICES
from composer.recipe.section import BlockSpec
from composer.recipe.sections import (
    Babi,
    Data,
    EarlyStopping,
    Evaluation,
    Logging,
    Model,
    Output,
    Parallel,
    Recipe,
    Split,
    Trainer,
    Training,
    ValidationSample,
    WandB,
)
from composer.recipe.yaml_reader import parse, to_data
from composer.training.optimizers import Adam, Sgd

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    file
    for file in (ROOT / "recipes").rglob("*.yaml")
    if not {"fragments", "sweeps"} & set(file.parts)
)


def decoder(*blocks: Any, **settings: Any) -> Recipe:
    return Recipe(
        data=Data(generate="copy"), model=Model(width=64, decoder=list(blocks)), **settings
    )


def written(recipe: Recipe) -> Any:
    return to_data(parse(recipe.yaml(), "r.yaml"))


def refused(recipe: Recipe) -> RecipeError:
    with pytest.raises(RecipeError) as raised:
        recipe.recipe()
    return raised.value


# ------------------------------------------------------------------------------------------- every
# recipe


def assert_same_in_python(file: Path) -> None:
    loaded = load(file)
    again = Recipe.of(loaded).recipe(file.parent)
    assert repr(again.canonical) == repr(loaded.canonical)  # 1 is not 1.0
    assert (again.fingerprints, again.sources) == (loaded.fingerprints, loaded.sources)
    assert again.explicit.get("description") == loaded.explicit.get("description")


@pytest.mark.parametrize("file", RECIPES[::8], ids=lambda file: file.stem)
def test_a_recipe_of_a_loaded_recipes_sections_is_the_same(file: Path) -> None:
    assert_same_in_python(file)


@pytest.mark.slow
def test_every_recipe_is_the_same_in_python() -> None:
    assert len(RECIPES) > 100
    for file in RECIPES:
        assert_same_in_python(file)


def test_encoders_keep_the_order_in_which_a_line_has_their_texts(tmp_path: Path) -> None:
    split = Split(target="t", encoders={"b": "1", "a": "2"})
    model = Model(width=8, encoders={"b": [block.rnn()], "a": [block.rnn()]}, decoder=[block.rnn()])
    recipe = Recipe(data=Data(parallel=Parallel(train=split)), model=model)
    assert written(recipe)["data"]["parallel"]["train"] == {"target": "t", "b": "1", "a": "2"}
    loaded = recipe.recipe()
    assert loaded.sources == Recipe.of(loaded).recipe().sources == ["b", "a"]
    assert list(loaded.model.encoders or ()) == ["a", "b"]


# ------------------------------------------------------------------------------------------- what
# is written


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        (block.dropout(), "dropout"),
        (block.dropout(0.1), {"dropout": {"rate": 0.1}}),
        (block.dropout(0.1, as_="x"), {"dropout": {"rate": 0.1, "as": "x"}}),
        (block.cross_attention(from_="encoder"), {"cross_attention": {"from": "encoder"}}),
        (block.residual([block.norm()]), {"residual": ["norm"]}),
        (
            block.residual(["norm", {"unheard": {"past": 0.2}}]),
            {"residual": ["norm", {"unheard": {"past": 0.2}}]},
        ),
        (
            block.parallel({"a": [block.norm("rms")]}),
            {"parallel": {"branches": {"a": [{"norm": {"kind": "rms"}}]}}},
        ),
        (block.rnn(width=None), {"rnn": {"width": None}}),
        (
            block.repeat(times=np.int64(3), stack=(block.norm(),)),
            {"repeat": {"times": 3, "stack": ["norm"]}},
        ),
        (block.rnn(np.str_("gru")), {"rnn": {"cell": "gru"}}),
        (block.rnn(bidirectional=np.bool_(True)), {"rnn": {"bidirectional": True}}),
        (block.rnn(bidirectional=np.array(True)), {"rnn": {"bidirectional": True}}),
        (block.rnn(bidirectional=torch.tensor(True)), {"rnn": {"bidirectional": True}}),
        (block.use("$s"), {"use": {"stack": "$$s"}}),  # Python has variables
    ],
)
def test_each_block_has_its_yaml_form(spec: BlockSpec, form: Any) -> None:
    assert written(decoder(spec))["model"]["decoder"] == [form]


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({"training": Training()}, None),
        ({"training": Training(seed=1, optimizer=Adam(), validation_sample=ValidationSample())}, None),
        ({"training": Training(optimizer=Adam(eps=np.float32(0.5)))}, {"optimizer": {"adam": {"eps": 0.5}}}),
        ({"training": Training(optimizer=Sgd())}, {"optimizer": "sgd"}),
        ({"training": Training(optimizer="sgd")}, {"optimizer": "sgd"}),
        ({"training": Training(optimizer={"sgd": 0.1})}, {"optimizer": {"sgd": 0.1}}),
        ({"training": Training(early_stopping=EarlyStopping())}, {"early_stopping": {}}),
        ({"training": {"max_steps": 3}}, {"max_steps": 3}),
        # a batch, where 1.0 is all of them
        ({"trainer": Trainer(limit_val_batches=1)}, {"limit_val_batches": 1}),
        ({"logging": Logging(wandb=False)}, {"wandb": False}),
        ({"logging": Logging(wandb=WandB(project="p"))}, {"wandb": {"project": "p"}}),
        ({"decoding": Beam(size=4)}, {"beam": {"size": 4}}),
        ({"decoding": Greedy()}, None),
    ],
)  # fmt: skip
def test_only_what_is_not_the_default_is_written(settings: dict[str, Any], form: Any) -> None:
    (key,) = settings
    assert written(decoder("norm", **settings)).get(key) == form


def test_a_path_is_text_and_a_stack_of_no_name_is_not_written() -> None:
    data = Data(babi=Babi(folder=Path("a"), tasks=[1]))  # type: ignore[arg-type]
    recipe = Recipe(
        data=data, model=Model(width=8, decoder=[block.norm()], stacks={}, output=Output(tie=[]))
    )
    form = {
        "recipe": 1,
        "data": {"babi": {"folder": "a", "tasks": [1]}},
        "model": {"width": 8, "decoder": ["norm"]},
    }
    assert written(recipe) == form


def test_a_section_made_by_hand_has_its_choices_as_objects() -> None:
    assert (Training().optimizer, Training(optimizer="sgd").optimizer) == (Adam(), Sgd())
    assert (
        Training(optimizer={"sgd": 0.1}).optimizer
        == Training(optimizer={"sgd": {"learning_rate": 0.1}}).optimizer
    )
    assert ValidationSample().decoding == Greedy()
    assert Data(generate={"copy": 5}).generate == Copy(symbols=5)
    assert Data(generate="copy") == Data(generate=Copy())


@pytest.mark.parametrize(
    ("choice", "path"),
    [
        ("adm", "training.optimizer"),
        ({"adam": {"lr": 0.1}}, "training.optimizer.adam.lr"),
        ({"adam": {}, "sgd": {}}, "training.optimizer.sgd"),
        ({}, "training.optimizer"),
        ({"adam": {"eps": "x"}}, "training.optimizer.adam.eps"),
        ({"adam": None}, "training.optimizer.adam"),
    ],
)
def test_a_wrong_choice_stays_until_a_check_refuses_it(choice: Any, path: str) -> None:
    training = Training(optimizer=choice, max_steps=3)
    assert "optimizer=" in repr(training)  # which reads it
    (fault,) = refused(decoder("norm", training=training)).faults
    assert fault.path == path


def test_recipes_are_values() -> None:
    one = decoder(block.residual([block.self_attention(heads=8)]), block.dropout(0.1))
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), dataclasses.replace(one)):
        assert other == one
        assert other.yaml() == one.yaml()
    assert dataclasses.replace(one, name="x") != one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "x"  # type: ignore[misc]
    stack = [block.norm()]
    model = Model(width=8, decoder=stack)
    stack.append(block.norm())
    assert model.decoder == (block.norm(),)
    assert model == Model(width=8, decoder=(block.norm(),))


# ------------------------------------------------------------------------------------------- faults


def test_a_fault_names_its_place_and_the_line_of_the_yaml() -> None:
    wrong = decoder(block.norm(), block.residual([block.self_attention(heads="4")]))
    (fault,) = composer.check(wrong)
    line = wrong.yaml().splitlines()[fault.line - 1]
    assert (fault.file, fault.path) == (
        "<python>",
        "model.decoder[1].residual[0].self_attention.heads",
    )
    assert fault.excerpt == line
    assert '"4"' in line
    (fault,) = refused(decoder({"self_attention": {"head": 4}})).faults
    assert "`heads`" in fault.message + fault.hint


@pytest.mark.parametrize(
    ("recipe", "path", "message"),
    [
        (
            decoder(block.residual([block.norm])),
            "model.decoder[0].residual.stack[0]",
            "`norm` is not called",
        ),
        (decoder(training=Training(optimizer=Adam)), "training.optimizer", "`Adam` is not called"),  # type: ignore[arg-type]
        (
            decoder(block.residual({1.0})),
            "model.decoder[0].residual.stack",
            "a recipe cannot hold a set",
        ),
        (decoder({1: 2}), "model.decoder[0]", "a key is text"),
        (
            decoder(block.dropout(1 + 2j)),
            "model.decoder[0].dropout.rate",
            "a recipe cannot hold a complex",
        ),
        (
            decoder(training=Training(optimizer=Sgd(momentum=1j))),
            "training.optimizer.sgd.momentum",
            "a complex",
        ),  # type: ignore[arg-type]
        (
            decoder(training=Training(optimizer=torch.optim.Adam)),
            "training.optimizer",
            "`Adam`, which is not of `compo",
        ),  # type: ignore[arg-type]
        (
            decoder(training=Training(optimizer=choose.optimizer)),
            "training.optimizer",
            "cannot hold a Words",
        ),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_is_no_data_is_refused_with_its_path(
    recipe: Recipe, path: str, message: str
) -> None:
    (fault,) = refused(recipe).faults
    assert (fault.file, fault.path) == ("<python>", path)
    assert message in fault.message


@pytest.mark.parametrize(
    "stack", [(block.norm() for _ in range(2)), np.array([block.norm()]), map(str, "ab")]
)
def test_what_could_be_a_list_is_to_be_made_one(stack: Any) -> None:
    (fault,) = refused(
        Recipe(data=Data(generate="copy"), model=Model(width=8, decoder=stack))
    ).faults
    assert (fault.path, fault.hint) == ("model.decoder", "write `list(...)`")


@pytest.mark.parametrize(
    ("recipe", "path", "kind"),
    [
        (decoder("norm", training=Evaluation()), "training", "`Training`"),
        (decoder("norm", training=Training(optimizer=choose.schedule.linear())), "training.optimizer", "`Optimizer`"),  # type: ignore[arg-type]
        (decoder("norm", training=Training(early_stopping=Training())), "training.early_stopping", "`EarlyStopping`"),  # type: ignore[arg-type]
        (decoder("norm", training=Training(max_steps=Training())), "training.max_steps", "plain data"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_section_of_another_class_is_refused(recipe: Recipe, path: str, kind: str) -> None:
    """One that is as by default writes nothing, and would be taken for any."""
    (fault,) = refused(recipe).faults
    assert (fault.file, fault.path) == ("<python>", path)
    assert kind in fault.hint


def test_a_stack_that_contains_itself_is_refused() -> None:
    stack: list[Any] = []
    stack.append(block.residual(stack))
    (fault,) = refused(decoder(*stack)).faults
    assert "deeper than" in fault.message


def test_saving_overwrites_only_on_request(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    one = decoder(block.norm(), name="mine")
    assert one.save(file) == file
    assert load(file).canonical == one.recipe().canonical == one.recipe(tmp_path).canonical
    assert one.recipe(tmp_path).file == file
    before = file.read_bytes()
    with pytest.raises(RunError, match="overwrite=True"):
        decoder("dropout").save(file)
    with pytest.raises(RecipeError):
        decoder({1: 2}).save(file, overwrite=True)
    assert file.read_bytes() == before
    decoder("dropout").save(file, overwrite=True)
    assert load(file).model.decoder == decoder("dropout").recipe().model.decoder
    with pytest.raises(RunError, match="cannot be written"):
        one.save(tmp_path / "no" / "r.yaml")
    assert [item.name for item in tmp_path.iterdir()] == ["mine.yaml"]


def test_overrides_are_laid_over_a_recipe_in_python(tmp_path: Path) -> None:
    made = decoder(block.norm())
    assert made.recipe(overrides="model.width=9").model.width == 9
    assert made.recipe(overrides=["model.width=9"]).model.width == 9


# ------------------------------------------------------------------------------------------- blocks


def test_a_stack_of_a_recipe_has_the_word_the_settings_and_the_place_of_each_block() -> None:
    stacks = (
        "encoder: [norm, {residual: [{norm: rms}]}], decoder: [{use: s}], stacks: {s: [{linear:"
        " 8}]}"
    )
    model = load_text(f"recipe: 1\ndata: {{generate: copy}}\nmodel: {{width: 8, {stacks}}}\n").model
    assert model.encoder is not None
    assert [spec.word for spec in model.encoder] == ["norm", "residual"]
    assert model.encoder[1].path == ("model", "encoder", 1, "residual")
    # as a block gets it
    assert model.encoder[1].settings["stack"] == [{"norm": {"kind": "rms", "eps": 1e-5}}]
    assert model.encoder[0].as_data() == {"norm": {"kind": "layer", "eps": 1e-5}}
    assert model.stacks["s"][0].path == ("model", "stacks", "s", 0, "linear")


def test_every_block_is_a_function_with_its_signature_and_its_page() -> None:
    described = composer.blocks()
    assert dir(block) == sorted(described)
    for word, entry in described.items():
        make = getattr(block, word)
        names = [name.rstrip("_") for name in inspect.signature(make).parameters]
        assert names == list(entry["properties"]), word
        assert entry["description"] in make.__doc__
    parameters = inspect.signature(block.rnn).parameters
    assert (parameters["cell"].default, parameters["bidirectional"].default) == ("lstm", False)
    assert [name for name, it in parameters.items() if it.kind is it.POSITIONAL_OR_KEYWORD] == [
        "cell"
    ]
    assert inspect.signature(block.repeat).parameters["times"].default is inspect.Parameter.empty
    page = pydoc.plain(pydoc.render_doc(block.self_attention))
    assert "self_attention(heads=8, *, dropout=0.0" in page
    assert "Multi-head scaled dot-product self-attention" in page


def test_an_unknown_block_or_setting_is_refused_at_once() -> None:
    with pytest.raises(
        AttributeError,
        match=r"no block is called `sefl_attention`; did you mean `self_attention`\?",
    ):
        block.sefl_attention  # noqa: B018
    with pytest.raises(
        TypeError, match=r"self_attention has no setting `head`; did you mean `heads`\?"
    ):
        block.self_attention(head=4)
    with pytest.raises(
        TypeError, match=r"dropout has no setting `zzz`; allowed here: `rate`, `locked`, `as_`$"
    ):
        block.dropout(zzz=4)
    with pytest.raises(TypeError, match="times"):
        block.repeat(stack=[block.norm()])
    with pytest.raises(TypeError, match="positional"):
        block.rnn("gru", 8)


def test_every_other_choice_is_a_function_that_makes_an_object_of_its_class() -> None:
    tables = {choice.noun: choice.constructors() for choice in CHOICES.values()}
    kinds = [getattr(choose, kind) for kind in dir(choose)]
    assert sorted(map(dir, kinds)) == sorted(map(sorted, tables.values()))
    assert choose.optimizer.adam(5e-3, eps=1e-8) == Adam(learning_rate=5e-3, eps=1e-8)
    assert (choose.decoding.beam(size=4), choose.task.copy(5)) == (Beam(size=4), Copy(symbols=5))
    assert "share of the last step that is kept. It takes" in pydoc.plain(
        pydoc.render_doc(choose.optimizer.sgd)
    )
    with pytest.raises(
        AttributeError, match=r"no way of decoding is called `beem`; did you mean `beam`\?"
    ):
        choose.decoding.beem  # noqa: B018
    with pytest.raises(
        TypeError, match=r"adam has no setting `lr`; did you mean `learning_rate`\?"
    ):
        choose.optimizer.adam(lr=4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Training(max_stepz=3), "Training has no setting `max_stepz`; did you mean `max_steps`?"),  # type: ignore[call-arg]
        (lambda: Adam(lr=3), "Adam has no setting `lr`; did you mean `learning_rate`?"),  # type: ignore[call-arg]
        (lambda: dataclasses.replace(decoder(), traning=3), "no setting `traning`; did you mean `training`?"),  # type: ignore[call-arg]
        (lambda: WandB(at=()), "WandB has no setting `at`; allowed here: `project`, `name`, "),  # type: ignore[call-arg]
        (lambda: Model(), "missing 1 required keyword-only argument: 'width'"),  # type: ignore[call-arg]
    ],
)  # fmt: skip
def test_an_unknown_setting_of_a_section_is_refused_at_once(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(TypeError) as raised:
        make()
    assert message in str(raised.value)


def test_a_recipe_in_python_imports_no_torch() -> None:
    code = (
        "import sys\nfrom composer import block, choose\nfrom composer.recipe.sections import Data,"
        " Model, Recipe\ntask, tokenizer = choose.task.copy(), choose.tokenizer.char()\ndata ="
        " Data(generate=task, tokenizer=tokenizer)\nrecipe = Recipe(data=data, model=Model(width=8,"
        " decoder=[block.norm('rms')]))\nrecipe.recipe().fingerprints, dir(block), repr(recipe),"
        " recipe.training.optimizer.learning_rate\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


SOURCES = (
    "section",
    "sections",
    "training_sections",
    "model_sections",
    "data_sections",
    "choices",
    "words",
)
WRONG = """\
from composer import block, choose
from composer.recipe.section import BlockSpec
from composer.recipe.sections import Data, Model, Recipe, Training

model = Model(width=8, decoder=[block.norm("rms"), *[block.dropout(0.1)] * 2])
recipe = Recipe(data=Data(), model=model, training=Training(max_steps=3))
spec: BlockSpec = block.norm()
Training(optimizer=choose.optimizer.adam(1e-3), schedule=choose.schedule.linear())
Training(max_step=3)
Training(seed="1")
Model(decoder=[])
Model(width=8, decoder=[block.norm])
Training(optimizer=choose.schedule.linear())
"""


def test_a_type_checker_finds_mistakes_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(WRONG, encoding="utf-8")
    # only what a recipe in Python is made of is looked at: torch alone would take minutes
    sources = [f"composer/recipe/{name}.py" for name in SOURCES]
    options = [
        "--config-file=",
        "--follow-imports=skip",
        "--ignore-missing-imports",
        f"--cache-dir={tmp_path}",
    ]
    command = [
        sys.executable,
        "-m",
        "mypy",
        *options,
        str(file),
        "composer/__init__.pyi",
        "blocks/core/settings.py",
        *sources,
    ]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout
    lines = {
        int(line.split(":")[1])
        for line in shown.splitlines()
        if line.startswith(str(file)) and "error" in line
    }
    first = WRONG.splitlines().index("Training(max_step=3)") + 1
    assert lines == set(range(first, len(WRONG.splitlines()) + 1)), shown
    assert 'did you mean "max_steps"' in shown


def test_sections_are_the_classes_of_a_loaded_recipe() -> None:
    loaded = load(ROOT / "recipes" / "quickstart.yaml")
    assert isinstance(loaded.training, Training)
    assert isinstance(loaded.model, Model)


def test_the_words_are_copied_as_other_objects_are() -> None:
    assert dir(copy.deepcopy(block)) == dir(block)

"""Recipes as Python objects: what is written is what was given, and nothing is lost on the way to YAML and back."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer.cli import inspection
from composer.errors import RecipeError, RunError
from composer.recipe import classes as words
from composer.recipe import python_classes, schema_generator
from composer.recipe.classes import (
    UNSET,
    Adam,
    CopyTask,
    CrossAttention,
    Data,
    Dropout,
    EarlyStopping,
    HubData,
    Model,
    Norm,
    NormDefaults,
    NumberWordsTask,
    Parallel,
    ParallelData,
    Recipe,
    Repeat,
    Residual,
    ResidualDefaults,
    Rnn,
    SelfAttention,
    Split,
    Training,
    Var,
    WandB,
)
from composer.recipe.recipe import load
from composer.recipe.serialization import RecipeObject, fields_of
from composer.recipe.yaml_reader import parse, read, to_data

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file for file in (ROOT / "recipes").rglob("*.yaml") if "sweeps" not in file.parts or "fragments" in file.parts
)
COMPLETE_RECIPES = [file for file in FILES if "fragments" not in file.parts]


def decoder(*blocks: Any, **settings: Any) -> Recipe:
    return Recipe(data=Data(generate=CopyTask()), model=Model(width=64, decoder=list(blocks)), **settings)


def bare(data: Any) -> Any:
    """Data in which what is chosen without settings is always a bare word."""
    if isinstance(data, dict):
        alone = [key for key, value in data.items() if value == {}] if len(data) == 1 else []
        return alone[0] if alone else {key: bare(value) for key, value in data.items()}
    return [bare(item) for item in data] if isinstance(data, list) else data


def refused(recipe: Recipe) -> RecipeError:
    with pytest.raises(RecipeError) as raised:
        recipe.recipe()
    return raised.value


# ------------------------------------------------------------------------------------------- the generated file


def test_the_committed_classes_are_the_generated_ones() -> None:
    rules = json.loads(schema_generator.schema_path().read_text(encoding="utf-8"))
    assert python_classes.CLASSES_PATH.read_text(encoding="utf-8") == python_classes.generate(rules), (
        "run `seqcomposer schema --write`"
    )


def test_one_command_writes_all_that_is_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [python_classes.CLASSES_PATH, schema_generator.schema_path()]
    monkeypatch.setattr(python_classes, "CLASSES_PATH", tmp_path / known[0].name)
    monkeypatch.setattr(schema_generator, "schema_path", lambda: tmp_path / known[1].name)
    inspection.schema(write=True)
    assert [(tmp_path / file.name).read_bytes() for file in known] == [file.read_bytes() for file in known]


def test_every_word_and_section_is_a_class_with_its_settings() -> None:
    rules = json.loads(schema_generator.schema_path().read_text(encoding="utf-8"))
    described = {"recipe": rules} | {name: item for name, item in rules["$defs"].items() if name != "variable"}
    entries = {name: item for name, item in described.items() if "x-choice" not in item}
    assert len(entries) > 100
    for entry, item in entries.items():
        kind = getattr(words, python_classes.class_name(entry))
        assert set(fields_of(kind)) - {kind.others} == set(item["properties"]), entry
        assert kind.__doc__


def test_two_words_of_one_class_are_noticed() -> None:
    rules = json.loads(schema_generator.schema_path().read_text(encoding="utf-8"))
    rules["$defs"]["block.beam"] = rules["$defs"]["block.norm"]
    with pytest.raises(ValueError, match="Beam"):
        python_classes.generate(rules)


# ------------------------------------------------------------------------------------------- every recipe


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_recipe_becomes_objects_and_the_same_data_again(file: Path) -> None:
    plain = to_data(read(file, str(file)))
    objects = words.read(file)
    assert objects.plain() == plain
    assert to_data(parse(objects.yaml(), "text")) == plain
    shown = eval(repr(objects), vars(words))  # what `repr` shows is Python
    assert shown == objects
    assert bare(shown.plain()) == bare(plain)


def test_a_recipe_has_the_fingerprints_of_its_objects() -> None:
    for file in COMPLETE_RECIPES[::6]:  # that all are the same data is shown above
        assert words.read(file).recipe(file.parent).fingerprints == load(file).fingerprints, file


def test_nothing_in_the_recipes_but_blocks_of_plug_ins_stays_plain() -> None:
    def blocks(stack: Any) -> list[Any]:
        inner = [getattr(item, "stack", ()) for item in stack]
        return [*stack, *(block for one in inner if not isinstance(one, str) for block in blocks(one))]

    for file in COMPLETE_RECIPES:
        model = words.read(file).model
        assert isinstance(model, Model) or model is UNSET
        stacks = [stack for side in ("encoder", "decoder") if (stack := getattr(model, side, UNSET)) is not UNSET]
        assert all(isinstance(item, RecipeObject) for stack in stacks for item in blocks(stack)), file


# ------------------------------------------------------------------------------------------- forms


@pytest.mark.parametrize(
    ("block", "form"),
    [
        (Dropout(), "dropout"),
        (Dropout(0.1), {"dropout": 0.1}),
        (Dropout(rate=0.1), {"dropout": {"rate": 0.1}}),
        (Dropout(0.1, as_="x"), {"dropout": {"rate": 0.1, "as": "x"}}),
        (CrossAttention(from_="encoder"), {"cross_attention": {"from": "encoder"}}),
        (Residual([Norm()]), {"residual": ["norm"]}),
        (Residual(["norm", {"unheard": {"past": 0.2}}]), {"residual": ["norm", {"unheard": {"past": 0.2}}]}),
        (Repeat(times=Var("n"), stack=[Norm("rms")]), {"repeat": {"times": "$n", "stack": [{"norm": "rms"}]}}),
        (Parallel({"a": [Norm()]}), {"parallel": {"branches": {"a": ["norm"]}}}),
        (Rnn(width=None), {"rnn": {"width": None}}),
        (Rnn(width=UNSET), "rnn"),
        (Split(target="b", encoders={"text": "a", "image": "c"}), {"target": "b", "text": "a", "image": "c"}),
        (Model(norm=NormDefaults("rms")), {"norm": "rms"}),
        (Model(residual=ResidualDefaults(norm="pre")), {"residual": {"norm": "pre"}}),
        (Training(early_stopping=EarlyStopping()), {"early_stopping": {}}),
        (Training(early_stopping=None), {"early_stopping": None}),
        (words.Logging(wandb=False), {"wandb": False}),
        (words.Logging(wandb=WandB(project="p")), {"wandb": {"project": "p"}}),
        (Data(hub=HubData(id="a/b", target="de")), {"hub": {"id": "a/b", "target": "de"}}),
        (Repeat(times=np.int64(3), stack=(Norm(),)), {"repeat": {"times": 3, "stack": ["norm"]}}),
        (Adam(learning_rate=np.float32(0.5)), {"adam": {"learning_rate": 0.5}}),
        (Data(babi=words.BabiData(folder=Path("a"), tasks=[1])), {"babi": {"folder": "a", "tasks": [1]}}),  # type: ignore[arg-type]
    ],
)
def test_each_python_form_has_its_yaml_form(block: RecipeObject, form: Any) -> None:
    assert block.plain() == form
    assert to_data(parse(Recipe(vars={"x": 1}, model={"it": block}).yaml(), "t"))["model"]["it"] == form


@pytest.mark.parametrize("text", ["copy", "{copy: {}}", "{copy: 5}", "{copy: {symbols: 5}}", '"${task}"', "$task"])
def test_all_forms_of_a_choice_are_read_and_written_again(tmp_path: Path, text: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(f"recipe: 1\ndata: {{generate: {text}}}\n", encoding="utf-8")
    objects = words.read(file)
    assert objects.plain() == to_data(read(file, "r"))
    assert isinstance(objects.data, Data)
    assert isinstance(objects.data.generate, (CopyTask, Var))


def test_a_variable_is_a_value_alone_or_part_of_a_text() -> None:
    assert (str(Var("w")), f"{Var('w')}/train.en", repr(Var("w"))) == ("$w", "${w}/train.en", "Var('w')")
    one = decoder(Norm(), name=f"{Var('n')}-{Var('w')}", vars={"n": "x", "w": 8}).recipe()
    assert one.name == "x-8"


def test_the_version_is_written_unless_a_file_has_none(tmp_path: Path) -> None:
    assert Recipe().plain() == {"recipe": 1}
    (tmp_path / "part.yaml").write_text("model: {width: 8}\n", encoding="utf-8")
    part = words.read(tmp_path / "part.yaml")
    assert part.plain() == {"model": {"width": 8}}
    assert repr(part) == "Recipe(recipe_=UNSET, model=Model(width=8))"


def test_objects_are_values() -> None:
    one = decoder(Residual([SelfAttention(heads=8)]), Dropout(0.1))
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), dataclasses.replace(one)):
        assert other == one
        assert other.yaml() == one.yaml()
    assert dataclasses.replace(one, name="x") != one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "x"  # type: ignore[misc]


# ------------------------------------------------------------------------------------------- as a recipe


def test_objects_are_the_recipe_that_their_file_is(tmp_path: Path) -> None:
    one = decoder(Residual([SelfAttention(heads=Var("heads"))]), vars={"heads": 2}, name="mine")
    file = one.save(tmp_path / "mine.yaml")
    assert words.read(file) == one
    assert one.recipe().canonical == load(file).canonical
    changed = one.recipe(overrides=["vars.heads=4"])
    assert changed.model.decoder[0]["residual"]["stack"][0]["self_attention"]["heads"] == 4
    assert changed.fingerprints == load(file, ["vars.heads=4"]).fingerprints
    assert one.recipe(tmp_path).file == file


def test_bases_are_looked_up_in_the_folder_argument(tmp_path: Path) -> None:
    decoder(Norm("rms")).save(tmp_path / "base.yaml")
    one = Recipe(extends="base.yaml", model=Model(width=32))
    assert one.recipe(tmp_path).model.width == 32
    assert one.recipe(tmp_path).model.decoder == decoder(Norm("rms")).recipe().model.decoder
    (fault,) = refused(Recipe(extends="nowhere.yaml", model=Model(width=8))).faults
    assert (fault.file, fault.line, fault.code) == ("<python>", 2, "file")
    for nothing in (3, [1], ""):
        (fault,) = refused(Recipe(extends=nothing, model=Model(width=8))).faults  # type: ignore[arg-type]
        assert fault.code == "type"


def test_a_fault_names_the_object_and_the_line_of_its_yaml() -> None:
    wrong = decoder(Norm(), Residual([SelfAttention(heads="4")]))  # type: ignore[arg-type]
    (fault,) = refused(wrong).faults
    line = wrong.yaml().splitlines()[fault.line - 1]
    assert (fault.file, fault.path) == ("<python>", "model.decoder[1].residual[0].self_attention.heads")
    assert 'heads: "4"' in line
    assert fault.excerpt == line
    (fault,) = refused(decoder({"self_attention": {"head": 4}})).faults
    assert "`heads`" in fault.message + fault.hint


@pytest.mark.parametrize(
    ("recipe", "path", "message"),
    [
        (decoder(Residual([Norm])), "model.decoder[0].residual.stack[0]", "`Norm` is a class"),  # type: ignore[list-item]
        (decoder(Residual({Norm})), "model.decoder[0].residual.stack", "a set"),  # type: ignore[arg-type]
        (decoder({1: 2}), "model.decoder[0]", "a key is text"),
        (decoder(Dropout(1 + 2j)), "model.decoder[0].dropout.rate", "a complex"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_is_no_data_is_refused_with_its_path(recipe: Recipe, path: str, message: str) -> None:
    (fault,) = refused(recipe).faults
    assert fault.path == path
    assert message in fault.message


def test_an_object_that_contains_itself_is_refused() -> None:
    stack: list[Any] = []
    stack.append(Residual(stack))
    (fault,) = refused(decoder(*stack)).faults
    assert "deeper than" in fault.message


def test_an_unknown_setting_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"SelfAttention has no setting `head`; did you mean `heads`\?"):
        SelfAttention(head=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="times"):
        Repeat(stack=[Norm()])  # type: ignore[call-arg]


# ------------------------------------------------------------------------------------------- files


def test_saving_overwrites_only_on_request(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    decoder(Norm()).save(file)
    before = file.read_bytes()
    with pytest.raises(RunError, match="overwrite=True"):
        decoder(Dropout()).save(file)
    with pytest.raises(RecipeError):
        decoder({1: 2}).save(file, overwrite=True)
    assert file.read_bytes() == before
    decoder(Dropout()).save(file, overwrite=True)
    assert words.read(file) == decoder(Dropout())
    with pytest.raises(RunError, match="cannot be written"):
        decoder(Norm()).save(tmp_path / "no" / "r.yaml")
    assert [item.name for item in tmp_path.iterdir()] == ["r.yaml"]


def test_data_that_fits_no_class_stays_plain_and_the_recipe_reports_it(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    text = "recipe: 1\ndata: {generate: copy}\nmodel: {width: 8, decoder: [{nrm: 1}, {norm: {knd: rms}}, unheard]}\n"
    file.write_text(text, encoding="utf-8")
    objects = words.read(file)
    assert objects.plain() == to_data(read(file, "r"))
    messages = " ".join(fault.message for fault in refused(objects).faults)
    assert all(f"`{item}`" in messages for item in ("nrm", "knd", "unheard")), messages
    file.write_text("recipe: 1\nmodle: {width: 8}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="`model`"):
        words.read(file)


WRONG = """\
from composer.recipe.classes import Dropout, Model, Norm, Repeat, Residual, SelfAttention, Training, Var

good = Repeat(times=6, stack=[Residual([SelfAttention(heads=8)]), "norm", {"shift": 0.2}, Dropout(Var("p"))])
layers = [Residual([SelfAttention(heads=8)]), Norm()]
also_good = Model(width=8, decoder=[*layers, *layers], residual={"norm": "pre"}, encoder=None)
SelfAttention(heads="4")
SelfAttention(head=4)
Repeat(times=2)
Repeat(times=2, stack=["nrm"])
Norm("batch")
Training(optimizer="adm")
Residual([SelfAttention])
"""


def test_a_type_checker_finds_mistakes_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(WRONG, encoding="utf-8")
    # only what the classes are made of is looked at: torch alone would take minutes
    sources = [str(ROOT / "composer" / name) for name in ("recipe/classes.py", "recipe/serialization.py")]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file=",
        "--follow-imports=skip",
        "--ignore-missing-imports",
        f"--cache-dir={tmp_path}",
        str(file),
        *sources,
    ]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout
    lines = {int(line.split(":")[1]) for line in shown.splitlines() if line.startswith(str(file)) and "error" in line}
    first = WRONG.splitlines().index('SelfAttention(heads="4")') + 1
    assert lines == set(range(first, len(WRONG.splitlines()) + 1)), shown
    assert 'did you mean "heads"' in shown


def test_the_recipe_of_the_documentation_works() -> None:
    layer = [Residual([SelfAttention(heads=4)]), Residual([words.FeedForward(hidden=64)])]
    recipe = Recipe(
        data=Data(generate=NumberWordsTask(maximum=999), tokenizer=words.CharTokenizer()),
        model=Model(
            width=32,
            residual=ResidualDefaults(norm="pre"),
            encoder=[words.Positions(), Repeat(times=2, stack=layer), Norm()],
            decoder=[words.Positions(), Residual([SelfAttention(heads=4)]), CrossAttention(heads=4)],
        ),
        training=Training(optimizer=Adam(learning_rate=1e-3), max_steps=10),
        decoding=words.Beam(size=4),
    ).recipe()
    assert recipe.decoding.size == 4
    assert recipe.model.encoder[1]["repeat"]["stack"][0]["residual"]["norm"] == "pre"
    assert ParallelData.word == ""


def test_repr_of_a_deep_or_cyclic_object_ends() -> None:
    loop: list[Any] = []
    loop.append(words.Residual(loop))
    assert "..." in repr(loop[0])
    deep: list[Any] = [words.Norm("a long name of a kind, so that nothing fits into one line " * 2)]
    for _ in range(40):
        deep = [words.Residual(deep)]
    assert eval(repr(deep[0]), vars(words)) == deep[0]


def test_a_bare_word_is_yaml_without_a_mark_behind_it() -> None:
    assert words.Norm().yaml() == "norm\n"


@pytest.mark.parametrize("value", [np.bool_(True), np.array(True), torch.tensor(True)])
def test_an_array_of_one_value_is_that_value(value: Any) -> None:
    assert words.Rnn(bidirectional=value).plain() == {"rnn": {"bidirectional": True}}


def test_overrides_may_be_one_text(tmp_path: Path) -> None:
    made = words.Recipe(data=words.Data(generate="copy"), model=words.Model(width=8, decoder=["norm"]))
    assert made.recipe(overrides="model.width=9").model.width == 9
    assert load(made.save(tmp_path / "r.yaml"), "model.width=9").model.width == 9

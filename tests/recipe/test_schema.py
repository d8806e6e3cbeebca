"""The schema: it equals what the code says, it is a schema, and every recipe passes it as it stands
in its file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator

from blocks.core.contract import Blocks, Bounds, Branches, Count, InitialState, NameList, Rate
from composer.formatting import to_json
from composer.recipe import schema_generator
from composer.recipe.schema_file import schema_text
from composer.recipe.schema_reader import flow_text
from composer.recipe.yaml_reader import read, to_data

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    file for file in (ROOT / "recipes").rglob("*.yaml") if file.parent.name != "sweeps"
)


@pytest.fixture(scope="module")
def generated() -> dict[str, Any]:
    return schema_generator.generate()


def test_the_committed_schema_is_the_generated_one(generated: dict[str, Any]) -> None:
    committed = (ROOT / "schemas" / "recipe.schema.json").read_text(encoding="utf-8")
    assert committed == schema_text(generated), "run `seqcomposer schema --write`"
    assert to_json(schema_generator.generate()) == to_json(generated)


def test_the_schema_is_a_valid_json_schema(generated: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(generated)


def test_every_key_is_described(generated: dict[str, Any]) -> None:
    undescribed = [
        f"{name}.{key}"
        for name, item in {"recipe": generated, **generated["$defs"]}.items()
        if "x-choice" not in item
        for key, setting in item.get("properties", {}).items()
        if not setting.get("description") and "$ref" not in setting
    ]
    assert not undescribed
    assert not [name for name, item in generated["$defs"].items() if not item.get("description")]


SWEEPS = json.loads((ROOT / "schemas" / "sweep.schema.json").read_text(encoding="utf-8"))


def mappings(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a schema."""
    if isinstance(schema, dict):
        yield schema
    for inner in (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    ):
        yield from mappings(inner)


def test_an_editor_shows_each_default_where_its_key_is(generated: dict[str, Any]) -> None:
    """An editor shows `markdownDescription`, not `description`, and no `default` by itself."""
    shown = 0
    for schema in (generated, SWEEPS):
        for setting in mappings(schema):
            default, text = setting.get("default"), setting.get("markdownDescription")
            if default is None or default == {} or "description" not in setting:
                # a block that its first setting may stand for has not that one's text
                assert text is None, setting
                continue
            assert text == f"{setting['description']}\n\nDefault: `{flow_text(default)}`"
            shown += 1
    assert shown > len(generated["$defs"])


def test_an_editor_offers_each_block_once(generated: dict[str, Any]) -> None:
    """In a list it offers the words of `enum` and the keys, without hidden ones."""
    blocks = generated["$defs"]["block"]
    bare = [word for branch in blocks["anyOf"] for word in branch.get("enum", ())]
    keys = [name for name, key in blocks["properties"].items() if not key.get("doNotSuggest")]
    assert sorted([*bare, *keys]) == sorted(blocks["properties"])
    assert "rnn" in bare
    assert "residual" in keys


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_recipe_file_is_valid_by_itself(generated: dict[str, Any], file: Path) -> None:
    """As an editor sees it, with `extends`, `$name` and `${name}`."""
    data = to_data(read(file, str(file)))
    if "fragments" in file.parts:
        data["extends"] = "what it is a part of"
    assert [error.message for error in Draft202012Validator(generated).iter_errors(data)] == []


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ("$w", True),
        ("${w}", True),
        ("$w-2", True),
        ("$5", False),
        ("$", False),
        ("${w", False),
        ("$w}", False),
    ],
)
def test_an_editor_accepts_a_variable_with_and_without_braces(
    generated: dict[str, Any], value: str, is_valid: bool
) -> None:
    recipe = {
        "recipe": 1,
        "data": {"generate": "copy"},
        "model": {"width": value, "decoder": ["norm"]},
    }
    assert Draft202012Validator(generated).is_valid(recipe) is is_valid


def test_an_editor_accepts_several_encoders_in_place_of_an_inherited_one(
    generated: dict[str, Any],
) -> None:
    recipe = {
        "recipe": 1,
        "extends": "base.yaml",
        "model": {"encoder": None, "encoders": {"text": ["norm"]}},
    }
    assert Draft202012Validator(generated).is_valid(recipe)
    recipe["model"] = {"encoder": ["norm"], "encoders": {"text": ["norm"]}}
    assert not Draft202012Validator(generated).is_valid(recipe)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        (("model", "decoder"), ["nrm"]),
        (("model", "decoder"), [{"norm": {}, "linear": {}}]),
        (("model", "decoder"), [{"self_attention": {"haeds": 1}}]),
        (("model", "decoder"), [{"self_attention": {"heads": "four"}}]),
        (("model", "decoder"), [{"dropout": 1.0}]),
        (("model", "decoder"), []),
        (("model", "width"), 0),
        (("training",), {"optimizer": {"adam": {}, "sgd": {}}}),
        (("data",), {"tokenizer": "word"}),
        (("data",), {"generate": "copy", "hub": {"id": "x", "target": "y"}}),
        (("name",), "a/b"),
    ],
)
def test_a_json_schema_validator_refuses_what_check_refuses(
    generated: dict[str, Any], change: tuple[str, ...], value: object
) -> None:
    recipe: dict[str, Any] = {
        "recipe": 1,
        "data": {"generate": "copy"},
        "model": {"width": 8, "decoder": ["norm"]},
    }
    assert Draft202012Validator(generated).is_valid(recipe)
    inner = recipe
    for step in change[:-1]:
        inner = inner[step]
    inner[change[-1]] = value
    assert not Draft202012Validator(generated).is_valid(recipe)


class Example:
    """What it is,
    in two lines.

    y = f(x)

    Settings:
        of: What it
            reads.
        from: Where: from there.
        kind: One of two.

    Shapes: none.
    """

    def __init__(
        self,
        site: object,
        *,
        of: NameList,
        from_: str | None = None,
        kind: Literal["a", "b"] = "a",
        rate: Rate = 0.5,
        sizes: tuple[int, int] = (1, 2),
        stack: Blocks | None = None,
        deep: Branches | None = None,
        state: InitialState = "zeros",
        small: Annotated[int, Bounds(minimum=2, maximum=3)] = 2,
        flag: bool = False,
        many: list[Count] | None = None,
    ) -> None:
        """Nothing."""


def test_a_constructor_is_its_schema() -> None:
    defs = schema_generator.choice_schema("block", {"example": Example}, "A block.", "block")
    made = defs["block.example"]
    variable = {"$ref": "#/$defs/variable"}
    assert made["description"] == "What it is, in two lines."
    assert made["required"] == ["of"]
    assert made["x-first"] == "of"
    assert made["anyOf"] == [
        {"type": "string", "minLength": 1},
        {"type": "array"},
        {"type": "object"},
    ]
    settings = made["properties"]
    assert list(settings) == [
        "of",
        "from",
        "kind",
        "rate",
        "sizes",
        "stack",
        "deep",
        "state",
        "small",
        "flag",
        "many",
        "as",
    ]
    assert settings["of"]["description"] == "What it reads."
    assert settings["from"]["description"] == "Where: from there."
    assert settings["kind"]["anyOf"] == [{"enum": ["a", "b"]}, variable]
    assert settings["kind"]["default"] == "a"
    assert settings["rate"]["anyOf"] == [
        {"type": "number", "minimum": 0.0, "exclusiveMaximum": 1.0},
        variable,
    ]
    assert settings["small"]["anyOf"][0] == {"type": "integer", "minimum": 2, "maximum": 3}
    assert (
        settings["sizes"]["minItems"],
        settings["sizes"]["maxItems"],
        settings["sizes"]["default"],
    ) == (
        2,
        2,
        [1, 2],
    )
    assert settings["stack"]["anyOf"] == [{"type": "array"}, {"type": "null"}]
    assert settings["stack"]["items"] == {"$ref": "#/$defs/block"}
    assert defs["block"]["anyOf"][0]["enum"] == []


def test_a_setting_of_an_unknown_type_is_an_error() -> None:
    class Odd:
        """Odd."""

        def __init__(self, *, odd: complex = 1j) -> None: ...

    with pytest.raises(TypeError, match="complex"):
        schema_generator.choice_schema("block", {"odd": Odd}, "A block.", "block")

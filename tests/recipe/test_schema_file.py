"""The schema's file holds each setting once; reading it puts it at every place."""

from __future__ import annotations

import json
from typing import Any

from composer.recipe import schema_generator
from composer.recipe.schema_file import read_schema, schema_path, schema_text


def test_reading_the_file_gives_the_schema_that_was_written() -> None:
    assert json.dumps(read_schema()) == json.dumps(schema_generator.generate())


def test_a_setting_stands_once() -> None:
    heads = {
        "description": "How many heads there are, each with a part of the width.",
        "type": "integer",
    }
    inner = {"description": "A section that has one.", "properties": {"heads": heads}}
    schema: dict[str, Any] = {
        "$defs": {"a": {"properties": {"heads": heads}}, "b": {"properties": {"inner": inner}}}
    }
    folded = json.loads(schema_text(schema))
    assert folded["$defs"]["a"] == schema["$defs"]["a"]
    reference = folded["$defs"]["b"]["properties"]["inner"]["properties"]["heads"]
    assert reference == {"$ref": "#/$defs/a/properties/heads"}


def test_the_file_is_of_a_size_that_editors_load_at_once() -> None:
    assert schema_path().stat().st_size < 400_000

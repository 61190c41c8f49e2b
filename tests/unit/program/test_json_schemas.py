"""Declared fields as JSON Schemas."""

from __future__ import annotations

from typing import Any

import jsonschema

from flowengine.program.json_schemas import object_schema
from flowengine.program.nodes import ArrayType, Field, Literal
from flowengine.program.prompts import filled

NODE = (Field("name", "String"), Field("next", "Node", Literal(None)))
SCHEMAS = {"Node": NODE}


def test_types_defaults_and_schemas_that_name_themselves() -> None:
    fields = [
        Field("count", "Long"),
        Field("share", "Double", Literal(0.5)),
        Field("tags", ArrayType("String")),
        Field("node", "Node"),
        Field("any", "Json"),
    ]
    schema: Any = object_schema(fields, SCHEMAS)
    assert schema["required"] == ["count", "tags", "node", "any"]
    assert schema["properties"]["tags"] == {"type": "array", "items": {"type": "string"}}
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    node = {"name": "a", "next": {"name": "b"}}
    good = {"count": 1, "tags": [], "node": node, "any": None}
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "node": {"name": "a", "next": {}}})
    assert not validator.is_valid({**good, "more": 1})
    assert object_schema(fields, SCHEMAS, all_required=True)["required"] == [
        field.name for field in fields
    ]


def test_values_may_be_null_where_the_types_of_afl_allow_it() -> None:
    fields = [Field("count", "Long"), Field("tags", ArrayType("String")), Field("node", "Node")]
    validator = jsonschema.Draft202012Validator(object_schema(fields, SCHEMAS, nullable=True))
    nothing: dict[str, Any] = {"count": None, "tags": None, "node": None}
    assert validator.is_valid(nothing)
    assert validator.is_valid({**nothing, "tags": [None], "node": {"name": None, "next": None}})
    assert not validator.is_valid({**nothing, "count": "1"})
    assert not validator.is_valid({**nothing, "node": {}})


def test_definitions_of_two_fields_with_one_name_stay_apart() -> None:
    def one(kind: str) -> dict[str, Any]:
        return {"$ref": "#/$defs/Part", "$defs": {"Part": {"type": kind}}}

    fields = [Field("a", schema=one("string")), Field("b", schema=one("integer"))]
    validator = jsonschema.Draft202012Validator(object_schema(fields, {}))
    assert validator.is_valid({"a": "x", "b": 1})
    assert not validator.is_valid({"a": 1, "b": "x"})


def test_a_prompt_is_filled_with_text_and_json() -> None:
    values = {"a": "x {b}", "b": [1, None], "c": "é"}
    assert filled("{a}|{b}|{{c}}|{c}", values) == "x {b}|[1, null]|{c}|é"

"""JSON Schemas of a program: refused when it is loaded, or validated within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator, SchemaError

from flowengine.errors import InvalidProgram
from flowengine.program import link_program, parse_program
from flowengine.program.schemas import schema_problems
from flowengine.program.validator import schema_misfit
from tests.builders import program, workflow

DOUBLING: dict[str, Any] = {
    "$ref": "#/$defs/a0",
    "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    | {"a40": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "banana"}, "#/type: 'banana' is none of array, boolean"),
        ({"type": []}, "is none of array"),
        ({"type": {"a": 1}}, "is none of array"),
        ({"pattern": "("}, "the pattern '(' cannot be matched in linear time: unclosed group"),
        ({"pattern": 7}, "must be text, found a number"),
        ({"pattern": "(?=a)b"}, "without lookaround"),
        ({"pattern": r"(a)\1"}, "without lookaround and backreferences"),
        ({"pattern": "a" * 2_000}, "has 2000 characters, and may have 1000"),
        ({"pattern": "(a{100}){100}"}, "has about 10,000 states and may have 5,000"),
        ({"patternProperties": {"(": {}}}, "the pattern '(' cannot be matched"),
        ({"$ref": "#"}, "refers to itself for the same value"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "refers to itself"),
        ({"anyOf": [{"not": {"$ref": "#"}}]}, "refers to itself"),
        ({"if": {"$ref": "#"}}, "refers to itself"),
        ({"$ref": "#/$defs/nothing"}, "there is no schema at '#/$defs/nothing'"),
        ({"$ref": "#/required/0", "required": ["a"]}, "there is no schema at"),
        ({"$ref": "#name"}, "there is no schema at '#name'"),
        ({"$ref": "file:///etc/passwd"}, "outside of this schema, and nothing is fetched"),
        ({"$ref": "http://169.254.169.254/latest"}, "nothing is fetched"),
        ({"$ref": "other.json#/a"}, "copy it into $defs"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "nothing is fetched"),
        ({"items": {"properties": {"a": {"$ref": "//host/x"}}}}, "#/items/properties/a/$ref:"),
        ({"$ref": ["#"]}, "must be text, found a list"),
        ({"$dynamicRef": "#x"}, "use $ref: #/$defs/NAME"),
        ({"items": {"$id": "http://x"}}, "at the top of a schema only"),
        ({"items": {"$schema": "http://json-schema.org/draft-04/schema#"}}, "at the top"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "JSON Schema 2020-12"),
        ({"unevaluatedProperties": False}, "use additionalProperties: false"),
        ({"properties": []}, "must be a map, found a list"),
        ({"properties": {"a": 5}}, "#/properties/a: must be a schema, found a number"),
        ({"allOf": []}, "must be a list with entries"),
        ({"allOf": {}}, "must be a list with entries"),
        ({"items": [{}]}, "must be a schema, found a list"),
        ({"maxLength": -1}, "must be a whole number of at least 0"),
        ({"maxLength": float("inf")}, "must be a whole number"),
        ({"multipleOf": 0}, "must be a number above 0"),
        ({"minimum": "3"}, "must be a number, found text"),
        ({"enum": 3}, "must be a list"),
        ({"required": "a"}, "must be a list of names"),
        ({"dependentRequired": {"a": "b"}}, "must be a map of lists of names"),
        ({"uniqueItems": 1}, "must be true or false"),
    ],
    ids=str,
)
def test_a_broken_or_unbounded_schema_is_refused_with_its_place(
    schema: dict[str, Any], problem: str
) -> None:
    document = program(workflow("W", [{"name": "x", "type": "Json", "schema": schema}]))
    with pytest.raises(InvalidProgram) as refused:
        link_program(parse_program(document))
    assert problem in str(refused.value)
    assert all(p.where == "W, parameter 'x'" for p in refused.value.problems)


def test_a_schema_that_is_no_map_is_refused() -> None:
    for schema in (True, [], "x", 5):
        document = program(workflow("W", [{"name": "x", "type": "Json", "schema": schema}]))
        with pytest.raises(InvalidProgram, match="expected a JSON Schema"):
            parse_program(document)


def test_a_schema_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"items": schema}
    (problem,) = schema_problems(schema)
    assert "is nested more than 100 levels deep" in problem


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "http://x/y"},
        {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}},
        {"properties": {"children": {"items": {"$ref": "#"}}}},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": True}},
        {"definitions": {"a": {"type": "string"}}, "items": {"$ref": "#/definitions/a"}},
        {"pattern": r"^\d{4}-\d{2}-\d{2}$", "x-note": {"$ref": "http://not/followed"}},
        {"const": {"$ref": "http://a.value/not/a/schema"}},
        {"type": ["string", "null"], "maxLength": 3.0, "default": {"type": "banana"}},
    ],
    ids=str,
)
def test_a_sound_schema_is_accepted(schema: dict[str, Any]) -> None:
    assert schema_problems(schema) == []


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ({"$ref": "http://127.0.0.1:1/x"}, 1, "its schema cannot be applied"),
        ({"$ref": "file:///etc/passwd"}, 1, "its schema cannot be applied"),
        ({"type": "banana"}, 1, "its schema cannot be applied: KeyError"),
        ({"pattern": "("}, "x", "its schema cannot be applied"),
        ({"pattern": 5}, "x", "its schema cannot be applied"),
        ({"$ref": "#"}, 1, "nested too deeply"),
        ({"multipleOf": 0}, 1, "its schema cannot be applied: ZeroDivisionError"),
        ({"properties": 5}, {}, "its schema cannot be applied"),
        ({"items": {"minimum": "a"}}, [1], "its schema cannot be applied: TypeError"),
    ],
    ids=str,
)
def test_an_error_of_the_validator_is_a_misfit(
    schema: dict[str, Any], value: Any, problem: str
) -> None:
    assert problem in schema_misfit(schema, value)


MEGABYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("schema", "large"),
    [
        ({"pattern": "^(a+)+$"}, lambda: "a" * 1_000_000 + "!"),
        ({"pattern": "^(a|aa)+$"}, lambda: "a" * 1_000_000 + "!"),
        ({"pattern": "(.*)*(.*)*(.*)*x"}, lambda: "a" * 1_000_000),
        ({"pattern": "(.{1,25}){1,25}x"}, lambda: "ab" * 500_000),
        ({"pattern": "(.{1,25}){1,25}x"}, lambda: "ab" * 40_000),
        ({"pattern": r"(\w{1,9}\W?){1,10}$"}, lambda: "aé " * 300_000),
        (
            {"patternProperties": {"^(a+)+$": {}}},
            lambda: {"a" * 1000 + "!" * n: 1 for n in range(900)},
        ),
        (DOUBLING, lambda: 1),
        ({"uniqueItems": True}, lambda: [{"a": n} for n in range(90_000)]),
        ({"uniqueItems": True}, lambda: [[n, {}] for n in range(90_000)]),
        ({"anyOf": [{"type": "string"}] * 1_000}, lambda: ["x" * MEGABYTE]),
        ({"allOf": [{"uniqueItems": True}] * 1_000}, lambda: list(range(100_000))),
        ({"allOf": [{"items": True}] * 1_000}, lambda: [0] * 400_000),
        ({"items": {"properties": {f"p{n}": {} for n in range(10_000)}}}, lambda: [{}] * 300_000),
        ({"enum": [list(range(1_000)) for _ in range(1_000)]}, lambda: list(range(999))),
        (
            {"not": {"not": {"items": {"oneOf": [{"type": "integer"}] * 500}}}},
            lambda: [1] * 100_000,
        ),
        ({"items": {"type": "integer", "minimum": 0, "maximum": 99}}, lambda: [7] * 260_000),
    ],
    ids=lambda given: "" if callable(given) else str(given)[:60],
)
def test_no_validation_takes_longer_than_some_seconds(
    schema: dict[str, Any], large: Callable[[], Any]
) -> None:
    value = large()
    assert schema_problems(schema) == []
    began = time.process_time()
    why = schema_misfit(schema, value)
    seconds = time.process_time() - began
    print(f"{seconds:.2f} s: {why[:100]}")
    assert seconds < 20, "without its bound, an hour and more"
    assert len(why) <= 500


def test_a_large_plain_value_fits_its_schema() -> None:
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    assert schema_misfit(schema, [7] * 260_000) == ""
    assert schema_misfit({"pattern": "^[A-Za-z0-9+/]*={0,2}$"}, "QUJD" * 260_000) == ""


def test_a_message_does_not_repeat_a_large_value() -> None:
    why = schema_misfit({"items": {"type": "integer"}}, ["x" * 100_000])
    assert why.startswith("[0]: 'xxx")
    assert len(why) < 500


# --- compared with jsonschema ---

WORDS = ["a", "b", "ab", "", "x" * 12]


def drawn_value(random: Random, depth: int = 3) -> Any:
    match random.randrange(9 if depth else 6):
        case 0:
            return random.choice([None, True, False])
        case 1 | 2:
            return random.choice([0, 1, 1.0, -1, 2, 2.5, 10**30])
        case 3 | 4 | 5:
            return random.choice(WORDS)
        case 6 | 7:
            return [drawn_value(random, depth - 1) for _ in range(random.randrange(4))]
    return {random.choice(WORDS): drawn_value(random, depth - 1) for _ in range(3)}


ODD = [None, True, 0, -1, 2, 1.5, "", "a", "(", "#", [], {}, ["a"], {"a": {}}, [{}], ["string"]]
KEYWORDS = [
    *("type", "enum", "const", "minimum", "exclusiveMaximum", "multipleOf", "maxLength", "pattern"),
    *("items", "prefixItems", "contains", "minContains", "uniqueItems", "maxItems", "properties"),
    *("additionalProperties", "patternProperties", "propertyNames", "required", "minProperties"),
    *("dependentRequired", "dependentSchemas", "allOf", "anyOf", "oneOf", "not", "if", "then"),
    *("else", "$ref", "$defs", "format", "title", "unevaluatedItems", "$id", "unknown"),
]


def drawn_schema(random: Random, depth: int = 3) -> Any:
    if random.random() < 0.1:
        return random.choice([True, False])
    return {k: drawn_keyword(k, random, depth) for k in random.sample(KEYWORDS, 3)}


def drawn_keyword(keyword: str, random: Random, depth: int) -> Any:
    def inner() -> Any:
        return drawn_schema(random, depth - 1) if depth else {}

    if random.random() < 0.05:
        return random.choice(ODD)
    match keyword:
        case "type":
            types = ["array", "boolean", "integer", "null", "number", "object", "string"]
            return random.choice([*types, random.sample(types, 2)])
        case "enum":
            return [drawn_value(random) for _ in range(3)]
        case "const":
            return drawn_value(random)
        case "pattern":
            return random.choice(["a", "^a+$", "^(a|b)*$", "x{3,}", "[^a]$"])
        case "properties" | "dependentSchemas" | "$defs":
            return {random.choice(WORDS): inner() for _ in range(2)}
        case "patternProperties":
            return {random.choice(["^a", "b$", "^.{0,2}$"]): inner()}
        case "allOf" | "anyOf" | "oneOf" | "prefixItems":
            return [inner() for _ in range(random.randrange(1, 3))]
        case "required":
            return random.sample(WORDS, 2)
        case "dependentRequired":
            return {"a": ["b"]}
        case "$ref":
            return random.choice(["#", "#/$defs/a", "#/items", "#/properties/ab"])
        case "uniqueItems":
            return True
        case "format" | "title" | "$id":
            return "date"
        case _ if keyword.startswith(("min", "max", "exc", "mul")):
            return random.choice([1, 2, 2.5] if keyword[:3] in ("exc", "mul") else [0, 1, 2])
    return inner()


def is_fit(schema: Any, value: Any) -> bool:
    return not schema_misfit(schema, value)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.chaos) for n in range(1, 4))]
)
def test_accepted_schemas_are_valid_and_judge_as_jsonschema_does(seed: int) -> None:
    random = Random(seed)
    accepted = refused = fits = 0
    for _ in range(1_500):
        schema = drawn_schema(random)
        if not isinstance(schema, dict) or schema_problems(schema):
            refused += 1
            values = [drawn_value(random)]
            assert isinstance(
                schema_misfit(schema if isinstance(schema, dict) else {}, values), str
            )
            continue
        accepted += 1
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as problem:
            pytest.fail(f"{schema}: {problem}")
        plain = {k: v for k, v in schema.items() if k != "$id"}
        for _ in range(6):
            value = drawn_value(random)
            expected = Draft202012Validator(plain).is_valid(value)
            assert is_fit(schema, value) is expected, (schema, value, schema_misfit(schema, value))
            fits += expected
    print(f"seed {seed}: {accepted} schemas accepted, {refused} refused, {fits} values fit")
    assert accepted > 100
    assert fits > 100

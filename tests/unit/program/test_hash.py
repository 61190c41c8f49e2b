"""A program is named by what it says."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from flowengine.program import parse_program, program_hash, program_text
from tests.builders import Node, block, event, given, namespace, of, program, step, to, workflow

LATEST = program(
    namespace(
        "shop",
        event("Pay", "sum:Long", "receipt:String"),
        workflow(
            "Order",
            "sum:Long",
            "receipt:String",
            block(
                step("pay", "Pay", sum=given("sum")),
                yields=[to("Order", receipt=of("pay.receipt"))],
            ),
        ),
    )
)


def hash_of(document: Any) -> str:
    return program_hash(parse_program(document))


def decorated(node: Any) -> Any:
    """The same document, with an id and a location on every node."""
    if isinstance(node, list):
        return [decorated(child) for child in node]
    if not isinstance(node, dict):
        return node
    extra = {"id": f"id-{id(node)}", "location": {"line": id(node) % 997, "column": 3}}
    return {key: decorated(child) for key, child in node.items()} | (
        extra if isinstance(node.get("type"), str) and "name" not in node else {}
    )


def changed(**changes: Any) -> Node:
    document = copy.deepcopy(LATEST)
    document["declarations"][0]["declarations"][0] |= changes
    return document


def test_the_hash_ignores_ids_and_locations() -> None:
    assert hash_of(decorated(LATEST)) == hash_of(LATEST)
    located = changed(id="x", location={"line": 3, "file": "shop.py"})
    assert hash_of(located) == hash_of(LATEST)


def test_the_hash_ignores_the_generation_of_the_json() -> None:
    inner = LATEST["declarations"][0]
    pay, order = inner["declarations"]
    older = {
        "type": "Namespace",
        "name": "shop",
        "eventFacets": [pay],
        "workflows": [order],
        "declarations": [pay],
    }
    first = {"type": "Program", "namespaces": [older], "declarations": [older]}
    assert hash_of(first) == hash_of(LATEST)


def test_the_hash_ignores_the_order_of_keys_and_whether_empty_ones_are_written() -> None:
    document = changed(mixins=[], catch=None, body=None, options={})
    turned = json.loads(json.dumps(document, sort_keys=True))
    assert hash_of(turned) == hash_of(LATEST)


def test_the_hash_ignores_options_that_are_the_defaults() -> None:
    assert hash_of(changed(options={"task_list": "default", "max_losses": 3})) == hash_of(LATEST)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "Charge"},
        {"params": [{"name": "sum", "type": "Double"}]},
        {"returns": []},
        {"options": {"retry": {"attempts": 2}}},
        {"options": {"max_losses": 0}},
        {"options": {"breaker": "payments"}},
        {"params": [{"name": "sum", "type": "Long", "default": 0}]},
        {"params": [{"name": "sum", "type": "Long", "default": False}]},
        {"params": [{"name": "sum", "type": "Long", "default": {"type": "Null"}}]},
        {"params": [{"name": "sum", "type": "Long", "schema": {"minimum": 1}}]},
    ],
)
def test_a_different_program_has_another_hash(changes: Node) -> None:
    assert hash_of(changed(**changes)) != hash_of(LATEST)


def test_programs_that_differ_only_in_zero_false_and_null_have_different_hashes() -> None:
    defaults: list[Any] = [0, False, {"type": "Null"}, "", [], {"type": "MapLiteral"}]
    hashes = {
        hash_of(changed(params=[{"name": "sum", "type": "Json", "default": default}]))
        for default in defaults
    }
    assert len(hashes) == 6


def test_the_text_of_a_program_is_its_canonical_json_and_keeps_the_hash() -> None:
    parsed = parse_program(decorated(LATEST))
    text = program_text(parsed)
    assert "location" not in text
    assert "id-" not in text
    assert hash_of(json.loads(text)) == program_hash(parsed)


def test_equal_programs_of_both_generations_have_one_hash() -> None:
    folder = Path(__file__).parents[2] / "conformance"
    document = json.loads((folder / "first_composite_twice.json").read_text())["program"]
    parsed = parse_program(document)
    assert hash_of(json.loads(program_text(parsed))) == program_hash(parsed)

"""Any mutation of a program's JSON is loaded, or refused with a place.

Never another exception, and never for ever.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowengine.errors import InvalidProgram
from flowengine.program import link_program, parse_program, program_hash, write_program
from tests.builders import block, event, facet, of, op, program, step, to
from tests.examples_drawn import AT_RANDOM
from tests.unit.evaluator.programs_strategy import case_of

CORPUS = [
    json.loads(path.read_text())["program"]
    for path in sorted((Path(__file__).parents[2] / "conformance").glob("*.json"))
]
ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, float("inf"), "", "x", "$", "a.b", [], {}, [[]], {"type": "Nothing"}),
    {"type": "StepRef", "path": ["x"]},
    {"type": "InputRef", "path": ["x", "y"]},
    {"type": "WhenBlock", "cases": [{"type": "WhenCase", "default": True}]},
    {"type": "CatchClause"},
    {"type": "PromptBlock"},
    {"type": "banana"},
    {"pattern": "("},
    {"$ref": "#"},
    {"$ref": "http://127.0.0.1:9/"},
    10**400,
]


def load(document: Any) -> None:
    """Load a program; if it is refused, every problem must say where it is."""
    problems = []
    try:
        parsed = parse_program(document)
        assert parse_program(write_program(parsed)) == parsed
        program_hash(parsed)
        link_program(parsed, allow_scripts=True)
    except InvalidProgram as refused:
        problems = refused.problems
    for problem in problems:
        assert problem.what
        assert problem.where or not isinstance(document, dict) or is_about_the_whole(problem.what)


def is_about_the_whole(what: str) -> bool:
    return "a Program" in what or "must be a list" in what or "a declaration" in what


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a document: its holder, and its key or index."""
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield node, key
            yield from places(value)


def mutated(document: Any, random: Random) -> Any:
    document = copy.deepcopy(document)
    for _ in range(random.choice([1, 1, 2, 4])):
        found = [*places(document)]
        if not found:
            break
        holder, key = random.choice(found)
        match random.choice(["replace", "replace", "drop", "swap", "double", "rename"]):
            case "replace":
                holder[key] = copy.deepcopy(random.choice(ODD))
            case "drop":
                del holder[key]
            case "swap":
                other, place = random.choice(found)
                try:
                    holder[key] = copy.deepcopy(other[place])
                except (IndexError, KeyError):
                    continue  # an earlier mutation has taken it away
            case "double" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case "rename" if isinstance(holder, dict):
                holder[random.choice(["when", "catch", "always", "foreach", "schema", "x"])] = (
                    holder.pop(key)
                )
    return document


bounded = settings(
    max_examples=300 if AT_RANDOM else 40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@bounded
@given(st.sampled_from(range(len(CORPUS))), st.integers(0, 2**32))
def test_a_mutated_program_of_the_corpus_is_loaded_or_refused(which: int, seed: int) -> None:
    load(mutated(CORPUS[which], Random(seed)))


@bounded
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 2**32))
def test_a_mutated_random_program_is_loaded_or_refused(seed: int, size: int, other: int) -> None:
    load(mutated(case_of(seed, size, 0, 0).document, Random(other)))


@pytest.mark.parametrize("document", ODD)
def test_a_document_that_is_no_program_is_refused(document: Any) -> None:
    with pytest.raises(InvalidProgram):
        parse_program(document)


def nested_expression(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = op(value, "+", 1)
    return facet("F", "", "y", block(yields=[to("F", y=value)]))


def nested_lists(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return facet("F", "", "y", block(yields=[to("F", y=value)]))


def nested_bodies(depth: int) -> Any:
    inner = block()
    for index in range(depth):
        inner = block(step(f"s{index}", "E", inner, x=1))
    return facet("F", "", "", inner)


def nested_types(depth: int) -> Any:
    declared: Any = "Long"
    for _ in range(depth):
        declared = {"type": "ArrayType", "elementType": declared}
    return facet("F", [{"name": "x", "type": declared}])


@pytest.mark.parametrize("nest", [nested_expression, nested_lists, nested_bodies, nested_types])
@pytest.mark.parametrize("depth", [20, 150, 300, 5_000])
def test_a_program_nested_too_deeply_is_refused_with_its_place(nest: Any, depth: int) -> None:
    document = program(event("E", "x"), nest(depth))
    try:
        parsed = parse_program(document)
        link_program(parsed)
        program_hash(parsed)
        assert depth < 5_000
    except InvalidProgram as refused:
        assert depth > 20
        (problem,) = refused.problems
        assert "nested too deeply" in problem.what
        assert problem.where.startswith("F")


def test_a_chain_of_many_steps_is_not_nested() -> None:
    steps = [step("s0", "E", x=1)]
    steps += [step(f"s{i}", "E", x=of(f"s{i - 1}.y")) for i in range(1, 5_000)]
    load(program(event("E", "x", "y"), facet("F", "", "", block(*steps))))

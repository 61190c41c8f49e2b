"""The program form of durable functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flowengine.errors import InvalidProgram
from flowengine.program import link_program, parse_program, program_text
from flowengine.program.event_options import EventOptions
from flowengine.program.function_options import (
    FunctionOptions,
    function_facet,
    function_of,
    without_version,
)
from flowengine.program.nodes import FacetDeclaration
from tests.builders import block, event, given, of, program, step, to, workflow


def document(function: Any, name: str = "Research@2") -> Any:
    body = block(step("research", name, q=given("q")), yields=[to("W", out=of("research.out"))])
    declared = event(name, "q", "out") | {"function": function}
    return program(declared, workflow("W", "q", "out", body))


def problems_of(found: Any) -> str:
    with pytest.raises(InvalidProgram) as caught:
        parse_program(found)
    return str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        FunctionOptions(2),
        FunctionOptions(2, source_digest="9f", on_divergence="fail"),
    ],
)
def test_a_function_keeps_its_options_through_the_stored_form(options: FunctionOptions) -> None:
    given_options = {"version": 2} | (
        {"source_digest": "9f", "on_divergence": "fail"} if options.source_digest else {}
    )
    parsed = parse_program(document(given_options))
    facet = parsed.declarations[0]
    assert isinstance(facet, FacetDeclaration)
    assert facet.function == options
    text = program_text(parsed)
    assert parse_program(json.loads(text)) == parsed
    assert json.loads(text)["declarations"][0]["function"] == given_options


def test_the_plan_of_a_call_says_that_its_facet_is_a_function() -> None:
    plan = link_program(parse_program(document({"version": 2})))
    assert plan.statements["W/0/research"].function == FunctionOptions(2)
    assert plan.facets["Research@2"].function == FunctionOptions(2)
    assert plan.facets["W"].function is None


def test_a_program_without_functions_has_no_word_about_them() -> None:
    parsed = parse_program(program(event("Send", "x", "y"), workflow("W", "", "")))
    assert "function" not in program_text(parsed)
    assert "effects" not in program_text(parsed)


def test_a_facet_without_effects_keeps_that_through_the_stored_form() -> None:
    parsed = parse_program(program(event("Read", "x", "y", options={"effects": False})))
    (facet,) = parsed.declarations
    assert isinstance(facet, FacetDeclaration)
    assert facet.options == EventOptions(effects=False)
    assert parse_program(json.loads(program_text(parsed))) == parsed


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ({"version": 0}, "version=0 is not a whole number from 1 to 1,000,000"),
        ({"version": True}, "version=True is not a whole number"),
        ({"version": "2"}, "version='2' is not a whole number"),
        ({"version": 3}, "the name of a durable function ends with its version: @3"),
        (
            {"version": 2, "on_divergence": "retry"},
            "on_divergence='retry' is neither 'wait' nor 'fail'",
        ),
        ({"version": 2, "source_digest": 1}, "source_digest=1 is not text"),
        ({"version": 2, "colour": 1}, "unreadable options of a durable function"),
        ("2", "expected the options of a durable function, found text"),
    ],
)
def test_unfit_options_of_a_function_are_refused(function: Any, problem: str) -> None:
    assert problem in problems_of(document(function))


def test_a_workflow_is_no_function_itself() -> None:
    found = program(workflow("W@1", "", "") | {"function": {"version": 1}})
    assert "a durable function is an EventFacetDecl, not a WorkflowDecl" in problems_of(found)


def test_effects_that_are_no_truth_value_are_refused() -> None:
    found = program(event("Read", "x", "y", options={"effects": "no"}))
    assert "option 'effects' must be true or false, found text" in problems_of(found)


def test_the_name_of_a_function_has_its_version() -> None:
    assert function_facet("shop.research", 2) == "shop.research@2"
    assert function_of("shop.research@2") == ("shop.research", 2)
    assert function_of("shop.research") is None
    assert function_of("shop@home.research") is None
    assert without_version("shop.research@2") == "shop.research"
    assert without_version("shop.research") == "shop.research"

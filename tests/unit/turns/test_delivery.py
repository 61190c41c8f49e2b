"""Deliverables, and the fields of `submit_result`."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.turns import delivery

WANTED = ("approve", "reason")


@pytest.mark.parametrize(
    "given",
    [
        {"reason": "it leaks", "approve": True},
        {"result": {"reason": "it leaks", "approve": True}},
        {
            "result": {
                "fields": [
                    {"name": "reason", "value": "it leaks"},
                    {"name": "approve", "value": True},
                ]
            }
        },
        {"fields": [{"name": "reason", "value": "it leaks"}, {"name": "approve", "value": True}]},
    ],
)
def test_each_form_of_a_result_has_the_same_fields_in_the_order_of_the_task(
    given: dict[str, Any],
) -> None:
    assert delivery.submitted(given, WANTED) == (
        (("approve", True), ("reason", "it leaks")),
        "",
    )


def test_a_field_that_nobody_asked_for_comes_last() -> None:
    fields, problem = delivery.submitted({"more": 1, "reason": "r", "approve": False}, WANTED)
    assert ([name for name, _ in fields], problem) == (["approve", "reason", "more"], "")


def _field(**given: Any) -> dict[str, Any]:
    return {"fields": [given]}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"approve": True}, "these fields are missing: reason"),
        ({}, "these fields are missing: approve, reason"),
        (
            {"fields": [{"name": n, "value": 1} for n in ("approve", "reason", "approve")]},
            "these fields are given twice: approve",
        ),
        (_field(name="approve"), "each field is a map with a name and a value"),
        (_field(name=" ", value=1), "each field is a map with a name and a value"),
        (_field(name=7, value=1), "each field is a map with a name and a value"),
        ({"fields": ["approve"]}, "each field is a map with a name and a value"),
    ],
)
def test_a_result_that_does_not_fit_is_refused_with_its_problem(
    given: dict[str, Any], problem: str
) -> None:
    assert delivery.submitted(given, WANTED) == ((), problem)


def test_a_field_of_the_name_result_may_hold_a_map() -> None:
    fields, problem = delivery.submitted({"result": {"a": 1}}, ("result",))
    assert (fields, problem) == ((("result", {"a": 1}),), "")


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("done", {"text": "done"}),
        ("", {"text": "(no content)"}),
        (7, {"fields": [{"name": "result", "value": 7}]}),
        ({"a": 1, "__cg_control": {}}, {"fields": [{"name": "a", "value": 1}]}),
    ],
)
def test_the_result_of_a_call_that_ends_the_turn_is_its_deliverable(
    result: Any, content: Any
) -> None:
    assert delivery.of_result(result) == content


def test_a_fallback_says_how_the_turn_ended_and_keeps_what_there_was() -> None:
    content: Any = delivery.fallback("failed", "max_steps_reached", "8 model calls", "half")
    assert content["kind"] == "fallback_deliverable"
    assert delivery.values_of(content) == {
        "summary": "8 model calls",
        "output": "half",
        "reason": "max_steps_reached",
    }

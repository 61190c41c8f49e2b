"""A start refuses inputs that are no dates or times, and names the parameter."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from flowengine import workflow
from flowengine.documents import compile_document
from flowengine.errors import InvalidInputs
from flowengine.program import link_program
from flowengine.program.formats import format_misfit
from flowengine.program.types import check_inputs
from flowengine.program.validator import schema_misfit

DOCUMENT = "inputs: {day: {type: date}}\ntasks: {a: {wait: {answer: x}}}\n"


@workflow(name="formats.moments")
def moments(
    day: datetime.date | None, at: datetime.datetime, clock: datetime.time, all: list[datetime.date]
) -> int:
    return 1


GOOD: dict[str, Any] = {
    "day": "2026-02-28",
    "at": "2026-02-28T10:00:00Z",
    "clock": "10:00",
    "all": ["2028-02-29"],
}


@pytest.mark.parametrize("day", ["2026-02-30", "2026-13-01", "2026-00-10", "tomorrow"])
def test_a_document_is_not_started_on_a_day_that_does_not_exist(day: str) -> None:
    plan = link_program(compile_document(DOCUMENT, "w", "w.yml").program).workflow("w")
    check_inputs(plan, {"day": "2026-02-28"})
    with pytest.raises(InvalidInputs, match="input 'day': "):
        check_inputs(plan, {"day": day})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("at", "2026-02-30T10:00:00Z", "'at': '2026-02-30T10:00:00Z' is no date and time: write"),
        ("at", "2026-02-28T25:00:00", "is no date and time: write it as 2026-11-15T09:30:00Z"),
        ("clock", "10:61", "'clock': '10:61' is no time: write it as 09:30:00"),
        ("all", ["2028-02-29", "2026-02-29"], "'all': [1]: '2026-02-29' is no date: write it"),
        ("day", "2026-02-30", "input 'day': "),
    ],
)
def test_a_workflow_of_python_is_not_started_at_a_time_that_does_not_exist(
    name: str, value: Any, problem: str
) -> None:
    plan = link_program(moments.program()).workflow(moments.name)
    check_inputs(plan, GOOD)
    check_inputs(plan, {**GOOD, "day": None})
    with pytest.raises(InvalidInputs) as raised:
        check_inputs(plan, {**GOOD, name: value})
    assert problem in str(raised.value)


def test_a_result_is_not_held_to_a_format() -> None:
    """JSON Schema takes formats as comments; stored programs have them."""
    assert schema_misfit({"type": "string", "format": "date"}, "2026-02-30") == ""


WRITTEN = [
    *("2026-02-28", "2026-02-28T00:00:00", "2026-02-28 10:00", "2026-02-28T10:00:00.123456789Z"),
    *("2026-02-28t10:00:00z", "2026-02-28T10:00+05:30", "1700000000", "1700000000.5", "10:00:00.5"),
    *("10:00:00Z", "2026-02-30", "2026-1-1", "10:61", "", "soon", "2026-02-28T24:30", "24:00"),
]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("date", datetime.date), ("date-time", datetime.datetime), ("time", datetime.time)],
)
@pytest.mark.parametrize("text", WRITTEN)
def test_every_form_is_accepted_that_an_annotation_reads(name: str, kind: Any, text: str) -> None:
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        return
    assert format_misfit(name, text) == ""

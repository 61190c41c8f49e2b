"""Which calls a suspended function waits for, as the lines of its tree tell it."""

from __future__ import annotations

from flowengine.engine.tree_lines import HiddenItems, StepLine, with_awaited
from flowengine.evaluator.states import StepState

OPEN = StepState.EVENT_TRANSMIT


def line(depth: int, name: str, state: str) -> StepLine:
    return StepLine(depth, name, name, "t.F", state, None, 0, 0, 1, 0, None, None)


def awaited(*lines: StepLine | HiddenItems) -> dict[str, list[str]]:
    found = with_awaited(list(lines))
    assert len(found) == len(lines)
    return {each.name: list(each.awaited) for each in found if isinstance(each, StepLine)}


def test_a_suspended_function_waits_for_its_open_calls_alone() -> None:
    found = awaited(
        line(0, "f", StepState.SUSPENDED),
        line(1, "ended", StepState.COMPLETE),
        line(1, "failed", StepState.ERROR),
        line(1, "first", OPEN),
        line(2, "inside first", OPEN),
        HiddenItems(1, {OPEN: 3}, "calls"),
        line(1, "second", StepState.CREATED),
        line(0, "beside", OPEN),
        line(1, "inside beside", OPEN),
    )
    assert found.pop("f") == ["first", "second"]
    assert not any(found.values()), "only suspended functions wait for calls"


def test_a_function_inside_a_function_has_calls_of_its_own() -> None:
    found = awaited(
        line(0, "outer", StepState.SUSPENDED),
        line(1, "inner", StepState.SUSPENDED),
        line(2, "call", OPEN),
    )
    assert found == {"outer": ["inner"], "inner": ["call"], "call": []}


def test_the_given_lines_stay_as_they_are() -> None:
    lines: list[StepLine | HiddenItems] = [line(0, "f", StepState.SUSPENDED), line(1, "a", OPEN)]
    before = list(lines)
    assert with_awaited(lines) != before
    assert lines == before

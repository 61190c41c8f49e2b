"""``@workflow(run=True)`` on a plain ``def``: calls return their results."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from flowengine import (
    Divergence,
    FunctionMisuse,
    StepFailed,
    event_facet,
    gather,
    sleep,
    step,
    wait_for,
    workflow,
)
from flowengine.authoring.functions import Activation
from flowengine.errors import MissingExtra
from flowengine.program.function_calls import CallEnd, FunctionRecord, Progress
from tests.unit.authoring.functions.recorded import LIMITS, START


@event_facet
def charge(order: str) -> int:
    return len(order)


def length(text: str) -> int:
    return len(text)


def activation(flow: Any, record: FunctionRecord, **inputs: Any) -> Activation:
    return Activation(
        flow.activation.durable, inputs, step_id="s", started=START, limits=LIMITS,
        record=record, strict=True,
    )  # fmt: skip


def replayed(flow: Any, answers: dict[int, Any], **inputs: Any) -> tuple[list[str], Progress]:
    """Run to the end, with a replay from the record at each call; return the calls."""
    calls: list[Any] = []
    ends: list[CallEnd] = []
    while True:
        record = FunctionRecord(tuple(call.recorded() for call in calls), tuple(ends))
        with activation(flow, record, **inputs) as one:
            progress = one.advance()
        calls += progress.calls
        if progress.ended is not None:
            return [call.facet.rpartition(".")[2] for call in calls], progress
        number = len(ends)
        answer = answers[number]
        error = answer if isinstance(answer, dict) and "type" in answer else None
        ends.append(CallEnd(number, START + number + 1, None if error else answer, error))


def test_calls_return_their_results_and_are_recorded_as_in_an_async_def() -> None:
    @workflow(run=True, name="t.bill")
    def bill(order: str) -> int:
        total = charge(order)
        sleep(60)
        if wait_for("approved", bool):
            total += sum(gather(charge.acall("a"), charge.acall("b")))
        return total + step(length, order)

    calls, progress = replayed(bill, {0: 5, 1: None, 2: True, 3: 10, 4: 20, 5: 3}, order="abc")
    assert calls == ["charge", "sleep", "wait_for", "charge", "charge", "length"]
    assert progress.ended is not None
    assert progress.ended.result == 38


def test_an_error_of_a_call_is_raised_where_it_was_called() -> None:
    @workflow(run=True, name="t.catching_bill")
    def bill(order: str) -> str:
        try:
            charge(order)
        except StepFailed as problem:
            return f"{problem.error_type}: {problem}"
        return "charged"

    error = {"type": "Refused", "message": "no money", "path": "p", "bases": []}
    _, progress = replayed(bill, {0: error}, order="abc")
    assert progress.ended is not None
    assert progress.ended.result == "Refused: no money"


def test_a_dropped_body_runs_its_finally_blocks_and_makes_no_call() -> None:
    seen: list[str] = []

    @workflow(run=True, name="t.dropped_bill")
    def bill(order: str) -> int:
        try:
            return charge(order)
        finally:
            seen.append("finally")
            charge("in vain")
            seen.append("not reached")

    one = activation(bill, FunctionRecord(), order="a")
    assert len(one.advance().calls) == 1
    one.drop()
    assert seen == ["finally"]


def test_outside_of_runs_it_is_plain_python() -> None:
    @workflow(run=True, name="t.plain_bill")
    def bill(order: str) -> int:
        return charge(order) + step(length, order) + sum(gather(charge.acall("ab")))

    assert bill("abc") == 8


def test_constructs_of_graphs_are_refused_in_a_plain_body_too() -> None:
    from flowengine import foreach

    @workflow(run=True, name="t.loop_bill")
    def bill(order: str) -> list[int]:
        return foreach([order], charge)

    progress = activation(bill, FunctionRecord(), order="a").advance()
    assert progress.ended is not None
    assert progress.ended.error is not None
    assert progress.ended.error["type"] == FunctionMisuse.__name__


def test_without_greenlet_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flowengine.authoring.function_decorators.find_spec",
        lambda name: None if name == "greenlet" else importlib.util.find_spec(name),
    )
    with pytest.raises(MissingExtra, match=r"needs the package 'greenlet': .*flowengine\[sync\]"):

        @workflow(run=True, name="t.no_greenlet")
        def bill() -> int:
            return 1


def test_a_call_that_nobody_waits_for_is_refused_with_the_plain_cure() -> None:
    @workflow(run=True, name="t.forgetful_bill")
    def bill(order: str) -> int:
        charge.acall(order)
        return charge(order)

    progress = activation(bill, FunctionRecord(), order="a").advance()
    assert progress.ended is not None
    assert progress.ended.error is not None
    assert "write `charge(…)`, or give the call to gather(…)" in progress.ended.error["message"]


def test_a_divergence_names_the_line_at_which_the_plain_body_waits() -> None:
    @workflow(run=True, name="t.diverging_bill")
    def bill(order: str) -> int:
        return charge(order)

    with activation(bill, FunctionRecord(), order="a") as one:
        (call,) = one.advance().calls
    two = (call.recorded(), call.recorded())
    with pytest.raises(Divergence, match=r"makes no call \(.*test_plain_form.py:\d+\)"):
        activation(bill, FunctionRecord(two), order="a").advance()

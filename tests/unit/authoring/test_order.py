"""facet.after(step): order between steps that pass no values."""

from __future__ import annotations

import pytest

from flowengine.authoring import event_facet, foreach, workflow
from flowengine.errors import AuthoringError, SymbolMisuse
from flowengine.program import write_program
from flowengine.program.nodes import After
from flowengine.testing import run_program
from tests.unit.authoring.compiled import block, steps

calls: list[str] = []


@event_facet
def create() -> None:
    calls.append("create")


@event_facet
def insert(row: int) -> int:
    calls.append(f"insert {row}")
    return row


@event_facet
def vacuum() -> None:
    calls.append("vacuum")


@workflow
def load(rows: list[int]) -> list[int]:
    table = create()
    inserted = foreach(rows, lambda row: insert.after(table)(row))
    vacuum.after(table).after(inserted, on="ended")()
    return inserted


def test_the_order_is_part_of_the_program() -> None:
    last = steps(block(load))[-1]
    assert last.after == (After("create"), After("foreach", is_end_enough=True))


def test_steps_run_in_their_order() -> None:
    calls.clear()
    answers = {each.name: each.run for each in (create, insert, vacuum)}
    outcome = run_program(
        write_program(load.program()), load.name, {"rows": [1, 2]}, answers, order="reverse"
    )
    assert outcome.outputs == {"result": [1, 2]}
    assert (calls[0], sorted(calls[1:3]), calls[3:]) == (
        *("create", ["insert 1", "insert 2"]),
        ["vacuum"],
    )


def test_plain_python_calls_one_after_the_other() -> None:
    calls.clear()
    assert load.fn([1, 2]) == [1, 2]
    assert calls == ["create", "insert 1", "insert 2", "vacuum"]


def test_a_step_after_none_has_no_order() -> None:
    @workflow(name="t.free")
    def free() -> None:
        create.after()()

    assert steps(block(free))[0].after == ()
    assert "after" not in str(write_program(free.program()))


def test_a_child_run_is_started_after_a_step() -> None:
    @workflow(name="t.parent")
    def parent() -> None:
        load.after(create()).start([1])

    assert steps(block(parent))[-1].after == (After("create"),)


def test_the_end_of_a_child_run_can_be_waited_for() -> None:
    @workflow(name="t.parent_waits")
    def parent() -> None:
        vacuum.after(load.start([1]).result())()

    names = [step.name for step in steps(block(parent))]
    assert steps(block(parent))[-1].after == (After(names[-2]),)


@pytest.mark.parametrize("value", [3, None, "create", [1]])
def test_only_results_of_steps_can_come_first(value: object) -> None:
    @workflow(name="t.wrong")
    def wrong() -> None:
        create.after(value)()

    with pytest.raises(AuthoringError, match="not the result of a step; give the value"):
        wrong.program()


def test_a_parameter_cannot_come_first() -> None:
    @workflow(name="t.parameter")
    def wrong(n: int) -> None:
        create.after(n)()

    with pytest.raises(AuthoringError, match=r"after parameter 'n', which is not the result"):
        wrong.program()


def test_a_step_inside_a_lambda_cannot_come_first_outside() -> None:
    inner: list[object] = []

    @workflow(name="t.escapes")
    def wrong() -> None:
        foreach([1], lambda n: inner.append(insert(n)) or 1)
        create.after(inner[-1])()

    with pytest.raises(SymbolMisuse, match="escapes its lambda"):
        wrong.program()


def test_on_is_completed_or_ended() -> None:
    @workflow(name="t.on")
    def wrong() -> None:
        create.after(create(), on="begun")()  # type: ignore[arg-type]

    with pytest.raises(AuthoringError, match="on='begun' is neither 'completed' nor 'ended'"):
        wrong.program()

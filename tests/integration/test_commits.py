"""One call of `advance` consumes all waiting reports, however many there are."""

from __future__ import annotations

from flowengine.engine import Engine
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import Succeeded
from flowengine.store import Database, ensure_schema
from flowengine.store.claims import WorkerIdentity
from flowengine.store.parts import MANY
from tests.builders import block, event, given, listed, of, program, step, to, workflow


def test_more_recorded_results_than_one_statement_holds_are_all_consumed() -> None:
    count = MANY + 100
    database = Database("sqlite://")
    ensure_schema(database, upgrade=True)
    engine = Engine(database)
    each = block(
        step("e", "E", x=given("v")),
        foreach=("v", given("xs")),
        yields=[to("W", out=listed(of("e.y")))],
    )
    document = program(event("E", "x", "y"), workflow("W", "xs", "out", each))
    run = engine.start(document, "W", {"xs": list(range(count))})
    claimed = engine.claim(["E"], "default", WorkerIdentity(), most=count)
    assert len(claimed) == count
    for task in claimed:
        assert task.data is not None
        assert engine.record(task, Succeeded({"y": task.data["x"]}))
    assert run.state == RunState.RUNNING
    engine.advance(run.id)
    assert run.info().outputs == {"out": list(range(count))}
    engine.close()

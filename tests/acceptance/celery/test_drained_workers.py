"""A drained worker finishes its tasks and claims no others, whatever the broker delivers."""

from __future__ import annotations

from flowengine.engine.workers import WorkerInfo
from tests.acceptance.celery import gated
from tests.acceptance.celery.conftest import QUICK_START, MakeFleet
from tests.celery_nodes import until
from tests.celery_nodes.fleet import Fleet

DRAINED = "is drained: it finishes"


def workers(fleet: Fleet) -> dict[str, WorkerInfo]:
    """Return the registered workers by the first part of their name; the one started last."""
    return {info.name.partition("@")[0]: info for info in fleet.engine.workers.list()}


def test_a_drained_worker_finishes_its_tasks_and_claims_none_also_after_a_restart(
    make_fleet: MakeFleet,
) -> None:
    fleet = make_fleet(
        imports=gated.__name__,
        FLOWENGINE_SERVER_TIMEOUT="3",
        FLOWENGINE_HEARTBEAT_INTERVAL="0.5",
    )
    engine = fleet.engine
    first = fleet.add_worker("first", *QUICK_START, "-c", "2")
    begun = engine.start(gated.one.program(), "gated.one", {"gate": "open"})
    (drained,) = until(lambda: [w for w in workers(fleet).values() if w.tries], "the first task")
    second = fleet.add_worker("second", *QUICK_START, "-c", "2")
    until(lambda: "second" in workers(fleet), "the second worker")
    other = workers(fleet)["second"].pid

    engine.workers.drain(drained.name, actor="eva", reason="new disk")
    until(lambda: fleet.count_logged(DRAINED), "the drain")
    program = gated.one.program()
    for _ in range(10):
        engine.start_many(program, "gated.one", [{"gate": ""}] * 2)
        fleet.app.send_task("flowengine.drain", ("default", 2), queue="default")  # a duplicate
    others = until(
        lambda: (
            found
            if len(found := [r for r in engine.list(limit=100) if r.id != begun.id and r.is_final])
            == 20
            else []
        ),
        "the end of the other runs",
    )
    assert {run.outputs["result"] for run in others if run.outputs} == {other}
    info = workers(fleet)["first"]
    assert (info.is_drained, info.tries, info.max_tasks) == (True, 1, 0)
    assert info.task_lists, "it stays registered for its queues"

    (fleet.traces / "open").touch()
    assert begun.result(timeout=30) == drained.pid, "what it held is finished, and not lost"
    until(lambda: engine.workers.is_idle(drained.name), "the end of its task")

    first.kill()
    first.start()
    second.kill()
    until(lambda: fleet.count_logged(DRAINED) == 2, "the drain of the restarted worker")
    waiting = engine.start(program, "gated.one", {"gate": ""})
    alarm = until(lambda: waiting.info().alarm, "the alarm")
    assert f"{drained.name} is drained; `flowengine workers undrain {drained.name}` ends" in alarm
    assert workers(fleet)["first"].tries == 0

    engine.workers.undrain(drained.name, actor="eva")
    assert waiting.result(timeout=30) == workers(fleet)["first"].pid
    assert [each.action for each in engine.actions()] == ["undrain", "drain"]

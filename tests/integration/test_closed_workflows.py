"""A workflow that is closed takes no new starts, says who closed it, and goes on with its runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flowengine import Schedule, WorkflowClosed, event_facet, wait_for, workflow
from flowengine.cli import main
from flowengine.engine import Engine
from flowengine.errors import UnpublishedWorkflow, ValueRefused
from flowengine.testing import Flow
from tests.integration.test_tenants import statements_of

HOUR = 3_600


@event_facet(name="closed.work")
def work(n: int) -> int:
    return n


@workflow(name="closed.order")
def order(n: int) -> int:
    return work(n)


@workflow(name="closed.asks")
def asks() -> int:
    return order.start(wait_for("size", int)).result()


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def close(engine: Engine, **about: Any) -> None:
    engine.catalogue.close("order", actor="eva", reason="the bank is down", **about)


@pytest.mark.each_database
def test_a_closed_workflow_refuses_each_kind_of_start_with_who_and_why(flow: Flow) -> None:
    engine, earlier = flow.engine, order.options(key="k").start(1)
    placed = order.options(singleton="s", if_running="return").start(1)
    close(engine)
    starts: list[Any] = [
        lambda: order.start(1),
        lambda: order.options(key="new").start(1),
        lambda: order.options(key="new", if_failed="start").start(1),
        lambda: order.options(singleton="other").start(1),
        lambda: order.options(singleton="s", if_running="queue").start(1),
        lambda: order.options(singleton="s", if_running="replace").start(1),
        lambda: order.start_many([{"n": 1}, {"n": 2}]),
        lambda: engine.fork(earlier.id),
    ]
    count = len(engine.list())
    for start in starts:
        with pytest.raises(WorkflowClosed) as caught:
            start()
        assert str(caught.value).startswith(
            "closed.order is closed for new starts, by person:eva: the bank is down. Nothing is"
        )
        assert "`flowengine workflows open closed.order` ends this" in str(caught.value)
    assert order.options(key="k").start(1).id == earlier.id, "it starts nothing"
    assert order.options(singleton="s", if_running="return").start(1).id == placed.id
    assert len(engine.list()) == count
    assert placed.state == "RUNNING", "no run was replaced"
    assert engine.doctor() == []
    flow.clock.advance(seconds=1)
    engine.catalogue.open("closed.order", actor="eva")
    for start in starts[:4]:
        start()
    assert [(each.action, each.subject, each.actor) for each in engine.actions()] == [
        ("open", "closed.order", "person:eva"),
        ("close", "closed.order", "person:eva"),
    ]


@pytest.mark.each_database
def test_runs_that_are_open_go_on_with_their_children(flow: Flow) -> None:
    parent, child = asks.start(), order.start(1)
    close(flow.engine)
    flow.settle()
    parent.send("size", 3)
    flow.settle()
    assert (parent.result(timeout=0), child.result(timeout=0)) == (3, 1)


@pytest.mark.each_database
def test_failed_runs_of_a_closed_workflow_are_retried(flow: Flow) -> None:
    run = order.start(1)
    run.cancel()
    close(flow.engine)
    run.retry()
    flow.settle()
    assert run.result(timeout=0) == 1


@pytest.mark.each_database
def test_ticks_of_a_closed_workflow_are_skipped_with_a_note_and_the_next_ones_run(
    flow: Flow,
) -> None:
    engine = flow.engine
    hourly = Schedule(every=HOUR, name="hourly", inputs={"n": 1}, catch_up="all")
    engine.schedules.put(order.program(), "closed.order", hourly)
    close(engine)
    for _ in range(3):
        flow.clock.advance(seconds=HOUR)
        flow.watchdog()
    (tick,) = engine.schedules.ticks("hourly")
    assert (tick.outcome, tick.reason, tick.tick_count) == ("skipped", "closed", 3)
    assert engine.list() == []
    with pytest.raises(WorkflowClosed):
        engine.schedules.trigger("hourly")
    assert engine.schedules.get("hourly").state == "active"
    engine.catalogue.open("closed.order")
    flow.clock.advance(seconds=HOUR)
    flow.watchdog()
    assert [tick.outcome for tick in engine.schedules.ticks("hourly")] == ["started", "skipped"]


def test_a_start_asks_for_closed_workflows_in_the_statement_that_inserts_the_run(
    flow: Flow,
) -> None:
    order.start(1)
    with statements_of(flow.engine) as statements:
        order.start(2)
    asking = [text for text, _ in statements if "flowengine_closed" in text]
    assert len(asking) == 1
    assert "INTO flowengine_run" in asking[0]


def test_a_name_that_is_no_workflow_is_refused_with_the_nearest(flow: Flow) -> None:
    order.start(1)
    with pytest.raises(UnpublishedWorkflow, match=r"did you mean 'closed\.order'"):
        flow.engine.catalogue.close("closed.oder")
    with pytest.raises(ValueRefused, match=r"'closed\.order' is not closed; none is"):
        flow.engine.catalogue.open("closed.order")


def test_the_commands_close_and_open_a_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/flow.db"
    monkeypatch.setenv("FLOWENGINE_DATABASE_URL", url)
    with Flow(store_url=url):
        order.start(1)

    def run(*words: str, expect: int = 0) -> str:
        result = CliRunner().invoke(main, ["workflows", *words], env={"COLUMNS": "200"})
        assert result.exit_code == expect, result.output
        return result.output

    closed = run("close", "order", "--actor", "eva", "--reason", "the bank is down")
    assert closed == "closed.order is closed for new starts; open runs go on\n"
    shown = run()
    assert "closed.order is closed since" in shown
    assert "by person:eva: the bank is down" in shown
    assert run("open", "order") == "closed.order takes new starts again\n"
    assert "not closed" in run("open", "order", expect=1)

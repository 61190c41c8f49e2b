"""The cost of a poller, counted: as many statements per task as a worker, and few when idle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.authoring import Workflow
from flowengine.engine import Engine
from flowengine.sdk import AgentPoller, AgentPollerConfig
from flowengine.sdk.pace import PollPace
from flowengine.sdk.poll_threads import PollThreads
from flowengine.worker.outage_log import OutageLog
from tests.integration.engines import one
from tests.integration.sdk.pollers import WAIT, started
from tests.integration.test_costs import WorkingSet, chain, inc, small, total, working
from tests.servers import PostgresServer


@pytest.fixture
def work(postgres: PostgresServer, with_schema: str, tmp_path: Path) -> Iterator[WorkingSet]:
    url = postgres.new_database(with_schema)
    with working(url, tmp_path) as work:
        yield work
    postgres.drop_database(url)


def poller_of(engine: Engine, *, with_callbacks: bool) -> AgentPoller:
    poller = AgentPoller(engine)
    if with_callbacks:  # by short names: the qualified ones are learned
        poller.register("inc", lambda payload: {"result": payload["n"] + 1})
        poller.register("total", lambda payload: {"result": sum(payload["ns"])})
    else:
        poller.register(inc)
        poller.register(total)
    return poller


def counted(work: WorkingSet, a_workflow: Workflow[..., Any], *inputs: list[Any]) -> dict[str, int]:
    with work.counted() as statements:
        work.run(a_workflow, *inputs)
    statements.pop("SELECT", None)  # the server's clock, read every five seconds
    return dict(statements)


@pytest.mark.parametrize("with_callbacks", [False, True])
def test_a_poller_needs_as_many_statements_as_a_worker(
    work: WorkingSet, with_callbacks: bool
) -> None:
    runs: list[tuple[Workflow[..., Any], list[list[Any]]]] = [
        (chain, [[1]]),
        (small, [[n] for n in range(50)]),
    ]
    for a_workflow, inputs in runs:
        work.run(a_workflow, *inputs)  # their programs are stored
    of_worker = [counted(work, a_workflow, *inputs) for a_workflow, inputs in runs]
    poller = poller_of(work.engine, with_callbacks=with_callbacks)
    work.task_worker = poller._server._worker("p" * 32, poller._tools.table.find_blocking)
    for _ in range(3):
        work.run(small, [1])  # it learns that the facets are quick
    of_poller = [counted(work, a_workflow, *inputs) for a_workflow, inputs in runs]
    assert of_poller == of_worker


def test_an_idle_poller_claims_when_its_pace_says_so_and_not_otherwise() -> None:
    """Together with the unit tests of the pace: twice a minute on PostgreSQL."""
    asked: list[int] = []
    waits = threading.Event()

    class Paced(PollPace):
        """Has no pause before the second poll, and one without end behind it."""

        def pause(self, *, is_notified: bool) -> float:
            assert is_notified
            if len(asked) < 2:
                return 0.001
            waits.set()
            return 3_600.0

    def ask(ticket: int) -> int:
        asked.append(ticket)
        return 0

    threads = PollThreads(1, ask, Paced(2.0, 10.0), OutageLog(), "default")
    threads.start()
    polling = threading.Thread(target=threads.keep_polling, args=(lambda: True,))
    polling.start()
    assert waits.wait(WAIT)
    threads.stop()
    polling.join(WAIT)
    threads.join(WAIT)
    assert set(asked) == {1}
    assert len(asked) in (2, 3)  # the pause is asked for while the thread still asks


def test_a_poller_that_waits_is_woken_and_need_not_ask(
    postgres: PostgresServer, with_schema: str, tmp_path: Path
) -> None:
    """With an interval of an hour only a notification can bring the task in time."""
    url = postgres.new_database(with_schema)
    config = AgentPollerConfig(poll_interval_ms=3_600_000)
    with AgentPoller.connect(url, config) as poller, AgentPoller.connect(url) as other:
        poller.register("t.Work", lambda payload: {"y": payload["x"]})
        with started(poller):
            for number in range(3):
                run = other.engine.start(one(), "t.Flow", {"x": number})
                assert run.result(timeout=WAIT) == {"y": number}
    postgres.drop_database(url)

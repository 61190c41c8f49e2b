"""Keys of limits and rates that nobody uses any more are removed, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from flowengine import Limit, Rate, event_facet, foreach, workflow
from flowengine.evaluator import TaskState
from flowengine.evaluator.admission import StatedKey
from flowengine.testing import Flow

pytestmark = pytest.mark.each_database


@event_facet(name="idle.call", limit=Limit("customer:{customer}", 1))
def call(customer: str, n: int) -> int:
    return n


@event_facet(name="idle.mail", rate=Rate("mail", 1, per=timedelta(days=3)))
def mail(n: int) -> int:
    return n


@workflow(name="idle.calls")
def calls(customer: str) -> list[int]:
    return foreach([1, 2], lambda n: call(customer, n))


@workflow(name="idle.mails")
def mails() -> list[int]:
    return foreach([1, 2], lambda n: mail(n))


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def keys(flow: Flow) -> list[str]:
    with flow.database.read() as session:
        return list(session.execute(text("SELECT key FROM flowengine_limit ORDER BY 1")).scalars())


def slots(flow: Flow) -> list[str]:
    with flow.database.read() as session:
        return list(session.execute(text("SELECT key FROM flowengine_slot ORDER BY 1")).scalars())


def remove(flow: Flow) -> int:
    return flow.engine.purger.remove_expired(60, now=True).rows


def test_a_key_is_removed_a_day_after_its_last_run(flow: Flow) -> None:
    for customer in ("ada", "bob"):
        assert flow.run(calls, customer) == [1, 2]
    flow.clock.advance(hours=23)
    assert flow.run(calls, "ada") == [1, 2]
    assert remove(flow) == 0
    flow.clock.advance(hours=2)
    assert remove(flow) == 1
    assert keys(flow) == ["limit:customer:ada"]
    assert slots(flow) == ["limit:customer:ada"], "with the slots of its ended tasks"
    flow.clock.advance(hours=24)
    flow.engine.purge(older_than=timedelta(days=30))
    assert (keys(flow), slots(flow)) == ([], [])


def test_a_key_with_tasks_that_run_or_wait_stays(flow: Flow) -> None:
    run, slow = flow.start(calls, "ada"), flow.start(mails)
    flow.clock.advance(hours=48)
    flow.watchdog()
    assert remove(flow) == 0
    assert keys(flow) == ["limit:customer:ada", "rate:mail"]
    flow.settle()
    assert run.result(timeout=0) == [1, 2]
    flow.clock.advance(hours=48)
    assert remove(flow) == 1
    assert keys(flow) == ["rate:mail"], "its period has not passed, and a task waits for it"
    flow.clock.advance(hours=25)
    flow.watchdog()
    flow.settle()
    assert slow.result(timeout=0) == [1, 2]


def test_a_limit_holds_after_its_key_was_removed(flow: Flow) -> None:
    flow.run(calls, "ada")
    flow.clock.advance(hours=25)
    assert remove(flow) == 1
    run, worker = flow.start(calls, "ada"), flow.worker("w")
    while task := worker.claim_next():
        tasks = flow.engine.tasks(run.id)
        assert len([one for one in tasks if one.state in TaskState.ADMITTED]) == 1
        worker.work_on(task)
    assert run.result(timeout=0) == [1, 2]


def test_keys_are_removed_in_pages_and_one_that_is_being_served_is_skipped(flow: Flow) -> None:
    stated = [StatedKey(f"limit:k{n:04}", 1, None, 0) for n in range(1_100)]
    with flow.database.write() as session:
        session.admission.create_keys(stated, session.now())
    flow.clock.advance(hours=25)
    with flow.database.write() as session:
        page = session.idle_keys.remove("", flow.clock.now, flow.clock.now)
        assert page == (500, "limit:k0499")
    if flow.database.has_server:
        with flow.database.write() as session:
            session.admission.lock_keys(["limit:k0700"])  # an admission is under way
            assert remove(flow) == 599
        assert keys(flow) == ["limit:k0700"]
    remove(flow)
    assert keys(flow) == []

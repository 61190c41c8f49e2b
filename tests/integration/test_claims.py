"""Claims: a task goes to one claimer at a time, the most urgent first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.program.nodes import EventOptions, Literal, RetryPolicy
from flowengine.store.backend import sqlite_text
from flowengine.store.claims import WorkerIdentity
from flowengine.store.tables import TaskRow
from tests.integration.engines import (
    MovedClock,
    call,
    chain,
    claim,
    dump,
    event_facet,
    one,
    opened,
    program,
    side_by_side,
    watched,
    workflow,
)
from tests.integration.threads import Ready, in_processes, in_threads
from tests.servers import PostgresServer

pytestmark = pytest.mark.each_database


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def engine(database_url: str, clock: MovedClock) -> Iterator[Engine]:
    with opened(database_url, clock=clock) as engine:
        yield engine


def claim_all(engine: Engine, most: int) -> list[str]:
    """Claim until there is nothing left."""
    found: list[str] = []
    while claimed := engine.claim(["t.Work"], "default", WorkerIdentity(), most=most):
        assert len(claimed) <= most
        found += [task.uuid for task in claimed]
    return found


def claim_all_with_threads(ready: Ready, url: str, threads: int) -> list[str]:
    with opened(url) as engine:
        ready()
        found = in_threads([lambda: claim_all(engine, 3)] * threads)
    return [task for part in found for task in part]


def assert_each_once(engine: Engine, run: str, found: Sequence[str]) -> None:
    assert len(found) == len(set(found)), "somebody got what another had"
    every = engine.tasks(run)
    assert sorted(found) == sorted(task.uuid for task in every)
    assert {(task.state, task.lease) for task in every} == {(TaskState.RUNNING, 1)}


# --- nobody else gets the same one ---


@pytest.mark.parametrize("most", [1, 7])
def test_eight_threads_never_get_the_same_task(engine: Engine, most: int) -> None:
    run = engine.start(side_by_side(*(f"s{i}" for i in range(200))), "Flow", {}).id
    found = in_threads([lambda: claim_all(engine, most)] * 8)
    assert_each_once(engine, run, [task for part in found for task in part])


def test_two_processes_never_get_the_same_task(engine: Engine, database_url: str) -> None:
    run = engine.start(side_by_side(*(f"s{i}" for i in range(200))), "Flow", {}).id
    found = in_processes(claim_all_with_threads, [(database_url, 4)] * 2)
    assert_each_once(engine, run, [task for part in found for task in part])


@pytest.mark.parametrize("waiting", [2, 5, 40])
@pytest.mark.parametrize("analyzed", [False, True])
def test_a_claim_never_takes_more_than_it_asks_for(
    engine: Engine, waiting: int, analyzed: bool
) -> None:
    # PostgreSQL plans a statement by the size it takes a table to have.
    engine.start(side_by_side(*(f"s{i}" for i in range(waiting))), "Flow", {})
    if analyzed:
        with engine.database.write() as connection:
            connection.execute(text("ANALYZE"))
    for most in (1, 2):
        assert len(engine.claim(["t.Work"], "default", WorkerIdentity(), most=most)) == min(
            most, waiting - (most - 1)
        )


def test_a_claim_by_ids_gets_the_first_that_are_still_pending(engine: Engine) -> None:
    run = engine.start(side_by_side(*(f"s{i}" for i in range(6))), "Flow", {}).id
    ids = [task.uuid for task in engine.tasks(run)]
    assert engine.claim_one(ids[0], "default", WorkerIdentity())
    assert engine.claim_one(ids[2], "default", WorkerIdentity())
    taken = engine.claim_these(ids, "default", WorkerIdentity(), most=2).tasks
    assert [task.uuid for task in taken] == [ids[1], ids[3]], "the others of them were gone"
    others = engine.claim_these(ids[4:], "default", WorkerIdentity(), names=["t.Other"], most=2)
    assert others.tasks == []
    assert len(engine.claim_these(ids, "default", WorkerIdentity()).tasks) == 2


def test_a_task_that_is_named_is_claimed_only_from_its_list_and_when_it_is_due(
    engine: Engine, clock: MovedClock
) -> None:
    # A message names tasks, and anybody who reaches the broker can send one.
    options = EventOptions("gpu", RetryPolicy(attempts=2, first_wait=60.0))
    run = engine.start(one(options), "Flow", {}).id
    (task,) = engine.tasks(run)
    for name in ("default", "", "GPU"):
        assert engine.claim_one(task.uuid, name, WorkerIdentity()) is None
        claim = engine.claim_these([task.uuid], name, WorkerIdentity(), names=["t.Work"])
        assert claim.tasks == []
    claimed = engine.claim_one(task.uuid, "gpu", WorkerIdentity())
    assert claimed is not None
    engine.report(claimed, Failed({"type": "Away", "message": "x"}))
    retry = next(task for task in engine.tasks(run) if task.state == TaskState.PENDING)
    for most in (None, 1, 2):
        assert engine.claim_these([retry.uuid], "gpu", WorkerIdentity(), most=most).tasks == []
    clock.now = retry.due
    assert engine.claim_one(retry.uuid, "gpu", WorkerIdentity())


def test_one_of_many_concurrent_claims_gets_the_task(engine: Engine) -> None:
    run = engine.start(one(), "Flow", {}).id
    (task,) = engine.tasks(run)

    def take() -> TaskDefinition | None:
        return engine.claim_one(task.uuid, "default", WorkerIdentity())

    taken = [found for found in in_threads([take] * 8) if found is not None]
    assert [(found.uuid, found.lease) for found in taken] == [(task.uuid, 1)]


def test_a_step_never_has_two_running_tasks(engine: Engine) -> None:
    run = engine.start(one(), "Flow", {}).id
    running = claim(engine)
    table = TaskRow.__table__
    with engine.database.read() as connection:
        row = dict(connection.execute(select(table)).one()._mapping)
    before = dump(engine)
    with (
        pytest.raises(IntegrityError, match=r"UNIQUE|unique"),
        engine.database.write() as connection,
    ):
        connection.execute(insert(table).values({**row, "uuid": "another"}))
    assert dump(engine) == before
    with engine.database.write() as connection:
        another = {**row, "uuid": "another", "state": TaskState.PENDING}
        connection.execute(insert(table).values(another))
    with (
        pytest.raises(IntegrityError, match=r"UNIQUE|unique"),
        engine.database.write() as connection,
    ):
        connection.execute(
            update(table).where(table.c.uuid == "another").values(state=TaskState.RUNNING)
        )
    states = {task.uuid: task.state for task in engine.tasks(run)}
    assert states == {running.uuid: TaskState.RUNNING, "another": TaskState.PENDING}


@pytest.mark.parametrize("most", [1, 10])
def test_postgres_a_claim_under_way_locks_no_other_task(
    postgres: PostgresServer, most: int
) -> None:
    """A worker that finds nothing stops looking, so its wake-up would be lost."""
    url = postgres.new_database()
    with opened(url) as engine, opened(url) as other:
        engine.start(side_by_side("a", "b", "c"), "Flow", {})
        with engine.database.write() as session:  # the claim is under way
            claim = session.claims.claim(["t.Work"], "default", WorkerIdentity(), limit=most)
            assert len(claim.tasks) == 1
            assert claim.is_more
            second = other.claim_batch(["t.Work"], "default", WorkerIdentity(), most=most, quick=[])
            assert [task.step_path for task in second.tasks] == ["Flow.b"]
    postgres.drop_database(url)


def test_a_claim_reports_the_slow_tasks_that_it_passed_over(
    engine: Engine,
) -> None:
    mixed = program(
        event_facet("Quick"),
        event_facet("Slow"),
        workflow([call(f"s{n}", "Slow" if n % 2 else "Quick", x=Literal(n)) for n in range(6)], {}),
    )
    engine.start(mixed, "Flow", {})
    names, quick = ["t.Quick", "t.Slow"], ["t.Quick"]
    claim = engine.claim_batch(names, "default", WorkerIdentity(), most=10, quick=quick)
    assert [task.name for task in claim.tasks] == ["t.Quick"] * 3
    assert claim.is_more
    assert claim.passed_over == (3 if engine.database.has_server else 0), "nobody else looked"
    claim = engine.claim_batch(names, "default", WorkerIdentity(), most=10, quick=quick)
    assert [task.name for task in claim.tasks] == ["t.Slow"]
    assert claim.is_more
    assert not claim.passed_over


# --- whose tasks ---


def test_a_short_name_takes_tasks_of_any_namespace(engine: Engine) -> None:
    flow = workflow([call("a", "Work", x=Literal(1))], {})
    for namespace in ("shop", "shop.orders"):
        engine.start(program(event_facet("Work"), flow, namespace=namespace), "Flow", {})
    assert engine.claim_task(["stock.Work"]) is None, "a qualified name is taken at its word"
    assert engine.claim_task(["shop"]) is None
    first = engine.claim_task(["shop.orders.Work"])
    assert first is not None
    assert first.name == "shop.orders.Work"
    second = engine.claim_task(["Work"])
    assert second is not None
    assert second.name == "shop.Work"


def test_unknown_names_get_nothing(engine: Engine) -> None:
    engine.start(one(), "Flow", {})
    before = dump(engine)
    assert engine.claim_task(["t.Other", "Wor", "t", "t.work", ""]) is None
    assert engine.claim_task([]) is None
    assert engine.claim_task(["t.Work"], task_list="other") is None
    assert dump(engine) == before


def test_a_claim_sees_one_task_list_only(engine: Engine) -> None:
    lists = ["io", "gpu", "default"]
    events = [event_facet(f"On_{name}", EventOptions(task_list=name)) for name in lists]
    steps = [call(name, f"On_{name}", x=Literal(name)) for name in lists]
    engine.start(program(*events, workflow(steps, {})), "Flow", {})
    names = [f"t.On_{name}" for name in lists]
    for name in lists:
        (task,) = engine.claim(names, name, WorkerIdentity(), most=10)
        assert (task.name, task.task_list_name) == (f"t.On_{name}", name)
        assert engine.claim(names, name, WorkerIdentity(), most=10) == []


def test_a_claim_returns_the_arguments_and_records_its_holder(engine: Engine) -> None:
    large = ["large"] * 5_000
    run = engine.start(one(), "Flow", {"x": large}).id
    who = WorkerIdentity(server_id="s" * 32, boot_id="b" * 32, pid=17)
    (task,) = engine.claim(["t.Work"], "default", who, most=1)
    assert task.data == {"x": large}
    assert (task.workflow_id, task.step_path, task.runner_id) == (run, "Flow.a", who.server_id)
    assert (task.state, task.lease) == (TaskState.RUNNING, 1)
    (row,) = dump(engine)["flowengine_task"]
    held = dict(zip(TaskRow.__table__.c.keys(), row, strict=True))
    assert (held["server_id"], held["boot_id"], held["pid"]) == (who.server_id, who.boot_id, 17)
    assert held["started"] == held["activity"] == 1_000_000


# --- in which order ---


def test_tasks_are_claimed_by_priority_then_by_due_time_then_by_age(
    engine: Engine, clock: MovedClock
) -> None:
    for key, priority, at in [
        ("low", -1, 0),
        ("normal later", 0, 3),
        ("normal", 0, 1),
        ("high later", 5, 4),
        ("high", 5, 2),
    ]:
        clock.now = 1_000_000 + at
        engine.start(side_by_side("a", "b"), "Flow", {}, key=key, priority=priority)
    clock.now += 100
    runs = {info.id: info.key for info in engine.list()}
    found = [(runs[t.workflow_id], t.step_path) for t in _claim_each(engine)]
    order = ["high", "high later", "normal", "normal later", "low"]
    assert found == [(key, path) for key in order for path in ("Flow.a", "Flow.b")]


def test_a_task_does_not_starve_behind_an_endless_stream_of_a_higher_priority(
    engine: Engine, clock: MovedClock
) -> None:
    """Each second an urgent task is started and one task is claimed: by count, not by luck."""
    engine.start(one(), "Flow", {}, key="low")
    (low,) = (info.id for info in engine.list())
    claimed: list[str] = []
    while low not in claimed:
        assert len(claimed) < 1_000, "it starves"
        clock.now += 1_000
        engine.start(one(), "Flow", {}, priority=1)
        claimed.append(claim(engine).workflow_id)
    aging = engine.settings.priority_aging
    assert len(claimed) == aging, "a minute for one point"


def test_several_tasks_at_once_come_in_the_same_order(engine: Engine) -> None:
    names = [f"s{i}" for i in range(9)]
    engine.start(side_by_side(*names), "Flow", {})
    engine.start(one(), "Flow", {}, priority=1)
    found = engine.claim(["t.Work"], "default", WorkerIdentity(), most=100)
    assert [task.step_path for task in found] == ["Flow.a", *(f"Flow.{name}" for name in names)]


def _claim_each(engine: Engine) -> Iterator[TaskDefinition]:
    while task := engine.claim_task(["t.Work"]):
        yield task


def test_a_task_is_not_claimed_before_it_is_due(engine: Engine, clock: MovedClock) -> None:
    policy = RetryPolicy(attempts=2, first_wait=60)
    run = engine.start(one(EventOptions(retry=policy)), "Flow", {}).id
    assert engine.report(claim(engine), Failed({"type": "Error", "message": "not yet"}))
    clock.now += 59_999
    assert engine.claim_task(["t.Work"]) is None
    clock.now += 1
    again = engine.claim_task(["t.Work"])
    assert again is not None
    assert again.try_number == 2
    assert engine.report(again, Succeeded({"y": 1}))
    assert engine.run(run).outputs() == {"y": 1}


def test_a_task_that_is_not_due_does_not_block_others(engine: Engine, clock: MovedClock) -> None:
    policy = RetryPolicy(attempts=2, first_wait=60)
    engine.start(one(EventOptions(retry=policy)), "Flow", {}, priority=9)
    assert engine.report(claim(engine), Failed({"type": "Error", "message": "not yet"}))
    clock.now += 1
    wait = engine.start(chain("b"), "Flow", {}).id
    assert claim(engine).workflow_id == wait


# --- release ---


def test_a_released_task_can_be_claimed_again_under_a_higher_lease(engine: Engine) -> None:
    run = engine.start(one(), "Flow", {}).id
    leases = []
    for _ in range(3):
        task = claim(engine)
        leases.append(task.lease)
        assert engine.claim_task(["t.Work"]) is None
        assert engine.release(task)
    assert leases == sorted(set(leases))
    assert engine.report(claim(engine), Succeeded({"y": 1}))
    assert len(engine.tasks(run)) == 1, "a release is not a try"


def test_a_release_sends_a_wakeup(database_url: str) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.lists: list[str] = []

        def notify(self, due: Any) -> None:
            self.lists += due

    notifier = Recorder()
    with opened(database_url, notifier=notifier) as engine:
        engine.start(one(), "Flow", {})
        task = claim(engine)
        notifier.lists.clear()
        assert engine.release(task)
        assert not engine.release(task)
    assert notifier.lists == ["default"]


# --- without looking at all there is ---


def plans(engine: Engine, act: Callable[[], object]) -> list[str]:
    """How the database goes about each statement of an act."""
    found: list[tuple[str, Any]] = []

    @event.listens_for(engine.database.engine, "before_cursor_execute")
    def _note(_c: Any, _cursor: Any, sql: str, given: Any, _x: Any, many: bool) -> None:
        if "flowengine_" in sql:
            found.append((sql, given[0] if many else given))

    def note(sql: str, given: Any) -> None:
        if "flowengine_" in sql:  # a list of rows is for many executions of one text
            found.append(
                (sql, given[0] if given and isinstance(given[0], dict | tuple) else given)
                if isinstance(given, list)
                else (sql, given)
            )

    with watched(engine, note):
        act()
    event.remove(engine.database.engine, "before_cursor_execute", _note)
    explain = "EXPLAIN" if engine.database.has_server else "EXPLAIN QUERY PLAN"
    with engine.database.read() as session:
        connection = session.connection
        if engine.database.has_server:
            # Tables of a few rows are read whole, unless that is made to look dear.
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        return [
            f"{sql}\n{chr(10).join(str(row[-1]) for row in _explained(connection, explain, *one))}"
            for one in found
            for sql in [one[0]]
        ]


def _explained(connection: Any, explain: str, sql: str, given: Any) -> Any:
    values = tuple(given) if isinstance(given, list) else given
    sql = sqlite_text(sql) if connection.dialect.name == "sqlite" else sql
    return connection.exec_driver_sql(f"{explain} {sql}", values)


def test_no_statement_of_a_step_reads_a_whole_table(engine: Engine) -> None:
    run = engine.start(chain("a", "b", "c"), "Flow", {}).id

    def step() -> None:
        task = claim(engine)
        assert engine.heartbeat(task)
        assert engine.record(task, Succeeded({"y": 1}))
        engine.advance(run)
        engine.continue_step(claim(engine).step_id, {"y": 1})
        assert engine.report(claim(engine), Failed({"type": "Error", "message": "no"}))

    for plan in plans(engine, step):
        assert "Seq Scan" not in plan, plan
        assert "SCAN flowengine" not in plan, plan
        # It would go through all tasks of the run to find those just reported.
        assert not re.search(r"flowengine_task_run \(run_id=\?\)", plan), plan

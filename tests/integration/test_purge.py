"""Retention: ended runs are removed with all their rows; everything else stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, make_url, select, text

from benchmarks import purge
from flowengine import event_facet, foreach, retention, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Engine, purger
from flowengine.engine.turn_purger import PurgeResult
from flowengine.errors import InvalidFilter, InvalidSetting, UnknownRun
from flowengine.evaluator.states import RunState
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.forks import Forks
from flowengine.store.tables import metadata
from flowengine.testing import Flow
from flowengine.worker import TaskWorker
from tests.integration.engines import opened
from tests.servers import PostgresServer

DAY = timedelta(days=1)


@event_facet(name="purge.work")
def work(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return n


@event_facet(name="purge.large")
def large(n: int) -> str:
    return str(n) * 20_000


@event_facet(name="purge.count")
def count(text: str) -> int:
    return len(text)


@event_facet(name="purge.tells")
def tells(n: int) -> int:
    print("working on", n)
    return n


@workflow(name="purge.told")
def told(n: int) -> int:
    return tells(n)


@workflow(name="purge.small")
def small(n: int) -> int:
    return work(n)


@workflow(name="purge.values")
def values(n: int) -> int:
    return count(large(n))


@workflow(name="purge.wide")
def wide(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: work(n))


@workflow(name="purge.returns")
def returns(n: int) -> str:
    return large(n)


@workflow(name="purge.parent")
def parent(n: int) -> int:
    return count(returns.start(n).result())


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        yield flow


def rows(engine: Engine) -> dict[str, int]:
    """The number of rows of each table that has any."""
    with engine.database.read() as session:
        counts = {
            name.removeprefix("flowengine_"): session.connection.execute(
                select(func.count()).select_from(table)
            ).scalar_one()
            for name, table in metadata.tables.items()
        }
    return {name: number for name, number in counts.items() if number}


def settled(flow: Flow, *runs: Any) -> None:
    flow.settle()
    assert all(run.info().is_final for run in runs)


def test_a_purged_run_leaves_no_row(flow: Flow) -> None:
    before = rows(flow.engine)
    runs = [
        small.options(labels={"a": "b"}, key="once").start(1),
        small.start(-1),
        values.start(7),
        wide.start(list(range(40))),
        parent.start(3),
        told.start(1),
    ]
    settled(flow, *runs)
    assert rows(flow.engine)["payload"] == 2
    assert rows(flow.engine)["log"] == 1
    assert flow.engine.purge(older_than=DAY) == PurgeResult()
    flow.clock.advance(hours=25)
    found = flow.engine.purge(older_than=DAY, dry_run=True)
    assert found.runs == 6
    done = flow.engine.purge(older_than=DAY)
    assert (done.runs, done.values, done.is_complete) == (7, 2, True)
    assert done.steps >= 40
    left = rows(flow.engine)
    for table in ("program", "server", "handled", "lock"):
        left.pop(table, None)
    assert left == {name: n for name, n in before.items() if name not in ("lock", "server")}
    with pytest.raises(UnknownRun):
        runs[0].info()
    assert small.options(key="once").start(1).id != runs[0].id, "the key is free again"


def test_open_runs_and_those_with_open_children_stay(flow: Flow) -> None:
    open_run = small.start(1)
    held = parent.start(3)
    worker = flow.worker("one")
    worker.work_on(worker.claim(held, "returns"))
    (child,) = flow.engine.list(parent=held.id)
    with flow.database.write() as session:  # as if its parent had not waited for it
        change = text("UPDATE flowengine_run SET state = 'COMPLETED', finished = 1 WHERE id = :id")
        session.connection.execute(change, {"id": held.id})
    flow.clock.advance(hours=100)
    assert flow.engine.purge(older_than=DAY).runs == 0
    assert {open_run.id, held.id, child.id} == {run.id for run in flow.engine.list()}


def test_state_workflow_and_age_choose_the_runs(flow: Flow) -> None:
    failed, done, other = small.start(-1), small.start(1), wide.start([1])
    settled(flow, failed, done, other)
    flow.clock.advance(hours=48)
    late = small.start(2)
    settled(flow, late)

    def left() -> set[str]:
        return {run.id for run in flow.engine.list()}

    assert flow.engine.purge(older_than=DAY, state="FAILED", workflow="purge.wide").runs == 0
    assert flow.engine.purge(older_than=DAY, state="FAILED").runs == 1
    assert left() == {done.id, other.id, late.id}
    assert flow.engine.purge(older_than=DAY, workflow="purge.wide").runs == 1
    assert left() == {done.id, late.id}
    assert flow.engine.purge(older_than=DAY).runs == 1
    assert left() == {late.id}
    for bad, message in {
        "RUNNING": "open runs are not removed",
        "GONE": "the filter state is 'GONE': it must be one of",
    }.items():
        with pytest.raises(InvalidFilter, match=message):
            flow.engine.purge(older_than=DAY, state=bad)
    with pytest.raises(InvalidFilter, match="an age of 0 or more: a timedelta, or seconds"):
        flow.engine.purge(older_than="30d")  # type: ignore[arg-type]


def test_a_value_that_another_run_has_stays(flow: Flow) -> None:
    first = values.start(7)
    settled(flow, first)
    flow.clock.advance(hours=48)
    second = values.start(7)
    settled(flow, second)
    done = flow.engine.purge(older_than=DAY)
    assert (done.runs, done.values) == (1, 0)
    assert rows(flow.engine)["payload"] == 1
    assert next(s for s in second.steps() if s.path.endswith(".large")).returns
    flow.clock.advance(hours=48)
    assert flow.engine.purge(older_than=DAY).values == 1


# --- forks ---


def test_a_run_is_not_purged_while_it_is_forked(
    flow: Flow, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = flow.start(values, 7)
    settled(flow, run)
    flow.clock.advance(seconds=1)
    results: list[PurgeResult] = []
    finish = Forks.finish

    def purge_before_references(self: Forks, source: str, fork: str) -> Any:
        # Between the copy of the steps and the references of the fork. SQLite has one writer, so
        # nobody can purge then.
        if flow.database.has_server:
            results.append(flow.engine.purge(older_than=timedelta()))
        return finish(self, source, fork)

    monkeypatch.setattr(Forks, "finish", purge_before_references)
    fork = run.fork(from_step="values.count")
    assert [result.runs for result in results] == [0] * flow.database.has_server
    assert flow.engine.purge(older_than=timedelta()).values == 0  # the fork has them
    with pytest.raises(UnknownRun):
        run.info()
    flow.settle()
    assert fork.result(timeout=0) == 20_000
    flow.clock.advance(seconds=1)
    assert flow.engine.purge(older_than=timedelta()).values == 1
    assert "payload" not in rows(flow.engine)


def test_a_fork_of_a_purged_run_is_refused(flow: Flow) -> None:
    run = flow.start(values, 7)
    settled(flow, run)
    fork = run.fork(from_step="values.count", key="ticket 7")
    flow.clock.advance(seconds=1)
    assert flow.engine.purge(older_than=timedelta()).runs == 1
    with pytest.raises(UnknownRun) as caught:
        run.fork(from_step="values.count")
    assert str(caught.value) == (
        f"there is no run '{run.id}' in this database, or it was purged; `flowengine list` shows "
        "the runs"
    )
    assert run.fork(from_step="values.count", key="ticket 7").id == fork.id


def test_a_purge_that_died_is_continued(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    run = values.start(5)
    settled(flow, run)
    flow.clock.advance(hours=48)
    with flow.database.write() as session:
        assert session.purge.remove_runs([run.id]) == ([run.id], 0)
    assert rows(flow.engine)["payload"] == 1
    done = flow.engine.purge(older_than=DAY)
    assert (done.runs, done.values) == (0, 1)
    assert rows(flow.engine).keys().isdisjoint({"run", "step", "task", "history", "payload"})


def test_the_setting_removes_runs_in_recovery(database_url: str) -> None:
    settings = Settings(retention="COMPLETED=1h", purge_interval=60)
    with Flow(store_url=database_url, settings=settings) as flow:
        done, failed = small.start(1), small.start(-1)
        settled(flow, done, failed)
        flow.watchdog()
        assert len(flow.engine.list()) == 2
        flow.clock.advance(hours=2)
        flow.watchdog()
        assert [run.id for run in flow.engine.list()] == [failed.id]
        again = small.start(1)
        settled(flow, again)
        flow.clock.advance(seconds=30)
        flow.watchdog()
        assert len(flow.engine.list()) == 2


def test_the_default_retention_is_told_a_day_before_it_removes_anything(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [
            r.getMessage() for r in caplog.records if getattr(r, "action", "") == "retention_told"
        ]

    with Flow(store_url=database_url) as flow:
        old, failed = small.start(1), small.start(-1)
        settled(flow, old, failed)
        flow.clock.advance(hours=40 * 24)  # an installation that never removed anything
        flow.watchdog()
        assert told() == [], "a short process looks at nothing"
        for _ in range(3):
            flow.clock.advance(hours=7)
            flow.watchdog()
        assert told() == [
            "ended runs are removed with their keys, from tomorrow on: COMPLETED=30d,"
            "CANCELLED=30d,FAILED=90d. To keep them for ever set FLOWENGINE_RETENTION=never, or "
            "other ages"
        ]
        assert len(flow.engine.list()) == 2
        flow.clock.advance(hours=11)
        flow.watchdog()
        assert [run.id for run in flow.engine.list()] == [failed.id]
        assert len(told()) == 1
        flow.clock.advance(hours=50 * 24)
        flow.watchdog()
        assert flow.engine.list() == []


def test_never_keeps_runs_for_ever(database_url: str) -> None:
    settings = Settings.from_environment({"FLOWENGINE_RETENTION": "never"})
    with Flow(store_url=database_url, settings=settings) as flow:
        run = small.start(1)
        settled(flow, run)
        for _ in range(3):
            flow.clock.advance(hours=400 * 24)
            flow.watchdog()
        assert [each.id for each in flow.engine.list()] == [run.id]


@pytest.mark.parametrize(
    "text", ["COMPLETED", "COMPLETED=30", "RUNNING=3d", "COMPLETED=1d,COMPLETED=2d", "FAILED=x"]
)
def test_a_wrong_retention_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="ages by state, as COMPLETED=30d,FAILED=90d"):
        Settings.from_environment({"FLOWENGINE_RETENTION": text})


def test_a_purge_of_many_rows_leaves_the_database_to_runs_most_of_the_time(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(purger, "_ROWS", 20)
    monkeypatch.setattr(purger.time, "sleep", pauses.append)
    flow.run(wide, ns=list(range(30)))
    flow.clock.now += 1
    assert flow.engine.purge(older_than=0).runs == 1
    assert pauses
    assert min(pauses) > 0
    assert purger._pause(0.1, 0.2) == pytest.approx(0.4)
    assert purger._pause(0.1, 1) == 0
    assert purger._pause(60, 0.2) == 10, "and never for minutes"


@pytest.mark.parametrize("load", ["0", "1.5", "-1"])
def test_a_load_that_is_no_part_of_the_time_is_refused(load: str) -> None:
    with pytest.raises(InvalidSetting, match="greater than 0"):
        Settings.from_environment({"FLOWENGINE_PURGE_LOAD": load})


def test_ages_have_units() -> None:
    assert retention.rules_of("completed = 1.5h, FAILED=2w") == {
        "COMPLETED": 5_400_000,
        "FAILED": 14 * 86_400_000,
    }
    assert set(retention.STATES) >= RunState.FINAL


def test_runs_go_on_while_others_are_purged(database_url: str) -> None:
    """Writers of the same large values, and a purge of all ended runs, at the same time."""
    with opened(database_url) as engine:
        stop = threading.Event()
        problems: list[BaseException] = []

        def working() -> None:
            worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
            try:
                for n in range(40):
                    runs = engine.start_many(
                        values.program(), values.name, [{"n": n % 3}, {"n": n % 3}]
                    )
                    while worker.drain("default"):
                        pass
                    for run in runs:
                        with suppress(UnknownRun):  # it was purged meanwhile
                            assert run.info().state == "COMPLETED"
            except BaseException as problem:
                problems.append(problem)
            finally:
                stop.set()

        thread = threading.Thread(target=working)
        thread.start()
        removed = 0
        while not stop.is_set():
            removed += engine.purge(older_than=0).runs
        thread.join()
        removed += engine.purge(older_than=0).runs
        engine.purge(older_than=0)
        assert problems == []
        assert removed >= 79
        assert rows(engine).get("payload", 0) == 0


@pytest.mark.parametrize("steps", [1_000, pytest.param(300_000, marks=pytest.mark.chaos)])
def test_many_steps_are_purged_while_runs_go_on(postgres: PostgresServer, steps: int) -> None:
    url = postgres.new_database()
    found = purge.measure(url, steps, 0.5)
    postgres.drop_database(url)
    print(found)
    assert found["removed"].runs == steps // 1_000
    assert found["removed"].steps >= steps - 1_000
    assert (found["orphans"], found["violated"]) == (0, [])
    assert found["small runs beside"] > 0


_SIZE = """
SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables
WHERE relname LIKE 'flowengine%'"""


@pytest.mark.parametrize("cycles", [6, pytest.param(20, marks=pytest.mark.chaos)])
def test_tables_do_not_grow_over_cycles_of_runs_and_purges(
    postgres: PostgresServer, cycles: int
) -> None:
    url = postgres.new_database()
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    sizes: list[int] = []
    with opened(url) as engine:
        worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        for _ in range(cycles):
            engine.start_many(wide.program(), wide.name, [{"ns": list(range(50))}] * 4)
            while worker.drain("default"):
                for run in engine.list(state="RUNNING"):
                    engine.advance(run.id)
            engine.purge(older_than=0)
            with psycopg.connect(plain, autocommit=True) as connection:
                connection.execute("VACUUM")  # as autovacuum does
                sizes.append(connection.execute(_SIZE).fetchone()[0])  # type: ignore[index]
    postgres.drop_database(url)
    print(sizes)
    assert sizes[-1] <= sizes[1] * 1.1


def test_lines_are_removed_by_their_age_in_batches_and_their_runs_stay(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purger, "_CHUNKS", 4)
    with Flow(store_url=database_url, settings=Settings(log_retention="7d")) as flow:
        old = [told.start(n) for n in range(10)]
        settled(flow, *old)
        flow.clock.advance(hours=24 * 6)
        young = told.start(11)
        settled(flow, young)
        flow.engine.purger.remove_expired(10.0, now=True)
        assert rows(flow.engine)["log"] == 11
        flow.clock.advance(hours=25)
        assert flow.engine.purger.remove_expired(10.0, now=True).rows >= 10
        assert [line.text for line in young.logs()] == ["working on 11"]
        assert list(old[0].logs()) == []
        assert old[0].info().is_final
    with Flow(store_url=database_url, settings=Settings(log_retention="")) as flow:
        flow.clock.advance(hours=24 * 1000)
        flow.engine.purger.remove_expired(10.0, now=True)
        assert rows(flow.engine)["log"] == 1

"""The cost of a step: statements, commits and messages, counted for each kind of work.

`docs/performance.md` shows these numbers, and why they are what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from sqlalchemy import create_engine, event, text

from flowengine import event_facet, foreach, wait_for, workflow
from flowengine.agents import agents_of
from flowengine.authoring import Workflow, event_facet_names
from flowengine.dispatch import Group
from flowengine.dispatch.notifier import MOST, batches
from flowengine.engine import Engine, Run
from flowengine.engine.watchdog import LEASE, Watchdog
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.postgres import database as postgres_database
from flowengine.worker import TaskWorker
from flowengine.worker.heartbeat import server_of, worker_heartbeat
from tests.integration.engines import opened, replace_notifier, watched
from tests.servers import PostgresServer


@event_facet
def inc(n: int) -> int:
    return n + 1


@event_facet
def total(ns: list[int]) -> int:
    return sum(ns)


@workflow
def chain(n: int) -> int:
    for _ in range(100):
        n = inc(n)
    return n


@workflow
def fan(ns: list[int]) -> int:
    return total(foreach(ns, lambda n: inc(n)))


@workflow
def two_each(ns: list[int]) -> int:
    return total(foreach(ns, lambda n: inc(inc(n))))


@workflow
def small(n: int) -> int:
    n = inc(inc(inc(n)))
    return total([inc(n), inc(n), inc(n), inc(n)])


@workflow
def asking() -> str:
    return wait_for("answer", str)


@dataclass
class WorkingSet:
    """A worker whose every statement and message is counted."""

    engine: Engine
    task_worker: TaskWorker
    statements: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    runs: list[Run[Any]] = field(default_factory=list)

    def notify(self, due: Mapping[str, int]) -> None:
        self.messages += len(due)

    def evaluate(self, run_id: str) -> bool:
        return False

    def flush(self) -> None:
        return None

    def dispatch_groups(self, run_id: str, groups: Iterable[Group]) -> None:
        """As with a backend that counts chords: a header per batch, and a callback."""
        for group in groups:
            headers = batches(group.task_ids)
            self.messages += len(headers) + 1
            for batch in headers:
                self.task_worker.work(group.task_list, batch)
            self.task_worker.advance(run_id)

    def run(self, a_workflow: Workflow[..., Any], *inputs: list[Any]) -> None:
        """Start runs together and work until nothing is due."""
        given = [a_workflow.inputs(*each) for each in inputs]
        runs = self.engine.start_many(a_workflow.program(), a_workflow.name, given)
        while self.task_worker.drain("default"):
            pass
        self.runs = runs

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        self.statements.clear()
        self.messages = 0
        noted = self.statements

        def note(sql: str, _given: Any = None) -> None:
            kind = sql.split("(", 1)[0].split()[:2]
            noted[" ".join(kind)] += 1

        def listen(_c: Any, _cursor: Any, sql: str, *_: Any) -> None:
            note(sql)

        event.listen(self.engine.database.engine, "before_cursor_execute", listen)
        with watched(self.engine, note):
            yield noted
        event.remove(self.engine.database.engine, "before_cursor_execute", listen)
        assert {run.info().state for run in self.runs} == {"COMPLETED"}


@contextmanager
def working(url: str, tmp_path: Path) -> Iterator[WorkingSet]:
    # Slices and intervals without end: how long a machine takes must not change the counts.
    settings = Settings(
        heartbeat_interval=3_600,
        worker_time_slice=60,
        chord_time_slice=60,
        quick_seconds=60,
        batch_max_wait=3_600,
        spool_directory=str(tmp_path),
    )
    with (
        patch.object(postgres_database, "_CLOCK_TRUST", 3_600.0),
        opened(url, settings=settings) as engine,
    ):
        task_worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        work = WorkingSet(engine, task_worker)
        replace_notifier(engine, work)
        for _ in range(3):
            work.run(small, [1])  # it learns that the facets are quick
            work.run(fan, [list(range(60))])
        yield work


@pytest.fixture
def work(postgres: PostgresServer, tmp_path: Path) -> Iterator[WorkingSet]:
    url = postgres.new_database()
    with working(url, tmp_path) as work:
        yield work
    postgres.drop_database(url)


def test_a_step_of_a_chain_is_one_statement_and_no_message(work: WorkingSet) -> None:
    with work.counted() as statements:
        work.run(chain, [1])
    # The start, the claim of the first, what was known of the run, a step each, a last look.
    assert statements["WITH runs_"] == 100
    assert sum(statements.values()) <= 100 + 10, statements
    assert work.messages == 1


def test_a_wide_fan_out_costs_a_few_statements_per_hundred_steps(work: WorkingSet) -> None:
    with work.counted() as statements:
        work.run(fan, [list(range(1_000))])
    # Expanded and consumed some hundreds at a time; claimed and reported by batches.
    print(f"{sum(statements.values())} statements, {work.messages} messages")
    assert sum(statements.values()) <= 0.08 * 1_000, statements
    assert work.messages <= 1_000 / MOST + 1 + 5


def test_a_header_whose_tasks_are_gone_asks_for_them_once(work: WorkingSet) -> None:
    """Others have drained the list meanwhile; and it does not know yet that the facet is quick."""
    gone = [f"{number:032}" for number in range(50)]
    with work.counted() as statements:
        fresh = TaskWorker(work.engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        assert fresh.work("default", gone) == 0
    assert sum(statements.values()) == 1, statements


def test_items_of_two_steps_cost_no_more_per_step(work: WorkingSet) -> None:
    with work.counted() as statements:
        work.run(two_each, [list(range(500))])
    print(f"{sum(statements.values())} statements, {work.messages} messages")
    assert sum(statements.values()) <= 0.08 * 1_000, statements


def test_small_runs_share_their_statements(work: WorkingSet) -> None:
    with work.counted() as statements:
        work.run(small, *[[n] for n in range(50)])
    # Five stages, each for all runs at once; the start; the claim and what it needs.
    assert sum(statements.values()) <= 14, statements
    assert work.messages == 1


def next_tick(work: WorkingSet, watchdog: Watchdog) -> bool:
    """Run the pass of the next interval now."""
    with work.engine.database.write() as session:
        session.locks.expire(LEASE)
    work.statements.clear()
    return watchdog.tick()


def test_an_idle_interval_of_a_fleet_is_one_transaction_and_four_single_statements(
    work: WorkingSet, tmp_path: Path
) -> None:
    """One pass of recovery, which the beat's tick starts, and the heartbeat thread of a worker."""
    agents_of(work.engine)
    settings = replace(work.engine.settings, lock_heartbeat_interval=0)
    server = server_of("server", "c" * 32, "w1@vm")
    heartbeat = worker_heartbeat(lambda: work.engine, settings, server, lambda: ["default"])
    watchdog = Watchdog(work.engine)
    heartbeat.run_once()  # it registers, publishes, and finds that no beat ticks
    assert next_tick(work, watchdog)
    heartbeat.run_once()
    with work.counted() as statements:
        assert next_tick(work, watchdog)
        heartbeat.run_once()
    # The lease of the pass and who lives; work of runs, of agents; tasks that it holds; its turn.
    assert statements["BEGIN"] == 1, statements
    assert sum(statements.values()) <= 12, statements  # two of them are counted twice
    assert statements["SELECT EXISTS"] == 2


def test_an_idle_pass_costs_as_much_beside_runs_that_wait(work: WorkingSet) -> None:
    watchdog = Watchdog(work.engine)
    waiting = [work.engine.start(asking.program(), asking.name, {}) for _ in range(20)]
    while work.task_worker.drain("default"):
        pass
    assert next_tick(work, watchdog)
    with work.counted() as statements:
        assert next_tick(work, watchdog)
    assert {run.info().state for run in waiting} == {"RUNNING"}
    assert statements["BEGIN"] == 1, statements


ROWS_READ = """
SELECT sum(t.seq_tup_read) + (SELECT sum(i.idx_tup_read) FROM pg_stat_user_indexes i)
FROM pg_stat_user_tables t"""


def rows_read(
    postgres: PostgresServer, tmp_path: Path, work_with: Callable[[WorkingSet], None]
) -> float:
    """Rows that PostgreSQL looks at in a new database."""
    url = postgres.new_database()
    # Its statements are planned while the tables are tiny, and the plans are kept.
    with working(url, tmp_path) as work:
        work_with(work)
    engine = create_engine(url)
    with engine.connect() as connection:  # a backend reports its reads when it ends
        read = connection.execute(text(ROWS_READ)).scalar_one()
    engine.dispose()
    postgres.drop_database(url)
    return float(read)


def test_no_statement_walks_all_the_rows_there_are(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    few, many = (
        rows_read(postgres, tmp_path, lambda work, n=width: work.run(fan, [list(range(n))])) / width
        for width in (400, 1600)
    )
    assert many <= few * 1.1, (few, many)


def test_no_statement_walks_all_the_runs_there_are(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    def portions(work: WorkingSet, times: int) -> None:
        for _ in range(times):
            work.run(small, *[[n] for n in range(50)])

    few, many = (
        rows_read(postgres, tmp_path, lambda work, n=times: portions(work, n)) / times
        for times in (2, 6)
    )
    assert many <= few * 1.1, (few, many)

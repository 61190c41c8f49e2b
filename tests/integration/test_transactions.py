"""The same call has the same transaction semantics on both databases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import event

from flowengine.engine import Engine
from flowengine.engine.watchdog import Watchdog
from flowengine.evaluator import TaskState
from flowengine.evaluator.triggers import Lost
from flowengine.program.nodes import EventOptions
from flowengine.store.claims import WorkerIdentity
from tests.integration.engines import claim, dump, one, opened, watched

pytestmark = pytest.mark.each_database

BANK = one(EventOptions(breaker="bank"))


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with opened(database_url) as engine:
        yield engine


class Interrupted(Exception):
    """The process is stopped here."""


@contextmanager
def interrupted_before(engine: Engine, beginning: str) -> Iterator[None]:
    """Interrupt the process before a statement that begins so."""

    def check(text: str, *_: Any) -> None:
        if text.lstrip().startswith(beginning):
            raise Interrupted

    def listen(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        check(text)

    database: Any = engine.database
    event.listen(database.engine, "before_cursor_execute", listen)
    with watched(engine, check), pytest.raises(Interrupted):
        yield
    event.remove(database.engine, "before_cursor_execute", listen)


def test_a_park_that_is_interrupted_between_its_statements_changes_nothing(engine: Engine) -> None:
    for _ in range(2):
        engine.start(BANK, "Flow", {})
    held = claim(engine)
    before = dump(engine)
    with interrupted_before(engine, "WITH waiting"):
        engine.park([held], "bank", 60)
    assert dump(engine) == before
    assert engine.park([held], "bank", 60) == 2
    assert {task.state for run in engine.list() for task in engine.tasks(run.id)} == {
        TaskState.PENDING
    }


def test_operations_of_an_autocommit_session_commit_one_by_one(engine: Engine) -> None:
    for name, way in (("a", engine.database.autocommit), ("b", engine.database.write)):
        with suppress(Interrupted), way() as session:
            session.payloads.save_program(name, "{}", 1)
            raise Interrupted
    assert [row[0] for row in dump(engine)["flowengine_program"]] == ["a"]


def test_a_commit_of_an_autocommit_session_is_written_whole_or_not_at_all(engine: Engine) -> None:
    engine.start(one(), "Flow", {})
    before = dump(engine)
    parts = "WITH new_runs_" if engine.database.has_server else "INSERT INTO flowengine_task"
    with interrupted_before(engine, parts):
        engine.start(one(), "Flow", {})
    assert dump(engine) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda engine, task: engine.heartbeat(task),
        lambda engine, task: engine.advance(task.workflow_id),
        lambda engine, task: engine.held_since(WorkerIdentity(), 1),
        lambda engine, task: engine.park([task], "bank", 60),
        lambda engine, task: engine.report(task, Lost("it died")),
        lambda engine, task: Watchdog(engine).tick(),
    ],
    ids=["heartbeat", "advance", "held_since", "park", "report", "tick"],
)
def test_a_transaction_uses_one_connection_though_the_clock_must_be_read(
    on_postgres: Engine, act: Callable[[Engine, Any], object]
) -> None:
    on_postgres.start(one(), "Flow", {})
    task = claim(on_postgres)
    database: Any = on_postgres.database
    used: list[int] = []
    now = database.session

    def session(*given: Any) -> Any:
        database._clock_reading = (-math.inf, 0)  # too long ago
        used.append(database.engine.pool.checkedout())
        return now(*given)

    database.session = session
    act(on_postgres, task)
    assert max(used) == 1

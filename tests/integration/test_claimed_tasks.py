"""Whatever goes wrong, a process holds nothing that nobody works on, and loses no result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from flowengine import event_facet, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Engine, staging
from flowengine.engine.staging import CommitEffects, Decision
from flowengine.evaluator import RunState, TaskDefinition, TaskState
from flowengine.evaluator.triggers import Outcome, Report, Succeeded
from flowengine.program.nodes import EventOptions
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.tasks.heartbeat import server_of, worker_heartbeat
from flowengine.worker import TaskWorker
from flowengine.worker.spool import Spool
from tests.integration.engines import MovedClock, opened
from tests.integration.engines import one as one_event
from tests.servers import PostgresServer

ME = WorkerIdentity("s", "b" * 32, 1)
CALLS: list[int] = []
CHECKED_OUT: list[int] = []
LEAVE_AT: set[int] = set()


@event_facet(name="holdings.note")
def note(n: int) -> int:
    CALLS.append(n)
    if n in LEAVE_AT:
        raise SystemExit
    return n


@event_facet(name="holdings.leave")
def leave(n: int) -> int:
    raise SystemExit(n)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@event_facet(name="holdings.fall_silent")
def fall_silent(n: int) -> int:
    raise Unspeakable


@workflow(name="holdings.noted")
def noted(n: int) -> int:
    return note(n)


@workflow(name="holdings.left")
def left(n: int) -> int:
    return leave(n)


@workflow(name="holdings.silent")
def silent(n: int) -> int:
    return fall_silent(n)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    CALLS.clear()
    # How long a machine takes must not change what is claimed together.
    return Settings(
        quick_seconds=1, batch_max_wait=60, heartbeat_interval=10, spool_directory=str(tmp_path)
    )


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def engine(database_url: str, settings: Settings, clock: MovedClock) -> Iterator[Engine]:
    with opened(database_url, settings=settings, clock=clock) as engine:
        yield engine


@pytest.fixture
def task_worker(engine: Engine) -> TaskWorker:
    task_worker = TaskWorker(engine, ME, event_facet_names)
    task_worker._background.begin = lambda: None  # type: ignore[method-assign] # tests call its duties
    return task_worker


@pytest.fixture
def spool(settings: Settings) -> Spool:
    return Spool(settings.spool_directory)


def start(engine: Engine, a_workflow: Any, n: int) -> Any:
    return engine.start(a_workflow.program(), a_workflow.name, {"n": n})


def drain(task_worker: TaskWorker) -> None:
    while task_worker.drain("default"):
        pass


def states(engine: Engine, run: Any) -> set[str]:
    return {task.state for task in engine.tasks(run.id)}


# --- one that cannot be taken in ---


def test_a_run_that_cannot_be_decided_stops_no_other(
    engine: Engine,
    task_worker: TaskWorker,
    spool: Spool,
    clock: MovedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for n in range(3):
        start(engine, noted, n)
    drain(task_worker)  # the facet is known to be quick
    runs = [start(engine, noted, n) for n in range(6)]
    bad, put = runs[2].id, staging.stage

    def stumble(decision: Decision, *given: Any, **more: Any) -> CommitEffects:
        if decision.view.id == bad:
            raise ValueError("it cannot be decided")
        return put(decision, *given, **more)

    monkeypatch.setattr(staging, "stage", stumble)
    monkeypatch.setattr("flowengine.engine.locked_commit.stage", stumble)
    drain(task_worker)
    found = [engine.get(run.id).state for run in runs]
    assert found == [RunState.RUNNING if run.id == bad else RunState.COMPLETED for run in runs]
    assert task_worker.claimed_tasks.left_after(0) == []
    assert len(list(spool.waiting())) == 1, "its result is not lost"
    assert spool.deliver(engine) == 0, "not yet, and nothing behind it would be stopped"
    clock.now += 60_000
    task_worker.claimed_tasks.release_forgotten()
    assert states(engine, runs[2]) == {TaskState.RUNNING}, "it has run, and is not run again"
    monkeypatch.undo()
    assert spool.deliver(engine) == 1
    assert runs[2].result(timeout=0) == 2
    assert sorted(CALLS) == sorted([*range(3), *range(6)])


def test_a_run_that_cannot_go_on_keeps_no_other_from_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [engine.start(one_event(), "Flow", {}) for _ in range(2)]
    tasks = engine.claim(["t.Work"], "default", ME, most=2)
    put = staging.stage

    def with_more(decision: Decision, *given: Any, **more: Any) -> CommitEffects:
        commit = put(decision, *given, **more)
        commit.has_more = decision.view.id == runs[0].id
        return commit

    def stumble(*_given: Any, **_more: Any) -> CommitEffects:
        raise ValueError("it cannot be decided")

    monkeypatch.setattr(staging, "stage", with_more)
    monkeypatch.setattr("flowengine.engine.locked_commit.consume_inbox", stumble)
    accepted, _ = engine.report_many([Report(task, Succeeded({"y": 1})) for task in tasks])
    assert accepted == {task.uuid for task in tasks}


# --- over the disk ---


@pytest.fixture
def away(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The database cannot be reached by those who report."""

    def fail(*_given: Any, **_more: Any) -> Any:
        raise OperationalError("", {}, Exception("the server is away"))

    monkeypatch.setattr(engine, "report_many", fail)
    return monkeypatch


def worked(task_worker: TaskWorker, task: TaskDefinition, outcome: Outcome) -> None:
    task_worker.claimed_tasks.hold([task])
    assert not task_worker.claimed_tasks.report(
        [Report(task, outcome)], in_chord=False, continuation=None
    )


@pytest.mark.parametrize(
    ("result", "state", "told"),
    [
        ({"result": 42}, RunState.COMPLETED, {"y": 42}),
        ({"y": {1: 2}}, RunState.FAILED, "NotJson"),
        ({"y": object()}, RunState.FAILED, "NotJson"),
        ({"y": "x" * 2_000_000}, RunState.FAILED, "TooLarge"),
    ],
)
def test_a_result_is_recorded_as_if_it_had_not_gone_over_the_disk(
    result: dict[str, Any],
    state: str,
    told: Any,
    engine: Engine,
    task_worker: TaskWorker,
    spool: Spool,
    away: pytest.MonkeyPatch,
) -> None:
    run = engine.start(one_event(), "Flow", {})
    (task,) = engine.claim(["t.Work"], "default", ME, most=1)
    worked(task_worker, task, Succeeded(result))
    away.undo()
    assert spool.deliver(engine) == 1
    info = engine.get(run.id)
    assert info.state == state
    assert told in (info.outputs, (info.error or {}).get("type"))


def test_what_waits_on_disk_is_not_taken_for_forgotten(
    engine: Engine,
    task_worker: TaskWorker,
    spool: Spool,
    clock: MovedClock,
    away: pytest.MonkeyPatch,
) -> None:
    run = start(engine, noted, 7)
    drain(task_worker)
    assert len(list(spool.waiting())) == 1
    away.undo()
    clock.now += 60_000
    task_worker.claimed_tasks.release_forgotten()
    assert spool.deliver(engine) == 1
    assert run.result(timeout=0) == 7
    assert CALLS == [7], "it ran once"


def test_a_claim_whose_answer_was_lost_is_handed_back_also_if_it_must_not_run_twice(
    engine: Engine, task_worker: TaskWorker, clock: MovedClock
) -> None:
    run = engine.start(one_event(EventOptions(on_loss="fail")), "Flow", {})
    (task,) = engine.claim(["t.Work"], "default", ME, most=1)
    assert task.runs_once
    clock.now += 60_000
    task_worker.claimed_tasks.release_forgotten()
    assert states(engine, run) == {TaskState.PENDING}, "nobody has begun with it"
    assert task_worker.claimed_tasks.hold([task]) == [], "the answer comes after all, too late"


def test_a_process_looks_for_what_it_forgot_before_its_first_claim(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to that claim may be the one that is lost."""
    task_worker = TaskWorker(engine, ME, event_facet_names)

    def lose(*_given: Any, **_more: Any) -> Any:
        raise OperationalError("", {}, Exception("the server is away"))

    monkeypatch.setattr(engine, "claim_batch", lose)
    with pytest.raises(OperationalError):
        task_worker.drain("default")
    assert task_worker._background._thread is not None
    task_worker._background.end()


def test_a_task_that_is_claimed_again_while_it_is_handed_back_is_still_held(
    engine: Engine, task_worker: TaskWorker, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread hands it back; before it has let go of it another claims it."""
    run = engine.start(one_event(EventOptions(on_loss="fail")), "Flow", {})
    (first,) = engine.claim(["t.Work"], "default", ME, most=1)
    task_worker.claimed_tasks.hold([first])
    release = engine.release_many

    def release_and_claim(tasks: Any) -> None:
        release(tasks)
        assert task_worker.claimed_tasks.hold(engine.claim(["t.Work"], "default", ME, most=1))

    monkeypatch.setattr(engine, "release_many", release_and_claim)
    task_worker.claimed_tasks.release_by_lease([first])
    clock.now += 60_000
    task_worker.claimed_tasks.release_forgotten()
    assert states(engine, run) == {TaskState.RUNNING}
    assert [task.lease for task in task_worker.claimed_tasks.left_after(0)] == [first.lease + 2]


@pytest.mark.parametrize("way", ["run_once", "stop"])
def test_a_worker_delivers_spooled_reports_before_it_recovers_or_releases_tries(
    way: str, engine: Engine, task_worker: TaskWorker, settings: Settings, away: pytest.MonkeyPatch
) -> None:
    """Its pool child is dead: without the report the try would be lost, and the step fail."""
    run = engine.start(one_event(EventOptions(on_loss="fail")), "Flow", {})
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    child = WorkerIdentity(ME.server_id, ME.boot_id, int(dead.stdout))
    (task,) = engine.claim(["t.Work"], "default", child, most=1)
    worked(task_worker, task, Succeeded({"y": 1}))
    away.undo()
    server = server_of(ME.server_id, ME.boot_id, "test")
    heartbeat = worker_heartbeat(lambda: engine, settings, server, event_facet_names, list)
    getattr(heartbeat, way)()
    assert run.result(timeout=0) == {"y": 1}


def test_without_its_report_on_disk_nobody_says_that_a_try_never_began(
    engine: Engine,
    task_worker: TaskWorker,
    spool: Spool,
    clock: MovedClock,
    away: pytest.MonkeyPatch,
) -> None:
    run = engine.start(one_event(EventOptions(on_loss="fail")), "Flow", {})
    (task,) = engine.claim(["t.Work"], "default", ME, most=1)
    worked(task_worker, task, Succeeded({"y": 1}))
    away.undo()
    for path in spool.waiting():
        path.unlink()
    clock.now += 60_000
    task_worker.claimed_tasks.release_forgotten()
    assert engine.get(run.id).state == RunState.FAILED
    assert [task.state for task in engine.tasks(run.id)] == [TaskState.FAILED]


@pytest.mark.parametrize("text", ["null", "[]", "{", '{"outcome": 3}'])
def test_a_file_that_is_no_report_stops_none_behind_it(
    text: str, engine: Engine, task_worker: TaskWorker, spool: Spool, away: pytest.MonkeyPatch
) -> None:
    run = start(engine, noted, 7)
    drain(task_worker)
    away.undo()
    (path,) = spool.waiting()
    (path.parent / "0.json").write_text(text)
    assert spool.deliver(engine) == 1
    assert run.result(timeout=0) == 7
    assert [found.name for found in path.parent.glob("*.undeliverable")] == ["0.undeliverable"]


def test_a_report_for_another_database_is_set_aside(
    task_worker: TaskWorker, engine: Engine, spool: Spool, away: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start(engine, noted, 7)
    drain(task_worker)
    away.undo()
    with opened(f"sqlite:///{tmp_path}/another.db") as another:
        assert spool.deliver(another) == 0
    assert list(spool.waiting()) == []
    assert len(list(tmp_path.glob("*.undeliverable"))) == 1


# --- what ends a thread ---


def test_a_facet_that_leaves_the_process_is_a_loss_and_leaves_nothing_in_the_hand(
    engine: Engine, task_worker: TaskWorker
) -> None:
    first = start(engine, left, 3)
    with pytest.raises(SystemExit):
        task_worker.drain("default")
    assert task_worker.claimed_tasks.left_after(0) == []
    lost, again = engine.tasks(first.id)
    assert (lost.state, again.state, again.losses) == (TaskState.FAILED, TaskState.PENDING, 1)


def test_what_lies_behind_such_a_task_is_handed_back(
    engine: Engine, task_worker: TaskWorker
) -> None:
    for n in range(3):
        start(engine, noted, n)
    drain(task_worker)
    runs = [start(engine, noted, n) for n in range(5)]

    LEAVE_AT.add(1)
    with pytest.raises(SystemExit):
        task_worker.drain("default")
    LEAVE_AT.clear()
    assert task_worker.claimed_tasks.left_after(0) == []
    assert runs[0].result(timeout=0) == 0, "what was done is reported"
    drain(task_worker)
    assert [run.result(timeout=0) for run in runs] == list(range(5))


def test_an_error_without_a_text_fails_its_step(engine: Engine, task_worker: TaskWorker) -> None:
    run = start(engine, silent, 1)
    drain(task_worker)
    error = engine.get(run.id).error
    assert error is not None
    assert (error["type"], "text could not be made" in error["message"]) == ("Unspeakable", True)


# --- connections ---


@event_facet(name="holdings.look")
def look(n: int) -> int:
    CHECKED_OUT.append(POOLS[0].checkedout())
    return n


POOLS: list[Any] = []


@workflow(name="holdings.looked")
def looked(n: int) -> int:
    return look(note(n))


def test_postgres_a_facet_that_is_not_known_to_be_quick_keeps_no_connection(
    postgres: PostgresServer, settings: Settings
) -> None:
    url = postgres.new_database()
    with opened(url, settings=settings) as engine:
        POOLS[:], CHECKED_OUT[:] = [engine.database.engine.pool], []
        task_worker = TaskWorker(engine, ME, event_facet_names)
        task_worker._background.begin = lambda: None  # type: ignore[method-assign]
        run = start(engine, looked, 1)
        drain(task_worker)
        assert run.result(timeout=0) == 1
        assert CHECKED_OUT == [0]
    postgres.drop_database(url)

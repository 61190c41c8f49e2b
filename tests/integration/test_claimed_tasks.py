"""After any failure no task stays claimed without a worker, and no result is lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from flowengine import Retry, event_facet, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Engine, staging
from flowengine.engine.staging import CommitEffects, Decision
from flowengine.evaluator import RunState, TaskDefinition, TaskState
from flowengine.evaluator.triggers import Outcome, Report, Succeeded
from flowengine.payload_codecs import AesGcmCodec
from flowengine.program.nodes import EventOptions
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.codec import use_payload_codec
from flowengine.worker import TaskWorker
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimState
from flowengine.worker.heartbeat import server_of, worker_heartbeat
from flowengine.worker.spool import Spool
from tests.integration.engines import MovedClock, opened
from tests.integration.engines import one as one_event
from tests.servers import PostgresServer

ME = WorkerIdentity("s", "b" * 32, 1)
CALLS: list[int] = []
CHECKED_OUT: list[int] = []
LEAVE_AT: set[int] = set()


@event_facet(name="claims.note")
def note(n: int) -> int:
    CALLS.append(n)
    if n in LEAVE_AT:
        raise SystemExit
    return n


@event_facet(name="claims.leave")
def leave(n: int) -> int:
    raise SystemExit(n)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@event_facet(name="claims.fall_silent")
def fall_silent(n: int) -> int:
    raise Unspeakable


class Stopped(BaseException):
    """As trio's `Cancelled` and gevent's `Timeout` are."""


@event_facet(name="claims.cancel", retry=Retry(attempts=2, first_wait=0))
async def cancel(n: int) -> int:
    match n:
        case 0:
            raise asyncio.CancelledError
        case 1:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(0)
        case 2:
            raise BaseExceptionGroup("both", [Stopped(), ValueError()])
    raise Stopped


@workflow(name="claims.cancelled")
def cancelled(n: int) -> int:
    return cancel(n)


@workflow(name="claims.noted")
def noted(n: int) -> int:
    return note(n)


@workflow(name="claims.left")
def left(n: int) -> int:
    return leave(n)


@workflow(name="claims.silent")
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


def active(task_worker: TaskWorker) -> list[ClaimedTask]:
    return task_worker.claimed_tasks.in_states(*ClaimState.ACTIVE)


def states(engine: Engine, run: Any) -> set[str]:
    return {task.state for task in engine.tasks(run.id)}


# --- reports that cannot be evaluated ---


def test_a_run_that_cannot_be_evaluated_does_not_block_the_others_of_its_batch(
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
    drain(task_worker)
    found = [engine.get(run.id).state for run in runs]
    assert found == [RunState.RUNNING if run.id == bad else RunState.COMPLETED for run in runs]
    assert not active(task_worker)
    assert len(list(spool.waiting())) == 1, "its result is not lost"
    assert spool.deliver(engine) == 0, "not yet, and nothing behind it would be stopped"
    clock.now += 60_000
    task_worker.client.reconcile()
    assert states(engine, runs[2]) == {TaskState.RUNNING}, "it has run, and is not run again"
    monkeypatch.undo()
    assert spool.deliver(engine) == 1
    assert runs[2].result(timeout=0) == 2
    assert sorted(CALLS) == sorted([*range(3), *range(6)])


def test_a_run_that_cannot_be_advanced_does_not_block_the_others_of_its_report(
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


# --- the spool ---


@pytest.fixture
def away(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Reports cannot reach the database."""

    def fail(*_given: Any, **_more: Any) -> Any:
        raise OperationalError("", {}, Exception("the server is unreachable"))

    monkeypatch.setattr(engine, "report_many", fail)
    return monkeypatch


def worked(task_worker: TaskWorker, task: TaskDefinition, outcome: Outcome) -> None:
    (entry,) = task_worker.claimed_tasks.claim([task])
    task_worker.claimed_tasks.start(entry)
    task_worker.claimed_tasks.finish(entry, outcome)
    assert not task_worker.client.report([entry])


@pytest.mark.parametrize(
    ("result", "state", "expected"),
    [
        ({"result": 42}, RunState.COMPLETED, {"y": 42}),
        ({"y": {1: 2}}, RunState.FAILED, "NotJson"),
        ({"y": object()}, RunState.FAILED, "NotJson"),
        ({"y": "x" * 2_000_000}, RunState.FAILED, "TooLarge"),
    ],
)
def test_a_spooled_result_is_recorded_like_a_reported_one(
    result: dict[str, Any],
    state: str,
    expected: Any,
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
    assert expected in (info.outputs, (info.error or {}).get("type"))


def test_a_task_with_a_spooled_report_is_not_released(
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
    task_worker.client.reconcile()
    assert spool.deliver(engine) == 1
    assert run.result(timeout=0) == 7
    assert CALLS == [7], "it ran once"


def test_a_task_whose_claim_response_was_lost_is_released_even_with_on_loss_fail(
    engine: Engine, task_worker: TaskWorker, clock: MovedClock
) -> None:
    run = engine.start(one_event(EventOptions(on_loss="fail")), "Flow", {})
    (task,) = engine.claim(["t.Work"], "default", ME, most=1)
    assert task.runs_once
    clock.now += 60_000
    task_worker.client.reconcile()
    assert states(engine, run) == {TaskState.PENDING}, "nobody has begun with it"
    assert task_worker.claimed_tasks.claim([task]) == [], "the answer comes after all, too late"


def test_background_jobs_begin_before_the_first_claim(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response to that claim may be lost."""
    task_worker = TaskWorker(engine, ME, event_facet_names)

    def lose(*_given: Any, **_more: Any) -> Any:
        raise OperationalError("", {}, Exception("the server is unreachable"))

    monkeypatch.setattr(engine, "claim_batch", lose)
    with pytest.raises(OperationalError):
        task_worker.drain("default")
    assert task_worker._background._thread is not None
    task_worker._background.end()


def test_a_task_that_is_claimed_again_while_it_is_released_stays_claimed(
    engine: Engine, task_worker: TaskWorker, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread releases it; another claims it before the first has closed its entry."""
    run = engine.start(one_event(EventOptions(on_loss="fail")), "Flow", {})
    (first,) = engine.claim(["t.Work"], "default", ME, most=1)
    entries = task_worker.claimed_tasks.claim([first])
    release = engine.release_held

    def release_and_claim(held: Any) -> None:
        release(held)
        assert task_worker.claimed_tasks.claim(engine.claim(["t.Work"], "default", ME, most=1))

    monkeypatch.setattr(engine, "release_held", release_and_claim)
    task_worker.client.release(entries)
    clock.now += 60_000
    task_worker.client.reconcile()
    assert states(engine, run) == {TaskState.RUNNING}
    assert [entry.key[1] for entry in active(task_worker)] == [first.lease + 2]


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
    heartbeat = worker_heartbeat(lambda: engine, settings, server, list)
    getattr(heartbeat, way)()
    assert run.result(timeout=0) == {"y": 1}


def test_a_finished_try_whose_spooled_report_is_gone_counts_as_lost(
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
    task_worker.client.reconcile()
    assert engine.get(run.id).state == RunState.FAILED
    assert [task.state for task in engine.tasks(run.id)] == [TaskState.FAILED]


_RECORD = {
    "run_id": "r",
    "task_id": "t",
    "lease": 1,
    "path": "p",
    "name": "n",
    "flow_id": "f",
    "outcome": {"kind": "succeeded", "result": {"result": 1}},
}
_BROKEN: dict[str, Any] = {
    "an id of another type": {"run_id": {"a": 1}},
    "an id that no database stores": {"run_id": "a\0b"},
    "a lone surrogate": {"run_id": "\ud800"},
    "a lease as text": {"lease": "one"},
    "a huge lease": {"lease": 10**30},
    "an unknown outcome": {"outcome": {"kind": "nothing"}},
    "an outcome without a result": {"outcome": {"kind": "succeeded"}},
    "an error as text": {"outcome": {"kind": "failed", "error": "boom", "retry": True}},
    "a result as a list": {"outcome": {"kind": "succeeded", "result": [1]}},
    "a program that is none": {
        "outcome": {"kind": "call", "program": "[]", "workflow": "W", "inputs": {}, "waits": True}
    },
}


@pytest.mark.parametrize(
    "text",
    [
        *("null", "[]", "{", '{"outcome": 3}', "", "[" * 100_000, "\ufeff{}"),
        *(json.dumps({**_RECORD, **broken}) for broken in _BROKEN.values()),
    ],
    ids=[*("null", "list", "half", "few", "empty", "deep", "mark"), *_BROKEN],
)
def test_an_unreadable_spool_file_does_not_block_the_files_behind_it(
    text: str,
    engine: Engine,
    task_worker: TaskWorker,
    spool: Spool,
    away: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = start(engine, noted, 7)
    drain(task_worker)
    away.undo()
    (path,) = spool.waiting()
    (path.parent / "0.json").write_text(text)
    assert spool.deliver(engine) == 1
    assert run.result(timeout=0) == 7
    assert [found.name for found in path.parent.glob("*.undeliverable")] == ["0.undeliverable"]
    assert "it is damaged" in caplog.text or "another database" in caplog.text


def test_a_spooled_report_without_its_key_waits_for_a_process_that_has_it(
    engine: Engine,
    task_worker: TaskWorker,
    spool: Spool,
    away: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("cryptography", reason="the extra `secrets` is not installed")
    old, new = b"1" * 32, b"2" * 32
    before = use_payload_codec(AesGcmCodec({"old": old}))
    try:
        run = start(engine, noted, 7)
        drain(task_worker)
        away.undo()
        for codec in (None, AesGcmCodec({"new": new})):
            use_payload_codec(codec)
            assert spool.deliver(engine) == 0
            assert len(spool.waiting()) == 1
        assert "cannot be delivered yet" in caplog.text
        assert "set FLOWENGINE_PAYLOAD_CODEC to the codec of the other" in caplog.text
        use_payload_codec(AesGcmCodec({"new": new, "old": old}))
        assert spool.deliver(engine) == 1
        assert run.result(timeout=0) == 7
    finally:
        use_payload_codec(before)


def test_a_spool_file_that_cannot_be_read_is_logged_once_and_blocks_none(
    engine: Engine,
    task_worker: TaskWorker,
    spool: Spool,
    away: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = start(engine, noted, 7)
    drain(task_worker)
    away.undo()
    directory = spool.waiting()[0].parent
    os.mkfifo(directory / "0.json")
    (directory / "1.json").mkdir()
    assert [spool.deliver(engine) for _ in range(3)] == [1, 0, 0]
    assert run.result(timeout=0) == 7
    assert caplog.text.count("is not a regular file; remove it") == 2


def test_a_report_that_the_database_refuses_blocks_none_behind_it(
    engine: Engine, task_worker: TaskWorker, spool: Spool, away: pytest.MonkeyPatch
) -> None:
    """The driver may call it an operational error, as it calls an outage."""
    runs = [start(engine, noted, n) for n in (7, 8)]
    drain(task_worker)
    away.undo()
    refused = json.loads(spool.waiting()[0].read_text())["run_id"]
    end_try = engine.end_try

    def refuse(run_id: str, *rest: Any) -> bool:
        if run_id == refused:
            raise OperationalError("", {}, Exception("out of shared memory"))
        return end_try(run_id, *rest)

    away.setattr(engine, "end_try", refuse)
    assert spool.deliver(engine) == 1
    away.undo()
    assert spool.deliver(engine) == 1
    assert [run.result(timeout=0) for run in runs] == [7, 8]


def test_a_spooled_report_for_another_database_is_set_aside(
    task_worker: TaskWorker, engine: Engine, spool: Spool, away: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start(engine, noted, 7)
    drain(task_worker)
    away.undo()
    with opened(f"sqlite:///{tmp_path}/another.db") as another:
        assert spool.deliver(another) == 0
    assert list(spool.waiting()) == []
    assert len(list(tmp_path.glob("*.undeliverable"))) == 1


# --- exceptions that end a thread ---


def test_a_facet_that_raises_system_exit_counts_as_lost_and_leaves_no_claimed_task(
    engine: Engine, task_worker: TaskWorker
) -> None:
    first = start(engine, left, 3)
    with pytest.raises(SystemExit):
        task_worker.drain("default")
    assert not active(task_worker)
    lost, again = engine.tasks(first.id)
    assert (lost.state, again.state, again.losses) == (TaskState.FAILED, TaskState.PENDING, 1)


@pytest.mark.parametrize("n", range(4))
def test_a_cancelled_coroutine_is_a_failed_try(
    n: int, engine: Engine, task_worker: TaskWorker
) -> None:
    run = start(engine, cancelled, n)
    drain(task_worker)
    assert [task.losses for task in engine.tasks(run.id)] == [0, 0], "two tries, and no loss"
    error = engine.get(run.id).error
    assert error is not None
    kinds = ("CancelledError", "CancelledError", "BaseExceptionGroup", "Stopped")
    assert error["type"] == kinds[n]
    assert "failed 2 of 2 tries" in error["message"]


def test_unstarted_tasks_of_its_batch_are_released(engine: Engine, task_worker: TaskWorker) -> None:
    for n in range(3):
        start(engine, noted, n)
    drain(task_worker)
    runs = [start(engine, noted, n) for n in range(5)]

    LEAVE_AT.add(1)
    with pytest.raises(SystemExit):
        task_worker.drain("default")
    LEAVE_AT.clear()
    assert not active(task_worker)
    assert runs[0].result(timeout=0) == 0, "what was done is reported"
    drain(task_worker)
    assert [run.result(timeout=0) for run in runs] == list(range(5))


def test_an_exception_without_a_text_fails_its_step(
    engine: Engine, task_worker: TaskWorker
) -> None:
    run = start(engine, silent, 1)
    drain(task_worker)
    error = engine.get(run.id).error
    assert error is not None
    assert (error["type"], "text could not be made" in error["message"]) == ("Unspeakable", True)


# --- connections ---


@event_facet(name="claims.look")
def look(n: int) -> int:
    CHECKED_OUT.append(POOLS[0].checkedout())
    return n


POOLS: list[Any] = []


@workflow(name="claims.looked")
def looked(n: int) -> int:
    return look(note(n))


def test_postgres_a_facet_not_known_to_be_quick_keeps_no_connection(
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

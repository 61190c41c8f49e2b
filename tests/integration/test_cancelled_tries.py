"""Tries of cancelled steps: how running code learns that its result is not wanted."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine import current_step, event_facet, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Engine, Run
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.errors import RunCancelled, TryCancelled
from flowengine.evaluator import RunState
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from flowengine.worker import TaskWorker, lost_leases
from flowengine.worker.cancel_token import CancelToken
from flowengine.worker.heartbeat import server_of
from flowengine.worker.pool_children import PoolChildren
from tests.integration.engines import opened

SECONDS = 20
ME = WorkerIdentity("s", "a" * 32, os.getpid())


class World:
    """Values that the facets of this module share with a test."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.ended: list[object] = []


world = World()


@event_facet(name="cancelled.watch")
def watch() -> bool:
    token = current_step().cancel_token
    world.begun.set()
    world.ended.append(token.wait(SECONDS))
    token.check()
    return True


@event_facet(name="cancelled.beat")
def beat() -> bool:
    step = current_step()
    world.begun.set()
    world.ended.append(step.cancel_token.is_set())
    while step.heartbeat():
        pass
    world.ended.append(step.cancel_token.is_set())
    return True


@event_facet(name="cancelled.wait")
async def wait() -> bool:
    world.begun.set()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        world.ended.append("cancelled")
        raise
    return True


@workflow(name="cancelled.watching")
def watching() -> bool:
    return watch()


@workflow(name="cancelled.beating")
def beating() -> bool:
    return beat()


@workflow(name="cancelled.waiting")
def waiting() -> bool:
    return wait()


@pytest.fixture(autouse=True)
def new_world(monkeypatch: pytest.MonkeyPatch) -> None:
    world.__init__()  # type: ignore[misc]
    monkeypatch.setattr(lost_leases, "_CHECK_SECONDS", 0.0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(spool_directory=str(tmp_path))
    with opened(f"sqlite:///{tmp_path}/flow.db", settings=settings) as engine:
        yield engine


@pytest.fixture
def worker(engine: Engine) -> Iterator[TaskWorker]:
    worker = TaskWorker(engine, ME, event_facet_names)
    worker._background.begin = lambda: None  # type: ignore[method-assign] # tests call its jobs
    yield worker
    worker.stop(0)


def start(engine: Engine, flow: Any) -> Run[Any]:
    return engine.start(flow.program(), flow.name, {})


def begin(worker: TaskWorker) -> threading.Thread:
    """Serve one wake-up in a thread, until a facet has begun."""
    thread = threading.Thread(target=worker.drain, args=("default",))
    thread.start()
    assert world.begun.wait(SECONDS)
    return thread


def test_the_cancel_token_of_a_cancelled_try_is_set(engine: Engine, worker: TaskWorker) -> None:
    run = start(engine, watching)
    thread = begin(worker)
    worker.lost_leases.check()
    assert world.ended == []
    run.cancel(reason="rain")
    worker.lost_leases.check()
    thread.join(SECONDS)
    assert world.ended == [True]
    with pytest.raises(RunCancelled, match="rain"):
        run.result(timeout=0)


def test_a_heartbeat_of_a_cancelled_try_sets_the_token(engine: Engine, worker: TaskWorker) -> None:
    run = start(engine, beating)
    thread = begin(worker)
    run.cancel()
    thread.join(SECONDS)
    assert world.ended == [False, True]
    assert run.state == RunState.CANCELLED


def test_the_coroutine_of_a_cancelled_try_is_cancelled(engine: Engine, worker: TaskWorker) -> None:
    run = start(engine, waiting)
    begin(worker).join(SECONDS)
    assert worker.async_tries.is_busy
    run.cancel()
    worker.lost_leases.check()
    worker.async_tries.finish_running(lambda: True)
    assert world.ended == ["cancelled"]


def test_a_token_that_is_asked_for_late_is_set_already() -> None:
    token = CancelToken("w.step")
    token.check()
    assert not token.is_set()
    token.set()
    assert token.wait(0)
    with pytest.raises(TryCancelled, match=r"the try of w\.step is cancelled"):
        token.check()


def test_a_pool_child_is_killed_after_the_grace_and_not_before(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, killed = [0.0], []
    kill = os.kill

    def noted(pid: int, number: int) -> None:
        if number:
            killed.append(pid)
        else:
            kill(pid, number)  # asks whether it is alive

    monkeypatch.setattr(os, "kill", noted)
    settings = Settings(spool_directory=str(tmp_path), cancel_grace=30.0)
    server = server_of("s", "b" * 32, "worker")
    server.pid = 1  # another process is its pool child: this one
    run = start(engine, watching)
    identity = WorkerIdentity("s", server.boot_id, os.getpid())
    task = engine.claim_task(["cancelled.watch"], "default", identity)
    assert task is not None
    markers = InFlightMarkers(settings.spool_directory, server.boot_id)
    mark = markers.start(task.uuid)
    children = PoolChildren(settings, server, clock=lambda: now[0])
    children.check(engine)
    run.cancel()
    for seconds, expected in ((0.0, []), (29.0, []), (30.0, [os.getpid()])):
        now[0] = seconds
        children.check(engine)
        assert killed == expected
    markers.finish(mark)
    now[0] = 100.0
    children.check(engine)
    assert killed == [os.getpid()], "its try has ended"


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ("cancel", "its step was cancelled, or replaced by a retry"),
        ("die", "another try has replaced it"),
    ],
)
def test_the_refusal_of_a_late_report_says_why_the_lease_was_lost(
    caplog: pytest.LogCaptureFixture, ends: str, reason: str
) -> None:
    with Flow() as flow:
        refuse_late_report(flow, caplog, ends, reason)


def refuse_late_report(
    flow: Flow, caplog: pytest.LogCaptureFixture, ends: str, reason: str
) -> None:
    run = flow.start(watching)
    worker = flow.worker("w1")
    task = worker.claim(run, "watch")
    if ends == "cancel":
        run.cancel()
    else:
        worker.die()
        flow.watchdog()
    with caplog.at_level("WARNING", "flowengine"):
        assert not worker.report(task, {"result": True})
    (refused,) = [r for r in caplog.records if getattr(r, "action", "") == "report_refused"]
    assert refused.getMessage().endswith(f"is no longer held; {reason}")

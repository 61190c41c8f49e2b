"""Coroutines of async facets: one event loop per process, many tries on it, and their end."""

from __future__ import annotations

import asyncio
import logging
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowengine import Retry, current_step, event_facet, foreach, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Engine, Run
from flowengine.errors import RunFailed
from flowengine.evaluator import RunState, TaskState
from flowengine.event_loop import EventLoop, LoopCall, event_loop
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from flowengine.worker import TaskWorker, async_tries, lost_leases
from flowengine.worker.outage_log import OutageLog
from tests.integration.engines import opened
from tests.integration.threads import wait_until

ME = WorkerIdentity("s", "a" * 32, 1)
SECONDS = 20


class Client:
    """Keeps a connection for the next caller, as clients of HTTP and of databases do."""

    def __init__(self) -> None:
        self.port = self.connections = 0
        self._lock: asyncio.Lock | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, text: str) -> str:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self.port)
                self.connections += 1
            reader, writer = self._streams
            writer.write(f"{text}\n".encode())
            await writer.drain()
            return (await reader.readline()).decode().strip()

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


class World:
    """Values that the facets of this module share with a test."""

    def __init__(self) -> None:
        self.client = Client()
        self.together = 1  #: tries that wait for each other
        self.present = self.most = 0
        self.met = asyncio.Event()
        self.begun, self.released = threading.Event(), threading.Event()
        self.ended: list[str] = []


world = World()


@event_facet(name="tries.ask")
async def ask(n: int) -> str:
    return await world.client.ask(f"item {n}")


@event_facet(name="tries.meet")
async def meet(n: int) -> int:
    """End when as many tries as the test wants have begun."""
    world.present += 1
    world.most = max(world.most, world.present)
    if world.present == world.together:
        world.met.set()
    await world.met.wait()
    await asyncio.sleep(0)
    world.present -= 1
    return n


@event_facet(name="tries.sleep", timeout=0.1, retry=Retry(attempts=1))
async def sleep(n: int) -> int:
    try:
        await asyncio.sleep(3600)
    finally:
        world.ended.append("sleep")
    return n


@event_facet(name="tries.ignore", timeout=0.1, retry=Retry(attempts=1))
async def ignore(n: int) -> int:
    released = world.released  # of this test
    while not released.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            world.ended.append("ignored")
    return n


@event_facet(name="tries.wait")
async def wait(n: int) -> int:
    world.begun.set()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        world.ended.append("cancelled")
        raise
    return n


@event_facet(name="tries.block")
async def block(n: int) -> int:
    await asyncio.gather(_hold_the_loop())  # in a task of its own, as libraries do
    return n


async def _hold_the_loop() -> None:
    world.released.wait(SECONDS)


@event_facet(name="tries.leave", max_losses=0)
async def leave(n: int) -> int:
    raise SystemExit(n)


@event_facet(name="tries.describe")
async def describe() -> list[str]:
    step = await asyncio.to_thread(current_step)
    assert await current_step().aheartbeat()
    return [step.path, current_step().path, threading.current_thread().name]


@event_facet(name="tries.double")
def double(n: int) -> int:
    return 2 * n


@workflow(name="tries.each")
def each(numbers: list[int]) -> list[str]:
    return foreach(numbers, lambda n: ask(n))


@workflow(name="tries.meeting")
def meeting(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: meet(n))


@workflow(name="tries.mixed")
def mixed(n: int) -> int:
    return meet(double(meet(double(n))))


@workflow(name="tries.sleeping")
def sleeping(n: int) -> int:
    return sleep(n)


@workflow(name="tries.ignoring")
def ignoring(n: int) -> int:
    return ignore(n)


@workflow(name="tries.waiting")
def waiting(n: int) -> int:
    return wait(n)


@workflow(name="tries.blocking")
def blocking(n: int) -> int:
    return block(n)


@workflow(name="tries.leaving")
def leaving(n: int) -> int:
    return leave(n)


@workflow(name="tries.described")
def described() -> list[str]:
    return describe()


@pytest.fixture(autouse=True)
def new_world() -> Iterator[None]:
    world.__init__()  # type: ignore[misc]
    yield
    world.released.set()


@pytest.fixture
def limit(request: pytest.FixtureRequest) -> int:
    return getattr(request, "param", 100)


@pytest.fixture
def engine(tmp_path: Path, limit: int) -> Iterator[Engine]:
    settings = Settings(
        async_concurrency=limit, async_blocked_seconds=0.05, spool_directory=str(tmp_path)
    )
    with opened(f"sqlite:///{tmp_path}/flow.db", settings=settings) as engine:
        yield engine


@pytest.fixture
def worker(engine: Engine) -> Iterator[TaskWorker]:
    worker = TaskWorker(engine, ME, event_facet_names)
    worker._background.begin = lambda: None  # type: ignore[method-assign] # tests call its jobs
    yield worker
    worker.stop(0)


def start(engine: Engine, flow: Any, **inputs: Any) -> Run[Any]:
    return engine.start(flow.program(), flow.name, inputs)


def drain_until(worker: TaskWorker, condition: Callable[[], object]) -> None:
    """Let one thread serve wake-ups, as a pool child does."""
    ends = time.monotonic() + SECONDS
    while not condition():
        worker.drain("default")
        assert time.monotonic() < ends, "timed out"
        time.sleep(0.005)


def finish(worker: TaskWorker, run: Run[Any]) -> Any:
    drain_until(worker, lambda: run.info().is_final)
    return run.outputs(timeout=0)["result"]


@pytest.fixture
def echo() -> Iterator[None]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        world.client.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield
        event_loop().run(world.client.close())
        server.shutdown()


def test_a_client_of_a_module_serves_the_tries_of_all_runs(
    engine: Engine, worker: TaskWorker, echo: None
) -> None:
    for _ in range(2):
        run = start(engine, each, numbers=list(range(20)))
        assert finish(worker, run) == [f"item {n}" for n in range(20)]
    assert world.client.connections == 1


def test_plain_calls_and_tests_use_the_same_loop(echo: None) -> None:
    assert ask(1) == ask(1) == "item 1"
    with Flow() as flow:
        assert flow.run(each, [2, 3]) == ["item 2", "item 3"]
    assert world.client.connections == 1


@pytest.mark.parametrize("limit", [30], indirect=True)
def test_one_thread_serves_as_many_coroutines_as_the_setting_says(
    engine: Engine, worker: TaskWorker, limit: int
) -> None:
    """No try ends before all of them have begun."""
    world.together = limit
    run = start(engine, meeting, numbers=list(range(limit)))
    assert finish(worker, run) == list(range(limit))


@pytest.mark.parametrize("limit", [3], indirect=True)
def test_no_more_coroutines_run_at_once_than_the_setting_says(
    engine: Engine, worker: TaskWorker, limit: int
) -> None:
    world.together = limit
    runs = [start(engine, meeting, numbers=list(range(7))) for _ in range(2)]
    threads = [threading.Thread(target=finish, args=(worker, run)) for run in runs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.info().state for run in runs] == [RunState.COMPLETED] * 2
    assert world.most == limit


def test_sync_and_async_steps_follow_each_other(engine: Engine, worker: TaskWorker) -> None:
    run = start(engine, mixed, n=3)
    assert finish(worker, run) == 12
    assert {task.try_number for task in engine.tasks(run.id)} == {1}


def test_a_coroutine_and_its_threads_know_their_step(engine: Engine, worker: TaskWorker) -> None:
    path = "described.describe"
    run = start(engine, described)
    assert finish(worker, run) == [path, path, "flowengine-event-loop"]


def test_a_timeout_cancels_the_coroutine_and_no_other(engine: Engine, worker: TaskWorker) -> None:
    world.together = 2  # they wait until the other has timed out
    late, other = start(engine, sleeping, n=1), start(engine, meeting, numbers=[5])
    drain_until(worker, lambda: late.info().is_final)
    error = late.info().error
    assert error
    assert (error["path"], error["type"]) == ("sleeping.sleep", "Timeout")
    assert "no activity for more than its timeout of 0.1 s" in error["message"]
    assert world.ended == ["sleep"]
    assert not other.info().is_final
    event_loop().call(world.met.set)
    assert finish(worker, other) == [5]


def test_a_coroutine_that_ignores_its_timeout_is_named_and_reported(
    engine: Engine, worker: TaskWorker, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(engine, ignoring, n=1)
    with pytest.raises(RunFailed, match="Timeout"):
        finish(worker, run)
    assert world.ended == ["ignored"]
    (line,) = [r for r in caplog.records if getattr(r, "action", "") == "cancellation_ignored"]
    assert "ignoring.ignore" in line.getMessage()


def test_a_facet_that_blocks_the_loop_is_named_with_its_line(
    engine: Engine, worker: TaskWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "flowengine")
    run = start(engine, blocking, n=4)

    def blocked() -> list[str]:
        found = [r for r in caplog.records if getattr(r, "action", "") == "event_loop_blocked"]
        named = "tries.block (blocking.block) blocks the event loop"
        return [text for r in found if (text := r.getMessage()).startswith(named)]

    drain_until(worker, blocked)
    world.released.set()
    assert finish(worker, run) == 4
    assert "threading.py:" in blocked()[0]
    assert "asyncio.to_thread" in blocked()[0]


def test_a_coroutine_whose_step_was_answered_is_cancelled(
    engine: Engine,
    worker: TaskWorker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost_leases, "_CHECK_SECONDS", 0.0)
    run = start(engine, waiting, n=1)
    drain_until(worker, world.begun.is_set)
    (task,) = engine.tasks(run.id)
    worker.lost_leases.check()
    engine.continue_step(task.step_id, {"result": 8})
    assert run.result(timeout=0) == 8
    drain_until(worker, lambda: worker.lost_leases.check() or world.ended)  # type: ignore[func-returns-value]
    drain_until(worker, lambda: not worker.async_tries.is_busy)
    assert world.ended == ["cancelled"]
    assert "late report" not in caplog.text


def test_a_coroutine_that_exits_counts_as_lost_and_the_loop_goes_on(
    engine: Engine, worker: TaskWorker
) -> None:
    run = start(engine, leaving, n=1)
    with suppress(SystemExit):  # of the thread that begins it, unless it has left it already
        drain_until(worker, lambda: run.info().is_final)
    with pytest.raises(RunFailed, match="SystemExit ended"):
        finish(worker, run)
    assert finish(worker, start(engine, meeting, numbers=[1])) == [1]


def test_an_outcome_that_cannot_be_shown_is_reported(engine: Engine) -> None:
    def fail(*_: object) -> None:
        raise ConnectionResetError

    world.together = 2  # the thread that begins it leaves it
    worker = TaskWorker(engine, ME, event_facet_names, show=fail)
    worker._background.begin = lambda: None  # type: ignore[method-assign]
    run = start(engine, meeting, numbers=[3])
    drain_until(worker, lambda: worker.async_tries.is_busy)
    event_loop().call(world.met.set)
    assert finish(worker, run) == [3]
    worker.stop(0)


def test_a_pass_that_fails_is_repeated_with_the_tries_that_have_ended(
    engine: Engine,
    worker: TaskWorker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_tries, "_FAILED_SECONDS", 0.0)
    world.together = 2  # the thread that begins it leaves it
    run = start(engine, meeting, numbers=[3])
    drain_until(worker, lambda: worker.async_tries.is_busy)
    report, failures = worker.async_tries._report, [RuntimeError("a defect")]

    def fail_once(ended: Any) -> Any:
        if failures:
            raise failures.pop()
        return report(ended)

    monkeypatch.setattr(worker.async_tries, "_report", fail_once)
    event_loop().call(world.met.set)
    assert finish(worker, run) == [3]
    assert not failures
    assert "a pass failed with 1 running and 1 ended ones" in caplog.text


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (RuntimeError("a defect"), "a pass failed with 1 running and 0 ended ones"),
        (ConnectionResetError("away"), "an outage of the database begins"),
    ],
    ids=["defect", "outage"],
)
def test_a_claim_that_fails_is_repeated_without_another_wake_up(
    engine: Engine,
    worker: TaskWorker,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    line: str,
) -> None:
    monkeypatch.setattr(async_tries, "_FAILED_SECONDS", 0.0)
    monkeypatch.setattr(worker.async_tries, "_outages", OutageLog())
    world.together = 2
    first = start(engine, meeting, numbers=[1])
    drain_until(worker, lambda: worker.async_tries.is_busy)
    claim, failures = engine.claim_batch, [problem]

    def fail_once(*given: Any, **options: Any) -> Any:
        if failures and threading.current_thread().name == "flowengine-async-tries":
            raise failures.pop()
        return claim(*given, **options)

    monkeypatch.setattr(engine, "claim_batch", fail_once)
    second = start(engine, meeting, numbers=[2])
    worker.drain("default")  # it leaves the task list to the thread
    wait_until(lambda: not failures and first.info().is_final, "the two have met")
    assert finish(worker, first) == [1]
    assert finish(worker, second) == [2]
    assert line in caplog.text


def test_a_process_that_ends_cancels_its_coroutines_and_releases_their_tasks(
    engine: Engine, worker: TaskWorker
) -> None:
    run = start(engine, waiting, n=1)
    drain_until(worker, world.begun.is_set)
    worker.stop(0)
    assert world.ended == ["cancelled"]
    (task,) = engine.tasks(run.id)
    assert (task.state, task.try_number, task.losses) == (TaskState.PENDING, 1, 0)


def test_an_async_facet_that_its_own_loop_waits_for_is_an_error() -> None:
    async def wait_inside() -> object:
        return event_loop().run(asyncio.sleep(0))

    with pytest.raises(Exception, match=r"asyncio\.to_thread"):
        event_loop().run(wait_inside())


def test_a_coroutine_that_is_cancelled_before_it_begins_ends() -> None:
    loop = event_loop()
    ended: list[object] = []
    call = LoopCall(asyncio.sleep(3600), ended.append)
    loop.call(call.cancel)
    loop.call(call.start)
    assert call.wait(SECONDS)
    with pytest.raises(asyncio.CancelledError):
        call.result()
    assert ended == [call]


def test_the_loop_of_a_process_ends_with_threads_and_coroutines_that_do_not() -> None:
    loop, hangs = EventLoop(), threading.Event()
    ended: list[str] = []

    async def stay() -> None:
        try:
            await asyncio.to_thread(hangs.wait)
        finally:
            ended.append("cancelled")

    call = loop.submit(stay())
    loop.run(asyncio.sleep(0))
    loop.close()
    assert call.has_ended()
    assert ended == ["cancelled"]
    hangs.set()

"""The embedded default, with real processes that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowengine.engine import Engine
from flowengine.evaluator import StepState
from flowengine.store import Database
from tests.acceptance import shared_work
from tests.celery_nodes.fleet import PYTHONPATH
from tests.warm import WarmProcess, warm


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FLOWENGINE_DATABASE_URL": f"sqlite:///{tmp_path}/flow.db",
        "FLOWENGINE_WATCHDOG_INTERVAL": "0.05",
        "SHARED_DIRECTORY": str(tmp_path),
        "PYTHONPATH": PYTHONPATH,
    }


@contextmanager
def process(environment: dict[str, str]) -> Iterator[WarmProcess]:
    """A process that has the code of `shared_work` and works until it is stopped."""
    child = WarmProcess("-m", "tests.acceptance.shared_work", environment=environment)
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.stdin.close()
        child.stdout.close()
        child.kill()


@pytest.fixture
def engine(environment: dict[str, str]) -> Iterator[Engine]:
    """An engine without workers, to start runs and look at them."""
    database = Database(environment["FLOWENGINE_DATABASE_URL"])
    from flowengine.store import ensure_schema

    ensure_schema(database, upgrade=True)
    engine = Engine(database)
    yield engine
    engine.close()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "timed out"
        time.sleep(0.01)


def begun(directory: Path) -> list[int]:
    return [int(path.name.rpartition("-")[2]) for path in directory.glob("begun-*")]


def test_a_killed_process_does_not_lose_its_step(
    environment: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    run = engine.start(shared_work.held.program(), shared_work.held.name, {"n": 1})
    with process(environment) as first:
        until(lambda: begun(tmp_path) == [first.pid])
        first.kill()
    (tmp_path / "go").touch()
    with process(environment) as second:
        assert run.result(timeout=20) == second.pid
    (step,) = [s for s in run.steps() if s.path == "held.hold"]
    assert (step.state, step.tries, step.losses) == (StepState.COMPLETE, 1, 1)


def test_a_living_process_takes_over_from_a_killed_one(
    environment: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    run = engine.start(shared_work.held.program(), shared_work.held.name, {"n": 1})
    with process(environment) as first:
        until(lambda: begun(tmp_path) == [first.pid])
        with process(environment) as second:
            first.kill()
            until(lambda: second.pid in begun(tmp_path))
            (tmp_path / "go").touch()
            assert run.result(timeout=20) == second.pid


def test_a_step_whose_process_dies_each_time_fails_saying_so(
    environment: dict[str, str], engine: Engine, tmp_path: Path
) -> None:
    run = engine.start(shared_work.held.program(), shared_work.held.name, {"n": 1})
    for _ in range(4):  # three losses are allowed
        with process(environment) as child:
            until(lambda child=child: child.pid in begun(tmp_path))  # type: ignore[misc]
            child.kill()
    with process(environment):
        until(lambda: run.info().is_final)
    info = run.info()
    assert info.state == "FAILED"
    assert info.error is not None
    assert info.error["type"] == "WorkerLost"
    assert "died 4 times, 3 losses are allowed" in info.error["message"]


def test_two_processes_on_one_file_share_the_work(
    environment: dict[str, str], engine: Engine
) -> None:
    environment["FLOWENGINE_CONCURRENCY"] = "2"
    with process(environment) as first, process(environment) as second:
        program, name = shared_work.many.program(), shared_work.many.name
        run = engine.start(program, name, {"count": list(range(40))})
        pids = run.result(timeout=60)
        assert set(pids) == {first.pid, second.pid}
        assert len(pids) == 40


def test_a_process_that_ends_normally_releases_its_tasks_without_a_loss(
    environment: dict[str, str], engine: Engine
) -> None:
    environment["FLOWENGINE_CONCURRENCY"] = "1"
    program, name = shared_work.many.program(), shared_work.many.name
    run = engine.start(program, name, {"count": list(range(10))})
    with process(environment) as first:
        until(lambda: any(task.state == "completed" for task in engine.tasks(run.id)))
        first.stdin.close()
        assert first.wait(timeout=20) == 0
    assert not run.info().is_final
    with process(environment):
        assert len(run.result(timeout=60)) == 10
    assert {task.losses for task in engine.tasks(run.id)} == {0}


def test_a_facet_nobody_has_the_code_of_is_an_alarm_on_the_run(
    environment: dict[str, str], engine: Engine
) -> None:
    program = {
        "type": "Program",
        "declarations": [
            {"type": "EventFacetDecl", "name": "lab.Weigh", "params": [], "returns": []},
            {
                "type": "WorkflowDecl",
                "name": "lab.Day",
                "body": {
                    "type": "AndThenBlock",
                    "steps": [
                        {
                            "type": "StepStmt",
                            "name": "w",
                            "call": {"type": "CallExpr", "target": "lab.Weigh"},
                        }
                    ],
                },
            },
        ],
    }
    with process(environment):
        run = engine.start(program, "lab.Day", {})
        until(lambda: run.info().alarm)
        assert "waits for a worker of task list 'default'" in str(run.info().alarm)
        assert "'lab.Weigh'" in str(run.info().alarm)
        (task,) = engine.tasks(run.id)
        engine.continue_step(task.step_id, {"grams": 4})
        assert run.outputs(timeout=5) == {}


def test_no_other_thread_imports_where_the_process_may_fork(
    environment: dict[str, str],
) -> None:
    # A child that is forked while another thread imports waits for that import for ever.
    script = """
import sys, threading
beside = []
class Spy:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            beside.append(name)
sys.meta_path.insert(0, Spy())
from tests.acceptance.shared_work import many
many.start([1]).result(timeout=20)
assert not beside, beside
"""
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=True)


def test_a_forked_child_opens_its_own_engine_and_leaves_its_parents_alone(
    environment: dict[str, str], tmp_path: Path
) -> None:
    script = """
import os
from flowengine import default_engine
from tests.acceptance.shared_work import many
many.start([1]).result(timeout=20)
parents = default_engine()
child = os.fork()
if child == 0:
    assert default_engine() is not parents
    assert len(many.start([1]).result(timeout=20)) == 1
    raise SystemExit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
with parents.database.read() as session:
    assert os.getpid() in [server.pid for server in session.servers.alive()]
assert len(many.start([1]).result(timeout=20)) == 1
"""
    done = subprocess.run(
        warm("python", "-W", "ignore", "-c", script),
        env=environment,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.boots/*")) == []


def test_a_closed_engine_leaves_no_thread_behind(environment: dict[str, str]) -> None:
    script = """
import threading
from flowengine.assembly.embedded import Embedded
from flowengine.settings import Settings
from tests.acceptance.shared_work import many
before = set(threading.enumerate())
for _ in range(3):
    embedded = Embedded(Settings.from_environment())
    run = embedded.engine.start(many.program(), many.name, {"count": [1, 2]})
    assert len(run.result(timeout=20)) == 2
    assert len(set(threading.enumerate()) - before) >= 3
    embedded.close()
    left = set(threading.enumerate()) - before
    assert not left, left
Embedded(Settings.from_environment()).close()
left = set(threading.enumerate()) - before
assert not left, left
"""
    done = subprocess.run(
        warm("python", "-c", script), env=environment, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


USERS_APP = """
from celery import Celery
from flowengine import event_facet, workflow

app = Celery("users", broker="memory://", backend="cache+memory://")

@app.task
def add(x, y):
    return x + y

@event_facet(name="t.inc")
def inc(n: int) -> int:
    return n + 1

@workflow(name="t.once")
def once(n: int) -> int:
    return inc(n)

if __name__ == "__main__":
    assert once.start(1).result(timeout=30) == 2
    sent = add.delay(1, 2)
    import celery.exceptions
    try:
        sent.get(timeout=0.2)
    except celery.exceptions.TimeoutError:
        print("waited")
"""


def test_the_users_own_celery_results_can_be_waited_for(
    environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "users.py"
    script.write_text(USERS_APP)
    done = subprocess.run(
        warm("python", script), env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "waited\n", done.stderr


IMPATIENT = """
from flowengine import Retry, RunFailed, event_facet, workflow

@event_facet(name="t.inc")
def inc(n: int) -> int:
    return n + 1

@workflow(name="t.inner")
def inner(n: int) -> int:
    return inc(n)

@event_facet(name="t.fail_once", retry=Retry(attempts=2, first_wait=3600))
def fail_once(n: int) -> int:
    raise ConnectionError("again in an hour")

@workflow(name="t.unfinished")
def unfinished(n: int) -> int:
    return fail_once(n)

@event_facet(name="t.wait")
def wait(n: int) -> int:
    return unfinished.start(n).result()

@workflow(name="t.outer")
def outer(n: int) -> int:
    return wait(n)

if __name__ == "__main__":
    runs = [outer.start(n) for n in range(8)]  # as many as there are threads
    for run in runs:
        try:
            run.result(timeout=30)
        except RunFailed as failed:
            assert failed.error_type == "WaitInsideStep", failed
            assert "other.call(...)" in failed.message
        else:
            raise AssertionError("it waited")
    assert inner.start(1).result(timeout=30) == 2
    print("all answered")
"""


def test_threads_that_all_wait_for_runs_fail_at_once_and_work_goes_on(
    environment: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    done = subprocess.run(
        warm("python", script), env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "all answered\n", done.stderr


def test_a_process_ends_whatever_its_coroutines_do(environment: dict[str, str]) -> None:
    """One waits, one waits in a thread, one ignores its cancellation, one blocks the loop."""
    script = """
import asyncio, threading, time
from flowengine import event_facet, foreach, workflow

begun = threading.Semaphore(0)

@event_facet(name="ends.hang")
async def hang(way: str) -> str:
    begun.release()
    if way == "thread":
        await asyncio.to_thread(time.sleep, 3600)
    while way == "ignore":
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
    if way == "block":
        await asyncio.sleep(0.2)  # the others are cancelled, or not
        time.sleep(3600)
    await asyncio.sleep(3600)

@workflow(name="ends.all")
def all_of(ways: list[str]) -> list[str]:
    return foreach(ways, lambda way: hang(way))

if __name__ == "__main__":
    all_of.start(["wait", "thread", "ignore", "block"])
    for _ in range(4):
        assert begun.acquire(timeout=20)
    print("the end")
"""
    done = subprocess.run(
        warm("python", "-c", script),
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr

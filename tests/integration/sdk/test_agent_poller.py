"""The promises of the agent SDK's specification about `AgentPoller`, each as a test."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine import current_step, event_facet, workflow
from flowengine.engine import Engine
from flowengine.errors import HandlerRefused, InvalidConfig, PollerRefused, RunFailed, UnknownRun
from flowengine.program.nodes import EventOptions, RetryPolicy
from flowengine.sdk import AgentPoller, AgentPollerConfig
from flowengine.settings import Settings
from tests.integration.engines import chain, one, opened, side_by_side
from tests.integration.sdk.pollers import WAIT, row_of, started, state_of, until


@event_facet(name="sdk_tests.Double")
def double(n: int) -> int:
    return 2 * n


@workflow
def doubled(n: int) -> int:
    return double(n)


@workflow
def with_child(n: int) -> int:
    return doubled.start(n).result()


@event_facet(name="sdk_tests.Total")
def total(ns: list[int]) -> int:
    raise AssertionError("a callback is called")


@workflow
def joined(n: int) -> int:
    return total([double.named(f"d{i}")(n) for i in range(8)])


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(spool_directory=str(tmp_path / "spool"))
    with opened(database_url, settings=settings) as engine:
        yield engine


@pytest.fixture(scope="module")
def local_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """For tests that do not reach the database."""
    with opened(f"sqlite:///{tmp_path_factory.mktemp('local')}/flow.db") as engine:
        yield engine


def echo(payload: dict[str, Any]) -> dict[str, Any]:
    return {"y": payload["x"]}


def task_states(engine: Engine, run_id: str) -> list[str]:
    return [task.state for task in engine.tasks(run_id)]


# --- 4.1 the configuration ---


def test_the_configuration_has_the_fields_and_defaults_of_the_specification() -> None:
    config = AgentPollerConfig()
    assert config == AgentPollerConfig(
        service_name="afl-agent",
        server_group="default",
        server_name=socket.gethostname(),
        task_list="default",
        poll_interval_ms=2000,
        max_concurrent=5,
        heartbeat_interval_ms=10000,
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "max_concurrent",
            0,
            "max_concurrent is 0 in the configuration, and must be a whole number greater than 0",
        ),
        ("poll_interval_ms", -1, "must be a whole number greater than 0"),
        ("poll_interval_ms", 0.5, "must be a whole number greater than 0"),
        ("heartbeat_interval_ms", True, "must be a whole number greater than 0"),
        (
            "task_list",
            "",
            "task_list is '' in the configuration, and must be the name of a task list",
        ),
        ("service_name", None, "service_name is None in the configuration, and must be text"),
    ],
)
def test_a_configuration_that_could_not_work_is_refused(
    field: str, value: Any, message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        AgentPollerConfig(**{field: value})


def test_a_heartbeat_that_is_rarer_than_the_timeout_is_refused(local_engine: Engine) -> None:
    with pytest.raises(InvalidConfig, match="at most half of the setting server_timeout"):
        AgentPoller(local_engine, AgentPollerConfig(heartbeat_interval_ms=20_000))


# --- 4.3, 4.4 registration of handlers ---


def test_a_handler_is_registered_by_a_call_by_a_decorator_or_as_an_event_facet(
    local_engine: Engine,
) -> None:
    poller = AgentPoller(local_engine)
    poller.register("ns.CountDocs", echo)

    @poller.register("Notify")
    def notify(payload: dict[str, Any]) -> dict[str, Any]:
        return {}

    assert poller.register(double) is double
    assert notify({}) == {}
    assert poller.registered_names() == ["Notify", "ns.CountDocs", "sdk_tests.Double"]


@pytest.mark.parametrize(
    ("name", "callback", "message"),
    [
        ("ns.Work", echo, "'ns.Work' cannot be registered: this name has a handler; a facet"),
        ("", echo, "it must be the name of an event facet"),
        ("a b", echo, "or the short name behind its last dot"),
        (7, echo, "it must be the name of an event facet"),
        ("flowengine.child", echo, "the engine runs the facets of its own namespace"),
        ("ns.Other", 7, "a callback is a function of one dict, not a int"),
        (double, echo, "an event facet has code; register it alone"),
        (echo, None, r'name its facet: @register\("billing\.ProcessPayment"\)'),
    ],
)
def test_a_handler_that_cannot_be_called_for_a_facet_is_refused(
    local_engine: Engine, name: Any, callback: Any, message: str
) -> None:
    poller = AgentPoller(local_engine)
    poller.register("ns.Work", echo)
    with pytest.raises(HandlerRefused, match=message):
        poller.register(name, callback)
    assert poller.registered_names() == ["ns.Work"]


# --- 3.4 names ---


@pytest.mark.parametrize("name", ["t.Work", "Work"])
def test_a_task_is_matched_by_its_qualified_name_or_by_its_short_one(
    engine: Engine, name: str
) -> None:
    poller = AgentPoller(engine)
    poller.register(name, echo)
    run = engine.start(chain("a", "b", "c"), "t.Flow", {"x": 3})
    assert poller.poll_once() == 3
    assert run.result(timeout=WAIT) == {"y": 3}


def test_the_qualified_name_is_tried_first(engine: Engine) -> None:
    poller = AgentPoller(engine)
    poller.register("Work", lambda payload: {"y": "short"})
    poller.register("t.Work", lambda payload: {"y": "qualified"})
    run = engine.start(one(), "t.Flow", {})
    poller.poll_once()
    assert run.result(timeout=WAIT) == {"y": "qualified"}


def test_tasks_of_other_facets_and_other_lists_are_left_alone(engine: Engine) -> None:
    for config, name in (
        (None, "t.Other"),
        (None, "Wor"),
        (AgentPollerConfig(task_list="gpu"), "t.Work"),
    ):
        poller = AgentPoller(engine, config)
        poller.register(name, echo)
        engine.start(one(), "t.Flow", {})
        assert poller.poll_once() == 0


# --- 4.6 poll_once ---


async def echo_later(payload: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return echo(payload)


@pytest.mark.parametrize("callback", [echo, echo_later, lambda payload: echo_later(payload)])
def test_poll_once_works_in_the_thread_of_its_caller(engine: Engine, callback: Any) -> None:
    poller, seen = AgentPoller(engine), list[threading.Thread]()

    def noted(payload: dict[str, Any]) -> Any:
        seen.extend([threading.current_thread()])
        return callback(payload)

    poller.register("t.Work", noted)
    run = engine.start(side_by_side("a", "b"), "t.Flow", {})
    before = set(threading.enumerate())
    assert poller.poll_once() == 2
    assert set(threading.enumerate()) <= before
    assert seen == [threading.current_thread()] * 2
    assert run.result(timeout=WAIT) == {"a": "a", "b": "b"}
    assert (poller.is_running, row_of(poller), poller.poll_once()) == (False, None, 0)


def test_poll_once_dispatches_at_most_max_concurrent(engine: Engine) -> None:
    poller = AgentPoller(engine, AgentPollerConfig(max_concurrent=2))
    poller.register("t.Work", echo)
    engine.start(side_by_side("a", "b", "c"), "t.Flow", {})
    assert [poller.poll_once() for _ in range(3)] == [2, 1, 0]


def test_poll_once_in_an_event_loop_says_what_to_do(engine: Engine) -> None:
    poller = AgentPoller(engine)
    poller.register("t.Work", echo_later)

    async def main() -> None:
        with pytest.raises(PollerRefused, match=r"call it with asyncio\.to_thread"):
            poller.poll_once()
        engine.start(one(), "t.Flow", {"x": 1})
        assert await asyncio.to_thread(poller.poll_once) == 1

    asyncio.run(main())


# --- 4.5, 5 start, stop and the registry of servers ---


def test_a_poller_registers_works_and_deregisters(engine: Engine) -> None:
    config = AgentPollerConfig(service_name="payer", server_group="eu", server_name="box-7")
    poller = AgentPoller(engine, config)
    poller.register("t.Work", echo)
    assert not poller.is_running
    with started(poller):
        assert poller.is_running
        row = row_of(poller)
        assert row is not None
        assert (row.uuid, row.service_name) == (poller.server_id, "payer")
        assert (row.server_group, row.server_name, row.topics) == ("eu", "box-7", ["default"])
        assert set(poller.registered_names()) <= set(row.handlers)
        assert row.start_time > 0
        run = engine.start(chain("a", "b"), "t.Flow", {"x": 5})
        assert run.result(timeout=WAIT) == {"y": 5}
        assert set(task_states(engine, run.id)) == {"completed"}
    assert not poller.is_running
    assert state_of(poller) == "shutdown"
    ended = row_of(poller)
    assert ended is not None
    assert [(count.handler, count.handled) for count in ended.handled] == [("t.Work", 2)]


def test_a_server_is_registered_as_starting_before_it_runs(engine: Engine) -> None:
    states: list[str] = []
    poller = AgentPoller(engine)
    poller.register("t.Work", echo)
    heartbeat = poller._server._heartbeat()
    heartbeat.send(engine)
    states.append(state_of(poller))
    heartbeat.run(engine)
    states.append(state_of(poller))
    heartbeat.stop()
    assert [*states, state_of(poller)] == ["startup", "running", "shutdown"]


def test_a_heartbeat_is_sent_at_the_configured_interval(engine: Engine) -> None:
    poller = AgentPoller(engine, AgentPollerConfig(heartbeat_interval_ms=50))
    poller.register("t.Work", echo)
    with started(poller):
        first = row_of(poller)
        assert first is not None
        until(lambda: row_of(poller).ping_time > first.ping_time)  # type: ignore[union-attr]


def test_a_handler_may_be_registered_while_the_poller_runs(engine: Engine) -> None:
    poller = AgentPoller(engine)
    poller.register("t.Other", echo)
    with started(poller):
        poller.register("t.Work", echo)
        until(lambda: "t.Work" in row_of(poller).handlers)  # type: ignore[union-attr]
        assert engine.start(one(), "t.Flow", {"x": 1}).result(timeout=WAIT) == {"y": 1}


def test_up_to_max_concurrent_callbacks_run_at_once(engine: Engine) -> None:
    together, most = threading.Barrier(3), threading.Semaphore(3)

    def meet(payload: dict[str, Any]) -> dict[str, Any]:
        assert most.acquire(blocking=False)
        together.wait(WAIT)  # broken if they ran one after the other
        most.release()
        return echo(payload)

    poller = AgentPoller(engine, AgentPollerConfig(max_concurrent=3))
    poller.register("t.Work", meet)
    names = [f"s{number}" for number in range(9)]
    with started(poller):
        run = engine.start(side_by_side(*names), "t.Flow", {})
        assert run.result(timeout=WAIT) == {name: name for name in names}


@pytest.mark.parametrize("also_sync", [True, False])
def test_up_to_max_concurrent_coroutines_run_at_once(engine: Engine, also_sync: bool) -> None:
    running, most = 0, 0

    async def meet(payload: dict[str, Any]) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        while most < 3:
            await asyncio.sleep(0.001)
        running -= 1
        return echo(payload)

    poller = AgentPoller(engine, AgentPollerConfig(max_concurrent=3))
    poller.register("t.Work", meet)
    if also_sync:
        poller.register("t.Other", echo)
    names = [f"s{number}" for number in range(9)]
    with started(poller):
        run = engine.start(side_by_side(*names), "t.Flow", {})
        assert run.result(timeout=WAIT) == {name: name for name in names}
    assert most == 3


def test_stop_lets_a_running_callback_finish(engine: Engine) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def slow(payload: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        assert goes_on.wait(WAIT)
        return echo(payload)

    poller = AgentPoller(engine)
    poller.register("t.Work", slow)
    with started(poller):
        run = engine.start(one(), "t.Flow", {"x": 1})
        assert begun.wait(WAIT)
        stopping = threading.Thread(target=poller.stop)
        stopping.start()
        until(lambda: not poller.is_running)
        goes_on.set()
        stopping.join(WAIT)
        assert run.result(timeout=WAIT) == {"y": 1}
        assert state_of(poller) == "shutdown"


def test_a_callback_may_stop_its_poller(engine: Engine) -> None:
    poller = AgentPoller(engine)

    @poller.register("t.Work")
    def last(payload: dict[str, Any]) -> dict[str, Any]:
        poller.stop()
        return echo(payload)

    with started(poller):
        run = engine.start(one(), "t.Flow", {"x": 1})
        until(lambda: state_of(poller) == "shutdown")
    assert run.result(timeout=WAIT) == {"y": 1}


def test_a_poller_is_started_once_and_with_a_handler(engine: Engine) -> None:
    poller = AgentPoller(engine)
    with pytest.raises(PollerRefused, match="has no handler; register one"):
        poller.start()
    poller.register("t.Work", echo)
    with started(poller), pytest.raises(PollerRefused, match="is running already"):
        poller.start()
    poller.stop()  # again
    with pytest.raises(PollerRefused, match="was stopped; create another"):
        poller.start()


# --- 6.1 errors of callbacks ---


def test_an_exception_fails_the_step_and_the_task_and_the_loop_goes_on(engine: Engine) -> None:
    calls: list[Any] = []

    def fail(payload: dict[str, Any]) -> dict[str, Any]:
        calls.append(payload["x"])
        if payload["x"] == "bad":
            raise LookupError("no such account")
        return echo(payload)

    poller = AgentPoller(engine)
    poller.register("t.Work", fail)
    with started(poller):
        failed = engine.start(one(), "t.Flow", {"x": "bad"})
        with pytest.raises(RunFailed, match="no such account"):
            failed.result(timeout=WAIT)
        good = engine.start(one(), "t.Flow", {"x": "good"})
        assert good.result(timeout=WAIT) == {"y": "good"}
    assert failed.info().state == "FAILED"
    assert task_states(engine, failed.id) == ["failed"]
    assert calls == ["bad", "good"]  # no implicit retry


def test_retries_are_those_that_the_facet_declares(engine: Engine) -> None:
    tries: list[int] = []

    def flaky(payload: dict[str, Any]) -> dict[str, Any]:
        tries.append(current_step().try_number)
        if len(tries) < 3:
            raise ConnectionError("try again")
        return echo(payload)

    poller = AgentPoller(engine)
    poller.register("t.Work", flaky)
    options = EventOptions(retry=RetryPolicy(attempts=3, first_wait=0.0))
    with started(poller):
        run = engine.start(one(options), "t.Flow", {"x": 1})
        assert run.result(timeout=WAIT) == {"y": 1}
    assert tries == [1, 2, 3]


def test_sys_exit_in_a_callback_ends_neither_its_thread_nor_the_poller(engine: Engine) -> None:
    calls: list[int] = []

    def leave(payload: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 1:
            sys.exit("enough")
        return echo(payload)

    poller = AgentPoller(engine, AgentPollerConfig(max_concurrent=1))
    poller.register("t.Work", leave)
    with started(poller):
        run = engine.start(one(), "t.Flow", {"x": 1})
        assert run.result(timeout=WAIT) == {"y": 1}  # as after the loss of a worker
    assert len(calls) == 2


# --- 9 concurrency ---


@pytest.fixture
def impatient_threads() -> Iterator[None]:
    """Threads that take turns a thousand times as often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("impatient_threads")
def test_eight_events_in_eight_threads_are_joined_once(engine: Engine) -> None:
    """The original ran the join more than once in 40 of 40 trials."""
    trials, joins, lock = 20, list[int](), threading.Lock()

    def join(payload: dict[str, Any]) -> dict[str, Any]:
        with lock:
            joins.append(1)
        return {"result": sum(payload["ns"])}

    poller = AgentPoller(engine, AgentPollerConfig(max_concurrent=8))
    poller.register(double)
    poller.register("sdk_tests.Total", join)
    with started(poller):
        for n in range(trials):
            run = engine.start(joined.program(), joined.name, joined.inputs(n))
            assert run.result(timeout=WAIT) == 16 * n
    assert len(joins) == trials


def test_two_pollers_of_one_list_never_run_the_same_task(engine: Engine) -> None:
    ran, lock = list[str](), threading.Lock()

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        with lock:
            ran.append(payload["x"])
        return echo(payload)

    first, second = AgentPoller(engine), AgentPoller(engine)
    first.register("Work", work)
    second.register("t.Work", work)
    names = [f"s{number}" for number in range(60)]
    with started(first), started(second):
        run = engine.start(side_by_side(*names), "t.Flow", {})
        assert run.result(timeout=WAIT) == {name: name for name in names}
    assert sorted(ran) == sorted(names)


# --- steps of the engine's own, programs, connections ---


def test_an_event_facet_runs_with_its_annotations_and_child_runs_start(engine: Engine) -> None:
    poller = AgentPoller(engine)
    poller.register(double)
    with started(poller):
        run = engine.start(with_child.program(), with_child.name, with_child.inputs(21))
        assert run.result(timeout=WAIT) == 42


def test_the_program_of_a_run_is_read_by_the_poller_itself(engine: Engine) -> None:
    run = engine.start(chain("a", "b"), "t.Flow", {"x": 1})
    poller = AgentPoller(Engine(engine.database, settings=engine.settings))
    poller.register("t.Work", echo)
    poller.cache_workflow_ast(run.id, {"type": "Program"})  # only read earlier
    poller.cache_workflow_ast(run.id)
    assert poller.poll_once() == 2  # the original forgot the program after the first event
    assert run.result(timeout=WAIT) == {"y": 1}
    with pytest.raises(UnknownRun):
        poller.cache_workflow_ast("nobody")


def test_an_agent_needs_the_address_of_the_database_and_nothing_else(
    database_url: str, tmp_path: Path
) -> None:
    settings = Settings(spool_directory=str(tmp_path / "spool"))
    with AgentPoller.connect(database_url, settings=settings) as poller:
        poller.register("t.Work", echo)
        run = poller.engine.start(one(), "t.Flow", {"x": 1})
        assert poller.poll_once() == 1
        assert run.result(timeout=WAIT) == {"y": 1}


def test_neither_the_package_nor_the_sdk_loads_celery() -> None:
    code = (
        "import sys, flowengine; assert 'flowengine.sdk' not in sys.modules\n"
        "import flowengine.sdk; print('celery' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- the store ---


def test_a_claim_without_a_matching_task_returns_none(engine: Engine) -> None:
    engine.start(one(), "t.Flow", {"x": 1})
    assert engine.claim_task(["t.Other"]) is None
    assert engine.claim_task(["t.Work"], "elsewhere") is None
    assert engine.claim_task(["t.Work"]) is not None
    assert engine.claim_task(["t.Work"]) is None


def test_steps_and_tasks_that_are_read_are_copies(engine: Engine) -> None:
    """A thread that changes them changes neither the rows nor the cached run."""
    run = engine.start(one(), "t.Flow", {"x": 1})
    task = engine.claim_task(["t.Work"])
    assert task is not None
    assert task.data is not None
    for step in engine.steps(run.id):
        step.params["x"] = 99
    task.data["x"] = 99
    assert engine.tasks(run.id)[0].data == {"x": 1}
    engine.continue_step(task.step_id, {"y": 5})
    assert run.result(timeout=WAIT) == {"y": 5}
    (work,) = [step for step in engine.steps(run.id) if step.facet == "t.Work"]
    assert work.params == {"x": 1}

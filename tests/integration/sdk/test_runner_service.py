"""The promises of the agent SDK's specification about `RunnerService`, each as a test."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine import current_step, event_facet, workflow
from flowengine.engine import Engine
from flowengine.errors import HttpServerRefused, InvalidConfig, PollerRefused, UnknownRun
from flowengine.program.nodes import EventOptions
from flowengine.sdk import RunnerConfig, RunnerService, ToolRegistry
from flowengine.settings import Settings
from tests.integration.engines import chain, one, opened, program, side_by_side, watched
from tests.integration.engines import event_facet as declared_event
from tests.integration.engines import workflow as declared_workflow
from tests.integration.sdk.pollers import WAIT, row_of, started, until

QUIET = {"http_max_port_attempts": 0}


@event_facet(name="runner_tests.Double")
def double(n: int) -> int:
    return 2 * n


@workflow
def doubled(n: int) -> int:
    return double(n)


@pytest.fixture
def engine(database_url: str, tmp_path: Path) -> Iterator[Engine]:
    settings = Settings(spool_directory=str(tmp_path / "spool"))
    with opened(database_url, settings=settings) as engine:
        yield engine


@pytest.fixture
def local_engine(tmp_path: Path) -> Iterator[Engine]:
    """For tests that do not depend on the database."""
    settings = Settings(spool_directory=str(tmp_path / "spool"))
    with opened(f"sqlite:///{tmp_path}/flow.db", settings=settings) as engine:
        yield engine


def echo(payload: dict[str, Any]) -> dict[str, Any]:
    return {"y": payload["x"]}


def tools(**handlers: Any) -> ToolRegistry:
    registry = ToolRegistry()
    for name, handler in handlers.items():
        registry.register(name.replace("__", "."), handler)
    return registry


def runner(engine: Engine, registry: ToolRegistry | None = None, **config: Any) -> RunnerService:
    return RunnerService(engine, RunnerConfig(**{**QUIET, **config}), registry)


# --- 7.1 the configuration ---


def test_the_configuration_has_the_fields_and_defaults_of_the_specification() -> None:
    assert RunnerConfig() == RunnerConfig(
        server_group="default",
        service_name="afl-runner",
        server_name=socket.gethostname(),
        topics=[],
        task_list="default",
        poll_interval_ms=2000,
        heartbeat_interval_ms=10000,
        lock_duration_ms=60000,
        lock_extend_interval_ms=20000,
        max_concurrent=5,
        shutdown_timeout_ms=30000,
        http_port=8080,
        http_max_port_attempts=20,
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_concurrent": 0}, "max_concurrent"),
        ({"shutdown_timeout_ms": -1}, "a whole number greater than 0"),
        ({"http_port": -1}, "0 or a greater whole number"),
        ({"http_port": 70_000}, "a port from 0 to 65535"),
        ({"topics": "billing.*"}, "a list of names of facets, or globs"),
        ({"topics": [""]}, 'a list of names of facets, or globs as "billing.*"'),
        ({"topics": ["a.b"] * 1001}, "at most 1,000 names and globs"),
        ({"lock_duration_ms": 30_000}, "at most half of lock_duration_ms (30000)"),
        ({"lock_duration_ms": 86_400_001}, "at most 86,400,000 (a day)"),
        ({"task_list": ""}, "the name of a task list"),
    ],
)
def test_a_configuration_that_could_not_work_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        RunnerConfig(**given)
    assert message in str(refused.value)


def test_a_heartbeat_that_is_rarer_than_the_timeout_is_refused(local_engine: Engine) -> None:
    with pytest.raises(InvalidConfig, match="at most half of the setting server_timeout"):
        runner(local_engine, heartbeat_interval_ms=15_001)


# --- 7.3 the registry ---


def test_a_registry_serves_qualified_names_short_names_and_a_default(engine: Engine) -> None:
    registry = tools(t__Work=echo, Other=lambda p: {"y": "short"})
    registry.set_default_handler(lambda p: {"y": current_step().facet})
    declared = [declared_event(name) for name in ("Other", "Third")]
    runs = [engine.start(one(), "t.Flow", {"x": 1})]
    for facet in declared:
        step = declared_workflow([_call(facet.name)], {"y": _y()}, name="Flow")
        runs.append(engine.start(program(facet, step, namespace="u"), "u.Flow", {}))
    assert runner(engine, registry).poll_once() == 3
    assert [run.result(WAIT) for run in runs] == [{"y": 1}, {"y": "short"}, {"y": "u.Third"}]


def _call(facet: str) -> Any:
    from flowengine.program.nodes import Literal
    from tests.integration.engines import call

    return call("a", facet, x=Literal(1))


def _y() -> Any:
    from flowengine.program.nodes import StepRef

    return StepRef(("a", "y"))


def test_topics_limit_what_a_runner_claims(engine: Engine) -> None:
    registry = tools(Work=echo)  # a short name, whose claim could take tasks of any namespace
    ours = engine.start(one(), "t.Flow", {"x": 1})
    other = engine.start(
        program(
            declared_event("Work"), declared_workflow([_call("Work")], {"y": _y()}), namespace="u"
        ),
        "u.Flow",
        {},
    )
    limited = runner(engine, registry, topics=["t.*"])
    assert limited.poll_once() == 1
    assert ours.result(WAIT) == {"y": 1}
    assert limited.poll_once() == 0
    assert engine.tasks(other.id)[0].state == "pending"
    assert runner(engine, registry, topics=["u.Work"]).poll_once() == 1
    assert other.result(WAIT) == {"y": 1}


def test_a_topic_may_keep_requests_away(engine: Engine) -> None:
    engine.enqueue_execute("t.Flow", {}, program=one())
    assert runner(engine, topics=["t.*"]).poll_once() == 0
    assert runner(engine, topics=["flowengine.execute"]).poll_once() == 1


def test_names_are_found_behind_a_long_list_of_others(local_engine: Engine) -> None:
    engine = local_engine
    engine.start_many(one(), "t.Flow", [{"x": n} for n in range(1_050)])
    facet = declared_event("Rare")
    flow = declared_workflow([_call("Rare")], {"y": _y()})
    rare = engine.start(program(facet, flow, namespace="u"), "u.Flow", {}, priority=-5)
    registry = tools(Rare=echo)
    limited = runner(engine, registry, topics=["u.*"])
    assert [limited.poll_once(), limited.poll_once()] == [0, 1]  # the second window
    assert rare.result(WAIT) == {"y": 1}


# --- 7.2 registration, the loop, signals ---


def test_a_runner_registers_works_and_deregisters(engine: Engine) -> None:
    service = runner(engine, tools(t__Work=echo), service_name="payer", server_group="eu")
    assert not service.is_running
    with started(service):
        assert service.is_running
        row = row_of(service)
        assert row is not None
        assert (row.uuid, row.service_name, row.server_group) == (
            service.server_id,
            "payer",
            "eu",
        )
        assert {"t.Work", "flowengine.execute"} <= set(row.handlers)
        run = engine.start(chain("a", "b"), "t.Flow", {"x": 7})
        assert run.result(WAIT) == {"y": 7}
        service.cache_workflow_ast(run.id, {})
        with pytest.raises(UnknownRun):
            service.cache_workflow_ast("nobody", {})
        with pytest.raises(PollerRefused, match="is running already"):
            service.start()
    row = row_of(service)
    assert row is not None
    assert row.state == "shutdown"
    with pytest.raises(PollerRefused, match="was stopped"):
        service.start()


def test_up_to_max_concurrent_handlers_run_at_once(engine: Engine) -> None:
    together = threading.Barrier(4)

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        together.wait(WAIT)
        return {"y": 1}

    with started(runner(engine, tools(Work=work), max_concurrent=4)):
        run = engine.start(side_by_side("a", "b", "c", "d"), "t.Flow", {})
        assert run.result(WAIT) == dict.fromkeys("abcd", 1)


def test_a_handler_that_does_not_return_is_left_after_the_shutdown_timeout(engine: Engine) -> None:
    begun, go = threading.Event(), threading.Event()

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        go.wait(WAIT)
        return {"y": "late"}

    with started(runner(engine, tools(Work=work), shutdown_timeout_ms=50)):
        run = engine.start(one(), "t.Flow", {})
        assert begun.wait(WAIT)
    (task,) = engine.tasks(run.id)
    assert (task.state, task.losses) == ("pending", 0)
    go.set()
    assert runner(engine, tools(Work=lambda p: {"y": "other"})).poll_once() == 1
    assert run.result(WAIT) == {"y": "other"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_runner_and_earlier_handlers_are_restored(
    local_engine: Engine, number: signal.Signals
) -> None:
    seen: list[int] = []
    before = {
        n: signal.signal(n, lambda n, _: seen.append(n)) for n in (signal.SIGTERM, signal.SIGINT)
    }
    own = {n: signal.getsignal(n) for n in before}
    service = runner(local_engine)
    sender = threading.Thread(
        target=lambda: (until(lambda: service.is_running), os.kill(os.getpid(), number))
    )
    try:
        sender.start()
        service.start()  # in the main thread; returns because of the signal
        sender.join(WAIT)
        assert seen == []
        assert {n: signal.getsignal(n) for n in before} == own
        os.kill(os.getpid(), number)
        until(lambda: seen == [number])
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    assert not service.is_running


def test_a_second_signal_gets_the_earlier_handler_while_the_runner_stops(
    local_engine: Engine,
) -> None:
    """With Python's own handler, it ends the process at once."""
    seen: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        go.wait(WAIT)
        return echo(payload)

    def send_twice() -> None:
        begun.wait(WAIT)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: service._server.is_stopped)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: seen == [signal.SIGTERM])
        go.set()

    before = signal.signal(signal.SIGTERM, lambda n, _: seen.append(n))
    service = runner(local_engine, tools(Work=work))
    run = local_engine.start(one(), "t.Flow", {"x": 1})
    sender = threading.Thread(target=send_twice)
    try:
        sender.start()
        service.start()
        sender.join(WAIT)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]
    assert run.result(WAIT) == {"y": 1}  # the earlier handler did nothing: it was finished


# --- 7.4 locks ---


def test_a_lock_is_held_while_a_handler_runs_and_released_after_it(engine: Engine) -> None:
    held: list[Any] = []

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        held.append(engine.locks.check_lock(f"step:{current_step().idempotency_key}"))
        return {"y": 1}

    service = runner(engine, tools(Work=work))
    run = engine.start(one(), "t.Flow", {})
    assert service.poll_once() == 1
    (lock,) = held
    assert lock.holder == service.server_id
    assert (lock.meta.topic, lock.meta.handler) == ("default", "t.Work")
    assert (lock.meta.step_name, lock.meta.step_id) == ("Flow.a", lock.key.partition(":")[2])
    assert lock.expires_at - lock.acquired_at == 60_000
    assert engine.locks.check_lock(lock.key) is None
    assert run.result(WAIT) == {"y": 1}


def test_a_step_that_another_runner_works_on_is_not_started(engine: Engine) -> None:
    run = engine.start(one(), "t.Flow", {"x": 1})
    (task,) = engine.tasks(run.id)
    other = engine.locks.held_by()
    assert other.acquire_lock(f"step:{task.step_id}", 60_000)
    service = runner(engine, tools(Work=echo), lock_duration_ms=400, lock_extend_interval_ms=100)
    assert service.poll_once() == 0
    (parked,) = engine.tasks(run.id)
    assert (parked.state, parked.losses, parked.due > task.due) == ("pending", 0, True)
    other.release_lock(f"step:{task.step_id}")
    until(lambda: service.poll_once() == 1)
    assert run.result(WAIT) == {"y": 1}


def test_a_locked_step_does_not_keep_others_of_its_circuit_waiting(engine: Engine) -> None:
    guarded = one(EventOptions(breaker="bank"))
    locked, other = [engine.start(guarded, "t.Flow", {"x": n}) for n in range(2)]
    (task,) = engine.tasks(locked.id)
    assert engine.locks.acquire_lock(f"step:{task.step_id}", 60_000)
    assert runner(engine, tools(Work=echo)).poll_once() == 1
    assert other.result(WAIT) == {"y": 1}


def test_a_lock_is_extended_while_its_handler_runs(engine: Engine) -> None:
    service = runner(engine, tools(Work=echo), lock_duration_ms=60_000)
    ends: list[int] = []

    def is_past(time: int) -> bool:
        return engine.database.now() > time

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        key = f"step:{current_step().idempotency_key}"
        for _ in range(2):
            lock = engine.locks.check_lock(key)
            assert lock is not None
            ends.append(lock.expires_at)
            until(functools.partial(is_past, lock.acquired_at))
            service._locks.extend()  # the thread of `start` calls it at its interval
        return {"y": 1}

    service.tool_registry.register("t.Work", work)
    run = engine.start(one(), "t.Flow", {})
    assert service.poll_once() == 1
    assert ends[1] > ends[0]
    assert run.result(WAIT) == {"y": 1}


def test_a_lock_that_another_took_after_it_expired_is_reported(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    service = runner(engine, lock_duration_ms=1_000, lock_extend_interval_ms=500)

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        key = f"step:{current_step().idempotency_key}"
        service._locks._locks.release_lock(key)  # as its expiry does
        assert engine.locks.acquire_lock(key, 60_000)
        service._locks.extend()
        return {"y": 1}

    service.tool_registry.register("t.Work", work)
    run = engine.start(one(), "t.Flow", {})
    assert service.poll_once() == 1
    assert run.result(WAIT) == {"y": 1}  # the lease decides
    assert "the lock on Flow.a expired, and another runner has it" in caplog.text


def test_the_locks_of_a_batch_are_one_statement_each_way(local_engine: Engine) -> None:
    engine = local_engine
    service = runner(engine, tools(Work=echo))
    engine.start_many(one(), "t.Flow", [{"x": n} for n in range(20)])
    worker = service._server._worker("b" * 32, service._facets.find)
    names = ["t.Work"]
    claim = engine.claim_batch(names, "default", worker._identity, most=20, quick=names)
    statements: list[str] = []
    with watched(engine, lambda text, _: statements.append(text)):
        entries = worker.client.take(claim.tasks)
        assert len(entries) == 20
        assert len(statements) == 1
        service._locks.leave(entries)
        assert len(statements) == 2
    worker.client.release(entries)
    worker.end()


# --- 7.5 HTTP ---


def get(service: RunnerService, path: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{service.http_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=WAIT) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_health_status_and_metrics_are_served(engine: Engine) -> None:
    begun, go = threading.Event(), threading.Event()

    def work(payload: dict[str, Any]) -> dict[str, Any]:
        if payload["x"] == "wait":
            begun.set()
            go.wait(WAIT)
        return echo(payload)

    def fail(payload: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no")

    service = RunnerService(engine, RunnerConfig(http_port=0, topics=["t.*"]), tools(t__Work=work))
    with started(service):
        assert service.http_port > 0
        assert engine.start(one(), "t.Flow", {"x": 1}).result(WAIT) == {"y": 1}
        run = engine.start(one(), "t.Flow", {"x": "wait"})
        assert begun.wait(WAIT)
        assert get(service, "/health") == (200, '{"status":"ok"}')
        code, text = get(service, "/status")
        status = json.loads(text)
        assert code == 200
        assert (status["server_id"], status["state"]) == (service.server_id, "running")
        assert (status["task_lists"], status["topics"]) == (["default"], ["t.*"])
        assert status["uptime_seconds"] > 0
        assert status["handled"] == [{"handler": "t.Work", "handled": 1, "not_handled": 0}]
        (item,) = status["running"]
        assert (item["run"], item["step"], item["facet"]) == (run.id, "Flow.a", "t.Work")
        code, text = get(service, "/metrics")
        labels = f'server="{service.server_id}",service="afl-runner"'
        handled = f'{labels},handler="t.Work",outcome="succeeded"'
        assert code == 200
        assert f"flowengine_server_handled_total{{{handled}}} 1" in text
        assert f"flowengine_server_running_items{{{labels}}} 1" in text
        assert get(service, "/nothing")[0] == 404

        stopping = threading.Thread(target=service.stop)
        stopping.start()
        until(lambda: service._server.is_stopped)
        code, text = get(service, "/health")
        assert (code, json.loads(text)["problem"]) == (503, "it stops")
        go.set()
        stopping.join(WAIT)
    assert service.http_port == 0


def test_a_port_that_is_taken_is_passed_over(local_engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        service = RunnerService(local_engine, RunnerConfig(http_port=port))
        with started(service):
            assert port < service.http_port < port + 20
        refused = RunnerService(
            local_engine, RunnerConfig(http_port=port, http_max_port_attempts=1)
        )
        with pytest.raises(HttpServerRefused, match="name a free port"):
            refused.start()
    with local_engine.database.read() as session:
        assert session.servers.alive() == []  # refused before it was registered


def test_health_fails_while_the_heartbeat_cannot_reach_the_database(local_engine: Engine) -> None:
    service = RunnerService(local_engine, RunnerConfig(http_port=0))
    with started(service):
        heartbeat: Any = service._server.heartbeat
        run_once = heartbeat.run_once

        def fails() -> None:
            raise OSError("the network is down")

        heartbeat.run_once = fails
        until(lambda: get(service, "/health")[0] == 503)
        problem = json.loads(get(service, "/health")[1])["problem"]
        assert problem == "the heartbeat fails: OSError: the network is down"
        assert json.loads(get(service, "/status")[1])["problem"] == problem
        heartbeat.run_once = run_once
        until(lambda: get(service, "/health")[0] == 200)


# --- 7.2 non-event tasks ---


def test_a_request_starts_a_workflow_by_name_once(engine: Engine) -> None:
    request = engine.enqueue_execute("t.Flow", {"x": 5}, program=one(), labels={"for": "ada"})
    assert request.info().workflow == "flowengine.Execute"
    service = runner(engine, tools(Work=echo))
    assert service.poll_once() == 2  # the request, and the step of its run
    run = request.result(WAIT)
    assert run.result(WAIT) == {"y": 5}
    assert run.info().workflow == "t.Flow"
    assert run.info().labels == {"for": "ada"}
    assert run.info().parent is None


def test_a_workflow_of_an_imported_module_or_an_added_program_is_found_by_name(
    engine: Engine,
) -> None:
    registry = tools(t__Work=echo)
    registry.register(double)
    service = runner(engine, registry)
    assert service.add_program(one()) == ["t.Flow"]
    requests = [
        engine.enqueue_execute(doubled.name, {"n": 4}),
        engine.enqueue_execute("t.Flow", {"x": 4}),
    ]
    assert service.poll_once() == 4
    assert [each.result(WAIT).outputs(WAIT) for each in requests] == [{"result": 8}, {"y": 4}]


def test_a_request_with_a_key_is_stored_once(engine: Engine) -> None:
    first = engine.enqueue_execute("t.Flow", {"x": 1}, program=one(), key="k")
    second = engine.enqueue_execute("t.Flow", {"x": 2}, program=one(), key="k")
    other = engine.enqueue_execute("t.Other", {"x": 2}, key="k")
    assert first.id == second.id != other.id


def test_a_request_whose_runner_died_after_the_start_starts_no_second_run(engine: Engine) -> None:
    request = engine.enqueue_execute("t.Flow", {"x": 5}, program=one())
    service = runner(engine)
    (task,) = engine.claim(["flowengine.execute"], "default", _dead(), most=1)
    from flowengine.worker.execution import execute_try

    outcome = execute_try(engine, task, lambda _: True, find=service._facets.find)
    started_run = outcome.result["result"]  # type: ignore[union-attr]
    engine.release(task)  # as recovery does when its server is dead; nothing was reported
    assert service.poll_once() == 1
    assert request.result(WAIT).id == started_run
    assert len(engine.list(workflow="t.Flow")) == 1


def _dead() -> Any:
    from flowengine.store.claims import WorkerIdentity

    return WorkerIdentity("d" * 32, "d" * 32, 1)


def test_a_request_for_an_unknown_workflow_is_tried_again_and_then_fails(engine: Engine) -> None:
    request = engine.enqueue_execute("nobody.Knows", {})
    assert runner(engine).poll_once() == 1
    first, second = engine.tasks(request.id)
    assert first.error is not None
    assert "this runner has no workflow 'nobody.Knows'" in first.error["message"]
    assert (second.state, second.try_number, second.due > first.due) == ("pending", 2, True)


def test_a_request_that_no_runner_could_start_fails_at_once(engine: Engine) -> None:
    service = runner(engine)
    service.add_program(one())
    request = engine.enqueue_execute("t.Flow", {"unknown": 1})
    assert service.poll_once() == 1
    assert [task.state for task in engine.tasks(request.id)] == ["failed"]
    assert request.state == "FAILED"


def test_a_poller_leaves_requests_to_runners(engine: Engine) -> None:
    from flowengine.sdk import AgentPoller

    engine.enqueue_execute("t.Flow", {}, program=one())
    poller = AgentPoller(engine)
    poller.register("Work", echo)
    assert poller.poll_once() == 0


def test_the_task_list_tenant_and_priority_of_a_request_are_kept(engine: Engine) -> None:
    request = engine.enqueue_execute(
        "t.Flow", {"x": 1}, program=one(), task_list="eu", tenant="acme", priority=3
    )
    assert runner(engine).poll_once() == 0
    assert runner(engine, task_list="eu").poll_once() == 1
    info = request.result(WAIT).info()
    assert (info.tenant, info.priority) == ("acme", 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workflow": ""}, "the name of a workflow is a text of 1 to 255 characters"),
        ({"inputs": [1]}, "the inputs must be a map"),
        ({"task_list": ""}, "the task list must be a text of 1 to 255 characters"),
        ({"inputs": {"y": 1}, "program": one()}, "unknown input 'y'"),
    ],
)
def test_a_request_that_cannot_be_stored_says_why(
    local_engine: Engine, given: Any, message: str
) -> None:
    values = {"workflow": "t.Flow", "inputs": {}, **given}
    with pytest.raises(Exception) as refused:  # noqa: PT011
        local_engine.enqueue_execute(**values)
    assert message in str(refused.value)

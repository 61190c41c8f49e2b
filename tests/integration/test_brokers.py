"""Servers of several brokers on one database are woken through their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from flowengine import workflow
from flowengine.assembly import facet_code
from flowengine.assembly.app_addresses import broker_fingerprint, has_local_broker
from flowengine.assembly.facet_code import FacetCode, FacetCodeCheck
from flowengine.engine.watchdog import LEASE, Watchdog
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.testing import Flow
from tests.integration.engines import replace_notifier
from tests.integration.test_watchdog import CountingNotifier, let_pass, retried, slow, wakeups


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    with Flow(store_url=database_url) as flow:
        replace_notifier(flow.engine, CountingNotifier())
        yield flow


def server(flow: Flow, name: str, broker: str, **columns: Any) -> ServerDefinition:
    """Register a worker of a Celery app that consumes the list `default`."""
    with flow.engine.database.write() as session:
        now = session.now()
        row = ServerDefinition(
            uuid=f"{name:0<32}",
            server_group="default",
            service_name="worker",
            server_name=name,
            boot_id=f"{name:0<32}",
            start_time=now,
            ping_time=now,
            topics=["default"],
            state=ServerState.RUNNING,
            broker=broker,
            **columns,
        )
        session.servers.register(row)
    return row


def start_retried(flow: Flow) -> None:
    """Start a run whose step is due again after 10 s, on the list `default`."""
    flow.worker("w1")
    flow.start(retried, 1)
    flow.settle()
    wakeups(flow).clear()


# --- wake-ups ---


def test_a_list_of_another_broker_is_left_to_a_server_of_that_broker(flow: Flow) -> None:
    start_retried(flow)
    server(flow, "there", "bbb")
    flow.engine.broker = "aaa"
    let_pass(flow, Watchdog(flow.engine), 13)
    assert wakeups(flow) == []
    flow.engine.broker = "bbb"
    watchdog = Watchdog(flow.engine)
    assert watchdog.state() == (False, True), "not late, and the last pass was another broker's"
    watchdog.wake_own()
    assert [list(sent) for sent in wakeups(flow)] == [["default"]]
    watchdog.wake_own()
    assert len(wakeups(flow)) == 1, "once in an interval"


@pytest.mark.parametrize("broker", ["", "aaa"])
def test_a_server_of_the_same_or_of_no_known_broker_is_woken(flow: Flow, broker: str) -> None:
    """An older version, and a poller, do not say which broker they have."""
    start_retried(flow)
    server(flow, "here", broker)
    server(flow, "there", "bbb")
    flow.engine.broker = "aaa"
    let_pass(flow, Watchdog(flow.engine), 11)
    assert {"default": 1} in wakeups(flow)


def test_a_pass_by_an_older_version_counts_as_one_of_the_own_broker(flow: Flow) -> None:
    with flow.engine.database.write() as session:
        now = session.now()
        assert session.locks.acquire(LEASE, "0123456789abcdef0123456789abcdef", 400, now)
    flow.engine.broker = "aaa"
    assert Watchdog(flow.engine).state() == (False, False)


# --- the identity of a broker ---


def fingerprint(url: Any) -> str:
    return broker_fingerprint(Celery("any", broker=url, set_as_current=False))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://h/0", "redis://:secret@H:6379"),
        ("amqp://u:p%2F@h//", "pyamqp://h:5672?heartbeat=3"),
        ("redis://a;redis://b", "redis://b:6379/0;redis://a/0"),
        ("sqla+sqlite:///x.db", "sqla+sqlite:///x.db"),
    ],
)
def test_one_broker_has_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize("other", ["redis://h/1", "redis://g/0", "redis://h:6380/0", "amqp://h//"])
def test_other_brokers_have_other_fingerprints(other: str) -> None:
    assert fingerprint("redis://h/0") != fingerprint(other)


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        *(("memory://", True), ("filesystem://", True), ("sqla+sqlite:///x.db", True)),
        *((None, False), ("redis://localhost", False), ("sqla+postgresql://h/x", False)),
    ],
)
def test_only_brokers_of_one_machine_are_local(url: str | None, is_local: bool) -> None:
    assert has_local_broker(Celery("any", broker=url, set_as_current=False)) is is_local


# --- the code of facets ---


NAMES = ["tests.integration.test_watchdog.slow", "tests.integration.test_watchdog.shaky"]
HERE = FacetCode("shop.tasks", "add", 7, "one")


@pytest.mark.parametrize(
    ("theirs", "has_own_broker", "is_other"),
    [
        (FacetCode("shop.tasks", "add", 9, "one"), True, False),  # the same code
        (FacetCode("lab.tasks", "add", 9, "one"), True, False),  # a copy of it
        (FacetCode("shop.tasks", "add", 7, "two"), False, False),  # a deploy under way
        (FacetCode("shop.tasks", "add", 7, "two"), True, True),
        (FacetCode("shop.tasks", "add", 7, ""), True, False),  # nobody knows
        (FacetCode("lab.tasks", "add", 7, "two"), False, True),
        (FacetCode("lab.tasks", "add", 7, ""), False, True),
    ],
)
def test_different_facets_are_told_from_versions_of_one(
    theirs: FacetCode, has_own_broker: bool, is_other: bool
) -> None:
    assert HERE.is_other(theirs, has_own_broker=has_own_broker) is is_other


@pytest.mark.parametrize(
    ("app", "broker", "seconds", "is_refused"),
    [
        ("lab", "bbb", 0, True),
        ("lab", "bbb", 60, False),  # without a heartbeat: it is dead, and no run waits
        ("shop", "aaa", 0, False),  # the same app: a deploy
        ("shop", "bbb", 0, False),  # it moves to another broker: a warning
        ("lab", "", 0, True),
    ],
)
def test_a_worker_is_compared_with_the_living_workers_of_other_apps(
    flow: Flow,
    caplog: pytest.LogCaptureFixture,
    app: str,
    broker: str,
    seconds: int,
    is_refused: bool,
) -> None:
    earlier = server(flow, "earlier", broker, app=app)
    with flow.engine.database.write() as session:
        session.servers.define(earlier.uuid, {key: ["lab.tasks", "add", 3, "two"] for key in NAMES})
    flow.clock.advance(seconds=seconds + 1)
    own = server(flow, "own", "aaa", app="shop")
    check = FacetCodeCheck(own, timeout=30)
    assert check.is_refused(flow.engine) is is_refused
    actions = [record.__dict__.get("action") for record in caplog.records]
    assert ("facet_refused" in actions) is is_refused
    assert ("facet_differs" in actions) is ((app, broker) == ("shop", "bbb"))
    assert not check.is_refused(flow.engine), "it looks once"


@workflow(name="brokers.mine")
def mine(n: int) -> int:
    return slow(n)


@workflow(name="brokers.function")
async def function(n: int) -> int:
    return await slow(n)


@pytest.mark.parametrize(
    ("waits", "is_known", "seconds", "is_refused"),
    [
        (mine, False, 1, True),
        (mine, False, 60, True),
        (mine, True, 60, False),  # the run is of the app that starts
        (function, False, 60, True),  # its program does not tell
        (None, False, 60, False),
    ],
)
def test_a_worker_is_compared_with_stopped_apps_whose_runs_call_the_facet(
    flow: Flow,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    waits: Any,
    is_known: bool,
    seconds: int,
    is_refused: bool,
) -> None:
    theirs = {key: ["lab.tasks", "add", 3, "two"] for key in NAMES}
    stopped = server(flow, "stopped", "bbb", app="lab")
    with flow.engine.database.write() as session:
        session.servers.define(stopped.uuid, theirs)
        session.servers.deregister(stopped.uuid)
    if waits is not None:
        flow.start(waits, 1)
    flow.clock.advance(seconds=seconds)
    if not is_known:
        monkeypatch.setattr(facet_code, "workflow_names", list)
    own = server(flow, "own", "aaa", app="shop")
    assert FacetCodeCheck(own, timeout=30).is_refused(flow.engine) is is_refused
    lines = [r.getMessage() for r in caplog.records if r.__dict__.get("action") == "facet_refused"]
    assert len(lines) == is_refused
    if is_refused:
        assert f"of {waits.name}" in lines[0]
        assert "'tests.integration.test_watchdog.slow' is at tests.integration" in lines[0]
        assert "and at lab.tasks:3 there" in lines[0]
    with flow.engine.database.write() as session:  # the last one that runs the facet has the say
        defined = {other.uuid for other, _ in session.servers.defined()}
    assert (own.uuid in defined) is not is_refused


def test_the_code_of_the_last_worker_of_a_stopped_app_is_remembered(flow: Flow) -> None:
    rows = {key: ["lab.tasks", "add", 3, "two"] for key in NAMES}
    for name in ("first", "last"):
        stopped = server(flow, name, "bbb", app="lab")
        with flow.engine.database.write() as session:
            session.servers.define(stopped.uuid, rows)
            session.servers.deregister(stopped.uuid)
        flow.clock.advance(seconds=1)
    flow.clock.advance(hours=7 * 24)
    flow.engine.purge(older_than=0)
    with flow.engine.database.read() as session:
        assert [other.server_name for other, _ in session.servers.defined()] == ["last"]

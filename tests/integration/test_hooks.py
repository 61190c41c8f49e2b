"""Outcomes reach signals and the webhook at least once, in order for each run."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import Schedule, attempt, event_facet, foreach, signals, webhooks, workflow
from flowengine.engine import Run
from flowengine.engine.hooks import SIGNALS, Hooks, pause_before
from flowengine.engine.recovery import alarm_unserved_tasks
from flowengine.engine.watchdog import Watchdog
from flowengine.errors import InvalidSetting
from flowengine.settings import Settings
from flowengine.testing import Flow
from tests.integration.test_purge import rows
from tests.integration.test_watchdog import let_pass

KEYS = "k" * 40 + "," + "l" * 40


@event_facet(name="hooks.work")
def work(n: int) -> int:
    if n < 0:
        raise ValueError(f"negative {n}")
    return n


@workflow(name="hooks.one")
def one(n: int) -> int:
    return work(n)


@workflow(name="hooks.caught")
def caught(n: int) -> int:
    return attempt(lambda: work(n), catch=lambda error: work(1))


@workflow(name="hooks.fan")
def fan(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: work(n))


@dataclass
class Receiver:
    """A real HTTP server that answers as the test says."""

    url: str = ""
    answers: list[str] = field(default_factory=list)  #: "500", "hang", "close", "redirect"
    bodies: list[dict[str, Any]] = field(default_factory=list)  #: of accepted requests
    requests: int = 0
    bad_signatures: int = 0
    release: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def events(self) -> list[str]:
        return [one["event"] for body in self.bodies for one in body["outcomes"]]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            header = self.headers[webhooks.HEADER]
            with receiver.lock:
                receiver.requests += 1
                answer = receiver.answers.pop(0) if receiver.answers else "200"
                if not webhooks.verify(body, header, ["l" * 40]):
                    receiver.bad_signatures += 1
            if answer == "hang":
                receiver.release.wait(30)
            if answer in ("hang", "close"):
                self.close_connection = True
                return
            if answer == "200":
                with receiver.lock:
                    receiver.bodies.append(json.loads(body))
            self.send_response(302 if answer == "redirect" else int(answer))
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@contextmanager
def hooked(database_url: str, url: str, **more: Any) -> Iterator[Flow]:
    settings = Settings(webhook_url=url, webhook_keys=KEYS, webhook_timeout=0.3, **more)
    with Flow(store_url=database_url, settings=settings) as flow:
        yield flow


def delivered(flow: Flow) -> None:
    """Deliver until nothing is due, moving the clock over the pauses."""
    for _ in range(40):
        while flow.engine.hooks.deliver():
            pass
        if "outbox" not in rows(flow.engine):
            return
        flow.clock.advance(hours=1)
    raise AssertionError(rows(flow.engine))


def test_outcomes_are_posted_with_a_signature(database_url: str, receiver: Receiver) -> None:
    with hooked(database_url, receiver.url) as flow:
        done = one.options(labels={"team": "a"}, key="k1").start(1)
        failed = one.start(-1)
        flow.settle()
        delivered(flow)
        bodies = {body["run_id"]: body for body in receiver.bodies}
        assert receiver.bad_signatures == 0
        assert [o["event"] for o in bodies[done.id]["outcomes"]] == ["run_completed"]
        assert bodies[done.id]["labels"] == {"team": "a"}
        assert (bodies[done.id]["key"], bodies[done.id]["workflow"]) == ("k1", "hooks.one")
        assert bodies[done.id]["id"] == f"{done.id}-{done.info().revision}"
        step, run = bodies[failed.id]["outcomes"]
        assert (step["event"], step["path"]) == ("step_failed", "one.work")
        assert (run["event"], run["error"]["message"]) == ("run_failed", "negative -1")
        assert "negative" in step["error"]["message"]


def test_a_caught_failure_is_an_outcome_of_the_step_alone(
    database_url: str, receiver: Receiver
) -> None:
    with hooked(database_url, receiver.url) as flow:
        caught.start(-1)
        flow.settle()
        delivered(flow)
    assert receiver.events() == ["step_failed", "run_completed"]


@pytest.mark.parametrize("answer", ["500", "404", "hang", "close", "redirect"])
def test_a_failed_delivery_is_repeated_and_keeps_the_order_of_the_run(
    database_url: str, receiver: Receiver, answer: str
) -> None:
    receiver.answers += [answer] * 3
    with hooked(database_url, receiver.url) as flow:
        run = caught.start(-1)  # a step fails, then the run completes: two deliveries
        flow.settle()
        assert flow.engine.hooks.deliver() == 1, "the second waits for the first"
        assert receiver.bodies == []
        assert flow.engine.hooks.deliver() == 0, "it is not due yet"
        flow.clock.advance(seconds=1)
        assert flow.engine.hooks.deliver() == 1
        assert flow.engine.hooks.deliver() == 0
        delivered(flow)
    assert receiver.events() == ["step_failed", "run_completed"]
    revisions = [body["revision"] for body in receiver.bodies]
    assert revisions == sorted(revisions)
    assert {body["run_id"] for body in receiver.bodies} == {run.id}
    assert receiver.requests == 5


def test_an_unreachable_receiver_is_tried_until_the_limit(database_url: str) -> None:
    with hooked(database_url, "http://127.0.0.1:9/hook", webhook_max_tries=3) as flow:
        run = one.start(1)
        flow.settle()
        for _ in range(5):
            flow.engine.hooks.deliver()
            flow.clock.advance(hours=2)
        assert rows(flow.engine)["outbox"] == 1
        (diagnosis,) = flow.engine.doctor()
        assert diagnosis.invariant == "a delivery is due or done"
        assert diagnosis.violations[0].run_id == run.id
        assert flow.engine.doctor(repair=True)[0].is_repaired


def test_a_death_between_request_and_deletion_delivers_again(
    database_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hooked(database_url, receiver.url) as flow:
        one.start(1)
        flow.settle()
        with monkeypatch.context() as patched:
            patched.setattr("flowengine.store.outbox.Outbox.delivered", _die)
            with pytest.raises(SystemExit):
                flow.engine.hooks.deliver()
        delivered(flow)
        ids = Counter(body["id"] for body in receiver.bodies)
        assert list(ids.values()) == [2], "twice, with the same id"


def _die(*_: object) -> None:
    raise SystemExit


def test_one_process_delivers_at_a_time(database_url: str, receiver: Receiver) -> None:
    with hooked(database_url, receiver.url) as flow:
        one.start(1)
        flow.settle()
        other = Hooks(flow.database, flow.engine.settings)
        assert flow.engine.hooks.deliver() == 1
        fan.start([1, 2])
        flow.settle()
        assert other.deliver() == 0, "the first has the lease"
        flow.clock.advance(minutes=2)
        assert other.deliver() == 1


def test_recovery_delivers_in_a_thread_that_a_hanging_receiver_does_not_block(
    database_url: str, receiver: Receiver
) -> None:
    receiver.answers.append("hang")
    if database_url == "sqlite://":
        pytest.skip("a database in memory belongs to one thread")
    with hooked(database_url, receiver.url) as flow:
        one.start(1)
        flow.settle()
        flow.watchdog()  # returns although nobody answers
        thread = flow.engine.hooks._thread
        assert thread is not None
        thread.join(20)
        assert not thread.is_alive()
        flow.clock.advance(seconds=2)
        flow.watchdog()
        thread = flow.engine.hooks._thread
        assert thread is not None
        thread.join(20)
        assert receiver.events() == ["run_completed"]


def test_a_run_with_an_outcome_to_deliver_is_not_purged(
    database_url: str, receiver: Receiver
) -> None:
    with hooked(database_url, receiver.url) as flow:
        one.start(1)
        flow.settle()
        flow.clock.advance(hours=1)
        assert flow.engine.purge(older_than=0).runs == 0
        delivered(flow)
        flow.clock.advance(hours=1)
        assert flow.engine.purge(older_than=0).runs == 1


def test_without_hooks_nothing_is_written(database_url: str) -> None:
    with Flow(store_url=database_url) as flow:
        one.start(-1)
        flow.settle()
        assert "outbox" not in rows(flow.engine)
        assert flow.engine.hooks.deliver() == 0


def test_the_events_of_the_setting_are_delivered(database_url: str, receiver: Receiver) -> None:
    with hooked(database_url, receiver.url, hook_events="step_completed") as flow:
        fan.start([1, 2])
        flow.settle()
        delivered(flow)
    events = Counter(receiver.events())
    assert set(events) == {"step_completed"}
    paths = {o["path"] for body in receiver.bodies for o in body["outcomes"]}
    assert len([path for path in paths if path.endswith(".work")]) == 2


# --- alarms, and schedules that stop ---


def alarmed(flow: Flow) -> Run[Any]:
    """Start a run that waits for a worker, which it does not get."""
    run = one.start(1)
    alarm_unserved_tasks(flow.engine, [])
    assert run.info().alarm
    return run


def warnings(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    found = [each for each in caplog.records if getattr(each, "action", "") == action]
    assert {each.levelname for each in found} <= {"WARNING"}
    return [each.getMessage() for each in found]


def test_an_alarm_is_told_once_when_it_begins_however_many_passes_find_it(
    database_url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with hooked(database_url, receiver.url) as flow:
        run = alarmed(flow)
        for _ in range(3):
            alarm_unserved_tasks(flow.engine, [])
            delivered(flow)
        (body,) = receiver.bodies
        assert (body["run_id"], body["state"]) == (run.id, "RUNNING")
        assert (body["workflow"], body["revision"]) == ("hooks.one", run.info().revision)
        (outcome,) = body["outcomes"]
        assert (outcome["event"], outcome["path"]) == ("run_alarm", "hooks.one")
        assert outcome["error"]["message"] == run.info().alarm
        (line,) = warnings(caplog, "run_alarm")
        assert line == f"alarm of run {run.id} (hooks.one): {run.info().alarm}"


def test_an_alarm_that_begins_anew_is_told_again_with_another_id(
    database_url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with hooked(database_url, receiver.url) as flow:
        run = alarmed(flow)
        delivered(flow)
        flow.worker("w1")  # it has the code
        alarm_unserved_tasks(flow.engine)
        assert run.info().alarm is None
        flow.clock.advance(minutes=1)
        alarm_unserved_tasks(flow.engine, [])
        delivered(flow)
        assert receiver.events() == ["run_alarm", "run_alarm"]
        assert len({body["id"] for body in receiver.bodies}) == 2
        assert len(warnings(caplog, "run_alarm")) == 2


def test_an_alarm_of_a_retried_run_is_told_after_passes_without_work(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Flow(store_url=database_url) as flow:
        watchdog = Watchdog(flow.engine)
        run = flow.start(one, -1)
        let_pass(flow, watchdog, 3)
        assert len(warnings(caplog, "run_alarm")) == 1
        flow.settle()
        assert run.info().state == "FAILED"
        let_pass(flow, watchdog, 90)  # nothing waits, and the worker of `settle` dies
        run.retry()
        let_pass(flow, watchdog, 3)
        assert run.info().alarm
        assert len(warnings(caplog, "run_alarm")) == 2


def test_a_commit_that_removes_a_standing_alarm_does_not_let_it_begin_anew(
    database_url: str, receiver: Receiver
) -> None:
    with hooked(database_url, receiver.url) as flow:
        run = alarmed(flow)
        with flow.database.write() as session:  # as a commit of a process whose cache is stale
            session.recovery.set_alarms({run.id: None})
        alarm_unserved_tasks(flow.engine, [])
        assert run.info().alarm
        delivered(flow)
    assert receiver.events() == ["run_alarm"]


def test_an_alarm_that_is_gone_before_it_was_delivered_is_not_told(
    database_url: str, receiver: Receiver
) -> None:
    with hooked(database_url, receiver.url) as flow:
        alarmed(flow)
        flow.settle()
        delivered(flow)
    assert receiver.events() == ["run_completed"]


def test_alarms_of_many_runs_with_one_cause_are_one_line(
    database_url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with hooked(database_url, receiver.url) as flow:
        runs = [one.start(n) for n in range(5)]
        alarm_unserved_tasks(flow.engine, [])
        delivered(flow)
    assert {body["run_id"] for body in receiver.bodies} == {run.id for run in runs}
    (line,) = warnings(caplog, "run_alarm")
    assert " and 2 more runs: waits for a worker" in line


def test_without_the_event_in_the_setting_an_alarm_is_in_the_log_alone(
    database_url: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with hooked(database_url, receiver.url, hook_events="run_failed") as flow:
        alarmed(flow)
        assert "outbox" not in rows(flow.engine)
    assert len(warnings(caplog, "run_alarm")) == 1


def stop_schedule(flow: Flow) -> None:
    schedule = Schedule(every="1m", name="nightly", inputs={"n": 1})
    flow.engine.schedules.put(one.program(), one.name, schedule)
    with flow.database.write() as session:
        session.execute(text("UPDATE flowengine_schedule SET definition = 'no json'"))
    flow.clock.advance(minutes=1)
    flow.engine.schedules.take_due()


def test_a_schedule_that_stops_is_told_once(database_url: str, receiver: Receiver) -> None:
    with hooked(database_url, receiver.url) as flow:
        stop_schedule(flow)
        flow.engine.schedules.take_due()
        delivered(flow)
        (body,) = receiver.bodies
        assert (body["workflow"], body["state"], body["run_id"]) == ("hooks.one", "stopped", "")
        (outcome,) = body["outcomes"]
        assert (outcome["event"], outcome["path"]) == ("schedule_stopped", "nightly")
        assert outcome["error"]["message"] == flow.engine.schedules.get("nightly").error
        assert flow.engine.doctor() == []


# --- signals ---


def test_alarms_and_stopped_schedules_are_signals(database_url: str) -> None:
    seen: list[tuple[str, str, str]] = []

    def note(sender: str, run_id: str, outcome: Any, **_: Any) -> None:
        seen.append((sender, outcome.event, run_id))

    told = (signals.run_alarm, signals.schedule_stopped)
    for signal in told:
        signal.connect(note)
    try:
        with Flow(store_url=database_url, settings=Settings(outcome_signals=True)) as flow:
            flow.engine.hooks.add_sink(SIGNALS, signals.send_signals)
            run = alarmed(flow)
            delivered(flow)
            stop_schedule(flow)
            delivered(flow)
    finally:
        for signal in told:
            signal.disconnect(note)
    assert seen == [("hooks.one", "run_alarm", run.id), ("hooks.one", "schedule_stopped", "")]


def test_signals_are_sent_in_order_and_again_after_an_exception(database_url: str) -> None:
    seen: list[tuple[str, str, str]] = []
    fails = [True]

    @signals.step_failed.connect
    def on_step(sender: str, run_id: str, outcome: Any, **_: Any) -> None:
        seen.append((sender, outcome.event, outcome.path))
        if fails and fails.pop():
            raise ConnectionError("the receiver fails once")

    @signals.run_completed.connect
    def on_run(sender: str, run_id: str, outcome: Any, **_: Any) -> None:
        seen.append((sender, outcome.event, outcome.path))

    try:
        with Flow(store_url=database_url, settings=Settings(outcome_signals=True)) as flow:
            flow.engine.hooks.add_sink(SIGNALS, signals.send_signals)
            caught.start(-1)
            flow.settle()
            delivered(flow)
    finally:
        signals.step_failed.disconnect(on_step)
        signals.run_completed.disconnect(on_run)
    assert [event for _, event, _ in seen] == ["step_failed", "step_failed", "run_completed"]
    assert {sender for sender, _, _ in seen} == {"hooks.caught"}


# --- pure ---


def test_a_signature_is_of_time_and_body() -> None:
    body, keys = b'{"a":1}', ["first" * 8, "second" * 8]
    header = webhooks.signature(body, keys, 1_700_000_000)
    assert webhooks.verify(body, header, keys[1:], now=1_700_000_100)
    assert webhooks.verify(body, header, keys[:1], now=1_700_000_100)
    assert not webhooks.verify(body, header, ["third" * 8], now=1_700_000_100)
    assert not webhooks.verify(body + b" ", header, keys, now=1_700_000_100)
    assert not webhooks.verify(body, header, keys, now=1_700_000_301)
    for bad in ("", "v1=ä", "t=x,v1=1", "t=1,t=2", header.replace("t=1700", "t=1701")):
        assert not webhooks.verify(body, bad, keys, now=1_700_000_100)


def test_pauses_grow_to_an_hour() -> None:
    assert [pause_before(tries) for tries in (0, 1, 2, 11, 12, 100)] == [
        *(1_000, 2_000, 4_000),
        *(2_048_000, 3_600_000, 3_600_000),
    ]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FLOWENGINE_WEBHOOK_URL": "ftp://x"}, "begins with https:// or http://"),
        ({"FLOWENGINE_WEBHOOK_URL": "https://x"}, "requests of the webhook are signed"),
        ({"FLOWENGINE_WEBHOOK_KEYS": "short"}, "at least 32 characters"),
        ({"FLOWENGINE_HOOK_EVENTS": "run_ended"}, "a list of run_alarm, run_cancelled"),
    ],
)
def test_a_wrong_setting_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Settings.from_environment(environment)
    assert message in str(caught.value)

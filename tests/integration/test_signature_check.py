"""With keys, the Celery tasks of the engine accept signed messages and refuse all others."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signature
from celery.exceptions import Ignore

from flowengine import event_facet, signed_message
from flowengine.assembly import FlowEngine
from flowengine.authoring import set_launcher_source
from flowengine.message_keys import MessageKeys
from flowengine.settings import Settings
from flowengine.tasks import celery_tasks
from flowengine.tasks.signature_check import SignatureCheck
from flowengine.worker.outage_log import OutageLog

KEY = "k" * 32
KEYS = MessageKeys(KEY)
WAKE_UPS: dict[str, tuple[Any, ...]] = {
    "flowengine.drain": ("default", 1),
    "flowengine.work": ("default", "a:"),
    "flowengine.evaluate": ("run",),
    celery_tasks.WATCHDOG: (),
}
CALLS: list[Any] = []


@event_facet(name="signature_check.note")
def note(n: int) -> int:
    CALLS.append(n)
    return n


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def record(*args: Any) -> None:
            self.calls.append((name, *args))

        return record


@pytest.fixture(autouse=True)
def own_launcher() -> Iterator[None]:
    """Undo what `FlowEngine` does to this process."""
    before = set_launcher_source(None)
    yield
    set_launcher_source(before)


@pytest.fixture
def handler() -> Recorder:
    return Recorder()


@pytest.fixture
def app(handler: Recorder) -> Celery:
    app = Celery("signed", broker="memory://", set_as_current=False)
    check = SignatureCheck(KEYS)
    celery_tasks.register_celery_tasks(app, handler, OutageLog(), check)  # type: ignore[arg-type]
    celery_tasks.register_facets(app, lambda: check)
    CALLS.clear()
    return app


def applied(app: Celery, name: str, args: Any = (), **options: Any) -> str:
    """Apply a task in this process; return the state of the message."""
    return str(app.tasks[name].apply(args, **options).state)


@pytest.mark.parametrize("task", WAKE_UPS)
def test_a_signed_wakeup_is_executed_and_another_is_not(
    task: str, app: Celery, handler: Recorder
) -> None:
    args = WAKE_UPS[task]
    assert applied(app, task, args, headers=KEYS.headers(task, args)) == "SUCCESS"
    assert len(handler.calls) == 1
    for headers in (
        None,
        {},
        KEYS.headers("flowengine.other", args),
        KEYS.headers(task, (*args, 1)),
        MessageKeys("x" * 32).headers(task, args),
    ):
        assert applied(app, task, args, headers=headers) == "IGNORED"
    assert len(handler.calls) == 1


@pytest.mark.parametrize("task", [celery_tasks.EXECUTE, note.name])
def test_a_start_and_a_facet_are_accepted_with_their_own_id_only(
    task: str, app: Celery, handler: Recorder
) -> None:
    args = (3,) if task == note.name else ("shop.order", {"n": 1})
    sent = signed_message(task, args, keys=KEY)
    given = {"args": sent["args"], "headers": sent["headers"]}
    assert applied(app, task, task_id=sent["task_id"], **given) == "SUCCESS"
    assert applied(app, task, task_id="another", **given) == "IGNORED"
    assert applied(app, task, args, task_id=sent["task_id"]) == "IGNORED"
    late = signed_message(task, args, keys=KEY, seconds=-1)
    given = {"args": late["args"], "headers": late["headers"]}
    assert applied(app, task, task_id=late["task_id"], **given) == "IGNORED"
    assert len(handler.calls) + len(CALLS) == 1


def test_a_task_called_inside_another_message_is_refused(app: Celery, handler: Recorder) -> None:
    # `celery.starmap` calls a task by name, without a message of its own.
    starmap = signature("celery.starmap", app=app)
    starmap["kwargs"] = {
        "task": app.signature("flowengine.execute"),
        "it": [["shop.order", {"n": 1}]],
    }
    headers = signed_message("celery.starmap", keys=KEY)["headers"]
    assert starmap.apply(headers=headers).state == "IGNORED"
    with pytest.raises(Ignore):
        app.tasks["flowengine.execute"]("shop.order", {"n": 1})
    assert handler.calls == []


def test_refused_messages_are_counted_and_logged_once_per_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = itertools.count(step=25)
    check = SignatureCheck(KEYS, clock=lambda: next(seconds))
    task = type("Request", (), {"headers": None, "id": "1"})()
    with caplog.at_level(logging.INFO, logger="flowengine"):
        for _ in range(7):
            with pytest.raises(Ignore):
                check.wake_up("flowengine.drain", task, ("default",), {})
    assert check.refused == 7
    assert [r.__dict__["count"] for r in caplog.records] == [1, 3, 3]
    assert {r.__dict__["action"] for r in caplog.records} == {"message_refused"}
    assert "flowengine.drain: it is not signed; check that all processes" in caplog.text


def test_the_beat_of_an_app_with_keys_signs_its_ticks(tmp_path: Any) -> None:
    app = Celery("signed", broker="memory://", set_as_current=False)
    app.conf.flowengine_database_url = f"sqlite:///{tmp_path}/flow.db"
    app.conf.flowengine_message_keys = KEY
    FlowEngine(app)
    entry = app.conf.beat_schedule[celery_tasks.WATCHDOG]
    assert entry["options"]["headers"] == KEYS.headers(celery_tasks.WATCHDOG)
    assert KEY not in app.conf.humanize(), "`celery inspect conf` shows it"
    assert applied(app, note.name, (1,)) == "IGNORED"


def test_an_app_without_keys_checks_and_signs_nothing(tmp_path: Any) -> None:
    app = Celery("unsigned", broker="memory://", set_as_current=False)
    flowengine = FlowEngine(app, settings=Settings(database_url=f"sqlite:///{tmp_path}/flow.db"))
    assert "headers" not in app.conf.beat_schedule[celery_tasks.WATCHDOG]["options"]
    assert flowengine._check is None
    assert applied(app, note.name, (1,)) == "SUCCESS"

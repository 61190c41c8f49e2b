"""The Celery tasks answer messages whatever happens in the engine."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signature
from celery.exceptions import Reject
from sqlalchemy.exc import OperationalError

from flowengine import event_facet, workflow
from flowengine.errors import (
    DatabaseBusy,
    DatabaseReadOnly,
    InvalidInputs,
    StartRefused,
    UnknownWorkflow,
)
from flowengine.tasks import celery_tasks, start_messages
from flowengine.worker.outage_log import OutageLog
from tests.registries import empty_registry


class Failing:
    """Has one problem, whatever is asked of it."""

    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any) -> None:
            raise self._problem

        return fail


def task_named(name: str, problem: Exception) -> Any:
    return app_of(Failing(problem)).tasks[name]


def app_of(handler: Any) -> Celery:
    app = Celery("tasks", broker="memory://", set_as_current=False)
    celery_tasks.register_celery_tasks(app, handler, OutageLog())
    return app


@pytest.mark.parametrize(
    "problem",
    [
        OperationalError("INSERT", {}, Exception("the server is unreachable")),
        DatabaseBusy("sqlite:///flow.db"),
        DatabaseReadOnly("postgresql://server/flow"),
        OSError("no route to host"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_a_start_that_the_database_does_not_take_goes_back_to_its_queue(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It has no row yet: acknowledged, it would be lost.
    monkeypatch.setattr(start_messages, "_PAUSE", 0)
    with pytest.raises(Reject) as refused:
        task_named(celery_tasks.EXECUTE, problem)("some.workflow", {})
    assert refused.value.requeue


def test_a_start_that_is_refused_is_logged_and_fails(caplog: pytest.LogCaptureFixture) -> None:
    refused = task_named(celery_tasks.EXECUTE, UnknownWorkflow("some.workflow", []))
    with (
        caplog.at_level(logging.ERROR, logger="flowengine"),
        pytest.raises(
            StartRefused, match=r"no run of 'some\.workflow': the program has no workflow"
        ),
    ):
        refused("some.workflow", {})
    assert "some.workflow" in caplog.text


def test_a_refused_start_is_a_failure_in_celery_with_its_reason() -> None:
    task = task_named(celery_tasks.EXECUTE, UnknownWorkflow("some.workflow", []))
    done = task.apply(("some.workflow", {}))
    assert done.state == "FAILURE"
    assert "no workflow 'some.workflow'" in str(done.result)
    assert task.store_errors_even_if_ignored, "the sender can read it"


def test_a_start_with_the_wrong_arguments_is_a_failure_in_celery() -> None:
    task = task_named(celery_tasks.EXECUTE, ValueError("not reached"))
    for args, kwargs in (((), {}), ((1, {}, None, 4), {}), ((), {"workflow": "w", "n": 1})):
        done = task.apply(args, kwargs)
        assert done.state == "FAILURE"
        assert isinstance(done.result, StartRefused)


CARD = "4111-1111-1111-1111"


def test_a_refused_start_logs_the_names_of_its_inputs_and_no_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inputs = {"card": CARD, **{f"field{n}": CARD for n in range(100_000)}}
    problem = InvalidInputs("pay", [f"'card' should be int, was '{CARD}' (str): no"])
    with caplog.at_level(logging.INFO, logger="flowengine"):
        done = task_named(celery_tasks.EXECUTE, problem).apply(("pay", inputs))
    assert done.state == "FAILURE"
    assert CARD not in f"{done.result}{done.traceback}"
    (record,) = [r for r in caplog.records if r.name == "flowengine"]
    assert record.action == "start_refused"  # type: ignore[attr-defined]
    text = record.getMessage()
    assert text.startswith("refused to start pay with the inputs 'card', 'field0', ")
    assert text.endswith("workflow 'pay' cannot be started: 'card' cannot be accepted")
    assert CARD not in caplog.text
    assert len(caplog.text) < 2_000


def test_a_start_that_fails_logs_no_value(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flowengine"):
        done = task_named(celery_tasks.EXECUTE, RuntimeError("a defect")).apply(
            ("pay", {"card": CARD})
        )
    assert "RuntimeError; the log of the worker has the traceback" in str(done.result)
    assert "'pay', 'card') failed" in caplog.text
    assert "a defect" in caplog.text
    assert CARD not in caplog.text


@pytest.mark.parametrize("name", [celery_tasks.WATCHDOG])
def test_any_other_task_leaves_its_error_to_recovery(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="flowengine"):
        task_named(name, KeyError("a defect"))()
    assert f"message {name}() failed" in caplog.text
    assert "Traceback" in caplog.text


class Sometimes:
    """Works on messages while its database is there."""

    is_there = True

    def drain(self, *_: Any) -> None:
        if not self.is_there:
            raise OperationalError("SELECT secret", {"n": 1}, Exception("the server is away"))

    work = evaluate = execute = watch = drain


def test_an_outage_is_one_line_at_its_begin_and_one_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Sometimes()
    tasks = app_of(handler).tasks
    with caplog.at_level(logging.INFO, logger="flowengine"):
        for is_there in (True, False, True, False, True):
            handler.is_there = is_there
            for _ in range(100):
                tasks[celery_tasks.WATCHDOG]()
                tasks["flowengine.drain"]("default")
    lines = [(r.levelname, r.__dict__["action"], r.exc_info) for r in caplog.records]
    assert lines == 2 * [("ERROR", "outage_began", None), ("WARNING", "outage_ended", None)]
    assert "the server is away" in caplog.text
    assert "secret" not in caplog.text, "the statement and its values are not logged"
    assert "with 200 failures" in caplog.text


def test_work_that_began_before_an_outage_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    ticks = itertools.count()
    outages = OutageLog(clock=lambda: next(ticks))
    with outages.watch():
        assert outages.note(OSError("no route to host"))
    assert [r.__dict__["action"] for r in caplog.records] == ["outage_began"]
    with outages.watch():
        pass
    assert [r.__dict__["action"] for r in caplog.records] == ["outage_began", "outage_ended"]
    assert not outages.note(KeyError("a defect"))


def test_a_forked_child_logs_an_outage_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    outages = OutageLog()
    outages.note(OSError("no route to host"))
    child = os.fork()
    if child == 0:
        os._exit(0 if outages._began is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_alias_of_a_task_is_registered_under_the_alias() -> None:
    app = Celery("aliased", broker="memory://", set_as_current=False)

    @app.task(name="shop.pack", shared=False)
    def pack(n: int) -> int:
        return n + 1

    with empty_registry():
        event_facet(aliases=["old.pack"])(pack)
        own = app.tasks["shop.pack"]
        celery_tasks.register_facets(app)  # warnings are errors
        assert app.tasks["shop.pack"] is own
        assert app.tasks["old.pack"].name == "old.pack"
        assert app.tasks["old.pack"](4) == 5


class Started:
    """Notes the starts that messages ask for."""

    def __init__(self) -> None:
        self.starts: list[tuple[Any, ...]] = []

    def execute(self, *given: Any) -> str:
        self.starts.append(given)
        return "run-1"

    def __getattr__(self, name: str) -> Any:
        def nothing(*_: Any) -> None: ...

        return nothing


@pytest.fixture
def became_workflow() -> Iterator[tuple[Celery, Started]]:
    """An app whose task `shop.nightly` has become a workflow."""
    with empty_registry():

        @workflow(name="shop.nightly")
        def nightly(day: str, depth: int = 3) -> str:
            return day

        handler = Started()
        app = app_of(handler)
        celery_tasks.register_workflows(app, handler, OutageLog())
        yield app, handler


def test_messages_of_a_task_that_became_a_workflow_start_its_run(
    became_workflow: tuple[Celery, Started],
) -> None:
    app, handler = became_workflow
    task = app.tasks["shop.nightly"]
    first = task.apply(("monday",), {"depth": 2}, task_id="m1")
    assert first.result == "run-1"
    task.apply((), {"day": "monday"}, task_id="m1")
    assert handler.starts == [
        ("shop.nightly", {"day": "monday", "depth": 2}, "m1", "return", "m1"),
        ("shop.nightly", {"day": "monday"}, "m1", "return", "m1"),
    ]
    assert task.acks_late


def test_a_message_with_other_arguments_than_the_workflow_is_refused_with_all_problems(
    became_workflow: tuple[Celery, Started],
) -> None:
    app, handler = became_workflow
    done = app.tasks["shop.nightly"].apply((), {"week": 3})
    assert isinstance(done.result, StartRefused)
    assert "'week' is unknown" in str(done.result)
    assert "'day' (str) is missing" in str(done.result)
    assert handler.starts == []


def test_a_message_that_is_part_of_a_canvas_is_refused(
    became_workflow: tuple[Celery, Started],
) -> None:
    # The rest of the canvas would go on with the id of a run that has just begun.
    app, handler = became_workflow
    done = app.tasks["shop.nightly"].apply(
        ("monday",), link=signature("shop.nightly", ("x",), app=app)
    )
    assert isinstance(done.result, StartRefused)
    assert "part of a canvas (callbacks)" in str(done.result)
    assert handler.starts == []

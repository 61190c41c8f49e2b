"""Results of callbacks are validated as a worker's are, and each refusal says what to do."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine import event_facet, workflow
from flowengine.engine import Engine
from flowengine.program.nodes import (
    FacetDeclaration,
    FacetKind,
    Field,
    Program,
    StepRef,
)
from flowengine.sdk import AgentPoller
from flowengine.settings import Settings
from tests.integration.engines import X, call, opened, program
from tests.integration.engines import workflow as declared_workflow

LIMIT = 1_000  #: bytes of a value


@event_facet(name="sdk_results.Count")
def count(text: str) -> int:
    raise AssertionError("the callback is called")


@workflow
def counted(text: str) -> int:
    return count(text)


@event_facet(name="sdk_results.Note")
def note(text: str) -> None:
    raise AssertionError("the callback is called")


@workflow
def noted(text: str) -> None:
    return note(text)


def of(*returns: Field) -> Program:
    """One event facet ``Work(x)`` with these returns, called by ``Flow``."""
    facet = FacetDeclaration(FacetKind.EVENT, "Work", params=(Field("x"),), returns=returns)
    yields = {field.name: StepRef(("a", field.name)) for field in returns}
    return program(facet, declared_workflow([call("a", "Work", x=X)], yields))


TWO = of(Field("y", "Long"), Field("z", "String"))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """On one database: nothing of a refused result reaches it."""
    database_url = f"sqlite:///{tmp_path}/flow.db"
    settings = Settings(spool_directory=str(tmp_path / "spool"), max_value_bytes=LIMIT)
    with opened(database_url, settings=settings) as engine:
        yield engine


def state_after(engine: Engine, given: Program, name: str, result: Any) -> tuple[str, str]:
    """Run one callback that returns this; return the state of the run, and its error."""
    poller = AgentPoller(engine)
    poller.register("Work", lambda payload: result)
    poller.register("sdk_results.Count", lambda payload: result)
    poller.register("sdk_results.Note", lambda payload: result)
    run = engine.start(given, name, {"x": 1} if given is not counted.program() else {"text": "a"})
    assert poller.poll_once() == 1
    info = run.info()
    states = [task.state for task in engine.tasks(run.id)]
    assert states == (["completed"] if info.state == "COMPLETED" else ["failed"])
    return info.state, (info.error or {}).get("message", "")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "'t.Work': 'y', 'z' are missing; it returns y, z, the callback nothing"),
        ({}, "'t.Work': 'y', 'z' are missing; it returns y, z, the callback nothing"),
        ({"y": 1}, "'t.Work': 'z' is missing; it returns y, z, the callback 'y'"),
        ({"y": 1, "z": "a", "more": 2}, "'more' is unknown, t.Work returns y, z"),
        ({"y": "one", "z": "a"}, "'y': expected Long, found"),
        ({"y": 1, "z": datetime.date(2026, 1, 1)}, "'z': expected String, found"),
        ({"y": 1, "z": "a" * LIMIT}, "'z' returned by t.Work"),
        ({1: 2}, "key 1"),
        (7, "the callback of Work returned a value of type int: it must return a dict with"),
        ("text", "the callback of Work returned a value of type str"),
        ([("y", 1)], "the callback of Work returned a value of type list"),
    ],
)
def test_a_result_that_cannot_be_recorded_fails_the_step(
    engine: Engine, result: Any, message: str
) -> None:
    state, error = state_after(engine, TWO, "t.Flow", result)
    assert state == "FAILED"
    assert message in error


@pytest.mark.parametrize(
    ("value", "found"),
    [(datetime.date(2026, 1, 1), "date"), ({1, 2}, "set"), (float("nan"), "nan"), (b"a", "bytes")],
)
def test_a_value_without_json_form_fails_the_step(engine: Engine, value: Any, found: str) -> None:
    state, error = state_after(engine, of(Field("y")), "t.Flow", {"y": {"deep": [value]}})
    assert state == "FAILED"
    assert "'y' returned by t.Work" in error
    assert found in error


@pytest.mark.parametrize(
    ("returns", "result"),
    [
        ((Field("y", "Long"), Field("z", "String")), {"y": 1, "z": "a"}),
        ((Field("y", "Long"), Field("z", "String")), {"y": None, "z": None}),  # null is a value
        ((Field("y", "Long"),), {"result": 1}),  # the only result, by its usual name
        ((), None),
        ((), {}),
    ],
)
def test_a_result_with_every_declared_name_is_recorded(
    engine: Engine, returns: tuple[Field, ...], result: Any
) -> None:
    assert state_after(engine, of(*returns), "t.Flow", result) == ("COMPLETED", "")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"result": 3}, ""),
        ({"result": "three"}, "'result': expected"),
        (None, "'result' is missing; it returns result, the callback nothing"),
        ({"value": 3}, "'value' is unknown, sdk_results.Count returns result"),
    ],
)
def test_a_callback_may_answer_for_a_python_facet(
    engine: Engine, result: Any, message: str
) -> None:
    state, error = state_after(engine, counted.program(), counted.name, result)
    assert state == ("FAILED" if message else "COMPLETED")
    assert message in error


def test_none_is_the_result_of_a_facet_that_returns_none(engine: Engine) -> None:
    poller = AgentPoller(engine)
    poller.register("Note", lambda payload: None)
    run = engine.start(noted.program(), noted.name, noted.inputs("a"))
    assert poller.poll_once() == 1
    assert run.result(timeout=0) is None

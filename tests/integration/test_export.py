"""A run is exported as one document, and evaluated again from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine import Retry, Secret, attempt, event_facet, foreach, sleep, wait_for, workflow
from flowengine.engine import Run
from flowengine.errors import UnknownRun
from flowengine.settings import Settings
from flowengine.testing import Flow, replay

FAILS: list[str] = []


@event_facet(name="export.call", retry=Retry(attempts=3, first_wait=4))
def call(n: int) -> int:
    if FAILS:
        raise ConnectionError(FAILS.pop())
    return n + 1


@event_facet(name="export.text")
def text_of(n: int) -> str:
    return "x" * n


@event_facet(name="export.login")
def login(token: Secret) -> int:
    return len(token.get_secret_value())


@workflow(name="export.small")
def small(n: int) -> int:
    return call(n)


@workflow(name="export.talks")
def talks(n: int) -> int:
    called = call(n)
    slept = sleep(called)
    answer = wait_for("size", int, timeout=3600)
    return call.after(slept)(answer)


@workflow(name="export.fan")
def fan(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: call(call(n)))


@workflow(name="export.large")
def large(n: int) -> int:
    return count(text_of(n))


@event_facet(name="export.count")
def count(text: str) -> int:
    return len(text)


@workflow(name="export.caught")
def caught(n: int) -> int:
    return attempt(lambda: failing(n), catch=lambda error: call(n))


@event_facet(name="export.failing")
def failing(n: int) -> int:
    raise ValueError("no")


@workflow(name="export.child")
def child(n: int) -> int:
    return call(small.start(n).result())


@workflow(name="export.secret")
def secret(token: Secret) -> int:
    return login(token)


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    FAILS.clear()
    with Flow(store_url=database_url, settings=Settings(secret_keys="k" * 32)) as flow:
        yield flow


def finished(flow: Flow, run: Run[Any]) -> None:
    for _ in range(20):
        flow.settle()
        flow.clock.advance(seconds=30)
        flow.watchdog()
        if run.info().is_final:
            return
    raise AssertionError(run.info())


SCENARIOS = {
    "small": lambda: small.start(1),
    "fan": lambda: fan.start(list(range(130))),
    "large": lambda: large.start(50_000),
    "caught": lambda: caught.start(1),
    "child": lambda: child.start(1),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_exported_run_is_evaluated_again_with_the_same_transitions(
    flow: Flow, name: str, tmp_path: Path
) -> None:
    FAILS.extend(["refused"] if name == "small" else [])
    run = SCENARIOS[name]()
    finished(flow, run)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(flow.engine.export(run.id)))
    again = replay(file).check()
    assert (again.state, again.commits) == (run.state, run.info().revision)
    if name != "large":
        assert again.outputs == run.info().outputs


def test_answers_and_timers_are_inputs_of_the_replay(flow: Flow) -> None:
    run = flow.start(talks, 1)
    flow.settle()
    run.send("size", 5, actor="eva")
    finished(flow, run)
    document = flow.engine.export(run.id)
    again = replay(document).check()
    assert again.outputs == {"result": 6}


def test_a_changed_decision_is_a_difference(flow: Flow) -> None:
    run = flow.start(small, 1)
    finished(flow, run)
    document = json.loads(json.dumps(flow.engine.export(run.id)))
    tasks = document["rows"]["flowengine_task"]
    place = tasks["columns"].index("outcome")
    error = tasks["columns"].index("error")
    for row in tasks["rows"]:
        row[place], row[error] = "final", '{"type":"ValueError","message":"no"}'
    again = replay(document)
    assert again.differences
    assert again.state == "FAILED"
    with pytest.raises(AssertionError, match="revision 2, state: recorded"):
        again.check()


def test_an_unfinished_run_can_be_exported(flow: Flow) -> None:
    run = flow.start(talks, 1)
    flow.settle()
    assert replay(flow.engine.export(run.id)).check().state == "RUNNING"


def test_secrets_are_masked_in_an_export(flow: Flow) -> None:
    run = flow.start(secret, Secret("hunter2hunter2"))
    finished(flow, run)
    with flow.database.read() as session:
        stored = session.run_rows.rows(run.id)
    document = json.dumps(flow.engine.export(run.id))
    assert "$secret" in json.dumps(stored)
    assert "hunter2" not in document
    assert "gAAAA" in json.dumps(stored), "the token of Fernet"
    assert "gAAAA" not in document
    replay(json.loads(document)).check()


def test_an_unknown_run_and_a_foreign_document_are_refused(flow: Flow, tmp_path: Path) -> None:
    with pytest.raises(UnknownRun):
        flow.engine.export("0" * 32)
    with pytest.raises(ValueError, match="not the export of a run"):
        replay({"rows": {}})

"""The history of a run: every transition, try and action, in order and without gaps."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from sqlalchemy import text

from flowengine import Retry, event_facet, foreach, sleep, wait_for, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine import Engine
from flowengine.engine.history import MAX_PATH, HistoryEntry, StepTransition
from flowengine.errors import AnswerRefused, UnknownRun
from flowengine.evaluator.states import StepState
from flowengine.store.claims import WorkerIdentity
from flowengine.testing import Flow
from flowengine.worker import TaskWorker
from tests.integration.engines import opened

FAILS: list[str] = []


@event_facet(name="history.call", retry=Retry(attempts=3, first_wait=4))
def call(n: int) -> int:
    if FAILS:
        raise ConnectionError(FAILS.pop())
    return n + 1


@event_facet(name="history.total")
def total(ns: list[int]) -> int:
    return sum(ns)


@workflow(name="history.talks")
def talks(n: int) -> int:
    called = call(n)
    slept = sleep(called)
    answer = wait_for("size", int, timeout=3600)
    return total.after(slept)([called, answer])


@workflow(name="history.fan")
def fan(ns: list[int]) -> int:
    return total(foreach(ns, lambda n: call(n)))


@pytest.fixture
def flow(database_url: str) -> Iterator[Flow]:
    FAILS.clear()
    with Flow(store_url=database_url) as flow:
        yield flow


def states_of(entries: list[HistoryEntry]) -> dict[str, list[str]]:
    """The states of each step in the order of the history."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        for step in entry.steps:
            found.setdefault(step.path, []).append(step.state)
    return found


def test_the_history_tells_transitions_tries_timers_and_answers(flow: Flow) -> None:
    FAILS.append("refused")
    run = flow.start(talks, 1)
    flow.settle()
    flow.clock.advance(seconds=4)
    flow.settle()
    flow.clock.advance(seconds=60)
    flow.watchdog()
    with pytest.raises(AnswerRefused):
        run.send("size", "large", actor="eva")
    run.send("size", 5, actor="eva")
    flow.settle()
    assert run.result(timeout=0) == 7

    entries = list(run.history())
    assert [entry.revision for entry in entries] == list(range(1, len(entries) + 1))
    assert len(entries) == run.info().revision
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    assert entries[-1].state == "COMPLETED"
    assert {entry.state for entry in entries[:-1]} == {"RUNNING"}
    states = states_of(entries)
    for path, last in {"talks": "COMPLETE", "talks.call": "COMPLETE"}.items():
        assert states[path][-1] == getattr(StepState, last), path
    assert states["talks.call"][0] == StepState.EVENT_TRANSMIT
    tries = [t for entry in entries for t in entry.tries if t.path == "talks.call"]
    assert [(t.number, t.outcome, t.error_type) for t in tries] == [
        (1, "failed", "ConnectionError"),
        (2, "succeeded", None),
    ]
    (retry,) = [r for entry in entries for r in entry.retries]
    (failed,) = [entry for entry in entries if entry.retries]
    assert (retry.number, retry.due - failed.at) == (2, 4_000)
    timers = [timer for entry in entries for timer in entry.timers]
    assert [(timer.path, timer.kind) for timer in timers] == [
        ("talks.wait_for", "flowengine.wait_for"),
        ("talks.sleep", "flowengine.sleep"),
    ]
    acts = [act for entry in entries for act in entry.interventions]
    assert [(act.kind, act.subject, act.actor) for act in acts] == [("answer", "size", "eva")] * 2
    assert "integer" in (acts[0].refused or "")
    assert acts[1].refused is None
    json.dumps([asdict(entry) for entry in entries])


def test_every_step_ends_in_the_history_as_in_its_row(flow: Flow) -> None:
    run = flow.start(fan, list(range(120)))
    flow.settle()
    assert run.state == "COMPLETED"
    states = states_of(list(run.history()))
    for step in run.steps():
        assert states[step.path][-1] == step.state, step.path
    tries = [t for entry in run.history() for t in entry.tries]
    assert len(tries) == len(flow.engine.tasks(run.id)) == 121
    assert {t.outcome for t in tries} == {"succeeded"}


def test_a_page_continues_behind_a_revision(flow: Flow) -> None:
    run = flow.start(talks, 1)
    flow.settle()
    whole = list(run.history())
    assert len(whole) > 1
    assert list(run.history(limit=1)) == whole[:1]
    assert list(run.history(after=1)) == whole[1:]
    assert list(run.history(after=99)) == []
    with pytest.raises(UnknownRun):
        flow.engine.history("0" * 32)


def test_entries_of_an_early_version_are_readable(flow: Flow) -> None:
    run = flow.start(talks, 1)
    early = {"happened": {"Started": 1}, "created": 3, "ended": ["talks.call"], "tasks": 1}
    with flow.database.write() as session:
        change = text("UPDATE flowengine_history SET summary = :text WHERE run_id = :run")
        values = {"text": json.dumps({**early, "state": "RUNNING"}), "run": run.id}
        session.connection.execute(change, values)
    (entry,) = run.history()
    assert entry.steps == [StepTransition("talks.call", StepState.COMPLETE)]
    assert (entry.state, entry.triggers, entry.omitted) == ("RUNNING", {"Started": 1}, 3)


@workflow(name="history.deep")
def deep(n: int) -> int:
    return call.named("a" * (MAX_PATH + 50))(n)


def test_a_long_path_is_stored_as_a_key_and_read_as_a_path(flow: Flow) -> None:
    run = flow.start(deep, 1)
    flow.settle()
    path = f"deep.{'a' * (MAX_PATH + 50)}"
    assert states_of(list(run.history()))[path][-1] == StepState.COMPLETE
    with flow.database.read() as session:
        query = text("SELECT sum(length(summary)) FROM flowengine_history")
        assert session.connection.execute(query).scalar() < 3 * MAX_PATH + 1_000


def test_readers_see_no_gap_while_workers_commit(database_url: str) -> None:
    with opened(database_url) as engine:
        program, name = fan.program(), fan.name
        runs = engine.start_many(program, name, [{"ns": list(range(30))}] * 4)
        ended = threading.Event()

        def work(number: int) -> None:
            worker = TaskWorker(engine, WorkerIdentity("s", f"{number:032}", 1), event_facet_names)
            while not all(run.state == "COMPLETED" for run in runs):
                worker.drain("default")
                for run in runs:
                    engine.advance(run.id)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        seen: dict[str, list[int]] = {run.id: [] for run in runs}

        def look(engine: Engine) -> None:
            for run_id, revisions in seen.items():
                after = revisions[-1] if revisions else 0
                revisions += [entry.revision for entry in engine.history(run_id, after=after)]
                assert revisions == list(range(1, len(revisions) + 1))

        while any(thread.is_alive() for thread in threads):
            look(engine)
        ended.set()
        for thread in threads:
            thread.join()
        look(engine)
        assert {run.id: run.info().revision for run in runs} == {
            run_id: len(revisions) for run_id, revisions in seen.items()
        }

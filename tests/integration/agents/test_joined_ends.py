"""The end of a call and the next step of its turn are one commit, unless a guard refuses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import text

from flowengine import event_facet, workflow
from flowengine.agents import agent
from flowengine.agents.handles import TurnHandle
from flowengine.authoring import Cache, event_facet_names
from flowengine.evaluator.records import CLAIMS
from flowengine.evaluator.triggers import Report
from flowengine.store.claims import WorkerIdentity
from flowengine.store.commits import CommitPlan
from flowengine.store.session import SqlSession
from flowengine.worker import TaskWorker
from flowengine.worker.execution import execute_try
from tests.integration.agents.clerks import Office, calls, clerk, judge, model, plan, search

pytestmark = pytest.mark.each_database


def _before_the_first(
    patch: pytest.MonkeyPatch, wanted: Callable[[CommitPlan], bool], act: Callable[[], object]
) -> list[CommitPlan]:
    """Let another process act just before the first commit of this kind; return that commit."""
    real, met = SqlSession.commit, list[CommitPlan]()

    def commit(session: SqlSession, rows: CommitPlan, *, guarded: bool = False) -> set[str]:
        if not met and guarded and wanted(rows):
            met.append(rows)
            act()
        return real(session, rows, guarded=guarded)

    patch.setattr(SqlSession, "commit", commit)
    return met


def _ends_a_call(rows: CommitPlan) -> bool:
    return rows.agents is not None and bool(rows.agents.ended_calls)


def _statuses(desk: Office, turn: TurnHandle[Any], kind: str) -> Sequence[str]:
    return [status for message, status in desk.inbox(turn) if message == kind]


def test_the_end_of_a_call_is_part_of_the_commit_that_goes_on(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.reset({"task": [calls("search"), "done"]})
    seen: list[tuple[int, int, int]] = []
    real = SqlSession.commit

    def commit(session: SqlSession, rows: CommitPlan, *, guarded: bool = False) -> set[str]:
        if rows.agents is not None and rows.runs:
            seen.append((len(rows.runs), len(rows.new_runs), len(rows.agents.heads)))
        return real(session, rows, guarded=guarded)

    monkeypatch.setattr(SqlSession, "commit", commit)
    turn = clerk.send("task")
    desk.work()
    assert turn.result(timeout=5) == "done"
    # An ended run, a new one and the head: of the first answer, and of the tool.
    assert seen[:2] == [(1, 1, 1), (1, 1, 1)]
    assert _statuses(desk, turn, "tool_result") == ["consumed"]
    desk.check(turn)


def test_a_result_from_outside_that_was_accepted_is_not_overtaken(
    on_server: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = on_server
    plan.reset({"task": [calls("search"), "done"]})
    turn = clerk.send("task")
    (call,) = desk.until_suspended(turn)
    accepted: list[bool] = []

    def report() -> None:
        accepted.append(not turn.report(call.id, "from outside"))

    with monkeypatch.context() as patch:
        patch.setattr(desk.agents, "_advance", lambda *_: [])  # the bell of the report is lost
        _before_the_first(patch, _ends_a_call, report)
        desk.flow.settle()
    desk.work()
    assert accepted == [True]
    assert desk.results(turn) == ["from outside"]
    assert turn.result(timeout=5) == "done"
    desk.check(turn)


def test_an_end_is_refused_if_the_turn_was_stopped_meanwhile(
    on_server: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = on_server
    plan.reset({"task": [calls("search"), "done"]})
    turn = clerk.send("task")
    desk.until_suspended(turn)
    with monkeypatch.context() as patch:
        refused = _before_the_first(patch, _ends_a_call, lambda: turn.stop("enough"))
        desk.flow.settle()
    desk.work()
    assert len(refused) == 1
    assert (turn.info().status, turn.info().error) == ("canceled", "enough")
    assert turn.info().steps == 1  # the model was not asked again
    desk.check(turn)


def test_parallel_calls_that_end_together_are_one_commit(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.reset({"task": [calls("search", "measure"), "done"]})
    turn = clerk.send("task")
    found = desk.until_suspended(turn)
    worker = desk.flow.worker("both")
    reports = []
    for call in found:
        assert call.run_id is not None
        task = worker.claim(desk.engine.run(call.run_id), "call")
        reports.append(Report(task, execute_try(desk.engine, task, lambda _: True)))
    met = _before_the_first(monkeypatch, _ends_a_call, lambda: None)
    desk.engine.report_many(reports)
    (rows,) = met
    assert rows.agents is not None
    assert (len(rows.runs), len(rows.agents.ended_calls), len(rows.agents.heads)) == (2, 2, 1)
    desk.work()
    assert turn.result(timeout=5) == "done"
    desk.check(turn)


def test_an_agent_that_another_process_has_advanced_is_read_again(desk: Office) -> None:
    plan.reset({"task": [calls("search"), "done"]})
    turn = clerk.send("task")
    desk.until_suspended(turn)
    known = desk.agents.heads.take("", desk.head(turn).agent)
    assert known is not None
    known.head.events -= 1  # as this process has last seen it
    desk.agents.heads.keep(known)
    desk.work()
    assert turn.result(timeout=5) == "done"
    desk.check(turn)


def test_a_call_that_was_entered_by_a_commit_long_ago_is_no_recovery(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task waited behind others of its batch: the head cache is not trusted any more."""
    plan.reset({"task": [calls("search"), "done"]})
    monkeypatch.setattr(desk.agents.heads, "entered", lambda *_: None)
    turn = clerk.send("task")
    worker = TaskWorker(desk.engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
    while turn.info().state != "finished":
        assert worker.drain("default") + worker.drain("models")
    assert (turn.info().recoveries, turn.info().steps) == (0, 2)
    worker.stop(1)
    desk.check(turn)


def test_a_call_that_was_claimed_by_a_commit_and_released_is_no_recovery(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was told to end while the commit that claimed the model call was made."""
    plan.reset({"task": [calls("search"), "done"]})
    turn = clerk.send("task")
    worker = TaskWorker(desk.engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
    met = _before_the_first(monkeypatch, _ends_a_call, worker.claim_no_more)
    while not met:
        assert worker.drain("default") + worker.drain("models")
    worker.stop(1)
    head = desk.head(turn)
    assert head.entered % CLAIMS == 1, "its commit has claimed and entered the second model call"
    desk.work()
    assert turn.result(timeout=5) == "done"
    assert (turn.info().recoveries, turn.info().steps) == (0, 2)
    desk.check(turn)


@workflow(name="tests.joined_ends.echo")
def echo(query: str = "kettle") -> str:
    """Return the question."""
    return query


@event_facet(name="tests.joined_ends.rate", cache=Cache("rates:{query}", 3600))
def rate(query: str = "EUR") -> str:
    """Return a rate, which is kept."""
    return "1.1"


@agent(model=model, tools=[echo, rate, search], name="tests.joined_ends.banker")
def banker(task: str) -> str:
    """You answer with your tools."""
    return task


@pytest.mark.parametrize(
    "spoken",
    [[calls("echo")], [calls("echo", "search", "echo")], [calls("rate"), calls("rate")]],
    ids=["without steps", "beside others", "from the cache"],
)
def test_a_tool_whose_run_ends_as_it_begins_is_taken_in(desk: Office, spoken: list[Any]) -> None:
    plan.reset({"task": [*spoken, "done"]})
    turn = banker.send("task")
    desk.flow.settle()
    assert turn.result(timeout=5) == "done"
    desk.check(turn)


@event_facet(name="tests.joined_ends.look")
def look(query: str = "kettle") -> str:
    """Look, and say so."""
    print("looking for", query)
    return query


@agent(model=model, tools=[look], name="tests.joined_ends.watcher")
def watcher(task: str) -> str:
    """You look."""
    return task


def test_the_lines_of_a_tool_are_stored_by_the_commit_of_its_agent(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.reset({"task": [calls("look"), "done"]})
    turn = watcher.send("task")
    (call,) = desk.until_suspended(turn)
    met = _before_the_first(monkeypatch, _ends_a_call, lambda: None)
    desk.flow.settle()
    (rows,) = met
    assert rows.agents is not None
    assert len(rows.logs) == 1
    assert turn.result(timeout=5) == "done"
    assert [line.text for line in desk.engine.run(call.run_id).logs()] == ["looking for kettle"]


def test_a_message_is_accepted_behind_one_that_cannot_be_dispatched(desk: Office) -> None:
    """An older version cannot read the profile of a turn that a newer one has enqueued."""
    plan.reset({"first": ["one"], "third": ["three"]})
    first = clerk.at("ada").send("first")
    second = judge.at("ada").send("second")
    with desk.engine.database.write() as session:
        session.execute(
            text(
                "UPDATE flowengine_card SET content = '{\"content\": {}}' WHERE card_id = "
                "(SELECT profile_card_id FROM flowengine_agent_turn WHERE agent_turn_id = :turn)"
            ),
            {"turn": second.id},
        )
    desk.agents.profiles._known.clear()
    desk.flow.settle()
    assert first.info().state == "finished"
    third = clerk.at("ada").send("third")
    assert third.info().state == "queued"

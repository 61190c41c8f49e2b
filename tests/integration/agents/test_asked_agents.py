"""Agents that workflows ask, and agents that are tools of agents."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.agents import TurnHandle
from flowengine.engine import Run
from flowengine.errors import RunFailed
from flowengine.models import Answer
from flowengine.models.messages import StopReason, Text, Usage
from flowengine.settings import Settings
from flowengine.worker.execution import execute_try
from tests.integration.agents.clerks import (
    Office,
    Verdict,
    ask_ada,
    ask_each,
    ask_judge,
    calls,
    clerk,
    model,
    office,
    plan,
    searched,
    submit,
)


def turns_of(desk: Office, run: Run[Any]) -> list[TurnHandle[Any]]:
    """The turns that the steps of a run wait for, or have waited for."""
    found = desk.rows(
        "SELECT project_id, agent_turn_id FROM flowengine_agent_turn WHERE waiting_run_id = %s "
        "ORDER BY enqueued_at, agent_turn_id",
        run.id,
    )
    return [desk.agents.handle(project, turn_id) for project, turn_id in found]


def children_of(desk: Office, turn: TurnHandle[Any]) -> list[TurnHandle[Any]]:
    found = desk.rows(
        "SELECT agent_turn_id FROM flowengine_agent_turn WHERE parent_turn_id = %s", turn.id
    )
    return [desk.agents.handle(turn.project, turn_id) for (turn_id,) in found]


def test_s13_a_workflow_asks_an_agent_for_each_item(any_desk: Office) -> None:
    plan.reset({text: [calls("search", query=text), f"done {text}"] for text in "abc"})
    run = ask_each.start(["a", "b", "c"])
    any_desk.work()
    assert run.result(timeout=5) == ["done a", "done b", "done c"]
    turns = turns_of(any_desk, run)
    assert len({turn.info().agent for turn in turns}) == 3  # each step has an agent of its own
    any_desk.check(*turns)


def test_s13_a_step_fails_with_the_code_of_its_turn(any_desk: Office) -> None:
    plan.reset({"a": ["fine"], "b": [RuntimeError("no"), RuntimeError("no")]})
    run = ask_each.start(["a", "b"])
    any_desk.work()
    with pytest.raises(RunFailed, match="no"):
        run.result(timeout=5)
    ends = sorted(str(turn.info().status) for turn in turns_of(any_desk, run))
    assert ends == ["failed", "success"]


def test_the_result_of_an_asked_agent_is_read_by_its_annotation(any_desk: Office) -> None:
    plan.reset({"judge": [submit(approve=False, reason="worn out")]})
    run = ask_judge.start("judge")
    any_desk.work()
    assert run.result(timeout=5) == Verdict(approve=False, reason="worn out")


def test_an_asked_agent_with_a_name_remembers_its_other_messages(any_desk: Office) -> None:
    plan.reset({"mine": ["done"], "asked": ["also done"]})
    turn = clerk.at("ada").send("mine")
    any_desk.work()
    run = ask_ada.start("asked")
    any_desk.work()
    assert run.result(timeout=5) == "also done"
    assert "mine" in str(model.requests[-1].messages)
    (asked,) = turns_of(any_desk, run)
    any_desk.check(turn, asked)


def test_s14_a_step_that_is_asked_twice_makes_one_turn(any_desk: Office) -> None:
    """The worker dies after the turn was enqueued, and before its try has ended."""
    plan.reset({"once": ["done"]})
    run = ask_each.start(["once"])
    first = any_desk.flow.worker("first")
    task = first.claim(run, "clerk")
    execute_try(any_desk.engine, task, lambda _=None: True)
    first.die()
    any_desk.work()
    assert run.result(timeout=5) == ["done"]
    (turn,) = turns_of(any_desk, run)
    assert plan.asked == [("once", 0)]
    any_desk.check(turn)


# --- ends that travel ---


def test_s15_cancelling_a_run_stops_the_turns_that_it_waits_for(any_desk: Office) -> None:
    plan.reset({"a": [calls("search"), "never"]})
    run = ask_each.start(["a"])
    worker = any_desk.flow.worker("asks")
    worker.work_on(worker.claim(run, "clerk"))
    any_desk.tick()
    (turn,) = turns_of(any_desk, run)
    run_id = any_desk.head(turn).run_id
    assert run_id is not None
    run.cancel(reason="not needed")
    for _ in range(3):
        any_desk.tick()
    assert any_desk.engine.run(run_id).info().state == "CANCELLED"  # its model call
    any_desk.work()
    assert (turn.info().status, turn.info().error_code) == ("canceled", "not_wanted")
    assert plan.asked == []
    any_desk.check(turn)


def test_stopping_a_turn_ends_the_runs_of_its_tools_and_its_child_turns(
    any_desk: Office,
) -> None:
    plan.reset({"parent": [calls("translator", "search"), "never"], "translate hello": ["bonjour"]})
    parent = clerk.at("ada").send("parent")
    waiting = {call.name: call for call in any_desk.until_suspended(parent)}
    asking = waiting["translator"].run_id
    assert asking is not None
    worker = any_desk.flow.worker("asks")
    worker.work_on(worker.claim(any_desk.engine.run(asking), "call"))
    (child,) = children_of(any_desk, parent)
    parent.stop("the customer left")
    for _ in range(4):
        any_desk.tick()
    for call in waiting.values():
        assert call.run_id is not None
        assert any_desk.engine.run(call.run_id).info().state == "CANCELLED"
    any_desk.work()
    assert (child.info().status, child.info().error_code) == ("canceled", "not_wanted")
    assert (searched, plan.asked) == ([], [("parent", 0)])
    any_desk.check(parent, child)


# --- agents as tools ---


def test_an_agent_is_a_tool_of_an_agent_one_deeper(any_desk: Office) -> None:
    plan.reset({"parent": [calls("translator"), "done"], "translate hello": ["bonjour"]})
    parent = clerk.at("ada").send("parent")
    any_desk.work()
    assert parent.result(timeout=5) == "done"
    assert any_desk.results(parent) == ["bonjour"]
    (child,) = children_of(any_desk, parent)
    assert (parent.info().depth, child.info().depth) == (0, 1)
    assert child.info().agent != parent.info().agent
    types = [card.type for card in any_desk.context(child)]
    assert "meta.parent_pointer" in types
    any_desk.check(parent, child)


def test_s16_a_turn_inside_too_many_others_is_refused_and_its_parent_reads_it() -> None:
    plan.reset({"parent": [calls("translator"), "done"], "translate hello": ["bonjour"]})
    with office("sqlite://", settings=Settings(max_agent_depth=1)) as desk:
        parent = clerk.at("ada").send("parent")
        desk.work()
        assert parent.result(timeout=5) == "done"
        assert children_of(desk, parent) == []
        (error,) = desk.results(parent)
        assert "recursion_depth_exceeded" in str(error)
        assert "max_agent_depth is 1" in str(error)
        assert plan.asked == [("parent", 0), ("parent", 1)]
        desk.check(parent)


def test_a_workflow_is_a_tool_of_an_agent(any_desk: Office) -> None:
    plan.reset({"twice": [calls("search_twice", query="pot"), "done"]})
    turn = clerk.send("twice")
    any_desk.work()
    assert turn.result(timeout=5) == "done"
    assert any_desk.results(turn) == ["found found pot"]
    any_desk.check(turn)


# --- people ---


def test_a_call_with_approval_waits_for_a_person_however_long(any_desk: Office) -> None:
    plan.reset({"pay": [calls("refund", query="7"), "done"]})
    turn = clerk.send("pay")
    (call,) = any_desk.until_suspended(turn)
    any_desk.tick(100_000)
    assert any_desk.head(turn).status == "suspended"
    turn.approve(call.id, by="eva", arguments={"query": "5"})
    any_desk.work()
    assert any_desk.results(turn) == ["paid 5"]
    any_desk.check(turn)


def test_a_call_that_a_person_rejects_is_read_by_the_model(any_desk: Office) -> None:
    plan.reset({"pay": [calls("refund"), "sorry"]})
    turn = clerk.send("pay")
    (call,) = any_desk.until_suspended(turn)
    turn.reject(call.id, by="eva", reason="too much")
    any_desk.work()
    assert turn.result(timeout=5) == "sorry"
    assert any_desk.results(turn) == [
        {"code": "rejected", "message": "eva has rejected the call: too much"}
    ]
    any_desk.check(turn)


def test_a_model_call_that_a_person_completes_is_heard(any_desk: Office) -> None:
    plan.reset({"by hand": ["never"]})
    turn = clerk.send("by hand")
    any_desk.tick()
    run_id = any_desk.head(turn).run_id
    assert run_id is not None
    answer = Answer((Text("typed"),), StopReason.END, Usage(), "a person")
    run = any_desk.engine.run(run_id)
    (path,) = [path for path in any_desk.flow.paths(run) if path.endswith(".call")]
    run.complete(path, {"result": answer.to_json()}, actor="eva")
    any_desk.work()
    assert turn.result(timeout=5) == "typed"
    any_desk.check(turn)

"""Joins whose tasks run again, in a fork or by a retry: their time begins anew."""

from __future__ import annotations

import pytest

from flowengine.agents import JoinTask
from flowengine.agents.turn_call import TurnCall
from flowengine.errors import GiveUp
from flowengine.evaluator import TaskDefinition
from tests.integration.agents.clerks import Office, calls, plan
from tests.integration.agents.teams import asking, ended, lead, new, statuses, team, turns_of


def test_a_fork_of_an_expired_join_gets_the_whole_deadline(any_desk: Office) -> None:
    plan.reset({"a": [calls("refund"), "paid"]})
    run = team.start([new("a")], deadline_seconds=50)
    any_desk.work()
    any_desk.tick(60)
    assert statuses(ended(any_desk, run)) == ["timeout", "timeout"]
    plan.reset({"a": [calls("search"), "done a"]})
    fork = run.fork(from_step="team.tasks")
    assert statuses(ended(any_desk, fork)) == ["success", "success"]
    assert statuses(run.result(timeout=5)) == ["timeout", "timeout"]


@pytest.mark.parametrize("is_fork", [False, True])
@pytest.mark.parametrize("expires", [False, True])
def test_tasks_that_run_again_are_ended_by_a_deadline_of_their_own(
    desk: Office, is_fork: bool, expires: bool
) -> None:
    plan.reset({"a": [calls("refund"), "paid"] if expires else ["done a"]})
    run = team.start([new("a")], deadline_seconds=50)
    desk.work()
    desk.tick(60)
    first = ended(desk, run)
    assert first.status == ("timeout" if expires else "success")
    plan.reset({"a": [calls("refund"), "paid"]})
    if is_fork:
        run = run.fork(from_step="team.tasks")
    else:
        run.retry(from_step="team.tasks")
    desk.flow.settle()
    desk.tick(30)
    desk.flow.settle()
    newest = turns_of(desk, run.id)[-1]
    assert (run.info().state, newest.info().status) == ("RUNNING", None)
    desk.tick(30)
    again = ended(desk, run)
    assert statuses(again) == ["timeout", "timeout"]
    assert again.results[0].error_code == "join_deadline"
    assert again.results[0].agent_turn_id != first.results[0].agent_turn_id


def test_a_task_that_runs_again_begins_in_a_join_that_failed_fast(any_desk: Office) -> None:
    plan.reset({"a": [RuntimeError("no"), RuntimeError("no")], "b": [calls("refund"), "paid"]})
    run = team.start([new("a"), new("b")], fail_fast=True)
    assert statuses(ended(any_desk, run)) == ["failed", "failed", "canceled"]
    plan.reset({"b": ["done b"]})
    run.retry(from_step="team.tasks[1]")
    assert statuses(ended(any_desk, run)) == ["failed", "failed", "success"]


def test_a_retry_while_the_deadline_goes_on_does_not_lengthen_it(desk: Office) -> None:
    plan.reset({"a": [calls("refund"), "paid"]})
    run = team.start([new("a")], deadline_seconds=50)
    desk.work()
    desk.tick(25)
    run.retry(from_step="team.tasks")
    desk.flow.settle()
    desk.tick(30)
    assert statuses(ended(desk, run)) == ["timeout", "timeout"]


def test_a_refused_task_names_its_agent_and_the_turn_that_it_has(
    small_desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.reset({"first": ["one"], "a": ["A"], "b": ["B"]})
    first = ended(small_desk, team.start([new("first")])).results[0]
    ask = small_desk.agents.ask

    def late(task: TaskDefinition, call: TurnCall) -> str:
        if call.agent_id:
            raise GiveUp("before its turn")
        ask(task, call)
        raise GiveUp("after its turn")

    monkeypatch.setattr(small_desk.agents, "ask", late)
    again = JoinTask(instruction="a", target_ref=first.agent_id, target_strategy="reuse")
    run = team.start([again, new("b")])
    small_desk.work()
    known, unknown = run.result(timeout=5).results
    assert (known.error, known.error_code) == ("before its turn", "refused")
    assert (known.agent_id, known.agent_turn_id) == (first.agent_id, "")
    (turn,) = turns_of(small_desk, run.id)
    info = turn.info()
    assert (unknown.error, unknown.task_index) == ("after its turn", 1)
    assert unknown.agent_id == info.agent
    assert (unknown.agent_turn_id, unknown.output_box_id) == (info.id, info.output_box_id)


_LONG = 700_000  #: characters: one fits into a value, two do not


def test_results_that_are_too_large_for_one_value_are_joined(desk: Office) -> None:
    plan.reset({"a": ["a" * _LONG], "b": ["b" * _LONG]})
    result = ended(desk, team.start([new("a"), new("b")]))
    assert [len(each.result) for each in result.results] == [_LONG, _LONG]
    assert [each.task_index for each in result.results] == [0, 1]


def test_an_agent_reads_large_results_of_its_join(small_desk: Office) -> None:
    plan.reset({"lead": [asking(new("a"), new("b")), "read"]})
    plan.steps |= {"a": ["a" * _LONG], "b": ["b" * _LONG]}
    turn = lead.send("lead")
    small_desk.work()
    assert turn.result(timeout=5) == "read"
    assert "a" * _LONG in str(small_desk.results(turn))

"""Joins: tasks for several agents at once, their statuses, memories and ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from flowengine import workflow
from flowengine.agents import JoinTask, agent, fork_join, tool
from flowengine.agents.enqueue import Enqueuer, NewTurn
from flowengine.errors import AuthoringError, RunFailed
from tests.integration.agents.clerks import (
    Office,
    calls,
    clerk,
    model,
    plan,
    submit,
    translator,
)
from tests.integration.agents.teams import (
    ask_team,
    asking,
    ended,
    lead,
    new,
    statuses,
    team,
    texts,
    turns_of,
)


def test_s13_results_are_in_the_order_of_the_tasks(any_desk: Office) -> None:
    plan.reset({"a": [calls("search", query="a"), "done a"], "b": ["done b"]})
    plan.steps["c"] = [submit(approve=True, reason="c")]
    result = ended(any_desk, team.start([new("a"), new("b"), new("c", "judge")]))
    assert statuses(result) == ["success"] * 4
    assert [each.task_index for each in result.results] == [0, 1, 2]
    results = [each.result for each in result.results]
    assert results == ["done a", "done b", {"approve": True, "reason": "c"}]


def test_s13_a_failed_task_does_not_stop_the_others(any_desk: Office) -> None:
    plan.reset({"a": [RuntimeError("no"), RuntimeError("no")], "b": ["done b"]})
    result = ended(any_desk, team.start([new("a"), new("b")]))
    assert statuses(result) == ["partial", "failed", "success"]
    assert "no" in result.results[0].error
    assert result.results[1].result == "done b"


def test_s15_fail_fast_stops_the_other_tasks(any_desk: Office) -> None:
    plan.reset({"a": [RuntimeError("no"), RuntimeError("no")], "b": [calls("refund"), "paid"]})
    result = ended(any_desk, ask_team.start([new("a"), new("b")]))
    assert statuses(result) == ["failed", "failed", "canceled"]
    assert result.results[1].error_code == "join_failed"


def test_s15_fail_fast_stops_a_task_that_waits_in_a_queue(any_desk: Office) -> None:
    plan.reset({"mine": [calls("refund"), "paid"]})
    plan.steps["a"] = [RuntimeError("no"), RuntimeError("no")]
    busy = clerk.at("ada").send("mine")
    any_desk.until_suspended(busy)  # it waits for a person
    tasks = [new("a"), JoinTask(instruction="b", target_ref="ada", target_strategy="reuse")]
    run = team.start(tasks, fail_fast=True)
    any_desk.work()
    result = run.result(timeout=5)
    assert statuses(result) == ["failed", "failed", "canceled"]
    assert ("b", 0) not in plan.asked  # its model was never asked
    assert busy.info().status is None  # the other turn of the agent goes on


def test_the_deadline_ends_the_tasks_and_keeps_the_results(any_desk: Office) -> None:
    plan.reset({"a": ["done a"], "b": [calls("refund"), "paid"]})
    run = team.start([new("a"), new("b")], deadline_seconds=50)
    any_desk.work()
    assert run.info().state == "RUNNING"
    any_desk.tick(60)
    result = ended(any_desk, run)
    assert statuses(result) == ["timeout", "success", "timeout"]
    assert result.results[0].result == "done a"
    assert result.results[1].error_code == "join_deadline"


def test_a_task_that_begins_after_its_join_has_ended_is_stopped(desk: Office) -> None:
    """The step of a task may be claimed when the others have been ended already."""
    plan.reset({"a": ["done a"]})
    run = team.start([new("a")], deadline_seconds=50)
    worker = desk.flow.worker("slow")
    worker.work_on(worker.claim(run, "team.team__open"))
    held = worker.claim(run, "team.tasks[0].attempt.team__member")
    desk.tick(60)
    other = desk.flow.worker("other")
    other.work_on(other.claim(run, "team.deadline[catch][case-0].team__expire"))
    worker.work_on(held)
    result = ended(desk, run)
    assert statuses(result) == ["timeout", "timeout"]
    assert plan.asked == []


def test_an_agent_uses_a_join_as_a_tool(any_desk: Office) -> None:
    plan.reset({"lead": [asking(new("a"), new("b")), "all done"], "a": ["A"], "b": ["B"]})
    turn = lead.at("boss").send("lead")
    any_desk.work()
    assert turn.result(timeout=5) == "all done"
    (result,) = any_desk.results(turn)
    assert isinstance(result, dict)
    assert [each["result"] for each in result["results"]] == ["A", "B"]  # type: ignore[index, union-attr, call-overload]
    (call,) = any_desk.calls(turn)
    assert call.run_id is not None
    members = turns_of(any_desk, call.run_id)
    assert [member.info().depth for member in members] == [1, 1]
    edges = any_desk.rows(
        "SELECT primitive, edge_phase FROM flowengine_execution_edges "
        "WHERE correlation_id = %s AND agent_turn_id = %s ORDER BY edge_phase",
        *(call.run_id, turn.id),
    )
    assert [tuple(edge) for edge in edges] == [("join", "request"), ("join", "response")]
    any_desk.check(turn, *members)


def test_a_parent_waits_a_minute_longer_than_its_join(small_desk: Office) -> None:
    plan.reset({"lead": [asking(new("a")), "done"], "a": [calls("refund"), "paid"]})
    turn = lead.send("lead")
    (call,) = small_desk.until_suspended(turn)
    assert call.deadline is not None
    assert call.deadline - small_desk.clock.now >= 1000 * (100 + 60) - 10_000
    small_desk.work()
    small_desk.tick(110)  # the deadline of the join, not that of the call
    small_desk.work()
    (result,) = small_desk.results(turn)
    assert isinstance(result, dict)
    assert result["status"] == "timeout"
    with pytest.raises(AuthoringError, match=r"give at least 160, or the join a shorter deadline"):
        agent(model=model, tools=[tool(team, timeout=100)])(_hurried).profile  # noqa: B018


def _hurried(task: str) -> str:
    """You hurry."""
    return task


def test_a_stop_of_the_parent_stops_the_tasks(any_desk: Office) -> None:
    plan.reset({"lead": [asking(new("a"), new("b")), "done"]})
    plan.steps |= {"a": [calls("refund"), "paid"], "b": [calls("refund"), "paid"]}
    turn = lead.send("lead")
    any_desk.work()
    (call,) = any_desk.calls(turn)
    members = turns_of(any_desk, str(call.run_id))
    assert len(members) == 2
    turn.stop("enough")
    any_desk.work()
    assert [member.info().status for member in members] == ["canceled", "canceled"]
    any_desk.check(turn, *members)


def test_a_reused_agent_remembers_and_a_new_one_does_not(any_desk: Office) -> None:
    plan.reset({"first": ["one"], "again": ["two"], "fresh": ["three"]})
    first = ended(any_desk, team.start([new("first")])).results[0]
    again = JoinTask(instruction="again", target_ref=first.agent_id, target_strategy="reuse")
    result = ended(any_desk, team.start([again, new("fresh")]))
    assert result.results[0].agent_id == first.agent_id
    assert result.results[1].agent_id != first.agent_id
    asked = {texts(request)[-1]: texts(request) for request in model.requests}
    assert asked["again"][1:] == ["first", "one", "again"]
    assert asked["fresh"][1:] == ["fresh"]


def test_a_clone_begins_with_a_memory_that_is_its_own_from_then_on(any_desk: Office) -> None:
    plan.reset({"first": ["one"], "x": ["two"], "y": ["three"], "z": ["four"]})
    first = ended(any_desk, team.start([new("first")])).results[0]
    clones = [
        JoinTask(instruction=text, target_ref=first.agent_id, target_strategy="clone")
        for text in "xy"
    ]
    result = ended(any_desk, team.start(clones))
    assert statuses(result) == ["success"] * 3
    assert len({first.agent_id, *(each.agent_id for each in result.results)}) == 3
    again = JoinTask(instruction="z", target_ref=first.agent_id, target_strategy="reuse")
    ended(any_desk, team.start([again]))
    asked = {texts(request)[-1]: texts(request) for request in model.requests}
    for text in "xyz":
        assert asked[text][1:] == ["first", "one", text]


def test_a_clone_of_a_working_agent_lacks_the_turn_that_goes_on(small_desk: Office) -> None:
    plan.reset({"first": ["one"], "long": [calls("refund"), "paid"], "x": ["two"]})
    clerk.at("ada").send("first")
    small_desk.work()
    busy = clerk.at("ada").send("long")
    small_desk.until_suspended(busy)
    clone = JoinTask(instruction="x", target_ref="ada", target_strategy="clone")
    run = team.start([clone])
    small_desk.work()
    assert statuses(run.result(timeout=5)) == ["success", "success"]
    asked = {texts(request)[-1]: texts(request) for request in model.requests}
    assert asked["x"][1:] == ["first", "one", "x"]


def _begin_long(desk: Office, source: Any) -> None:
    desk.until_suspended(source.send("long"))


class _Meanwhile:
    """Sends statements, and does something else before one of them."""

    def __init__(self, rows: Callable[..., Any], at: int, act: Callable[[], object]) -> None:
        self._rows, self._at, self._act, self.sent = rows, at, act, 0

    def __call__(self, text: str, values: Any = ()) -> Any:
        self.sent += 1
        if self.sent == self._at + 1:
            self._act()
        return self._rows(text, values)


def test_a_clone_of_an_agent_that_begins_meanwhile_lacks_the_turn_that_goes_on(
    on_server: Office,
) -> None:
    """The turn begins between any two statements of the transaction that makes the clone."""
    plan.reset({"first": ["one"], "long": [calls("refund"), "paid"]})
    at, last = 0, 1
    while at < last:
        source = clerk.at(f"ada {at}")
        source.send("first")
        on_server.flow.settle()
        new_turn = NewTurn("", f"copy {at}", clerk.profile, "x", clone_of=f"ada {at}")
        with on_server.engine.database.write() as session:
            meanwhile = _Meanwhile(session.rows, at, partial(_begin_long, on_server, source))
            session.rows = meanwhile  # type: ignore[method-assign]
            Enqueuer(on_server.engine.settings).enqueue(session, new_turn)
        at, last = at + 1, meanwhile.sent
        copied = on_server.rows(
            "SELECT c.type FROM flowengine_box_card b JOIN flowengine_agent_turn t "
            "ON t.output_box_id = b.box_id JOIN flowengine_card c ON c.card_id = b.card_id "
            "WHERE t.agent_id = %s AND b.turn_epoch = -1 ORDER BY b.position",
            new_turn.agent,
        )
        assert "tool.call" not in [kind for (kind,) in copied], (at, copied)
        assert copied
    assert last > 3


def test_a_task_is_shown_the_box_of_an_earlier_one(small_desk: Office) -> None:
    def shown() -> Any:
        (box_id,) = small_desk.rows(
            "SELECT output_box_id FROM flowengine_agent_turn WHERE parent_turn_id IS NOT NULL"
        )[0]
        return asking(JoinTask(instruction="b", target_ref="clerk", context_box_id=box_id))

    plan.reset({"a": [calls("search", query="tea"), "A"], "b": ["B"]})
    plan.steps["lead"] = _Late([lambda: asking(new("a")), shown, lambda: "done"])
    turn = lead.at("boss").send("lead")
    small_desk.work()
    assert turn.result(timeout=5) == "done"
    (request,) = [each for each in model.requests if texts(each)[-1] == "b"]
    _, before, _ = texts(request)
    *known, last = before.splitlines()[1:]
    assert known == ["Task of boss: a", "Result of a tool: found tea"]
    assert last.endswith(": A")


@workflow
def two_joins(first: list[JoinTask], second: list[JoinTask], alone: str) -> list[Any]:
    return [
        team(first, fail_fast=True).status,
        team.named("other")(second).status,
        clerk(alone),
    ]


def test_joins_in_one_run_end_nothing_but_their_own_turns(any_desk: Office) -> None:
    plan.reset({"a": [RuntimeError("no"), RuntimeError("no")], "b": [calls("refund"), "paid"]})
    plan.steps["alone"] = [calls("refund"), "paid alone"]
    run = two_joins.start([new("a")], [new("b")], "alone")
    any_desk.work()
    for info in any_desk.agents.turns():
        turn = any_desk.agents.handle("", info.id)
        for call in turn.calls():
            if call.is_open:
                turn.approve(call.id, by="eva")
    any_desk.work()
    assert run.result(timeout=5) == ["failed", "success", "paid alone"]


@workflow
def join_after_join(first: list[JoinTask], second: list[JoinTask]) -> str:
    begun = team(first, fail_fast=True).status
    return team.named("later").after(begun)(second).status


def test_a_join_after_one_that_failed_fast_asks_its_agents(any_desk: Office) -> None:
    plan.reset({"a": [RuntimeError("no"), RuntimeError("no")], "b": ["done b"]})
    run = join_after_join.start([new("a")], [new("b")])
    any_desk.work()
    assert run.result(timeout=5) == "success"
    assert ("b", 0) in plan.asked


def test_a_purge_of_a_clone_leaves_the_memory_of_its_source_alone(desk: Office) -> None:
    plan.reset({"first": ["one"], "x": ["two"], "second": ["three"], "third": ["four"]})
    clerk.at("ada").send("first")
    desk.work()
    ended(desk, team.start([JoinTask(instruction="x", target_ref="ada", target_strategy="clone")]))
    desk.clock.advance(seconds=10 * 86_400)
    clerk.at("ada").send("second")
    desk.work()
    desk.engine.purger.purge_turns(older_than=5 * 86_400)
    clerk.at("ada").send("third")
    desk.work()
    assert texts(model.requests[-1])[1:] == ["first", "one", "second", "three", "third"]


def test_an_agent_does_not_remember_the_instructions_of_a_box_it_was_shown(
    small_desk: Office,
) -> None:
    known: list[str] = []

    def newest() -> tuple[str, str]:
        """The box and the agent of the task that was given last."""
        (found,) = [
            (box_id, agent_id)
            for box_id, agent_id in small_desk.rows(
                "SELECT output_box_id, agent_id FROM flowengine_agent_turn "
                "WHERE parent_turn_id IS NOT NULL"
            )
            if box_id not in known
        ]
        known.append(found[0])
        return found

    def shown() -> Any:
        return asking(JoinTask(instruction="b", target_ref="clerk", context_box_id=newest()[0]))

    def again() -> Any:
        reader = newest()[1]
        return asking(JoinTask(instruction="c", target_ref=reader, target_strategy="reuse"))

    plan.reset({"a": ["A"], "b": ["B"], "c": ["C"]})
    plan.steps["lead"] = _Late([lambda: asking(new("a")), shown, again, lambda: "done"])
    turn = lead.at("boss").send("lead")
    small_desk.work()
    assert turn.result(timeout=5) == "done"
    (request,) = [each for each in model.requests if texts(each)[-1] == "c"]
    assert texts(request)[1:] == ["b", "B", "c"]  # not "a": that was another agent's


class _Late(list):  # type: ignore[type-arg]
    """Answers that are made when they are asked for."""

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at)()


@pytest.mark.parametrize(
    ("tasks", "options", "problem"),
    [
        ([], {}, r"a join has 1 to 8 tasks, not 0"),
        ([new("a")] * 9, {}, r"a join has 1 to 8 tasks, not 9"),
        (
            [new("a", "nobody")],
            {},
            r"task 0: there is no agent 'nobody', the agents .* clerk, judge",
        ),
        ([new("a")], {"deadline_seconds": 0}, r"above 0 and at most 100, not 0"),
        ([new("a")], {"deadline_seconds": 101}, r"above 0 and at most 100, not 101"),
        (
            [new("a"), JoinTask(instruction="b", target_ref="x", target_strategy="reuse")],
            {},
            r"task 1: agent 'x' has never had a task",
        ),
        (
            [JoinTask(instruction="b", target_ref="x", target_strategy="reuse")] * 2,
            {},
            r"agent 'x' is reused for two tasks, and works on one at a time; clone it",
        ),
        (
            [JoinTask(instruction="b", target_ref="ted", target_strategy="clone")],
            {},
            r"agent 'ted' is none of the agents of this join",
        ),
        (
            [JoinTask(instruction="b", target_ref="clerk", context_box_id="stolen")],
            {},
            r"the box 'stolen' is none of this turn",
        ),
    ],
)
def test_a_join_is_refused_as_a_whole(
    small_desk: Office, tasks: list[JoinTask], options: dict[str, Any], problem: str
) -> None:
    plan.reset({"translate hi": ["hallo"]})
    translator.at("ted").send("hi")
    small_desk.work()
    run = team.start(tasks, **options)
    small_desk.work()
    with pytest.raises(RunFailed, match=problem):
        run.result(timeout=5)
    assert turns_of(small_desk, run.id) == []


def test_an_agent_cannot_give_a_task_to_one_that_waits_for_it(small_desk: Office) -> None:
    @agent(model=model, name="tests.loop")
    def loop(task: str) -> str:
        """You loop."""
        return task

    loop.tools = (fork_join(loop, name="tests.circle"),)
    task = JoinTask(instruction="again", target_ref="boss", target_strategy="reuse")
    plan.reset({"loop": [calls("circle", tasks=[task.model_dump()]), "given up"]})
    turn = loop.at("boss").send("loop")
    small_desk.work()
    assert turn.result(timeout=5) == "given up"
    assert "agent 'boss' waits for this join" in str(small_desk.results(turn))


def test_a_join_names_the_problem_of_its_definition() -> None:
    with pytest.raises(AuthoringError, match=r"fork_join takes agents"):
        fork_join()
    with pytest.raises(AuthoringError, match=r"fork_join takes agents"):
        fork_join(team)  # type: ignore[arg-type]
    with pytest.raises(AuthoringError, match=r"two agents have the same short name"):
        fork_join(clerk, clerk)
    with pytest.raises(
        AuthoringError, match=r"there is a join 'tests.team' of other agents, .*judge"
    ):
        fork_join(clerk, name="tests.team")
    with pytest.raises(AuthoringError, match=r"takes a name of letters, .*not 'my team!'"):
        fork_join(clerk, name="my team!")
    with pytest.raises(AuthoringError, match=r"takes the name of a task list, not ''"):
        fork_join(clerk, name="tests.listless", task_list="")
    assert fork_join(clerk, name="squad").name == "tests.integration.agents.clerks.squad"
    with pytest.raises(AuthoringError, match=r"max_tasks from 1 to 1000, not 0"):
        fork_join(clerk, max_tasks=0)
    with pytest.raises(AuthoringError, match=r"deadline_seconds as a number above 0, not -1"):
        fork_join(clerk, deadline_seconds=-1)

"""Definitions, messages, reports and answers that do not fit: each is refused with its reason."""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any

import pytest

from flowengine import workflow
from flowengine.agents import Budget, agent, tool
from flowengine.agents.addresses import AgentAddress
from flowengine.agents.enqueue import NewTurn
from flowengine.errors import (
    AuthoringError,
    CallRefused,
    DoesNotFit,
    InvalidInputs,
    ModelAuthenticationFailed,
    ModelRateLimited,
    ModelStreamCut,
    NotJson,
    TooLarge,
    TurnFailed,
    TurnRefused,
    UnknownTurn,
)
from flowengine.models import Answer, StopReason, ToolCall
from flowengine.models.messages import Text, Usage
from flowengine.settings import Settings
from flowengine.store.agent_inbox import Message
from flowengine.turns.states import InboxState
from tests.integration.agents.clerks import (
    Office,
    calls,
    clerk,
    judge,
    model,
    office,
    plan,
    refund,
    search,
    searched,
    translator,
)

# --- definitions ---


def test_an_agent_needs_annotations() -> None:
    with pytest.raises(AuthoringError, match="has no annotation for: ticket, return; its param"):

        @agent(model=model, name="t.unannotated")
        def unannotated(ticket):  # type: ignore[no-untyped-def]
            return ticket


def test_the_parameter_that_names_an_agent_is_the_engines() -> None:
    with pytest.raises(AuthoringError, match="the parameter 'agent_id' is the engine's own"):

        @agent(model=model, name="t.taken")
        def taken(agent_id: str) -> str:
            return agent_id


def test_an_agent_needs_a_model() -> None:
    with pytest.raises(AuthoringError, match=r"is no model: give one of flowengine\.models"):
        agent(model="claude")  # type: ignore[arg-type]


_numbers = itertools.count()


def _with_tools(*tools: Any) -> Any:
    @agent(model=model, tools=tools, name=f"t.many_{next(_numbers)}")
    def many(task: str) -> str:
        return task

    return many


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(AuthoringError, match="has two tools of the name 'search'; give one anoth"):
        assert _with_tools(search, tool(refund, name="search")).profile


def test_something_that_is_no_tool_is_refused() -> None:
    with pytest.raises(AuthoringError, match="is no tool; tools are event facets, workflows and"):
        assert _with_tools(print).profile


def test_the_name_of_the_built_in_tool_is_taken() -> None:
    with pytest.raises(AuthoringError, match="the tool name 'submit_result' is built in"):
        assert _with_tools(tool(search, name="submit_result")).profile


@pytest.mark.parametrize("name", ["two words", "ä", "x" * 65])
def test_a_name_that_providers_refuse_is_refused_at_once(name: str) -> None:
    with pytest.raises(AuthoringError, match="a name is 1 to 64 letters, digits, '_' and '-'"):
        tool(search, name=name)


@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, "5", True])
def test_a_tool_takes_a_timeout_above_0(timeout: Any) -> None:
    with pytest.raises(AuthoringError, match="takes a timeout in seconds above 0"):
        tool(search, timeout=timeout)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"steps": 0}, "steps as a whole number above 0, not 0"),
        ({"steps": 2.5}, "steps as a whole number above 0, not 2.5"),
        ({"steps": None}, "steps as a whole number above 0, not None"),
        ({"steps": True}, "steps as a whole number above 0, not True"),
        ({"tokens": -5}, "tokens as a whole number above 0, not -5"),
        ({"tokens": "many"}, "tokens as a whole number above 0, not 'many'"),
        ({"seconds": 0}, "seconds above 0, not 0"),
        ({"seconds": math.inf}, "seconds above 0, not inf"),
        ({"seconds": math.nan}, "seconds above 0, not nan"),
    ],
)
def test_a_budget_takes_numbers_above_0(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(AuthoringError, match=problem):
        Budget(**given)


# --- messages ---


def test_an_agent_is_not_called_outside_a_workflow() -> None:
    with pytest.raises(AuthoringError, match=r'send it a message with clerk.at\("a name"\).send'):
        clerk("hello")
    with pytest.raises(AuthoringError, match="without a project; elsewhere use send"):
        clerk.at("ada")("hello")


def test_a_workflow_does_not_send(small_desk: Office) -> None:
    @workflow(name="t.sends")
    def sends(task: str) -> str:
        clerk.at("ada").send(task)
        return task

    with pytest.raises(AuthoringError, match="a workflow asks an agent by calling it"):
        sends.start("hello")


@pytest.mark.parametrize("name", ["x" * 201, 7])
def test_the_name_of_an_agent_is_a_short_text(name: Any) -> None:
    with pytest.raises(AuthoringError, match="the name of an agent is a text of at most 200"):
        clerk.at(name)


@pytest.mark.parametrize("key", ["", "x" * 201, 7])
def test_the_key_of_a_message_is_a_short_text(key: Any) -> None:
    with pytest.raises(AuthoringError, match="the key of a message is a text of 1 to 200 charac"):
        clerk.at("ada").options(key=key)


def test_an_unknown_choice_for_a_busy_agent_is_refused() -> None:
    with pytest.raises(AuthoringError, match="when_busy is 'queue', 'refuse' or 'interrupt', not"):
        clerk.at("ada").options(when_busy="explode")  # type: ignore[arg-type]


def test_arguments_of_a_message_are_checked(small_desk: Office) -> None:
    with pytest.raises(InvalidInputs, match="task"):
        clerk.send()  # type: ignore[call-arg]
    with pytest.raises(InvalidInputs, match="task"):
        clerk.send(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputs, match="task"):
        clerk.send(object())  # type: ignore[arg-type]
    assert small_desk.rows("SELECT count(*) FROM flowengine_agent_turn")[0][0] == 0


def test_an_agent_must_return_the_text_of_its_task(small_desk: Office) -> None:
    with pytest.raises(AuthoringError, match="must return the text of its task, not ' '"):
        clerk.send(" ")


def test_an_instruction_has_a_limit() -> None:
    with (
        office("sqlite://", settings=Settings(max_value_bytes=1_000)),
        pytest.raises(TooLarge, match="the instruction of agent 'ada'"),
    ):
        clerk.at("ada").send("x" * 2_000)


def test_a_turn_inside_too_many_others_is_refused() -> None:
    with office("sqlite://") as desk:
        new = NewTurn("acme", "ada", clerk.profile, "hello", depth=20)
        with pytest.raises(TurnRefused, match=r"recursion_depth_exceeded.*max_agent_depth is 20"):
            desk.agents.send(new)


def test_one_key_for_two_agents_without_names_is_two_turns(small_desk: Office) -> None:
    """The agents have no name: they must not become one because of the key."""
    first = AgentAddress(clerk, "", "").options(key="mail-17").send("hello")
    second = AgentAddress(translator, "", "").options(key="mail-17").send("hello")
    assert first.id != second.id
    assert (first.duplicate, second.duplicate) == (False, False)


# --- turns and calls ---


def test_a_turn_that_is_unknown_or_of_another_project_cannot_be_touched(
    small_desk: Office,
) -> None:
    agents = small_desk.agents
    turn = clerk.at("ada", project="acme").send("hello")
    for project, turn_id in (("acme", "f" * 32), ("other", turn.id), ("", turn.id)):
        known = f"there is no turn '{turn_id}'"
        with pytest.raises(UnknownTurn, match=known):
            agents.turn(project, turn_id)
        with pytest.raises(UnknownTurn, match=known):
            agents.handle(project, turn_id)
        with pytest.raises(UnknownTurn, match=known):
            agents.stop(project, turn_id)
        with pytest.raises(UnknownTurn, match=known):
            agents.report(project, turn_id, "f" * 32, 1)
        with pytest.raises(UnknownTurn, match=known):
            agents.approve(project, turn_id, "f" * 32, by="eva")


def waiting(desk: Office, name: str = "search") -> tuple[Any, Any]:
    plan.reset({"wait": [calls(name), "done"]})
    turn = clerk.send("wait")
    (call,) = desk.until_suspended(turn)
    return turn, call


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"status": "fine"}, "its status 'fine' is not one of success, failed, canceled, timeout"),
        ({"after_execution": "explode"}, "after_execution is 'suspend' or 'terminate', not 'explo"),
        ({"error": "oops"}, "its error is a map, not 'oops'"),
        ({"epoch": 99}, "it names epoch 99, and the agent has 1"),
    ],
)
def test_a_report_that_does_not_fit_is_refused_and_changes_nothing(
    small_desk: Office, options: dict[str, Any], problem: str
) -> None:
    turn, call = waiting(small_desk)
    with pytest.raises(CallRefused, match=problem):
        turn.report(call.id, "r", **options)
    assert turn.report(call.id, "r", epoch=1) is False


def test_a_report_of_a_call_that_was_never_made_is_refused(small_desk: Office) -> None:
    turn, _ = waiting(small_desk)
    with pytest.raises(CallRefused, match="the turn has made no such call"):
        turn.report("f" * 32, "r")


def test_a_result_that_is_no_json_or_too_large_is_refused(small_desk: Office) -> None:
    turn, call = waiting(small_desk)
    with pytest.raises(NotJson, match=f"the result of call {call.id}"):
        turn.report(call.id, {1, 2})  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match=f"the result of call {call.id}"):
        turn.report(call.id, "x" * (small_desk.engine.settings.max_value_bytes + 1))
    with pytest.raises(NotJson, match=f"the error of call {call.id}"):
        turn.report(call.id, status="failed", error={"code": {1}})
    assert turn.report(call.id, "r") is False


def test_only_a_call_that_waits_for_a_person_is_approved(small_desk: Office) -> None:
    turn, call = waiting(small_desk)
    with pytest.raises(CallRefused, match="nobody has to decide about it: it is needs no approval"):
        turn.approve(call.id, by="eva")
    small_desk.work()
    with pytest.raises(CallRefused, match="the turn does not wait for it any more"):
        turn.reject(call.id, by="eva")


def test_an_approval_with_other_arguments_is_checked_like_the_models(small_desk: Office) -> None:
    turn, call = waiting(small_desk, "refund")
    with pytest.raises(CallRefused, match="the arguments do not fit: 'sum' is unknown"):
        turn.approve(call.id, by="eva", arguments={"sum": 7})
    with pytest.raises(CallRefused, match="its arguments are a map of names to values"):
        turn.approve(call.id, by="eva", arguments=[7])
    turn.approve(call.id, by="eva")
    with pytest.raises(CallRefused, match="nobody has to decide about it: it is approved"):
        turn.approve(call.id, by="tom")


# --- rows ---


def row(turn: Any, kind: str, turn_id: str = "", payload: Any = None, epoch: int = 0) -> Message:
    info = turn.info()
    return Message(
        *(turn.project, "e" * 32, info.agent, kind, "odd", turn_id or turn.id, epoch),
        *({} if payload is None else payload, InboxState.PENDING, 0, 0, 0),
    )


@pytest.mark.parametrize(("kind", "turn_id"), [("telepathy", ""), ("stop", "f" * 32)])
def test_a_message_of_no_turn_or_no_known_type_is_an_error_and_harms_nobody(
    small_desk: Office, caplog: pytest.LogCaptureFixture, kind: str, turn_id: str
) -> None:
    turn, _ = waiting(small_desk)
    small_desk.add(row(turn, kind, turn_id))
    with caplog.at_level(logging.ERROR, "flowengine"):
        small_desk.work()
    assert turn.result(timeout=5) == "done"
    (logged,) = [r for r in caplog.records if getattr(r, "action", "") == "agent_message_refused"]
    assert "cannot be taken in: it names no turn, or has no known type" in logged.getMessage()
    found = small_desk.rows(
        "SELECT status, last_error FROM flowengine_agent_inbox WHERE correlation_id = 'odd'"
    )
    assert tuple(found[0]) == ("error", "it names no turn, or has no known type")


def test_a_message_of_another_agents_turn_is_an_error(small_desk: Office) -> None:
    turn, _ = waiting(small_desk)
    other = clerk.at("bob").send("wait")
    small_desk.add(row(turn, "stop", other.id, {"code": "x", "reason": "x", "status": "failed"}))
    small_desk.work()
    assert (turn.result(timeout=5), other.result(timeout=5)) == ("done", "done")


def test_a_stop_under_an_epoch_that_the_agent_never_had_changes_nothing(
    small_desk: Office,
) -> None:
    turn, _ = waiting(small_desk)
    payload = {"code": "stopped", "reason": "r", "status": "canceled"}
    small_desk.add(row(turn, "stop", payload=payload, epoch=99))
    small_desk.work()
    assert turn.result(timeout=5) == "done"


def test_a_message_that_cannot_be_read_is_put_off_and_then_ends_its_turn(
    small_desk: Office,
) -> None:
    turn, call = waiting(small_desk)
    following = clerk.at(turn.info().agent).send("wait")
    message = row(turn, "tool_result", payload={"neither": "card nor run"})
    now = small_desk.clock.now
    small_desk.add(message._replace(correlation_id=call.id, due=now, created=now))
    waits = []
    for _ in range(6):
        small_desk.tick()
        found = small_desk.rows(
            "SELECT status, retry_count, next_retry_at FROM flowengine_agent_inbox "
            "WHERE correlation_id = %s",
            call.id,
        )
        assert found[0][0] == "deferred"
        waits.append(found[0][1])
    assert waits == sorted(waits)
    assert waits[-1] > 1
    assert small_desk.head(turn).status == "suspended"
    for _ in range(30):
        small_desk.tick(60)
    assert (turn.info().status, turn.info().error_code) == ("failed", "resume_retry_exhausted")
    small_desk.work()
    assert following.result(timeout=5) == "done"
    small_desk.check(turn, following)


def test_a_turn_whose_profile_cannot_be_read_fails_and_the_next_one_runs(
    small_desk: Office,
) -> None:
    turn, _ = waiting(small_desk)
    bad = clerk.at(turn.info().agent).send("wait")
    following = clerk.at(turn.info().agent).send("wait")
    with small_desk.engine.database.write() as session:
        session.rows(
            "UPDATE flowengine_agent_turn SET profile_card_id = %s WHERE agent_turn_id = %s "
            "RETURNING agent_turn_id",
            ("f" * 32, bad.id),
        )
    small_desk.flow.settle()
    for _ in range(15):
        small_desk.tick(60)
    small_desk.work()
    assert (bad.info().status, bad.info().error_code) == ("failed", "dispatch_failed")
    assert following.result(timeout=5) == "done"


# --- models ---


def garbage(**call: Any) -> Answer:
    made = ToolCall("call_0", call.pop("name", "search"), call.pop("arguments", {}), **call)
    return Answer((made,), StopReason.TOOL_CALLS, Usage(), "scripted")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (garbage(unreadable="{oops"), "the arguments are no JSON object: {oops"),
        (garbage(name="teleport"), "there is no tool 'teleport'; the tools are: search, measure"),
        (garbage(arguments={"place": 1}), "'place' is unknown, it takes query"),
        (garbage(arguments={"query": 7}), "query"),
        (garbage(name="submit_result"), "there is no tool 'submit_result'"),
    ],
)
def test_garbage_of_a_model_is_answered_and_nothing_is_started(
    small_desk: Office, answer: Answer, problem: str
) -> None:
    plan.reset({"talk": [answer, "sorry"]})
    turn = clerk.send("talk")
    small_desk.work()
    assert turn.result(timeout=5) == "sorry"
    (error,) = small_desk.results(turn)
    assert isinstance(error, dict)
    assert error["code"] == "refused"
    assert problem in str(error["message"])
    assert searched == []
    small_desk.check(turn)


def test_a_long_problem_of_garbage_is_cut(small_desk: Office) -> None:
    plan.reset({"talk": [garbage(unreadable="x" * 100_000), "sorry"]})
    turn = clerk.send("talk")
    small_desk.work()
    (error,) = small_desk.results(turn)
    assert len(str(error)) < 3_000


def test_a_key_that_is_refused_ends_the_turn_without_another_try(small_desk: Office) -> None:
    plan.reset({"talk": [ModelAuthenticationFailed("scripted", "401")]})
    turn = clerk.send("talk")
    small_desk.work()
    with pytest.raises(TurnFailed, match="the request is not authorized") as failed:
        turn.result(timeout=5)
    assert (failed.value.status, failed.value.code) == ("failed", "model_failed")
    assert len(plan.asked) == 1
    small_desk.check(turn)


class Flaky:
    """A plan whose first answers fail."""

    def __init__(self, *problems: Exception) -> None:
        self.problems = list(problems)

    def __getitem__(self, step: int) -> Any:
        return self.problems.pop(0) if self.problems else "done"

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "problem", [ModelStreamCut("scripted"), ModelRateLimited("scripted", retry_after=20)]
)
def test_a_cut_stream_is_asked_for_again(small_desk: Office, problem: Exception) -> None:
    plan.reset({"talk": Flaky(problem)})  # type: ignore[dict-item]
    turn = clerk.send("talk")
    small_desk.work()
    small_desk.tick(30)
    small_desk.work()
    assert turn.result(timeout=5) == "done"
    assert (len(plan.asked), turn.info().recoveries) == (2, 1)
    small_desk.check(turn)


def test_a_stream_that_is_always_cut_ends_the_turn(small_desk: Office) -> None:
    plan.reset({"talk": Flaky(*[ModelStreamCut("scripted")] * 9)})  # type: ignore[dict-item]
    turn = clerk.send("talk")
    small_desk.work()
    with pytest.raises(TurnFailed, match="the stream ended before the answer did"):
        turn.result(timeout=5)
    assert len(plan.asked) == 2  # the attempts of the agent's retry
    small_desk.check(turn)


@pytest.mark.parametrize(
    ("reason", "code"),
    [(StopReason.MAX_TOKENS, "answer_cut_off"), (StopReason.DECLINED, "model_declined")],
)
def test_an_answer_that_is_cut_off_is_delivered_as_partial(
    small_desk: Office, reason: Any, code: str
) -> None:
    plan.reset({"talk": [Answer((Text("half"),), reason, Usage(), "scripted")]})
    turn = clerk.send("talk")
    small_desk.work()
    with pytest.raises(TurnFailed) as failed:
        turn.result(timeout=5)
    assert (failed.value.status, failed.value.code) == ("partial", code)
    assert failed.value.deliverable == "half"


def test_a_tool_that_fails_is_read_by_the_model(small_desk: Office) -> None:
    plan.reset({"talk": [calls("search", query="broken"), "sorry"]})
    turn = clerk.send("talk")
    small_desk.work()
    assert turn.result(timeout=5) == "sorry"
    (error,) = small_desk.results(turn)
    assert isinstance(error, dict)
    assert "the archive is closed" in str(error["message"])


def test_a_tool_that_ends_the_turn_with_another_kind_of_result_is_named(
    small_desk: Office,
) -> None:
    @agent(model=model, tools=[tool(refund, name="settle", ends_turn=True)], name="tests.mixed")
    def mixed(task: str) -> int:
        """You count."""
        return task  # type: ignore[return-value]

    plan.reset({"mixed": [calls("settle", query="ten")]})
    turn = mixed.send("mixed")
    small_desk.work()
    with pytest.raises(DoesNotFit, match=r"result of turn \w+ does not fit .*valid integer"):
        turn.result(timeout=5)


def test_a_turn_whose_seconds_are_spent_ends_while_it_waits(small_desk: Office) -> None:
    plan.reset({"slow": [calls("search"), "never"]})
    turn = judge.send("slow")
    small_desk.until_suspended(turn)
    small_desk.tick(601)
    small_desk.tick()
    assert (turn.info().status, turn.info().error_code) == ("timeout", "max_seconds_reached")
    small_desk.work()
    small_desk.check(turn)

"""The answers of a model: texts, calls, submissions and garbage."""

from __future__ import annotations

import pytest

from flowengine.turns.records import CardType, Rules
from flowengine.turns.states import HeadState, TaskStatus
from tests.unit.turns.played_agent import PlayedAgent, asked, entered, submission

FIELDS = Rules(must_submit=True)


def test_a_text_ends_a_turn_that_asks_for_text() -> None:
    agent = entered()
    agent.say(text="bonjour")
    delivery, content = agent.delivered()
    assert (delivery.status, content) == (TaskStatus.SUCCESS, {"text": "bonjour"})
    assert agent.head.status == HeadState.IDLE
    assert agent.types() == [CardType.THOUGHT, CardType.DELIVERABLE]


def test_an_empty_text_delivers_that_there_is_no_content() -> None:
    agent = entered()
    agent.say()
    assert agent.delivered()[1] == {"text": "(no content)"}


def test_a_text_alone_does_not_end_a_turn_that_asks_for_fields() -> None:
    agent = entered(FIELDS)
    agent.say(text="I think so")
    assert agent.types() == [CardType.THOUGHT, CardType.REMINDER]
    assert (agent.head.status, len(agent.model_calls)) == (HeadState.RUNNING, 2)


@pytest.mark.parametrize("problem", ["answer_cut_off", "model_declined"])
def test_an_answer_that_is_cut_off_ends_the_turn_as_partial(problem: str) -> None:
    agent = entered()
    agent.say(text="half a", problem=problem)
    delivery, content = agent.delivered()
    assert (delivery.status, delivery.code) == (TaskStatus.PARTIAL, problem)
    assert content == {"text": "half a"}


def test_a_provider_that_pauses_gets_its_answer_back() -> None:
    agent = entered()
    agent.say(text="wait", goes_on=True)
    assert (agent.head.status, len(agent.model_calls)) == (HeadState.RUNNING, 2)
    assert agent.types() == [CardType.THOUGHT]


# --- calls ---


def test_calls_are_started_and_the_turn_waits_for_all_of_them() -> None:
    agent = entered()
    changes = agent.say(asked("search"), asked("refund", timeout=5_000))
    assert changes is not None
    assert (agent.head.status, agent.head.waiting) == (HeadState.SUSPENDED, 2)
    assert agent.head.run_id is None
    assert agent.head.resume_deadline == agent.now + 5_000  # the earliest
    assert [call.deadline for call in agent.calls.values()] == [301_000, 6_000]
    assert agent.types() == [CardType.THOUGHT, CardType.TOOL_CALL, CardType.TOOL_CALL]


def test_ids_of_calls_are_the_engines_own_even_if_the_model_repeats_its_ids() -> None:
    first, second = entered(), entered(name="second")
    first.say(asked(), asked())
    second.say(asked())
    ids = [*first.calls, *second.calls]
    assert len(set(ids)) == 3
    assert {call.model_call_id for call in first.calls.values()} == {"call_0"}


def test_a_call_that_needs_approval_waits_without_a_run_and_without_a_deadline() -> None:
    agent = entered()
    agent.say(asked(needs_approval=True))
    (call,) = agent.open_calls()
    assert (call.approval, call.run_id, call.deadline) == ("asked", None, None)
    assert agent.head.resume_deadline is None


def test_a_turn_with_a_deadline_wakes_at_it_while_a_person_decides() -> None:
    agent = entered()
    assert agent.turn is not None
    agent.turn.deadline = 9_000
    agent.say(asked(needs_approval=True))
    assert agent.head.resume_deadline == 9_000


def test_refused_calls_are_answered_and_the_model_goes_on_at_once() -> None:
    agent = entered()
    agent.say(asked("nothing", problem="there is no tool 'nothing'"))
    assert agent.types() == [CardType.THOUGHT, CardType.TOOL_CALL, CardType.TOOL_RESULT]
    assert (agent.head.status, len(agent.model_calls), agent.calls) == (HeadState.RUNNING, 2, {})
    refused = agent.cards[f"{'first':0>32}"][-1].content
    assert isinstance(refused, dict)
    assert (refused["status"], refused["error"]) == (
        "failed",
        {"code": "refused", "message": "there is no tool 'nothing'"},
    )


def test_a_refused_call_does_not_keep_its_siblings_from_starting() -> None:
    agent = entered()
    agent.say(asked("nothing", problem="no"), asked("search"))
    assert [call.name for call in agent.open_calls()] == ["search"]
    assert agent.head.waiting == 1


# --- submit_result ---


def test_a_submission_ends_the_turn_with_its_fields() -> None:
    agent = entered(FIELDS)
    agent.say(submission(("approve", True), ("reason", "r")))
    delivery, content = agent.delivered()
    assert (delivery.status, delivery.code) == (TaskStatus.SUCCESS, "")
    assert content == {
        "fields": [{"name": "approve", "value": True}, {"name": "reason", "value": "r"}]
    }
    assert agent.types() == ["agent.thought", "tool.call", "tool.result", "task.deliverable"]


def test_a_submission_that_does_not_fit_is_answered_and_the_model_tries_again() -> None:
    agent = entered(FIELDS)
    agent.say(submission(problem="these fields are missing: reason"))
    assert agent.deliveries[f"{'first':0>32}"] == []
    agent.enter()
    agent.say(submission(("reason", "r")))
    assert agent.delivered()[0].status == TaskStatus.SUCCESS


@pytest.mark.parametrize("siblings", [(asked(),), (submission(("a", 1)),)])
def test_a_submission_with_siblings_is_refused_and_each_call_is_answered(
    siblings: tuple[object, ...],
) -> None:
    agent = entered(FIELDS)
    agent.say(submission(("a", 1)), *siblings)  # type: ignore[arg-type]
    assert (agent.head.status, agent.calls) == (HeadState.RUNNING, {})
    results = [c for c in agent.cards[f"{'first':0>32}"] if c.type == CardType.TOOL_RESULT]
    assert len(results) == len({card.tool_call_id for card in results}) == 2
    for card in results:
        assert isinstance(card.content, dict)
        assert "submit_result must be the only call" in str(card.content["error"])


def test_a_turn_submits_once_and_a_second_submission_comes_too_late() -> None:
    agent = entered(FIELDS)
    run_id = agent.head.run_id
    agent.say(submission(("a", 1)))
    assert agent.say(submission(("a", 2)), run_id=run_id) is None
    assert agent.delivered()[1] == {"fields": [{"name": "a", "value": 1}]}


# --- budgets ---


def test_the_last_model_call_of_a_budget_ends_the_turn_with_what_it_has() -> None:
    agent = entered(Rules(max_steps=2, must_submit=True))
    agent.say(text="one")
    agent.enter()
    agent.say(text="two")
    delivery, content = agent.delivered()
    assert (delivery.status, delivery.code) == (TaskStatus.FAILED, "max_steps_reached")
    assert delivery.message == "the turn has used its budget of 2 model calls"
    assert {"name": "output", "value": "two"} in content["fields"]  # type: ignore[index,operator,call-overload]
    assert CardType.ERROR in agent.types()
    assert len(agent.model_calls) == 2


def test_a_result_in_the_last_step_of_a_budget_counts() -> None:
    agent = entered(Rules(max_steps=1, must_submit=True))
    agent.say(submission(("a", 1)))
    assert agent.delivered()[0].status == TaskStatus.SUCCESS


@pytest.mark.parametrize("used", [20, 21])
def test_tokens_that_are_spent_allow_no_further_model_call(used: int) -> None:
    agent = entered(Rules(max_tokens=20, must_submit=True))
    agent.say(text="much", tokens=used)
    assert agent.delivered()[0].code == "max_tokens_reached"


def test_seconds_that_are_spent_allow_no_further_model_call() -> None:
    agent = entered(FIELDS)
    assert agent.turn is not None
    agent.turn.deadline = agent.now
    agent.say(text="slow")
    assert agent.delivered()[0].code == "max_seconds_reached"


def test_the_budget_counts_each_turn_by_itself() -> None:
    agent = entered(Rules(max_steps=1))
    agent.say(text="one")
    agent.dispatch("second")
    agent.enter()
    agent.say(text="two")
    assert agent.delivered("second")[0].status == TaskStatus.SUCCESS


# --- by hand ---


def test_an_answer_that_a_person_gave_before_a_worker_entered_is_heard() -> None:
    agent = PlayedAgent()
    agent.dispatch()
    agent.say(asked())
    assert agent.head.status == HeadState.SUSPENDED

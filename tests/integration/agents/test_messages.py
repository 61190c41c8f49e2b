"""Messages to agents: in the caller's transaction, asynchronous, with events, from any process."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine

from flowengine.agents import agent, agents_of
from flowengine.agents.drafts import Draft
from flowengine.authoring import event_facet_names
from flowengine.models import Answer, Chunk, ModelRequest, StopReason, ToolCall
from flowengine.models.messages import Text, ToolResult, Usage
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.agents.clerks import (
    Office,
    calls,
    clerk,
    judge,
    model,
    office,
    plan,
    submit,
)
from tests.integration.engines import opened


def test_a_message_to_an_idle_agent_is_dispatched_with_it(desk: Office) -> None:
    desk.agents._finish = lambda effects: []  # type: ignore[method-assign]  # it dies after the commit
    turn = clerk.send("task")
    assert (turn.info().state, desk.head(turn).status) == ("active", "dispatched")
    assert desk.inbox(turn) == [("turn", "pending")]


def test_a_message_in_the_callers_transaction_is_sent_by_its_commit(on_server: Office) -> None:
    plan.reset({"hello": ["bonjour"]})
    engine = create_engine(on_server.engine.database.url)
    with engine.connect() as connection:
        with connection.begin() as transaction:
            undone = clerk.at("ada").options(connection=connection).send("hello")
            transaction.rollback()
        with connection.begin():
            turn = clerk.at("ada").options(connection=connection).send("hello")
            assert on_server.rows("SELECT count(*) FROM flowengine_agent_turn")[0][0] == 0
    engine.dispose()
    on_server.work()
    assert turn.result(timeout=5) == "bonjour"
    with pytest.raises(LookupError, match=f"there is no turn '{undone.id}'"):
        undone.info()


def test_a_message_can_be_sent_and_awaited_without_blocking(small_desk: Office) -> None:
    plan.reset({"hello": ["bonjour"], "stop": ["never"]})

    async def talk() -> tuple[str, list[str]]:
        turn = await clerk.at("ada").asend("hello")
        small_desk.work()
        stopped = await clerk.at("ada").asend("stop")
        await stopped.astop("enough")
        kinds = [event.kind async for event in stopped.events()]
        return await turn.aresult(timeout=5), kinds

    answer, kinds = asyncio.run(talk())
    assert (answer, kinds[-1]) == ("bonjour", "task")


def test_a_result_that_does_not_come_in_time_is_a_timeout(small_desk: Office) -> None:
    turn = clerk.send("hello")
    with pytest.raises(TimeoutError, match=f"turn {turn.id} has not ended after 0 s"):
        turn.result(timeout=0)


def test_events_go_on_behind_a_number(small_desk: Office) -> None:
    plan.reset({"work": [calls("search"), "done"]})
    turn = clerk.at("ada").send("work")
    small_desk.work()
    events = list(turn.events())
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert list(turn.events(after=events[3].number)) == events[4:]
    activities = [
        event.body.get("activity", event.body["status"])
        for event in events
        if event.kind == "state" and isinstance(event.body, dict)
    ]
    assert activities == ["thinking", "awaiting_tool_result", "thinking", "idle"]


def test_a_turn_keeps_the_profile_that_it_was_sent_with(
    small_desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan.reset({"old": [submit(approve=True, reason="r")], "new": ["a text"]})
    old = judge.at("ada").send("old")
    profile = judge.profile
    monkeypatch.setitem(judge.__dict__, "profile", replace(profile, instructions="You are new."))
    new = judge.at("bob").send("new")
    assert _profile(small_desk, old) != _profile(small_desk, new)
    small_desk.flow.settle()
    shown = {r.messages[-1].content: str(r.messages[0]) for r in model.requests[:2]}
    assert sorted("You are new." in text for text in shown.values()) == [False, True]


def _profile(desk: Office, turn: Any) -> str:
    rows = desk.rows(
        "SELECT profile_card_id FROM flowengine_agent_turn WHERE agent_turn_id = %s", turn.id
    )
    return str(rows[0][0])


def test_the_turn_after_a_stopped_one_reads_a_result_for_each_call(small_desk: Office) -> None:
    """Providers refuse messages in which a call has no result."""
    plan.reset({"stopped": [calls("search", "measure"), "never"], "next": ["fine"]})
    stopped = clerk.at("ada").send("stopped")
    small_desk.until_suspended(stopped)
    stopped.stop("enough")
    turn = clerk.at("ada").send("next")
    small_desk.work()
    assert turn.result(timeout=5) == "fine"
    messages = model.requests[-1].messages
    parts = [part for message in messages for part in message.content]
    assert sum(isinstance(part, ToolCall) for part in parts) == 2
    assert sum(isinstance(part, ToolResult) for part in parts) == 2
    roles = [message.role for message in messages]
    assert roles == ["system", "user", "assistant", "tool", "user", "user"]


def test_a_worker_recovers_agents_that_its_process_has_never_used(tmp_path: Any) -> None:
    with opened(f"sqlite:///{tmp_path}/flow.db") as engine:
        TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        assert "agents" in engine.recovery_jobs


def test_an_engine_that_nobody_uses_is_collected_with_its_agents(tmp_path: Any) -> None:
    with opened(f"sqlite:///{tmp_path}/flow.db") as engine:
        assert agents_of(engine) is agents_of(engine)
        found = weakref.ref(engine)
    del engine
    gc.collect()
    assert found() is None


def test_the_answer_that_a_model_is_giving_can_be_read(
    desk: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowengine.agents.drafts._INTERVAL", 0.0)
    monkeypatch.setattr("flowengine.worker.progress.INTERVAL", 0.0)
    seen: list[Draft | None] = []

    class Talker:
        provider = model = "talker"

        def stream(self, request: ModelRequest) -> Iterator[Chunk | Answer]:
            for word in ("good", " morning", " to", " you"):
                yield Chunk("text", word)
                seen.append(turn.draft())
            yield Answer((Text("good morning to you"),), StopReason.END, Usage(1, 1), "talker")

    @agent(model=Talker(), name="tests.talker")
    def talker(text: str) -> str:
        """You talk."""
        return text

    turn = talker.send("hello")
    assert turn.draft() is None
    desk.work()
    assert turn.result(timeout=5) == "good morning to you"
    assert seen == [
        Draft(1, "good"),
        Draft(2, "good morning"),
        Draft(3, "good morning to"),
        Draft(4, "good morning to you"),
    ]
    assert turn.draft() is None  # the card is the truth


@pytest.mark.parametrize("keeps_memory", [False, True])
def test_a_key_may_be_used_again_after_its_turn_was_removed(
    desk: Office, keeps_memory: bool
) -> None:
    """The runs of the removed turn are still there, and so may be its cards: the agent's memory."""
    plan.reset({"first": [calls("search"), "one"], "second": [calls("search"), "two"]})
    plan.steps["other"] = ["done"]
    ada = clerk.at("ada").options(key="mail-17")
    first = ada.send("first")
    desk.work()
    if keeps_memory:
        desk.clock.advance(minutes=5)
        clerk.at("ada").send("other")
        desk.work()
    desk.engine.purger.purge_turns(older_than=60 if keeps_memory else 0)
    second = ada.send("second")
    assert second.duplicate is False
    desk.work()
    assert second.result(timeout=0) == "two"
    assert second.id != first.id
    assert ada.send("second").id == second.id


def test_a_call_whose_run_was_removed_can_be_given_up(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The run has ended and was purged before the agent took in its report, or the stop."""
    plan.reset({"task": [calls("search"), "done"]})
    with office(database_url, "lost") as desk:
        turn = clerk.at("ada").send("task")
        (call,) = desk.until_suspended(turn)
        turn.stop("enough")
        desk.clock.advance(seconds=1)  # the stop comes first
        desk.flow.settle()
        desk.clock.advance(seconds=1)
        desk.engine.purge(older_than=0)
        assert not desk.rows("SELECT id FROM flowengine_run WHERE id = %s", call.run_id)
        desk.tick()
        assert turn.info().status == "canceled"
        assert not desk.rows("SELECT id FROM flowengine_fact")
    assert not [line for line in caplog.records if line.levelname == "ERROR"]

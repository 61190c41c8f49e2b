"""Retention of turns, and the invariants of agents that the doctor checks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import text

from flowengine import UnknownTurn, agent, event_facet
from flowengine.agents import agents_of
from flowengine.models import ModelRequest
from flowengine.settings import Settings
from flowengine.store.agent_invariants import AGENT_INVARIANTS
from flowengine.testing import Flow, ScriptedModel, calling
from tests.integration.agents_seen.clerks import clerk, greeter, results

DAY = timedelta(days=1)
TABLES = (
    *("agent_state_head", "agent_inbox", "agent_turn", "agent_step", "turn_waiting_tools"),
    *("execution_edges", "box", "box_card", "agent_event"),
)
MEMORIES: list[int] = []


@event_facet(name="kept.book")
def book() -> str:
    """A value that is stored by itself."""
    return "x" * 50_000


def remember(request: ModelRequest) -> object:
    MEMORIES.append(len(request.messages))
    return "done" if results(request) else calling("book")


@agent(model=ScriptedModel(remember), tools=[book], name="kept.reader")  # type: ignore[arg-type]
def reader() -> str:
    """You read."""
    return "Read."


@pytest.fixture
def flow() -> Iterator[Flow]:
    MEMORIES.clear()
    with Flow() as flow:
        yield flow


def counts(flow: Flow) -> dict[str, int]:
    with flow.database.read() as session:
        rows = {
            table: session.rows(f"SELECT count(*) FROM flowengine_{table}")[0][0]
            for table in (*TABLES, "reference")
        }
        cards = "SELECT count(*) FROM flowengine_card WHERE type <> 'sys.profile'"
        return {**rows, "card": session.rows(cards)[0][0]}


def test_a_purge_removes_ended_turns_and_agents_without_others(flow: Flow) -> None:
    turn = reader.send()
    flow.run_turn(turn)
    flow.clock.advance(hours=25)
    assert flow.engine.purger.purge_turns(older_than=DAY, dry_run=True).turns == 1
    assert flow.engine.purger.purge_turns(older_than=DAY).turns == 1
    left = counts(flow)
    references = left.pop("reference")
    assert left == dict.fromkeys((*TABLES, "card"), 0)
    assert references == flow_run_references(flow), "only the runs, and the profile, keep values"
    with pytest.raises(UnknownTurn):
        turn.info()
    assert flow.engine.doctor(older_than=timedelta()) == []


def flow_run_references(flow: Flow) -> int:
    with flow.database.read() as session:
        of_turns = (
            "SELECT count(*) FROM flowengine_reference WHERE run_id IN (SELECT id FROM "
            "flowengine_run) OR run_id IN (SELECT card_id FROM flowengine_card)"
        )
        return int(session.rows(of_turns)[0][0])


def test_an_agent_with_a_later_turn_keeps_its_memory(flow: Flow) -> None:
    address = reader.at("ada")
    flow.run_turn(address.send())
    flow.clock.advance(hours=25)
    second = address.send()
    flow.run_turn(second)
    before = MEMORIES[-1]
    assert flow.engine.purger.purge_turns(older_than=DAY).turns == 1
    assert flow.engine.doctor(older_than=timedelta()) == []
    assert flow.run_turn(address.send()) == "done"
    assert MEMORIES[-1] > before, "the cards of the first turn are still read"
    flow.clock.advance(hours=25)
    assert flow.engine.purger.purge_turns(older_than=DAY).turns == 2
    assert counts(flow)["card"] == 0, "with the last turn the memory goes"
    assert flow.engine.doctor(older_than=timedelta()) == []


def test_open_turns_are_never_removed(flow: Flow) -> None:
    waiting = clerk.at("ada").send("The kettle leaks")
    queued = clerk.at("ada").send("So does the roof")
    flow.settle()
    flow.clock.advance(hours=1000)
    assert flow.engine.purger.purge_turns(older_than=timedelta()).turns == 0
    assert {waiting.info().state, queued.info().state} == {"active", "queued"}


def test_recovery_removes_turns_by_the_setting() -> None:
    with Flow(settings=Settings(turn_retention="1d")) as flow:
        flow.run_turn(greeter.send("ada"))
        flow.watchdog()
        assert counts(flow)["agent_turn"] == 1
        flow.clock.advance(hours=25)
        flow.watchdog()
        assert counts(flow)["agent_turn"] == 0


def test_a_removed_turn_does_not_end_the_memory_of_another_agent(flow: Flow) -> None:
    flow.run_turn(greeter.at("ada", project="a").send("you"))
    flow.clock.advance(hours=25)
    flow.run_turn(greeter.at("ada", project="b").send("you"))
    assert flow.engine.purger.purge_turns(older_than=DAY).turns == 1
    assert counts(flow)["agent_state_head"] == 1


#: One change by hand for each invariant that it violates.
DAMAGES = {
    "an agent that is not idle has an active turn, an idle one has none": (
        "UPDATE flowengine_agent_state_head SET status = 'idle'"
    ),
    "an active turn is that of its agent": (
        "UPDATE flowengine_agent_state_head SET active_agent_turn_id = 'x'"
    ),
    "an idle agent has no message that waits": (
        "UPDATE flowengine_agent_state_head SET status = 'idle', active_agent_turn_id = NULL"
    ),
    "a suspended agent counts the calls that it waits for": (
        "UPDATE flowengine_agent_state_head SET waiting_tool_count = 7"
    ),
    "a call that a turn waits for has a run, or a person who decides": (
        "UPDATE flowengine_turn_waiting_tools SET approval = '' WHERE approval = 'asked'"
    ),
    "a dispatched or running agent has a model call": (
        "UPDATE flowengine_agent_state_head SET status = 'running'"
    ),
    "an ended turn has one deliverable in its output box, and one task event": (
        "UPDATE flowengine_agent_turn SET state = 'finished'"
    ),
    "the events of an agent are numbered without gaps": (
        "UPDATE flowengine_agent_state_head SET event_count = 0"
    ),
    "a place in a box has its card": "DELETE FROM flowengine_card WHERE type = 'agent.thought'",
    "a turn that has not ended has its profile": (
        "DELETE FROM flowengine_card WHERE type = 'sys.profile'"
    ),
    "a due message of an agent is taken in": (
        "UPDATE flowengine_agent_inbox SET status = 'pending' WHERE message_type = 'model_result'"
    ),
    "the end of a call's run is reported to its turn": (
        "UPDATE flowengine_turn_waiting_tools SET wait_status = 'waiting', "
        "tool_call_id = 'other' WHERE run_id IS NOT NULL"
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_doctor_finds_agents_whose_rows_do_not_fit(flow: Flow, name: str) -> None:
    clerk.at("ada").send("The kettle leaks")
    clerk.at("ada").send("So does the roof")
    flow.settle()
    flow.clock.advance(seconds=1)
    assert flow.engine.doctor(older_than=timedelta()) == []
    with flow.database.write() as session:
        session.connection.execute(text(DAMAGES[name]))
    flow.clock.advance(seconds=1)
    found = [one.invariant for one in flow.engine.doctor(older_than=timedelta())]
    assert name in found


def test_every_invariant_of_agents_is_tested_but_that_of_steps() -> None:
    names = {invariant.name for invariant in AGENT_INVARIANTS}
    assert names - DAMAGES.keys() == {"a step does not wait for a turn that has ended"}


def test_the_doctor_lets_an_agent_take_in_a_message_that_was_left(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as crash:  # the agent was busy, and its process died when it ended
        crash.setattr(agents_of(flow.engine)._commits, "lease", lambda *_: None)
        turn = greeter.at("ada").send("you")
    flow.clock.advance(seconds=1)
    assert turn.info().state == "queued"
    found = flow.engine.doctor(repair=True, older_than=timedelta())
    repaired = [one.invariant for one in found if one.is_repaired]
    assert repaired == ["an idle agent has no message that waits"]
    assert turn.info().state == "active"

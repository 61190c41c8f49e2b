"""The rows that a turn leaves: edges, events, lineage, boxes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.exc import IntegrityError

from flowengine.store.agent_inbox import Message
from flowengine.testing import Flow
from flowengine.turns.records import Head
from tests.integration.agents_seen.clerks import clerk, greeter


@pytest.fixture
def flow() -> Iterator[Flow]:
    with Flow() as flow:
        yield flow


def test_every_enqueue_call_and_report_is_an_edge(flow: Flow) -> None:
    turn = clerk.at("ada").send("The kettle leaks")
    flow.settle()
    (asked,) = [call for call in turn.calls() if call.approval]
    turn.approve(asked.id, by="eva")
    flow.settle()
    with flow.database.read() as session:
        found = session.rows(
            "SELECT primitive, edge_phase, correlation_id FROM flowengine_execution_edges "
            "WHERE project_id = '' AND agent_turn_id = %s",
            (turn.id,),
        )
    calls = sorted(call.id for call in turn.calls())
    assert sorted(map(tuple, found)) == [
        ("enqueue", "request", turn.id),
        *(("report", "response", call_id) for call_id in calls),
        *(("tool_call", "request", call_id) for call_id in calls),
    ]


def test_events_of_a_turn_say_what_it_does_and_are_numbered_without_gaps(flow: Flow) -> None:
    turn = clerk.at("ada").send("The kettle leaks")
    flow.settle()
    turn.stop("enough")
    events = list(turn.events())
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    states = [event.body for event in events if event.kind == "state"]
    suspended = [body for body in states if isinstance(body, dict) and "waiting_tool_count" in body]
    assert (suspended[0]["activity"], suspended[0]["waiting_tool_count"]) == (
        *("awaiting_tool_result", 2),
    )
    (task,) = [event.body for event in events if event.kind == "task"]
    assert isinstance(task, dict)
    assert task["deliverable_card_id"] == turn.info().deliverable_card_id


def test_the_head_keeps_the_lineage_of_its_turn_and_clears_it(flow: Flow) -> None:
    turn = clerk.at("ada").send("The kettle leaks")
    flow.settle()
    with flow.database.read() as session:
        head = session.agent_heads.get("", "ada")
    assert isinstance(head, Head)
    assert (head.turn_id, head.trace_id) == (turn.id, turn.id)
    turn.stop()
    with flow.database.read() as session:
        head = session.agent_heads.get("", "ada")
        columns = "SELECT expecting_correlation_id FROM flowengine_agent_state_head"
        assert session.rows(columns) == [(None,)]
    assert isinstance(head, Head)
    assert (head.turn_id, head.trace_id, head.depth, head.waiting) == (None, "", 0, 0)


def test_the_database_refuses_a_second_writer_of_an_output_box(flow: Flow) -> None:
    clerk.at("ada").send("The kettle leaks")
    clerk.at("bob").send("The kettle leaks")
    with flow.database.read() as session:
        head, other = session.agent_heads.get("", "ada"), session.agent_heads.get("", "bob")
    assert head is not None
    assert other is not None
    before = (other.epoch, other.turn_id)
    other.output_box_id = head.output_box_id
    with flow.database.write() as session, pytest.raises(IntegrityError):
        session.agent_heads.save(other, before, session.now())


def test_due_messages_are_taken_in_by_their_time(flow: Flow) -> None:
    greeter.at("ada").send("you")
    times = [(30, 1), (10, 3), (10, 2), (20, 4), (10**15, 5)]
    with flow.database.write() as session:
        for due, created in times:
            key = f"{due}-{created}"
            about = ("", key, "ada", "stop", key, "no turn", 0, {}, "pending", 0, due, created)
            session.agent_inbox.add(Message(*about))
        found = session.agent_inbox.due("", "ada", session.now(), 100)
    assert [message.id for message in found] == ["10-2", "10-3", "20-4", "30-1"]

"""SIGKILL of the process of an agent at every commit of a turn: one delivery, no answer twice."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text

from flowengine.store import Database
from tests.acceptance import asked_clerk
from tests.acceptance.test_killed_at_every_commit import run_child
from tests.servers import PostgresServer

#: With the number N the process is killed at one in N commits; in the chaos run at each.
STRIDES = [
    ("sqlite", "after", 5, "effects"),
    ("postgresql", "before", 4, "reads"),
    *(
        pytest.param((kind, moment, 1, tools), marks=pytest.mark.chaos)
        for kind in ("sqlite", "postgresql")
        for moment in ("after", "before")
        for tools in ("effects", "reads")
    ),
]


@pytest.mark.parametrize("given", STRIDES, ids=str)
def test_a_process_killed_at_any_commit_of_a_turn_delivers_once(
    given: tuple[str, str, int, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    kind, moment, stride, tools = given
    commit = killed = repeated = 0
    while True:
        commit += stride
        url = f"sqlite:///{tmp_path}/{commit}.db"
        if kind == "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres")
            url = postgres.new_database(request.getfixturevalue("with_schema"))
        calls = tmp_path / f"{commit}.calls"
        send = partial(asked_clerk.send_and_die, calls=str(calls), reads=tools == "reads")
        exitcode = run_child(url, commit, moment, send)
        if exitcode == 0:
            break
        assert exitcode == -9
        killed += 1
        assert run_child(url, 0, moment, send) == 0, f"commit {commit}"
        repeated += check_turns(url, calls, tools)
    print(f"{kind}, {tools}: killed {moment} {killed} commits; {repeated} calls were made again")
    assert killed >= 2, "the turn should have more commits"


def check_turns(url: str, calls: Path, tools: str) -> int:
    """One delivery and one event per turn; return the calls that were made more than once."""
    database = Database(url)
    with database.read() as session:

        def rows(query: str) -> list[tuple[object, ...]]:
            return [tuple(row) for row in session.connection.execute(text(query))]

        turns = rows("SELECT task_status, steps, deliverable_card_id FROM flowengine_agent_turn")
        tasks = rows("SELECT count(*) FROM flowengine_agent_event WHERE kind = 'task'")
        cards = Counter(kind for (kind,) in rows("SELECT type FROM flowengine_card"))
        heads = rows("SELECT status, waiting_tool_count FROM flowengine_agent_state_head")
        left = rows("SELECT inbox_id FROM flowengine_agent_inbox WHERE status <> 'consumed'")
        runs = rows("SELECT DISTINCT state FROM flowengine_run")
        (of_tools,) = rows("SELECT count(*) FROM flowengine_run WHERE workflow LIKE '%word__call'")
        numbers = rows(
            "SELECT h.event_count, count(*), max(e.number) FROM flowengine_agent_event e "
            "JOIN flowengine_agent_state_head h ON h.agent_id = e.agent_id "
            "GROUP BY h.event_count, h.agent_id"
        )
    database.close()
    assert sorted((status, steps) for status, steps, _ in turns) == [("success", 1), ("success", 3)]
    assert tasks == [(2,)]
    assert cards["task.deliverable"] == 2
    assert cards["agent.thought"] == asked_clerk.MODEL_CALLS
    assert cards["tool.result"] == cards["tool.call"] == asked_clerk.TOOL_CALLS
    assert set(heads) == {("idle", 0)}
    assert left == []
    assert runs == [("COMPLETED",)]
    assert all(count == most == last for count, most, last in numbers), "numbers without gaps"
    made = Counter(calls.read_text().split("\n")[:-1])
    assert len(made) == asked_clerk.MODEL_CALLS + asked_clerk.TOOL_CALLS - 1
    again = sum(made.values()) - len(made)
    # A call is made again only if it was under way when the process was killed. Calls in place are
    # under way with the model call; after its death they have runs.
    assert again <= (4 if tools == "reads" else 3), made
    assert of_tools[0] in ((0, 3) if tools == "reads" else (0,))
    return again

"""SIGKILL of a ClaudeAgentRunner at every commit: no model is paid twice for one answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from flowengine.sdk.journal import ANSWER
from flowengine.store import Database
from tests.acceptance.sdk import killed_runner
from tests.fork_server import context
from tests.model_server import ModelServer, Reply, Says, serving
from tests.servers import PostgresServer

#: With the number N the process is killed at one in N commits; in the chaos run at each, through
#: the real package.
STRIDES = [
    ("sqlite", "after", 2, False),
    ("sqlite", "before", 4, False),
    *(
        pytest.param((kind, moment, 1, is_real), marks=pytest.mark.chaos)
        for kind in ("sqlite", "postgresql")
        for moment in ("after", "before")
        for is_real in (False, True)
    ),
]


def run_child(*args: Any) -> int:
    child = context.Process(target=killed_runner.run_and_die, args=args)
    child.start()
    child.join(timeout=120)
    assert child.exitcode is not None, "the child did not end"
    return int(child.exitcode)


def replied(body: dict[str, Any]) -> Reply:
    """The same answers as the scripted model's, over HTTP."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    answer = killed_runner.next_answer(sum(b["type"] == "tool_result" for b in blocks))
    uses = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)}
        for call in answer.tool_calls
    ]
    return Says(uses, "tool_use")


@pytest.mark.parametrize("given", STRIDES, ids=str)
def test_a_killed_runner_asks_no_model_again_for_an_answer_that_it_has(
    given: tuple[str, str, int, bool], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    kind, moment, stride, is_real = given

    def new_url(directory: Path) -> str:
        if kind == "sqlite":
            return f"sqlite:///{directory}/flow.db"
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return postgres.new_database(request.getfixturevalue("with_schema"))

    if is_real:
        with serving(replied) as server:
            killed = kill_at_each(tmp_path, moment, stride, new_url, server)
    else:
        killed = kill_at_each(tmp_path, moment, stride, new_url, None)
    assert killed >= (5 if moment == "after" else 2), "the run should have more commits"


def test_a_runner_of_another_machine_goes_on_with_the_answers_of_a_killed_one(
    tmp_path: Path, postgres: PostgresServer, with_schema: str
) -> None:
    """It cannot see that the process has died: it takes the step over after `server_timeout`."""
    url = postgres.new_database(with_schema)
    given = (url, str(tmp_path))
    assert run_child(*given, 0, "after", "", killed_runner.DYING) == -9
    database = Database(url)
    with database.read() as session:
        calls = "SELECT facet_name FROM flowengine_step WHERE object_type = 'FunctionCall'"
        assert session.rows(calls) == [(ANSWER,)]
        ((lost_boot, lost_server),) = session.rows(
            "SELECT boot_id, server_id FROM flowengine_task WHERE state = 'running'"
        )
    assert lines(tmp_path / "asked") == 1
    assert run_child(*given, 0, "after", "", "another") == 0
    assert recorded_in(url) == (4, 3)
    assert lines(tmp_path / "asked") == 4, "an answer was asked for once more"
    with database.read() as session:
        ends = session.rows("SELECT boot_id, server_id, outcome FROM flowengine_task")
    database.close()
    assert (lost_boot, lost_server, "lost") in ends
    assert {(boot, server) for boot, server, how in ends if how == "succeeded"}.isdisjoint(
        {(lost_boot, lost_server)}
    )
    postgres.drop_database(url)


def kill_at_each(
    directory: Path,
    moment: str,
    stride: int,
    new_url: Callable[[Path], str],
    server: ModelServer | None,
) -> int:
    commit = killed = asked_twice = 0
    while True:
        commit += stride
        own = directory / str(commit)
        own.mkdir()
        url, before = new_url(own), len(server.requests) if server else 0
        address = (server.url,) if server else ()
        exitcode = run_child(url, str(own), commit, moment, *address)
        if exitcode == 0:
            break  # the run has fewer commits than that
        assert exitcode == -9
        killed += 1
        assert run_child(url, str(own), 0, moment, *address) == 0, f"killed {moment} {commit}"
        asked = len(server.requests) - before if server else lines(own / "asked")
        recorded, tools = recorded_in(url)
        assert (recorded, tools) == (4, 3)
        # The answer to a request is lost only with the commit that would have recorded it.
        assert asked - recorded in ((0,) if moment == "after" else (0, 1)), f"commit {commit}"
        assert lines(own / "tools") - tools in ((0,) if moment == "after" else (0, 1))
        asked_twice += asked - recorded
    print(f"killed {moment} {killed} commits; {asked_twice} answers asked for twice")
    assert asked_twice <= (0 if moment == "after" else 4)
    return killed


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def recorded_in(url: str) -> tuple[int, int]:
    """Return the numbers of recorded answers and results; check that nothing is left open."""
    database = Database(url)
    with database.read() as session:

        def rows(query: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in session.connection.execute(text(query))]

        calls = "SELECT facet_name FROM flowengine_step WHERE object_type = 'FunctionCall'"
        facets = [facet for (facet,) in rows(calls)]
        states = rows("SELECT state FROM flowengine_run")
        left = rows(
            "SELECT uuid FROM flowengine_task WHERE state IN ('pending', 'running') OR NOT taken_in"
        )
    database.close()
    assert states == [("COMPLETED",)]
    assert left == []
    return facets.count(ANSWER), facets.count("shelf.Count")

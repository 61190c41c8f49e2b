"""The cost of turns on a worker that continues with its own tasks, counted on PostgreSQL."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event

from flowengine import event_facet
from flowengine.agents import agent, head_cache, model_calls, tool
from flowengine.agents.enqueue import NewTurn
from flowengine.agents.handles import TurnHandle
from flowengine.agents.profiles import Profile
from flowengine.agents.runtime import agents_of
from flowengine.engine import Engine
from flowengine.models import Answer, ModelRequest, ScriptedModel, ToolCall
from flowengine.models.messages import StopReason, Usage
from tests.integration.engines import watched
from tests.integration.test_costs import WorkingSet, rows_read, working
from tests.servers import PostgresServer

_noted: list[str] = []  #: statements, model calls and calls of the tool, in their order
_CALLS = 3


def _script(request: ModelRequest) -> Answer | str:
    _noted.append("model")
    spoken = sum(message.role == "assistant" for message in request.messages)
    if spoken == _CALLS:
        return "done"
    call = ToolCall(f"c{spoken}", "add_one", {"number": spoken})
    return Answer((call,), StopReason.TOOL_CALLS, Usage(1, 1), "scripted")


@event_facet(name="tests.worker_costs.add_one")
def add_one(number: int) -> int:
    """Add one."""
    _noted.append("tool")
    return number + 1


@event_facet(name="tests.worker_costs.read_one", effects=False)
def read_one(number: int) -> int:
    """Add one."""
    _noted.append("tool")
    return number + 1


@agent(model=ScriptedModel(_script), tools=[add_one], name="tests.worker_costs.counter")
def counter(text: str) -> str:
    """You count."""
    return text


@agent(
    model=ScriptedModel(_script),
    tools=[tool(read_one, name="add_one")],
    name="tests.worker_costs.reader",
)
def reader(text: str) -> str:
    """You count."""
    return text


def _turns(
    work: WorkingSet, number: int, profile: Profile = counter.profile
) -> list[TurnHandle[Any]]:
    agents, turns = agents_of(work.engine), list[TurnHandle[Any]]()
    for _ in range(number):
        new = NewTurn(project="", agent="", profile=profile, instruction="count")
        turns.append(agents.send(new))
        while turns[-1].info().state != "finished":
            work.task_worker.drain("default")
    return turns


@contextmanager
def noted(engine: Engine) -> Iterator[list[str]]:
    def note(sql: str, _given: Any = None) -> None:
        _noted.append(sql.split("(", 1)[0])

    def listen(_c: Any, _cursor: Any, sql: str, *_: Any) -> None:
        note(sql)

    _noted.clear()
    event.listen(engine.database.engine, "before_cursor_execute", listen)
    with watched(engine, note):
        yield _noted
    event.remove(engine.database.engine, "before_cursor_execute", listen)


def test_from_an_answer_to_the_next_model_call_are_two_statements(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a second passes between two calls, and the turn would be looked at again.
    monkeypatch.setattr(head_cache, "_TRUSTED", math.inf)
    with working(postgres.new_database(), tmp_path) as work:
        _turns(work, 5)  # it learns that the facets are quick
        with noted(work.engine) as found:
            _turns(work, 1)
    words = [each.split()[0] for each in found]
    first, *others = [at for at, word in enumerate(words) if word == "model"]
    # The answer and the start of the tool; its result and the start of the next model call.
    assert words[others[0] : others[-1]] == ["model", "WITH", "tool", "WITH"] * (_CALLS - 1)
    # The run of the first model call was started by the process that sent the message.
    assert words[first : others[0]] == ["model", "SELECT", "WITH", "tool", "WITH"]


def test_with_a_quick_tool_that_only_reads_it_is_one_statement(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_cache, "_TRUSTED", math.inf)
    with working(postgres.new_database(), tmp_path) as work:
        _turns(work, 5, reader.profile)
        with noted(work.engine) as found:
            _turns(work, 1, reader.profile)
    words = [each.split()[0] for each in found]
    first, *others = [at for at, word in enumerate(words) if word == "model"]
    assert words[others[0] : others[-1]] == ["model", "tool", "WITH"] * (_CALLS - 1)
    assert words[first : others[0]] == ["model", "tool", "WITH"]


def test_the_first_message_of_an_agent_is_one_statement(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with working(postgres.new_database(), tmp_path) as work:
        _turns(work, 1)  # it stores the profile and the program
        with noted(work.engine) as found:
            new = NewTurn(project="", agent="", profile=counter.profile, instruction="count")
            agents_of(work.engine).send(new)
    assert [each.split()[0] for each in found] == ["WITH"]


def test_the_result_of_an_ended_turn_is_one_statement(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with working(postgres.new_database(), tmp_path) as work:
        new = NewTurn(project="", agent="", profile=counter.profile, instruction="count")
        turn: TurnHandle[Any] = agents_of(work.engine).send(new)
        while turn.info().state != "finished":
            work.task_worker.drain("default")
        with noted(work.engine) as found:
            assert turn.result(timeout=0) == "done"
    assert [each.split()[0] for each in found] == ["SELECT"]


def test_a_model_is_as_quick_as_its_calls_without_the_statements_around_them(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that leaps: all but the call of the model takes longer than the whole try.
    leaping = SimpleNamespace(monotonic=itertools.count().__next__)
    monkeypatch.setattr(model_calls, "time", leaping)
    with working(postgres.new_database(), tmp_path) as work:
        _turns(work, 3)
        sizing = work.task_worker._sizing
    assert sizing.average("tests.worker_costs.counter__model") == 0.0
    assert sizing.is_quick("tests.worker_costs.counter__model")


def test_no_statement_walks_all_the_turns_there_are(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """More turns than a page of an index has room for: a smaller index must not replace the key."""

    def results(work: WorkingSet, number: int) -> None:
        for turn in _turns(work, number, reader.profile):
            turn.result(timeout=0)

    few, many = (
        rows_read(postgres, tmp_path, lambda work, n=times: results(work, n)) / times
        for times in (30, 240)
    )
    assert many <= few * 1.1, (few, many)


def test_turns_that_are_claimed_together_are_entered_by_one_commit(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with working(postgres.new_database(), tmp_path) as work:
        _turns(work, 5, reader.profile)
        agents = agents_of(work.engine)
        new = NewTurn(project="", agent="", profile=reader.profile, instruction="count")
        turns: list[TurnHandle[Any]] = [agents.send(new) for _ in range(6)]
        with noted(work.engine) as found:
            while any(turn.info().state != "finished" for turn in turns):
                work.task_worker.drain("default")
        assert all(turn.result(timeout=0) == "done" for turn in turns)
    words = [each.split()[0] for each in found]
    # The claim; the rows of the turns, their entry, their cards.
    assert words[words.index("WITH") : words.index("model")] == ["WITH"] * 4

"""The try of a model call records an answer whose calls were made in place, and asks again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from flowengine import current_step, event_facet
from flowengine.agents import Budget, TurnHandle, agent, agents_of
from flowengine.agents.enqueue import NewTurn
from flowengine.authoring import Retry
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Lost
from flowengine.models import Answer, ModelRequest, ScriptedModel, ToolCall
from flowengine.models.messages import StopReason, Usage
from flowengine.store.cards import Card
from flowengine.store.commits import CommitPlan
from flowengine.store.session import SqlSession
from tests.integration.functions.workers import IN_PLACE, Worked, worked
from tests.servers import PostgresServer

_made: list[str] = []  #: calls of the model and of tools, in their order
_keys: list[tuple[str, str]] = []  #: the same, with their idempotency keys
_plan: list[Answer | str] = []
_before: dict[str, Callable[[], object]] = {}  #: what happens when a call is made the first time

pytestmark = pytest.mark.each_database


def _script(request: ModelRequest) -> Answer | str:
    spoken = sum(message.role == "assistant" for message in request.messages)
    _keys.append((f"model {spoken}", current_step().idempotency_key))
    _note(f"model {spoken}")
    return _plan[spoken]


def _note(call: str) -> None:
    _made.append(call)
    if (act := _before.pop(call, None)) is not None:
        act()


def _look(*words: str) -> Answer:
    made = tuple(ToolCall(f"c{at}", "look", {"word": w}) for at, w in enumerate(words or ("cup",)))
    return Answer(made, StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


@event_facet(name="tests.asks_again.look", effects=False)
def look(word: str) -> str:
    """Look a word up."""
    _keys.append((f"look {word}", current_step().idempotency_key))
    _note(f"look {word}")
    return f"found {word}"


@event_facet(name="tests.asks_again.write")
def write(word: str) -> str:
    """Write a word down."""
    return word


_AGENT: Any = {"model": ScriptedModel(_script), "tools": [look, write]}


@agent(**_AGENT, name="tests.asks_again.clerk", retry=Retry(attempts=3, first_wait=0))
def clerk(task: str) -> str:
    """You settle complaints."""
    return task


@agent(**_AGENT, name="tests.asks_again.guarded", breaker="provider")
def guarded(task: str) -> str:
    """You settle complaints."""
    return task


@agent(**_AGENT, name="tests.asks_again.hurried", timeout=1e-6)
def hurried(task: str) -> str:
    """You settle complaints."""
    return task


@agent(**_AGENT, name="tests.asks_again.poor", budget=Budget(steps=2))
def poor(task: str) -> str:
    """You settle complaints."""
    return task


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Worked]:
    with worked(database_url, tmp_path, **IN_PLACE) as made:
        _learn(made)
        yield made


def _learn(work: Worked) -> None:
    for _ in range(2):  # it learns that the tool is quick
        _turn(work, _look(), "done")


def _send(work: Worked, *steps: Answer | str, by: Any = clerk) -> TurnHandle[Any]:
    _plan[:], _made[:] = steps, []
    _before.clear()
    _keys.clear()
    new = NewTurn(project="", agent="", profile=by.profile, instruction="settle this")
    return agents_of(work.engine).send(new)


def _turn(work: Worked, *steps: Answer | str, by: Any = clerk) -> TurnHandle[Any]:
    turn = _send(work, *steps, by=by)
    work.settle()
    return turn


def _runs(work: Worked, turn: TurnHandle[Any]) -> Counter[str]:
    """Count the runs of a turn by the facet that each of them calls."""
    query = "SELECT workflow FROM flowengine_run WHERE agent_call LIKE %s"
    with work.engine.database.read() as session:
        rows: Sequence[Any] = session.rows(query, (f"%{turn.id}%",))
    return Counter(row[0].rpartition("__")[0].rpartition(".")[2] for row in rows)


def _cards(work: Worked, turn: TurnHandle[Any]) -> list[Card]:
    with work.engine.database.read() as session:
        return session.cards.read(turn.project, turn.info().output_box_id)


def _seen(work: Worked, turn: TurnHandle[Any]) -> list[Any]:
    """Everything that readers see of a turn, without ids of runs and times."""
    names: dict[str, int] = {}
    with work.engine.database.read() as session:
        steps = session.agent_turns.steps(turn.project, turn.id)
    events = [(e.kind, {k: v for k, v in e.body.items() if k != "run"}) for e in turn.events()]

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: named(each) for key, each in value.items()}
        is_id = isinstance(value, str) and len(value) == 32 and " " not in value
        return names.setdefault(value, len(names)) if is_id else value

    return [
        [(c.type, named(c.step_id), named(c.tool_call_id), c.content) for c in _cards(work, turn)],
        [(step.number, step.status, step.tokens, step.epoch) for step in steps],
        [(kind, named(body)) for kind, body in events],
        sorted((c.tool, c.state, c.ending, named(c.step_id)) for c in turn.calls()),
    ]


def _refuse(
    patch: pytest.MonkeyPatch, act: Callable[[], object], *, written: bool = False
) -> list[CommitPlan]:
    """Let something happen at the first commit that records an answer in place.

    `written`: behind it, otherwise before it.
    """
    real, met = SqlSession.commit, list[CommitPlan]()

    def commit(session: SqlSession, rows: CommitPlan, *, guarded: bool = False) -> set[str]:
        is_wanted = rows.agents is not None and rows.agents.new_agent_steps and not rows.new_runs
        if met or not is_wanted or rows.runs:
            return real(session, rows, guarded=guarded)
        met.append(rows)
        found = real(session, rows, guarded=guarded) if written else set()
        act()
        return found if written else real(session, rows, guarded=guarded)

    patch.setattr(SqlSession, "commit", commit)
    return met


def test_all_model_calls_of_a_turn_that_only_reads_are_one_run(work: Worked) -> None:
    turn = _turn(work, _look("cup"), _look("kettle", "pot"), _look("tea"), "done")
    assert turn.result(timeout=0) == "done"
    calls = ["model 0", "look cup", "model 1", "look kettle", "look pot", "model 2", "look tea"]
    assert _made == [*calls, "model 3"]
    assert _runs(work, turn) == {"clerk__model": 1}
    assert turn.info().steps == 4


def test_a_turn_of_one_run_looks_like_one_of_many_runs(
    work: Worked, database_url: str, tmp_path: Path
) -> None:
    steps = (_look("cup", "pot"), _look("kettle"), "done")
    turn = _turn(work, *steps)
    with worked(database_url, tmp_path, **IN_PLACE, continuation=False) as other:
        _learn(other)
        again = _turn(other, *steps)
        assert _runs(other, again) == {"clerk__model": 3}
        assert _seen(other, again) == _seen(work, turn)
    assert _runs(work, turn) == {"clerk__model": 1}


def test_an_answer_is_recorded_before_the_model_is_asked_again(work: Worked) -> None:
    turn, recorded = _send(work, _look("cup"), _look("pot"), "done"), list[str]()

    def look_at_cards() -> None:
        recorded.extend(card.type for card in _cards(work, turn))

    _before["model 1"] = look_at_cards
    work.settle()
    assert recorded == ["task.instruction", "agent.thought", "tool.call", "tool.result"]


def test_a_call_with_effects_has_a_run_and_so_has_the_model_call_behind_it(work: Worked) -> None:
    call = ToolCall("c0", "write", {"word": "pot"})
    answer = Answer((call,), StopReason.TOOL_CALLS, Usage(), "scripted")
    turn = _turn(work, _look("cup"), answer, _look("tea"), "done")
    assert turn.result(timeout=0) == "done"
    assert _runs(work, turn) == {"clerk__model": 2, "write": 1}


def test_a_failed_model_call_in_place_is_tried_again_alone(work: Worked) -> None:
    turn = _send(work, _look("cup"), _look("pot"), "done")

    def fail() -> None:
        raise RuntimeError("the provider is away")

    _before["model 1"] = fail
    work.settle()
    assert turn.result(timeout=0) == "done"
    # After a failed try each further call has a run, with its own tries.
    assert _made == ["model 0", "look cup", "model 1", "model 1", "look pot", "model 2"]
    assert _runs(work, turn) == {"clerk__model": 2}


def test_a_model_call_in_place_that_fails_for_good_ends_the_turn(work: Worked) -> None:
    turn = _send(work, _look("cup"), "done")

    def fail() -> None:
        _before["model 1"] = fail
        raise RuntimeError("the provider is away")

    _before["model 1"] = fail
    work.settle()
    _before.clear()
    assert (turn.info().status, turn.info().error_code) == ("failed", "model_failed")
    assert Counter(_made) == {"model 0": 1, "look cup": 1, "model 1": 3}
    assert turn.info().steps == 2


def test_a_turn_that_is_stopped_asks_the_model_no_more(
    work: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = _send(work, _look("cup"), "done")
    if work.engine.database.has_server:
        met = _refuse(monkeypatch, lambda: turn.stop("enough"))
        work.settle()
        assert len(met) == 1
    else:  # one writer: it is stopped before the answer is recorded
        _before["look cup"] = lambda: turn.stop("enough")
        work.settle()
    assert (turn.info().status, turn.info().error) == ("canceled", "enough")
    assert _made == ["model 0", "look cup"]


def _cut_off(work: Worked, patch: pytest.MonkeyPatch, *, is_written: bool) -> list[str]:
    """Lose the connection while the first answer is recorded; return how the steps ended."""

    def cut() -> None:
        raise OperationalError("", {}, psycopg.OperationalError("the connection was lost"))

    turn = _send(work, _look("cup"), "done")
    met = _refuse(patch, cut, written=is_written)
    work.settle()
    assert len(met) == 1
    assert turn.result(timeout=0) == "done"
    assert _made == ["model 0", "look cup", "model 1"]
    types = Counter(card.type for card in _cards(work, turn))
    assert (types["agent.thought"], types["tool.result"]) == (2, 1)
    with work.engine.database.read() as session:
        return [step.status for step in session.agent_turns.steps(turn.project, turn.id)]


def test_an_answer_that_could_not_be_recorded_in_place_is_reported(
    work: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _cut_off(work, monkeypatch, is_written=False) == ["completed"] * 2


def test_an_answer_whose_recording_is_not_known_is_recorded_once(
    postgres: PostgresServer, with_schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worked(postgres.new_database(with_schema), tmp_path, **IN_PLACE) as work:
        _learn(work)
        # The run that should have asked again has ended with an earlier answer: another one asks.
        ends = _cut_off(work, monkeypatch, is_written=True)
    assert ends == ["completed", "failed", "completed"]


def test_each_call_of_a_run_has_a_key_of_its_own(work: Worked) -> None:
    turn = _send(work, _look("cup", "pot"), _look("tea"), "done")

    def fail() -> None:
        raise RuntimeError("the provider is away")

    _before["model 1"] = fail
    work.settle()
    assert turn.result(timeout=0) == "done"
    assert [call for call, _ in _keys].count("model 1") == 2
    assert len(set(_keys)) == len({key for _, key in _keys}) == 6  # a repeated call has its key


def test_a_try_that_has_lost_its_lease_records_nothing(
    work: Worked, database_url: str, tmp_path: Path
) -> None:
    turn = _send(work, _look("cup"), _look("pot"), "done")

    def lose() -> None:
        with worked(database_url, tmp_path / "other", **IN_PLACE) as other:
            assert other.engine.report(_running_task(other), Lost("its process is gone"))

    _before["look cup"] = lose
    assert work.worker.drain("default")
    work.settle()
    assert turn.result(timeout=0) == "done"
    again = ["model 0", "look cup", "model 1", "look pot", "model 2"]
    assert _made == ["model 0", "look cup", *again]


def _running_task(work: Worked) -> TaskDefinition:
    with work.engine.database.read() as session:
        query = "SELECT run_id FROM flowengine_task WHERE state = 'running'"
        ((run_id,),) = session.rows(query)
    (task,) = work.engine.tasks(run_id)
    return task


def test_a_late_try_records_nothing_after_another_one_has_entered(
    work: Worked, database_url: str, tmp_path: Path
) -> None:
    turn, kept = _send(work, _look("cup"), _look("pot"), "done"), list[Card]()

    def recover() -> None:
        """Another process takes the try for lost, and goes on with the turn up to its end."""
        with worked(database_url, tmp_path / "other", **IN_PLACE) as other:
            assert other.engine.report(_running_task(other), Lost("its process is gone"))
            other.settle()
        kept.extend(_cards(work, turn))

    _before["look cup"] = recover
    work.settle()
    again = ["model 0", "look cup", "model 1", "look pot", "model 2"]
    assert _made == ["model 0", "look cup", *again]  # the late try asks for nothing more
    assert _cards(work, turn) == kept
    assert turn.result(timeout=0) == "done"


def test_without_time_the_next_model_call_has_a_run(database_url: str, tmp_path: Path) -> None:
    with worked(database_url, tmp_path, **{**IN_PLACE, "worker_time_slice": 1e-9}) as work:
        _learn(work)
        turn = _turn(work, _look("cup"), "done")
        assert turn.result(timeout=0) == "done"
        assert _runs(work, turn) == {"clerk__model": 2}


def test_a_model_call_in_place_begins_only_with_most_of_its_timeout(work: Worked) -> None:
    turn = _turn(work, _look("cup"), "done", by=hurried)
    assert turn.result(timeout=0) == "done"
    assert _runs(work, turn) == {"hurried__model": 2}


def test_a_circuit_breaker_counts_every_model_call(work: Worked) -> None:
    turn = _turn(work, _look("cup"), "done", by=guarded)
    assert turn.result(timeout=0) == "done"
    assert _runs(work, turn) == {"guarded__model": 2}


def test_a_budget_counts_model_calls_in_place(work: Worked) -> None:
    turn = _turn(work, _look("cup"), _look("pot"), "done", by=poor)
    assert (turn.info().status, turn.info().error_code) == ("failed", "max_steps_reached")
    assert _made == ["model 0", "look cup", "model 1", "look pot"]

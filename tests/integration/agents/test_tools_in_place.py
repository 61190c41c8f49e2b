"""Quick tools without effects are called by the try of the model call, and recorded with it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from flowengine import current_step, event_facet, workflow
from flowengine.agents import TurnHandle, agent, agents_of, instruction, tool
from flowengine.agents.enqueue import NewTurn
from flowengine.agents.profiles import Profile
from flowengine.authoring import EventFacet, Limit, Retry, registry
from flowengine.models import Answer, ModelRequest, ScriptedModel, ToolCall
from flowengine.models.messages import StopReason, Text, Usage
from flowengine.program.nodes import Json
from flowengine.store.cards import Card
from flowengine.worker import in_place_tools
from flowengine.worker.call_timeouts import CallTimeouts
from flowengine.worker.tries import Tries
from tests.integration.functions.workers import IN_PLACE, Worked, worked

_made: list[str] = []  #: calls of the model and of tools, in their order
_plan: list[Answer | str] = []
_hangs, _released = threading.Event(), threading.Event()


def _script(request: ModelRequest) -> Answer | str:
    spoken = sum(message.role == "assistant" for message in request.messages)
    _made.append("model")
    return _plan[spoken]


def _calls(*names: str, **arguments: Json) -> Answer:
    made = tuple(ToolCall(f"c{at}", name, arguments) for at, name in enumerate(names))
    return Answer(made, StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


def _nested(depth: int) -> Json:
    value: Json = 1
    for _ in range(depth):
        value = [value]
    return value


@event_facet(name="tests.in_place.look", effects=False, retry=Retry(attempts=2, first_wait=0))
def look(word: str = "kettle") -> Any:
    """Look a word up."""
    _made.append(f"look {word}")
    if word == "broken" and _made.count("look broken") == 1:
        raise RuntimeError("the archive is closed")
    if word == "slow" and not _released.is_set():
        _hangs.set()
        assert _released.wait(30)
    if word == "large":
        return "x" * 9_000
    if word == "deep":
        return _nested(99)
    if word == "waits":
        _hangs.set()
        _made.append(f"stopped {current_step().cancel_token.wait(30)}")
    if word == "last":
        return {"litres": 2, "__cg_control": {"after_execution": "terminate"}}
    return f"found {word}"


@event_facet(name="tests.in_place.write")
def write(word: str = "kettle") -> str:
    """Write a word down."""
    _made.append(f"write {word}")
    return f"wrote {word}"


@event_facet(name="tests.in_place.limited", effects=False, limit=Limit("desk", 1))
def limited(word: str) -> str:
    """Look a word up, one at a time."""
    return word


@event_facet(name="tests.in_place.guarded", effects=False, breaker="archive")
def guarded(word: str) -> str:
    """Look a word up behind a circuit breaker."""
    return word


@event_facet(name="tests.in_place.shout", effects=False)
def whisper(word: str) -> str:
    """Whisper."""
    return word.lower()


@event_facet(name="tests.in_place.glance", effects=False)
async def glance(word: str) -> str:
    """Look a word up in a coroutine."""
    await asyncio.sleep(0)
    return f"glanced at {word}"


@agent(
    model=ScriptedModel(_script),
    tools=[
        look,
        write,
        limited,
        guarded,
        whisper,
        glance,
        tool(look, name="asked", approval=True),
        tool(look, name="final", ends_turn=True),
    ],
    name="tests.in_place.clerk",
)
def clerk(task: str) -> str:
    """You settle complaints."""
    return task


def _look_elsewhere(word: str = "cup") -> str:
    """Look a word up, in newer code with another default."""
    return f"elsewhere {word}"


@event_facet(name="tests.in_place.louder", effects=False)
def louder(word: str) -> str:
    return word.upper()


@workflow(name="tests.in_place.shout__call")
def shout(word: str) -> str:
    """Shout."""
    return louder(word)


@agent(
    model=ScriptedModel(_script),
    tools=[tool(shout, name="shouted")],
    name="tests.in_place.shouter",
)
def shouter(task: str) -> str:
    """You shout."""
    return task


class Verdict(BaseModel):
    approve: bool


@agent(model=ScriptedModel(_script), tools=[look], name="tests.in_place.judge")
def judge(task: str) -> Verdict:
    """You decide."""
    return instruction(task)


@pytest.fixture
def work(database_url: str, tmp_path: Path) -> Iterator[Worked]:
    with worked(database_url, tmp_path, **IN_PLACE) as made:
        _released.set()
        for _ in range(2):  # it learns that the tool is quick
            _turn(made, _calls("look"), "done")
        yield made


def _send(work: Worked, *steps: Answer | str, profile: Profile = clerk.profile) -> TurnHandle[Any]:
    _plan[:], _made[:] = steps, []
    new = NewTurn(project="", agent="", profile=profile, instruction="settle this")
    return agents_of(work.engine).send(new)


def _turn(work: Worked, *steps: Answer | str, profile: Profile = clerk.profile) -> TurnHandle[Any]:
    turn = _send(work, *steps, profile=profile)
    work.settle()
    return turn


def _cards(work: Worked, turn: TurnHandle[Any], kind: str) -> list[Card]:
    with work.engine.database.read() as session:
        cards = session.cards.read(turn.project, turn.info().output_box_id)
    return [card for card in cards if card.type == kind]


def _results(work: Worked, turn: TurnHandle[Any]) -> list[Any]:
    found = [card.content for card in _cards(work, turn, "tool.result")]
    return [c.get("result", c.get("error")) for c in found if isinstance(c, dict)]


def _runs(work: Worked, turn: TurnHandle[Any]) -> Counter[str]:
    """Count the runs of a turn by the facet that each of them calls."""
    query = "SELECT workflow FROM flowengine_run WHERE agent_call LIKE %s"
    with work.engine.database.read() as session:
        rows: Sequence[Any] = session.rows(query, (f"%{turn.id}%",))
    return Counter(row[0].rpartition(".")[2] for row in rows)


def _edges(work: Worked, turn: TurnHandle[Any]) -> list[tuple[str, str]]:
    query = (
        "SELECT primitive, edge_phase FROM flowengine_execution_edges WHERE agent_turn_id = %s "
        "AND primitive <> 'enqueue' ORDER BY primitive DESC"
    )
    with work.engine.database.read() as session:
        return [tuple(row) for row in session.rows(query, (turn.id,))]


@pytest.mark.each_database
def test_a_quick_read_has_no_run(work: Worked) -> None:
    turn = _turn(work, _calls("look", word="cup"), "done")
    assert turn.result(timeout=0) == "done"
    assert _made == ["model", "look cup", "model"]
    assert _runs(work, turn) == {"clerk__model__call": 1}


@pytest.mark.each_database
def test_its_call_looks_like_one_that_had_a_run(work: Worked) -> None:
    turn = _turn(work, _calls("look", word="cup"), "done")
    (call,) = turn.calls()
    with work.engine.database.read() as session:
        (stored,) = session.agent_turns.all_calls(turn.project, turn.id)
    assert (stored.state, stored.ending, stored.name) == ("applied", "success", "look")
    assert _results(work, turn) == ["found cup"]
    (asked,), (answered,) = (_cards(work, turn, kind) for kind in ("tool.call", "tool.result"))
    assert asked.tool_call_id == answered.tool_call_id == call.id
    assert _edges(work, turn) == [("tool_call", "request"), ("report", "response")]


def test_a_result_from_outside_is_a_duplicate(work: Worked) -> None:
    turn = _turn(work, _calls("look"), _calls("asked"), "done")
    (first,) = [call for call in turn.calls() if call.tool == "look"]
    assert turn.info().state == "active"  # it waits for a person
    assert turn.report(first.id, "another result") is True
    assert _results(work, turn) == ["found kettle"]


def test_a_tool_with_effects_has_a_run(work: Worked) -> None:
    for _ in range(3):
        turn = _turn(work, _calls("write"), "done")
        assert _runs(work, turn) == {"clerk__model__call": 2, "write__call": 1}


@pytest.mark.each_database
def test_calls_of_one_answer_may_be_of_both_kinds(work: Worked) -> None:
    turn = _turn(work, _calls("look", "write", "look", word="cup"), "done")
    assert turn.result(timeout=0) == "done"
    assert _made == ["model", "look cup", "look cup", "write cup", "model"]
    assert _runs(work, turn) == {"clerk__model__call": 2, "write__call": 1}
    assert _results(work, turn) == ["found cup", "found cup", "wrote cup"]
    # The run of the model call has the results that were recorded with its answer.
    with work.engine.database.read() as session:
        first = session.agent_turns.all_calls(turn.project, turn.id)[0]
    run = work.engine.run(str(first.run_id))
    found = {"0": "found cup", "2": "found cup"}
    assert run.result(timeout=0)["tool_results"] == found  # type: ignore[index]


def test_a_read_that_fails_has_a_run_which_repeats_it(work: Worked) -> None:
    turn = _turn(work, _calls("look", word="broken"), "done")
    assert turn.result(timeout=0) == "done"
    assert _made == ["model", "look broken", "look broken", "model"]
    assert _runs(work, turn)["look__call"] == 1
    assert _results(work, turn) == ["found broken"]


def test_arguments_that_do_not_fit_are_refused(work: Worked) -> None:
    turn = _turn(work, _calls("look", nonsense=1), _calls("look", word=3), "done")
    assert turn.result(timeout=0) == "done"
    assert _made == ["model"] * 3
    assert [result["code"] for result in _results(work, turn)] == ["refused"] * 2


def test_a_large_result_has_a_run(work: Worked) -> None:
    turn = _turn(work, _calls("look", word="large"), "done")
    assert _runs(work, turn)["look__call"] == 1
    assert _results(work, turn) == ["x" * 9_000]
    assert _made == ["model", "look large", "look large", "model"]
    # The next one is not called in vain.
    _turn(work, _calls("look", word="large"), "done")
    assert _made == ["model", "look large", "model"]


def test_small_results_beside_a_large_one_count(work: Worked) -> None:
    asked = [ToolCall(f"c{at}", "look", {"word": w}) for at, w in enumerate(("large", "cup"))]
    answer = Answer(tuple(asked), StopReason.TOOL_CALLS, Usage(10, 5), "scripted")
    turn = _turn(work, answer, "done")
    assert _runs(work, turn)["look__call"] == 1
    assert _made == ["model", "look large", "look cup", "look large", "model"]


def test_a_result_that_exceeds_a_limit_with_its_answer_has_a_run(
    database_url: str, tmp_path: Path
) -> None:
    limits = {"max_json_depth": 100, "max_value_bytes": 8_000}
    with worked(database_url, tmp_path, **IN_PLACE, **limits) as work:
        for _ in range(2):
            _turn(work, _calls("look"), "done")
        turn = _turn(work, _calls("look", word="deep"), "done")
        assert (turn.result(timeout=0), _results(work, turn)) == ("done", [_nested(99)])
        parts = (Text("x" * 3_500), ToolCall("c0", "look", {"word": "y" * 4_000}))
        turn = _turn(work, Answer(parts, StopReason.TOOL_CALLS, Usage(), "scripted"), "done")
        assert turn.result(timeout=0) == "done"
        assert _runs(work, turn)["look__call"] == 1


def test_an_error_of_the_engine_does_not_lose_the_answer(
    work: Worked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(CallTimeouts, "over", fail)
    turn = _turn(work, _calls("look", word="cup"), "done")
    assert turn.result(timeout=0) == "done"
    assert _runs(work, turn)["look__call"] == 1
    assert "by runs of their own: can't start new thread" in caplog.text


def test_a_workflow_with_the_name_of_a_call_is_no_call(work: Worked) -> None:
    for _ in range(3):
        turn = _turn(work, _calls("shout", word="Cup"), "done")
        assert _results(work, turn) == ["cup"]
    turn = _turn(work, _calls("shouted", word="Cup"), "done", profile=shouter.profile)
    assert _results(work, turn) == ["CUP"]


def test_a_tool_that_has_changed_since_its_profile_has_a_run(
    work: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: Any = EventFacet(replace(look.definition, fn=_look_elsewhere))
    monkeypatch.setitem(registry._event_facets, look.name, changed)
    turn = _turn(work, _calls("look"), "done")
    assert _runs(work, turn)["look__call"] == 1
    assert _results(work, turn) == ["elsewhere kettle"]


def test_tools_that_need_more_than_their_code_have_runs(work: Worked) -> None:
    for _ in range(3):
        turn = _turn(work, _calls("limited", "guarded", word="cup"), "done")
        assert _runs(work, turn)["limited__call"] == _runs(work, turn)["guarded__call"] == 1


def test_a_coroutine_is_called_in_place(work: Worked) -> None:
    for _ in range(3):
        turn = _turn(work, _calls("glance", word="cup"), "done")
        assert _results(work, turn) == ["glanced at cup"]
    assert "glance__call" not in _runs(work, turn)


def test_a_stop_sets_the_cancel_token_of_a_tool(work: Worked) -> None:
    _hangs.clear()
    turn = _send(work, _calls("look", word="waits"), "done")
    settled = threading.Thread(target=work.settle)
    settled.start()
    assert _hangs.wait(30)
    turn.stop("enough")
    work.worker.lost_leases.check()
    settled.join(30)
    assert _made == ["model", "look waits", "stopped True"]
    assert turn.info().status == "canceled"


def test_a_result_that_ends_the_turn_has_a_run(work: Worked) -> None:
    turn = _turn(work, _calls("look", word="last"), "done")
    assert _runs(work, turn)["look__call"] == 1
    assert turn.result(timeout=0)["litres"] == 2
    turn = _turn(work, _calls("final"), "done")
    assert _runs(work, turn)["look__call"] == 1
    assert turn.result(timeout=0) == "found kettle"


def test_a_call_that_a_person_decides_about_waits(work: Worked) -> None:
    turn = _turn(work, _calls("asked", "look", word="cup"), "done")
    assert _made == ["model", "look cup"]
    (waiting,) = [call for call in turn.calls() if call.state == "waiting"]
    turn.approve(waiting.id, by="eva")
    work.settle()
    assert turn.result(timeout=0) == "done"
    assert _made == ["model", "look cup", "look cup", "model"]


def test_no_tool_is_called_beside_a_submitted_result(work: Worked) -> None:
    steps = (_calls("look", "submit_result"), _calls("submit_result", approve=True))
    turn = _turn(work, *steps, profile=judge.profile)
    assert turn.result(timeout=0) == {"approve": True}
    assert _made == ["model", "model"]


@pytest.mark.each_database
def test_an_answer_is_recorded_while_its_tool_hangs(
    work: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place_tools, "_LONGEST_WAIT", 0.01)
    _hangs.clear()
    _released.clear()
    turn = _send(work, _calls("look", word="slow"), "done")
    settled = threading.Thread(target=work.settle)
    settled.start()
    try:
        assert _hangs.wait(30)
        while not turn.calls():  # the answer alone: the call has a run
            assert settled.is_alive()
        assert turn.calls()[0].state == "waiting"
    finally:
        _released.set()
        settled.join(30)
    work.settle()
    assert turn.result(timeout=0) == "done"
    assert _made == ["model", "look slow", "look slow", "model"]
    assert _results(work, turn) == ["found slow"]


def test_after_the_death_of_a_worker_a_read_has_a_run(
    work: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Tries.run

    def once_lost(tries: Tries, entry: Any, batch: Any) -> bool:
        entry.task = replace(entry.task, losses=1)
        return real(tries, entry, batch)

    monkeypatch.setattr(Tries, "run", once_lost)
    turn = _turn(work, _calls("look", word="cup"), "done")
    assert turn.result(timeout=0) == "done"
    assert _runs(work, turn)["look__call"] == 1

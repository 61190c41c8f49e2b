"""The cost of agents, counted: a step costs the same early and late, and idle agents cost nothing.

Statements that are sent, and rows that are written, as the database counts them.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from flowengine.agents import Budget, agent, fork_join
from flowengine.agents.enqueue import NewTurn
from flowengine.engine import Engine, committer, pollers
from flowengine.evaluator import working_set
from flowengine.models import ModelRequest, ScriptedModel
from flowengine.store.agent_heads import AgentHeads
from flowengine.store.postgres import database as postgres_database
from flowengine.turns.records import Head
from tests.integration.agents.clerks import Office, calls, clerk, model, plan, search
from tests.integration.engines import dump, watched

_STEPS = 1_010


def _always(request: ModelRequest) -> Any:
    spoken = sum(message.role == "assistant" for message in request.messages)
    return calls("search") if spoken < _STEPS else "done"


@agent(model=ScriptedModel(_always), tools=[search], budget=Budget(steps=_STEPS + 1))
def diligent(task: str) -> str:
    """You search again and again."""
    return task


@contextmanager
def counted(engine: Engine) -> Iterator[Counter[str]]:
    """Count the statements that are sent, by their first words."""
    noted: Counter[str] = Counter()

    def note(sql: str, _given: Any = None) -> None:
        noted[" ".join(sql.split("(", 1)[0].split()[:3])] += 1

    def listen(_c: Any, _cursor: Any, sql: str, *_: Any) -> None:
        note(sql)

    event.listen(engine.database.engine, "before_cursor_execute", listen)
    with watched(engine, note):
        yield noted
    event.remove(engine.database.engine, "before_cursor_execute", listen)


def _step(desk: Office, turn: Any) -> tuple[Counter[str], dict[str, int]]:
    """Run one step, a model call and its tool; return its statements and the rows it changed."""
    before, steps = dump(desk.engine), turn.info().steps
    with counted(desk.engine) as statements:
        while turn.info().steps == steps:
            worker = desk.flow.worker("inline")
            task = worker.claim_next()
            assert task is not None
            worker.work_on(task)
    after = dump(desk.engine)
    written = {name: set(after[name]) - set(before[name]) for name in after}
    rows = {name.removeprefix("flowengine_"): len(new) for name, new in written.items() if new}
    return statements, rows


@pytest.mark.parametrize("late", [30, pytest.param(1_000, marks=pytest.mark.chaos)])
def test_a_step_costs_the_same_early_and_late(
    on_server: Office, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = on_server
    turn = diligent.send("search")
    # A process reads the rows of pollers, and the server's clock, every five seconds: in any step.
    monkeypatch.setattr(pollers, "KNOWN_SECONDS", 3_600.0)
    monkeypatch.setattr(postgres_database, "_CLOCK_TRUST", 3_600.0)
    costs = {}
    while (done := turn.info().steps) <= late:
        costs[done] = _step(desk, turn) if done in (10, late) else _quick(desk, turn)
    assert costs[late] == costs[10]
    _, rows = costs[10]
    assert (rows["agent_step"], rows["turn_waiting_tools"]) == (2, 1)  # one ends, one begins
    assert rows["box_card"] == rows["card"] == 3  # thought, call and result
    assert rows["run"] == 3  # the call that ends, the tool and the next call


def _quick(desk: Office, turn: Any) -> tuple[Counter[str], dict[str, int]]:
    worker = desk.flow.worker("inline")
    for _ in range(2):
        task = worker.claim_next()
        assert task is not None
        worker.work_on(task)
    return Counter(), {}


def _recovery(desk: Office) -> Counter[str]:
    with counted(desk.engine) as statements:
        desk.agents.recover()
    return statements


def _insert(desk: Office, number: int) -> None:
    """Add agents as their rows: each has had one turn, and is idle."""
    with desk.engine.database.write() as session:
        for at in range(number):
            session.agent_heads.create_or_lock("", f"idle {at}", 0)


_MANY = pytest.mark.parametrize("many", [1_000, pytest.param(10_000, marks=pytest.mark.chaos)])


@_MANY
def test_many_idle_agents_add_nothing_to_a_recovery_pass(on_server: Office, many: int) -> None:
    desk = on_server
    plan.reset({"hello": ["bonjour"]})
    clerk.at("ada").send("hello")
    desk.work()
    before = _recovery(desk)
    _insert(desk, many)
    assert _recovery(desk) == before
    assert sum(before.values()) <= 6, before


@_MANY
def test_many_suspended_agents_cost_a_recovery_pass_no_further_statement(
    on_server: Office, many: int
) -> None:
    desk = on_server
    plan.reset({"wait": [calls("search"), "done"]})
    turn = clerk.at("ada").send("wait")
    desk.until_suspended(turn)
    before = _recovery(desk)
    later = desk.clock.now + 10_000_000
    with desk.engine.database.write() as session:
        session.rows(
            "INSERT INTO flowengine_agent_state_head (project_id, agent_id, status, "
            "active_agent_turn_id, turn_epoch, active_recursion_depth, trace_id, parent_step_id, "
            "output_box_id, waiting_tool_count, resume_deadline, entered, event_count, updated_at) "
            "SELECT project_id, 'waits ' || n, status, active_agent_turn_id, turn_epoch, "
            "active_recursion_depth, trace_id, parent_step_id, 'box' || n, waiting_tool_count, "
            "%s, entered, event_count, updated_at FROM flowengine_agent_state_head, "
            "generate_series(1, %s) n WHERE agent_id = 'ada' RETURNING agent_id",
            (later, many),
        )
    assert _recovery(desk) == before


def test_queued_turns_of_a_busy_agent_cost_its_other_commits_nothing(small_desk: Office) -> None:
    desk = small_desk
    plan.reset({"wait": [calls("search", "measure"), "done"], "more": ["done"]})
    costs = []
    for waiting in (0, 50):
        turn = clerk.at(f"ada {waiting}").send("wait")
        first, _ = desk.until_suspended(turn)
        for _ in range(waiting):
            desk.agents.send(NewTurn("", f"ada {waiting}", clerk.profile, "more"))
        with counted(desk.engine) as statements:
            turn.report(first.id, "r")
        costs.append(statements)
    assert costs[0] == costs[1]


crowd = fork_join(clerk, name="tests.crowd", max_tasks=1000)


@agent(model=model, tools=[crowd])
def foreman(task: str) -> str:
    """You lead a crowd."""
    return task


def _join(desk: Office, number: int) -> None:
    """Let a parent join `number` agents."""
    tasks: Any = [{"instruction": f"t{at}", "target_ref": "clerk"} for at in range(number)]
    plan.reset({f"t{at}": ["done"] for at in range(number)})
    plan.steps["lead"] = [calls("crowd", tasks=tasks), "all done"]
    turn = foreman.at(f"boss {number}").send("lead")
    desk.work()
    assert turn.result(timeout=5) == "all done"


@pytest.mark.parametrize("many", [16, pytest.param(1_000, marks=pytest.mark.chaos)])
def test_the_parent_of_a_join_is_locked_as_often_for_many_tasks_as_for_few(
    on_server: Office, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    locked: Counter[str] = Counter()
    lock = AgentHeads.lock

    def count(heads: AgentHeads, project: str, agent_id: str, **options: Any) -> Head | None:
        locked[agent_id] += 1
        return lock(heads, project, agent_id, **options)

    monkeypatch.setattr(AgentHeads, "lock", count)
    for number in (4, many):
        _join(on_server, number)
    assert locked["boss 4"] == locked[f"boss {many}"]


#: Bytes that one more task of a join may add to the memory of a process: the rows of its steps in
#: the run of the join, and its outcome. Its cards, its profile and its turn are not kept.
_TASK_BYTES = 16_000


@pytest.mark.chaos
@pytest.mark.parametrize(("few", "many"), [(20, 60), (100, 1_000)])
def test_a_join_of_many_agents_takes_hardly_more_memory_than_one_of_few(
    on_server: Office, monkeypatch: pytest.MonkeyPatch, few: int, many: int
) -> None:
    monkeypatch.setattr(model, "requests", deque(maxlen=1))  # the model of the tests keeps them all
    if few < 100:  # a process has one portion of the tasks in memory, and caches 1,000 rows
        monkeypatch.setattr(working_set, "PORTION", 10)
        monkeypatch.setattr(committer, "_MAX_CACHED_ROWS", 50)
    _join(on_server, 5)  # modules, prepared programs and connections
    peaks = {}
    for number in (few, many):
        gc.collect()
        tracemalloc.start()
        try:
            _join(on_server, number)
            peaks[number] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    print(peaks)
    assert peaks[many] < peaks[few] + (many - few) * _TASK_BYTES

"""A seeded simulation of agents: senders, workers, a watchdog and a person who stops turns.

See `tests/integration/interleaving.py`. Processes die at any statement, report twice or late, and
forget to wake agents. After each commit the rows are held against the invariants of the doctor and
against laws about what may follow what; at the end each message has been delivered once.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from flowengine.agents import Agents, agent, agents_of, head_cache
from flowengine.agents.enqueue import NewTurn
from flowengine.authoring import Retry, event_facet
from flowengine.engine import Engine
from flowengine.engine.recovery import fire_due_timers
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.evaluator.triggers import Lost
from flowengine.models import ScriptedModel
from flowengine.settings import Settings
from flowengine.store import ensure_schema
from flowengine.store.agent_invariants import AGENT_INVARIANTS
from flowengine.store.claims import WorkerIdentity
from flowengine.store.sqlite.database import SqliteDatabase
from flowengine.turns.states import InboxState
from flowengine.worker.execution import execute_try
from tests.integration.agents.clerks import Plan, calls
from tests.integration.agents.in_place import made_in_place, policy_of, without_haste
from tests.integration.interleaving import Died, Scheduler, reborn

MESSAGES, AGENTS = 5, 2
plan = Plan()
_model = ScriptedModel(plan)
_NEVER = {"max_losses": 10_000}


@event_facet(name="played.search", retry=Retry(attempts=1), **_NEVER)
def search(query: str = "x") -> str:
    """Search."""
    return f"found {query}"


@event_facet(name="played.look", effects=False, **_NEVER)
def look(query: str = "x") -> str:
    """Look."""
    return f"seen {query}"


@agent(model=_model, name="played.translator", **_NEVER)
def translator(query: str = "hello") -> str:
    """You translate."""
    return f"translate {query}"


@agent(model=_model, tools=[search, look, translator], name="played.clerk", **_NEVER)
def clerk(task: str) -> str:
    """You settle complaints."""
    return task


WORKED = [search.name, look.name, translator.name, clerk.name]
WORKED += [facet.model_facet.name for facet in (translator, clerk)]


class Laws:
    """Looks at the rows after each commit, past everything that wrote them."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._epochs: dict[str, int] = {}
        self._events: dict[str, int] = {}
        self._ended_turns: dict[str, tuple[Any, ...]] = {}
        self._ended_messages: dict[str, str] = {}
        self._ended_calls: dict[str, tuple[Any, ...]] = {}
        self._cards: dict[str, str] = {}

    def close(self) -> None:
        self._connection.close()

    def rows(self, query: str) -> list[sqlite3.Row]:
        return self._connection.execute(query).fetchall()

    def check(self) -> None:
        self._connection.execute("BEGIN")
        try:
            for invariant in AGENT_INVARIANTS:
                query = invariant.query.replace("%(old)s", "0")
                found = [tuple(row) for row in self.rows(query)]
                assert found == [], f"{invariant.name}: {found}"
            self._heads_move_on()
            self._what_has_ended_stays()
            self._each_turn_delivers_once()
            self._numbers_have_no_gaps()
            self._steps_of_a_run_follow_each_other()
        finally:
            self._connection.execute("COMMIT")

    def _heads_move_on(self) -> None:
        boxes: Counter[str] = Counter()
        for row in self.rows("SELECT * FROM flowengine_agent_state_head"):
            agent_id, epoch = row["agent_id"], row["turn_epoch"]
            assert epoch >= self._epochs.get(agent_id, 0), "an epoch went down"
            self._epochs[agent_id] = epoch
            if row["status"] != "idle":
                boxes[row["output_box_id"]] += 1
        assert all(count == 1 for count in boxes.values()), "two active turns share a box"

    def _what_has_ended_stays(self) -> None:
        def stays(known: dict[str, Any], key: str, value: Any, label: str) -> None:
            assert known.setdefault(key, value) == value, f"{label} {key} was changed"

        every = "SELECT * FROM flowengine_"
        turns = {row["agent_turn_id"]: row for row in self.rows(every + "agent_turn")}
        assert self._ended_turns.keys() <= turns.keys()
        for turn_id, row in turns.items():
            if row["finished_at"] is not None:
                stays(self._ended_turns, turn_id, tuple(row), "the ended turn")
        for row in self.rows("SELECT inbox_id, status FROM flowengine_agent_inbox"):
            if row["status"] in InboxState.FINAL:
                stays(self._ended_messages, row["inbox_id"], row["status"], "the message")
        for row in self.rows("SELECT * FROM flowengine_turn_waiting_tools"):
            if row["wait_status"] != "waiting":
                stays(self._ended_calls, row["tool_call_id"], tuple(row), "the ended call")
        cards = {row["card_id"]: row["content"] for row in self.rows(every + "card")}
        assert self._cards.items() <= cards.items(), "a card was changed"
        self._cards = cards

    def _each_turn_delivers_once(self) -> None:
        def counted(of: str) -> dict[str, int]:
            query = f"SELECT agent_turn_id, count(*) FROM flowengine_{of} GROUP BY agent_turn_id"
            return {row[0]: row[1] for row in self.rows(query)}

        cards = counted("card WHERE type = 'task.deliverable'")
        events = counted("agent_event WHERE kind = 'task'")
        assert cards == events == dict.fromkeys(self._ended_turns, 1)
        results = self.rows(
            "SELECT tool_call_id, count(*) FROM flowengine_card WHERE type = 'tool.result' "
            "GROUP BY tool_call_id HAVING count(*) > 1"
        )
        assert results == [], "two results of one call"

    def _steps_of_a_run_follow_each_other(self) -> None:
        """A run makes one model call, or several of its turn one after the other."""
        rows = self.rows(
            "SELECT run_id, count(*) AS n, max(number) - min(number) + 1 AS span, "
            "count(DISTINCT agent_turn_id) AS turns, sum(status = 'started') AS open "
            "FROM flowengine_agent_step GROUP BY run_id"
        )
        for row in rows:
            assert (row["span"], row["turns"]) == (row["n"], 1)
            assert row["open"] <= 1

    def _numbers_have_no_gaps(self) -> None:
        for row in self.rows(
            "SELECT agent_id, count(*) AS n, max(number) AS last FROM flowengine_agent_event "
            "GROUP BY agent_id"
        ):
            assert row["n"] == row["last"] >= self._events.get(row["agent_id"], 0)
            self._events[row["agent_id"]] = row["n"]
        for row in self.rows(
            "SELECT box_id, count(*) AS n, max(position) AS last FROM flowengine_box_card "
            "GROUP BY box_id"
        ):
            assert row["n"] == row["last"] + 1, "a gap in a box"


class World:
    """One database, and everybody who works on it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.url = f"sqlite:///{path}"
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.seen: Counter[str] = Counter()  #: faults that have happened
        self.laws = Laws(path)
        self._policy = policy_of(WORKED)
        self._suspects: set[str] = set()  #: processes that the watchdog takes for dead
        self._time, self.boots = 1_700_000_000_000, 0
        # No time slice ends: real time passes at another pace in each game.
        self._settings = Settings(watchdog_interval=1.0, worker_time_slice=3_600.0)
        for number in range(2):
            self.scheduler.add(f"sender-{number}", self._reborn(self._send), is_mortal=True)
        for number in range(2 + seed % 2):
            self.scheduler.add(f"worker-{number}", self._reborn(self._work), is_mortal=True)
        self.scheduler.add("watchdog", self._reborn(self._watch))
        self.scheduler.add("person", self._reborn(self._stop), is_mortal=True)

    def play(self) -> None:
        try:
            self.scheduler.play()
            self.laws.check()
        finally:
            self.laws.close()

    def clock(self) -> int:
        self._time += 20
        return self._time

    def check(self) -> None:
        self.laws.check()

    def _reborn(self, act: Callable[[Engine, Agents, str], None]) -> Callable[[], None]:
        def begin(engine: Engine, boot: str) -> None:
            act(engine, self._forgetful(engine), boot)

        return reborn(self, self._settings, begin, self._died)

    def _died(self, boot: str) -> None:
        self.seen["deaths"] += 1
        self._suspects.add(boot)

    def _forgetful(self, engine: Engine) -> Agents:
        """The agents of a process that does not wake some of them."""
        agents = agents_of(engine)
        advance = agents._advance

        def perhaps(keys: Any, continuation: Any = None) -> Any:
            if self.random.random() < 0.3:
                self.seen["not woken"] += 1
                return []
            return advance(keys, continuation)

        agents._advance = perhaps  # type: ignore[method-assign]
        return agents

    # --- actors ---

    def _send(self, engine: Engine, agents: Agents, _boot: str) -> None:
        """Both send all messages, and again after a death: their keys make one turn of each."""
        for number in range(MESSAGES):
            name = f"agent {number % AGENTS}"
            agents.send(NewTurn("", name, clerk.profile, f"task {number}", key=f"mail {number}"))

    def _is_over(self, engine: Engine) -> bool:
        with engine.database.read() as session:
            sent, ended = session.rows(
                "SELECT count(*), count(finished_at) FROM flowengine_agent_turn"
            )[0]
            asked = session.rows(
                "SELECT count(*) FROM flowengine_agent_turn WHERE facet = 'played.clerk'"
            )[0][0]
            left = session.rows("SELECT count(*) FROM flowengine_run WHERE finished IS NULL")[0][0]
        return bool(asked == MESSAGES and sent == ended and left == 0)

    def _work(self, engine: Engine, _agents: Agents, boot: str) -> None:
        while not self._is_over(engine):
            task = engine.claim_task(WORKED, identity=WorkerIdentity(boot, boot))
            if task is not None:
                self._report(engine, task, boot)

    def _report(self, engine: Engine, task: TaskDefinition, boot: str) -> None:
        way = self.random.choice(["well", "well", "twice", "late", "record", "die"])
        if way == "late":
            self._suspects.add(boot)  # it hangs so long that the watchdog gives it up, perhaps
        # A worker knows after some tries that a tool is quick.
        within = made_in_place(engine, self._policy) if self.random.random() < 0.6 else None
        beat = lambda _progress: engine.heartbeat(task)  # noqa: E731
        outcome = execute_try(engine, task, beat, within=within)
        if way == "die":
            raise Died
        if way == "late":
            for _ in range(self.random.randrange(40)):
                self.scheduler.switch("hangs")
        if way == "record":
            engine.record(task, outcome)
            return
        if not engine.report(task, outcome):
            self.seen["refused reports"] += 1
        if way == "late":
            self._suspects.discard(boot)
        if way == "twice":
            assert not engine.report(task, outcome), "a second report was accepted"

    def _watch(self, engine: Engine, agents: Agents, _boot: str) -> None:
        while not self._is_over(engine):
            with engine.database.read() as session:
                running = session.rows(
                    "SELECT run_id, uuid FROM flowengine_task WHERE state = 'running'"
                )
            for run_id, uuid in running:
                for task in engine.tasks(run_id):
                    is_lost = task.uuid == uuid and task.state == TaskState.RUNNING
                    if is_lost and task.runner_id in self._suspects:
                        self.seen["losses"] += engine.report(task, Lost("its process is gone"))
            fire_due_timers(engine)
            with engine.database.read() as session:
                reported = session.recovery.unevaluated_runs(session.now(), 0)
                found = {*reported, *session.recovery.runs_with_facts()}
            for run_id in sorted(found):
                engine.advance(run_id)
            agents.recover()

    def _stop(self, engine: Engine, agents: Agents, _boot: str) -> None:
        """A person stops one of the turns, at any time."""
        for _ in range(self.random.randrange(60)):
            self.scheduler.switch("thinks")
        with engine.database.read() as session:
            turns = session.rows("SELECT agent_turn_id FROM flowengine_agent_turn ORDER BY 1")
        if turns:
            self.seen["stops"] += 1  # first: the process may die behind the commit
            agents.stop("", self.random.choice(turns)[0], "enough")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the schema and nothing in it, to be copied."""
    path = tmp_path_factory.mktemp("agents") / "empty.db"
    database = SqliteDatabase(f"sqlite:///{path}")
    ensure_schema(database, upgrade=True)
    database.close()
    return path


def played(empty: Path, path: Path, seed: int) -> World:
    shutil.copy(empty, path)
    steps = [calls("look", "look"), calls("search", "look"), calls("look"), calls("translator")]
    steps = [*steps, "done"]
    plan.reset({f"task {number}": steps for number in range(MESSAGES)})
    plan.steps["translate hello"] = ["hallo"]
    world = World(path, seed)
    # A process trusts its memory of a turn for a second of real time: here always or never.
    trusted = world.random.choice((math.inf, 0.0))
    with patch.object(head_cache, "_TRUSTED", trusted), without_haste():
        world.play()
    return world


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.chaos) for n in range(2, 40))]
)
def test_each_message_is_delivered_once_in_any_interleaving(
    empty: Path, tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "agents.db"
    world = played(empty, path, seed)
    print(f"seed {seed}: {len(world.scheduler.trace)} switches, {dict(world.seen)}")
    with sqlite3.connect(path) as connection:
        ends = connection.execute(
            "SELECT task_status, error_code, steps FROM flowengine_agent_turn WHERE facet = ?",
            (clerk.name,),
        ).fetchall()
        (in_place,) = connection.execute(
            "SELECT count(*) - count(DISTINCT run_id) FROM flowengine_agent_step"
        ).fetchone()
    connection.close()
    assert in_place > 0, "no model call was made in place"
    assert len(ends) == MESSAGES
    stopped = [end for end in ends if end[0] == "canceled"]
    assert len(stopped) <= world.seen["stops"]
    others = [end for end in ends if end[0] != "canceled"]
    assert others == [("success", None, 5)] * len(others)


@pytest.mark.chaos
def test_the_same_seed_gives_the_same_interleaving(empty: Path, tmp_path: Path) -> None:
    traces = [played(empty, tmp_path / f"{n}.db", 7).scheduler.trace for n in (1, 2)]
    assert traces[0] == traces[1]

"""Random actions from several threads on random programs, whose workers are killed.

Workers, operators and recovery are threads with an engine of their own each, like processes. A
checker reads the laws between tables all the time, each as one statement: one snapshot. At the end
every run has ended.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from flowengine.engine import Engine
from flowengine.engine.recovery import evaluate_reported_runs, fire_due_timers
from flowengine.errors import ActionRefused
from flowengine.evaluator import RunState, StepState, TaskDefinition
from flowengine.evaluator.actions import RUN_ACTIONS, ActionKind
from flowengine.evaluator.states import EVENT_CHANGES, EventState, ObjectType
from flowengine.evaluator.triggers import Lost, Succeeded
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from tests.integration.engines import opened
from tests.unit.evaluator.programs_strategy import Case, case_of

pytestmark = pytest.mark.each_database

#: Seeds, with the number of runs and of actions of each operator.
GAMES = [(1, 6, 12), *(pytest.param((n, 20, 80), marks=pytest.mark.chaos) for n in range(2, 12))]
TIMEOUT = 300.0  #: seconds, on a busy machine
OPEN = "('pending', 'held', 'running')"
FINAL = ", ".join(f"'{state}'" for state in sorted(StepState.FINAL))
#: Each finds rows that break a law.
LAWS = {
    "a run counts its open steps": (
        "SELECT r.id FROM flowengine_run r WHERE r.open_steps <> (SELECT count(*) FROM "
        "flowengine_step s WHERE s.run_id = r.id AND s.state = 'state.EventTransmit')"
    ),
    "no task of a held run can be claimed": (
        "SELECT t.uuid FROM flowengine_task t JOIN flowengine_run r ON r.id = t.run_id "
        "WHERE r.state = 'HELD' AND t.state = 'pending'"
    ),
    "a task is held only with its run": (
        "SELECT t.uuid FROM flowengine_task t JOIN flowengine_run r ON r.id = t.run_id "
        "WHERE r.state <> 'HELD' AND t.state = 'held'"
    ),
    "a run that has ended has no open task": (
        "SELECT t.uuid FROM flowengine_task t JOIN flowengine_run r ON r.id = t.run_id "
        f"WHERE r.finished IS NOT NULL AND t.state IN {OPEN}"
    ),
    "a run that has ended has no open step": (
        "SELECT s.id FROM flowengine_step s JOIN flowengine_run r ON r.id = s.run_id "
        f"WHERE r.finished IS NOT NULL AND s.state NOT IN ({FINAL})"
    ),
    "a step waits at its event with one open try": (
        "SELECT s.id FROM flowengine_step s WHERE s.state = 'state.EventTransmit' AND 1 <> "
        "(SELECT count(*) FROM flowengine_task t WHERE t.run_id = s.run_id AND t.step_id = s.id "
        f"AND (t.state IN {OPEN} OR t.state IN ('completed', 'failed') AND NOT t.taken_in))"
    ),
    "a result is recorded once": (
        "SELECT step_id FROM flowengine_task WHERE outcome = 'succeeded' "
        "GROUP BY step_id HAVING count(*) > 1"
    ),
}


class World:
    def __init__(self, url: str, seed: int, runs: int, actions: int) -> None:
        self._url, self._actions = url, actions
        self.random = Random(seed)
        self._clock = itertools.count(1_700_000_000_000, 20)
        self.cases: dict[str, Case] = {}
        self.abandoned: list[TaskDefinition] = []  #: by workers that were killed
        self.seen: Counter[str] = Counter()
        self.over = threading.Event()
        self._acting = threading.Barrier(3)  #: until the operators have done all their actions
        with self.engine() as engine:
            for number in range(runs):
                case = case_of(1_000 * seed + number, size=6, failing=3, silent=0)
                labels = {"team": "abcdefgh"[number % 8]}
                run = engine.start(case.document, "W", case.inputs, labels=labels)
                self.cases[run.id] = case

    def engine(self) -> Any:
        settings = Settings(cleanup_timeout=5.0)
        return opened(self._url, clock=lambda: next(self._clock), settings=settings)

    def play(self) -> None:
        operators = [self._in_engine(self._operate, n) for n in range(2)]
        workers = [self._in_engine(self._work, n) for n in range(2)]
        others = [self._in_engine(self._recover), self._in_engine(self._check)]
        actors = [*operators, *workers, *others, self._in_engine(self._end)]
        with ThreadPoolExecutor(len(actors)) as pool:
            for future in [pool.submit(actor) for actor in actors]:
                future.result(TIMEOUT)

    def _in_engine(self, act: Callable[..., None], *given: Any) -> Callable[[], None]:
        def acted() -> None:
            try:
                with self.engine() as engine:
                    act(engine, *given)
            except BaseException:
                self.over.set()
                self._acting.abort()  # the others would wait for one that has failed
                raise

        return acted

    def _operate(self, engine: Engine, number: int) -> None:
        random = Random(f"{number}{self.random.random()}")
        runs = sorted(self.cases)
        kinds = [*[ActionKind.HOLD] * 6, *[ActionKind.RELEASE] * 6, ActionKind.CANCEL]
        for _ in range(self._actions):
            kind = random.choice(kinds)
            try:
                if random.random() < 0.1:
                    engine.act_on_all(kind, label={"team": random.choice("abcdefgh")})
                else:
                    engine.control.act(random.choice(runs), kind, actor=f"token:{number}")
                self.seen[kind] += 1
            except ActionRefused as refused:
                self.seen["refused"] += 1
                assert "ended" in refused.reason or "always" in refused.reason  # noqa: PT017
        self._acting.wait(TIMEOUT)

    def _end(self, engine: Engine) -> None:
        self._acting.wait(TIMEOUT)
        engine.release_all(actor="schedule:end")

        deadline = time.monotonic() + TIMEOUT
        while not self.over.wait(0.05):
            left = [run_id for run_id in self.cases if not engine.get(run_id).is_final]
            if not left:
                self.over.set()
            assert time.monotonic() < deadline, f"in vain waited for the end of {left}"

    def _work(self, engine: Engine, number: int) -> None:
        identity = WorkerIdentity(f"worker-{number}", f"boot-{number}")
        random = Random(f"work{number}{self.random.random()}")
        while not self.over.is_set():
            task = engine.claim_task(["E", "R", "B"], identity=identity)
            if task is None:
                self.over.wait(0.005)
                continue
            way = random.choice(["well", "well", "well", "release", "killed", "twice"])
            if way == "killed":
                self.abandoned.append(task)
                continue
            if way == "release":
                engine.release(task)
                continue
            outcome = self.cases[task.workflow_id].answer(task) or Succeeded({"v": 1, "l": []})
            accepted = engine.report(task, outcome)
            self.seen["reports" if accepted else "refused reports"] += 1
            if way == "twice":
                assert not engine.report(task, Succeeded({"v": 2, "l": []}))

    def _recover(self, engine: Engine) -> None:
        while not self.over.is_set():
            while self.abandoned:
                engine.report(self.abandoned.pop(), Lost("its process was killed"))
            fire_due_timers(engine)
            evaluate_reported_runs(engine)
            self.over.wait(0.005)

    def _check(self, engine: Engine) -> None:
        while not self.over.wait(0.005):
            self.check_laws(engine)

    def check_laws(self, engine: Engine) -> None:
        for law, query in LAWS.items():
            with engine.database.read() as session:
                broken = session.connection.execute(text(query)).scalars().all()
            assert not broken, f"{law}: {broken[:3]}"


def check_events(engine: Engine, run_id: str) -> None:
    """Each event has gone from state to state as the table allows, and ended as its row says."""
    last: dict[str, str] = {}
    for change in engine.events(run_id, after=0):
        before = last.get(change.event_id)
        allowed = {EventState.CREATED} if before is None else EVENT_CHANGES[before]
        assert change.state in allowed, (before, change)
        last[change.event_id] = change.state
    assert last == {event.id: event.state for event in engine.events(run_id)}
    assert all(map(EventState.is_terminal, last.values()))


@pytest.mark.parametrize("game", GAMES, ids=str)
def test_random_actions_break_no_law_and_every_run_ends(
    database_url: str, game: tuple[int, int, int]
) -> None:
    world = World(database_url, *game)
    world.play()
    print(f"seed {game[0]}: {dict(world.seen)}")
    with world.engine() as engine:
        world.check_laws(engine)
        states = Counter(engine.get(run_id).state for run_id in world.cases)
        for run_id in world.cases:
            # Not by its path: the block of the workflow has the same, and may have failed before.
            steps = engine.steps(run_id)
            (root,) = [step for step in steps if step.object_type == ObjectType.WORKFLOW]
            is_cancelled = engine.get(run_id).state == RunState.CANCELLED
            assert (root.state == StepState.CANCELLED) == is_cancelled
            assert not RUN_ACTIONS[engine.get(run_id).state] & {ActionKind.CANCEL}
            check_events(engine, run_id)
    print(f"states: {dict(states)}")
    assert set(states) <= RunState.FINAL

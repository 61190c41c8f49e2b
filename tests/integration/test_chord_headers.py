"""Messages of a chord: a worker claims by id, and takes only what it can do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flowengine import event_facet, foreach, workflow
from flowengine.authoring import event_facet_names
from flowengine.dispatch import NullNotifier
from flowengine.engine import Engine
from flowengine.engine.handles import Run
from flowengine.evaluator import TaskState
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.engines import opened, side_by_side, watched

CALLS: list[int] = []
ME = WorkerIdentity("s", "b" * 32, 1)


@event_facet(name="headers.note")
def note(n: int) -> int:
    CALLS.append(n)
    return n


@event_facet(name="headers.charge", on_loss="fail")
def charge(n: int) -> int:
    CALLS.append(n)
    return n


@workflow(name="headers.notes")
def notes(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: note(n))


@workflow(name="headers.charges")
def charges(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: charge(n))


@dataclass
class WakeupRecorder(NullNotifier):
    wakeups: Counter[str] = field(default_factory=Counter)

    def notify(self, due: Mapping[str, int]) -> None:
        self.wakeups.update(due)


@pytest.fixture
def notifier() -> WakeupRecorder:
    CALLS.clear()
    return WakeupRecorder()


@pytest.fixture
def engine(database_url: str, notifier: WakeupRecorder, tmp_path: Path) -> Iterator[Engine]:
    # Without an end: how long a machine takes must not change what is counted.
    settings = Settings(
        quick_seconds=1, batch_max_wait=60, chord_time_slice=60, spool_directory=str(tmp_path)
    )
    with opened(database_url, notifier=notifier, settings=settings) as engine:
        yield engine


def ids(engine: Engine, run: Run[Any]) -> list[str]:
    return [task.uuid for task in engine.tasks(run.id)]


def test_a_worker_leaves_tasks_without_code_to_others(
    engine: Engine, notifier: WakeupRecorder
) -> None:
    run = engine.start(side_by_side(*(f"s{i}" for i in range(9))), "Flow", {})
    notifier.wakeups.clear()
    task_worker = TaskWorker(engine, ME, lambda: ["headers.note"])
    assert task_worker.work("default", ids(engine, run)) == 0
    assert {task.state for task in engine.tasks(run.id)} == {TaskState.PENDING}
    assert engine.get(run.id).state == "RUNNING"
    assert notifier.wakeups == {"default": 9}, "workers that have the code are notified"


def test_a_worker_claims_its_own_tasks_of_a_mixed_message(
    engine: Engine, notifier: WakeupRecorder
) -> None:
    others = engine.start(side_by_side(*(f"s{i}" for i in range(4))), "Flow", {})
    mine = engine.start(notes.program(), notes.name, {"numbers": list(range(20))})
    notifier.wakeups.clear()
    mixed = [*ids(engine, others)[:2], *ids(engine, mine), *ids(engine, others)[2:]]
    task_worker = TaskWorker(engine, ME, event_facet_names)
    assert task_worker.work("default", mixed) == 20
    assert sorted(CALLS) == list(range(20))
    assert {task.state for task in engine.tasks(others.id)} == {TaskState.PENDING}
    assert notifier.wakeups["default"] >= 4


def test_a_message_of_another_quick_facet_is_taken_together_too(engine: Engine) -> None:
    task_worker = TaskWorker(engine, ME, event_facet_names)
    for facet_of in (charges, notes, notes):
        warm = engine.start(facet_of.program(), facet_of.name, {"numbers": list(range(9))})
        task_worker.work("default", ids(engine, warm))
    engine.start(charges.program(), charges.name, {"numbers": [1]})
    task_worker.drain("default")  # the list's last facet is another one now
    run = engine.start(notes.program(), notes.name, {"numbers": list(range(40))})
    texts: list[str] = []
    with watched(engine, lambda text, _: texts.append(text)):
        assert task_worker.work("default", ids(engine, run)) == 40
    assert sum("WITH chosen" in text for text in texts) <= 4


def test_tasks_that_must_not_run_twice_are_claimed_one_by_one(engine: Engine) -> None:
    task_worker = TaskWorker(engine, ME, event_facet_names)
    for _ in range(2):
        warm = engine.start(charges.program(), charges.name, {"numbers": list(range(9))})
        task_worker.work("default", ids(engine, warm))
    run = engine.start(charges.program(), charges.name, {"numbers": list(range(30))})
    texts: list[str] = []
    with watched(engine, lambda text, _: texts.append(text)):
        assert task_worker.work("default", ids(engine, run)) == 30
    assert sum("WITH chosen" in text for text in texts) <= 30 + 2

"""Marks: what a process was doing can be read when it is gone, and decides what is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from flowengine import event_facet, foreach, workflow
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.engine.recovery import release_dropped, report_lost_tries
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.recovery_queries import held_task
from tests.integration.engines import opened

BOOT = "b" * 32
KILLED = """
import os, signal, sys
from flowengine.engine.in_flight import InFlightMarkers
with InFlightMarkers(sys.argv[1], sys.argv[2]).begun(sys.argv[3]):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@event_facet
def easy(n: int) -> int:
    return n


@event_facet(on_loss="fail")
def delicate(n: int) -> int:
    return n


@workflow
def batch(numbers: list[int]) -> list[int]:
    return foreach(numbers, lambda n: easy(n))


@workflow
def careful(n: int) -> int:
    return delicate(n)


def killed_process(directory: Path, task_id: str) -> int:
    """A process that was killed while it worked on a task."""
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(directory), BOOT, task_id])
    assert process.wait() == -signal.SIGKILL
    return process.pid


def test_what_a_killed_process_worked_on_can_be_read(tmp_path: Path) -> None:
    pid = killed_process(tmp_path, "c" * 32)
    marks = InFlightMarkers(tmp_path, BOOT)
    assert marks.of(pid) == {"c" * 32}
    marks.forget(pid)
    assert marks.of(pid) is None


def test_every_thread_has_a_mark_of_its_own_and_an_idle_process_has_none(tmp_path: Path) -> None:
    marks, begun, end = InFlightMarkers(tmp_path, BOOT), threading.Barrier(4), threading.Event()

    def work(task_id: str) -> None:
        with marks.begun(task_id):
            begun.wait()
            end.wait()

    threads = [threading.Thread(target=work, args=(letter * 32,)) for letter in "xyz"]
    for thread in threads:
        thread.start()
    begun.wait()
    assert marks.of(os.getpid()) == {letter * 32 for letter in "xyz"}
    end.set()
    for thread in threads:
        thread.join()
    assert marks.of(os.getpid()) == set()


def test_where_nothing_can_be_written_work_goes_on_unmarked(tmp_path: Path) -> None:
    (tmp_path / "marks").write_text("a file stands in the way")
    marks = InFlightMarkers(tmp_path, BOOT)
    with marks.begun("c" * 32):
        assert marks.of(os.getpid()) is None


def claimed(engine: object, names: list[str], pid: int) -> list[TaskDefinition]:
    identity = WorkerIdentity("s", BOOT, pid)
    return engine.claim(names, "default", identity, most=10)  # type: ignore[attr-defined]


def test_of_a_batch_only_the_task_that_had_begun_is_lost(database_url: str, tmp_path: Path) -> None:
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        run = engine.start(batch.program(), batch.name, batch.inputs([1, 2, 3]))
        probe = claimed(engine, [easy.name], 1)
        pid = killed_process(tmp_path, probe[1].uuid)
        for task in probe:
            engine.release(task)
        held = claimed(engine, [easy.name], pid)
        report_lost_tries(engine, [held_task(task) for task in held], "the worker")
        tries = engine.tasks(run.id)
        assert [t.losses for t in tries if t.state == TaskState.PENDING] == [0, 0, 1]
        assert [t.uuid for t in tries if t.state == TaskState.FAILED] == [probe[1].uuid]
        assert InFlightMarkers(tmp_path, BOOT).of(pid) is None, "accounted for"


def test_without_marks_all_that_a_dead_process_held_is_lost(
    database_url: str, tmp_path: Path
) -> None:
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        run = engine.start(batch.program(), batch.name, batch.inputs([1, 2, 3]))
        held = claimed(engine, [easy.name], 1)
        report_lost_tries(engine, [held_task(task) for task in held], "the machine")
        pending = [t.losses for t in engine.tasks(run.id) if t.state == TaskState.PENDING]
        assert pending == [1, 1, 1]


def test_what_must_not_run_twice_is_lost_although_its_mark_is_gone(
    database_url: str, tmp_path: Path
) -> None:
    # Its report may wait on the disk of a machine that is gone.
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        for settle in (report_lost_tries, lambda e, held, _: release_dropped(e, held)):
            run = engine.start(careful.program(), careful.name, careful.inputs(1))
            pid = killed_process(tmp_path, "of another task".ljust(32))
            held = claimed(engine, [delicate.name], pid)
            settle(engine, [held_task(task) for task in held], "the worker")
            assert engine.get(run.id).state == "FAILED"
            assert "must not run twice" in str(engine.get(run.id).error)

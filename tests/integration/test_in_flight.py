"""In-flight markers are readable after a process died, and decide which tries are lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine import event_facet, foreach, workflow
from flowengine.authoring import event_facet_names
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.engine.recovery import release_dropped, report_lost_tries
from flowengine.evaluator import TaskDefinition, TaskState
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.store.recovery_queries import held_task
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.worker import TaskWorker
from tests.fork_server import context
from tests.integration.engines import opened
from tests.warm import warm

BOOT = "b" * 32
#: A worker that is killed when it has finished its tasks and is about to report them.
KILLED_BEFORE_REPORT = """
import os, signal, sys
from flowengine.authoring import event_facet_names
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.engines import opened
from tests.integration.test_in_flight import easy

url, directory, boot_id = sys.argv[1:]
settings = Settings(spool_directory=directory, quick_seconds=1, batch_max_wait=60)
with opened(url, settings=settings) as engine:
    worker = TaskWorker(engine, WorkerIdentity("s", boot_id, os.getpid()), event_facet_names)
    for _ in range(2):
        worker._sizing.count(easy.name, 0.0001)
    engine.report_many = lambda *_given, **_more: os.kill(os.getpid(), signal.SIGKILL)
    worker.drain("default")
"""
#: A worker whose spool directory is full.
FULL_DISK = """
import logging, os, sys
from flowengine.authoring import event_facet_names
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.integration.engines import opened
from tests.integration.test_in_flight import batch

logging.basicConfig(format="%(action)s", level=logging.WARNING)
url, directory = sys.argv[1:]
with opened(url, settings=Settings(spool_directory=directory, quick_seconds=1)) as engine:
    worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, os.getpid()), event_facet_names)
    run = engine.start(batch.program(), batch.name, {"numbers": [1, 2]})
    report_many = engine.report_many
    if "outage" in directory:
        engine.report_many = lambda *_given, **_more: 1 / 0
    while worker.drain("default"):
        pass
    engine.report_many = report_many
    worker.client.reconcile()
    engine.advance(run.id)
    print(run.result(timeout=0))
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


def killed_process(directory: Path, task_id: str, boot_id: str = BOOT) -> int:
    """Return the pid of a process that was killed while it executed a task."""
    process = context.Process(target=mark_and_die, args=(directory, task_id, boot_id))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    return int(process.pid)


def mark_and_die(directory: Path, task_id: str, boot_id: str) -> None:
    InFlightMarkers(directory, boot_id).start(task_id)
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_marker_of_a_killed_process_can_be_read(tmp_path: Path) -> None:
    pid = killed_process(tmp_path, "c" * 32)
    markers = InFlightMarkers(tmp_path, BOOT)
    assert markers.of(pid) == markers.running(pid) == {"c" * 32}
    markers.forget(pid)
    assert markers.of(pid) is None


def test_threads_mark_more_tasks_than_the_first_page_has_slots(tmp_path: Path) -> None:
    markers = InFlightMarkers(tmp_path, BOOT)
    ids = [[f"{thread}-{number}".ljust(32) for number in range(100)] for thread in range(4)]
    slots: list[int | None] = []

    def start(task_ids: list[str]) -> None:
        slots.extend(markers.start(task_id) for task_id in task_ids)

    threads = [threading.Thread(target=start, args=(of_thread,)) for of_thread in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert markers.of(os.getpid()) == {task_id for of_thread in ids for task_id in of_thread}
    assert len(set(slots)) == 400
    for slot in slots:
        markers.clear(slot)
    assert markers.of(os.getpid()) == set()


def test_without_a_writable_directory_work_goes_on_unmarked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in-flight").write_text("not a directory")
    markers = InFlightMarkers(tmp_path, BOOT)
    assert markers.start("c" * 32) is markers.start("d" * 32) is None
    assert markers.of(os.getpid()) is None
    assert len(caplog.records) == 1, "logged once"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page."""
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.parametrize("name", ["spool", "outage"])
def test_a_full_disk_kills_no_process_and_loses_no_result(
    name: str, database_url: str, small_disk: Path
) -> None:
    (small_disk / "ballast").write_bytes(bytes(4096))
    worker = subprocess.run(
        warm("python", "-c", FULL_DISK, database_url, str(small_disk / name)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (worker.returncode, worker.stdout) == (0, "[1, 2]\n"), worker.stderr
    logged = worker.stderr.split()
    assert logged.count("no_in_flight_marker") == 1
    assert logged.count("report_kept_in_memory") == (2 if name == "outage" else 0)


# --- markers that are removed ---


def test_markers_of_dead_processes_are_removed_when_they_hold_no_task(
    database_url: str, tmp_path: Path
) -> None:
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        engine.start(batch.program(), batch.name, batch.inputs([1]))
        idle, holding = (killed_process(tmp_path, "c" * 32) for _ in range(2))
        assert claimed(engine, [easy.name], holding)
        worker = TaskWorker(engine, WorkerIdentity("s", BOOT, os.getpid()), event_facet_names)
        markers = InFlightMarkers(tmp_path, BOOT)
        own = markers.start("d" * 32)
        worker.client.remove_stale_markers()
        assert (markers.of(idle), markers.of(holding)) == (None, {"c" * 32})
        assert markers.of(os.getpid()) == {"d" * 32}, "it lives"
        markers.clear(own)


def test_markers_that_another_database_may_need_are_kept_for_a_day(
    database_url: str, tmp_path: Path
) -> None:
    settings = Settings(spool_directory=str(tmp_path))
    living, ended, of_another, old = (letter * 32 for letter in "cdef")
    with opened(database_url, settings=settings) as engine:
        with engine.database.write() as session:
            for boot_id in (living, ended):
                server = ServerDefinition(boot_id, "default", "worker", "w", boot_id=boot_id)
                server.state = ServerState.RUNNING
                session.servers.register(server)
            session.servers.deregister(ended)
        pids = {
            boot_id: killed_process(tmp_path, "1" * 32, boot_id)
            for boot_id in (living, ended, of_another, old)
        }
        two_days_ago = time.time() - 2 * 86_400
        os.utime(tmp_path / "in-flight" / f"{old}-{pids[old]}", (two_days_ago, two_days_ago))
        worker = TaskWorker(engine, WorkerIdentity("s", BOOT, os.getpid()), event_facet_names)
        worker.client.remove_stale_markers()
    kept = {b for b, pid in pids.items() if InFlightMarkers(tmp_path, b).of(pid) is not None}
    assert kept == {living, of_another}


def test_a_process_removes_its_marker_at_its_end(database_url: str, tmp_path: Path) -> None:
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        run = engine.start(batch.program(), batch.name, batch.inputs([1]))
        worker = TaskWorker(engine, WorkerIdentity("s", BOOT, os.getpid()), event_facet_names)
        while worker.drain("default"):
            pass
        markers = InFlightMarkers(tmp_path, BOOT)
        assert run.result(timeout=0) == [1]
        assert markers.of(os.getpid()) == set()
        worker.end()
        assert markers.of(os.getpid()) is None


# --- which tries are lost ---


def test_a_finished_try_whose_process_died_before_its_report_counts_as_lost(
    database_url: str, tmp_path: Path
) -> None:
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        run = engine.start(batch.program(), batch.name, batch.inputs([1, 2, 3]))
        worker = subprocess.run(
            warm("python", "-c", KILLED_BEFORE_REPORT, database_url, str(tmp_path), BOOT),
            check=False,
            timeout=60,
        )
        assert worker.returncode == -signal.SIGKILL
        with engine.database.read() as session:
            held = session.recovery.held_by_boots([BOOT])
        assert len(held) == 3, "one batch"
        report_lost_tries(engine, held, "the pool child")
        tries = [t for t in engine.tasks(run.id) if t.state == TaskState.PENDING]
        assert [t.losses for t in tries] == [1, 1, 1], "all three have run, and will run again"


def claimed(engine: object, names: list[str], pid: int) -> list[TaskDefinition]:
    identity = WorkerIdentity("s", BOOT, pid)
    return engine.claim(names, "default", identity, most=10)  # type: ignore[attr-defined]


def test_only_the_started_task_of_a_batch_is_lost(database_url: str, tmp_path: Path) -> None:
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
        assert InFlightMarkers(tmp_path, BOOT).of(pid) is None, "removed with the last of its tasks"


def test_without_a_marker_all_tasks_of_a_dead_process_are_lost(
    database_url: str, tmp_path: Path
) -> None:
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        run = engine.start(batch.program(), batch.name, batch.inputs([1, 2, 3]))
        held = claimed(engine, [easy.name], 1)
        report_lost_tries(engine, [held_task(task) for task in held], "the machine")
        pending = [t.losses for t in engine.tasks(run.id) if t.state == TaskState.PENDING]
        assert pending == [1, 1, 1]


def test_a_task_with_on_loss_fail_is_lost_even_if_its_marker_says_unstarted(
    database_url: str, tmp_path: Path
) -> None:
    # Its report may be spooled on the disk of a machine that is gone.
    with opened(database_url, settings=Settings(spool_directory=str(tmp_path))) as engine:
        for settle in (report_lost_tries, lambda e, held, _: release_dropped(e, held)):
            run = engine.start(careful.program(), careful.name, careful.inputs(1))
            pid = killed_process(tmp_path, "of another task".ljust(32))
            held = claimed(engine, [delicate.name], pid)
            settle(engine, [held_task(task) for task in held], "the worker")
            assert engine.get(run.id).state == "FAILED"
            assert "must not run twice" in str(engine.get(run.id).error)

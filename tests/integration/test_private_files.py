"""Files with inputs, results and errors are readable by their owner alone."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowengine.assembly.process_lock import ProcessLock
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.store import Database, upgrade_schema
from flowengine.worker.spool import Spool


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_file_of_a_new_database_and_its_log_are_private(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/flow.db")
    assert not (tmp_path / "flow.db").exists(), "an unused database makes no file"
    upgrade_schema(database)
    with database.write() as session:
        session.servers.alive()
        modes = {path.name: mode(path) for path in tmp_path.iterdir()}
        assert modes == dict.fromkeys(("flow.db", "flow.db-wal", "flow.db-shm"), 0o600)
    database.close()


def test_the_mode_of_an_existing_database_is_left_to_its_owner(tmp_path: Path) -> None:
    (tmp_path / "flow.db").touch(mode=0o644)
    database = Database(f"sqlite:///{tmp_path}/flow.db")
    upgrade_schema(database)
    database.close()
    assert mode(tmp_path / "flow.db") == 0o644


def test_threads_that_create_a_database_together_all_use_it(tmp_path: Path) -> None:
    problems: list[BaseException] = []

    def use(number: int) -> None:
        try:
            database = Database(f"sqlite:///{tmp_path}/{number // 8}.db")
            upgrade_schema(database)
            database.close()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_the_spool_and_its_reports_are_private(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "deep" / "spool")
    path = spool.write({"task_id": "t", "lease": 1})
    assert mode(path) == 0o600
    assert mode(tmp_path / "deep") == mode(tmp_path / "deep" / "spool") == 0o700


def test_an_in_flight_marker_and_its_directories_are_private(tmp_path: Path) -> None:
    markers = InFlightMarkers(tmp_path / "spool", "boot")
    for number in range(200):  # the file grows
        assert markers.start(f"{number:032}") is not None
    (marker,) = (tmp_path / "spool" / "in-flight").iterdir()
    assert mode(marker) == 0o600
    assert mode(marker.parent) == mode(marker.parent.parent) == 0o700


def test_the_lock_file_of_a_process_is_private(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path / "locks", "boot")
    assert (mode(lock.path), mode(lock.path.parent)) == (0o600, 0o700)
    lock.release()

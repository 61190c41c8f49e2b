"""Threads of a busy process hold wake-ups back: none of them is lost."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from flowengine import event_facet, workflow
from flowengine.assembly.embedded import Embedded
from flowengine.assembly.launcher import EngineLauncher
from flowengine.authoring import StartOptions
from flowengine.dispatch import ProcessLoad
from flowengine.settings import Settings

RUNS, STARTERS = 40, 3


@event_facet
def inc(n: int) -> int:
    return n + 1


@workflow
def thrice(n: int) -> int:
    return inc(inc(inc(n)))


def test_no_task_waits_for_the_watchdog_while_wake_ups_are_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessLoad, "is_busy", property(lambda _: True))
    settings = Settings(
        database_url=f"sqlite:///{tmp_path}/flow.db",
        spool_directory=str(tmp_path),
        watchdog_interval=3_600.0,
    )
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with closing(Embedded(settings)) as embedded:
            launcher = EngineLauncher(embedded.engine)
            results: list[int] = []

            def start(first: int) -> None:
                runs = [
                    launcher.start(thrice, {"n": first + n}, StartOptions()) for n in range(RUNS)
                ]
                results.extend(run.result(timeout=60) for run in runs)

            threads = [threading.Thread(target=start, args=(RUNS * n,)) for n in range(STARTERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(results) == [n + 3 for n in range(RUNS * STARTERS)]

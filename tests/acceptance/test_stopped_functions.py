"""A worker that was stopped inside a call in place comes back as a zombie, and records nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from flowengine.assembly import EngineLauncher
from flowengine.authoring import StartOptions, event_facet_names
from flowengine.evaluator.states import ObjectType
from flowengine.evaluator.triggers import Lost
from flowengine.settings import Settings
from flowengine.store.claims import WorkerIdentity
from flowengine.worker import TaskWorker
from tests.acceptance.stopped_function import SETTINGS, payments, work_and_stop
from tests.fork_server import context
from tests.integration.engines import opened


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.each_database
def test_a_revived_worker_is_refused_and_drops_its_coroutine(
    database_url: str, tmp_path: Path
) -> None:
    settings = Settings(**SETTINGS, spool_directory=str(tmp_path), heartbeat_interval=3_600)
    with opened(database_url, settings=settings) as engine:
        run = EngineLauncher(engine).start(payments, payments.inputs(6), StartOptions())
        zombie = context.Process(target=work_and_stop, args=(database_url, str(tmp_path)))
        zombie.start()
        assert zombie.pid is not None
        ends = time.monotonic() + 60
        while not is_stopped(zombie.pid):
            assert time.monotonic() < ends, "the worker does not come to its third call"
            time.sleep(0.01)
        # As the watchdog does when its server is silent for too long.
        (task,) = [task for task in engine.tasks(run.id) if task.state == "running"]
        assert engine.end_try(run.id, task.uuid, task.lease, Lost("its worker is silent"))
        worker = TaskWorker(engine, WorkerIdentity("s", "b" * 32, 1), event_facet_names)
        worker.poll("default", 1)  # it has the activation, and has recorded what follows
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.join(60)
        assert zombie.exitcode == 0
        while worker.drain("default"):
            pass
        worker.end()
        assert run.result(timeout=0) == 6
        calls = [step for step in run.steps() if step.object_type == ObjectType.FUNCTION_CALL]
        assert len({call.path for call in calls}) == len(calls) == 6
    assert "dropped an activation of payments.payments" in (tmp_path / "log").read_text()

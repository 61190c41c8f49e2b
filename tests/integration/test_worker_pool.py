"""Steps do not run in greenlets: a worker with such a pool takes no part, or does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flowengine.assembly.worker_pool import takes_part

_SCRIPT = """
import sys
from celery import Celery
from flowengine import event_facet
from flowengine.assembly import FlowEngine

app = Celery("pools", broker="memory://")
FlowEngine(app)

@event_facet(task_list="gpu")
def weigh(n: int) -> int:
    return n

pool, queues = sys.argv[1:]
worker = app.Worker(pool=pool, concurrency=1, queues=queues or None, without_mingle=True)
print([step.label for step in worker.steps if step.label == "flowengine"])
"""


def start(pool: str, queues: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _SCRIPT, pool, queues],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_worker_of_greenlets_is_refused_with_the_pools_that_work(tmp_path: Path) -> None:
    refused = start("gevent", "", tmp_path)
    assert refused.returncode == 1
    assert "flowengine does not run steps in the pool 'gevent': " in refused.stderr
    assert "--pool prefork, threads or solo" in refused.stderr
    assert refused.stderr.endswith("does not name: default, flowengine, gpu\n")


def test_a_worker_of_greenlets_serves_other_queues_and_takes_no_part(tmp_path: Path) -> None:
    served = start("gevent", "mails", tmp_path)
    assert (served.stdout, served.returncode) == ("[]\n", 0), served.stderr


@pytest.mark.parametrize("name", ["prefork", "thread", "solo"])
def test_a_worker_of_another_pool_takes_part(name: str) -> None:
    pool = type("TaskPool", (), {"__module__": f"celery.concurrency.{name}"})
    assert takes_part(pool, ["gpu"])

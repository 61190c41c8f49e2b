"""A worker ends when it is told to, and its pool children end with it, at bad moments, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import GRAPHS, QUICK_START, SHUTDOWN, MakeFleet
from tests.celery_nodes import Fleet, LocalRabbit, until
from tests.servers import RabbitServer

#: A module of the user: its children take their time right after the fork.
SLOW = b"""
import os, pathlib, time

traces, main = pathlib.Path(os.environ["TRACES"]), os.getpid()

def wait():
    while (traces / "slow").exists():
        time.sleep(0.01)

os.register_at_fork(after_in_child=wait)
"""
#: A module of the user: a signal arrives in the middle of a write to RabbitMQ.
INTERRUPTED = b"""
import os, pathlib, signal
from amqp import transport

quits, main = pathlib.Path(os.environ["TRACES"], "quits"), os.getpid()

class Interrupted:
    def __init__(self, write):
        self.write = write

    def __call__(self, data):
        if quits.exists() and os.getpid() == main:
            quits.unlink()
            os.kill(main, signal.SIGQUIT)
        self.write(data)

connect = transport._AbstractTransport.connect

def connect_interrupted(self):
    connect(self)
    self.write = Interrupted(self.write)

transport._AbstractTransport.connect = connect_interrupted
"""


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def module_fleet(request: pytest.FixtureRequest, make_fleet: MakeFleet) -> Iterator[Fleet]:
    imports = f"{GRAPHS},slow,interrupted"
    if request.param == "redis":
        fleet = make_fleet(imports)
    else:
        shared: RabbitServer = request.getfixturevalue("shared_rabbit")
        fleet = make_fleet(imports, broker=LocalRabbit(shared), backend=None)
    fleet.add_worker("w", *QUICK_START, content={"slow.py": SLOW, "interrupted.py": INTERRUPTED})
    yield fleet
    fleet.close()


def living(worker: Any) -> list[psutil.Process]:
    """Return the children of a worker; one may end while they are listed."""
    found = []
    for pid in worker.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_idle_children_that_were_forked_when_their_worker_was_killed_end(fleet: Fleet) -> None:
    (worker,) = fleet.workers
    before = living(worker)
    slow = fleet.traces / "slow"
    slow.touch()
    for child in before:
        child.kill()

    def forked() -> list[psutil.Process]:
        found = living(worker)
        new = [child for child in found if child not in before]
        return new if len(new) == len(before) else []

    new = until(forked, "the fork of both children")
    main = psutil.Process(worker.pid)
    main.kill()
    until(lambda: has_ended(main), "the end of the worker")
    slow.unlink()
    until(lambda: all(map(has_ended, new)), "the end of the new children, which are idle")


@pytest.mark.parametrize("module_fleet", ["rabbitmq"], indirect=True)
def test_a_worker_whose_write_to_rabbitmq_is_interrupted_by_sigquit_ends(fleet: Fleet) -> None:
    (worker,) = fleet.workers
    (fleet.traces / "quits").touch()
    fleet.start(graphs.held, name="held")  # a message, and its acknowledgement
    worker.wait(SHUTDOWN)
    assert not (fleet.traces / "quits").exists()

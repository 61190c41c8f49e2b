"""Deaths of workers, true and false: a fleet whose steps are held, and what happens to it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psutil
import psycopg

from flowengine.engine import Run
from flowengine.store.lock_tokens import LockState
from tests.acceptance.celery import graphs
from tests.acceptance.celery.conftest import QUICK_START
from tests.celery_nodes import Fleet, LocalRedis, LocalWorker, RestartablePostgres, until
from tests.servers import PostgresServer, RedisServer

#: Longest pause of a worker, well below `server_timeout`.
LONGEST_PAUSE = 10.0


@contextmanager
def fleet(
    postgres: PostgresServer, redis: RedisServer, directory: Path, workers: int = 2
) -> Iterator[Fleet]:
    """Workers with two pool children each, and a beat, with the default intervals."""
    made = Fleet(
        directory,
        broker=LocalRedis(redis),
        backend=LocalRedis(redis, vhost=1),
        database_url=postgres.new_database(),
        imports=graphs.__name__,
        FLOWENGINE_WATCHDOG_INTERVAL="0.5",
        FLOWENGINE_HEARTBEAT_INTERVAL="10",
        FLOWENGINE_SERVER_TIMEOUT="30",
        FLOWENGINE_WAKEUP_REPEAT="5",
    )
    try:
        for number in range(workers):
            made.add_worker(f"worker{number}", *QUICK_START, wait=False)
        made.add_beat()
        made.heal()
        yield made
    finally:
        made.let_all_go()
        made.close()


# --- true deaths ---


def seconds_until_claimed_again(fleet: Fleet, name: str) -> float:
    """Kill the main process of the worker that runs a step; return when another runs the step."""
    run = fleet.start(graphs.held, name=name)
    (pid,) = until(lambda: fleet.begun(name), "the start of the step")
    (victim,) = [worker for worker in fleet.workers if pid in worker.children()]
    until(lambda: locks_are_held(fleet), "locks of all workers")
    killed = time.monotonic()
    victim.kill()
    until(lambda: len(fleet.begun(name)) > 1, "another try", seconds=60, pause=0.005)
    seconds = time.monotonic() - killed
    fleet.let_go(name)
    assert run.result(timeout=30) == fleet.begun(name)[1]
    victim.start()
    return seconds


def locks_are_held(fleet: Fleet) -> bool:
    """Whether each worker is registered, with a lock that is held."""
    with contextlib.suppress(Exception), fleet.engine.database.read() as session:
        tokens = [server.lock_token for server in session.servers.alive()]
        held = [
            token
            for token in tokens
            if token and session.servers.probe_lock(token) is LockState.HELD
        ]
        return len(held) >= sum(worker.is_alive() for worker in fleet.workers)
    return False


# --- false deaths ---


class Disturbances:
    """Faults that no worker dies of."""

    def __init__(self, fleet: Fleet, postgres: RestartablePostgres, draw: Random) -> None:
        self._fleet, self._postgres, self._draw = fleet, postgres, draw

    def all(self) -> list[Callable[[], None]]:
        return [
            self.restart_database,
            self.crash_database,
            self.suspend_database,
            self.cut_locks,
            self.cut_connections,
            self.suspend_worker,
            self.suspend_main_process,
            self.restart_database_while_a_worker_is_suspended,
        ]

    def restart_database(self) -> None:
        self._postgres.go_away()
        time.sleep(self._draw.uniform(0, 5))
        self._postgres.come_back()

    def crash_database(self) -> None:
        """Kill one backend: PostgreSQL ends the others and recovers, as the same process."""
        backends = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        pids = [pid for (pid,) in self._postgres._connection.execute(backends)]
        os.kill(self._draw.choice(pids), signal.SIGKILL)
        self._postgres._connection.close()
        time.sleep(0.5)
        until(self._postgres._answers, "an answer")
        self._postgres._connection = self._postgres._connect()

    def suspend_database(self) -> None:
        self._postgres.freeze()
        time.sleep(self._draw.uniform(0.5, 6))
        self._postgres.thaw()

    def cut_locks(self) -> None:
        self._postgres._connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'flowengine-lock'"
        )

    def cut_connections(self) -> None:
        self._postgres.terminate_connections(self._fleet.database_url)

    def suspend_worker(self) -> None:
        with self._suspended() as worker:
            time.sleep(self._draw.uniform(0.5, LONGEST_PAUSE))
        assert worker.is_alive()

    def suspend_main_process(self) -> None:
        main = psutil.Process(self._draw.choice(self._fleet.workers).pid)
        main.suspend()
        time.sleep(self._draw.uniform(0.5, LONGEST_PAUSE))
        main.resume()

    def restart_database_while_a_worker_is_suspended(self) -> None:
        with self._suspended():
            self.restart_database()
            time.sleep(self._draw.uniform(0.5, 5))

    @contextmanager
    def _suspended(self) -> Iterator[LocalWorker]:
        worker = self._draw.choice(self._fleet.workers)
        worker.freeze()
        try:
            yield worker
        finally:
            worker.thaw()


def disturb(fleet: Fleet, postgres: RestartablePostgres, draw: Random, seconds: float) -> list[str]:
    """Disturb a fleet whose pool children all run steps; return the names of the faults."""
    faults = Disturbances(fleet, postgres, draw).all()
    done = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends or len(done) < len(faults):
        # Each fault once, then at random.
        fault = faults[len(done)] if len(done) < len(faults) else draw.choice(faults)
        done.append(fault.__name__)
        with contextlib.suppress(psycopg.OperationalError):
            fault()
        # A session that is cut while its process is suspended looks like that of a dead process.
        until(lambda: locks_are_held(fleet), f"locks after {fault.__name__}", seconds=60)
        time.sleep(draw.uniform(0, 4))
    return done


def hold_all_children(fleet: Fleet) -> list[Run[int]]:
    """Let every pool child run a step, so that a worker that is declared dead loses one."""
    number = sum(len(worker.children()) for worker in fleet.workers)
    runs = [fleet.start(graphs.held, name=f"step{n}") for n in range(number)]
    for n in range(number):
        until(lambda: fleet.begun(f"step{n}"), f"the start of step {n}")  # noqa: B023
    return runs


def false_deaths(fleet: Fleet) -> int:
    """How often a worker was declared dead while it ran a step."""
    return fleet.count_logged("that it held will run again")

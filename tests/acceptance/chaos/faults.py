"""The faults of the chaos run: each is injected into a scene, lasts, and is healed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.acceptance.celery.conftest import QUICK_START, SHUTDOWN
from tests.acceptance.chaos import workflows
from tests.acceptance.chaos.spool_disk import SpoolDisk
from tests.celery_nodes import Fleet, LocalWorker, RestartablePostgres


@dataclass
class Scene:
    """Everything that a fault can hit."""

    fleet: Fleet
    postgres: RestartablePostgres
    disk: SpoolDisk
    lots: Random
    victim: LocalWorker | None = None  #: of the worker fault that lasts
    older: LocalWorker | None = None  #: a worker of the older version, while one runs

    @property
    def redis(self) -> Any:
        return self.fleet.broker.server

    def draw_worker(self) -> LocalWorker:
        # Celery itself gives up when its children are killed while it starts.
        ready = [worker for worker in self.fleet.workers if worker.is_ready_now()]
        return self.lots.choice(ready or self.fleet.workers)


@dataclass(frozen=True, slots=True)
class Fault:
    """Two faults with one target never last at the same time."""

    target: str
    inject: Callable[[Scene], None]
    heal: Callable[[Scene], None] = lambda scene: None


def _kill_child(scene: Scene) -> None:
    if children := scene.draw_worker().children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(scene.lots.choice(children), signal.SIGKILL)


def _signal_worker(name: str) -> Callable[[Scene], None]:
    def send(scene: Scene) -> None:
        scene.victim = scene.draw_worker()
        scene.victim.kill(name)

    return send


def _freeze_worker(scene: Scene) -> None:
    scene.victim = scene.draw_worker()
    scene.victim.freeze()


def _thaw_worker(scene: Scene) -> None:
    assert scene.victim
    scene.victim.thaw()


def _restart_worker(scene: Scene) -> None:
    """Start the victim again. A worker that was asked to end must have ended in time."""
    assert scene.victim
    scene.victim.wait(SHUTDOWN)
    scene.victim.start()


def _kill_beat(scene: Scene) -> None:
    for beat in scene.fleet.beats:
        beat.kill()


def _start_beat(scene: Scene) -> None:
    for beat in scene.fleet.beats:
        beat.start(wait=False)


def _start_older_worker(scene: Scene) -> None:
    scene.older = scene.fleet.add_worker(
        "older", *QUICK_START, wait=False, FLOWENGINE_IMPORTS=workflows.__name__
    )


def _stop_older_worker(scene: Scene) -> None:
    assert scene.older
    scene.fleet.workers.remove(scene.older)
    scene.older.stop()
    scene.older = None


def _on_database(method: str) -> Callable[[Scene], None]:
    """A method of the server that is given the database."""
    return lambda scene: getattr(scene.postgres, method)(scene.fleet.database_url)


def heal(scene: Scene, faults: Iterable[str]) -> None:
    """Heal servers first: a worker starts, and ends in order, when it reaches them."""
    for name in sorted(faults, key=lambda name: FAULTS[name].target == "worker"):
        FAULTS[name].heal(scene)


#: Every fault by its name.
FAULTS: dict[str, Fault] = {
    "pool child killed": Fault("worker", _kill_child),
    "worker killed": Fault("worker", _signal_worker("SIGKILL"), _restart_worker),
    "worker quit": Fault("worker", _signal_worker("SIGQUIT"), _restart_worker),
    "worker terminated": Fault("worker", _signal_worker("SIGTERM"), _restart_worker),
    "worker frozen": Fault("worker", _freeze_worker, _thaw_worker),
    "beat killed": Fault("beat", _kill_beat, _start_beat),
    "older version": Fault("older", _start_older_worker, _stop_older_worker),
    "connections terminated": Fault("database", _on_database("terminate_connections")),
    "queries cancelled": Fault("database", _on_database("cancel_queries")),
    "database read-only": Fault(
        "database", _on_database("make_read_only"), _on_database("make_writable")
    ),
    "database stopped": Fault(
        "database", lambda scene: scene.postgres.go_away(), lambda scene: scene.postgres.come_back()
    ),
    "database hung": Fault(
        "database", lambda scene: scene.postgres.freeze(), lambda scene: scene.postgres.thaw()
    ),
    "Redis stopped": Fault(
        "redis", lambda scene: scene.redis.stop(), lambda scene: scene.redis.start()
    ),
    "Redis emptied": Fault("redis", lambda scene: scene.redis.flush()),
    "Redis full": Fault(
        "redis",
        lambda scene: scene.redis.limit_memory(1),
        lambda scene: scene.redis.limit_memory(0),
    ),
    "Redis hung": Fault(
        "redis", lambda scene: scene.redis.freeze(), lambda scene: scene.redis.thaw()
    ),
    "spool disk full": Fault(
        "disk", lambda scene: scene.disk.fill(), lambda scene: scene.disk.free()
    ),
}

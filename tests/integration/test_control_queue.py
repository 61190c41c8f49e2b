"""Some worker consumes the control queue, also if all were started with -Q."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowengine.engine import Engine
from flowengine.settings import Settings
from flowengine.store.servers import ServerDefinition, ServerState
from flowengine.tasks.control_queue import ControlQueue
from tests.integration.engines import opened

SETTINGS = Settings(server_timeout=30, heartbeat_interval=10)


class Worker:
    """A worker that was started with -Q gpu, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.queues = ["gpu"]
        self.control = ControlQueue(
            SETTINGS, lambda: self.queues, self.queues.append, lambda: self.now
        )

    def live(self, engine: Engine, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            self.control.check(engine)


def add_server(engine: Engine, name: str, topics: list[str]) -> None:
    with engine.database.write() as session:
        session.servers.register(
            ServerDefinition(
                name, "g", "s", name, topics=topics, state=ServerState.RUNNING, boot_id=name
            )
        )


def test_a_worker_takes_it_when_nobody_has_for_the_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker()
    with opened(f"sqlite:///{tmp_path}/flow.db") as engine:
        add_server(engine, "this", worker.queues)
        add_server(engine, "embedded", [])
        worker.live(engine, 29)
        assert worker.queues == ["gpu"]
        worker.live(engine, 12)
        assert worker.queues == ["gpu", "flowengine"]
        worker.live(engine, 600)
    assert worker.queues == ["gpu", "flowengine"], "once"
    (record,) = [r for r in caplog.records if r.__dict__.get("action") == "control_queue_taken"]
    assert "'flowengine'" in record.getMessage()
    assert "-Q" in record.getMessage()


def test_a_worker_leaves_it_to_another_that_consumes_it(tmp_path: Path) -> None:
    worker = Worker()
    with opened(f"sqlite:///{tmp_path}/flow.db") as engine:
        add_server(engine, "this", worker.queues)
        worker.live(engine, 25)  # the other one starts later
        add_server(engine, "other", ["default", "flowengine"])
        worker.live(engine, 3600)
        assert worker.queues == ["gpu"]
        with engine.database.write() as session:
            session.servers.deregister("other")
        worker.live(engine, 25)
        assert worker.queues == ["gpu"]
        worker.live(engine, 20)
    assert worker.queues == ["gpu", "flowengine"]


def test_a_worker_that_consumes_it_asks_nothing() -> None:
    worker = Worker()
    worker.queues.append("flowengine")
    no_engine: Any = None
    worker.live(no_engine, 60)
    assert worker.queues == ["gpu", "flowengine"]

"""The container classes of pytest-celery, around processes of this machine."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any

from pytest_celery import (
    CeleryTestContainer,
    CeleryWorkerContainer,
    RabbitMQContainer,
    RedisContainer,
)

from tests.celery_nodes.processes import GuardedProcess
from tests.servers import RabbitServer, RedisServer


class LocalRedis(RedisContainer):
    """One database of a private Redis. Killed or restarted, it is empty."""

    def __init__(self, server: RedisServer, vhost: int = 0) -> None:
        super().__init__(_BrokerProcess(server, says="Ready to accept connections"))
        self.server = server
        self._vhost = str(vhost)

    @property
    def url(self) -> str:
        return f"{self.server.url.rpartition('/')[0]}/{self._vhost}"

    @property
    def host_url(self) -> str:
        return self.url

    @property
    def hostname(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2].partition("/")[0])

    @property
    def vhost(self) -> str:
        return self._vhost


class LocalRabbit(RabbitMQContainer):
    """A private RabbitMQ. Killed or restarted, it has no queues."""

    def __init__(self, server: RabbitServer) -> None:
        super().__init__(_BrokerProcess(server, says="Server startup complete"))
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def host_url(self) -> str:
        return self.url

    @property
    def hostname(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2].partition("/")[0])


class _BrokerProcess:
    """A private broker that answers like a Docker container."""

    def __init__(self, server: RedisServer | RabbitServer, *, says: str) -> None:
        self._server, self._says = server, says
        self.id = uuid.uuid4().hex
        self.name = f"{type(server).__name__}-{self.id[:8]}"
        self.attrs: dict[str, Any] = {
            "Config": {"Env": [], "Hostname": "127.0.0.1"},
            "HostConfig": {"PortBindings": None},
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self._server.is_running else "exited"

    def reload(self) -> None:
        """Nothing is cached here."""

    def logs(self) -> bytes:
        return self._says.encode() if self._server.is_running else b""

    def kill(self, signal: str | int | None = None) -> None:
        self._server.stop()

    def restart(self, timeout: float = 10) -> None:
        self._server.restart()


class LocalNode(CeleryTestContainer):
    """A Celery worker or beat."""

    def __init__(self, process: GuardedProcess) -> None:
        super().__init__(process)
        self.process = process

    @property
    def directory(self) -> Path:
        return self.process.directory

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[int]:
        """The pool, the oldest child first."""
        return self.process.children()

    def is_alive(self) -> bool:
        return self.process.status == "running"

    def is_ready_now(self) -> bool:
        """Whether it runs and has logged its ready prompt; `ready` would wait for it."""
        return self.is_alive() and self.process.is_ready()

    def start(self, *, wait: bool = True) -> None:
        self.process.start(wait=wait)

    def wait_until_ready(self) -> None:
        self.process.wait_until_ready()

    def terminate(self) -> None:
        """Send SIGTERM: it finishes its running steps and ends."""
        self.process.kill("SIGTERM")

    def freeze(self) -> None:
        self.process.freeze()

    def thaw(self) -> None:
        self.process.thaw()

    def wait(self, timeout: float = 30) -> int:
        return self.process.wait(timeout)

    def stop(self) -> None:
        self.process.stop()


class LocalWorker(LocalNode, CeleryWorkerContainer):
    """`celery -A flowengine worker`."""

    @classmethod
    def command(cls, *args: str, app: str = "flowengine", **_: Any) -> list[str]:
        return [
            *(sys.executable, "-m", "celery", f"--app={app}", "worker"),
            *(f"--loglevel={cls.log_level()}", "-n", f"{cls.worker_name()}@%h"),
            *("--concurrency=2", *args),
        ]

    @classmethod
    def initial_env(
        cls, celery_worker_cluster_config: dict[str, Any], initial: dict[str, str] | None = None
    ) -> dict[str, str]:
        found = super().initial_env(celery_worker_cluster_config, initial)
        found.pop("PYTHONPATH")  # the image's own
        return found


class LocalBeat(LocalNode):
    """`celery -A flowengine beat`."""

    @classmethod
    def command(cls, *args: str, app: str = "flowengine", **_: Any) -> list[str]:
        return [
            *(sys.executable, "-m", "celery", f"--app={app}", "beat"),
            *("--loglevel=INFO", "--pidfile=", "--schedule=schedule", *args),
        ]

    @property
    def ready_prompt(self) -> str:
        return "beat: Starting..."


def write_files(directory: Path, content: dict[str, bytes]) -> None:
    """Write the files that a container would have in its volume."""
    for name, text in content.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)

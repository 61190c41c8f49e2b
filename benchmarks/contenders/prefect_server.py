"""Prefect: a server of its own on PostgreSQL, and flows with tasks in this process.

Environment: BENCH_DATABASE.
"""

from __future__ import annotations

import os
import socket
import urllib.request
from typing import Any

from benchmarks.contenders.driver import Driver, serve


class PrefectOnServer(Driver):
    packages = ("prefect", "sqlalchemy", "asyncpg")

    def open(self) -> None:
        port = _free_port()
        where = {
            "PREFECT_HOME": str(self.directory),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_API_DATABASE_CONNECTION_URL": os.environ["BENCH_DATABASE"].replace(
                "+psycopg", "+asyncpg"
            ),
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        os.environ.update(where)
        self.start_process(
            "server", "-m", "prefect", "server", "start", "--port", str(port), **where
        )
        self.wait_for("the server", lambda: _is_healthy(where["PREFECT_API_URL"]), 90)

        from benchmarks.contenders import prefect_flows

        self._flows: Any = prefect_flows
        self.settings = {
            "tasks": "submitted to a thread pool, Prefect's default, in one process",
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "results of tasks": "not persisted, Prefect's default: their states are",
        }

    def fan_out(self, size: int) -> Any:
        return self._flows.fan_out(size)

    def chain(self, size: int) -> Any:
        return self._flows.chain(size)

    def small_runs(self, size: int) -> list[int]:
        return [self._flows.small(number) for number in range(size)]

    def one_run(self, number: int) -> int:
        return self._flows.small(number)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    serve(PrefectOnServer())

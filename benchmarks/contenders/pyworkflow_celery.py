"""PyWorkflow on Celery: its worker with two processes, Redis and PostgreSQL.

Environment: BENCH_DATABASE, BENCH_BROKER.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from benchmarks.contenders.driver import ENDLESS, Driver, serve

FLOWS = "benchmarks.contenders.pyworkflow_flows"
#: Seconds between two looks at a run. PyWorkflow has no way to wait for one.
POLLING = 0.02


class PyWorkflowOnCelery(Driver):
    packages = ("pyworkflow-engine", "celery", "kombu", "redis", "asyncpg")

    def open(self) -> None:
        where = {
            "PYWORKFLOW_RUNTIME": "celery",
            "PYWORKFLOW_CELERY_BROKER": os.environ["BENCH_BROKER"],
            "PYWORKFLOW_STORAGE_TYPE": "postgres",
            "PYWORKFLOW_DISCOVER": FLOWS,
            "PYWORKFLOW_LOG_LEVEL": "WARNING",  # at INFO it writes several lines for each step
            **_postgres(os.environ["BENCH_DATABASE"]),
        }
        os.environ.update(where)
        asyncio.run(_make_tables())
        celery = ("-m", "celery", "-A", "pyworkflow.celery.app")
        self.start_process("worker", *celery, "worker", "--concurrency", "2", **where)

        from pyworkflow.celery.app import celery_app

        from benchmarks.contenders import pyworkflow_flows

        self._flows: Any = pyworkflow_flows
        self._loop = asyncio.new_event_loop()
        self.wait_for("the worker", lambda: celery_app.control.ping(timeout=0.2))
        self.settings = {
            "celery -A pyworkflow.celery.app worker": "--concurrency 2",
            "log level": "WARNING",
            "tables": "made before its migrations run, which fail on an empty PostgreSQL",
            "steps": "distributed, its default",
            "looking for the result": f"every {POLLING} s",
        }

    def fan_out(self, size: int) -> Any:
        return self._run(self._flows.fan_out, size)

    def chain(self, size: int) -> Any:
        return self._run(self._flows.chain, size)

    def small_runs(self, size: int) -> list[int]:
        runs = [self._start(self._flows.small, number) for number in range(size)]
        return [self._result(run) for run in runs]

    def one_run(self, number: int) -> int:
        return self._run(self._flows.small, number)

    def _run(self, flow: Any, given: int) -> Any:
        return self._result(self._start(flow, given))

    def _start(self, flow: Any, given: int) -> str:
        from pyworkflow import start

        return str(self._loop.run_until_complete(start(flow, given)))

    def _result(self, run_id: str) -> Any:
        return self._loop.run_until_complete(_wait(run_id))


async def _wait(run_id: str) -> Any:
    from pyworkflow import get_workflow_run

    ends = time.monotonic() + ENDLESS
    while time.monotonic() < ends:
        run = await get_workflow_run(run_id)
        if run is not None and run.status.value == "completed":
            return json.loads(run.result)[0]  # kept as a list of one
        if run is not None and run.status.value in ("failed", "cancelled"):
            raise RuntimeError(f"the run has {run.status.value}: {run.error}")
        await asyncio.sleep(POLLING)
    raise TimeoutError(run_id)


async def _make_tables() -> None:
    """Make the tables, then upgrade them.

    PyWorkflow 0.4 does it the other way round, and on an empty PostgreSQL its migrations fail
    at the first table that is not there yet.
    """
    from pyworkflow.config import _load_env_storage_config
    from pyworkflow.storage import postgres
    from pyworkflow.storage.config import _create_storage_backend

    async def later(_runner: Any) -> None:
        return None

    upgrade = postgres.PostgresMigrationRunner.run_migrations
    for run in (later, upgrade):
        postgres.PostgresMigrationRunner.run_migrations = run
        backend: Any = _create_storage_backend(_load_env_storage_config())
        await backend.connect()
        await backend.disconnect()


def _postgres(url: str) -> dict[str, str]:
    """A URL in the parts that PyWorkflow asks for. The host is a directory: that of the socket."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    return {
        "PYWORKFLOW_POSTGRES_HOST": quote(query["host"][0], safe=""),
        "PYWORKFLOW_POSTGRES_PORT": query["port"][0],
        "PYWORKFLOW_POSTGRES_USER": parts.username or "",
        "PYWORKFLOW_POSTGRES_DATABASE": parts.path.lstrip("/"),
    }


if __name__ == "__main__":
    serve(PyWorkflowOnCelery())

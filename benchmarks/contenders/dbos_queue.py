"""DBOS with queues: two worker processes, and this caller with a client.

The same file is the worker, when it is given its number. Environment: BENCH_DATABASE.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from benchmarks.contenders.driver import Driver, serve

PROCESSES = 2


class DbosQueue(Driver):
    packages = ("dbos", "sqlalchemy", "psycopg")

    def open(self) -> None:
        from dbos import DBOSClient

        from benchmarks.contenders import dbos_flows

        self._flows: Any = dbos_flows
        url = os.environ["BENCH_DATABASE"]
        for number in range(PROCESSES):
            name = f"worker{number}"
            self.start_process(name, "-m", __spec__.name, str(number), BENCH_DATABASE=url)
            # One after the other: the first makes the tables.
            self.wait_for("the worker", (self.directory / f"{name}.ready").exists)
        self._client = DBOSClient(system_database_url=url)
        self.settings = {
            "processes": PROCESSES,
            "polling_interval_sec of queues and results": dbos_flows.POLLING,
            "worker_concurrency of the queue of steps": dbos_flows.AT_ONCE,
        }

    def fan_out(self, size: int) -> Any:
        return self._result(self._start("queued_fan_out", size))

    def pipelines(self, size: int) -> Any:
        return self._result(self._start("queued_pipelines", size))

    def small_runs(self, size: int) -> list[int]:
        handles = [self._start("small", number) for number in range(size)]
        return [self._result(handle) for handle in handles]

    def one_run(self, number: int) -> int:
        return self._result(self._start("small", number))

    def _start(self, name: str, *given: int) -> Any:
        options: Any = {"queue_name": self._flows.RUNS, "workflow_name": name}
        return self._client.enqueue(options, *given)

    def _result(self, handle: Any) -> Any:
        return handle.get_result(polling_interval_sec=self._flows.POLLING)


def work(number: str) -> None:
    """Be a worker until killed."""
    from pathlib import Path

    from dbos import DBOS

    from benchmarks.contenders.dbos_flows import (
        AT_ONCE,
        POLLING,
        RUNS,
        STEPS,
        configuration,
    )

    DBOS(config=configuration(os.environ["BENCH_DATABASE"], executor=number))
    DBOS.launch()
    DBOS.register_queue(STEPS, worker_concurrency=AT_ONCE, polling_interval_sec=POLLING)
    DBOS.register_queue(RUNS, worker_concurrency=AT_ONCE, polling_interval_sec=POLLING)
    Path(f"worker{number}.ready").touch()
    signal.pause()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        serve(DbosQueue())

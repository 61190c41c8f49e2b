"""DBOS with each workload as the steps of one workflow, in this process.

Environment: BENCH_DATABASE, a PostgreSQL or SQLite URL.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from benchmarks.contenders.driver import Driver, serve
from benchmarks.workloads import LIGHT, LONG


class DbosSteps(Driver):
    packages = ("dbos", "sqlalchemy", "psycopg")

    def open(self) -> None:
        from dbos import DBOS

        from benchmarks.contenders import dbos_flows

        self._flows: Any = dbos_flows
        self._dbos: Any = DBOS
        DBOS(config=dbos_flows.configuration(os.environ["BENCH_DATABASE"]))
        DBOS.launch()
        self.settings = {"processes": "one", "steps": "plain functions, one after the other"}

    def fan_out(self, size: int) -> Any:
        return self._flows.fan_out(size)

    def chain(self, size: int) -> Any:
        return self._flows.chain(size)

    def pipelines(self, size: int) -> Any:
        return self._flows.pipelines(size)

    def light(self, size: int) -> Any:
        return self._flows.fibs(size, LIGHT)

    def long(self, size: int) -> Any:
        return self._flows.fibs(size, LONG)

    def small_runs(self, size: int) -> list[int]:
        start, small = self._dbos.start_workflow, self._flows.small
        handles = [start(small, number) for number in range(size)]
        return [handle.get_result() for handle in handles]

    def answers(self, size: int) -> list[int]:
        # Coroutines: a thread for each run that waits would be slower, and not fit into memory.
        return asyncio.run(self._answers(size))

    async def _answers(self, size: int) -> list[int]:
        start, send = self._dbos.start_workflow_async, self._dbos.send_async
        handles = [await start(self._flows.asks, number) for number in range(size)]
        for number, handle in enumerate(handles):
            await send(handle.workflow_id, number, "answer")
        return [await handle.get_result() for handle in handles]

    def one_run(self, number: int) -> int:
        return self._flows.small(number)


if __name__ == "__main__":
    serve(DbosSteps())

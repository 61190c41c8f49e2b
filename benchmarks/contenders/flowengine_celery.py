"""flowengine on Redis and PostgreSQL: `celery -A flowengine worker`, a beat, and this caller.

The configuration is the repository's `celeryconfig.py`, copied beside the worker as the guide
says. Environment: BENCH_DATABASE, BENCH_BROKER, BENCH_BACKEND; for sections that ask for
another pool, BENCH_WORKER holds arguments for the worker.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.contenders.driver import ENDLESS, Driver, serve
from benchmarks.processes import ROOT

FLOWS = "benchmarks.contenders.flowengine_flows"


class FlowengineOnCelery(Driver):
    packages: tuple[str, ...] = ("flowengine", "celery", "kombu", "redis", "sqlalchemy", "psycopg")

    def open(self) -> None:
        worker = shlex.split(os.environ.get("BENCH_WORKER", "--concurrency 2"))
        shutil.copy(ROOT / "celeryconfig.py", self.directory)
        where = {
            "FLOWENGINE_DATABASE_URL": os.environ["BENCH_DATABASE"],
            "FLOWENGINE_BROKER_URL": os.environ["BENCH_BROKER"],
            "FLOWENGINE_RESULT_BACKEND": os.environ["BENCH_BACKEND"],
            "FLOWENGINE_IMPORTS": FLOWS,
        }
        os.environ.update(where)
        _upgrade(where["FLOWENGINE_DATABASE_URL"])
        celery = ("-m", "celery", "-A", "flowengine")
        self.start_process("worker", *celery, "worker", *worker, **where)
        self.start_process("beat", *celery, "beat", **where)
        sys.path.insert(0, str(self.directory))  # celeryconfig.py, as for any client

        import flowengine
        from benchmarks.contenders import flowengine_flows
        from flowengine.celery import app  # from here on `start` goes through this app

        self._flows = flowengine_flows
        self._engine: Any = app.flowengine.engine
        self.wait_for("the worker", lambda: app.control.ping(timeout=0.2))
        self.settings = {
            "celery -A flowengine worker": shlex.join(worker),
            "celery -A flowengine beat": "one",
            "celeryconfig.py": "the repository's",
            "FLOWENGINE_*": "only addresses and imports; all else by default",
        }

        if not Path(flowengine.__file__).is_relative_to(ROOT):
            self.settings["flowengine from"] = str(Path(flowengine.__file__).parent)

    # --- workloads ---

    def prepare(self, do: str, size: int) -> None:
        self._flows.flow_of(do, size)[0].program()

    def _run(self, do: str, size: int) -> Any:
        flow, inputs = self._flows.flow_of(do, size)
        return flow.start(**inputs).result(timeout=ENDLESS)

    def fan_out(self, size: int) -> Any:
        return self._run("fan_out", size)

    def chain(self, size: int) -> Any:
        return self._run("chain", size)

    def pipelines(self, size: int) -> Any:
        return self._run("pipelines", size)

    def light(self, size: int) -> Any:
        return self._run("light", size)

    def long(self, size: int) -> Any:
        return self._run("long", size)

    def small_runs(self, size: int) -> list[int]:
        runs = [self._flows.small.start(number) for number in range(size)]
        return [run.result(timeout=ENDLESS) for run in runs]

    def small_runs_together(self, size: int) -> list[int]:
        small = self._flows.small
        inputs = [small.inputs(number) for number in range(size)]
        runs = self._engine.start_many(small.program(), small.name, inputs)
        return [run.result(timeout=ENDLESS) for run in runs]

    def answers(self, size: int) -> list[int]:
        runs = [self._flows.asks.start(number) for number in range(size)]
        for number, run in enumerate(runs):
            run.send("answer", number)
        return [run.result(timeout=ENDLESS) for run in runs]

    def function_chain(self, size: int) -> Any:
        return self._run("function_chain", size)

    def function_reads(self, size: int) -> Any:
        return self._run("function_reads", size)

    def function_tasks(self, size: int) -> Any:
        return self._run("function_tasks", size)

    def function_runs(self, size: int) -> list[int]:
        runs = [self._flows.small_function.start(number) for number in range(size)]
        return [run.result(timeout=ENDLESS) for run in runs]

    def one_run(self, number: int) -> int:
        return self._flows.small.start(number).result(timeout=ENDLESS)

    def naps(self, lengths: list[float]) -> Any:
        return self._flows.naps.start(lengths).result(timeout=ENDLESS)


def _upgrade(url: str) -> None:
    """`flowengine db upgrade`, as an operator does it before the first worker starts."""
    from flowengine.store import Database, ensure_schema

    database = Database(url)
    ensure_schema(database, upgrade=True)
    database.close()


if __name__ == "__main__":
    serve(FlowengineOnCelery())

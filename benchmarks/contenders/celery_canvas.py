"""Plain Celery canvas on Redis: chords and chains, with two worker processes.

Not durable: what a run is lives in messages and in Redis. It is here as the limit of what
Celery's own means reach. Environment: BENCH_BROKER, BENCH_BACKEND.
"""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.contenders.driver import ENDLESS, Driver, Timed, serve
from benchmarks.workloads import LIGHT, LONG

TASKS = "benchmarks.contenders.canvas_tasks"


class CeleryCanvas(Driver):
    packages = ("celery", "kombu", "redis")

    def open(self) -> None:
        names = ("BENCH_BROKER", "BENCH_BACKEND")
        where = {name: os.environ[name] for name in names}
        celery = ("-m", "celery", "-A", TASKS)
        self.start_process("worker", *celery, "worker", "--concurrency", "2", **where)

        from benchmarks.contenders import canvas_tasks

        self._tasks: Any = canvas_tasks
        self._app = canvas_tasks.app
        self.wait_for("the worker", lambda: self._app.control.ping(timeout=0.2))
        self.settings = {
            "celery worker": "--concurrency 2",
            **canvas_tasks.SETTINGS,
            "stored": "the results of chord headers and of last tasks",
        }

    # --- workloads ---

    def messages(self, size: int) -> Timed:
        """How fast the worker empties a queue that was full when it began."""
        control, queue = self._app.control, self._app.conf.task_default_queue
        control.cancel_consumer(queue, reply=True)
        for _ in range(size):
            self._tasks.nothing.apply_async()
        before = self._done()
        begun = time.perf_counter()
        control.add_consumer(queue)
        self.wait_for("the last message", lambda: self._done() - before >= size, ENDLESS)
        return Timed(self._done() - before, time.perf_counter() - begun)

    def _done(self) -> int:
        stats = self._app.control.inspect(timeout=5, limit=1).stats() or {}
        return sum(worker["total"].get(self._tasks.nothing.name, 0) for worker in stats.values())

    def fan_out(self, size: int) -> Any:
        from celery import chord

        tasks = self._tasks
        header = [tasks.same.s(item) for item in range(size)]
        return chord(header)(tasks.add_up.s()).get(timeout=ENDLESS)

    def chain(self, size: int) -> Any:
        tasks = self._tasks
        return _chain(tasks.link.s, tasks.last_link.s, size, 0).get(timeout=ENDLESS)

    def pipelines(self, size: int) -> Any:
        from celery import chain, chord

        tasks = self._tasks
        header = [chain(tasks.same.s(item), tasks.last_link.s()) for item in range(size)]
        return chord(header)(tasks.add_up.s()).get(timeout=ENDLESS)

    def light(self, size: int) -> Any:
        return self._fibs(size, LIGHT)

    def long(self, size: int) -> Any:
        return self._fibs(size, LONG)

    def _fibs(self, size: int, n: int) -> Any:
        tasks = self._tasks
        return _chain(
            lambda *given: tasks.link_fib.s(*given, n),
            lambda *given: tasks.last_fib.s(*given, n),
            size,
            0,
        ).get(timeout=ENDLESS)

    def small_runs(self, size: int) -> list[int]:
        runs = [self._small(number) for number in range(size)]
        return [run.get(timeout=ENDLESS) for run in runs]

    def one_run(self, number: int) -> int:
        return self._small(number).get(timeout=ENDLESS)

    def _small(self, number: int) -> Any:
        from celery import chain, group

        tasks = self._tasks
        return chain(
            tasks.link.s(number),
            tasks.link.s(),
            tasks.link.s(),
            group(tasks.add.s(y) for y in range(4)),
            tasks.add_up.s(),
        ).apply_async()


def _chain(middle: Any, last: Any, size: int, first: int) -> Any:
    """Start a chain of `size` tasks, of which the first is given a number."""
    from celery import chain

    if size == 1:
        return last(first).apply_async()
    links = [middle(first), *(middle() for _ in range(size - 2)), last()]
    return chain(*links).apply_async()


if __name__ == "__main__":
    serve(CeleryCanvas())

"""Runs that are started before, during and after faults, and what must have become of them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

from flowengine.engine import Engine, Run
from flowengine.errors import ActionRefused
from tests.acceptance.celery.rows import check_rows, runs_below, wait_for
from tests.acceptance.chaos.model import WORKFLOWS, End
from tests.celery_nodes import Fleet


class Load:
    """Starts runs and keeps what the model says of each."""

    def __init__(self, fleet: Fleet, lots: Random) -> None:
        self._fleet, self._lots = fleet, lots
        self.expected: dict[str, End] = {}
        self._count = self.retries = self.refused = 0
        # A start may block for as long as a fault lasts; the fault must be healed meanwhile.
        self._starter = ThreadPoolExecutor(1)

    def start(self, count: int) -> None:
        """Start `count` runs, each of a workflow in turn."""
        for _ in range(count):
            self._start(*self._draw())

    def start_during_a_fault(self, count: int) -> Future[list[Any]]:
        """Try to; the same starts are made again, with the same keys, by `start_again`."""
        drawn = [self._draw() for _ in range(count)]
        return self._starter.submit(self._try, drawn)

    def start_again(self, tried: Future[list[Any]]) -> None:
        """Make starts again that failed: a key starts one run, whoever stored it."""
        for start in tried.result(timeout=120):
            self._start(*start)

    def retry(self, count: int) -> None:
        """Retry `count` runs, from any of their steps or from their failed steps.

        Workflows are functions of their inputs: a retried run ends as the model says, too.
        """
        for _ in range(count):
            run = self._fleet.engine.run(self._lots.choice(list(self.expected)))
            paths = sorted({step.path for step in run.steps()})
            has_failed = run.state == "FAILED" and self._lots.random() < 0.5
            try:
                run.retry(from_step=None if has_failed else self._lots.choice(paths))
                self.retries += 1
            except ActionRefused:  # the step has not begun, or its path is that of a block
                self.refused += 1

    def retry_during_a_fault(self, count: int) -> Future[None]:
        """Try to: some of the retries are committed."""
        return self._starter.submit(self._try_to_retry, count)

    def _try_to_retry(self, count: int) -> None:
        try:
            self.retry(count)
        except Exception as error:
            print(f"  a retry failed during the fault: {type(error).__name__}")

    def _try(self, drawn: list[Any]) -> list[Any]:
        for start in drawn:
            try:
                self._start(*start)
            except Exception as error:
                print(f"  a start failed during the fault: {type(error).__name__}")
        return drawn

    def _draw(self) -> tuple[Any, End, str, int]:
        workflow, model = WORKFLOWS[self._count % len(WORKFLOWS)]
        self._count += 1
        n = self._lots.randrange(50)
        return workflow, model(n), f"start {self._count}", n

    def _start(self, workflow: Any, end: End, key: str, n: int) -> None:
        self.expected[self._fleet.start(workflow, key=key, n=n).id] = end

    def close(self) -> None:
        self._starter.shutdown()


def wait_and_check(engine: Engine, expected: dict[str, End], seconds: float) -> None:
    """Wait for the ends of all runs; every one ends as the model says, and its rows agree."""
    runs: list[Run[Any]] = [engine.run(run_id) for run_id in expected]
    try:
        wait_for(engine, runs, seconds)
    finally:
        otherwise = [
            _described(engine, engine.run(run_id), end)
            for run_id, end in expected.items()
            if _end(engine.run(run_id)) != end
        ]
        print("\n".join(otherwise))
    assert otherwise == []
    check_rows(engine, runs_below(engine, list(expected)))


def _described(engine: Engine, run: Run[Any], expected: End) -> str:
    """A run that ended otherwise, with all its tries."""
    info = run.info()
    tries = [
        f"\n    {task.step_path}, try {task.try_number}: {task.state}, {task.losses} losses, "
        f"pid {task.pid}"
        for task in engine.tasks(run.id)
    ]
    return (
        f"{info.workflow} ({info.id}) is {_end(run)}, expected {expected}; alarm: {info.alarm}; "
        f"error: {info.error_text}{''.join(tries)}"
    )


def _end(run: Run[Any]) -> End:
    info = run.info()
    if info.state == "COMPLETED":
        return End(info.state, info.outputs["result"])
    return End(info.state, info.error["type"] if info.error else None)

"""Show every step to Flower under its facet's name, as if it had been a message of its own.

Steps are claimed from the database, many per message, so Celery sends no events of them. This
module does, in batches: one event sent by itself costs more than the step. Run ids stand in the
arguments and not in the name, because Flower makes a metric of every name.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed, Outcome, Succeeded

log = logging.getLogger("flowengine")
_MOST = 100  # events kept before they are sent


class StepEvents:
    def __init__(self, app: Any, hostname: str) -> None:
        self._app, self._hostname = app, hostname
        self._dispatcher: Any = None

    def show(self, task: TaskDefinition, outcome: Outcome, seconds: float) -> None:
        """Send that a try was received, started and ended. An error here does not stop work."""
        began = time.time() - seconds
        received = {
            "name": task.name,
            "args": f"({task.step_path!r}, run={task.workflow_id[:8]!r})",
            "kwargs": "{}",
            "retries": task.try_number - 1,
        }
        try:
            self._send("task-received", task, timestamp=began, **received)
            self._send("task-started", task, timestamp=began)
            if isinstance(outcome, Succeeded):
                shown = repr(outcome.result.get("result", outcome.result))[:200]
                self._send("task-succeeded", task, result=shown, runtime=seconds)
            elif isinstance(outcome, Failed):
                text = f"{outcome.error['type']}: {outcome.error['message']}"[:500]
                self._send("task-failed", task, exception=text, traceback="")
        except Exception as problem:
            log.debug("events of %s not sent: %s", task.step_path, problem)
            self._dispatcher = None

    def _send(self, kind: str, task: TaskDefinition, **fields: Any) -> None:
        if self._dispatcher is None:
            self._dispatcher = self._app.events.Dispatcher(
                self._app.connection_for_write(),
                hostname=self._hostname,
                groups=["task"],
                buffer_group={"task"},
                buffer_limit=_MOST,
            )
        self._dispatcher.send(kind, uuid=task.uuid, **fields)

    def flush(self) -> None:
        """Send buffered events; they are lost if the broker is unreachable."""
        if self._dispatcher is None:
            return
        try:
            self._dispatcher.flush(errors=False, groups=True)
        except Exception as problem:
            log.debug("events of steps not sent: %s", problem)
            self._dispatcher = None

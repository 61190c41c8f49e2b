"""Show every step to Flower under its facet's name, as if it had been a message of its own.

Steps are claimed from the database, many per message, so Celery sends no events of them. This
module does, in batches: one event sent by itself costs more than the step. Run ids stand in the
arguments and not in the name, because Flower makes a metric of every name.

Flower keeps about 4 KB for each id of a task. So the ids are reused: the newest tries of a facet
take the places of older ones (a ring). Counts and durations in Flower's metrics are of all steps.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

from billiard.process import current_process

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed, Outcome, Succeeded
from flowengine.secret_keys import without_secrets

log = logging.getLogger("flowengine")
_MOST = 100  # events kept before they are sent


class StepEvents:
    def __init__(self, app: Any, hostname: str, ring: int) -> None:
        """`ring`: how many tries of a facet Flower keeps, by outcome, of each pool child."""
        self._app, self._hostname, self._ring = app, hostname, ring
        self._dispatcher: Any = None
        # A child that replaces another has its index, and so its ids.
        self._owner = f"{hostname}/{getattr(current_process(), 'index', 0)}"
        self._shown: dict[tuple[str, str], int] = {}
        self._ids: dict[tuple[str, str, int], str] = {}

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
            shown_as = self._id(task.name, type(outcome).__name__)
            self._send("task-received", shown_as, timestamp=began, **received)
            self._send("task-started", shown_as, timestamp=began)
            if isinstance(outcome, Succeeded):
                result = without_secrets(outcome.result)
                shown = repr(result.get("result", result))[:200]
                self._send("task-succeeded", shown_as, result=shown, runtime=seconds)
            elif isinstance(outcome, Failed):
                text = f"{outcome.error['type']}: {outcome.error['message']}"[:500]
                self._send("task-failed", shown_as, exception=text, traceback="")
        except Exception as problem:
            log.debug("events of %s not sent: %s", task.step_path, problem)
            self._dispatcher = None

    def _id(self, facet: str, outcome: str) -> str:
        """Return the next id of a ring. Flower never changes a success to a failure: two rings."""
        number = self._shown.get((facet, outcome), -1) + 1
        self._shown[facet, outcome] = number
        place = facet, outcome, number % self._ring
        if place not in self._ids:
            name = "/".join(map(str, (self._owner, *place)))
            self._ids[place] = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
        return self._ids[place]

    def _send(self, kind: str, shown_as: str, **fields: Any) -> None:
        if self._dispatcher is None:
            self._dispatcher = self._app.events.Dispatcher(
                self._app.connection_for_write(),
                hostname=self._hostname,
                groups=["task"],
                buffer_group={"task"},
                buffer_limit=_MOST,
            )
        self._dispatcher.send(kind, uuid=shown_as, **fields)

    def flush(self) -> None:
        """Send buffered events; they are lost if the broker is unreachable."""
        if self._dispatcher is None:
            return
        try:
            self._dispatcher.flush(errors=False, groups=True)
        except Exception as problem:
            log.debug("events of steps not sent: %s", problem)
            self._dispatcher = None

"""Messages that start runs: `flowengine.execute`, and those of tasks that became workflows.

No row stands behind such a message until its run is stored. So it is acknowledged then, and goes
back to its queue while the database is unreachable. The id of the message is the key of the run: a
message that is delivered twice starts one.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from celery.exceptions import Reject

from flowengine.authoring import workflow_named
from flowengine.errors import FlowengineError, StartRefused
from flowengine.printable import names_of
from flowengine.store.failures import is_unavailable
from flowengine.worker.outage_log import OutageLog

log = logging.getLogger("flowengine")

_PAUSE = 1.0  # seconds until a start that met no database goes back to its queue
#: Parts of a canvas that Celery would go on with after the task, while the run has just begun.
_CANVAS = ("callbacks", "errbacks", "chain", "chord")


class MessageHandler(Protocol):
    """Executes the messages of an app."""

    def drain(self, task_list: str, wake: int = 1, hops: int | None = None) -> None:
        """Work on the due tasks of a list. A surplus wake-up finds nothing and ends.

        `hops` is set in a wake-up that was passed on: how often it still may be.
        """

    def work(self, task_list: str, task_ids: list[str]) -> None: ...
    def evaluate(self, run_id: str) -> None: ...
    def execute(
        self, workflow: str, inputs: dict[str, Any], key: str, if_failed: str, message_id: str
    ) -> str:
        """Start a run, and return its id."""

    def watch(self) -> None: ...


def name_of(workflow: object) -> str:
    """Return the name in a message, which may be anything."""
    return workflow[:200] if isinstance(workflow, str) else f"a {type(workflow).__name__}"


class StartMessages:
    """Starts runs as messages ask for them."""

    def __init__(self, handler: MessageHandler, outages: OutageLog) -> None:
        self._handler, self._outages = handler, outages

    def execute(
        self,
        task: Any,
        workflow: str,
        inputs: dict[str, Any] | None = None,
        key: str | None = None,
        if_failed: str = "return",
    ) -> None:
        """Start a workflow by name. Idempotent: without a key the message's id is the key."""
        self._start(task, workflow, inputs, key, if_failed)

    def as_task(self, workflow: str, task: Any, *args: Any, **kwargs: Any) -> str:
        """Start a workflow with the arguments of a task of its name, and return the run's id."""
        found = workflow_named(workflow)
        assert found is not None
        inputs, problems = found.definition.signature.bound(args, kwargs)
        request = task.request
        if parts := [name for name in _CANVAS if getattr(request, name, None)]:
            raise self._refused(
                workflow,
                inputs,
                f"the message is part of a canvas ({', '.join(parts)}), which would go on before "
                "the run has ended; start the workflow, and let it make the other steps",
            )
        if problems:
            raise self._refused(workflow, inputs, "; ".join(problems))
        return self._start(task, workflow, inputs, None, "return")

    def _start(
        self, task: Any, workflow: str, inputs: dict[str, Any] | None, key: str | None, failed: str
    ) -> str:
        try:
            sent_as = task.request.id or ""
            return self._handler.execute(workflow, inputs or {}, key or sent_as, failed, sent_as)
        except Exception as problem:
            if isinstance(problem, FlowengineError) and not is_unavailable(problem):
                raise self._refused(workflow, inputs, problem.without_values()) from None
            if not self._outages.note(problem):
                raise
            log.info("cannot start %s yet: %s", workflow, problem, extra={"action": "start_waits"})
            time.sleep(_PAUSE)
            raise Reject(problem, requeue=True) from None

    def _refused(self, workflow: str, inputs: object, reason: str) -> StartRefused:
        log.error(
            "refused to start %s with the inputs %s: %s",
            workflow,
            names_of(inputs),
            reason,
            extra={"action": "start_refused"},
        )
        return StartRefused(name_of(workflow), reason)

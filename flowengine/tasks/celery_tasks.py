"""The Celery tasks of flowengine: ids in, one call to the engine.

They never fail: the row a message concerns is still there after an error, and recovery sends its
wake-up again. Messages are acknowledged early for the same reason: SQL, not the broker, records
what is unfinished.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from celery.exceptions import Reject

from flowengine.dispatch.notifier import DRAIN, EVALUATE, WORK
from flowengine.dispatch.packed_ids import unpacked
from flowengine.store.database import is_away

log = logging.getLogger("flowengine")

EXECUTE = "flowengine.execute"
WATCHDOG = "flowengine.watchdog"

_PAUSE = 1.0  # seconds until a start that met no database goes back to its queue


class MessageHandler(Protocol):
    """Executes the messages of an app."""

    def drain(self, task_list: str, wake: int, hops: int | None = None) -> object: ...
    def work(self, task_list: str, task_ids: list[str]) -> object: ...
    def evaluate(self, run_id: str) -> object: ...
    def execute(self, workflow: str, inputs: dict[str, Any], key: str | None) -> object: ...
    def watch(self) -> object: ...


def register_celery_tasks(app: Any, handler: MessageHandler) -> None:
    """Register all tasks on an app."""

    def drain(task_list: str, wake: int = 1, hops: int | None = None) -> None:
        """Work on the due tasks of a list. A surplus wake-up finds nothing and ends.

        `hops` is set in a wake-up that was passed on: how often it still may be.
        """
        handler.drain(task_list, wake, hops)

    def work(task_list: str, packed_ids: str) -> None:
        """Work on these tasks: the header of a chord. Tasks claimed by others are skipped."""
        handler.work(task_list, unpacked(packed_ids))

    def evaluate(run_id: str) -> None:
        """Evaluate a run: take in its reports and decide the next steps."""
        handler.evaluate(run_id)

    def execute(
        task: Any, workflow: str, inputs: dict[str, Any] | None = None, key: str | None = None
    ) -> None:
        """Start a workflow by name. Idempotent: without a key the message's id is the key.

        No row stands behind this message yet, so it is acknowledged when the run is stored, and
        goes back to its queue while the database is away.
        """
        try:
            handler.execute(workflow, inputs or {}, key or task.request.id)
        except Exception as problem:
            if not is_away(problem):
                raise
            log.warning(
                "cannot start %s yet: %s", workflow, problem, extra={"action": "start_waits"}
            )
            time.sleep(_PAUSE)
            raise Reject(problem, requeue=True) from None

    def watchdog() -> None:
        """Run the recovery jobs."""
        handler.watch()

    _register(app, DRAIN, drain)
    # Not every backend counts a header whose result is ignored.
    _register(app, WORK, work, ignore_result=False)
    _register(app, EVALUATE, evaluate)
    _register(app, EXECUTE, execute, bind=True, acks_late=True, reject_on_worker_lost=True)
    _register(app, WATCHDOG, watchdog)


def _register(app: Any, name: str, function: Callable[..., None], **options: Any) -> None:
    @functools.wraps(function)
    def task(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except Reject:
            raise
        except Exception:
            log.exception("message %s%r failed", name, args, extra={"action": "message_failed"})

    # Not shared: Celery would add a shared task to every other app of the process, and of two
    # with one name keep the first.
    chosen = {"ignore_result": True, "acks_late": False, **options}
    app.task(task, name=name, shared=False, **chosen)

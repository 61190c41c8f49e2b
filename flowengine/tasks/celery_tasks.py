"""The doorways of a Celery app: ids in, one call.

A doorway never fails. What goes wrong in it is no business of the broker's: the row it
concerns is still there, and the watchdog rings for it again. Messages are acknowledged
early for the same reason: SQL, not the broker, knows what is unfinished.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from celery.exceptions import Reject

from flowengine.dispatch.id_packing import unpacked
from flowengine.dispatch.notifier import DRAIN, EVALUATE, WORK
from flowengine.store.outages import is_away

log = logging.getLogger("flowengine")

EXECUTE = "flowengine.execute"
WATCHDOG = "flowengine.watchdog"

_PAUSE = 1.0  # seconds before a start that met no database is sent round again


class Behind(Protocol):
    """What the doorways lead to."""

    def drain(self, task_list: str, wake: int, hops: int | None = None) -> object: ...
    def work(self, task_list: str, task_ids: list[str]) -> object: ...
    def evaluate(self, run_id: str) -> object: ...
    def execute(self, workflow: str, inputs: dict[str, Any], key: str | None) -> object: ...
    def watch(self) -> object: ...


def register_celery_tasks(app: Any, behind: Behind) -> None:
    """Register all doorways on an app."""

    def drain(task_list: str, wake: int = 1, hops: int | None = None) -> None:
        """Work on the due tasks of a list. A surplus wake-up finds nothing and ends.

        `hops` is set in a wake-up that was passed on: how often it still may be.
        """
        behind.drain(task_list, wake, hops)

    def work(task_list: str, parcel: str) -> None:
        """Work on these tasks: the header of a chord. Those taken by others are passed over."""
        behind.work(task_list, unpacked(parcel))

    def evaluate(run_id: str) -> None:
        """Take in what happened to a run, and decide what follows."""
        behind.evaluate(run_id)

    def execute(
        task: Any, workflow: str, inputs: dict[str, Any] | None = None, key: str | None = None
    ) -> None:
        """Start a workflow by name. Without a key the message's id is it: twice is once.

        There is no row of it yet, so this message alone is not a bell: it is acknowledged
        when the run is stored, and goes back to its queue while the database is away.
        """
        try:
            behind.execute(workflow, inputs or {}, key or task.request.id)
        except Exception as problem:
            if not is_away(problem):
                raise
            log.warning(
                "cannot start %s yet: %s", workflow, problem, extra={"action": "start_waits"}
            )
            time.sleep(_PAUSE)
            raise Reject(problem, requeue=True) from None

    def watchdog() -> None:
        """Look for what was left lying."""
        behind.watch()

    _open(app, DRAIN, drain)
    # Not every backend counts a header whose result is ignored.
    _open(app, WORK, work, ignore_result=False)
    _open(app, EVALUATE, evaluate)
    _open(app, EXECUTE, execute, bind=True, acks_late=True, reject_on_worker_lost=True)
    _open(app, WATCHDOG, watchdog)


def _open(app: Any, name: str, function: Callable[..., None], **options: Any) -> None:
    @functools.wraps(function)
    def doorway(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except Reject:
            raise
        except Exception:
            log.exception("%s%r stopped", name, args, extra={"action": "doorway_stopped"})

    # Not shared: Celery would offer a shared task to every other app of the process, and of
    # two with one name keep the first.
    chosen = {"ignore_result": True, "acks_late": False, **options}
    app.task(doorway, name=name, shared=False, **chosen)

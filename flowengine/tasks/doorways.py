"""The doorways of a Celery app: ids in, one call.

A doorway never raises. What goes wrong in it is no business of the broker's: the row it
concerns is still there, and the watchdog rings for it again. Messages are acknowledged
early for the same reason: SQL, not the broker, knows what is unfinished.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol

from flowengine.dispatch.bells import DRAIN, EVALUATE, WORK

log = logging.getLogger("flowengine")

EXECUTE = "flowengine.execute"
WATCHDOG = "flowengine.watchdog"


class Behind(Protocol):
    """What the doorways lead to."""

    def drain(self, task_list: str) -> object: ...
    def work(self, task_list: str, task_ids: list[str]) -> object: ...
    def evaluate(self, run_id: str) -> object: ...
    def execute(self, workflow: str, inputs: dict[str, Any], key: str | None) -> object: ...
    def watch(self) -> object: ...


def open_doorways(app: Any, behind: Behind) -> None:
    """Register all doorways on an app."""

    def drain(task_list: str) -> None:
        """Work on what is due in a task list. A bell too many finds nothing and ends."""
        behind.drain(task_list)

    def work(task_list: str, task_ids: list[str]) -> None:
        """Work on these tasks: the header of a chord. Those taken by others are passed over."""
        behind.work(task_list, task_ids)

    def evaluate(run_id: str) -> None:
        """Take in what happened to a run, and decide what follows."""
        behind.evaluate(run_id)

    def execute(
        task: Any, workflow: str, inputs: dict[str, Any] | None = None, key: str | None = None
    ) -> None:
        """Start a workflow by name. Without a key the message's id is it: twice is once."""
        behind.execute(workflow, inputs or {}, key or task.request.id)

    def watchdog() -> None:
        """Look for what was left lying."""
        behind.watch()

    _open(app, DRAIN, drain)
    # Not every backend counts a header whose result is ignored.
    _open(app, WORK, work, ignore_result=False)
    _open(app, EVALUATE, evaluate)
    _open(app, EXECUTE, execute, bind=True)
    _open(app, WATCHDOG, watchdog)


def _open(app: Any, name: str, function: Callable[..., None], **options: Any) -> None:
    @functools.wraps(function)
    def doorway(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except Exception:
            log.exception("%s%r stopped", name, args, extra={"action": "doorway_stopped"})

    # Not shared: Celery would offer a shared task to every other app of the process, and of
    # two with one name keep the first.
    chosen = {"ignore_result": True, **options}
    app.task(doorway, name=name, shared=False, acks_late=False, **chosen)

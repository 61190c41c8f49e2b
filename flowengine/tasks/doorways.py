"""The doorways of a Celery app.

A doorway never raises. What goes wrong in it is no business of the broker's: the row it
concerns is still there, and the watchdog rings for it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flowengine.dispatch.bells import DRAIN

log = logging.getLogger("flowengine")


def open_doorways(app: Any, work_on: Callable[[str], object]) -> None:
    """Register the doorways on an app."""

    def drain(task_list: str) -> None:
        """Work on what is due in a task list. A bell too many finds nothing and ends."""
        try:
            work_on(task_list)
        except Exception:
            log.exception("draining %s stopped", task_list, extra={"action": "drain_stopped"})

    # Not shared: Celery would offer a shared task to every other app of the process, and of
    # two with one name keep the first.
    app.task(drain, name=DRAIN, shared=False, ignore_result=True, acks_late=False)

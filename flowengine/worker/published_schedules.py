"""Publishes the schedules of the workflows of this process; the later start wins.

A module may be imported after the process has started, so each pass looks for new ones. A schedule
that is refused is logged once, and stays unpublished until its workflow is defined again.
"""

from __future__ import annotations

import logging
from typing import Any

from flowengine.authoring import Workflow, scheduled_workflows
from flowengine.engine import Engine
from flowengine.scheduling import Schedule
from flowengine.store.failures import is_unavailable

log = logging.getLogger("flowengine")

SOURCE = "python"


class SchedulePublisher:
    def __init__(self) -> None:
        self._done: dict[str, Workflow[..., Any]] = {}  #: by name of the workflow

    def publish(self, engine: Engine) -> None:
        """Publish what is new; without it, nothing is asked of the database."""
        for flow in scheduled_workflows():
            if self._done.get(flow.name) is not flow:
                for schedule in flow.schedules:
                    self._publish(engine, flow, schedule)
                self._done[flow.name] = flow

    def _publish(self, engine: Engine, flow: Workflow[..., Any], schedule: Schedule) -> None:
        try:
            engine.schedules.put(flow.program(), flow.name, schedule, source=SOURCE)
        except Exception as problem:
            if is_unavailable(problem):
                raise
            log.error(
                "schedule %s of %s cannot be published: %s",
                schedule.name or flow.name,
                flow.definition.title,
                problem,
                extra={"action": "schedule_refused"},
            )

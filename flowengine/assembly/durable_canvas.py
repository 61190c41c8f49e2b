"""``durable(chain(…))``: a composition of Celery signatures, started as a run."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, cast

from celery import Signature

from flowengine.assembly.launcher import EngineLauncher
from flowengine.authoring import IfFailed, StartOptions, Workflow, launcher
from flowengine.authoring.canvas import shape_of, workflow_of
from flowengine.authoring.current_function import refuse_start
from flowengine.authoring.locations import user_location
from flowengine.authoring.scopes import current_scope
from flowengine.engine import Run
from flowengine.errors import AuthoringError, CanvasRefused, Problem
from flowengine.lazy import lazy
from flowengine.program import Program
from flowengine.program.nodes import Json
from flowengine.tasks.canvas_depth import depth_problem
from flowengine.tasks.canvas_reader import NOTHING, CanvasReading, Given, app_of, read_canvas
from flowengine.tasks.canvas_results import DurableResult, RunResults


class DurableCanvas:
    """A canvas whose executions are runs. Nothing of it is in messages or in a result backend."""

    def __init__(self, signature: Signature, name: str, given: Given = NOTHING) -> None:
        self._signature, self._name, self._given = signature, name, given
        if problem := depth_problem(signature):
            raise CanvasRefused([problem])
        self._app = app_of(signature)

    @lazy
    def _read(self) -> tuple[Workflow[..., Any], dict[str, Json], CanvasReading]:
        reading = read_canvas(self._signature, self._app, self._given)
        shape, inputs = shape_of(reading.part, reading.problems)
        workflow = workflow_of(shape, tuple(inputs), self._name)
        workflow.program()  # a program that cannot be made is told here, not at a start
        return workflow, inputs, reading

    @property
    def workflow(self) -> Workflow[..., Any]:
        """The workflow of its shape: all canvases of one shape have the same."""
        return self._read[0]

    @property
    def inputs(self) -> dict[str, Json]:
        """Its constants."""
        return self._read[1]

    @property
    def name(self) -> str:
        """The name of its workflow: its first and last task, and its shape; or the given one."""
        return self.workflow.name

    def program(self) -> Program:
        """Return the program of its shape."""
        return self.workflow.program()

    def start(
        self,
        *,
        key: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        tenant: str = "",
        connection: object | None = None,
        if_failed: IfFailed = "return",
    ) -> DurableResult:
        """Start a durable run and return at once.

        `key` and `priority` are those of the canvas unless they are given. The other options are
        those of `Workflow.options`. Raises CanvasRefused if the canvas has expired.
        """
        workflow, inputs, own = self._read
        title = workflow.definition.title
        refuse_start(title)
        if current_scope() is not None:
            raise AuthoringError(
                f"{user_location()}: {title} cannot be started inside a workflow: call its tasks "
                "like functions, which makes them steps"
            )
        options = StartOptions(
            key=own.key if key is None else key,
            priority=own.priority if priority is None else priority,
            labels=dict(labels or {}),
            connection=connection,
            tenant=tenant,
            if_failed=if_failed,
            deadline=_seconds_until(own.expires),
        )
        starter = cast(EngineLauncher, self._launcher())
        run: Run[Any] = starter.start(workflow, inputs, options)
        results = RunResults(self._app, lambda: run.engine, run)
        return DurableResult(options.key or run.id, results, app=self._app)

    def _launcher(self) -> Any:
        """Return the launcher of the engine on the app of the tasks, or else of this process."""
        installed = getattr(self._app, "flowengine", None)
        return launcher() if installed is None else installed.launcher()

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> DurableResult:
        """Start it as code of Celery does, with further arguments of its first task and options."""
        kept = {name: value for name, value in options.items() if value is not None}
        given = tuple(args or ()), dict(kwargs or {})
        if not any((*given, kept)):
            return self.start()
        return DurableCanvas(self._signature.clone(**kept), self._name, given).start()

    def delay(self, *args: Any, **kwargs: Any) -> DurableResult:
        """Start it with further arguments of its first task."""
        return self.apply_async(args, kwargs)

    def __repr__(self) -> str:
        return f"<durable {self._signature!r}>"


def _seconds_until(expires: float | datetime.datetime | None) -> float | None:
    """Return the seconds from now until a canvas expires; raises CanvasRefused if it has."""
    if expires is None:
        return None
    if isinstance(expires, float):
        seconds, when = expires, f"{expires:g} seconds after its start"
    else:
        seconds = (expires - datetime.datetime.now(datetime.UTC)).total_seconds()
        when = expires.isoformat()
    if seconds <= 0:
        cure = "no run is started: give it a later time, or none"
        raise CanvasRefused(
            [Problem("canvas", f"option 'expires': it has expired ({when}), {cure}")]
        )
    return seconds


def durable(signature: Signature, *, name: str = "") -> DurableCanvas:
    """Make a durable workflow of a Celery signature: ``durable(chain(a.s(1), b.s())).start()``.

    Its tasks must be steps: `event_facet(task)` in a module of the workers. Constants become
    inputs, so all canvases of one shape have one program. Raises CanvasRefused with every part of
    the canvas that a run cannot carry, each with its place and its cure. `name` is that of the
    workflow.
    """
    if not isinstance(signature, Signature):
        raise AuthoringError(
            f"{user_location()}: durable takes a signature of Celery, as chain(…), group(…), "
            f"chord(…) or task.s(…), not {type(signature).__name__}; for a function write @workflow"
        )
    canvas = DurableCanvas(signature, name)
    try:
        _ = canvas.workflow
    except CanvasRefused as refused:
        if not refused.is_incomplete:  # else `delay` may give the rest of its arguments
            raise
    return canvas

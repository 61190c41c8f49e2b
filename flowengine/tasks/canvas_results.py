"""The handle of a durable canvas for code that expects Celery's `AsyncResult`.

State, result and error are those of the run, in the database of flowengine. Celery's own result
backend is not asked: the results of steps are not in it.
"""

from __future__ import annotations

import builtins
import datetime
import sys
from collections.abc import Callable
from typing import Any

from celery import states
from celery.backends.base import Backend
from celery.exceptions import TaskRevokedError, TimeoutError
from celery.result import AsyncResult

from flowengine.authoring import event_facet_named
from flowengine.authoring.errbacks import original_error
from flowengine.engine import Engine, Run
from flowengine.engine.results import RunInfo, StepInfo
from flowengine.errors import RunCancelled, RunFailed, UnknownRun
from flowengine.evaluator.states import RunState


class DurableResult(AsyncResult):  # type: ignore[misc]
    """The run of a canvas, as an `AsyncResult`; `run` is its handle with everything else.

    `DurableResult(id)` finds the run again in any process, by the run's id or the `task_id` that
    the canvas was started with.
    """

    def __init__(
        self,
        id: str,
        backend: Any = None,
        task_name: str | None = None,
        app: Any = None,
        parent: Any = None,
    ) -> None:
        own = backend if isinstance(backend, RunResults) else RunResults(app)
        super().__init__(id, own, task_name, app or own.app, parent)

    @property
    def run(self) -> Run[Any]:
        """The handle of the run; raises UnknownRun if no run has this id."""
        found: Run[Any] = self.backend.run(self.id)
        return found

    def revoke(self, *args: Any, **kwargs: Any) -> None:
        """Cancel the run, whatever signal or other option is given for a message."""
        del args, kwargs
        self.run.cancel(reason="revoked by its AsyncResult")

    def __reduce_args__(self) -> tuple[Any, ...]:
        return self.id, None, None, None, None  # the process that reads it has an engine


class RunResults(Backend):  # type: ignore[misc]
    """Runs, in the form of a result backend."""

    def __init__(
        self, app: Any = None, engine: Callable[[], Engine] | None = None, run: Any = None
    ) -> None:
        from celery import current_app

        super().__init__(app=app or current_app._get_current_object())
        self._find_engine, self._run = engine or _engine_of(self.app), run

    def run(self, task_id: str) -> Run[Any]:
        """Return the run with this id, or that a start with this key has started."""
        if self._run is None:
            engine = self._find_engine()
            try:
                self._run = Run(engine, engine.get(task_id).id)
            except UnknownRun:
                found = list(engine.list(key=task_id, limit=1))
                if not found:
                    raise
                self._run = Run(engine, found[0].id)
        return self._run  # type: ignore[no-any-return]

    # --- called by AsyncResult ---

    def get_task_meta(self, task_id: str, cache: bool = True) -> dict[str, Any]:
        """Return state and result of a run; an unknown one is pending, as in Celery."""
        del cache
        try:
            run = self.run(task_id)
            info = run.info()
        except UnknownRun:  # or its transaction is not committed yet
            return {"status": states.PENDING, "result": None, "task_id": task_id}
        meta: dict[str, Any] = {"task_id": task_id, "name": info.workflow, "traceback": None}
        meta["children"] = []
        if info.state not in RunState.FINAL:
            begun = states.STARTED if self.app.conf.task_track_started else states.PENDING
            return {**meta, "status": begun, "result": None}
        assert info.finished is not None
        done = datetime.datetime.fromtimestamp(info.finished / 1000, datetime.UTC)
        return {**meta, "date_done": done, **_end_of(run, info)}

    def wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Any = None,
        on_interval: Any = None,
        callback: Any = None,
        propagate: bool = True,
        **_: Any,
    ) -> Any:
        """Wait for the end of the run; return its result, or raise the error of its step."""
        del interval, no_ack, on_message, on_interval
        try:
            self.run(result.id).outputs(timeout)
        except (RunFailed, RunCancelled):
            pass
        except builtins.TimeoutError as late:
            raise TimeoutError(str(late)) from None
        result._maybe_set_cache(self.get_task_meta(result.id))
        return result.maybe_throw(propagate=propagate, callback=callback)

    def add_pending_result(self, result: Any, weak: bool = False) -> Any:
        """Do nothing: a result that is read looks into the database."""
        return result

    def remove_pending_result(self, result: Any) -> Any:
        return result

    def forget(self, task_id: str) -> None:
        """Do nothing: runs are removed by retention, with their history."""

    def task_result_exists(self, task_id: str) -> bool:
        try:
            return bool(self.run(task_id))
        except UnknownRun:
            return False


def _engine_of(app: Any) -> Callable[[], Engine]:
    def find() -> Engine:
        from flowengine.authoring import launcher

        installed = getattr(app, "flowengine", None)
        source: Any = launcher() if installed is None else installed
        found: Engine = source.engine
        return found

    return find


def _end_of(run: Run[Any], info: RunInfo) -> dict[str, Any]:
    if info.state == RunState.COMPLETED:
        return {"status": states.SUCCESS, "result": (info.outputs or {}).get("result")}
    error = info.error or {}
    if info.state == RunState.CANCELLED:
        return {"status": states.REVOKED, "result": TaskRevokedError(error.get("message", ""))}
    step = _failed_step(run, error.get("path", ""))
    details = {} if step is None or step.error is None else step.error
    kind, message = str(error.get("type", "")), str(details.get("message") or error.get("message"))
    bases = details.get("bases") or error.get("bases")
    names = _module_of(step)
    problem = original_error(kind, message, None if bases is None else tuple(bases), names)
    problem.__cause__ = RunFailed(info.id, error.get("path", ""), kind, message)
    return {
        "status": states.FAILURE,
        "result": problem,
        "traceback": details.get("traceback"),
    }


def _failed_step(run: Run[Any], path: str) -> StepInfo | None:
    failed = (step for step in run.steps() if step.path == path and step.error is not None)
    return next(failed, None)


def _module_of(step: StepInfo | None) -> dict[str, Any]:
    """Return the global names of the module whose code failed."""
    facet = None if step is None else event_facet_named(step.facet)
    module = None if facet is None else sys.modules.get(str(facet.definition.fn.__module__))
    return {} if module is None else vars(module)

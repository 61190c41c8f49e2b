"""The decorators ``@event_facet``, ``@facet`` and ``@workflow``, bare and with options.

Options are validated when the decorator is applied, so that the error names the
facet and its line. A decorator object holds only the options and can be applied
to any number of functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, ParamSpec, TypeVar, overload

from flowengine.authoring.celery_tasks import (
    AdaptedTask,
    adapted_task,
    is_celery_task,
    report_losses,
    route_of,
)
from flowengine.authoring.deadlines import deadline_mixins
from flowengine.authoring.definitions import Definition, define
from flowengine.authoring.errbacks import is_errback
from flowengine.authoring.facets import Decorated, EventFacet, Facet, Workflow
from flowengine.authoring.function_decorators import (
    RUN_OPTIONS,
    durable_workflow,
    is_run,
    refuse_run_options,
)
from flowengine.authoring.function_facets import FunctionWorkflow
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.options import LOG_LEVELS, Breaker, as_tuple, option_problems
from flowengine.authoring.registry import register_event_facet, register_workflow
from flowengine.authoring.schedules import checked_schedules
from flowengine.authoring.task_lists import TaskListSource, routed_list
from flowengine.errors import AuthoringError
from flowengine.program.event_options import Cache, EventOptions, Limit, Rate, RetryPolicy
from flowengine.program.nodes import FacetKind
from flowengine.program.option_checks import unknown_names, unused_cache
from flowengine.program.suggestions import Suggestions
from flowengine.scheduling import Schedule

P = ParamSpec("P")
R = TypeVar("R")

_NAME_OPTIONS = ("name", "aliases")
_EXECUTION_OPTIONS = (
    *("task_list", "retry", "timeout", "max_losses", "on_loss", "breaker"),
    *("limit", "rate", "cache", "effects", "priority"),
)

_OPTIONS: Mapping[FacetKind, Sequence[str]] = {
    FacetKind.EVENT: (*_EXECUTION_OPTIONS, "log_failures"),
    FacetKind.WORKFLOW: ("deadline", "schedule"),
}


class _Decorator:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options


class EventFacetDecorator(_Decorator):
    """``@event_facet`` with its options."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> EventFacet[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> EventFacet[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> EventFacet[..., Any]:
        options = self._options
        run = fn
        find_list: TaskListSource = routed_list
        adapted: AdaptedTask | None = None
        if is_celery_task(fn):
            given = {name: value for name, value in options.items() if name != "strict"}
            run, options, adapted = adapted_task(fn, given)
            find_list = route_of(fn)
            report_losses(fn, adapted.findings(), strict=bool(self._options.get("strict")))
        event: EventFacet[..., Any] = EventFacet(_define(FacetKind.EVENT, run, options, find_list))
        if adapted is not None:
            event.celery_task, event.is_final = adapted, adapted.is_final
            event.takes_failure = is_errback(fn)
            expected = getattr(fn, "throws", None) or ()
            event.expected = (expected,) if isinstance(expected, type) else tuple(expected)
        breaker = options.get("breaker")
        event.breaker = Breaker(breaker) if isinstance(breaker, str) else breaker
        event.failure_level = LOG_LEVELS[options.get("log_failures", "warning")]
        register_event_facet(event)
        return event


class FacetDecorator(_Decorator):
    """``@facet`` with its options."""

    def __call__(self, fn: Callable[P, R], /) -> Facet[P, R]:
        return Facet(_define(FacetKind.FACET, fn, self._options))


class WorkflowDecorator(_Decorator):
    """``@workflow`` with its options."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionWorkflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Workflow[..., Any]:
        flow: Workflow[..., Any]
        if is_run(fn, self._options):
            flow = durable = durable_workflow(fn, self._options, _define)
            register_event_facet(durable.activation)
        else:
            refuse_run_options(fn, self._options)
            given = {name: value for name, value in self._options.items() if name != "run"}
            flow = Workflow(_define(FacetKind.WORKFLOW, fn, given))
        flow.schedules = checked_schedules(flow.definition.title, self._options.get("schedule"))
        register_workflow(flow)
        return flow


@overload
def event_facet(fn: Callable[P, Awaitable[R]], /) -> EventFacet[P, R]: ...
@overload
def event_facet(fn: Callable[P, R], /) -> EventFacet[P, R]: ...
@overload
def event_facet(
    *,
    task_list: str = ...,
    retry: RetryPolicy = ...,
    timeout: float | None = ...,
    max_losses: int = ...,
    on_loss: Literal["retry", "fail"] = ...,
    breaker: str | Breaker | None = ...,
    limit: Limit | Sequence[Limit] | None = ...,
    rate: Rate | Sequence[Rate] | None = ...,
    cache: Cache | None = ...,
    effects: bool = ...,
    log_failures: Literal["debug", "info", "warning", "error"] = ...,
    priority: int = ...,
    strict: bool = ...,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
) -> EventFacetDecorator: ...
def event_facet(fn: Any = None, /, **options: Any) -> Any:
    """Make a function an event facet: a worker runs it, and its result is recorded once.

    `task_list` is its queue, `retry` the retry policy, `timeout` the seconds without
    activity until a try fails, `max_losses` the number of tries that may be lost with their
    worker; ``on_loss="fail"`` allows none, for code that must not run twice. While the
    circuit `breaker` is open, tasks wait. A `limit` bounds how many tries with the same key run at
    a time, a `rate` how many begin in a period. With a `cache` a step whose key has a recent result
    completes with it. Code with ``effects=False`` may run again unnoticed: durable functions
    record several of its calls together, and a quick tool of an agent needs no run. Failed tries
    are logged at the level `log_failures`: "info" for code that fails every day. `priority` is
    added to that of the run. `name` and `aliases` keep stored runs working when code moves. Also
    accepts an existing Celery task: it warns of everything that a step cannot carry over, with
    ``strict=True`` that is an error.
    """
    decorator = EventFacetDecorator(options)
    return decorator if fn is None else decorator(fn)


@overload
def facet(fn: Callable[P, R], /) -> Facet[P, R]: ...
@overload
def facet(*, name: str | None = ..., aliases: Sequence[str] = ...) -> FacetDecorator: ...
def facet(fn: Any = None, /, **options: Any) -> Any:
    """Make a function a plain facet: a body of steps that workflows share."""
    decorator = FacetDecorator(options)
    return decorator if fn is None else decorator(fn)


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionWorkflow[P, R]: ...
@overload
def workflow(fn: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = ...,
    aliases: Sequence[str] = ...,
    deadline: timedelta | float | None = ...,
    schedule: Schedule | Sequence[Schedule] | None = ...,
    version: int = ...,
    task_list: str = ...,
    on_divergence: Literal["wait", "fail"] = ...,
    run: bool = ...,
) -> WorkflowDecorator: ...
def workflow(fn: Any = None, /, **options: Any) -> Any:
    """Make a function a workflow: ``.start(...)`` starts a durable run.

    A run that has not ended at its `deadline`, in seconds or as a timedelta, fails with
    DeadlineExceeded; ``.options(deadline=...)`` gives a run another. The clock starts it at the
    times of its `schedule`, as soon as a worker with this code has started.

    On an ``async def``, or with ``run=True``, it is a durable function: its body is run, and each
    call that it awaits is recorded once. Its activations are tasks of `task_list` that only workers
    with this `version` claim. If the code does not fit the record of a run, the run waits for code
    that does; with ``on_divergence="fail"`` it fails.
    """
    decorator = WorkflowDecorator(options)
    return decorator if fn is None else decorator(fn)


def defined_event_facet(fn: Callable[P, R], name: str) -> EventFacet[P, R]:
    """Return a ready-made event facet, which no worker runs until it is registered."""
    return EventFacet(_define(FacetKind.EVENT, fn, {"name": name}))


def named_workflow(fn: Callable[..., R], name: str) -> Workflow[..., R]:
    """Return a workflow that is in no registry: it is started where it was made."""
    return Workflow(_define(FacetKind.WORKFLOW, fn, {"name": name}))


def _define(
    kind: FacetKind,
    fn: Any,
    given: Mapping[str, Any],
    find_list: TaskListSource = routed_list,
    *,
    is_run: bool = False,
) -> Definition:
    if isinstance(fn, Decorated):
        raise AuthoringError(f"{fn.definition.title} is already decorated; use one decorator")
    if not inspect.isroutine(fn) or isinstance(fn, staticmethod | classmethod):
        raise AuthoringError(
            f"{user_location()}: {fn!r} is not a function; pass the options by keyword, "
            'as in @event_facet(task_list="io")'
        )
    allowed = (*_NAME_OPTIONS, *_OPTIONS.get(kind, ()), *(RUN_OPTIONS if is_run else ()))
    problems = [
        f"there is no option {name!r}, the options are {', '.join(allowed)}"
        for name in given
        if name not in allowed
    ]
    running = {name: value for name, value in given.items() if name in _EXECUTION_OPTIONS}
    for name in ("limit", "rate"):
        if name in running:
            running[name] = as_tuple(running[name])
    problems += option_problems(running)
    if given.get("log_failures", "warning") not in (*LOG_LEVELS,):
        levels = ", ".join(map(repr, LOG_LEVELS))
        problems.append(f"log_failures={given['log_failures']!r} is none of {levels}")
    aliases = given.get("aliases", ())
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        problems.append(f"aliases={aliases!r} is not a list of names")
    if problems:
        label = given.get("name") or getattr(fn, "__qualname__", "?")
        raise AuthoringError(f"facet {label!r} ({location_of(fn)}): {'; '.join(problems)}")
    if running.get("timeout") is not None:
        running["timeout"] = float(running["timeout"])  # 30 and 30.0 give the same content hash
    breaker = running.get("breaker")
    running["breaker"] = breaker.name if isinstance(breaker, Breaker) else breaker or ""
    options = EventOptions(**running)
    if options.limit or options.rate or options.cache:
        signature = inspect.signature(fn)
        has_result = signature.return_annotation not in (None, "None")
        problems = list(unknown_names(options, list(signature.parameters), Suggestions().near))
        problems += unused_cache(options, has_result=has_result)
        if problems:
            label = given.get("name") or fn.__qualname__
            raise AuthoringError(f"facet {label!r} ({location_of(fn)}): {'; '.join(problems)}")
    return define(
        kind,
        fn,
        name=given.get("name"),
        aliases=tuple(aliases),
        options=options,
        names_list="task_list" in given,
        find_list=find_list,
        mixins=deadline_mixins(given.get("deadline")),
        is_run=is_run,
    )

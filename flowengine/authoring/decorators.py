"""The decorators ``@event_facet``, ``@facet`` and ``@workflow``, bare and with options.

Options are validated when the decorator is applied, so that the error names the
facet and its line. A decorator object holds only the options and can be applied
to any number of functions.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from flowengine.authoring.breakers import Breaker
from flowengine.authoring.celery_tasks import adapt_task, is_celery_task, non_retryable
from flowengine.authoring.definitions import Definition, define
from flowengine.authoring.facets import Decorated, EventFacet, Facet, Workflow
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.registry import register_event_facet, register_workflow
from flowengine.errors import AuthoringError
from flowengine.program.limits import LONGEST_CIRCUIT
from flowengine.program.nodes import EventOptions, FacetKind, RetryPolicy

P = ParamSpec("P")
R = TypeVar("R")

_NAME_OPTIONS = ("name", "aliases")
_EXECUTION_OPTIONS = ("task_list", "retry", "timeout", "max_losses", "on_loss", "breaker")


class EventFacetDecorator:
    """``@event_facet`` with its options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> EventFacet[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> EventFacet[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> EventFacet[..., Any]:
        options = self._options
        event: EventFacet[..., Any]
        if is_celery_task(fn):
            run, options = adapt_task(fn, options)
            event = EventFacet(_define(FacetKind.EVENT, run, options))
            event.is_final = non_retryable(fn)
        else:
            event = EventFacet(_define(FacetKind.EVENT, fn, options))
        breaker = options.get("breaker")
        event.breaker = Breaker(breaker) if isinstance(breaker, str) else breaker
        register_event_facet(event)
        return event


class FacetDecorator:
    """``@facet`` with its options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    def __call__(self, fn: Callable[P, R], /) -> Facet[P, R]:
        return Facet(_define(FacetKind.FACET, fn, self._options))


class WorkflowDecorator:
    """``@workflow`` with its options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]:
        flow: Workflow[P, R] = Workflow(_define(FacetKind.WORKFLOW, fn, self._options))
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
    name: str | None = ...,
    aliases: Sequence[str] = ...,
) -> EventFacetDecorator: ...
def event_facet(fn: Any = None, /, **options: Any) -> Any:
    """Make a function an event facet: a worker runs it, and its result is recorded once.

    `task_list` is its queue, `retry` the retry policy, `timeout` the seconds without
    activity until a try fails, `max_losses` the number of tries that may be lost with their
    worker; ``on_loss="fail"`` allows none, for code that must not run twice. While the
    circuit `breaker` is open, tasks wait. `name` and `aliases` keep stored runs working when
    code moves. Also accepts an existing Celery task.
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
def workflow(fn: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(*, name: str | None = ..., aliases: Sequence[str] = ...) -> WorkflowDecorator: ...
def workflow(fn: Any = None, /, **options: Any) -> Any:
    """Make a function a workflow: ``.start(...)`` starts a durable run."""
    decorator = WorkflowDecorator(options)
    return decorator if fn is None else decorator(fn)


def _define(kind: FacetKind, fn: Any, given: Mapping[str, Any]) -> Definition:
    if isinstance(fn, Decorated):
        raise AuthoringError(f"{fn.definition.title} is already decorated; use one decorator")
    if not inspect.isroutine(fn) or isinstance(fn, staticmethod | classmethod):
        raise AuthoringError(
            f"{user_location()}: {fn!r} is not a function; pass the options by keyword, "
            'as in @event_facet(task_list="io")'
        )
    allowed = (*_NAME_OPTIONS, *_EXECUTION_OPTIONS) if kind is FacetKind.EVENT else _NAME_OPTIONS
    problems = [
        f"there is no option {name!r}, the options are {', '.join(allowed)}"
        for name in given
        if name not in allowed
    ]
    running = {name: value for name, value in given.items() if name in _EXECUTION_OPTIONS}
    problems += _problems(running)
    aliases = given.get("aliases", ())
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        problems.append(f"aliases={aliases!r} is not a list of names")
    if problems:
        label = given.get("name") or getattr(fn, "__qualname__", "?")
        raise AuthoringError(f"facet {label!r} ({location_of(fn)}): {'; '.join(problems)}")
    if running.get("timeout") is not None:
        running["timeout"] = float(running["timeout"])  # 30 and 30.0 give the same content hash
    running["breaker"] = _breaker_name(running.get("breaker"))
    options = EventOptions(**running)
    return define(kind, fn, name=given.get("name"), aliases=tuple(aliases), options=options)


def _problems(options: Mapping[str, Any]) -> list[str]:
    """Return every problem of the execution options."""
    problems = []
    task_list = options.get("task_list", "default")
    if not isinstance(task_list, str) or not task_list.strip():
        problems.append(f"task_list={task_list!r} is not the name of a task list")
    timeout = options.get("timeout")
    if timeout is not None and not _is_number(timeout, above=0):
        problems.append(f"timeout={timeout!r} is not a number of seconds above 0")
    max_losses = options.get("max_losses", 0)
    if not _is_number(max_losses) or not isinstance(max_losses, int):
        problems.append(f"max_losses={max_losses!r} is not a whole number, 0 or more")
    if options.get("on_loss", "retry") not in ("retry", "fail"):
        problems.append(f"on_loss={options['on_loss']!r} is neither 'retry' nor 'fail'")
    breaker = options.get("breaker")
    if breaker is not None and not isinstance(breaker, str | Breaker):
        problems.append(
            f"breaker={breaker!r} is neither the name of a circuit breaker nor a Breaker(…)"
        )
    elif (
        isinstance(breaker, str) and not 0 < len(breaker.strip()) <= len(breaker) <= LONGEST_CIRCUIT
    ):
        problems.append(f"breaker={breaker!r} is not a name of 1 to {LONGEST_CIRCUIT} characters")
    retry = options.get("retry", RetryPolicy())
    if not isinstance(retry, RetryPolicy):
        return [*problems, f"retry={retry!r} is not a Retry(attempts=…)"]
    if not isinstance(retry.attempts, int) or not _is_number(retry.attempts, above=0):
        problems.append(f"retry.attempts={retry.attempts!r} is not a whole number, 1 or more")
    for name in ("first_wait", "factor", "max_wait"):
        if not _is_number(getattr(retry, name)):
            problems.append(f"retry.{name}={getattr(retry, name)!r} is not a number, 0 or more")
    return problems


def _breaker_name(breaker: str | Breaker | None) -> str:
    return breaker.name if isinstance(breaker, Breaker) else breaker or ""


def _is_number(value: Any, above: float | None = None) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and (value >= 0 if above is None else value > above)

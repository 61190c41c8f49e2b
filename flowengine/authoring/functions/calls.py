"""The calls that the body of a durable function awaits: `acall`, `step` and the waits.

Outside of a durable function they do the same at once, without a record: a unit test awaits the
body as plain Python.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import sys
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from flowengine.authoring.annotations import Annotation
from flowengine.authoring.current_function import awaited_plainly, current_activation
from flowengine.authoring.definitions import Definition, namespace_of
from flowengine.authoring.facets import Decorated, EventFacet
from flowengine.authoring.functions.pending_calls import Callee, PendingCall, pending_call
from flowengine.authoring.locations import location_of, user_location
from flowengine.authoring.plain_calls import resolved
from flowengine.authoring.signatures import starred_parameters
from flowengine.errors import FunctionMisuse
from flowengine.program.event_options import NO_OPTIONS
from flowengine.program.function_calls import CallKind
from flowengine.program.nodes import FacetKind, Json
from flowengine.program.standard import SLEEP, SLEEP_UNTIL, WAIT_FOR
from flowengine.program.wait_times import sleep_problem, timeout_problem

P = ParamSpec("P")
R = TypeVar("R")
Seconds = datetime.timedelta | float
_STARS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def acall(facet: Decorated[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
    """Return a call of an event facet or a workflow, which is made when it is awaited."""
    activation = current_activation()
    if activation is None:
        return _plain(facet.plain, *args, **kwargs)
    return pending_call(activation, _callee(facet), args, kwargs)


@lru_cache(maxsize=1_000)
def _callee(facet: Decorated[..., Any]) -> Callee:
    """Return the subject of a facet's calls, which is the same for all of them."""
    definition = facet.definition
    if definition.kind is FacetKind.FACET:
        raise FunctionMisuse(
            f"{user_location()}: {definition.title} is traced and has no code to run: make it an "
            "@event_facet, a @workflow, or a plain `async def` that awaits its calls"
        )
    kind = CallKind.EVENT if definition.kind is FacetKind.EVENT else CallKind.RUN
    read = definition.signature.result.read
    return Callee(
        kind, definition.name, read, definition, facet, facet.call_mixins, facet.step_name
    )


def step(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
    """Return a call of a plain function, which the process of the function runs and records."""
    made: Coroutine[Any, Any, R] = settled(_step_call(fn, args, kwargs))
    return made


def _step_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(fn, Decorated):
        return acall(fn, *args, **kwargs)
    activation = current_activation()
    if activation is None:
        return _plain(fn, *args, **kwargs)
    if not inspect.isfunction(fn):
        raise FunctionMisuse(
            f"{user_location()}: step takes a function that is written in Python, and its "
            f"arguments, not {fn!r}: write step(function, argument), with a function that calls it"
        )
    if fn.__code__.co_flags & _STARS and (stars := starred_parameters(fn)):
        raise FunctionMisuse(
            f"{user_location()}: {fn.__qualname__} takes {' and '.join(stars)}, and a record needs "
            "a name for each argument: give step a function that calls it"
        )
    code = _stepped(fn) if fn.__closure__ is None else _stepped.__wrapped__(fn)  # keep no values
    read = code.definition.signature.result.read
    callee = Callee(CallKind.STEP, code.name, read, code.definition, code)
    return pending_call(activation, callee, args, kwargs)


@lru_cache(maxsize=1_000)
def _stepped(fn: Callable[..., Any]) -> EventFacet[..., Any]:
    """Return a plain function with its types, as code that a worker runs."""
    name = f"{namespace_of(fn)}.{fn.__qualname__}"
    return EventFacet(Definition(FacetKind.EVENT, fn, name, (), location_of(fn), NO_OPTIONS))


def called(facet: Decorated[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Any:
    """Return a call in the body of a function; in a plain ``def``, its result."""
    return settled(acall(facet, *args, **kwargs))


def settled(call: Coroutine[Any, Any, R]) -> Any:
    """Return a call as the code needs it: in a plain ``def``, its result.

    Outside of runs it is made in place where no event loop runs.
    """
    plain_form = sys.modules.get("flowengine.authoring.functions.plain_form")
    if plain_form is not None and plain_form.is_plain_body():
        return plain_form.waited(call)
    return call if current_activation() is not None else resolved(call)


async def awaited_body(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Await the body of a function as plain Python: its calls are made at once, unrecorded."""
    token = awaited_plainly.set(True)
    try:
        return await fn(*args, **kwargs)
    finally:
        awaited_plainly.reset(token)


async def _plain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = awaited_plainly.set(False)  # the body of a facet calls others as functions
    try:
        returned = fn(*args, **kwargs)
        return await returned if inspect.isawaitable(returned) else returned
    finally:
        awaited_plainly.reset(token)


def sleep(duration: Seconds) -> Coroutine[Any, Any, datetime.datetime]:
    """Wait for a duration, in seconds or as a timedelta; return the time after it."""
    seconds = _checked(duration, sleep_problem)

    def due(at: int) -> int:
        return at + round(seconds * 1000)

    return _wait(SLEEP, {"seconds": seconds}, due) or _slept(seconds)


def sleep_until(moment: datetime.datetime) -> Coroutine[Any, Any, datetime.datetime]:
    """Wait until a moment; one without a timezone is in UTC. Return the time after it."""
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    due = round(moment.timestamp() * 1000)
    waits = _wait(SLEEP_UNTIL, {"until": moment.isoformat()}, lambda _: due)
    return waits or _slept(max(due / 1000 - _now().timestamp(), 0))


def wait_for(name: str, type: type[R], *, timeout: Seconds | None = None) -> Coroutine[Any, Any, R]:
    """Wait for the answer `name`, which `run.send(name, value)` gives; return its value."""
    activation = current_activation()
    if activation is None:
        raise FunctionMisuse(f"{user_location()}: wait_for() waits in a run: test it with Flow")
    annotation = Annotation.of(type, "validation")
    schema = annotation.adapter.json_schema() if annotation.schema is None else annotation.schema
    arguments: dict[str, Json] = {"name": name}
    if timeout is not None:
        arguments["timeout"] = _checked(timeout, timeout_problem)
    if schema:
        arguments["schema"] = dict(schema)
    callee = Callee(CallKind.WAIT, WAIT_FOR, annotation.read)
    return PendingCall(activation, callee, arguments, user_location())


def _wait(facet: str, arguments: dict[str, Json], due: Callable[[int], int]) -> Any:
    activation = current_activation()
    if activation is None:
        return None

    def read(_: Json) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(activation.now_ms / 1000, datetime.UTC)

    callee = Callee(CallKind.WAIT, facet, read, due=due)
    return PendingCall(activation, callee, arguments, user_location())


async def _slept(seconds: float) -> datetime.datetime:
    await asyncio.sleep(seconds)
    return _now()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251 - outside of a run


def _checked(duration: Any, problem_of: Callable[[Any], str]) -> float:
    seconds = duration.total_seconds() if isinstance(duration, datetime.timedelta) else duration
    if problem := problem_of(seconds):
        raise FunctionMisuse(f"{user_location()}: {problem}")
    return float(seconds)

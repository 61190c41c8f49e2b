"""Steps that wait: `sleep`, `sleep_until` and `wait_for`.

The body of a workflow is traced once, so nothing waits there: each call appends a step, which no
worker executes. A row with a due time, or a mailbox, ends it.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

from flowengine.authoring.annotations import Annotation
from flowengine.authoring.current_function import is_in_function
from flowengine.authoring.locations import user_location
from flowengine.authoring.order import Order, after_nodes, preceding_steps
from flowengine.authoring.scopes import Scope, current_scope
from flowengine.authoring.symbols import Symbol, info_of
from flowengine.errors import AuthoringError
from flowengine.program import nodes
from flowengine.program.standard import SLEEP, SLEEP_UNTIL, WAIT_FOR
from flowengine.program.wait_times import sleep_problem, timeout_problem

T = TypeVar("T")


class WakeTime(datetime.datetime):
    """The time at which a run goes on after `sleep` or `sleep_until`."""

    def after(self, *steps: object) -> WakeTime:
        """Begin to sleep when the steps with these results have completed."""
        del steps  # called as plain Python, they have
        return self

    def __await__(self) -> Generator[Any, Any, datetime.datetime]:
        """For type checkers: in a durable function, ``await sleep(60)``."""
        return self
        yield  # a generator


class _SleepStep(Symbol):
    """The result of a step that sleeps; `after` adds steps that it comes after."""

    __slots__ = ()

    def after(self, *steps: object) -> Symbol:
        info, scope = info_of(self), current_scope()
        assert isinstance(info.expression, nodes.StepRef)
        name = info.expression.path[0]
        if scope is not info.visibility or scope is None:
            raise info.visibility.escape_error(info.label)
        _order(scope, name, preceding_steps("sleep", steps, "completed"))
        return self


def _order(scope: Scope, name: str, order: Order) -> None:
    at = next(i for i, other in enumerate(scope.statements) if other.name == name)
    statement = scope.statements[at]
    after = dict.fromkeys((*statement.after, *after_nodes(order, scope)))
    scope.statements[at] = dataclasses.replace(statement, after=tuple(after))


def sleep(duration: datetime.timedelta | float, *, after: object = None) -> WakeTime:
    """Wait for a duration, in seconds or as a timedelta; return the time after it.

    The step begins with its body, or when the step whose result is `after` has completed;
    ``sleep(60).after(answer)`` is the same as ``sleep(60, after=answer)``.
    """
    if current_scope() is None:
        if is_in_function():
            return cast(WakeTime, _in_function("sleep", duration))
        # Outside a run: a unit test calls the body as plain Python, with computed values.
        time.sleep(max(_seconds(duration), 0))
        return WakeTime.now(datetime.UTC)
    return _sleep(SLEEP, {"seconds": _checked(duration, sleep_problem)}, after)


def sleep_until(moment: datetime.datetime, *, after: object = None) -> WakeTime:
    """Wait until a moment; one without a timezone is in UTC. Return the time after it."""
    if current_scope() is None:
        if is_in_function():
            return cast(WakeTime, _in_function("sleep_until", moment))
        moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
        left = moment - datetime.datetime.now(datetime.UTC)  # noqa: TID251
        return sleep(max(left.total_seconds(), 0.0))
    until = moment if isinstance(moment, Symbol) else moment.isoformat()
    return _sleep(SLEEP_UNTIL, {"until": until}, after)


def _sleep(facet: str, arguments: dict[str, Any], after: object) -> WakeTime:
    info = info_of(cast(Symbol, _step(facet, arguments, datetime.datetime, after)))
    return cast(
        WakeTime, _SleepStep(info.expression, info.visibility, info.label, datetime.datetime)
    )


class WaitFor:
    """`wait_for`, in a traced workflow a step, in a durable function awaited."""

    def __call__(
        self,
        name: str,
        type: type[T],
        *,
        timeout: datetime.timedelta | float | None = None,
        after: object = None,
    ) -> T:
        """Wait for the answer `name`, which `run.send(name, value)` gives; return its value.

        An answer before the step begins is kept for it. Without an answer within `timeout` the step
        fails with WaitTimedOut. In a durable function it is awaited.
        """
        if current_scope() is None and is_in_function():
            return cast(T, _in_function("wait_for", name, type, timeout=timeout))
        annotation = Annotation.of(type, "validation")
        schema = (
            annotation.adapter.json_schema() if annotation.schema is None else annotation.schema
        )
        arguments: dict[str, Any] = {"name": name}
        if timeout is not None:
            arguments["timeout"] = _checked(timeout, timeout_problem)
        if schema:
            arguments["schema"] = dict(schema)
        return _step(WAIT_FOR, arguments, type, after)

    def acall(
        self, name: str, type: type[T], *, timeout: datetime.timedelta | float | None = None
    ) -> Coroutine[Any, Any, T]:
        """Wait in a durable function; for type checkers, which know `await` so."""
        from flowengine.authoring.functions import calls

        return calls.wait_for(name, type, timeout=timeout)


wait_for = WaitFor()


def _step(facet: str, arguments: dict[str, Any], hint: type[T], after: object) -> T:
    scope, short = current_scope(), facet.rpartition(".")[2]
    if scope is None:
        raise AuthoringError(f"{user_location()}: {short}() is a step: call it in a workflow")
    order = preceding_steps(short, () if after is None else (after,), "completed")
    found = scope.call_standard(facet, arguments, hint, after_nodes(order, scope))
    return cast(T, found)


def _in_function(name: str, *args: Any, **options: Any) -> Any:
    """Return a wait of a durable function, which its body awaits."""
    from flowengine.authoring.functions import calls

    return calls.settled(getattr(calls, name)(*args, **options))


def _checked(duration: Any, problem_of: Callable[[Any], str]) -> Any:
    """Return the seconds of a duration; raise for a constant that is none."""
    seconds = _seconds(duration)
    if not isinstance(seconds, Symbol) and (problem := problem_of(seconds)):
        raise AuthoringError(f"{user_location()}: {problem}")
    return seconds


def _seconds(duration: Any) -> Any:
    return duration.total_seconds() if isinstance(duration, datetime.timedelta) else duration

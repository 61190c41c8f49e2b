"""Steps that wait: `sleep`, `sleep_until` and `wait_for`.

The body of a workflow is traced once, so nothing waits there: each call appends a step, which no
worker executes. A row with a due time, or a mailbox, ends it.
"""

from __future__ import annotations

import datetime
import time
from typing import Any, TypeVar, cast

from flowengine.authoring.annotations import Annotation
from flowengine.authoring.locations import user_location
from flowengine.authoring.scopes import current_scope
from flowengine.authoring.symbols import Symbol
from flowengine.errors import AuthoringError
from flowengine.program.standard import SLEEP, SLEEP_UNTIL, WAIT_FOR

T = TypeVar("T")


def sleep(duration: datetime.timedelta | float) -> datetime.datetime:
    """Wait for a duration, in seconds or as a timedelta; return the time after it."""
    scope = current_scope()
    seconds = _seconds(duration)
    if scope is None:
        # Outside a run: a unit test calls the body as plain Python.
        time.sleep(seconds)
        return datetime.datetime.now(datetime.UTC)  # noqa: TID251
    found = scope.call_standard(SLEEP, {"seconds": seconds}, datetime.datetime)
    return cast(datetime.datetime, found)


def sleep_until(moment: datetime.datetime) -> datetime.datetime:
    """Wait until a moment; one without a timezone is in UTC. Return the time after it."""
    scope = current_scope()
    if scope is None:
        raise AuthoringError(f"{user_location()}: sleep_until() is a step: call it in a workflow")
    until = moment if isinstance(moment, Symbol) else moment.isoformat()
    found = scope.call_standard(SLEEP_UNTIL, {"until": until}, datetime.datetime)
    return cast(datetime.datetime, found)


def wait_for(name: str, type: type[T], *, timeout: datetime.timedelta | float | None = None) -> T:
    """Wait for the answer `name`, which `run.send(name, value)` gives; return its value."""
    scope = current_scope()
    if scope is None:
        raise AuthoringError(f"{user_location()}: wait_for() is a step: call it in a workflow")
    arguments: dict[str, Any] = {"name": name}
    if timeout is not None:
        arguments["timeout"] = _seconds(timeout)
    annotation = Annotation.of(type, "validation")
    schema = annotation.adapter.json_schema() if annotation.schema is None else annotation.schema
    if schema:
        arguments["schema"] = dict(schema)
    return cast(T, scope.call_standard(WAIT_FOR, arguments, type))


def _seconds(duration: Any) -> Any:
    return duration.total_seconds() if isinstance(duration, datetime.timedelta) else duration

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
from flowengine.authoring.order import after_nodes, preceding_steps
from flowengine.authoring.scopes import current_scope
from flowengine.authoring.symbols import Symbol
from flowengine.errors import AuthoringError
from flowengine.program.standard import SLEEP, SLEEP_UNTIL, WAIT_FOR

T = TypeVar("T")


def sleep(duration: datetime.timedelta | float, *, after: object = None) -> datetime.datetime:
    """Wait for a duration, in seconds or as a timedelta; return the time after it.

    The step begins with its body, or when the step whose result is `after` has completed.
    """
    seconds = _seconds(duration)
    if current_scope() is None:
        # Outside a run: a unit test calls the body as plain Python.
        time.sleep(seconds)
        return datetime.datetime.now(datetime.UTC)  # noqa: TID251
    return _step(SLEEP, {"seconds": seconds}, datetime.datetime, after)


def sleep_until(moment: datetime.datetime, *, after: object = None) -> datetime.datetime:
    """Wait until a moment; one without a timezone is in UTC. Return the time after it."""
    until = moment if isinstance(moment, Symbol) else moment.isoformat()
    return _step(SLEEP_UNTIL, {"until": until}, datetime.datetime, after)


def wait_for(
    name: str,
    type: type[T],
    *,
    timeout: datetime.timedelta | float | None = None,
    after: object = None,
) -> T:
    """Wait for the answer `name`, which `run.send(name, value)` gives; return its value.

    An answer before the step begins is kept for it. Without an answer within `timeout` the step
    fails with WaitTimedOut.
    """
    annotation = Annotation.of(type, "validation")
    schema = annotation.adapter.json_schema() if annotation.schema is None else annotation.schema
    arguments: dict[str, Any] = {"name": name}
    if timeout is not None:
        arguments["timeout"] = _seconds(timeout)
    if schema:
        arguments["schema"] = dict(schema)
    return _step(WAIT_FOR, arguments, type, after)


def _step(facet: str, arguments: dict[str, Any], hint: type[T], after: object) -> T:
    scope, short = current_scope(), facet.rpartition(".")[2]
    if scope is None:
        raise AuthoringError(f"{user_location()}: {short}() is a step: call it in a workflow")
    order = preceding_steps(short, () if after is None else (after,), "completed")
    found = scope.call_standard(facet, arguments, hint, after_nodes(order, scope))
    return cast(T, found)


def _seconds(duration: Any) -> Any:
    return duration.total_seconds() if isinstance(duration, datetime.timedelta) else duration

"""Deterministic time and ids: computed once per run and recorded.

A body is traced once for all runs, so a clock read there would give all of them the same
time. `now` and `uuid` are steps that the engine completes without a worker.
"""

from __future__ import annotations

import datetime
import uuid as python_uuid
from typing import cast

from flowengine.authoring.scopes import current_scope
from flowengine.authoring.symbols import Symbol, info_of
from flowengine.program.standard import AFTER, NOW, UUID


def now(*, after: object = None) -> datetime.datetime:
    """Return the time at which the run reaches this step, in UTC.

    Without `after` that is near the start of its body; the step waits for the value `after`.
    """
    scope = current_scope()
    if scope is not None:
        waits = {} if after is None else {AFTER: after}
        return cast(datetime.datetime, scope.call_standard(NOW, waits, datetime.datetime))
    if isinstance(after, Symbol):
        raise info_of(after).visibility.escape_error(info_of(after).label)
    # Outside a run: a unit test calls the body as plain Python.
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251


def uuid() -> python_uuid.UUID:
    """Return a random id, recorded by the run."""
    scope = current_scope()
    if scope is not None:
        return cast(python_uuid.UUID, scope.call_standard(UUID, {}, python_uuid.UUID))
    return python_uuid.uuid4()  # noqa: TID251

"""The time and an id of the run's own: asked once, recorded, the same ever after.

A body is read once for all runs, so a clock asked there would tell all of them the same. As
steps these two are answered when the run comes to them, without a worker.
"""

from __future__ import annotations

import datetime
import uuid as python_uuid
from typing import cast

from flowengine.authoring.scopes import current_scope
from flowengine.authoring.symbols import Symbol, facts_of
from flowengine.program.standard import AFTER, NOW, UUID


def now(*, after: object = None) -> datetime.datetime:
    """The time at which the run comes to this step, in UTC.

    It waits for nothing, so it is near the time at which its body began; `after` is a value
    it waits for.
    """
    scope = current_scope()
    if scope is not None:
        waits = {} if after is None else {AFTER: after}
        return cast(datetime.datetime, scope.call_standard(NOW, waits, datetime.datetime))
    if isinstance(after, Symbol):
        raise facts_of(after).reach.escape(facts_of(after).label)
    # No run here that could tell the time: a unit test calls the body as plain Python.
    return datetime.datetime.now(datetime.UTC)  # noqa: TID251


def uuid() -> python_uuid.UUID:
    """An id that no other step of any run has, the same each time this step is looked at."""
    scope = current_scope()
    if scope is not None:
        return cast(python_uuid.UUID, scope.call_standard(UUID, {}, python_uuid.UUID))
    return python_uuid.uuid4()  # noqa: TID251

"""Is it the database that cannot be used just now, or is something wrong with what it was given?"""

from __future__ import annotations

from sqlalchemy import exc

from flowengine.errors import StoreError

_OPERATIONAL = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError)


def is_away(problem: BaseException) -> bool:
    """Whether another time, or elsewhere, the same could succeed."""
    if isinstance(problem, exc.DBAPIError) and problem.connection_invalidated:
        return True
    return isinstance(problem, (*_OPERATIONAL, StoreError, OSError))

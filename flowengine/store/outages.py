"""Outages: tell an unreachable database from a faulty statement."""

from __future__ import annotations

from sqlalchemy import exc

from flowengine.errors import DatabaseBusy, StoreError

_OPERATIONAL = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError)


def is_outage(problem: BaseException) -> bool:
    """Whether the database is unreachable at the moment."""
    if isinstance(problem, exc.DBAPIError):
        if problem.connection_invalidated:
            return True
        if "no such table" in str(problem.orig):  # SQLite calls a wrong schema operational, too
            return False
    return isinstance(problem, (*_OPERATIONAL, DatabaseBusy, OSError))


def is_away(problem: BaseException) -> bool:
    """Whether the same statement could succeed later or elsewhere: an outage, or a refusal."""
    return is_outage(problem) or isinstance(problem, StoreError)

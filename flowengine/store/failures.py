"""Failures of a database, for the layers above the store: they know no driver.

Errors that have a cure of their own are in `flowengine.errors`; the others pass as the driver
raises them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError,
)

from flowengine.errors import DatabaseBusy, StoreError

DatabaseFailure: Final = SQLAlchemyError  #: of a statement, or of its connection
KeyTaken: Final = IntegrityError  #: another transaction has inserted a row with the same key

_OPERATIONAL = (OperationalError, InterfaceError, TimeoutError)
_REPEATABLE = frozenset({"40001", "40P01"})  #: SQLSTATEs of PostgreSQL: serialization, deadlock

_LOCKED = "55P03"  #: within the `lock_timeout`


def is_outage(problem: BaseException) -> bool:
    """Whether the database is unreachable at the moment, not the statement faulty."""
    if isinstance(problem, DBAPIError):
        if problem.connection_invalidated:
            return True
        if "no such table" in str(problem.orig):  # SQLite calls a wrong schema operational, too
            return False
    return isinstance(problem, (*_OPERATIONAL, DatabaseBusy, OSError))


def is_unavailable(problem: BaseException) -> bool:
    """Whether the same statement could succeed later or elsewhere: an outage, or a refusal."""
    return is_outage(problem) or isinstance(problem, StoreError)


def is_deadlock(problem: BaseException) -> bool:
    """Whether another transaction was preferred to this one: repeated at once, it may succeed."""
    state = getattr(getattr(problem, "orig", None), "sqlstate", None)
    return state in _REPEATABLE


def is_locked(problem: BaseException) -> bool:
    """Whether others had locked what the statement needs, or it gave way to them."""
    state = getattr(getattr(problem, "orig", None), "sqlstate", None)
    return state == _LOCKED or state in _REPEATABLE


def is_connection_lost(problem: BaseException) -> bool:
    """Whether the connection was stale: on another one the statement may succeed at once."""
    return isinstance(problem, DBAPIError) and problem.connection_invalidated


def cause_of(problem: SQLAlchemyError) -> BaseException | None:
    """Return the error of the driver, without the statement and its values."""
    return problem.orig if isinstance(problem, DBAPIError) else problem

"""A transaction of the caller in which runs are started: they exist if it commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Connection, event
from sqlalchemy.exc import SQLAlchemyError

from flowengine.store.backend import Executor, SqlalchemyExecutor


class CallerTransaction(Protocol):
    """An open transaction of the caller."""

    @property
    def executor(self) -> Executor | None:
        """Executes inside the transaction; None if it is a transaction of another database."""

    @property
    def errors(self) -> type[Exception]:
        """The class of the errors that its statements raise."""

    def after_commit(self, call: Callable[[], object]) -> None:
        """Call this once the transaction is committed; never if it is rolled back."""


class SqlalchemyTransaction:
    """The transaction of a SQLAlchemy connection."""

    errors = SQLAlchemyError

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.executor = SqlalchemyExecutor(connection)

    def after_commit(self, call: Callable[[], object]) -> None:
        # The commit event fires before the commit. The rows are visible to others when the
        # connection returns to its pool, so the call is made there.
        calls = [call]

        @event.listens_for(self._connection, "commit", once=True)
        def _keep(committing: Connection) -> None:
            committing.info.setdefault(_CALLS, []).extend(calls)

        @event.listens_for(self._connection, "rollback", once=True)
        def _forget(_connection: Connection) -> None:
            calls.clear()

        pool = self._connection.engine.pool
        if not event.contains(pool, "checkin", _call_at_checkin):
            event.listen(pool, "checkin", _call_at_checkin)


_CALLS = "flowengine calls"


def _call_at_checkin(_raw: Any, record: Any) -> None:
    for call in record.info.pop(_CALLS, ()):
        call()

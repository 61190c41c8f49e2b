"""A pool of connections that may be disposed of while threads use its connections.

`Engine.dispose` closes the connections that are in the pool, and then replaces the pool. A thread
that used a connection meanwhile, or was opening one, returns it to the old pool. In a plain
`QueuePool` it would stay open there until the garbage collector finds the pool.
"""

from __future__ import annotations

import os

from sqlalchemy.pool import ConnectionPoolEntry, QueuePool


class ConnectionPool(QueuePool):
    """A `QueuePool` that closes the connections that are returned after it was disposed of."""

    _disposed_in = 0  #: process id; a forked child must not close the sessions of its parent

    def dispose(self) -> None:
        # Set first: a return that does not see it yet is in the pool before the pool is emptied.
        self._disposed_in = os.getpid()
        super().dispose()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        if self._disposed_in == os.getpid():
            record.close()  # put back closed: a thread that waits for it opens it again
            super()._do_return_conn(record)
            return
        super()._do_return_conn(record)
        if self._disposed_in == os.getpid():  # since the check above
            super().dispose()

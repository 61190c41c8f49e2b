"""A PostgreSQL that is stopped, hung, read-only or cut off, and comes back with its data."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psutil
from psycopg import sql

from tests.servers import (
    TIMEOUT,
    GuardedServer,
    PostgresServer,
    database_name,
    new_directory,
)


class RestartablePostgres(PostgresServer):
    """A server that survives its own process: the data stay until `stop`."""

    def __init__(self) -> None:
        self._keeper: GuardedServer | None = None
        super().__init__()

    def _start(self, directory: Path) -> GuardedServer:
        if self._keeper is None:
            # It removes the data when the test run ends or is killed; a server may end before.
            self._keeper = GuardedServer(
                ["sleep", "infinity"], directory=self.directory, stop_signal="KILL"
            )
        return super()._start(new_directory("guard", self._user))

    def go_away(self) -> None:
        """Stop as `pg_ctl stop -m fast`: all connections are ended."""
        self._connection.close()
        psutil.Process(self._pid).send_signal(signal.SIGINT)
        self._server.wait(TIMEOUT)
        self._server.stop()

    def come_back(self) -> None:
        """Start it again on the same data."""
        self._server = self._start(self.directory)
        self._connection = self._connect()

    def freeze(self) -> None:
        """Suspend it: connections stay open and get no answer."""
        self._send_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send_all(signal.SIGCONT)

    def terminate_connections(self, url: str) -> None:
        """End every connection to a database, in the middle of whatever it does."""
        self._about_connections("pg_terminate_backend(pid)", url)

    def cancel_queries(self, url: str) -> None:
        """Cancel the statement that each connection to a database executes."""
        self._about_connections("pg_cancel_backend(pid)", url)

    def make_read_only(self, url: str) -> None:
        """Refuse all writes, as a server after a failover does."""
        change = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
        self._connection.execute(change.format(sql.Identifier(database_name(url))))
        self.terminate_connections(url)  # the setting holds for new connections

    def make_writable(self, url: str) -> None:
        change = sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only")
        self._connection.execute(change.format(sql.Identifier(database_name(url))))
        self.terminate_connections(url)

    def _about_connections(self, call: str, url: str) -> None:
        query = f"SELECT {call} FROM pg_stat_activity WHERE datname = %s"
        self._connection.execute(query, (database_name(url),))

    def stop(self) -> None:
        super().stop()
        assert self._keeper is not None
        self._keeper.stop()

    @property
    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split("\n")[0])

    def _send_all(self, number: signal.Signals) -> None:
        postmaster = psutil.Process(self._pid)
        for process in (postmaster, *postmaster.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

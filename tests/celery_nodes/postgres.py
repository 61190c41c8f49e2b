"""A PostgreSQL that goes away and comes back with its data."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import psutil

from tests.servers import PATIENCE, GuardedServer, PostgresServer, new_directory


class RestartablePostgres(PostgresServer):
    """Stopped, hung and started again in the middle of a test."""

    def __init__(self) -> None:
        self._keeper: GuardedServer | None = None
        super().__init__()

    def _start(self, directory: Path) -> GuardedServer:
        if self._keeper is None:
            # It removes the data when we end or are killed. A server of ours may end before.
            self._keeper = GuardedServer(
                ["sleep", "infinity"], directory=self.directory, stop_signal="KILL"
            )
        return super()._start(new_directory("guard", self._user))

    def go_away(self) -> None:
        """Stop as an operator would, `pg_ctl stop -m fast`: whoever is connected is cut off."""
        self._connection.close()
        psutil.Process(self._pid).send_signal(signal.SIGINT)
        self._server.wait(PATIENCE)
        self._server.stop()

    def come_back(self) -> None:
        """Start it again, with all that was committed."""
        self._server = self._start(self.directory)
        self._connection = self._connect()

    def freeze(self) -> None:
        """Hang: connections stay open, and nobody answers."""
        self._send_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send_all(signal.SIGCONT)

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


def pause(seconds: float) -> None:
    """Let an outage last. It is the outage's length that is waited for, not luck."""
    time.sleep(seconds)

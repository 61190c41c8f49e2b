"""What each process is doing right now, where it can be read when the process is gone.

A process may hold several tries and works on one at a time. It writes the one it works on
into a small file that is mapped into memory: that costs a copy of 32 bytes, and survives
whatever kills the process, because the page belongs to the system. So of a batch only the
try that had begun is lost, and a process that hangs is killed for the try it hangs in and
no other. After the death of the whole machine there is nothing to read, and nobody can say
which tries had begun.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger("flowengine")

_ID = 32  # bytes of a task's id
_SLOTS = 128  # threads of one process that can be told apart
_IDLE = bytes(_ID)


class InFlightMarkers:
    """The marks of one server's processes, in one directory."""

    def __init__(self, spool_directory: str | Path, boot_id: str) -> None:
        self._directory, self._boot_id = Path(spool_directory) / "marks", boot_id
        self._lock = threading.Lock()
        self._slots = threading.local()
        self._taken = 0
        self._page: mmap.mmap | None = None
        self._is_off = False

    def _path(self, pid: int) -> Path:
        return self._directory / f"{self._boot_id}-{pid}"

    # --- the process that works ---

    @contextmanager
    def begun(self, task_id: str) -> Iterator[None]:
        """Mark that this thread works on a task."""
        at = self._slot()
        if at is None or self._page is None:
            yield
            return
        self._page[at : at + _ID] = task_id.encode()
        try:
            yield
        finally:
            self._page[at : at + _ID] = _IDLE

    def _slot(self) -> int | None:
        at: int | None = getattr(self._slots, "at", None)
        if at is not None or self._is_off:
            return at
        with self._lock:
            self._open()
            if self._page is not None and self._taken < _SLOTS:
                at = self._slots.at = self._taken * _ID
                self._taken += 1
        return at

    def _open(self) -> None:
        if self._page is not None or self._is_off:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._path(os.getpid()).open("w+b") as file:
                file.truncate(_ID * _SLOTS)
                self._page = mmap.mmap(file.fileno(), _ID * _SLOTS)
        except OSError as problem:
            self._is_off = True
            log.warning("cannot mark what is being done: %s", problem, extra={"action": "no_marks"})

    # --- those who look after it ---

    def of(self, pid: int) -> set[str] | None:
        """Return the tasks a process works on, or worked on when it died; None: nobody knows."""
        try:
            page = self._path(pid).read_bytes()
        except OSError:
            return None
        slots = (page[at : at + _ID] for at in range(0, len(page), _ID))
        return {slot.decode("ascii", "replace") for slot in slots if slot != _IDLE}

    def forget(self, pid: int) -> None:
        """Remove the marks of a process that is gone and accounted for."""
        self._path(pid).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Remove the marks of all processes of this server."""
        for path in self._directory.glob(f"{self._boot_id}-*"):
            path.unlink(missing_ok=True)

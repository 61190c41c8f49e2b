"""In-flight markers: which claimed tasks a process has started, readable after its death.

Each process maps a small file into memory, with one slot for each task that it has started and
not yet reported. Writing a slot copies 33 bytes, and the page survives SIGKILL, because it
belongs to the kernel. So recovery loses only the tries that were started, releases the others of
a batch, and kills a hanging process for the try it hangs in alone. After the death of the machine,
or without a marker, every claimed task counts as started.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from flowengine.private_files import make_private_directory, private_opener

log = logging.getLogger("flowengine")

_FREE, _STARTED, _FINISHED = range(3)  # the first byte of a slot
_SLOT = 33  # bytes: the state, and the id of the task
_OLD = 86_400.0  # seconds
_GROWTH = 124  # slots, so that the first ones fill one page


class InFlightMarkers:
    """The markers of one server's processes, in one directory."""

    def __init__(self, spool_directory: str | Path, boot_id: str) -> None:
        self._directory, self._boot_id = Path(spool_directory) / "in-flight", boot_id
        self._lock = threading.Lock()
        self._free: list[int] = []  #: slots; its methods are atomic, so they need no lock
        self._page: mmap.mmap | None = None
        self._is_off = False

    def _path(self, pid: int) -> Path:
        return self._directory / f"{self._boot_id}-{pid}"

    # --- the process that works ---

    def start(self, task_id: str) -> int | None:
        """Mark a task as started; return its slot, None without a marker."""
        try:
            at = self._free.pop()
        except IndexError:
            if self._is_off or not self._grow():
                return None
            return self.start(task_id)
        self._page[at : at + _SLOT] = b"\1" + task_id.encode()  # type: ignore[index]
        return at

    def finish(self, at: int | None) -> None:
        """Mark a started task as finished: its report is not committed yet."""
        if at is not None:
            self._page[at] = _FINISHED  # type: ignore[index]

    def clear(self, at: int | None) -> None:
        if at is not None:
            self._page[at] = _FREE  # type: ignore[index]
            self._free.append(at)

    def _grow(self) -> bool:
        """Map more slots. Threads may still write through the earlier mapping: it is shared."""
        with self._lock:
            begin = len(self._page) if self._page else 0
            size = begin + _SLOT * _GROWTH
            if self._free or self._is_off:
                return not self._is_off
            path = self._path(os.getpid())
            try:
                make_private_directory(self._directory)
                with open(path, "r+b" if begin else "w+b", opener=private_opener) as file:
                    _reserve(file.fileno(), size)
                    self._page = mmap.mmap(file.fileno(), size)
            except OSError as problem:
                # Without its file nobody takes an unmarked task for one that was not started.
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                self._is_off = True
                log.warning(
                    "in-flight marker %s cannot be written: %s; if this process dies, all tasks "
                    "it has claimed count as lost; free space in the spool directory and restart",
                    path,
                    problem,
                    extra={"action": "no_in_flight_marker"},
                )
                return False
            self._free += range(begin, size, _SLOT)
            return True

    # --- recovery ---

    def of(self, pid: int) -> set[str] | None:
        """Return the tasks a process has started and not reported; None: there is no marker."""
        found = self._slots(pid)
        return None if found is None else {task_id for state, task_id in found if state != _FREE}

    def running(self, pid: int) -> set[str]:
        """Return the tasks a process executes, without the finished ones."""
        return {task_id for state, task_id in self._slots(pid) or () if state == _STARTED}

    def running_by_process(self) -> dict[int, set[str]]:
        """Return the tasks that each process of this server executes."""
        paths = self._directory.glob(f"{self._boot_id}-*")
        pids = [pid for path in paths if (pid := path.name.rpartition("-")[2]).isdigit()]
        return {int(pid): self.running(int(pid)) for pid in pids}

    def _slots(self, pid: int) -> list[tuple[int, str]] | None:
        try:
            page = self._path(pid).read_bytes()
        except OSError:
            return None
        slots = (page[at : at + _SLOT] for at in range(0, len(page), _SLOT))
        return [(slot[0], slot[1:].decode("ascii", "replace")) for slot in slots]

    def forget(self, pid: int) -> None:
        """Remove the marker of a process that has ended and whose tasks are accounted for."""
        self._path(pid).unlink(missing_ok=True)

    def forget_all(self) -> None:
        for path in self._directory.glob(f"{self._boot_id}-*"):
            path.unlink(missing_ok=True)

    def stale(self) -> Iterator[tuple[str, int]]:
        """Return the boot id and pid of each marker, of any server, whose process is gone."""
        for path in self._directory.glob("*-*"):
            boot_id, _, pid = path.name.rpartition("-")
            if pid.isdigit() and not is_alive(int(pid)):
                yield boot_id, int(pid)

    def is_old(self, boot_id: str, pid: int) -> bool:
        """Whether the marker of a dead process was written more than a day ago."""
        try:
            written = (self._directory / f"{boot_id}-{pid}").stat().st_mtime
        except OSError:
            return False
        return time.time() - written > _OLD

    def remove_stale(self, stale: Iterable[tuple[str, int]]) -> None:
        for boot_id, pid in stale:
            (self._directory / f"{boot_id}-{pid}").unlink(missing_ok=True)


def _reserve(file: int, size: int) -> None:
    """Allocate a file's blocks: writing to a page without one on a full disk raises SIGBUS."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.pwrite(file, bytes(size - os.fstat(file).st_size), os.fstat(file).st_size)


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie, which its parent has not reaped yet, does not."""
    # Missing on some systems: there a dead child is found when its parent has reaped it.
    with suppress(ChildProcessError, AttributeError):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True

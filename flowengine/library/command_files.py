"""The file of a running command: it is locked as long as one of its keepers lives.

By these files a try finds the commands of earlier tries of its step on this machine: it asks
their keepers to kill them, and waits for the end of the locks, before its own command begins. A
file that nobody has locked belongs to keepers that were killed. Its name is in the environment of
every process of its command, so on Linux those that are left are found, and killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from flowengine.errors import CommandFailed, TryCancelled
from flowengine.private_files import make_private_directory, private_opener

#: Of the environment of a command: the name of its file.
MARK = "FLOWENGINE_COMMAND_ID"
_PAUSE = 0.02  #: seconds between two looks at an earlier command that ends
_LIMIT = 30.0  #: seconds for its end; the kernel may hold a killed process for longer, as in a read
_LEFT = 0.5  #: the same, for all that killed keepers have left: the heartbeat waits for it


class CommandFile:
    """Named by step and claim, so that tries of other steps, and of this claim, are left alone."""

    def __init__(self, directory: Path, step: str = "", attempt: int = 0) -> None:
        """`attempt` tells the claims of the step apart."""
        make_private_directory(directory)
        # Steps are told apart by a digest: their ids may have characters that file names may not.
        self._step = hashlib.sha256((step or secrets.token_hex()).encode()).hexdigest()[:32]
        self._claim = f"{self._step}.{attempt}."
        self.is_alive = False  #: its keepers could not be ended
        while True:
            self.path = (directory / f"{self._claim}{secrets.token_hex(6)}").absolute()
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
            self.descriptor = private_opener(str(self.path), flags)
            # A process that removes files of killed keepers may have found it unlocked meanwhile.
            if _locks(self.descriptor) and os.fstat(self.descriptor).st_nlink:
                return
            os.close(self.descriptor)

    @property
    def mark(self) -> str:
        return f"{MARK}={self.path.name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_alive:
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def end_earlier(self, path: str, has_lease: Callable[[], bool]) -> None:
        """Have no process of an earlier try of this step alive on this machine.

        Raises TryCancelled if this try is the earlier one: its lease is lost. It holds its own
        file by now, so of two tries at least one finds the other.
        """
        others = [
            file
            for file in self.path.parent.glob(f"{self._step}.*")
            if not file.name.startswith(self._claim)
        ]
        if others and not has_lease():
            raise TryCancelled(path)
        for file in others:
            if not _ended(file, _LIMIT):
                reason = f"has to wait: that of an earlier try of {path} was killed and still lives"
                raise CommandFailed("the command", reason)


def end_left(directory: Path) -> None:
    """Kill the processes of commands on this machine whose keepers were all killed."""
    ends = time.monotonic() + _LEFT
    for file in directory.glob("*.*.*"):
        with suppress(OSError):  # the files of another user are his to end
            _ended(file, 0.0, ends - time.monotonic())
        if time.monotonic() > ends:  # the kernel holds a killed process; others are not delayed
            return


def kill_marked(mark: str, seconds: float = _LIMIT) -> bool:
    """Kill the processes that have a mark in their environment; return whether none is left."""
    ends, looks = time.monotonic() + seconds, 0
    while looks < 2:  # a process that is just replaced by another program has no environment
        looks = 0 if _kill(mark.encode()) else looks + 1
        if time.monotonic() > ends:
            return False
        time.sleep(_PAUSE)
    return True


def _ended(file: Path, seconds: float, kill_seconds: float = 0.0) -> bool:
    """Ask the keepers of a command to kill it, and wait for the end of all its processes.

    With no seconds, a command with a living keeper is left alone.
    """
    ends = time.monotonic() + seconds
    with suppress(FileNotFoundError), open(file, "r+b", buffering=0) as held:
        while not _locks(held.fileno()):
            if time.monotonic() >= ends:
                return False
            held.write(b"end\n")
            time.sleep(_PAUSE)
            if not os.fstat(held.fileno()).st_nlink:
                return True
        if not kill_marked(f"{MARK}={file.name}", max(seconds, kill_seconds)):
            return False
        file.unlink(missing_ok=True)
    return True


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill(mark: bytes) -> bool:
    """Send SIGKILL to all processes with a mark; return whether there was one. Linux alone."""
    found = False
    for pid in _processes():
        if pid != os.getpid() and _has(pid, mark):
            with suppress(ProcessLookupError, PermissionError):
                process = os.pidfd_open(pid)
                try:
                    # Another process may have got the number before this descriptor was opened.
                    if _has(pid, mark):
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                        found = True
                finally:
                    os.close(process)
    return found


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # not Linux
        return []


def _has(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False

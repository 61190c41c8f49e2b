"""A lock file for each embedded process: whether the process lives, without a timeout.

A process holds the lock on its own file as long as it lives. The operating system releases it
however the process ends, also by SIGKILL, so a free lock means a dead process. That is true on one
machine, and an embedded database is a file on one machine.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from flowengine.private_files import make_private_directory, private_opener


class ProcessLock:
    def __init__(self, directory: Path, boot_id: str) -> None:
        make_private_directory(directory)
        self.path = directory / f"{boot_id}.lock"
        self._file = open(self.path, "w", opener=private_opener)  # noqa: SIM115
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        self.path.unlink(missing_ok=True)
        self._file.close()

    def abandon(self) -> None:
        """Close a forked child's copy; the parent keeps the lock."""
        self._file.close()


def lock_is_free(path: Path) -> bool:
    """Whether the process that held the lock has ended. Removes the file of a dead one."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # without write permission it stays, and is free
                path.unlink(missing_ok=True)
            return True
    except FileNotFoundError:
        return True
    except OSError:
        return False

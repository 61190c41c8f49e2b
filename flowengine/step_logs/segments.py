"""Segments: the files in which lines outlive their process.

A segment belongs to one process, which holds a lock on it as long as it lives; the kernel releases
the lock of a killed one. So whoever gets the lock may deliver the lines and remove the file. Lines
are not synced to the disk: they outlive the process, not the machine.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flowengine.private_files import make_private_directory, private_opener
from flowengine.step_logs.chunks import ChunkLines, LogChunk, TryKey

SUFFIX = ".lines"
Seal = Callable[[str], str]  #: encodes, or decodes, text that holds values of runs
_numbers = itertools.count(1)


class Segment:
    """The file to which this process appends."""

    def __init__(self, directory: Path, seal: Seal) -> None:
        make_private_directory(directory)
        self.path = directory / f"{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}{SUFFIX}"
        self._seal = seal
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._file = private_opener(str(self.path), flags)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.size = 0
        self.unsent = 0  #: chunks that have lines here and are not stored
        self._is_torn = False

    def append(self, chunk: ChunkLines, number: int, line: str) -> None:
        """Add a line of a chunk. Raises OSError if there is no room on the disk."""
        key = f'"{chunk.key.run_id}","{chunk.key.task_id}",{chunk.key.lease}'
        text = self._seal(f"[{key},{chunk.first},{number},{line}]")
        separator = "\n" if self._is_torn else ""  # behind a line that a full disk has cut off
        content = f"{separator}{text}\n".encode("ascii")
        self._is_torn = True
        written = os.write(self._file, content)
        self.size += written
        if written < len(content):
            raise OSError(f"{self.path}: {written} of {len(content)} bytes were written")
        self._is_torn = False

    def clear(self) -> None:
        """Forget the lines, which are all stored."""
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            self.size, self._is_torn = 0, False

    def remove(self) -> None:
        """Remove the file: all its lines are stored."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave the file to others: they find it unlocked."""
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)


def chunks_of(path: Path, unseal: Seal) -> Iterator[LogChunk]:
    """Return the chunks of a segment, as its process has made them, in their order.

    A line that a full disk or a kill has cut off is left out.
    """
    found: dict[tuple[TryKey, int], ChunkLines] = {}
    with open(path, encoding="ascii", errors="replace") as file:
        for text in file:
            try:
                run_id, task_id, lease, first, number, line = _parsed(unseal(text.rstrip("\n")))
            except (ValueError, TypeError):
                continue
            key = TryKey(run_id, task_id, lease)
            chunk = found.get((key, first))
            if chunk is None:
                chunk = found[key, first] = ChunkLines(key, first)
            if number == chunk.first + chunk.count:
                chunk.add(line)
    for chunk in found.values():
        if chunk.count:
            yield chunk.stored()


def _parsed(text: str) -> tuple[str, str, int, int, int, str]:
    run_id, task_id, lease, first, number, line = json.loads(text)
    for value, kind in ((run_id, str), (task_id, str), (lease, int), (first, int), (number, int)):
        if not isinstance(value, kind):
            raise TypeError(value)
    return run_id, task_id, lease, first, number, _encoded(line)


def _encoded(line: Any) -> str:
    return json.dumps(line, separators=(",", ":"))


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a segment whose process is dead; False: it lives, or another process is faster."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been removed between the two calls, by the process that had the lock.
        yield os.fstat(file).st_nlink > 0
    except BlockingIOError:
        yield False
    finally:
        os.close(file)

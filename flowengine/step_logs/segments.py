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
import re
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowengine.private_files import make_private_directory, private_opener
from flowengine.step_logs.chunks import ChunkLines, LogChunk, TryKey

SUFFIX = ".lines"
_TORN = "~"  #: the end of a line that a full disk has cut off; no other line ends so
#: The try and the lease, the first line of the chunk, the number of the line, and the line.
_RECORD = re.compile(r'\["([^"]*)","([^"]*)",(\d+),(\d+),(\d+),(\[.*\])\]')
ChunkKey = tuple[TryKey, int]  #: a try, and the number of the first line
Seal = Callable[[str], str]  #: encodes, or decodes, text that holds values of runs
_numbers = itertools.count(1)


class Segment:
    """The file to which this process appends."""

    def __init__(self, directory: Path, scope: str, seal: Seal, suffix: str = SUFFIX) -> None:
        """`scope` names the database that the lines are for."""
        make_private_directory(directory)
        own = f"{os.getpid()}-{next(_numbers)}-{os.urandom(4).hex()}"
        self.path = directory / f"{scope}-{own}{suffix}"
        self._seal = seal
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._file = private_opener(str(self.path), flags)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.size = 0
        self.unsent = 0  #: chunks that have lines here and are not stored
        self._is_torn = False

    def append(self, chunk: ChunkLines, number: int, line: str) -> None:
        """Add a line of a chunk. Raises OSError if there is no room on the disk."""
        content = f"{self._seal(f'{chunk.prefix}{number},{line}]')}\n".encode("ascii")
        if self._is_torn:
            content = f"{_TORN}\n".encode("ascii") + content
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


def chunks_of(
    path: Path,
    unseal: Seal,
    wanted: Container[ChunkKey] | None = None,
    unreadable: list[Exception] | None = None,
) -> Iterator[LogChunk]:
    """Return the chunks of a segment, or those that are wanted, as its process has made them.

    They are in the order in which they began. A line that a full disk or a kill has cut off is
    left out, as is an unreadable one; lines of a chunk behind that are a chunk of their own.
    """
    found: list[ChunkLines] = []
    growing: dict[ChunkKey, ChunkLines] = {}
    for try_key, first, number, line in records_of(path, unseal, unreadable):
        key = try_key, first
        if (wanted is not None and key not in wanted) or not _is_json(line):
            continue
        chunk = growing.get(key)
        if chunk is None or number > chunk.first + chunk.count:
            chunk = growing[key] = ChunkLines(try_key, number)
            found.append(chunk)
        if number == chunk.first + chunk.count:
            chunk.add(line)
    return (chunk.stored() for chunk in found)


def records_of(
    path: Path, unseal: Seal, unreadable: list[Exception] | None = None
) -> Iterator[tuple[TryKey, int, int, str]]:
    """Return the lines of a segment: the try, the chunk's first line, the number, and the line.

    The problems of whole lines that cannot be decoded are added to `unreadable`.
    """
    with open(path, encoding="ascii", errors="replace") as file:
        for text in file:
            if not text.endswith("\n") or text.endswith(f"{_TORN}\n"):
                continue
            try:
                record = _RECORD.fullmatch(unseal(text.rstrip("\n")))
            except Exception as problem:  # of the payload codec; other lines may be readable
                if unreadable is not None:
                    unreadable.append(problem)
                continue
            if record is not None:
                run_id, task_id, lease, first, number, line = record.groups()
                yield TryKey(run_id, task_id, int(lease)), int(first), int(number), line


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def segments_in(directory: Path, scope: str, suffix: str = SUFFIX) -> list[Path]:
    """Return the segments for a database, those of a process in the order of its lines."""
    return sorted(directory.glob(f"{scope}-*{suffix}"), key=_order)


def _order(path: Path) -> tuple[str, int]:
    _, pid, number, *_ = (*path.name.split("-"), "", "", "")
    return pid, int(number) if number.isdigit() else 0


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

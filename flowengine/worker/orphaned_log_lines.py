"""Lines that processes have left in files: others of the machine store them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from flowengine.engine import Engine
from flowengine.log_filter import safe_logger
from flowengine.settings import Settings
from flowengine.step_logs.chunks import LogChunk
from flowengine.step_logs.segments import chunks_of, locked, segments_in
from flowengine.step_logs.spool import TAKEN_BYTES
from flowengine.step_logs.tail_files import left_tails
from flowengine.store import codec

log = safe_logger("flowengine")

T = TypeVar("T")


def directory_of(settings: Settings) -> Path:
    return Path(settings.spool_directory) / "logs"


def scope_of(engine: Engine) -> str:
    """Return the name of the database in those of files: several may share a spool directory."""
    return blake2b(engine.database.name.encode(), digest_size=4).hexdigest()


def deliver_orphaned_log_lines(engine: Engine) -> int:
    """Store the lines of processes of this machine that have ended; return the number of chunks.

    Raises if the database is unreachable. A file that cannot be read stops none behind it.
    """
    stored = 0
    for path in segments_in(directory_of(engine.settings), scope_of(engine)):
        with locked(path) as is_ours:
            if is_ours:
                stored += _deliver_file(engine, path)
    return stored + _deliver_tails(engine)


def _deliver_tails(engine: Engine) -> int:
    place = directory_of(engine.settings), scope_of(engine)
    with left_tails(*place, codec.opened, _set_aside) as chunks:
        _store(engine, chunks)
    return len(chunks)


def _deliver_file(engine: Engine, path: Path) -> int:
    problems: list[Exception] = []
    try:
        chunks = list(chunks_of(path, codec.opened, unreadable=problems))
    except OSError as problem:
        _set_aside(path, problem)
        return 0
    _store(engine, chunks)
    if problems:
        _set_aside(path, problems[0])
    else:
        path.unlink(missing_ok=True)
    if chunks:
        log.info(
            "stored %d chunks of lines that a process has left in %s",
            *(len(chunks), path),
            extra={"action": "log_lines_delivered"},
        )
    return len(chunks)


def _set_aside(path: Path, problem: Exception) -> None:
    aside = path.with_name(f"{path.name}.undeliverable")
    with suppress(OSError):
        path.rename(aside)
    log.error(
        "lines of steps in %s cannot be read: %s: %s; the file is kept as %s; if a payload codec "
        "is missing, configure it and rename the file back",
        *(path, type(problem).__name__, problem, aside),
        extra={"action": "log_lines_set_aside"},
    )


def _store(engine: Engine, chunks: Sequence[LogChunk]) -> None:
    for portion in portions(chunks, lambda chunk: len(chunk.body)):
        engine.log_store.add(sorted(portion))


def portions(items: Sequence[T], size_of: Callable[[T], int]) -> list[list[T]]:
    """Divide chunks into those that one statement stores."""
    found: list[list[T]] = []
    size = 0
    for item in items:
        size += size_of(item)
        if not found or size > TAKEN_BYTES:
            found.append([])
            size = size_of(item)
        found[-1].append(item)
    return found

"""The place where chunks of logs are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flowengine.step_logs.chunks import LogChunk
from flowengine.store import Store
from flowengine.store.logs import FoundChunk, LogCursor, StoredPlace


class LogStore(Protocol):
    """Keeps chunks by try and first line. Rows of the database are one; objects in S3 could be.

    A chunk that was added may be added again.
    """

    #: Whether the statement that reports a try stores its last chunk.
    takes_part_in_commits: bool

    def add(self, chunks: Sequence[LogChunk]) -> None:
        """Store chunks; those that are stored already change nothing."""

    def next_chunks(self, cursors: Sequence[LogCursor]) -> list[FoundChunk]:
        """Return for each cursor the first chunk at or behind it, if there is one."""

    def last_chunks(self, cursors: Sequence[LogCursor]) -> list[FoundChunk]:
        """Return for each cursor the last chunk before it, if there is one."""

    def last_places(self, cursors: Sequence[LogCursor]) -> list[StoredPlace]:
        """Return for each cursor the place of the last chunk before it, if there is one."""

    def latest(self, run_id: str, after: StoredPlace, most: int) -> list[StoredPlace]:
        """Return the places of the chunks of a run that follow another by time and key."""

    def remove_before(self, before: int, most: int) -> int:
        """Remove the oldest chunks that were stored before; return their number."""


class DatabaseLogs:
    """Chunks as rows: purge, backup and readers on other machines find them."""

    takes_part_in_commits = True

    def __init__(self, database: Store) -> None:
        self._database = database

    def add(self, chunks: Sequence[LogChunk]) -> None:
        with self._database.autocommit() as session:
            session.logs.add(chunks)

    def next_chunks(self, cursors: Sequence[LogCursor]) -> list[FoundChunk]:
        with self._database.read() as session:
            return session.logs.next_chunks(cursors)

    def last_chunks(self, cursors: Sequence[LogCursor]) -> list[FoundChunk]:
        with self._database.read() as session:
            return session.logs.last_chunks(cursors)

    def last_places(self, cursors: Sequence[LogCursor]) -> list[StoredPlace]:
        with self._database.read() as session:
            return session.logs.last_places(cursors)

    def latest(self, run_id: str, after: StoredPlace, most: int) -> list[StoredPlace]:
        with self._database.read() as session:
            return session.logs.latest(run_id, after, most)

    def remove_before(self, before: int, most: int) -> int:
        with self._database.write() as session:
            return session.logs.remove_before(before, most)

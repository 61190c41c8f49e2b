"""The logs of steps: chunks of lines, by try and number."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from flowengine.errors import PayloadUnreadable
from flowengine.step_logs.chunks import LogChunk
from flowengine.step_logs.lines import body_of, notice_line
from flowengine.store import codec
from flowengine.store.backend import in_dialect
from flowengine.store.commits import stored_log
from flowengine.store.parts import Part

_PLACE = "l.created, l.task_id, l.lease, l.first_line, l.line_count"
_COLUMNS = "l.task_id, l.lease, l.first_line, l.line_count, l.created, l.body"
_NEAREST = (
    f"SELECT {_COLUMNS} FROM {{TRIES}} {{JOIN}} flowengine_log l "
    "ON l.task_id = {TRY_TASK} AND l.lease = {TRY_LEASE} AND l.first_line = "
    "(SELECT <how>(m.first_line) FROM flowengine_log m WHERE m.task_id = {TRY_TASK} "
    "AND m.lease = {TRY_LEASE} AND m.first_line <where> {TRY_LINE})"
)
_NEXT = _NEAREST.replace("<how>", "min").replace("<where>", ">=")
_LAST = _NEAREST.replace("<how>", "max").replace("<where>", "<")
_LAST_PLACES = _LAST.replace(_COLUMNS, _PLACE)
_LATEST = (
    f"SELECT {_PLACE} FROM flowengine_log l "
    "WHERE run_id = %s AND created >= %s AND (created, task_id, lease, first_line) > "
    "(%s, %s, %s, %s) ORDER BY created, task_id, lease, first_line LIMIT %s"
)
_NEWEST = (
    f"SELECT {_COLUMNS} FROM flowengine_log l WHERE l.run_id = %s ORDER BY l.created DESC LIMIT %s"
)
_TRY = "SELECT uuid, step_path, name, try_number + losses, lease FROM flowengine_task WHERE "
_OF_RUN = f"{_TRY} run_id = %s ORDER BY position"
_OF_TASKS = f"{_TRY} uuid IN (SELECT w.value FROM {{IDS}})"
_REMOVE = (
    "DELETE FROM flowengine_log WHERE {ROW_IDS} (SELECT {ROW_ID} FROM flowengine_log "
    "WHERE created < %s ORDER BY created LIMIT %s){ROW_END} RETURNING 1"
)
_PORTION = 200  #: chunks that are read at once


class LoggedTask(NamedTuple):
    """A task whose tries may have a log."""

    id: str
    path: str
    facet: str
    try_number: int  #: of its step, with those that were lost
    lease: int  #: the last one


class LogCursor(NamedTuple):
    """A place in the log of a try: before the line of that number."""

    task_id: str
    lease: int
    line: int


class StoredPlace(NamedTuple):
    """The lines of a chunk, and when it was stored. Without a chunk: before all of a time."""

    created: int
    task_id: str = ""
    lease: int = 0
    first: int = 0
    line_count: int = 0

    @property
    def end(self) -> int:
        """The number behind its last line."""
        return self.first + self.line_count


class FoundChunk(NamedTuple):
    task_id: str
    lease: int
    first: int
    line_count: int
    created: int
    body: str  #: the lines as JSON


class Logs(Part):
    def add(self, chunks: Sequence[LogChunk]) -> None:
        """Store chunks, in one statement; those that are stored already change nothing."""
        now = self._session.now()
        rows = [stored_log(chunk, now) for chunk in chunks]
        self._session.dialect.add_logs(self._session.executor, rows)

    def tasks_of(self, run_id: str) -> list[LoggedTask]:
        """Return the tasks of a run in the order of their creation."""
        return [LoggedTask(*row) for row in self._session.rows(_OF_RUN, (run_id,))]

    def tasks(self, task_ids: Iterable[str]) -> list[LoggedTask]:
        text = in_dialect(_OF_TASKS, self._session.dialect)
        wanted = json.dumps(sorted(task_ids))
        return [LoggedTask(*row) for row in self._session.rows(text, (wanted,))]

    def next_chunks(self, cursors: Sequence[LogCursor]) -> list[FoundChunk]:
        """Return for each cursor the first chunk at or behind it, if there is one."""
        return [_opened(row) for row in self._nearest(_NEXT, cursors)]

    def last_chunks(self, cursors: Sequence[LogCursor]) -> list[FoundChunk]:
        """Return for each cursor the last chunk before it, if there is one."""
        return [_opened(row) for row in self._nearest(_LAST, cursors)]

    def last_places(self, cursors: Sequence[LogCursor]) -> list[StoredPlace]:
        """Return for each cursor the place of the last chunk before it, if there is one."""
        return [StoredPlace(*row) for row in self._nearest(_LAST_PLACES, cursors)]

    def latest(self, run_id: str, after: StoredPlace, most: int) -> list[StoredPlace]:
        """Return the places of the chunks of a run that follow another by time and key."""
        rows = self._session.rows(_LATEST, (run_id, after.created, *after[:4], most))
        return [StoredPlace(*row) for row in rows]

    def newest(self, run_id: str, most: int) -> list[FoundChunk]:
        """Return the chunks of a run that were stored last."""
        return [_opened(row) for row in self._session.rows(_NEWEST, (run_id, most))]

    def remove_before(self, before: int, most: int) -> int:
        """Remove the oldest chunks that were stored before; return their number."""
        text = in_dialect(_REMOVE, self._session.dialect)
        return len(self._session.rows(text, (before, most)))

    def _nearest(self, template: str, cursors: Sequence[LogCursor]) -> Iterator[Sequence[Any]]:
        text = in_dialect(template, self._session.dialect)
        for at in range(0, len(cursors), _PORTION):
            wanted = [cursor._asdict() for cursor in cursors[at : at + _PORTION]]
            yield from self._session.rows(text, (json.dumps(wanted),))


def _opened(row: Sequence[Any]) -> FoundChunk:
    """Decode a chunk for a reader; one that cannot be read has a notice as its only line."""
    chunk = FoundChunk(*row)
    try:
        body = codec.opened(chunk.body)
        json.loads(body)
    except (PayloadUnreadable, ValueError) as problem:
        lines = "1 line" if chunk.line_count == 1 else f"{chunk.line_count} lines"
        body = body_of([notice_line(chunk.created, f"[{lines} of this log: {problem}]")])
    return chunk._replace(body=body)

"""Encoded values wherever they are stored: by which keys, and anew by the present one.

Tables are read in portions, by their primary keys. A row is encoded anew under its lock, and one
that another transaction has locked is passed over: this never waits for a commit, and a commit
waits for a few rows at most. So no two of them can deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flowengine.errors import PayloadUnreadable
from flowengine.store import codec
from flowengine.store.parts import Part
from flowengine.store.tables import metadata

#: The columns that `codec` encodes, by table. A test looks for others.
SEALED = {
    "flowengine_run": ("outputs", "error"),
    "flowengine_step": ("params", "returns", "error", "failure", "yields"),
    "flowengine_task": ("result", "error"),
    "flowengine_fact": ("payload",),
    "flowengine_payload": ("body",),
    "flowengine_cache": ("returns",),
    "flowengine_exchange": ("content",),
    "flowengine_card": ("content",),
    "flowengine_log": ("body",),
}
#: Characters of an encoded value that tell its key: ids of 45 bytes and less.
_BEGINNING = 64
_SCAN = "SELECT {key}, {beginnings} FROM {table} {behind}ORDER BY {key} LIMIT %(most)s"
_LOCKED = "SELECT {columns} FROM {table} WHERE {is_row}{LOCK}{SKIP_LOCKED}"
_STORE = "UPDATE {table} SET {values} WHERE {is_row} RETURNING 1"

RowKey = tuple[Any, ...]


@dataclass(slots=True)
class Scanned:
    """A portion of a table: how many values each key has encoded, and where they are."""

    rows: int = 0
    last: RowKey | None = None  #: None: the table has no more
    counts: Counter[str] = field(default_factory=Counter)
    stale: list[RowKey] = field(default_factory=list)  #: rows of another key than the present one


@dataclass(slots=True)
class Resealed:
    """Values that were encoded anew, and rows that were not."""

    values: int = 0
    rows: int = 0
    written: int = 0  #: bytes
    locked: int = 0  #: by another transaction, or gone
    unreadable: list[str] = field(default_factory=list)  #: why, of each such row


class SealedValues(Part):
    """In a transaction."""

    def scan(self, table: str, after: RowKey | None, most: int) -> Scanned:
        """Return what a portion of a table behind a row is encoded with."""
        key = _key(table)
        values: dict[str, Any] = {"most": most}
        behind = ""
        if after is not None:
            values |= {f"key{n}": part for n, part in enumerate(after)}
            marks = ", ".join(f"%(key{n})s" for n in range(len(key)))
            behind = f"WHERE ({', '.join(key)}) > ({marks}) "
        text = _SCAN.format(
            key=", ".join(key),
            beginnings=", ".join(map(_beginning, SEALED[table])),
            table=table,
            behind=behind,
        )
        found = Scanned()
        present = codec.present_key()
        for row in self._session.rows(text, values):
            keys = [codec.key_of(text) or "" for text in row[len(key) :] if text is not None]
            found.rows += 1
            found.counts.update(keys)
            found.last = tuple(row[: len(key)])
            if any(each != present for each in keys):
                found.stale.append(found.last)
        if found.rows < most:
            found.last = None
        return found

    def reseal(self, table: str, rows: Sequence[RowKey], most_bytes: int) -> tuple[Resealed, int]:
        """Encode the values of these rows anew; return what was done and how many rows of them.

        It stops behind `most_bytes`: a transaction holds few locks and little memory.
        """
        done = Resealed()
        for number, row in enumerate(rows):
            if done.written >= most_bytes:
                return done, number
            self._reseal(table, row, done)
        return done, len(rows)

    def _reseal(self, table: str, row: RowKey, done: Resealed) -> None:
        dialect, columns = self._session.dialect, SEALED[table]
        values = {f"key{n}": part for n, part in enumerate(row)}
        is_row = " AND ".join(f"{name} = %(key{n})s" for n, name in enumerate(_key(table)))
        text = _LOCKED.format(
            columns=", ".join(columns),
            table=table,
            is_row=is_row,
            LOCK=dialect.LOCK,
            SKIP_LOCKED=dialect.SKIP_LOCKED,
        )
        found = self._session.rows(text, values)
        if not found:
            done.locked += 1
            return
        present, new = codec.present_key(), {}
        for name, stored in zip(columns, found[0], strict=True):
            # Another process may have written it since the scan, by the present key.
            if stored is None or codec.key_of(stored) in (None, present):
                continue
            try:
                new[name] = codec.sealed(codec.opened(stored))
            except PayloadUnreadable as problem:
                done.unreadable.append(f"{table}, {' '.join(map(str, row))}: {problem.args[0]}")
        if new:
            stated = ", ".join(f"{name} = %({name})s" for name in new)
            text = _STORE.format(table=table, values=stated, is_row=is_row)
            self._session.rows(text, {**values, **new})
            done.rows, done.values = done.rows + 1, done.values + len(new)
            done.written += sum(map(len, new.values()))


def _key(table: str) -> list[str]:
    return [column.name for column in metadata.tables[table].primary_key]


def _beginning(column: str) -> str:
    length = max(_BEGINNING, codec.longest_beginning())
    is_encoded = f"substr({column}, 1, {len(codec.SEAL)}) = '{codec.SEAL}'"
    return f"CASE WHEN {is_encoded} THEN substr({column}, 1, {length}) END"

"""The keys of stored values: which are in use, and the values of old ones encoded anew.

Both read every row of the tables with values, a portion at a time, and each portion is a
transaction of its own. Encoding anew can be killed and begun again: it looks at all rows once more,
and a value that has the present key is not read.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from flowengine.errors import InvalidSetting
from flowengine.store import Store, codec
from flowengine.store.sealed_values import SEALED, Resealed, RowKey, Scanned

PORTION = 1_000  #: rows that one statement looks at
_MOST_BYTES = 4 * 1024 * 1024  #: of new values, in one transaction
_LOCKED_PAUSE = 0.2  #: seconds before rows are tried again that other transactions had locked
_MOST_PASSES = 20


@dataclass(frozen=True, slots=True)
class KeyUse:
    """How many values of a table each key has encoded. Values of no codec are not counted."""

    table: str
    rows: int  #: that were looked at
    values: dict[str, int]  #: by the id of the key
    is_whole: bool  #: False: the table has more rows


@dataclass(slots=True)
class Reencrypted:
    """What `reencrypt` did, of all tables."""

    rows: int = 0
    values: int = 0
    left: int = 0  #: rows of other keys: they were locked at every pass
    unreadable: list[str] = field(default_factory=list)  #: why, of each such row


class PayloadKeys:
    def __init__(self, database: Store) -> None:
        self._database = database

    def in_use(self, most: int | None = None) -> list[KeyUse]:
        """Count the values of each key, in the first `most` rows of each table, or in all.

        Raises InvalidSetting if the codec of this process has no keys.
        """
        _check()
        found = []
        for table in SEALED:
            rows, counts, last = 0, Counter[str](), True
            for portion in self._portions(table, most):
                rows, last = rows + portion.rows, portion.last is None
                counts.update(portion.counts)
            found.append(KeyUse(table.removeprefix("flowengine_"), rows, dict(counts), last))
        return found

    def reencrypt(
        self,
        *,
        batch: int = 100,
        dry_run: bool = False,
        tell: Callable[[str, Reencrypted], object] = lambda _table, _done: None,
    ) -> Reencrypted:
        """Encode the values of other keys anew by the present one; return what was done.

        Up to `batch` rows in one transaction. `tell` is called after each with the table. With
        `dry_run` the values are counted.
        """
        _check()
        done = Reencrypted()
        for table in SEALED:
            # Again, until a pass has met none: a fork may copy a value that was not reached yet.
            for number in range(_MOST_PASSES):
                locked, changed = self._pass(table, batch, done, tell, dry_run=dry_run)
                if dry_run or not locked + changed:
                    break
                if locked:
                    time.sleep(_LOCKED_PAUSE * (number + 1))
                done.unreadable = [why for why in done.unreadable if not why.startswith(table)]
            else:
                done.left += locked
        return done

    def _pass(
        self,
        table: str,
        batch: int,
        done: Reencrypted,
        tell: Callable[[str, Reencrypted], object],
        *,
        dry_run: bool,
    ) -> tuple[int, int]:
        """Go through a table once; return how many rows were locked, and how many changed."""
        locked = changed = 0
        for portion in self._portions(table, None):
            if dry_run:
                present = codec.present_key()
                done.rows += len(portion.stale)
                done.values += sum(n for key, n in portion.counts.items() if key != present)
                continue
            for part in self._resealed(table, portion.stale, batch):
                locked, changed = locked + part.locked, changed + part.rows
                done.rows, done.values = done.rows + part.rows, done.values + part.values
                done.unreadable += part.unreadable
                tell(table.removeprefix("flowengine_"), done)
        return locked, changed

    def _resealed(self, table: str, rows: Sequence[RowKey], batch: int) -> Iterator[Resealed]:
        while rows:
            with self._database.write() as session:
                done, count = session.sealed_values.reseal(table, rows[:batch], _MOST_BYTES)
            rows = rows[count:]
            yield done

    def _portions(self, table: str, most: int | None) -> Iterator[Scanned]:
        after: RowKey | None = None
        seen = 0
        while most is None or seen < most:
            size = PORTION if most is None else min(PORTION, most - seen)
            with self._database.read() as session:
                portion = session.sealed_values.scan(table, after, size)
            yield portion
            after, seen = portion.last, seen + portion.rows
            if after is None:
                return


def _check() -> None:
    if not codec.has_keys():
        expected = (
            "a codec with keys (a method `key_of`), as flowengine.payload_codecs:AesGcmCodec, and "
            "its keys in FLOWENGINE_PAYLOAD_KEYS"
        )
        raise InvalidSetting("FLOWENGINE_PAYLOAD_CODEC", "", expected)

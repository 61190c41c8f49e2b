"""Distributed locks by key, each with one holder at a time and a limited duration.

    if engine.locks.acquire_lock("import:42", 60_000):
        try:
            ...
        finally:
            engine.locks.release_lock("import:42")

One object is one holder: `engine.locks` is that of its engine, so the threads of a process that
must exclude each other take one each with `held_by`. A holder whose lock expired, or was taken by
another, can neither extend nor release it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from flowengine.errors import ValueRefused
from flowengine.printable import is_storable
from flowengine.store import Store
from flowengine.store.work_locks import LockDefinition, LockMetaData

_MAX_KEY = 255  # characters
_MAX_HOLDER = 32
_MAX_DURATION = 86_400_000  # milliseconds: a day


class Locks:
    """The locks of one holder. Shared by the threads that act for it."""

    def __init__(self, database: Store, holder: str = "") -> None:
        """`holder` may be the id of a server: its locks end when it is dead or deregistered."""
        if len(holder) > _MAX_HOLDER or "\0" in holder:
            raise ValueRefused(f"the holder of a lock has at most {_MAX_HOLDER} characters")
        self._database, self.holder = database, holder or uuid.uuid4().hex

    def held_by(self, holder: str = "") -> Locks:
        """Return the locks of another holder; without a name, of a new one."""
        return Locks(self._database, holder)

    def acquire_lock(self, key: str, duration_ms: int, meta: LockMetaData | None = None) -> bool:
        """Acquire a lock; False: somebody holds it, be it this holder."""
        return key in self.acquire_locks({_checked(key): meta}, duration_ms)

    def extend_lock(self, key: str, duration_ms: int) -> bool:
        """Let a lock expire that time from now; False: it is not held, or not by this holder."""
        return key in self.extend_locks([_checked(key)], duration_ms)

    def release_lock(self, key: str) -> bool:
        """Release a lock; False: this holder did not hold it any more."""
        return key in self.release_locks([_checked(key)])

    def check_lock(self, key: str) -> LockDefinition | None:
        """Return the lock of a key if somebody holds it."""
        with self._database.autocommit_read() as session:
            return session.work_locks.held([_checked(key)]).get(key)

    # --- several in one statement ---

    def acquire_locks(self, keys: Mapping[str, LockMetaData | None], duration_ms: int) -> set[str]:
        """Acquire those of these locks that nobody holds; return their keys."""
        _check_duration(duration_ms)
        with self._database.autocommit() as session:
            return session.work_locks.acquire(keys, self.holder, duration_ms)

    def extend_locks(self, keys: Sequence[str], duration_ms: int) -> set[str]:
        _check_duration(duration_ms)
        with self._database.autocommit() as session:
            return session.work_locks.extend(keys, self.holder, duration_ms)

    def release_locks(self, keys: Sequence[str]) -> set[str]:
        with self._database.autocommit() as session:
            return session.work_locks.release(keys, self.holder)


def _checked(key: str) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= _MAX_KEY or not is_storable(key):
        raise ValueRefused(
            f"the key of a lock is a text of 1 to {_MAX_KEY} characters, no NUL among them and no "
            f"lone surrogate, not {key!r:.60}"
        )
    return key


def _check_duration(duration_ms: int) -> None:
    if type(duration_ms) is not int or not 0 < duration_ms <= _MAX_DURATION:
        raise ValueRefused(
            "the duration of a lock is a whole number of milliseconds, from 1 to "
            f"{_MAX_DURATION:,} (a day), not {duration_ms!r:.60}; extend a lock that is held longer"
        )

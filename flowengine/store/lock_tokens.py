"""Tokens of session locks: the lock that a server holds, and the database server that knows it.

A database that restarts has lost all locks, and none of their holders has died. So a token names
the *incarnation* of the database server too, and a lock of another incarnation is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Self


class LockState(Enum):
    """The state of the lock of a token, as the database knows it."""

    HELD = auto()  #: the session of its server is open
    FREE = auto()  #: the session has ended: its process died, or its connection was cut
    UNKNOWN = auto()  #: nothing follows from the locks of this database


@dataclass(frozen=True, slots=True)
class LockToken:
    """A session lock. Its key is drawn at random for each acquisition and is never used again."""

    key: int
    incarnation: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the token of a text; None if another version wrote it in another form."""
        key, _, incarnation = text.partition("@")
        return cls(int(key), incarnation) if key.isdecimal() and incarnation else None

    def __str__(self) -> str:
        return f"{self.key}@{self.incarnation}"

    def state(self, incarnation: str, *, is_free: bool) -> LockState:
        """Return the state of the lock, as a database of this incarnation sees it."""
        if incarnation != self.incarnation:
            return LockState.UNKNOWN
        return LockState.FREE if is_free else LockState.HELD

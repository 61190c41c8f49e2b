"""Facts about stored programs that this process has read, by database.

A program never changes, so what was derived from it once stays true. The memory belongs to the
database object and not to the module: two engines of one process share nothing but their rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from flowengine.program.nodes import Json
from flowengine.store import Session

_MAX_PROGRAMS = 128  #: of one database

T = TypeVar("T")


class ProgramMemory(Generic[T]):
    """A value, never None, that is derived from a program; kept for the programs read last."""

    def __init__(self, derive: Callable[[Json], T]) -> None:
        self._derive = derive
        self._by_database: WeakKeyDictionary[Any, OrderedDict[str, T]] = WeakKeyDictionary()

    def of(self, session: Session, program_hash: str) -> T:
        """Return the value of a stored program; the first time it is read."""
        known = self._by_database.setdefault(session.database, OrderedDict())
        found = known.get(program_hash)
        if found is None:
            found = known[program_hash] = self._derive(session.payloads.load_program(program_hash))
            while len(known) > _MAX_PROGRAMS:
                known.popitem(last=False)
        return found

"""Errors of the database."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError


class StoreError(FlowengineError):
    """The database cannot be used."""


@dataclass(eq=False, repr=False)
class DatabaseTooNew(StoreError):
    """The database was upgraded by a newer flowengine."""

    url: str
    revision: str
    head: str = ""  #: of this code
    lowest: str = ""  #: of the code that the schema needs; empty: the database does not say

    def __str__(self) -> str:
        if not self.lowest:
            why = "which this flowengine does not know: a newer version upgraded it"
        else:
            why = (
                f"which needs a flowengine of revision {self.lowest} or later, and this one is of "
                f"{self.head}: a newer version removed from it something that this one uses"
            )
        return (
            f"the database {self.url} has schema revision {self.revision!r}, {why}; "
            "upgrade flowengine here too"
        )


@dataclass(eq=False, repr=False)
class DatabaseTooOld(StoreError):
    """The database needs an upgrade of its schema."""

    url: str
    revision: str
    head: str

    def __str__(self) -> str:
        return (
            f"the database {self.url} has schema revision {self.revision or 'none'!r}, this "
            f"flowengine needs {self.head!r}: run `flowengine db upgrade`, or `flowengine -A APP "
            "db upgrade` if a Celery app names the database"
        )


@dataclass(eq=False, repr=False)
class DatabaseReadOnly(StoreError):
    """The database cannot be written."""

    url: str
    _text = (
        "the database {url} cannot be written: give this user write permission for the "
        "file and its directory, or set another database in FLOWENGINE_DATABASE_URL"
    )


@dataclass(eq=False, repr=False)
class DatabaseBusy(StoreError):
    """Another transaction has locked the SQLite database."""

    url: str
    _text = (
        "the database {url} is locked by another transaction; if you start a run in your "
        "own transaction, call flowengine.default_engine() before you begin it"
    )

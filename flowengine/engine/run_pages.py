"""`engine.list`: runs by filter, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from flowengine.engine.run_waits import waits_of_runs
from flowengine.engine.waits_for import WaitKind, WaitsFor
from flowengine.errors import InvalidFilter
from flowengine.store import Session, Store
from flowengine.store.run_lists import Page, Place, RunFilter
from flowengine.store.runs import StoredRun

T = TypeVar("T")
_SCANNED = 1_000  #: entries of an index that are looked at for one page with several filters
PAGE = 500  #: runs that an action on many reads together
_PORTION = 100  #: runs whose waits are read together


class RunPage(list[T]):
    """The runs of a page. `cursor` continues the list behind it; None: there are no more.

    A page may have fewer runs than asked for, and still a cursor: a limited number of runs is
    looked at for each page.
    """

    cursor: str | None = None


def read_page(
    session: Session, wanted: RunFilter, kind: WaitKind | None, after: str | None, limit: int
) -> tuple[list[StoredRun], dict[str, WaitsFor], str | None]:
    """Return the runs of a page, what those that have not ended wait for, and the cursor."""
    place = None if after is None else _place(after)
    if kind is None:
        page = session.lists.page(wanted, place, limit, max(_SCANNED, limit + 1))
        rows = session.lists.load(page.ids)
        return rows, waits_of_runs(session, rows), _cursor(page)
    return _waiting(session, wanted, kind, place, limit)


def read_all(database: Store, wanted: RunFilter, kind: WaitKind | None) -> Iterator[list[str]]:
    """Yield the ids of all these runs, a page at a time; each is read in its own transaction."""
    place: Place | None = None
    while True:
        with database.read() as session:
            if kind is None:
                page = session.lists.page(wanted, place, PAGE, max(_SCANNED, PAGE + 1))
                ids, last = page.ids, page.last
            else:
                rows, _, cursor = _waiting(session, wanted, kind, place, PAGE)
                ids, last = [row.id for row in rows], None if cursor is None else _place(cursor)
        yield ids
        if last is None:
            return
        place = last


def _waiting(
    session: Session, wanted: RunFilter, kind: WaitKind, place: Place | None, limit: int
) -> tuple[list[StoredRun], dict[str, WaitsFor], str | None]:
    """Return the runs that wait for something of that kind: their waits are derived, not stored."""
    found: list[StoredRun] = []
    waits: dict[str, WaitsFor] = {}
    for _ in range(_SCANNED // _PORTION):
        page = session.lists.page(wanted, place, _PORTION, _SCANNED)
        rows = session.lists.load(page.ids)
        of_rows = waits_of_runs(session, rows)
        for row in rows:
            if row.id in of_rows and of_rows[row.id].kind == kind:
                found.append(row)
                waits[row.id] = of_rows[row.id]
                if len(found) == limit:
                    return found, waits, f"{row.created}-{row.id}"
        if page.last is None:
            return found, waits, None
        place = page.last
    return found, waits, _cursor(Page([], place))


def _cursor(page: Page) -> str | None:
    return None if page.last is None else f"{page.last.created}-{page.last.id}"


def _place(cursor: str) -> Place:
    created, _, run_id = str(cursor).partition("-")
    if not created.isdecimal() or not run_id:
        raise InvalidFilter.of("cursor", cursor, "the cursor of an earlier page")
    return Place(int(created), run_id)

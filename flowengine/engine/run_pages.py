"""`engine.list`: runs by filter, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from flowengine.engine.run_waits import waits_of_runs
from flowengine.engine.waits_for import WaitKind, WaitsFor
from flowengine.errors import InvalidFilter
from flowengine.store import Session
from flowengine.store.run_lists import ALL_STATES, Page, Place, RunFilter
from flowengine.store.runs import StoredRun

T = TypeVar("T")
_SCANNED = 1_000  #: entries of an index that are looked at for one page with several filters
_PORTION = 100  #: runs whose waits are read together
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


class RunPage(list[T]):
    """The runs of a page. `cursor` continues the list behind it; None: there are no more.

    A page may have fewer runs than asked for, and still a cursor: a limited number of runs is
    looked at for each page.
    """

    cursor: str | None = None


def run_filter(session: Session, tenant: str | None, **given: Any) -> RunFilter:
    """Check the filters of a list; raise InvalidFilter."""
    states = _listed("state", given.pop("state", None))
    for state in states:
        if state not in ALL_STATES:
            raise InvalidFilter.of("state", state, f"one of {', '.join(ALL_STATES)}")
    labels = given.pop("label", None) or {}
    is_text = isinstance(labels, Mapping) and all(
        isinstance(part, str) for item in labels.items() for part in item
    )
    if not is_text:
        raise InvalidFilter.of("label", labels, "a map of text to text")
    times: dict[str, Any] = {
        name: _time(name, given.pop(name, None))
        for name in ("created_after", "created_before", "finished_after", "finished_before")
    }
    workflow, named = given.pop("workflow", None), given.pop("named", None)
    workflows: list[str] | None = None
    if workflow:
        workflows = _listed("workflow", workflow)
    if named:
        of_name = _named(session.lists.workflow_names(), named)
        workflows = [n for n in workflows if n in of_name] if workflows is not None else of_name
    prefix = given.pop("id_prefix", "") or ""
    if not isinstance(prefix, str) or set(prefix) - set("0123456789abcdef"):
        raise InvalidFilter.of("id_prefix", prefix, "the first digits of an id: 0-9 and a-f")
    server = given.pop("server", None)
    if not isinstance(given.get("agents", False), bool):
        raise InvalidFilter.of("agents", given["agents"], "True or False")
    return RunFilter(
        states=states,
        workflows=workflows,
        labels=dict(labels),
        id_prefix=prefix,
        boot_ids=None if server is None else _boots(session, server),
        tenant=tenant,
        **times,
        **given,
    )


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


def _listed(name: str, value: Any) -> list[str]:
    if value is None or value == "":
        return []
    values = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(one, str) for one in values):
        raise InvalidFilter.of(name, value, "text, or a list of texts")
    return values


def _time(name: str, value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return round((value - _EPOCH) / timedelta(milliseconds=1))
    expected = "a datetime with a time zone, or milliseconds since the epoch"
    raise InvalidFilter.of(name, value, expected)


def _named(names: Sequence[str], name: str) -> list[str]:
    """Return the workflows of a qualified or short name; if there are none, of a part of one."""
    whole = [one for one in names if one == name or one.endswith(f".{name}")]
    return whole or [one for one in names if name.lower() in one.lower()]


def _boots(session: Session, server: str) -> list[str]:
    found = [
        one.boot_id
        for one in session.servers.alive()
        if server in (one.server_name, one.uuid, one.boot_id)
    ]
    if not found:
        raise InvalidFilter.of("server", server, "the name or id of a server that is registered")
    return found

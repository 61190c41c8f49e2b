"""The log of actions: those on all runs, and operations on workers, workflows and limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from flowengine.engine.filter_values import age_of, number_of_rows
from flowengine.engine.run_filters import is_named
from flowengine.errors import InvalidFilter, PayloadUnreadable
from flowengine.store import Store, codec
from flowengine.store.actions import StoredAction
from flowengine.tenants import visible_tenant

_PORTION = 500  # actions that one statement reads
_SCANNED = 5_000  # that are looked at for one page
_UNREADABLE = "unreadable"
#: Options that have a field of their own, and those that are values of the run.
_UNLISTED = ("step", "from_step", "workflow", "result", "inputs")


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """Something that somebody has done to a run, a worker, a workflow or a limit."""

    id: str
    at: int  #: milliseconds since the epoch
    actor: str
    action: str  #: cancel, hold, release, retry, skip, complete, fork; or that of an operation
    run: str  #: its id; empty: an operation, which is of no run
    workflow: str  #: of the run, or that was operated on
    #: The step of the run; the worker, the workflow or the key of an operation.
    subject: str
    reason: str
    options: dict[str, Any] = field(default_factory=dict)
    tenant: str = ""  #: of the run


class ActionPage(list[ActionInfo]):
    """Actions, the newest first. `cursor` continues behind them; None: there are no more."""

    cursor: str | None = None


class ActionLog:
    """Reads the actions in one database; an app that is bound to a tenant, those of its runs."""

    def __init__(self, database: Store, bound: str) -> None:
        self._database, self._bound = database, bound

    def list(
        self,
        *,
        newer_than: timedelta | float | None = None,
        older_than: timedelta | float | None = None,
        actor: str | None = None,
        action: str | Collection[str] | None = None,
        workflow: str | None = None,
        tenant: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> ActionPage:
        """Return the newest actions that all these filters admit; raises InvalidFilter.

        `actor` is a name, with or without its kind: "eva" or "person:eva". `workflow` is a
        qualified or short name. The `cursor` of a page continues behind it; a page may have fewer
        actions than `limit`, and a cursor: a limited number of them is looked at. Refused actions,
        and those on runs that were purged, are not listed. Ages are those of the actions.
        """
        limit, tenant = number_of_rows("limit", limit), visible_tenant(self._bound, tenant)
        kinds = {action} if isinstance(action, str) else set(action or ())
        after = None if cursor is None else _place(cursor)
        found = ActionPage()
        with self._database.read() as session:
            now = session.now()
            since = 0 if newer_than is None else now - age_of("newer_than", newer_than)
            until = now + 1 if older_than is None else now - age_of("older_than", older_than)
            for _ in range(_SCANNED // _PORTION):
                rows = session.actions.page(since, until, after, _PORTION)
                for row in rows:
                    if len(found) == limit:
                        found.cursor = None if after is None else f"{after[0]}-{after[1]}"
                        return found
                    after, info = (row.created, row.id), _info(row)
                    if (
                        (tenant is None or (row.run_id and info.tenant == tenant))
                        and (actor is None or actor in (info.actor, info.actor.partition(":")[2]))
                        and (not kinds or info.action in kinds)
                        and (not workflow or is_named(info.workflow, workflow))
                    ):
                        found.append(info)
                if len(rows) < _PORTION:
                    return found
        found.cursor = None if after is None else f"{after[0]}-{after[1]}"
        return found


def _info(row: StoredAction) -> ActionInfo:
    try:
        about = codec.load(row.payload)
    except (PayloadUnreadable, ValueError):
        about = {"kind": _UNREADABLE}
    options = about.get("options") or {}
    subject = about.get("subject") or options.get("step") or options.get("from_step") or ""
    workflow = row.workflow or options.get("workflow") or ""
    return ActionInfo(
        row.id,
        row.created,
        row.actor or "",
        str(about.get("kind", "")),
        row.run_id,
        workflow,
        str(subject),
        row.reason or "",
        {name: value for name, value in options.items() if name not in _UNLISTED},
        row.tenant or "",
    )


def _place(cursor: str) -> tuple[int, str]:
    created, _, action_id = str(cursor).partition("-")
    if not created.isdecimal() or not action_id:
        raise InvalidFilter.of("cursor", cursor, "the cursor of an earlier page")
    return int(created), action_id

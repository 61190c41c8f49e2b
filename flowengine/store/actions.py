"""The actions of people over all runs, newest first; and operations, which are of no run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flowengine.store import codec
from flowengine.store.parts import Part, statement
from flowengine.store.tables import FACT_IS_ACTION

OPERATION = "Operation"  #: the kind of the fact of an operation
_PAGE = (
    "SELECT f.id, f.created, f.run_id, f.actor, f.reason, f.payload, r.workflow, r.tenant "
    "FROM flowengine_fact f LEFT JOIN flowengine_run r ON r.id = f.run_id "
    f"WHERE f.{FACT_IS_ACTION} AND f.created >= :since AND f.created < :until{{}} "
    "ORDER BY f.created DESC, f.id DESC LIMIT :most"
)
_FIRST = statement(_PAGE.format(""))
# The first condition follows from the second, but can use the index.
_BEHIND = statement(
    _PAGE.format(" AND f.created <= :created AND (f.created < :created OR f.id < :id) ")
)
_ADD = statement(
    "INSERT INTO flowengine_fact (id, run_id, kind, payload, actor, reason, taken_in, created) "
    "VALUES (:id, :run, :kind, :payload, :actor, :reason, true, :now) ON CONFLICT DO NOTHING"
)


class StoredAction(NamedTuple):
    id: str
    created: int
    run_id: str  #: empty: of an operation
    actor: str | None
    reason: str | None
    payload: str
    workflow: str | None  #: of the run
    tenant: str | None


class Actions(Part):
    def page(
        self, since: int, until: int, after: tuple[int, str] | None, most: int
    ) -> list[StoredAction]:
        """Return the next actions of a time, the newest first, behind the place of one."""
        values: dict[str, Any] = {"since": since, "until": until, "most": most}
        query = _FIRST
        if after is not None:
            query, values["created"], values["id"] = _BEHIND, *after
        return [StoredAction(*row) for row in self._session.execute(query, values)]

    def add(
        self,
        action_id: str,
        action: str,
        *,
        run: str = "",
        subject: str = "",
        options: Mapping[str, Any] | None = None,
        actor: str,
        reason: str = "",
        now: int,
    ) -> None:
        """Record what somebody has done to a run, or without one to the subject.

        Nothing is left to be done about it: the caller has done it, in this transaction.
        """
        payload = {"kind": action, "subject": subject, "options": dict(options or {})}
        values = {
            "id": action_id,
            "run": run,
            "kind": "Action" if run else OPERATION,
            "payload": codec.dump_value(payload),
            "actor": actor,
            "reason": reason or None,
            "now": now,
        }
        self._session.execute(_ADD, values)

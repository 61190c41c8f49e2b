"""The inbox of a run: facts and recorded reports that the evaluator has not consumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flowengine.evaluator import Step, TaskDefinition
from flowengine.evaluator.activation_reports import from_json
from flowengine.evaluator.triggers import Failed, Lost, Outcome, Report, Succeeded
from flowengine.store import codec
from flowengine.store.backend import in_dialect
from flowengine.store.endings import ACTIVATED
from flowengine.store.parts import Part, statement
from flowengine.store.records import STEP_COLUMNS, step_from
from flowengine.store.tables import FACT_IS_WAITING

# A run that was purged is told nothing: nobody would take the fact in.
_ADD_FACT = statement(
    "INSERT INTO flowengine_fact (id, run_id, kind, payload, taken_in, created, actor, reason, "
    "dedupe_key) SELECT :id, id, :kind, :payload, false, :now, :actor, :reason, :key "
    "FROM flowengine_run WHERE id = :run ON CONFLICT DO NOTHING"
)
# Nothing of a refused action is stored that would make it count as done.
_FORGET = statement(
    "UPDATE flowengine_fact SET dedupe_key = NULL, "
    "kind = CASE kind WHEN 'Action' THEN 'Refused' ELSE kind END WHERE id IN :ids",
    "ids",
)
_FACTS = (
    "SELECT id, kind, payload FROM flowengine_fact WHERE run_id = %s AND NOT taken_in "
    "AND kind <> %s ORDER BY created, id LIMIT %s"
)
# A loose index scan, one run after the other: a run may have thousands of facts.
_NEXT = statement(
    f"WITH RECURSIVE waiting(run_id) AS (SELECT min(run_id) FROM flowengine_fact "
    f"WHERE {FACT_IS_WAITING} AND run_id > :after UNION ALL "
    f"SELECT (SELECT min(run_id) FROM flowengine_fact WHERE {FACT_IS_WAITING} "
    "AND run_id > waiting.run_id) FROM waiting WHERE waiting.run_id IS NOT NULL) "
    # A subquery is evaluated run by run, until one is found: of a join the planner may begin with
    # all running runs of the tenant, and compare each with each.
    "SELECT run_id FROM waiting WHERE (SELECT r.tenant = :tenant "
    "AND r.finished IS NULL FROM flowengine_run r WHERE r.id = waiting.run_id) LIMIT 1"
)
_REPORT = (
    *("uuid", "try_number", "losses", "outcome", "result", "error", "position", "limits"),
    "created",
)
_REPORTS = (
    f"SELECT {', '.join(f't.{name}' for name in _REPORT)}, "
    f"{', '.join(f's.{name}' for name in STEP_COLUMNS)}, s.superseded "
    "FROM flowengine_task t {REPORTED_INDEX} JOIN flowengine_step s ON s.id = t.step_id "
    "WHERE t.run_id = %s AND t.state IN ('completed', 'failed') AND NOT t.taken_in "
    # Unordered: to find the first of thousands in order, all would be sorted each time.
    "LIMIT %s"
)


# Also part of transactions of callers, whose sessions take plain statements.
_KEEP_FACT = (
    "INSERT INTO flowengine_fact (id, run_id, kind, payload, taken_in, created) "
    "VALUES (%s, %s, %s, %s, true, %s) ON CONFLICT DO NOTHING RETURNING id"
)
_RELEASE_FACT = statement("UPDATE flowengine_fact SET taken_in = false WHERE id = :id")


class Inbox(Part):
    """Reads and fills inboxes."""

    def keep_fact(
        self, fact_id: str, run_id: str, kind: str, payload: Mapping[str, Any], now: int
    ) -> None:
        """Store a fact for later: nobody evaluates it before it is released."""
        body = codec.dump_value(dict(payload))
        self._session.rows(_KEEP_FACT, (fact_id, run_id, kind, body, now))

    def release_fact(self, fact_id: str) -> None:
        """Let a stored fact be evaluated."""
        self._session.execute(_RELEASE_FACT, {"id": fact_id})

    def add_fact(
        self,
        fact_id: str,
        run_id: str,
        kind: str,
        payload: Mapping[str, Any],
        now: int,
        key: str | None = None,
    ) -> None:
        """Add a fact of a run; idempotent by its id, and by its key among the facts of the run."""
        values = {"id": fact_id, "run": run_id, "kind": kind, "now": now, "key": key}
        about = {name: payload.get(name) or None for name in ("actor", "reason")}
        self._session.execute(
            _ADD_FACT, {**values, **about, "payload": codec.dump_value(dict(payload))}
        )

    def forget_refused(self, fact_ids: Collection[str]) -> None:
        """Free the keys of refused actions, which may be sent again, and list them no more."""
        self._session.execute(_FORGET, {"ids": list(fact_ids)})

    def facts(
        self, run_id: str, limit: int, *, without: str = ""
    ) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the id, kind and payload of unconsumed facts, except for one kind."""
        rows = self._session.rows(_FACTS, (run_id, without, limit))
        return [(fact_id, kind, codec.load(payload)) for fact_id, kind, payload in rows]

    def take_share(self, tenant: str, shares: int) -> bool:
        """Take one of a tenant's shares of evaluation, until the end of the transaction."""
        session = self._session
        scope = session.database.scope  # all schemas of a database share its advisory locks
        return any(
            session.dialect.try_lock(session.executor, f"evaluation:{scope}:{number}:{tenant}")
            for number in range(shares)
        )

    def next_waiting(self, tenant: str, after: str) -> str | None:
        """Return the next run of a tenant that has unconsumed facts; after the last the first."""
        for run_id in (after, ""):
            found = self._session.execute(_NEXT, {"tenant": tenant, "after": run_id}).scalar()
            if found is not None:
                return str(found)
        return None

    def reports(self, run_id: str, limit: int) -> list[tuple[Report, Step | None]]:
        """Return recorded reports that the evaluator has not consumed, each with its step.

        None in place of a step that a retry has superseded: the run has another row of its key.
        """
        text = in_dialect(_REPORTS, self._session.dialect)
        rows = self._session.rows(text, (run_id, limit))
        found: list[tuple[Report, Step | None]] = []
        for row in sorted(rows, key=lambda row: row[6]):
            task_id, try_number, losses, outcome, result, error = row[:6]
            step = step_from(row[len(_REPORT) : -1])
            task = TaskDefinition(task_id, step.facet_name, "", run_id, "", step.id)
            task.step_key, task.step_path = step.key, step.path
            task.try_number, task.losses, task.limits, task.created = try_number, losses, *row[7:9]
            report = Report(task, _outcome(outcome, result, error))
            found.append((report, None if row[-1] else step))
        return found


def _outcome(outcome: str, result: str | None, error: str | None) -> Outcome:
    if outcome == "succeeded":
        return Succeeded(codec.attributes(result))
    if outcome == ACTIVATED:
        return from_json(codec.load(result))
    details = codec.load(error)
    if outcome == "lost":
        return Lost(details["message"])
    return Failed(details, retry=outcome == "failed")

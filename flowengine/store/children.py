"""Child runs that a retried step may take up: read them, and give one to the new step."""

from __future__ import annotations

from typing import NamedTuple

from flowengine.store import codec
from flowengine.store.commits import CommitPlan
from flowengine.store.parts import Part
from flowengine.store.runs import StoredRun

# By the generation of the step: two child runs may have begun in the same millisecond.
_LAST = (
    f"SELECT {', '.join(f'r.{name}' for name in StoredRun._fields)}, s.id, s.state, s.updated "
    "FROM flowengine_run r JOIN flowengine_step s ON s.id = r.parent_step_id "
    "WHERE r.parent_run_id = %s AND r.waiting_step_key = %s "
    "ORDER BY s.generation DESC, r.created DESC, r.id LIMIT 1"
)
_REFER = (
    "INSERT INTO flowengine_reference (run_id, hash) VALUES (%s, %s) "
    "ON CONFLICT DO NOTHING RETURNING hash"
)
_GIVE = "UPDATE flowengine_run SET parent_step_id = %s WHERE id = %s RETURNING id"


class LastChild(NamedTuple):
    """A child run, and the step that waits for it or has waited."""

    run: StoredRun
    step_id: str
    step_state: str
    step_updated: int


class Children(Part):
    def last(self, parent_run_id: str, step_key: str) -> LastChild | None:
        """Return the last run that any generation of a step has waited for."""
        rows = self._session.rows(_LAST, (parent_run_id, step_key))
        return LastChild(StoredRun(*rows[0][:-3]), *rows[0][-3:]) if rows else None

    def report_end(self, rows: CommitPlan) -> None:
        """Write the facts for parents, and the references of these to large values."""
        for fact in rows.parent_facts:
            payload = codec.load(fact.payload)
            self._session.inbox.add_fact(fact.id, fact.to_run, fact.kind, payload, fact.created)
        for reference in sorted(rows.references):
            self._session.rows(_REFER, (reference.to_run, reference.hash))

    def give(self, run_id: str, step_id: str) -> None:
        """Let another generation of its step wait for a run, which is locked."""
        self._session.rows(_GIVE, (step_id, run_id))

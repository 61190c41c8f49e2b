"""Invariants between tables, as queries for the rows that violate them.

The queries read whole tables: they are for an operator and for tests, not for every day. Each is
one statement, so it sees one state of the database while runs go on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flowengine.evaluator.states import ObjectType, RunState, StepState, TaskState
from flowengine.program.standard import WAITS
from flowengine.store.agent_invariants import AGENT_INVARIANTS, Invariant
from flowengine.store.parts import Part, quoted
from flowengine.store.purge import MARKER
from flowengine.store.tables import FACT_IS_WAITING, OUTBOX_IS_DUE, TASK_IS_REPORTED, TIMER_IS_SET

_FINAL = quoted(RunState.FINAL)
_OPEN_TASK = quoted({*TaskState.OPEN, "waiting", "held"})
_AT_EVENT = f"s.state = '{StepState.EVENT_TRANSMIT}' AND NOT s.superseded"
_NO_RUN = (
    "SELECT DISTINCT t.run_id, '{table}', '' FROM flowengine_{table} t "
    "LEFT JOIN flowengine_run r ON r.id = t.run_id LEFT JOIN flowengine_lock l "
    f"ON l.name = '{MARKER}' || t.run_id WHERE r.id IS NULL AND l.name IS NULL"
)
_OF_RUNS = (
    *("step", "task", "event", "fact", "history", "timer", "join", "label", "reference"),
    "exchange",
)
#: References of the result cache, and of cards, have the id of an entry, the owner of a card or its
#: id in place of a run's.
_NO_ENTRY = (
    " AND NOT EXISTS (SELECT 1 FROM flowengine_cache c WHERE c.id = t.run_id) "
    "AND NOT EXISTS (SELECT 1 FROM flowengine_card c WHERE c.agent_turn_id = t.run_id) "
    "AND NOT EXISTS (SELECT 1 FROM flowengine_card c WHERE c.card_id = t.run_id)"
)
_EXCEPT = {"reference": _NO_ENTRY, "fact": " AND t.run_id <> ''"}  # an operation is of no run


INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "an open run has something outstanding",
        "the run waits, and nothing will ever advance it",
        "SELECT r.id, r.workflow, '' FROM flowengine_run r "
        f"WHERE r.state NOT IN ({_FINAL}) AND r.open_steps = 0 AND r.updated < %(old)s "
        f"AND NOT EXISTS (SELECT 1 FROM flowengine_fact f WHERE f.run_id = r.id "
        f"AND {FACT_IS_WAITING}) AND NOT EXISTS (SELECT 1 FROM flowengine_task t "
        f"WHERE t.run_id = r.id AND {TASK_IS_REPORTED})",
        "advance",
    ),
    Invariant(
        "open_steps counts the steps at their event",
        "the run would end too early, or never",
        "SELECT r.id, r.workflow, '' FROM flowengine_run r "
        f"WHERE r.state NOT IN ({_FINAL}) AND r.updated < %(old)s AND r.open_steps <> "
        f"(SELECT count(*) FROM flowengine_step s WHERE s.run_id = r.id AND {_AT_EVENT})",
    ),
    Invariant(
        "a step at its event has a task, a timer or a mailbox",
        "nothing will ever answer the step",
        "SELECT s.run_id, s.path, s.id FROM flowengine_step s "
        "JOIN flowengine_run r ON r.id = s.run_id "
        f"WHERE {_AT_EVENT} AND r.state NOT IN ({_FINAL}) AND s.updated < %(old)s "
        f"AND s.facet_name NOT IN ({quoted(WAITS)}) AND NOT EXISTS (SELECT 1 "
        "FROM flowengine_task t WHERE t.run_id = s.run_id AND t.step_id = s.id "
        f"AND t.state <> '{TaskState.CANCELED}')",
    ),
    Invariant(
        "an ended run has no open task",
        "a worker would execute a step whose result nobody takes",
        "SELECT t.run_id, t.step_path, t.step_id FROM flowengine_task t "
        "JOIN flowengine_run r ON r.id = t.run_id "
        f"WHERE t.state IN ({_OPEN_TASK}) AND r.state IN ({_FINAL}) AND t.updated < %(old)s",
        "cancel",
    ),
    Invariant(
        "an open task has a step that waits for it",
        "a worker would execute a step that has ended",
        "SELECT t.run_id, t.step_path, t.step_id FROM flowengine_task t "
        "LEFT JOIN flowengine_step s ON s.id = t.step_id "
        f"WHERE t.state IN ({_OPEN_TASK}) AND t.updated < %(old)s "
        f"AND (s.id IS NULL OR s.superseded OR s.state <> '{StepState.EVENT_TRANSMIT}')",
        "cancel",
    ),
    Invariant(
        "a report is evaluated",
        "a try has ended, and its run has not gone on",
        "SELECT t.run_id, t.step_path, t.uuid FROM flowengine_task t "
        f"WHERE {TASK_IS_REPORTED} AND t.updated < %(old)s AND NOT EXISTS (SELECT 1 "
        "FROM flowengine_join j WHERE j.id = t.join_id AND j.remaining > 0)",
        "advance",
    ),
    Invariant(
        "a fact is consumed",
        "something happened to the run that it has not taken in",
        f"SELECT f.run_id, f.kind, f.id FROM flowengine_fact f WHERE {FACT_IS_WAITING} "
        "AND f.created < %(old)s",
        "advance",
    ),
    Invariant(
        "a join counter counts its unreported tasks",
        "the step behind a loop would begin too early, or never",
        "SELECT j.run_id, '', j.id FROM flowengine_join j JOIN flowengine_run r ON r.id = j.run_id "
        f"WHERE r.state NOT IN ({_FINAL}) AND j.updated < %(old)s AND j.remaining <> "
        "(SELECT count(*) FROM flowengine_task t WHERE t.run_id = j.run_id AND t.join_id = j.id "
        f"AND t.state IN ({_OPEN_TASK}))",
        "advance",
    ),
    Invariant(
        "a due timer has fired",
        "a step sleeps longer than it should",
        "SELECT t.run_id, t.kind, t.id FROM flowengine_timer t "
        f"WHERE {TIMER_IS_SET} AND t.due < %(old)s",
        "fire",
    ),
    Invariant(
        "a timer has a step that waits",
        "it would fire for nobody",
        "SELECT t.run_id, t.kind, t.id FROM flowengine_timer t "
        "JOIN flowengine_step s ON s.id = t.step_id "
        f"WHERE {TIMER_IS_SET} AND s.state IN ({quoted(StepState.FINAL)}) AND s.updated < %(old)s "
        "AND t.created < %(old)s",
    ),
    Invariant(
        "a step does not wait for a run that has ended",
        "the end of the child run was not reported to its parent",
        "SELECT c.parent_run_id, c.id, c.parent_step_id FROM flowengine_run c "
        "JOIN flowengine_step s ON s.id = c.parent_step_id "
        f"WHERE c.waiting_step_key IS NOT NULL AND c.state IN ({_FINAL}) AND {_AT_EVENT} "
        "AND c.updated < %(old)s AND NOT EXISTS (SELECT 1 FROM flowengine_fact f "
        f"WHERE f.run_id = c.parent_run_id AND {FACT_IS_WAITING})",
        "answer",
    ),
    Invariant(
        "the history has every revision",
        "a commit of the run left no entry",
        "SELECT r.id, r.workflow, '' FROM flowengine_run r WHERE r.revision <> "
        "(SELECT count(*) FROM flowengine_history h WHERE h.run_id = r.id)",
    ),
    Invariant(
        "an ended run has the time of its end, an open one has none",
        "lists and retention would treat it wrongly",
        "SELECT r.id, r.state, '' FROM flowengine_run r "
        f"WHERE (r.finished IS NULL) = (r.state IN ({_FINAL}))",
    ),
    Invariant(
        "a run has its program",
        "the run cannot be evaluated",
        "SELECT r.id, r.program_hash, '' FROM flowengine_run r "
        "LEFT JOIN flowengine_program p ON p.hash = r.program_hash WHERE p.hash IS NULL",
    ),
    Invariant(
        "a reference has its value",
        "steps that read the value fail",
        "SELECT f.run_id, f.hash, f.hash FROM flowengine_reference f "
        "LEFT JOIN flowengine_payload p ON p.hash = f.hash WHERE p.hash IS NULL",
    ),
    Invariant(
        "a delivery is due or done",
        "the webhook or a signal refused it too often; `flowengine doctor --repair` tries again",
        f"SELECT o.run_id, o.sink, '' FROM flowengine_outbox o WHERE NOT ({OUTBOX_IS_DUE})",
        "deliver",
    ),
    *AGENT_INVARIANTS,
    *(
        Invariant(
            f"rows of {table} belong to a run",
            "they are left of a run that was removed by hand",
            _NO_RUN.format(table=table) + _EXCEPT.get(table, ""),
            "purge",
        )
        for table in _OF_RUNS
    ),
)
assert ObjectType.MAILBOX  # a mailbox is not at an event: its state is one of its own


class Violation(NamedTuple):
    run_id: str
    subject: str
    row_id: str


class InvariantQueries(Part):
    def violations(self, invariant: Invariant, old: int, most: int) -> list[Violation]:
        """Return up to `most` violations of an invariant by rows written before `old`."""
        text = f"{invariant.query} LIMIT %(most)s"
        values: dict[str, Any] = {"old": old, "most": most}
        if "%(old)s" not in text:
            del values["old"]
        return [Violation(*row) for row in self._session.rows(text, values)]

    def deliver_again(self, now: int) -> None:
        """Make deliveries due that were given up."""
        text = f"UPDATE flowengine_outbox SET due = %s WHERE NOT ({OUTBOX_IS_DUE}) RETURNING 1"
        self._session.rows(text, (now,))

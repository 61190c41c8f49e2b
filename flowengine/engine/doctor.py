"""Doctor: find violated invariants between tables, and repair through evaluator and recovery."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from flowengine.errors import UnknownRun
from flowengine.evaluator.states import RunState
from flowengine.store.agent_invariants import Invariant
from flowengine.store.invariants import INVARIANTS, Violation
from flowengine.store.shown_values import readable

if TYPE_CHECKING:
    from flowengine.engine.engine import Engine

_MOST = 1_000  #: violations of one invariant that are found at once


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A violated invariant, with the rows that violate it."""

    invariant: str
    explanation: str
    violations: Sequence[Violation]  #: up to 1,000
    repair: str  #: what `repair=True` does; empty: a person must look
    is_repaired: bool = False  #: the invariant holds again


class Doctor:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check(
        self, *, repair: bool = False, older_than: timedelta = timedelta(minutes=1)
    ) -> list[Diagnosis]:
        """Return the violated invariants of all runs; with `repair`, restore those that it can.

        Rows that were written less than `older_than` ago are left out: workers and recovery may be
        about to handle them. A repair writes no state by itself: it reports to the evaluator, or
        calls a job of recovery.
        """
        found = []
        for invariant in INVARIANTS:
            violations = self._violations(invariant, older_than)
            if not violations:
                continue
            is_repaired = False
            if repair and invariant.repair:
                _REPAIRS[invariant.repair](self._engine, violations)
                is_repaired = not self._violations(invariant, older_than)
            found.append(
                Diagnosis(
                    invariant.name,
                    invariant.explanation,
                    violations,
                    REPAIRS.get(invariant.repair, ""),
                    is_repaired,
                )
            )
        return found

    def _violations(self, invariant: Invariant, older_than: timedelta) -> list[Violation]:
        with self._engine.database.read() as session:
            old = session.now() - round(older_than / timedelta(milliseconds=1))
            return session.checks.violations(invariant, old, _MOST)


def _advance(engine: Engine, violations: Sequence[Violation]) -> None:
    for run_id in {violation.run_id for violation in violations}:
        engine.advance(run_id)


def _cancel(engine: Engine, violations: Sequence[Violation]) -> None:
    by_run: defaultdict[str, set[str]] = defaultdict(set)
    for violation in violations:
        by_run[violation.run_id].add(violation.row_id)
    for run_id, steps in by_run.items():
        with engine.database.write() as session:
            session.runs.lock(run_id)
            session.reports.cancel_open(run_id, sorted(steps), session.now())
        try:
            engine.advance(run_id)
        except UnknownRun:  # its rows are repaired as those of a removed run
            continue


def _fire(engine: Engine, violations: Sequence[Violation]) -> None:
    from flowengine.engine.recovery import fire_due_timers

    fire_due_timers(engine)
    _advance(engine, violations)


def _answer(engine: Engine, violations: Sequence[Violation]) -> None:
    """Report the end of a child run to its parent, as its last commit should have."""
    for violation in violations:
        child = engine.queries.get_of(None, violation.subject)
        if child.state == RunState.COMPLETED:
            engine.continue_step(violation.row_id, readable(child.outputs) or {})
        else:
            engine.fail_step(violation.row_id, child.error_text or f"run {child.id} {child.state}")


def _purge(engine: Engine, violations: Sequence[Violation]) -> None:
    engine.purger.remove_orphans(sorted({violation.run_id for violation in violations}))


def _deliver(engine: Engine, violations: Sequence[Violation]) -> None:
    with engine.database.write() as session:
        session.checks.deliver_again(session.now())


def _recover(engine: Engine, violations: Sequence[Violation]) -> None:
    """Run the jobs of layers above: they advance the agents."""
    for job in list(engine.recovery_jobs.values()):
        job()


_REPAIRS: Mapping[str, Callable[[Engine, Sequence[Violation]], None]] = {
    "advance": _advance,
    "cancel": _cancel,
    "fire": _fire,
    "answer": _answer,
    "purge": _purge,
    "deliver": _deliver,
    "recover": _recover,
}
REPAIRS: Mapping[str, str] = {
    "advance": "evaluates the runs",
    "cancel": "cancels and fences the tasks",
    "fire": "fires the timers and evaluates the runs",
    "answer": "reports the end of the child runs to their parents",
    "purge": "removes the rows",
    "deliver": "delivers again",
    "recover": "lets the agents take in their messages",
}

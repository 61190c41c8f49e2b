"""Steps that are run again, completed or skipped from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowengine.actors import Actor
from flowengine.engine import staging
from flowengine.engine.control import Control
from flowengine.engine.program_cache import ProgramCache
from flowengine.engine.result_validation import checked_answer
from flowengine.engine.singletons import check_reopening
from flowengine.engine.staging import CachedRun
from flowengine.errors import ActionRefused, UnknownRun, ValueRefused
from flowengine.evaluator import Missing, Step, renewal
from flowengine.evaluator.actions import ActionKind, why_refused
from flowengine.evaluator.call_statements import key_of_path
from flowengine.evaluator.failures import Refused
from flowengine.evaluator.records import row_key
from flowengine.evaluator.states import ObjectType, RunState
from flowengine.evaluator.triggers import Action
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program import Plan, Program
from flowengine.program.addresses import RowKind
from flowengine.program.limits import Limits
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store import Session, Store
from flowengine.store.commits import RunHeader


class Retries:
    def __init__(
        self, database: Store, control: Control, programs: ProgramCache, settings: Settings
    ) -> None:
        self._database, self._control, self._programs = database, control, programs
        self._value_limits = (settings.max_value_bytes, settings.max_json_depth)
        self._limits, self._tenant = Limits.of(settings), settings.tenant

    def retry(
        self,
        run_id: str,
        *,
        from_step: str | None = None,
        program: Program | Mapping[str, Any] | None = None,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> None:
        """Run the failed steps of a run again, and those that were skipped because of them.

        Steps that completed keep their results. With `from_step`, the path or id of a step, that
        step and every step that depends on it run again, in a run that has ended or goes on; tasks
        of their earlier generation are stopped, and late reports of them change nothing.
        With `program` the run moves to that program. Raises ActionRefused.
        """
        options = {} if from_step is None else {"from_step": from_step}
        prepared = None if program is None else self._programs.prepare(program)
        if prepared is not None:
            options["program"] = prepared[0]
        self._control.act(
            run_id,
            ActionKind.RETRY,
            actor=actor,
            reason=reason,
            options=options,
            key=key,
            program=prepared,
        )

    def steps_to_run(
        self,
        run_id: str,
        *,
        from_step: str | None = None,
        program: Program | Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Return the paths of the steps that such a retry runs again; raises ActionRefused."""
        options: dict[str, Json] = {} if from_step is None else {"from_step": from_step}
        with self._database.read() as session:
            head = session.runs.headers([run_id]).get(run_id)
            if head is None or (self._tenant and head.view.tenant != self._tenant):
                raise UnknownRun(run_id)
            plan = self._programs.plan(session, head.view.program_hash)
            if program is not None:
                digest, _, plan = self._programs.prepare(program)
                options["program"] = digest
            if problem := why_refused(ActionKind.RETRY, head.view.state):
                raise ActionRefused(run_id, ActionKind.RETRY, problem)
            if head.view.state in RunState.FINAL:
                check_reopening(session, head.view, ActionKind.RETRY)
            action = Action("", ActionKind.RETRY, "", "", session.now(), options=options)
            return chosen_steps(session, plan, head, action)

    def skip(
        self,
        run_id: str,
        step: str,
        *,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """End a step that waits or has failed without a result; the run goes on without it.

        Steps that need its result are skipped too. A workflow whose own result needs it fails:
        `complete` gives the step a result. Raises ActionRefused; a `dry_run` only does that.
        """
        options = {"step": step}
        about: dict[str, Any] = {"reason": reason, "actor": actor, "key": key, "dry_run": dry_run}
        self._control.act(run_id, ActionKind.SKIP, options=options, **about)

    def complete(
        self,
        run_id: str,
        step: str,
        result: Mapping[str, Json] | Json = None,
        *,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
        dry_run: bool = False,
    ) -> None:
        """Give a step that waits or has failed its result, as if its facet had returned it.

        `result` is a map of the facet's results by name, or the value of its only result. Raises
        ValueRefused if it does not fit the declared types, and ActionRefused; a `dry_run` only does
        that.
        """
        with self._database.read() as session:
            run = session.runs.get(run_id)
            if run is None or (self._tenant and run.tenant != self._tenant):
                raise UnknownRun(run_id)
            found = _step(session, run_id, step)
            plan = self._programs.plan(session, run.program_hash)
        facet = plan.facets.get(found.facet_name) if found else None
        answer: dict[str, Json] = {}  # an unknown step is refused by the evaluator
        if found is not None:
            about = (self._value_limits, self._limits)
            answer, problem = checked_answer(facet, found, result, *about)
            if problem:
                raise ValueRefused(problem)
        options = {"step": step, "result": answer}
        about_it: dict[str, Any] = {"reason": reason, "actor": actor, "key": key}
        self._control.act(run_id, ActionKind.COMPLETE, options=options, dry_run=dry_run, **about_it)


def chosen_steps(session: Session, plan: Plan, head: RunHeader, action: Action) -> list[str]:
    """Return the paths of the steps that a retry or a fork runs; raises ActionRefused."""
    run, run_id = CachedRun(head), head.view.id
    while True:
        work = WorkingSet(plan, head.view, run.snapshot, action.at)
        try:
            outline, chosen = renewal.choose(work, action)
        except Missing as missing:
            staging.load_missing(session, {run_id: (run, missing)})
        except Refused as refused:
            kind = "fork" if "fork" in action.options else ActionKind.RETRY
            raise ActionRefused(run_id, kind, str(refused)) from None
        else:
            rows = [outline.rows[key] for key in chosen.rerun]
            return sorted(row.path for row in rows if row.object_type in ObjectType.STEPS)


def _step(session: Session, run_id: str, name: str) -> Step | None:
    """Return the step of a run by its path or id."""
    key = key_of_path(name) or row_key(RowKind.STEP, name)
    found = session.steps.load({run_id: [key]})[run_id].get(key)
    if found is None and (found := session.steps.by_id(name)) is not None:
        return found if found.run_id == run_id else None
    return found

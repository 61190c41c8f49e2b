"""Child runs: started by a step, at most once, and within the limits of their root run."""

from __future__ import annotations

from collections.abc import Mapping

from flowengine.authoring import OnCancel
from flowengine.engine.adopted_child_runs import adopt_child
from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import NewFact
from flowengine.engine.control import named_actor
from flowengine.engine.forks import stage_child_fork
from flowengine.engine.program_cache import ProgramCache
from flowengine.engine.results import child_run_id
from flowengine.engine.start_request import LEAVE, Parent, StartRequest, start_request
from flowengine.engine.starter import Starter
from flowengine.errors import LimitReached, UnknownRun
from flowengine.evaluator import RunState, TaskDefinition, cancellation
from flowengine.evaluator.states import StepState
from flowengine.program import Program
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store import Session, Store
from flowengine.store.runs import StoredRun

#: Child runs before the limit from which each is counted under a lock: at most this number
#: of threads start one at the same moment.
_NEAR = 100
_CANCELLED = StepState.CANCELLED


class ChildRuns:
    """Starts the child runs of steps."""

    def __init__(
        self,
        database: Store,
        programs: ProgramCache,
        after_commit: AfterCommit,
        starter: Starter,
        settings: Settings,
    ) -> None:
        self._database, self._programs, self._starter = database, programs, starter
        self._after_commit, self._settings = after_commit, settings

    def start(
        self,
        task: TaskDefinition,
        program: Program | None,
        workflow: str,
        inputs: Mapping[str, Json],
        *,
        waits: bool,
        on_cancel: OnCancel = "cancel",
    ) -> str:
        """Start the child run of a step; with `waits` its end is the step's result.

        Idempotent: the child's id is derived from the step's, so a second try finds the run of
        the first. A retried step may take up the child run of its earlier generation, or fork it.
        Without a program the child uses the parent's. Raises LimitReached if the root run has too
        many runs below it, or inside each other.
        """
        run_id = child_run_id(task.step_id)
        with self._database.read() as session:
            parent = session.runs.get(task.workflow_id)
            if parent is None:
                raise UnknownRun(task.workflow_id)
            may_take = bool(parent.generation) and waits
            left = 0 if may_take else self._check_children(session, parent, run_id)
            if program is None:
                prepared = self._programs.stored(session, task.flow_id)
            else:
                prepared = self._programs.prepare(program)
        request = start_request(
            prepared,
            workflow,
            inputs,
            self._settings,
            priority=parent.priority,
            tenant=parent.tenant,
            run_id=run_id,
            parent=Parent(
                run_id=parent.id,
                step_id=task.step_id,
                step_key=task.step_key,
                root_run_id=parent.root_run_id,
                depth=parent.depth + 1,
                waits=waits,
                on_cancel=on_cancel,
            ),
        )
        started = self._renew_child(request, parent) if may_take else None
        if started is None:
            is_last = left <= _NEAR
            started = (
                self._start_last(request, parent) if is_last else self._starter.start([request])[0]
            )
        if on_cancel != LEAVE:
            self._follow_cancellation(parent.id, task.step_id, waits=waits)
        return started

    def _renew_child(self, request: StartRequest, parent: StoredRun) -> str | None:
        """Take up the child run that failed before, if it was repaired, or start a fork of it.

        None: there is none, or the step now starts another.
        """
        assert request.parent is not None
        with self._database.write() as session:
            now = session.now()
            self._programs.save(session, request.digest, request.text, now)
            effects = adopt_child(session, request, request.parent, now)
            if effects is None:
                self._check_children(session, parent, request.run_id)
                effects = stage_child_fork(session, request, request.parent, now)
        return None if effects is None else self._starter.finish([request], [effects])[0]

    def _follow_cancellation(self, parent_id: str, step_id: str, *, waits: bool) -> None:
        """Cancel the child runs of a run, or of a step, that was ended while it started one.

        A cancellation lists child runs after it is committed: so either it sees the new one, or
        this query sees the cancellation.
        """
        with self._database.read() as session:
            found = session.runs.starting_step(parent_id, step_id)
        if found is None:
            return
        about: dict[str, Json] = {"after": ""}
        if found.run_state not in (RunState.CANCELLING, RunState.CANCELLED):
            has_ended = found.state in StepState.FINAL if waits else found.state == _CANCELLED
            if found.path is None or not (found.superseded or has_ended):
                return
            reason = f"the step {found.path} of run {parent_id} has ended, or was retried"
            about |= {"actor": named_actor(""), "reason": reason, "at": self._database.now()}
            about |= {"superseded": True} if found.superseded else {"below": found.path}
        self._after_commit.advance(parent_id, fact=NewFact(cancellation.CHILDREN, about))

    def _start_last(self, request: StartRequest, parent: StoredRun) -> str:
        """Start one of the last child runs that the limit allows, counted under the root's lock."""
        with self._database.write() as session:
            session.runs.lock(parent.root_run_id)
            self._check_children(session, parent, request.run_id)
            commits = self._starter.insert_with(session, [request], session.now())
        return self._starter.finish([request], commits)[0]

    def _check_children(self, session: Session, parent: StoredRun, run_id: str) -> int:
        """Return how many more child runs the limit allows.

        Raises LimitReached for one child run too many, unless it was started before.
        """
        deepest, most = self._settings.max_child_depth, self._settings.max_child_runs
        cure = "a workflow that starts itself must end"
        if parent.depth >= deepest:
            what = f"{parent.workflow} in run {parent.id} starts a run inside {deepest:,} others"
            raise LimitReached(what, deepest, "max_child_depth", cure)
        count = session.runs.count_below(parent.root_run_id, most)
        if count >= most and session.runs.get(run_id) is None:
            what = f"root run {parent.root_run_id} has {most:,} child runs, and starts another"
            raise LimitReached(what, most, "max_child_runs", cure)
        return most - count

    # --- in a transaction of the caller ---

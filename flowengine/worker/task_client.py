"""The calls of a worker to the engine about its claimed tasks: reports, releases, parked tasks.

Invariant: no task stays claimed that nobody works on. Its server lives, so recovery would never
look at it. Therefore a failed call leaves an entry that `reconcile` deals with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from contextlib import suppress

from flowengine.engine import Engine
from flowengine.engine.recovery import release_dropped, release_unstarted
from flowengine.engine.reporter import NotAllReported
from flowengine.engine.staging import ContinuationPolicy
from flowengine.errors import IllegalTransition
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Lost, Report
from flowengine.step_logs.pending_chunks import PendingChunk
from flowengine.store.claims import WorkerIdentity
from flowengine.store.recovery_queries import HeldTask, held_task
from flowengine.store.servers import ServerState
from flowengine.worker.claimed_tasks import (
    ClaimedTask,
    ClaimedTasks,
    ClaimEvent,
    ClaimKey,
    ClaimState,
)
from flowengine.worker.item_gate import ItemGate
from flowengine.worker.outage_log import outage_log
from flowengine.worker.spool import Spool, SpooledOutcome, decoded, deliver_report, spool_record
from flowengine.worker.step_logs import StepLogs

log = logging.getLogger("flowengine")


class TaskClient:
    """Shared by all threads of a process."""

    def __init__(
        self,
        engine: Engine,
        identity: WorkerIdentity,
        claimed: ClaimedTasks,
        gate: ItemGate | None = None,
        logs: StepLogs | None = None,
    ) -> None:
        """`logs` has the lines of tries, which their reports carry."""
        self._logs = logs
        self._engine, self._identity, self.claimed, self._gate = engine, identity, claimed, gate
        self._spool = Spool(engine.settings.spool_directory)
        self._outages = outage_log(engine.settings.database_url)

    def take(self, tasks: Sequence[TaskDefinition]) -> list[ClaimedTask]:
        """Add tasks that the database gave to this process; return those that may start."""
        entries = self.claimed.claim(tasks)
        if self._gate is None or not entries:
            return entries
        try:
            let_in = set(self._gate.enter(entries))
        except Exception as problem:
            log.debug("claimed tasks are given back: %s", problem)
            self.release(entries)
            return []
        if kept_out := [entry for entry in entries if entry not in let_in]:
            self.park(kept_out, self._gate.seconds, circuit="")
        return [entry for entry in entries if entry in let_in]

    def report(
        self,
        finished: Sequence[ClaimedTask],
        *,
        in_chord: bool = False,
        continuation: ContinuationPolicy | None = None,
    ) -> list[ClaimedTask]:
        """Report tasks; return those to continue with. A report that fails is spooled."""
        self._leave(finished)
        lines: dict[ClaimKey, list[PendingChunk]] = {}
        if self._logs is None:
            reports = [entry.report for entry in finished]
        else:
            reports, lines = self._logs.reports(finished)
        failed: Sequence[tuple[Report, Exception]] = ()
        accepted: Collection[str] = ()
        try:
            accepted, taken = self._engine.report_many(
                reports, in_chord=in_chord, continuation=continuation
            )
        except NotAllReported as partial:
            failed, taken = partial.rejected, partial.continued
            log.error("%s", partial, exc_info=failed[0][1], extra={"action": "report_failed"})
        except Exception as problem:
            failed, taken = [(report, problem) for report in reports], []
        finally:
            if self._logs is not None and lines:
                self._logs.settle(lines, accepted)
            for entry in finished:
                entry.at_report(entry.key[0] in accepted)
        if failed:
            problems = {(report.task.uuid, report.task.lease): why for report, why in failed}
            for entry in finished:
                if entry.key in problems:
                    self.spool(entry, entry.report.outcome, problems[entry.key])
            finished = [entry for entry in finished if entry.key not in problems]
        self.claimed.close(ClaimEvent.REPORT, finished)
        return self.take(taken)

    def spool(self, entry: ClaimedTask, outcome: SpooledOutcome, why: object) -> None:
        """Keep a report for later delivery: on disk or, if that fails, in memory."""
        record, path = spool_record(entry.task, outcome), entry.task.step_path
        about = {"action": "report_spooled", "run": entry.task.workflow_id}
        try:
            file = self._spool.write(record)
        except Exception as problem:
            self.claimed.spool(entry, record)
            log.error(
                "the report of %s stays in memory: the database failed (%s), and the spool failed "
                "(%s); it is sent again until this process ends; free space in the spool directory",
                path,
                why,
                problem,
                extra={**about, "action": "report_kept_in_memory"},
            )
        else:
            self.claimed.spool(entry)
            level = logging.INFO if self._outages.note(why) else logging.WARNING
            log.log(level, "the report of %s is spooled as %s: %s", path, file, why, extra=about)

    def _leave(self, entries: Sequence[ClaimedTask]) -> None:
        # First: another process may claim a task as soon as it is released.
        if self._gate is not None:
            self._gate.leave(entries)

    def release(self, unstarted: Sequence[ClaimedTask]) -> None:
        self._leave(unstarted)
        try:
            self._engine.release_held([entry.key for entry in unstarted])
        except Exception as problem:
            self._disown(unstarted, "released", problem)
        else:
            self.claimed.close(ClaimEvent.RELEASE, unstarted)

    def park(
        self, unstarted: Sequence[ClaimedTask], seconds: float, circuit: str | None = None
    ) -> None:
        """Park tasks, with the waiting ones of their circuit, or of the given one."""
        self._leave(unstarted)
        tasks = [entry.task for entry in unstarted]
        try:
            name = tasks[0].circuit if circuit is None else circuit
            self._engine.park(tasks, name, seconds)
        except Exception as problem:
            self._disown(unstarted, "parked", problem)
        else:
            self.claimed.close(ClaimEvent.PARK, unstarted)

    def _disown(self, unstarted: Sequence[ClaimedTask], verb: str, problem: Exception) -> None:
        self.claimed.close(ClaimEvent.DISOWN, unstarted)
        log.log(
            logging.INFO if self._outages.note(problem) else logging.WARNING,
            "%d claimed tasks cannot be %s: %s; they are released when the database answers",
            len(unstarted),
            verb,
            problem,
            extra={"action": "release_failed"},
        )

    def release_active(self, seconds: float) -> None:
        """At the end of the process: wait for tasks to finish, then release all unfinished ones."""
        self.claimed.wait_until_idle(seconds)
        left = []
        for entry in self.claimed.in_states(ClaimState.CLAIMED, ClaimState.STARTED):
            with suppress(IllegalTransition):  # finished meanwhile
                self.claimed.close(ClaimEvent.RELEASE, [entry])
                left.append(held_task(entry.task))
        release_dropped(self._engine, left)

    # --- agreement with the database and the disk ---

    def reconcile(self) -> None:
        """Deal with tasks that the database lists as ours and that nobody here works on."""
        self.deliver_kept()
        spooled = [e for e in self.claimed.in_states(ClaimState.SPOOLED) if e.record is None]
        # Before the query: a report is committed first, and then its file is removed.
        gone = {entry.key: entry for entry in spooled if not self._spool.has(*entry.key)}
        held = self._held(0.0) if gone else {}
        self.claimed.close(ClaimEvent.DELIVER, [e for key, e in gone.items() if key not in held])
        for key in sorted(gone.keys() & held.keys()):
            self._lose(gone[key], held[key])
        busy = self.claimed.in_states(*ClaimState.ACTIVE, ClaimState.SPOOLED)
        old = self._held(2 * self._engine.settings.heartbeat_interval)
        # A task that was reported or released since the query began is not unknown.
        unknown = self.claimed.disown_unknown(old.keys() - {entry.key for entry in busy})
        if unknown:
            log.warning(
                "releasing %d tasks that the database lists for pid %d and that it does not work "
                "on: the response to a claim, or to a release, was lost",
                len(unknown),
                self._identity.pid,
                extra={"action": "unknown_claims_released"},
            )
        release_unstarted(self._engine, [old[key] for key in sorted(unknown)])

    def _held(self, seconds: float) -> dict[tuple[str, int], HeldTask]:
        held = self._engine.held_since(self._identity, seconds)
        return {(task.task_id, task.lease): task for task in held}

    def _lose(self, entry: ClaimedTask, task: HeldTask) -> None:
        """A finished try whose report is gone: its step runs again, so the try counts as lost."""
        reason = f"the spooled report of {task.step_path} disappeared"
        try:
            self._engine.end_try(task.run_id, task.task_id, task.lease, Lost(reason))
        except Exception as problem:
            if not self._outages.note(problem):
                log.exception(
                    "%s, and its loss cannot be recorded yet; it is tried again",
                    reason,
                    extra={"action": "report_failed", "run": task.run_id},
                )
        else:
            self.claimed.close(ClaimEvent.DISOWN, [entry])

    def deliver_kept(self) -> None:
        """Deliver reports that found no room on disk, or write them there."""
        for entry in self.claimed.in_states(ClaimState.SPOOLED):
            if entry.record is None:
                continue
            try:
                deliver_report(self._engine, *decoded(entry.record))
            except Exception:
                with suppress(OSError):
                    self._spool.write(entry.record)
                    entry.record = None
            else:
                self.claimed.close(ClaimEvent.DELIVER, [entry])

    def end(self) -> None:
        """Deliver reports that are kept in memory; remove the in-flight marker if all is done."""
        self.deliver_kept()
        if self.claimed.wait_until_idle(0):
            self.claimed.markers.forget(os.getpid())

    def remove_stale_markers(self) -> None:
        """Remove in-flight markers of dead processes that hold no task any more.

        Those of servers that are not registered may be needed by another database, whose recovery
        has a day to read them.
        """
        markers = self.claimed.markers
        stale = set(markers.stale())
        if not stale:
            return
        boots = sorted({boot for boot, _ in stale})
        with self._engine.database.read() as session:
            held = session.recovery.held_by_boots(boots)
            states = {server.boot_id: server.state for server in session.servers.by_boot_ids(boots)}
        # A pid of another container looks dead from here, so a server that lives keeps its own.
        ended = {boot for boot, state in states.items() if state in ServerState.ENDED}
        ended.add(self._identity.boot_id)
        held_by = {(task.boot_id, task.pid) for task in held}
        markers.remove_stale(
            (boot, pid)
            for boot, pid in stale - held_by
            if boot in ended or (boot not in states and markers.is_old(boot, pid))
        )

"""The logs of the tries of a process: they are opened, and their chunks stored.

The last chunk of a try is stored by the statement that reports it, so a quick step that writes some
lines costs no statement more. A thread stores the lines of tries that take longer, at most half a
second after they were written; while the database is away they stay in the spool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf

from flowengine.engine import Engine
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Outcome, Report
from flowengine.log_filter import safe_logger
from flowengine.settings import Settings
from flowengine.step_logs.capture import capture
from flowengine.step_logs.chunks import LogChunk, TryKey
from flowengine.step_logs.pending_chunks import PendingChunk
from flowengine.step_logs.redaction import Redactor
from flowengine.step_logs.spool import LogSpool
from flowengine.step_logs.try_log import TryLog
from flowengine.store import codec
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimKey
from flowengine.worker.execution import OpenLog
from flowengine.worker.orphaned_log_lines import directory_of, portions, scope_of
from flowengine.worker.outage_log import outage_log

log = safe_logger("flowengine")

_PAUSE = 0.25  #: seconds, in which a quick try reports its lines itself
_LONGEST_PAUSE = 2.0  #: while the database is away
_REPORTED_BYTES = 256 * 1024  #: of lines that one report carries
_END_SECONDS = 2.0  #: that the last lines get at the end of the process
#: Settings whose values are masked in all lines; those of the second kind are NAME=VALUE.
_SECRETS = ("message_keys", "link_keys", "secret_keys", "webhook_keys", "mcp_token")
_NAMED_SECRETS = ("payload_keys", "tenant_tokens")


class StepLogs:
    """Shared by all threads of a process."""

    def __init__(self, engine: Engine, *, is_durable: bool = True) -> None:
        """Without `is_durable` there is neither a file nor a thread: reports carry all lines."""
        settings = engine.settings
        self._store = engine.log_store
        self._redactor = Redactor(_secrets(settings, engine.database.url.password))
        self._head_bytes = settings.max_try_log_bytes
        self._has_lines, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._outages = outage_log(settings.database_url)
        self._spool = LogSpool(
            directory_of(settings) if is_durable else None,
            scope=scope_of(engine),
            max_bytes=settings.max_log_spool_bytes,
            seal=codec.sealed,
            unseal=codec.opened,
            wake=self._wake if is_durable else lambda: None,
        )

    def open(self, task: TaskDefinition) -> TryLog:
        """Return the log of a try that writes its first line."""
        key = TryKey(task.workflow_id, task.uuid, task.lease)
        return TryLog(self._spool, key, self._redactor, self._head_bytes)

    def begin(self) -> None:
        """Capture what the code of a try prints and logs."""
        capture()

    # --- with reports ---

    def reports(
        self, finished: Sequence[ClaimedTask]
    ) -> tuple[list[Report], dict[ClaimKey, list[PendingChunk]]]:
        """Return reports with the last chunk of each try, and these chunks.

        Everything before it is stored now: a try that is reported has all its lines.
        """
        reports, taken, room = [], dict[ClaimKey, list[PendingChunk]](), _REPORTED_BYTES
        for entry in finished:
            report, try_log = entry.report, entry.log()
            last = [] if try_log is None else self._last_chunk(try_log, room)
            if last:
                try:
                    report = replace(report, log=tuple(self._spool.stored_form(last)))
                    taken[entry.key] = last
                    room -= last[0].size
                except Exception as problem:
                    self._leave(last, problem)
            reports.append(report)
        return reports, taken

    def _last_chunk(self, try_log: TryLog, room: int) -> list[PendingChunk]:
        """End a log, store all but its last chunk, and take that one if there is room."""
        try:
            try_log.end()
            chunks = try_log.take()
        except Exception as problem:  # the report of a step does not fail because of its log
            self._leave([], problem)
            return []
        fits = chunks and chunks[-1].size <= room and self._store.takes_part_in_commits
        last = chunks[-1:] if fits else []
        return last if self._stored(chunks[: len(chunks) - len(last)], last) else []

    def _leave(self, chunks: Sequence[PendingChunk], problem: Exception) -> None:
        log.debug("lines are stored later: %s", problem)
        self._spool.give_back(chunks)

    def _stored(self, chunks: Sequence[PendingChunk], left: Sequence[PendingChunk]) -> bool:
        """Store chunks; if that fails, leave them and those behind them to the thread."""
        try:
            for portion in portions(chunks, lambda chunk: chunk.size):
                self._store.add(self._spool.stored_form(portion))
                self._spool.delivered(portion)
        except Exception as problem:
            self._leave([*chunks, *left], problem)
            return False
        return True

    def settle(
        self, taken: Mapping[ClaimKey, Sequence[PendingChunk]], accepted: Collection[str]
    ) -> None:
        """Forget the chunks of accepted reports; the thread stores the others."""
        for (task_id, _), chunks in taken.items():
            if task_id in accepted:
                self._spool.delivered(chunks)
            else:
                self._spool.give_back(chunks)

    def executed(self, execute: Callable[[OpenLog], Outcome]) -> tuple[Outcome, list[LogChunk]]:
        """Execute a try; return its outcome and all its lines, for one who reports both at once."""
        capture()
        opened: list[tuple[TaskDefinition, TryLog]] = []

        def open_log(task: TaskDefinition) -> TryLog:
            opened.append((task, self.open(task)))
            return opened[-1][1]

        outcome, stored = execute(open_log), list[LogChunk]()
        for task, try_log in opened:
            try:
                try_log.end()
                chunks = try_log.take()
                stored += self._spool.stored_form(chunks)
                self._spool.delivered(chunks)
            except Exception as problem:  # the report of a step does not fail because of its log
                log.warning(
                    "log lines of %s of run %s are lost: %s; its outcome is reported without them",
                    task.step_path,
                    task.workflow_id,
                    problem,
                    extra={"action": "log_lines_lost", "run": task.workflow_id},
                )
        return outcome, stored

    # --- the thread ---

    def _wake(self) -> None:
        if not self._has_lines.is_set():
            self._has_lines.set()
        if self._thread is None and not self._stop.is_set():
            thread = threading.Thread(
                target=self._deliver_always, name="flowengine-step-logs", daemon=True
            )
            with suppress(RuntimeError):  # no room for a thread: the next chunk starts it
                thread.start()
                self._thread = thread

    def _deliver_always(self) -> None:
        pause = _PAUSE
        while not self._stop.is_set():
            self._has_lines.wait()
            if self._stop.wait(pause):
                return
            self._has_lines.clear()
            try:
                self.deliver(before=time.monotonic() - _PAUSE)
                pause = _PAUSE
                if self._spool.has_waiting:
                    self._has_lines.set()
            except Exception as problem:
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._has_lines.set()
                if not self._outages.note(problem):
                    log.debug("lines of steps are stored later: %s", problem, exc_info=True)

    def deliver(self, *, before: float = inf) -> None:
        """Store all chunks that began before and nobody else stores now, in order."""
        self._spool.tell_problem()
        while chunks := self._spool.take(before=before):
            try:
                self._store.add(self._spool.stored_form(chunks))
            except BaseException:
                self._spool.give_back(chunks)
                raise
            self._spool.delivered(chunks)
        self._spool.idle()

    def end(self) -> None:
        """Store the last lines; those for which there is no time stay in the spool."""
        self._stop.set()
        self._has_lines.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)
        try:
            if self._spool.has_pending:
                self.deliver()
        except Exception as problem:
            log.debug("lines of steps stay in the spool: %s", problem)
        self._spool.close()


def _secrets(settings: Settings, password: str | None) -> list[str]:
    def parts(names: Sequence[str]) -> list[str]:
        return [part.strip() for name in names for part in getattr(settings, name).split(",")]

    named = [part.partition("=")[2].strip() for part in parts(_NAMED_SECRETS)]
    return [*parts(_SECRETS), *named, password or ""]

"""The engine: one database's runs.

Commit, then notify: everything a decision brings is written in one transaction, and workers are
woken afterwards. A process that dies in between leaves due rows, which recovery finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection

from flowengine.authoring import IfFailed, IfRunning
from flowengine.dispatch import Notifier, NullNotifier
from flowengine.engine.action_log import ActionLog
from flowengine.engine.admission import Admissions
from flowengine.engine.after_commit import AfterCommit, RunCompletions
from flowengine.engine.alarms import Alarms
from flowengine.engine.answers import Answers
from flowengine.engine.breaker_control import BreakerControl
from flowengine.engine.bulk_actions import BulkActions
from flowengine.engine.catalogue import Catalogue
from flowengine.engine.child_runs import ChildRuns
from flowengine.engine.closed_workflows import ClosedWorkflows
from flowengine.engine.committer import Committer
from flowengine.engine.control import Control
from flowengine.engine.doctor import Doctor
from flowengine.engine.due_schedules import DueSchedules
from flowengine.engine.executions import request_inputs, request_program
from flowengine.engine.exports import Exports
from flowengine.engine.failed_evaluations import FailedEvaluations
from flowengine.engine.forks import Forks
from flowengine.engine.handles import Run
from flowengine.engine.hooks import Hooks, outbox_rule
from flowengine.engine.limit_keys import LIMIT, RATE, KeyControl
from flowengine.engine.locks import Locks
from flowengine.engine.log_store import DatabaseLogs, LogStore
from flowengine.engine.pollers import NotifierWithPollers, Pollers
from flowengine.engine.program_cache import PreparedProgram, ProgramCache
from flowengine.engine.publications import Publications
from flowengine.engine.purger import Purger
from flowengine.engine.queries import RunQueries
from flowengine.engine.reporter import Reporter
from flowengine.engine.results import ExecutionResult
from flowengine.engine.retries import Retries
from flowengine.engine.run_logs import RunLogs
from flowengine.engine.schedule_definitions import ScheduleDefinitions
from flowengine.engine.schedules import Schedules
from flowengine.engine.singletons import Singletons
from flowengine.engine.start_request import StartRequest
from flowengine.engine.starter import Starter
from flowengine.engine.step_results import StepResults
from flowengine.engine.task_queue import TaskQueue
from flowengine.engine.tick_runs import TickRuns
from flowengine.engine.tokens import Tokens
from flowengine.engine.used_keys import key_options
from flowengine.engine.worker_limits import LimitedClaims
from flowengine.engine.workers import Workers
from flowengine.errors import ActionRefused, InvalidInputs, PartlyStarted
from flowengine.log_filter import limit_records
from flowengine.payload_codecs import codec_of
from flowengine.program import Program
from flowengine.program.nodes import Json
from flowengine.program.standard import REQUEST
from flowengine.settings import Settings
from flowengine.store import Store, codec
from flowengine.store.caller_transaction import CallerTransaction, SqlalchemyTransaction

_RUNS_PER_COMMIT = 50  # of start_many


class Engine:
    """One database's runs, put together from parts. Shared by all threads of a process.

    Each public name below belongs to one part; the engine adds nothing but run handles.
    """

    def __init__(
        self,
        database: Store,
        *,
        notifier: Notifier | None = None,
        settings: Settings | None = None,
        broker: str = "",
    ) -> None:
        """`broker` is the fingerprint of the broker that the notifier sends its messages to."""
        self.database, self.broker = database, broker
        #: Whether it can wake workers by messages; without, they must poll.
        self.sends_messages = not isinstance(notifier, NullNotifier | None)
        self.pollers = Pollers(database)
        self.notifier: Notifier = NotifierWithPollers(notifier or NullNotifier(), self.pollers)
        self.settings = settings or Settings()
        limit_records(self.settings.max_log_length)
        codec.use_payload_codec(codec_of(self.settings))
        self.programs = ProgramCache(database, self.settings)
        self.completions = RunCompletions(database)
        self.alarms = Alarms(database)
        most = self.settings.max_failed_evaluations
        self.failed_evaluations = FailedEvaluations(self.alarms, most)
        self.committer = committer = Committer(
            database,
            self.programs,
            self.failed_evaluations,
            tenant_shares=self.settings.max_tenant_evaluations,
        )
        self.singletons = Singletons(database)
        self.locks = Locks(database)
        self.after_commit = AfterCommit(
            committer,
            self.notifier,
            self.completions,
            Admissions(database),
            self.singletons,
            self.alarms,
            self.settings,
        )
        self.attached: dict[str, object] = {}  #: parts of layers above, by name
        #: Jobs of layers above that are part of each pass of recovery, by name.
        self.recovery_jobs: dict[str, Callable[[], None]] = {}
        self.advance = self.after_commit.advance
        self.admit = self.after_commit.admit

        self.starter = Starter(
            database, self.programs, self.after_commit, self.notifier, self.settings
        )
        children = ChildRuns(
            database, self.programs, self.after_commit, self.starter, self.settings
        )
        self.start_child = children.start

        self.limited_claims = LimitedClaims(database, self.notifier, self.settings)
        self.queue = TaskQueue(database, self.notifier, self.limited_claims, self.admit)
        self.claim_task = self.queue.claim_task
        self.claim = self.queue.claim
        self.claim_batch = self.queue.claim_batch
        self.claim_one = self.queue.claim_one
        self.claim_these = self.queue.claim_these
        self.is_work_due = self.queue.is_work_due
        self.heartbeat = self.queue.heartbeat
        self.held_since = self.queue.held_since
        self.release = self.queue.release
        self.release_held = self.queue.release_held
        self.park = self.queue.park

        self.reporter = Reporter(
            database, self.programs, committer, self.after_commit, self.settings
        )
        self.report = self.reporter.report
        self.report_many = self.reporter.report_many
        self.record = self.reporter.record
        self.end_try = self.reporter.end_try
        self.storable = self.reporter.storable

        results = StepResults(database, self.programs, committer, self.after_commit, self.settings)
        self.continue_step, self.fail_step = results.continue_step, results.fail_step

        self.answers = Answers(database, committer, self.after_commit, self.settings)
        self.send = self.answers.send
        self.answer_link = self.answers.answer_link
        self.send_link = self.answers.send_link
        self.control = Control(database, committer, self.after_commit, self.settings)
        self.cancel = self.control.cancel
        self.hold = self.control.hold
        self.retries = Retries(database, self.control, self.programs, self.settings)
        self.retry = self.retries.retry
        self.skip = self.retries.skip
        self.complete = self.retries.complete
        self.forks = Forks(database, self.programs, self.after_commit, self.settings)
        self.bulk_actions = BulkActions(database, self.control, self.retries, self.settings)
        self.act_on_all = self.bulk_actions.act_on_all
        self.cancel_all = self.bulk_actions.cancel_all
        self.hold_all = self.bulk_actions.hold_all
        self.release_all = self.bulk_actions.release_all
        self.retry_all = self.bulk_actions.retry_all

        tick_runs = TickRuns(self.programs, self.starter, self.after_commit, self.settings)
        due_schedules = DueSchedules(database, tick_runs, self.settings)
        self.schedules = Schedules(database, self.programs, tick_runs, due_schedules, self.settings)

        definitions = ScheduleDefinitions(tick_runs, self.settings)
        publications = Publications(database, self.programs, definitions, self.settings.tenant)
        closed = ClosedWorkflows(database, self.settings.max_error_excerpt)
        self.catalogue = Catalogue(database, self.programs, publications, closed)
        self.log_store: LogStore = DatabaseLogs(database)

        self.queries = RunQueries(database, self.settings.tenant, has_feed=self.settings.event_feed)
        self.get = self.queries.get
        self.find = self.queries.find
        self.list = self.queries.list
        self.steps = self.queries.steps
        self.tasks = self.queries.tasks
        self.events = self.queries.events
        self.servers = self.queries.servers
        self.history = self.queries.history
        self.logs = RunLogs(database, self.log_store, self.settings.tenant).read

        about_keys = (lambda key: self.admit({}, [key])), self.settings.max_error_excerpt
        self.limits = KeyControl(database, LIMIT, *about_keys)
        self.rates = KeyControl(database, RATE, *about_keys)
        self.breakers = BreakerControl(database, self.settings.max_error_excerpt)
        self.actions = ActionLog(database, self.settings.tenant).list
        self.workers = Workers(database)
        self.tokens = Tokens(database, self.settings.tenant)
        self.export = Exports(database, self.settings).export
        self.doctor = Doctor(self).check
        self.hooks = Hooks(database, self.settings)
        database.outbox_rule = outbox_rule(self.settings)
        self.purger = Purger(database, self.settings, self.log_store)
        self.purge = self.purger.purge
        self.metrics = self.queries.metrics

    def start(
        self,
        program: Program | Mapping[str, Any] | str,
        workflow: str | Mapping[str, Json] = "",
        inputs: Mapping[str, Json] | None = None,
        *,
        key: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        tenant: str = "",
        connection: Connection | CallerTransaction | None = None,
        if_failed: IfFailed = "return",
        run_id: str = "",
        deadline: timedelta | float | None = None,
        key_ttl: timedelta | float | None = None,
        singleton: str | None = None,
        if_running: IfRunning = "reject",
        max_open: int | None = None,
    ) -> Run[Any]:
        """Start a run; it is durable when this returns.

        ``start(program, "shop.Order", {"order": 7})`` starts a workflow of a program,
        ``start("shop.Order", {"order": 7})`` one of the catalogue: of a worker, or of a document.
        An app that is bound to a tenant (setting `tenant`) starts all runs for it, and raises
        TenantRefused for another.
        With `key` a run is started once: a second start with the same key returns the first run.
        If that has failed, ``if_failed="start"`` starts a new run, which takes the key, and "raise"
        raises EarlierRunFailed. `run_id` is the id of the new run, if it is derived from something
        that must not start a second one: a start whose run exists returns it. A run that has not
        ended at its `deadline`, seconds after its start, fails with DeadlineExceeded.
        With `connection` the run is part of the caller's own transaction: it exists when that
        commits, and never did when it rolls back.
        After `key_ttl` seconds another run may take the key. Of the runs of a workflow with the
        same `singleton` key one is open at a time: if one is, `if_running` decides whether to raise
        AlreadyRunning ("reject"), to "return" it, to cancel it and begin after it ("replace"), or
        to begin after it ("queue"). With `max_open` open runs of the workflow the start raises
        TooManyRuns.
        """
        options: dict[str, Any] = {"key": key, "priority": priority, "labels": labels or {}}
        options |= {"tenant": tenant, "deadline": _seconds(deadline)}
        options |= {"key_ttl": _seconds(key_ttl), "singleton": singleton}
        options |= {"if_running": if_running, "max_open": max_open}
        own = {"run_id": run_id} if run_id else {}
        what, name, given = self._named(program, workflow, inputs)
        request = self.starter.request(what, name, given, if_failed=if_failed, **options, **own)
        if isinstance(connection, Connection):
            connection = SqlalchemyTransaction(connection)
        if connection is not None:
            return Run(self, self.starter.start_within(connection, request))
        if request.is_queued:
            return Run(self, self._start_queued(request))
        return Run(self, self.starter.start([request])[0])

    def _named(
        self,
        program: Program | Mapping[str, Any] | str,
        workflow: str | Mapping[str, Json],
        inputs: Mapping[str, Json] | None,
    ) -> tuple[Program | Mapping[str, Any] | PreparedProgram, str, Mapping[str, Json]]:
        """Return the program of a start, the workflow and its inputs."""
        if isinstance(program, str):
            if inputs is not None and workflow:
                raise InvalidInputs(program, ["a start by name takes the name and the inputs"])
            given = workflow if isinstance(workflow, Mapping) else inputs
            return self.catalogue.prepared(program), program, given or {}
        if not isinstance(workflow, str):
            raise InvalidInputs("?", ["a start of a program needs the name of its workflow"])
        return program, workflow, inputs if inputs is not None else {}

    def _start_queued(self, request: StartRequest) -> str:
        """Start a run that begins after the others with its singleton key."""
        where = (request.tenant, request.workflow, request.singleton or "")
        before = self.singletons.queued(*where) if request.if_running == "replace" else []
        run_id = self.starter.start_queued(request)
        for other in before:
            with suppress(ActionRefused):  # it has ended meanwhile
                self.control.cancel(other, reason=f"run {run_id} replaces it")
        if begun := self.singletons.begin_next(*where):
            self.advance(begun)
        return run_id

    async def astart(
        self,
        program: Program | Mapping[str, Any] | str,
        workflow: str | Mapping[str, Json] = "",
        inputs: Mapping[str, Json] | None = None,
        **options: Any,
    ) -> Run[Any]:
        """Like `start`, without blocking the event loop."""
        return await asyncio.to_thread(self.start, program, workflow, inputs, **options)

    def start_many(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        inputs: Iterable[Mapping[str, Json]],
        *,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        tenant: str = "",
        keys: Iterable[str] | None = None,
        if_failed: IfFailed = "return",
        deadline: timedelta | float | None = None,
        key_ttl: timedelta | float | None = None,
        max_open: int | None = None,
    ) -> list[Run[Any]]:
        """Start a run for each of these inputs, 50 in one commit.

        All inputs are checked before the first run is started. If a later commit fails, raises
        PartlyStarted, whose `started` are the runs of the earlier commits. With `keys`, one for
        each of the inputs, a run whose key was used before is returned instead; see `start`.
        """
        options: dict[str, Any] = {"priority": priority, "labels": labels or {}, "tenant": tenant}
        options |= {"deadline": _seconds(deadline), "key_ttl": _seconds(key_ttl)}
        options["max_open"] = max_open
        values = list(inputs)
        of_each = key_options(workflow, len(values), keys, if_failed)
        requests = [
            self.starter.request(program, workflow, each, **options, **own)
            for each, own in zip(values, of_each, strict=True)
        ]
        if if_failed == "raise":
            self.starter.refuse_failed(requests)  # before the first run is started
        started: list[Run[Any]] = []
        for at in range(0, len(requests), _RUNS_PER_COMMIT):
            try:
                run_ids = self.starter.start(requests[at : at + _RUNS_PER_COMMIT])
            except Exception as problem:
                if not started:
                    raise
                raise PartlyStarted(started, len(requests), problem) from problem
            started += [Run(self, run_id) for run_id in run_ids]
        return started

    def execute(
        self,
        program: Program | Mapping[str, Any],
        workflow: str,
        inputs: Mapping[str, Json],
        **options: Any,
    ) -> ExecutionResult:
        """Start a run and return its first fixed point: its end, or its first events."""
        run_id = self.start(program, workflow, inputs, **options).id
        return self.queries.get_of(None, run_id).as_result()

    def enqueue_execute(
        self,
        workflow: str,
        inputs: Mapping[str, Json],
        *,
        program: Program | Mapping[str, Any] | None = None,
        task_list: str = "default",
        key: str | None = None,
        if_failed: IfFailed = "return",
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        tenant: str = "",
    ) -> Run[Run[Any]]:
        """Store a request to start a workflow by its name; a runner service of the list starts it.

        The request is durable when this returns, and starts one run, whatever dies in between. It
        is a run itself: its `result()` is the handle of the run that was started. Without
        `program` the runner has the workflow under that name. With `key` a second request for
        the workflow returns the first. Priority, labels and tenant are those of the started run.
        """
        if program is not None:  # raises for invalid inputs before anything is stored
            self.starter.request(program, workflow, inputs, tenant=tenant)
        options: dict[str, Any] = {"priority": priority, "labels": dict(labels or {})}
        given = {name: value for name, value in options.items() if value}
        request = self.start(
            request_program(task_list),
            REQUEST,
            request_inputs(workflow, inputs, program, task_list, given),
            key=None if key is None else f"{workflow}:{key}",
            if_failed=if_failed,
            tenant=tenant,
            **options,
        )
        return Run(self, request.id, lambda run_id: Run(self, run_id))

    def resume(
        self,
        workflow_id: str,
        workflow_ast: Mapping[str, Any] | None = None,
        program_ast: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> ExecutionResult:
        """Evaluate a run to its next fixed point.

        The program and the inputs are stored with the run; those given here are ignored.
        """
        if self.settings.tenant:
            self.get(workflow_id)  # raises UnknownRun for a run of another tenant
        self.advance(workflow_id)
        return self.get(workflow_id).as_result()

    def run(self, run_id: str) -> Run[Any]:
        """Return the handle of an existing run."""
        self.get(run_id)
        return Run(self, run_id)

    def fork(self, run_id: str, **options: Any) -> Run[Any]:
        """Start a new run that keeps the results of another; see `Forks.fork`."""
        return Run(self, self.forks.fork(run_id, **options))

    async def arun(self, run_id: str) -> Run[Any]:
        """Like `run`, without blocking the event loop."""
        return await asyncio.to_thread(self.run, run_id)

    def close(self) -> None:
        self.hooks.close()
        self.completions.close()
        self.queries.feed.close()
        self.database.close()


def _seconds(duration: timedelta | float | None) -> float | None:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration

"""The tries of claimed tasks: begin each, and settle its outcome.

A try runs in the thread that claimed its task. A coroutine runs in the event loop of the process: a
quick one is awaited, a slow one is adopted by `AsyncTries`, and the thread goes on.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias, TypeVar

from flowengine.agents import agents_of
from flowengine.agents.entries import enter_together
from flowengine.agents.profiles import MODEL
from flowengine.authoring import event_facet_named
from flowengine.engine import Engine
from flowengine.errors import Divergence
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.records import ACTIVATION
from flowengine.evaluator.triggers import Failed, Lost, Outcome
from flowengine.step_logs.try_log import TryLog
from flowengine.store.claims import WorkerIdentity
from flowengine.worker.activations import Activations, Rounds
from flowengine.worker.async_tries import AsyncTries
from flowengine.worker.async_try import AsyncTry
from flowengine.worker.background import HandledCounters
from flowengine.worker.batch import Batch, BatchSizing
from flowengine.worker.breakers import CircuitBreakers
from flowengine.worker.child_starts import ChildNotStarted
from flowengine.worker.claimed_tasks import ClaimedTask, ClaimEvent, ClaimState
from flowengine.worker.execution import Attempt, OpenLog
from flowengine.worker.handlers import FindHandler
from flowengine.worker.in_place_calls import LeaseLost, NotRecorded
from flowengine.worker.in_place_policy import InPlacePolicy
from flowengine.worker.in_place_tools import InPlaceTools
from flowengine.worker.interleaved_activations import InterleavedActivations
from flowengine.worker.kept_functions import KeptFunctions
from flowengine.worker.run_ahead import RunAhead
from flowengine.worker.step_logs import StepLogs
from flowengine.worker.task_client import TaskClient

log = logging.getLogger("flowengine")

T = TypeVar("T")
Show: TypeAlias = Callable[[TaskDefinition, Outcome, float], object]
#: Returns an outcome as it is recorded: checked, or as a failure.
Storable: TypeAlias = Callable[[TaskDefinition, Outcome], Outcome]
_DIVERGED = 60.0  # seconds until a function is tried again whose code does not fit its record
_BACKOFF = 1.0  # seconds until a task is due again that the engine failed to start


class Tries:
    """Runs tries for one process. Shared by all threads of its pool."""

    def __init__(
        self,
        engine: Engine,
        identity: WorkerIdentity,
        client: TaskClient,
        sizing: BatchSizing,
        counters: HandledCounters,
        breakers: CircuitBreakers,
        show: Show | None,
        *,
        names: Callable[[], Sequence[str]],
        flush: Callable[[], object],
        find: FindHandler = event_facet_named,
        storable: Storable | None = None,
        async_limit: int = 0,
        logs: StepLogs | None = None,
        lists: Callable[[], Collection[str]] = tuple,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_stopping = is_stopping
        self._engine, self._client, self._sizing = engine, client, sizing
        self._counters, self._breakers, self._show = counters, breakers, show
        self._logs, self._open_log = logs, None if logs is None else logs.open
        self._find, self._storable = find, storable or self._stored
        self._claimed_tasks = client.claimed
        policy = InPlacePolicy(
            *(sizing, names, lists, engine.settings.batch_max_wait),
            engine.settings.worker_time_slice,
            lambda: engine.is_work_due(lists()),
        )
        self.kept_functions = KeptFunctions(engine.settings.kept_functions)
        self._activations = Activations(engine, find, policy, self.kept_functions)
        self.check_activations = self._activations.probe.check
        self.ahead = RunAhead(self.kept_functions, policy)
        self._within = InPlaceTools(engine, policy, find)
        self._max_wait = engine.settings.batch_max_wait
        #: The tries whose coroutines run in the event loop.
        self.in_loop = AsyncTries(
            engine,
            identity,
            client,
            names,
            self._begin_async,
            self._settle,
            flush,
            find,
            async_limit,
        )

    def prepare(self, entries: Sequence[ClaimedTask]) -> None:
        """Let agents enter the turns of several claimed model calls by one commit.

        What fails here is repeated by each try.
        """
        tasks = (entry.task for entry in entries)
        # One with a circuit enters when that lets it through.
        calls = [task for task in tasks if task.name.endswith(MODEL) and not task.circuit]
        if len(calls) < 2 or not self._engine.database.has_server:
            return  # without round trips, one commit costs as much as several
        try:
            enter_together(self._engine, agents_of(self._engine), calls)
        except Exception as problem:
            log.debug("model calls enter their turns one by one: %s", problem)

    def run(self, entry: ClaimedTask, batch: Batch) -> int:
        """Run a task of the batch, an activation with others like it.

        Return the number of those that have ended here: one may be parked, or be another's now.
        """
        try:
            if not self._sizing.is_quick(entry.task.name):
                self._engine.database.return_connection()  # other threads may need it meanwhile
            if entry.task.data_type == ACTIVATION:
                return self._run_interleaved(entry, batch)
            return self._try(entry, batch)
        except BaseException as problem:
            self._interrupted(entry, batch, problem)
            raise

    def _interrupted(self, entry: ClaimedTask, batch: Batch, problem: BaseException) -> None:
        """Deal with a task whose thread ends."""
        self.in_loop.leave(entry)
        if entry.state == ClaimState.CLAIMED:
            self._client.park([entry], _BACKOFF)  # it did not start, so nothing is counted
        elif entry.state == ClaimState.STARTED:
            # `sys.exit` in a facet, or a signal for this process. It counts as a loss: a
            # facet that ends every process it runs in would be repeated for ever.
            reason = f"{type(problem).__name__} ended the thread that worked on it"
            batch.finish(entry, Lost(reason))

    def _run_interleaved(self, first: ClaimedTask, batch: Batch) -> int:
        """Run an activation, and with it those of the batch that may be interleaved."""
        entries = [first]
        if self._may_interleave(first):
            runs = {first.task.workflow_id}  # one statement records calls of different runs

            def joins(entry: ClaimedTask) -> bool:
                if entry.task.workflow_id in runs or not self._may_interleave(entry):
                    return False
                runs.add(entry.task.workflow_id)
                return True

            entries += batch.take(joins)
        interleaved = InterleavedActivations(
            self._engine,
            self._claimed_tasks,
            [(entry, self._function(entry)) for entry in entries],
            self._max_wait / 2,
            self._client.release,
            self._is_stopping,
        )
        with batch.interleaving(interleaved):
            try:
                return interleaved.run(functools.partial(self._finish, batch))
            except BaseException as problem:
                try:
                    if interleaved.current is not None:
                        self._interrupted(interleaved.current, batch, problem)
                finally:
                    interleaved.stop_waiting()
                raise
            finally:
                interleaved.close()

    def _may_interleave(self, entry: ClaimedTask) -> bool:
        """Whether others may wait while an activation runs: its code is quick.

        One that was lost with its process may end this one, too. A greenlet is bound to its thread:
        the guard cannot stop it.
        """
        task = entry.task
        if task.data_type != ACTIVATION or entry.state != ClaimState.CLAIMED or task.losses:
            return False
        function = getattr(self._find(task.name), "durable", None)
        is_coroutine = function is not None and not function.is_plain
        return is_coroutine and self._sizing.is_quick(task.name)

    def _try(self, entry: ClaimedTask, batch: Batch) -> bool:
        task = entry.task
        began = time.monotonic()
        begun: Outcome | AsyncTry | None
        try:
            if task.data_type:
                self._claimed_tasks.start(entry)
                begun = self._activations.start_run(task)
            else:
                begun = self._begin(entry, lambda: batch.take_circuit(task.circuit))
            if isinstance(begun, AsyncTry):
                if not begun.wait(0.0 if self._sizing.is_slow(task.name) else self._max_wait):
                    self.in_loop.adopt(begun, task.task_list_name)
                    return True
                self.in_loop.leave(entry)
                begun = begun.outcome()
        except ChildNotStarted as failure:
            self._client.spool(entry, failure.call, failure)
            return True
        if begun is None:
            return False
        self._finish(batch, entry, begun, began)
        return True

    def _finish(self, batch: Batch, entry: ClaimedTask, ended: Outcome, began: float) -> None:
        lines = entry.log()
        others = 0.0 if lines is None else lines.seconds
        self._settle(
            entry.task,
            ended,
            began,
            lambda outcome: batch.finish(entry, outcome),
            others,
            entry.overhead,
            entry.seconds,
        )
        if entry.state == ClaimState.RELEASED:  # the process ends: nothing is reported
            entry.at_report(False)

    def _begin(
        self, entry: ClaimedTask, also: Callable[[], list[ClaimedTask]] = list
    ) -> Outcome | AsyncTry | None:
        """Begin a try. None: its circuit refuses it and it is parked, or there is no place."""
        task = entry.task
        permit = self._breakers.permit(task) if task.circuit else None
        if permit is not None and not permit.granted:
            self._client.park([entry, *also()], permit.retry_after)
            return None
        takes_place = self.in_loop.is_async(task.name)
        if takes_place and not self.in_loop.reserve(entry):
            self._client.release([entry])
            return None
        beat = functools.partial(self._beat, task)
        about = (self._find, self._open_log, self._within)
        attempt = Attempt(self._engine, task, beat, permit, *about)
        entry.lose = attempt.lose
        if self._logs is not None:
            self._logs.begin()
            entry.log = attempt.lines
        self._claimed_tasks.start(entry)
        begun = attempt.begin(lambda awaitable: self.in_loop.submit(entry, attempt, awaitable))
        entry.overhead = attempt.overhead
        if takes_place and not isinstance(begun, AsyncTry):  # its arguments do not fit
            self.in_loop.leave(entry)
        return begun

    def _function(self, entry: ClaimedTask) -> Rounds[Outcome | None]:
        """Run an activation of a durable function; None: nothing is to be reported."""
        if entry.state != ClaimState.CLAIMED:
            return None  # released before it began
        task, clock, probe = entry.task, self._activations.clock, self._activations.probe
        began = clock()
        loaded = self._activations.load(task)
        self._claimed_tasks.start(entry)
        if isinstance(loaded, Failed):
            return loaded
        entry.at_report = functools.partial(self._activations.settle, loaded)
        beat, open_log = functools.partial(self._beat, task), self._open_shared_log(entry)
        rounds, taken = self._activations.rounds(loaded, beat, open_log), 0.0
        try:
            while True:
                try:
                    with probe.over(task):
                        calls = next(rounds)
                except StopIteration as ended:
                    entry.seconds = loaded.seconds
                    entry.overhead = max(0.0, taken + clock() - began - loaded.seconds)
                    report: Outcome = ended.value
                    return report
                taken += clock() - began
                try:
                    yield calls
                except GeneratorExit:
                    rounds.close()
                    raise
                began = clock()
        except Divergence as problem:
            outcome = self._activations.diverged(task, problem)
            if outcome is None:
                self._put_off(entry, _DIVERGED)
            return outcome
        except NotRecorded as problem:
            log.info(
                "%s goes on behind its last recorded call in %g s: %s",
                task.step_path,
                _BACKOFF,
                problem,
                extra={"action": "calls_not_recorded", "run": task.workflow_id},
            )
            # Not counted as a loss: an error of the database is not the outcome of a step.
            self._put_off(entry, _BACKOFF)
            return None
        except LeaseLost:
            log.info(
                "dropped an activation of %s: another process has it",
                task.step_path,
                extra={"action": "activation_dropped", "run": task.workflow_id},
            )
            if entry.state == ClaimState.STARTED:  # a process that ends releases it
                self._claimed_tasks.close(ClaimEvent.RELEASE, [entry])
            return None

    def _put_off(self, entry: ClaimedTask, seconds: float) -> None:
        if entry.state == ClaimState.STARTED:  # a process that ends releases it
            self._client.park([entry], seconds, circuit="")

    def _open_shared_log(self, entry: ClaimedTask) -> OpenLog | None:
        """Return how the calls of an activation open its one log."""
        if self._logs is None:
            return None
        self._logs.begin()
        opened: list[TryLog] = []
        entry.log = lambda: opened[0] if opened else None
        open_log = self._logs.open

        def shared(_: TaskDefinition) -> TryLog:
            if not opened:
                opened.append(open_log(entry.task))
            return opened[0]

        return shared

    def _begin_async(self, entry: ClaimedTask) -> Outcome | AsyncTry | None:
        """Begin a try for the thread of async tries, which no exception ends."""
        try:
            return self._begin(entry)
        except BaseException as problem:
            self.in_loop.leave(entry)
            if entry.state == ClaimState.CLAIMED:
                self._client.park([entry], _BACKOFF)
                return None
            return Lost(f"{type(problem).__name__} ended the try")

    def _settle(
        self,
        task: TaskDefinition,
        outcome: Outcome,
        began: float,
        finish: Callable[[Outcome], T],
        others: float = 0.0,
        overhead: float = 0.0,
        code_seconds: float | None = None,
    ) -> T:
        """Check the outcome of a try and finish it with that; then count and show it.

        The seconds that its lines took (`others`) do not make a quick facet slow: batches stay as
        large. Those that the engine took inside the try (`overhead`) make batches smaller. An
        activation measures the seconds of its code itself.
        """
        outcome = self._checked(task, outcome)
        seconds = time.monotonic() - began
        finished = finish(outcome)
        if code_seconds is None:
            code_seconds = seconds - overhead
        self._sizing.count(task.name, max(0.0, code_seconds - others), overhead)
        self._counters.count(task, outcome)
        if self._show is not None:
            self._show(task, outcome, seconds)
        return finished

    def _checked(self, task: TaskDefinition, outcome: Outcome) -> Outcome:
        """Check a result as part of its try: the timeout ends it, and its time is measured."""
        try:
            return self._storable(task, outcome)
        except Exception as problem:  # of the engine; the report checks it again
            log.debug("the result of %s was not checked: %s", task.step_path, problem)
            return outcome

    def _stored(self, task: TaskDefinition, outcome: Outcome) -> Outcome:
        return self._engine.storable(task.name, task.flow_id, outcome)

    def _beat(self, task: TaskDefinition, progress: str | None) -> bool:
        try:
            return self._engine.heartbeat(task, progress)
        except Exception as problem:
            # Raised, an error of the engine would become the facet's. True: the facet goes on.
            log.debug("the heartbeat of %s failed: %s", task.step_path, problem)
            return True

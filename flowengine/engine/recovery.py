"""Recovery: one list of jobs that find and repair what a crash or an outage left behind.

A job decides nothing: it finds rows and reports facts to the evaluator. Each row has its own
transaction, so that a row that fails, or a run that is locked, does not stop the others; the next
pass finds it again. Passes may overlap: a try is ended under its lease, a run is evaluated under
its lock, an alarm is set to the same text, and an additional wake-up finds nothing to claim.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from flowengine.authoring import event_facet_names
from flowengine.engine import liveness
from flowengine.engine.engine import Engine
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.engine.liveness import Death, LivenessWindow, Observation, observe
from flowengine.evaluator.triggers import Failed, Lost, Outcome
from flowengine.store import recovery_queries
from flowengine.store.failures import is_unavailable
from flowengine.store.parts import MANY
from flowengine.store.recovery_queries import HeldTask
from flowengine.store.servers import ServerDefinition

log = logging.getLogger("flowengine")
T = TypeVar("T")
Wake = Callable[[Engine, Sequence[ServerDefinition]], object]

_PURGE_SECONDS = 0.2  #: of each pass


def recover(engine: Engine, observation: Observation, death: Death, wake: Wake) -> None:
    """Run all jobs once, in this order. One that fails is raised after the others have run.

    While the database is unavailable the pass ends at once: the others would fail, too. If one
    statement finds that the jobs in the middle have nothing to do, they are left out: an idle
    fleet makes two passes a second.
    """
    dead: set[str] = set()
    with_rows: tuple[Callable[[], object], ...] = (
        lambda: fail_silent_tries(engine, observation.window),
        lambda: serve_clock(engine),
        lambda: evaluate_reported_runs(engine),
        lambda: serve_queues(engine),
        *engine.recovery_jobs.values(),
        lambda: wake(engine, observation.alive),
        lambda: alarm_unserved_tasks(
            engine, [s for s in observation.alive if s.boot_id not in dead]
        ),
    )
    # An alarm that ended with its run may begin again: it is told then.
    idle = (*engine.recovery_jobs.values(), lambda: engine.alarms.keep(liveness.UNSERVED, {}, {}))
    problems: list[Exception] = []
    has_work = True

    def look() -> None:
        nonlocal has_work
        with engine.database.autocommit_read() as session:
            has_work = session.recovery.has_work(session.now())

    def run(*jobs: Callable[[], object]) -> None:
        for job in jobs:
            try:
                job()
            except Exception as problem:
                if is_unavailable(problem):
                    raise
                problems.append(problem)

    run(lambda: dead.update(recover_lost_servers(engine, observation, death)), look)
    run(*(with_rows if has_work else idle))
    run(lambda: purge_expired(engine), engine.hooks.start)
    if problems:
        several = ExceptionGroup("several jobs of recovery failed", problems)
        raise problems[0] if len(problems) == 1 else several


# --- lost servers ---


def recover_lost_servers(engine: Engine, observation: Observation, death: Death) -> set[str]:
    """End the tries of dead servers as lost; return the boot ids of those declared dead."""
    suspects = {s.boot_id for s in (*observation.alive, *observation.unregistered) if death(s)}
    dead: set[str] = set()
    if not suspects:
        return dead
    with engine.database.read() as session:
        held = session.recovery.held_by_boots(sorted(suspects))
        # Check again: a server that has sent a heartbeat or claimed a task since keeps its tasks.
        seen = observe(session, observation.window)
    for server in (*seen.alive, *seen.unregistered):
        reason = death(server) if server.boot_id in suspects else None
        if reason is None:
            continue
        tries = [task for task in held if task.boot_id == server.boot_id]
        again = sum(not task.runs_once for task in tries)
        # Before the tries are ended: another worker may run them at once, and log it.
        log.log(
            logging.WARNING if tries else logging.DEBUG,
            "process %s on %s %s; %d %s that it held will run again",
            server.pid,
            server.server_name,
            reason,
            again,
            "step" if again == 1 else "steps",
            extra={"action": "server_lost"},
        )
        if report_lost_tries(engine, tries, "the worker"):
            continue
        with engine.database.write() as session:
            session.servers.mark_dead(server)
        dead.add(server.boot_id)
    return dead


# --- tries ---


def report_lost_tries(engine: Engine, held: Sequence[HeldTask], who: str) -> list[HeldTask]:
    """End the tries of a dead process as lost; release those that it had not started.

    Returns the tries of runs that are locked: the next pass finds them again.
    """

    def lose(task: HeldTask) -> bool:
        if task.runs_once or _was_started(engine, task):
            reason = f"{who} (pid {task.pid}) that ran {task.step_path} died"
            return _end(engine, task, Lost(reason), wait=False)
        return _release(engine, task)

    left = _each(held, lose)
    unsettled = {(task.boot_id, task.pid) for task in left}
    for boot_id, pid in {(task.boot_id, task.pid) for task in held} - unsettled:
        if pid is not None:
            InFlightMarkers(engine.settings.spool_directory, boot_id).forget(pid)
    return left


def _was_started(engine: Engine, task: HeldTask) -> bool:
    """Whether a dead process had started a task; without its marker, every task counts."""
    if task.pid is None:
        return True
    marked = InFlightMarkers(engine.settings.spool_directory, task.boot_id).of(task.pid)
    return marked is None or task.task_id in marked


def release_dropped(engine: Engine, held: Sequence[HeldTask]) -> None:
    """Release the tasks of a worker that shuts down: no try and no loss is counted.

    A try that must not run twice is lost instead: it was started, and its progress is unknown.
    """

    def drop(task: HeldTask) -> bool:
        if task.runs_once:
            who = f"the worker (pid {task.pid}) that ran {task.step_path}"
            return _end(engine, task, Lost(f"{who} was shut down before it finished"), wait=True)
        return _release(engine, task)

    _each(held, drop)


def release_unstarted(engine: Engine, held: Sequence[HeldTask]) -> None:
    _each(held, lambda task: _release(engine, task))


def fail_silent_tries(engine: Engine, window: LivenessWindow) -> None:
    """Fail the tries that have shown no activity for longer than their timeout."""
    with engine.database.read() as session:
        overdue = session.recovery.overdue(window.now)

    def fail(task: HeldTask) -> bool:
        seconds = (task.timeout_ms or 0) / 1000
        message = f"no activity for more than its timeout of {seconds:g} s"
        error = {"type": recovery_queries.TIMEOUT, "message": message}
        return _end(engine, task, Failed(error), wait=False)

    _each([t for t in overdue if window.is_silent(t.activity, t.timeout_ms or 0)], fail)


def _end(engine: Engine, task: HeldTask, outcome: Outcome, *, wait: bool) -> bool:
    return engine.end_try(task.run_id, task.task_id, task.lease, outcome, wait=wait)


def _release(engine: Engine, task: HeldTask) -> bool:
    return engine.release_held([(task.task_id, task.lease)])


def _each(items: Iterable[T], act: Callable[[T], object]) -> list[T]:
    """Act on each; return those with which nothing was done."""
    left = []
    for item in items:
        try:
            if act(item) is False:
                left.append(item)
        except Exception as problem:
            left.append(item)
            if is_unavailable(problem):
                log.debug("recovery of %s failed: %s; it is tried again", _shown(item), problem)
            else:
                log.exception(
                    "recovery of %s failed; the next pass tries again",
                    _shown(item),
                    extra={"action": "recovery_item_failed"},
                )
    return left


def _shown(item: object) -> str:
    """Return a held task, a queue of runs or the id of a run as the log names it."""
    if isinstance(item, HeldTask):
        return f"{item.step_path} of run {item.run_id}"
    if isinstance(item, tuple):
        tenant, workflow, key = item
        return f"the queue of {workflow} with key {key!r}" + (f" of {tenant}" if tenant else "")
    return f"run {item}"


# --- runs and task lists ---


def serve_clock(engine: Engine) -> None:
    """Report due timers and start the runs of due schedules."""
    with engine.database.read() as session:
        timers, schedules = session.recovery.due_by_clock(session.now())
    if timers:
        fire_due_timers(engine)
    if schedules:
        engine.schedules.take_due()


def fire_due_timers(engine: Engine) -> None:
    """Report timers that are due to their runs, which are evaluated with all others then."""
    with engine.database.write() as session:
        session.recovery.fire_due_timers(session.now())


def evaluate_reported_runs(engine: Engine) -> None:
    """Evaluate runs with reports or facts that nobody has evaluated."""
    with engine.database.read() as session:
        now = session.now()
        max_wait = round(2000 * engine.settings.watchdog_interval)
        failed = engine.failed_evaluations
        # Runs that cannot be evaluated stay; with a fixed limit, enough of them would hide others.
        most = MANY + len(failed)
        reported = session.recovery.unevaluated_runs(now, max_wait, most)
        found = {*reported, *session.recovery.runs_with_facts(most, uuid.uuid4().hex)}
    due = sorted(run_id for run_id in found if not failed.is_postponed(run_id))
    # The transaction that has locked a run evaluates it.
    served: set[str] = set()
    _each(due, lambda run_id: engine.advance(run_id, wait=False, served=served))


def serve_queues(engine: Engine) -> None:
    """Admit tasks that wait for limits and rates, and begin runs that wait for a singleton key."""
    with engine.database.read() as session:
        tasks_wait, runs_wait = session.admission.has_waiting()
    if tasks_wait:
        admit_waiting_tasks(engine)
    if runs_wait:
        begin_queued_runs(engine)


def admit_waiting_tasks(engine: Engine) -> None:
    """Admit tasks for which a rate or their due time has come, or which nobody has looked at.

    Of the queues with waiting tasks a page is looked at, from a random one on: a process that died
    after its commit has admitted none. The cost of a pass does not follow the number of queues.
    """
    with engine.database.read() as session:
        rows, now = session.admission, session.now()
        keys, queues = rows.due_keys(now), rows.due_queues(now)
        page = rows.waiting_queues(uuid.uuid4().hex, MANY)
        if len(page) < MANY:
            page = rows.waiting_queues("", MANY) | page
        known = rows.queues(page)
        passable = rows.passable(page)
    queues |= {q: limits for q, limits in page.items() if q not in known or q in passable}
    if keys or queues:
        engine.admit(queues, keys)


def begin_queued_runs(engine: Engine) -> None:
    """Begin queued runs whose singleton key is free: the process that ended the last one died."""

    def begin(key: tuple[str, str, str]) -> None:
        while run_id := engine.singletons.begin_next(*key):
            engine.advance(run_id, wait=False)

    _each(engine.singletons.free(uuid.uuid4().hex), begin)


def purge_expired(engine: Engine) -> None:
    """Remove runs and turns by their settings, expired results, and idle keys of limits."""
    engine.purger.purge_due(_PURGE_SECONDS)
    engine.purger.remove_expired(_PURGE_SECONDS)


def notify_due_lists(engine: Engine, _: object = None) -> None:
    """Wake this process for each task list with a due task of its facets."""
    if not (names := event_facet_names()):
        return
    with engine.database.read() as session:
        due = session.recovery.due_lists(names, session.now())
    if due:
        engine.notifier.repeat(dict.fromkeys(due, engine.settings.wakeup_fanout))


def notify_due_tasks(engine: Engine, alive: Sequence[ServerDefinition]) -> None:
    """Wake the servers for retries that are due now, and for tasks that are overdue.

    The wake-up of an overdue task was lost or never sent, or all workers are busy: a long queue is
    no fault. So each list gets one wake-up, and none again for `wakeup_repeat` seconds.

    Messages reach the servers of this engine's broker. Those of another one wake themselves.
    """
    settings = engine.settings
    near = [server for server in alive if liveness.is_reachable(server, engine.broker)]
    foreign = _foreign_lists(near, alive) if len(near) < len(alive) else set()
    of_broker = f"{engine.broker}:" if len(near) < len(alive) else ""
    alive = near
    with engine.database.write() as session:
        now = session.now()
        names = sorted({name for server in alive for name in server.handlers})
        retries = session.recovery.take_due_retries(now, foreign)
        max_wait = round(2000 * settings.watchdog_interval)
        due = session.recovery.due_lists(names, now - max_wait) if names else []
        pause = round(settings.wakeup_repeat * 1000)
        overdue = [
            task_list
            for task_list in due
            # In a list without a consumer, wake-ups would pile up.
            if task_list not in foreign
            and any(liveness.consumes(server, task_list) for server in alive)
            and session.locks.acquire(
                f"wakeup:{of_broker}{task_list}", uuid.uuid4().hex, pause, now
            )
        ]
    wake_ups = {**dict.fromkeys(overdue, settings.wakeup_fanout), **retries}
    # A message for a list that pollers alone consume would stay in its queue.
    polled = {name: wake_ups[name] for name in wake_ups if _is_polled(alive, name)}
    if messages := {name: wake_ups[name] for name in wake_ups if name not in polled}:
        engine.notifier.repeat(messages)
    engine.pollers.wake(polled)


def _foreign_lists(near: Sequence[ServerDefinition], alive: Sequence[ServerDefinition]) -> set[str]:
    """Return the task lists that only servers of other brokers name."""
    of_all = {task_list for server in alive for task_list in server.topics}
    return of_all.difference(*(server.topics for server in near))


def _is_polled(alive: Sequence[ServerDefinition], task_list: str) -> bool:
    """Whether pollers consume the list, and nobody who receives messages."""
    consumers = [server for server in alive if liveness.consumes(server, task_list)]
    return bool(consumers) and all(server.is_poller for server in consumers)


def wake_pollers(engine: Engine, alive: Sequence[ServerDefinition]) -> None:
    """Wake the pollers of task lists that have due tasks of theirs; send no message."""
    pollers = [server for server in alive if server.is_poller]
    names = sorted({name for server in pollers for name in server.handlers})
    if names:
        with engine.database.read() as session:
            due = session.recovery.due_lists(names, session.now())
        engine.pollers.wake(dict.fromkeys(due, engine.settings.wakeup_fanout))


def alarm_unserved_tasks(engine: Engine, alive: Sequence[ServerDefinition] | None = None) -> None:
    """Set an alarm on runs that wait for a facet nobody serves; remove it when somebody does."""
    with engine.database.read() as session:
        pending = session.recovery.pending_names()
        old = session.recovery.alarms(liveness.UNSERVED)
        if not pending and not old:
            engine.alarms.keep(liveness.UNSERVED, old, {})
            return
        alive = session.servers.alive() if alive is None else alive
    new = liveness.unserved_alarms(alive, pending)
    engine.alarms.keep(liveness.UNSERVED, old, new)

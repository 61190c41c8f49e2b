"""What the watchdog does: look for what was left lying, and report it.

A sweep decides nothing. It finds rows, and reports what happened to them to the evaluator
like anybody else. Each row is dealt with in its own transaction, so that one that cannot
be dealt with does not stop the others; what goes wrong is logged and found again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection

from flowengine.engine.engine import Engine
from flowengine.engine.in_flight import InFlightMarkers
from flowengine.evaluator.triggers import Failed, Lost, Outcome
from flowengine.store import locks, recovery_queries, runs, servers
from flowengine.store.recovery_queries import HeldTask
from flowengine.store.servers import ServerDefinition

log = logging.getLogger("flowengine")
T = TypeVar("T")
_UNSERVED = "waits for a worker of task list"


def sweep(
    engine: Engine, names: Sequence[str], is_dead: Callable[[ServerDefinition], bool]
) -> None:
    """Do all sweeps once, for a process that has the code of those facets."""
    recover_lost_servers(engine, is_dead)
    fail_silent_tries(engine)
    unevaluated_runs(engine)
    notify_due_lists(engine, names)
    alarm_unserved_tasks(engine)


def recover_lost_servers(engine: Engine, is_dead: Callable[[ServerDefinition], bool]) -> None:
    """Report the tries of dead servers as lost."""
    with engine.database.read() as connection:
        boots = [server.boot_id for server in _dead(connection, is_dead)]
        held = recovery_queries.held_by_boots(connection, boots) if boots else []
        # Once more: what a server holds that has woken up meanwhile is its own.
        dead = _dead(connection, is_dead) if boots else []
    found = {server.boot_id for server in dead}
    report_lost_tries(engine, [task for task in held if task.boot_id in found], "the worker")
    for server in dead:
        log.warning(
            "server %s (pid %s) is dead; tries it held are lost",
            server.server_name,
            server.pid,
            extra={"action": "server_lost"},
        )
        with engine.database.write() as connection:
            servers.mark_dead(connection, server)


def _dead(
    connection: Connection, is_dead: Callable[[ServerDefinition], bool]
) -> list[ServerDefinition]:
    known = servers.alive(connection)
    known += _unattended(connection, {server.boot_id for server in known})
    return [server for server in known if is_dead(server)]


def _unattended(connection: Connection, attended: Collection[str]) -> list[ServerDefinition]:
    """Return who holds something and is not among the living.

    It claimed and died before it was registered, or before it beat again after it had been
    taken for dead, or it claimed after its farewell; or it is a poller, which is not registered.
    To claim a task, or to beat for it, is a sign of life, too.
    """
    signs = recovery_queries.last_signs(connection, attended)
    if not signs:
        return []
    known = {server.boot_id: server for server in servers.by_boot_ids(connection, sorted(signs))}
    found = []
    for boot_id, at in signs.items():
        server = known.get(boot_id) or ServerDefinition("", "", "", boot_id, boot_id=boot_id)
        found.append(replace(server, ping_time=max(server.ping_time, at)))
    return found


def report_lost_tries(engine: Engine, held: Sequence[HeldTask], who: str) -> None:
    """Report these tries as lost, because whoever ran them is gone.

    One that is known not to have begun is handed back instead.
    """

    def lose(task: HeldTask) -> None:
        if task.runs_once or _had_begun(engine, task):
            _end(engine, task, Lost(f"{who} (pid {task.pid}) that ran {task.step_path} died"))
        else:
            engine.release_by_lease(task.task_id, task.lease, task.task_list)

    _each(held, lose)
    for boot_id, pid in {(task.boot_id, task.pid) for task in held if task.pid is not None}:
        InFlightMarkers(engine.settings.spool_directory, boot_id).forget(pid)


def _had_begun(engine: Engine, task: HeldTask) -> bool:
    """Whether a dead process had begun with a task, as far as anybody can tell."""
    if task.pid is None:
        return True
    marked = InFlightMarkers(engine.settings.spool_directory, task.boot_id).of(task.pid)
    return marked is None or task.task_id in marked


def release_dropped(engine: Engine, held: Sequence[HeldTask]) -> None:
    """Hand back what a worker drops because it has to go.

    That counts neither as a try nor as a loss: nobody died. But a try that must not be made
    twice has begun, and nobody knows how far it came.
    """

    def drop(task: HeldTask) -> None:
        if task.runs_once:
            who = f"the worker (pid {task.pid}) that ran {task.step_path}"
            _end(engine, task, Lost(f"{who} was told to drop it"))
        else:
            engine.release_by_lease(task.task_id, task.lease, task.task_list)

    _each(held, drop)


def release_unstarted(engine: Engine, held: Sequence[HeldTask]) -> None:
    """Hand back what somebody claimed and surely never began with."""
    _each(held, lambda task: engine.release_by_lease(task.task_id, task.lease, task.task_list))


def fail_silent_tries(engine: Engine) -> None:
    """Fail the tries that have shown no activity for longer than their timeout."""
    with engine.database.read() as connection:
        overdue = recovery_queries.overdue(connection, engine.database.now(connection))

    def fail(task: HeldTask) -> None:
        seconds = (task.timeout_ms or 0) / 1000
        message = f"no activity for more than its timeout of {seconds:g} s"
        _end(engine, task, Failed({"type": recovery_queries.TIMEOUT, "message": message}))

    _each(overdue, fail)


def unevaluated_runs(engine: Engine) -> None:
    """Evaluate runs that have reports or facts nobody took in."""
    with engine.database.read() as connection:
        now = engine.database.now(connection)
        max_wait = round(2000 * engine.settings.watchdog_interval)
        reported = recovery_queries.unevaluated_runs(connection, now, max_wait)
        found = {*reported, *runs.runs_with_facts(connection)}
    # Who has locked a run evaluates it. To wait for that would keep us from all others.
    _each(sorted(found), lambda run_id: engine.advance(run_id, wait=False))


def notify_due_lists(engine: Engine, names: Sequence[str]) -> None:
    """Ring for lists that have something due: the bell may have been lost, or never rung."""
    if not names:
        return
    with engine.database.read() as connection:
        due = recovery_queries.due_lists(connection, names, engine.database.now(connection))
    if due:
        engine.notifier.repeat(dict.fromkeys(due, engine.settings.wakeup_fanout))


def notify_due_tasks(engine: Engine) -> None:
    """Ring for retries that are due now, and for what has been due for a while.

    Of the second kind the bell was lost, or its ringer died before ringing, or all who could
    answer are busy: a long queue is no fault. So it is one bell per list, and not again for
    some seconds.
    """
    settings = engine.settings
    with engine.database.write() as connection:
        now = engine.database.now(connection)
        alive = servers.alive(connection)
        names = sorted({name for server in alive for name in server.handlers})
        retries = recovery_queries.take_due_retries(connection, now)
        max_wait = round(2000 * settings.watchdog_interval)
        due = recovery_queries.due_lists(connection, names, now - max_wait) if names else []
        pause = round(settings.wakeup_repeat * 1000)
        ringing = [
            task_list
            for task_list in due
            # Where nobody listens, bells would pile up.
            if any(_consumes(server, task_list) for server in alive)
            and locks.acquire(connection, f"bell:{task_list}", uuid.uuid4().hex, pause, now)
        ]
    if ringing or retries:
        engine.notifier.repeat({**dict.fromkeys(ringing, settings.wakeup_fanout), **retries})


def alarm_unserved_tasks(engine: Engine) -> None:
    """Say on the run which facets nobody has the code of; take it back when somebody has."""
    with engine.database.read() as connection:
        waiting = recovery_queries.pending_names(connection)
        known = recovery_queries.alarms(connection, _UNSERVED)
        if not waiting and not known:
            return
        alive = servers.alive(connection)
    alarms = {
        run_id: alarm
        for run_id, name, task_list in waiting
        if (alarm := _alarm(alive, name, task_list)) is not None
    }
    if alarms != known:
        gone: dict[str, str | None] = dict.fromkeys(known.keys() - alarms.keys())
        with engine.database.write() as connection:
            recovery_queries.set_alarms(connection, gone | alarms)


def _alarm(alive: Sequence[ServerDefinition], name: str, task_list: str) -> str | None:
    """Say what a task waits for that nobody serves."""
    short = name.rpartition(".")[2]
    knowing = [server for server in alive if {name, short} & set(server.handlers)]
    if not knowing:
        return (
            f"{_UNSERVED} {task_list!r} that has the code of event facet {name!r}: import "
            "the module that decorates it, or start a worker that does"
        )
    if not any(_consumes(server, task_list) for server in knowing):
        return (
            f"{_UNSERVED} {task_list!r}: {knowing[0].server_name} has the code of event facet "
            f"{name!r} but consumes {', '.join(knowing[0].topics)}; add {task_list!r} to a "
            "worker's -Q"
        )
    return None


def _consumes(server: ServerDefinition, task_list: str) -> bool:
    return not server.topics or task_list in server.topics


def _end(engine: Engine, task: HeldTask, outcome: Outcome) -> None:
    engine.end_try(task.run_id, task.task_id, task.lease, outcome)


def _each(found: Iterable[T], act: Callable[[T], object]) -> None:
    for item in found:
        try:
            act(item)
        except Exception:
            log.exception("the watchdog could not deal with %s", item)

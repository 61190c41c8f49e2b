"""The Celery tasks of flowengine: ids in, one call to the engine.

They never fail: the row a message concerns is still there after an error, and recovery sends its
wake-up again. Messages are acknowledged early for the same reason: SQL, not the broker, records
what is unfinished. Only `flowengine.execute` has no row yet: a start that is refused is a failed
Celery task.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery.exceptions import Reject

from flowengine.authoring import (
    EventFacet,
    event_facet_named,
    event_facet_names,
    workflow_names,
)
from flowengine.dispatch.notifier import DRAIN, EVALUATE, WORK
from flowengine.dispatch.packed_ids import unpacked
from flowengine.engine import Engine
from flowengine.engine.liveness import consumes, is_reachable
from flowengine.errors import StartRefused
from flowengine.printable import clipped, names_of
from flowengine.program.standard import is_built_in
from flowengine.store.claims import WorkerIdentity
from flowengine.store.failures import is_unavailable
from flowengine.tasks.signature_check import SignatureCheck
from flowengine.tasks.start_messages import MessageHandler, StartMessages, name_of
from flowengine.tasks.ticks import Tick
from flowengine.worker.outage_log import OutageLog

log = logging.getLogger("flowengine")

EXECUTE = "flowengine.execute"
WATCHDOG = "flowengine.watchdog"
#: Messages that only wake a worker: they are neither events for Flower nor log lines at INFO.
WAKEUPS = frozenset((DRAIN, WORK, EVALUATE, WATCHDOG))

_REQUEST = "flowengine.tasks.lost_tries:WakeupRequest"
#: Seconds for which the code of the other workers is cached: in a fleet of one version the relay
#: costs one query in that time, and none while nothing is consumed.
_CACHED = 1.0
#: How often a wake-up is passed on by processes that have no room for another coroutine.
_HOPS_FULL = 3


def register_celery_tasks(
    app: Any, handler: MessageHandler, outages: OutageLog, check: SignatureCheck | None = None
) -> None:
    """Register the tasks; with a `check` they refuse messages that are not signed."""

    def work(task_list: str, packed_ids: str) -> None:
        """Work on these tasks: the header of a chord. Tasks claimed by others are skipped."""
        handler.work(task_list, unpacked(packed_ids))

    def register(name: str, function: Callable[..., None], **options: Any) -> None:
        _register(app, outages, check, name, function, Request=_REQUEST, **options)

    register(DRAIN, handler.drain)
    # Not every backend counts a header whose result is ignored.
    register(WORK, work, ignore_result=False)
    register(EVALUATE, handler.evaluate)
    register(WATCHDOG, handler.watch, base=Tick)
    start = StartMessages(handler, outages)
    _register(app, outages, check, EXECUTE, start.execute, is_start=True)


def register_workflows(
    app: Any, handler: MessageHandler, outages: OutageLog, check: SignatureCheck | None = None
) -> None:
    """Register a task for each workflow of this process, unless the app has one of its name.

    A task that became a workflow still gets messages: of the beat, of other services, and those
    that were under way. Each starts one run.
    """
    start = StartMessages(handler, outages)
    for name in workflow_names():
        if name not in app.tasks and not is_built_in(name):
            function = functools.partial(start.as_task, name)
            _register(app, outages, check, name, function, is_start=True, ignore_result=False)


def _register(
    app: Any,
    outages: OutageLog,
    check: SignatureCheck | None,
    name: str,
    function: Callable[..., object],
    *,
    is_start: bool = False,
    **options: Any,
) -> None:
    def task(*args: Any, **kwargs: Any) -> object:
        if check is not None:
            if is_start:  # bound: the first argument is the task
                check.once(name, registered.request, args[1:], kwargs)
            else:
                check.wake_up(name, registered.request, args, kwargs)
        try:
            with outages.watch():
                return function(*args, **kwargs)
        except (Reject, StartRefused):
            raise
        except Exception as problem:
            about = {"action": "message_failed"}
            shown = ", ".join(map(_without_values, args))
            if is_unavailable(problem):  # counted; recovery repeats it
                log.debug("message %s(%s) failed: %s", name, shown, problem, extra=about)
            else:
                then = "the start is refused" if is_start else "recovery repeats it"
                log.exception("message %s(%s) failed: %s", name, shown, then, extra=about)
            if is_start:  # no row stands behind it: the sender must know
                reason = f"{type(problem).__name__}; the log of the worker has the traceback"
                named: object = name
                if name == EXECUTE:
                    named = args[1] if len(args) > 1 else kwargs.get("workflow", "")
                raise StartRefused(name_of(named), reason) from None
        return None

    if hasattr(function, "__name__"):
        functools.update_wrapper(task, function)
    # Not shared: Celery would add a shared task to every other app of the process, and of two
    # with one name keep the first. Flower shows steps, not the messages that lead to them.
    chosen = {"ignore_result": True, "acks_late": False, "send_events": False, **options}
    if is_start:
        # No row stands behind such a message until its run is stored.
        chosen |= {"bind": True, "acks_late": True, "reject_on_worker_lost": True}
        chosen |= {"send_events": True, "store_errors_even_if_ignored": True}
        chosen |= {"throws": (StartRefused,)}  # it is logged, without values
    registered = app.task(task, name=name, shared=False, **chosen)


def _without_values(argument: object) -> str:
    """Describe an argument in a log line: a map of inputs by its names."""
    return names_of(argument) if isinstance(argument, dict) else clipped(repr(argument), 100)


def register_facets(
    sender: Any, check: Callable[[], SignatureCheck | None] = lambda: None, **_: Any
) -> None:
    """Register every event facet of this process on an app that does not have it yet.

    They appear under their own names in `inspect registered`, routes and Flower, and `send_task`
    can call one outside any run. Steps of runs are not executed this way: they are claimed from
    the database. Built-in facets are not registered: a message of anybody who reaches the broker
    could run a script. Only the engine starts them, for the steps of runs.

    `check` is asked when a facet is called: an app may be configured after its tasks are known.
    """
    for name in event_facet_names():
        facet = event_facet_named(name)
        if facet is not None and name not in sender.tasks and not is_built_in(name):
            _register_facet(sender, name, facet, check)


def _register_facet(
    app: Any,
    name: str,
    facet: EventFacet[..., Any],
    check: Callable[[], SignatureCheck | None],
) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        if (signed := check()) is not None:
            signed.once(name, registered.request, args, kwargs)
        return facet(*args, **kwargs)

    call.__doc__ = facet.__doc__
    registered = app.task(call, name=name, shared=False)


class WakeupRelay:
    """Passes a wake-up on if tasks are left that only other workers can run.

    Workers of two versions may consume one task list. A wake-up for a task that only one of them
    can run may be consumed by the other, which claims nothing; without a relay the task would wait
    for recovery, and recovery's wake-up may meet the wrong worker again. So may a wake-up for tasks
    that this worker has no room for, by its limits, and another has.
    """

    def __init__(
        self, engine: Engine, identity: WorkerIdentity, declined: Callable[[], Sequence[str]] = list
    ) -> None:
        """`declined` returns the facets that this process has no room for."""
        self._engine, self._identity, self._declined = engine, identity, declined
        #: By task list: whether other workers consume it, and the facets that only they have.
        self._others: dict[str, tuple[float, bool, list[str]]] = {}

    def relay(self, task_list: str, wake: int, hops: int) -> None:
        """Send the wake-up again if it concerns others; `hops` limits how often that is done."""
        has_others, foreign = self._known_others(task_list)
        declined = self._declined()
        if has_others and self._engine.limited_claims.apply_to(self._identity):
            declined = event_facet_names()
        if not foreign:  # all others may be full as well
            hops = min(hops, _HOPS_FULL)
        if hops <= 0 or not (names := [*foreign, *declined]):
            return
        with self._engine.database.read() as session:
            due = session.recovery.due_lists(names, session.now())
        if task_list in due:
            self._engine.notifier.pass_on(task_list, wake, hops - 1)

    def _known_others(self, task_list: str) -> tuple[bool, list[str]]:
        """Return whether other living workers consume the list, and the facets only they have."""
        read_at, has_others, names = self._others.get(task_list, (-_CACHED, False, []))
        now = time.monotonic()
        if now - read_at >= _CACHED:
            with self._engine.database.read() as session:
                alive = session.servers.alive()
            others = [
                server
                for server in alive  # a poller receives no wake-ups
                if not server.is_poller
                and server.uuid != self._identity.server_id
                and is_reachable(server, self._engine.broker)
                and consumes(server, task_list)
            ]
            theirs = {name for server in others for name in server.handlers}
            names = sorted(theirs.difference(event_facet_names()))
            has_others = bool(others)
            self._others[task_list] = now, has_others, names
        return has_others, names

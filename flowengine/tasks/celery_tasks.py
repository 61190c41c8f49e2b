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
from typing import Any, Protocol

from celery.exceptions import Reject

from flowengine.authoring import EventFacet, event_facet_named, event_facet_names
from flowengine.dispatch.notifier import DRAIN, EVALUATE, WORK
from flowengine.dispatch.packed_ids import unpacked
from flowengine.engine import Engine
from flowengine.engine.liveness import consumes
from flowengine.errors import FlowengineError, StartRefused
from flowengine.printable import clipped, names_of
from flowengine.program.standard import is_built_in
from flowengine.store.claims import WorkerIdentity
from flowengine.store.failures import is_unavailable
from flowengine.tasks.signature_check import SignatureCheck
from flowengine.tasks.ticks import Tick
from flowengine.worker.outage_log import OutageLog

log = logging.getLogger("flowengine")

EXECUTE = "flowengine.execute"
WATCHDOG = "flowengine.watchdog"
#: Messages that only wake a worker: they are neither events for Flower nor log lines at INFO.
WAKEUPS = frozenset((DRAIN, WORK, EVALUATE, WATCHDOG))

_PAUSE = 1.0  # seconds until a start that met no database goes back to its queue
#: Seconds for which the code of the other workers is cached: in a fleet of one version the relay
#: costs one query in that time, and none while nothing is consumed.
_CACHED = 1.0
#: How often a wake-up is passed on by processes that have no room for another coroutine.
_HOPS_FULL = 3


class MessageHandler(Protocol):
    """Executes the messages of an app."""

    def drain(self, task_list: str, wake: int = 1, hops: int | None = None) -> None:
        """Work on the due tasks of a list. A surplus wake-up finds nothing and ends.

        `hops` is set in a wake-up that was passed on: how often it still may be.
        """

    def work(self, task_list: str, task_ids: list[str]) -> None: ...
    def evaluate(self, run_id: str) -> None: ...
    def execute(
        self, workflow: str, inputs: dict[str, Any], key: str, if_failed: str, message_id: str
    ) -> None: ...

    def watch(self) -> None: ...


def register_celery_tasks(
    app: Any, handler: MessageHandler, outages: OutageLog, check: SignatureCheck | None = None
) -> None:
    """Register the tasks; with a `check` they refuse messages that are not signed."""

    def work(task_list: str, packed_ids: str) -> None:
        """Work on these tasks: the header of a chord. Tasks claimed by others are skipped."""
        handler.work(task_list, unpacked(packed_ids))

    def execute(
        task: Any,
        workflow: str,
        inputs: dict[str, Any] | None = None,
        key: str | None = None,
        if_failed: str = "return",
    ) -> None:
        """Start a workflow by name. Idempotent: without a key the message's id is the key.

        No row stands behind this message yet, so it is acknowledged when the run is stored, and
        goes back to its queue while the database is unreachable.
        """
        try:
            sent_as = task.request.id or ""
            handler.execute(workflow, inputs or {}, key or sent_as, if_failed, sent_as)
        except Exception as problem:
            if isinstance(problem, FlowengineError) and not is_unavailable(problem):
                log.error(
                    "refused to start %s with the inputs %s: %s",
                    workflow,
                    names_of(inputs),
                    problem.without_values(),
                    extra={"action": "start_refused"},
                )
                raise StartRefused(_name(workflow), problem.without_values()) from None
            if not outages.note(problem):
                raise
            log.info("cannot start %s yet: %s", workflow, problem, extra={"action": "start_waits"})
            time.sleep(_PAUSE)
            raise Reject(problem, requeue=True) from None

    def register(name: str, function: Callable[..., None], **options: Any) -> None:
        @functools.wraps(function)
        def task(*args: Any, **kwargs: Any) -> None:
            if check is not None:
                if name == EXECUTE:  # bound: the first argument is the task
                    check.once(name, registered.request, args[1:], kwargs)
                else:
                    check.wake_up(name, registered.request, args, kwargs)
            try:
                with outages.watch():
                    function(*args, **kwargs)
            except (Reject, StartRefused):
                raise
            except Exception as problem:
                about = {"action": "message_failed"}
                shown = ", ".join(map(_without_values, args))
                if is_unavailable(problem):  # counted; recovery repeats it
                    log.debug("message %s(%s) failed: %s", name, shown, problem, extra=about)
                else:
                    then = "the start is refused" if name == EXECUTE else "recovery repeats it"
                    log.exception("message %s(%s) failed: %s", name, shown, then, extra=about)
                if name == EXECUTE:  # no row stands behind it: the sender must know
                    reason = f"{type(problem).__name__}; the log of the worker has the traceback"
                    named = args[1] if len(args) > 1 else kwargs.get("workflow", "")
                    raise StartRefused(_name(named), reason) from None

        # Not shared: Celery would add a shared task to every other app of the process, and of two
        # with one name keep the first. Flower shows steps, not the messages that lead to them.
        chosen = {"ignore_result": True, "acks_late": False, "send_events": False, **options}
        registered = app.task(task, name=name, shared=False, **chosen)

    register(DRAIN, handler.drain)
    # Not every backend counts a header whose result is ignored.
    register(WORK, work, ignore_result=False)
    register(EVALUATE, handler.evaluate)
    register(
        EXECUTE,
        execute,
        bind=True,
        acks_late=True,
        reject_on_worker_lost=True,
        send_events=True,
        store_errors_even_if_ignored=True,
        throws=(StartRefused,),  # it is logged above, without values
    )
    register(WATCHDOG, handler.watch, base=Tick)


def _name(workflow: object) -> str:
    """Return the name in a message, which may be anything."""
    return workflow[:200] if isinstance(workflow, str) else f"a {type(workflow).__name__}"


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
            _register_facet(sender, facet, check)


def _register_facet(
    app: Any, facet: EventFacet[..., Any], check: Callable[[], SignatureCheck | None]
) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        if (signed := check()) is not None:
            signed.once(facet.name, registered.request, args, kwargs)
        return facet(*args, **kwargs)

    call.__doc__ = facet.__doc__
    registered = app.task(call, name=facet.name, shared=False)


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
                and consumes(server, task_list)
            ]
            theirs = {name for server in others for name in server.handlers}
            names = sorted(theirs.difference(event_facet_names()))
            has_others = bool(others)
            self._others[task_list] = now, has_others, names
        return has_others, names

"""Workers for people: the registered servers with what they hold, and their limits."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from flowengine.actors import Actor
from flowengine.engine.control import named_actor
from flowengine.errors import UnknownWorker, ValueRefused
from flowengine.program.limits import clipped
from flowengine.settings import MAX_HELD
from flowengine.store import Store
from flowengine.store.servers import ServerDefinition
from flowengine.store.worker_limits import Limits

log = logging.getLogger("flowengine")


class Unchanged:
    """The value of a limit that a change leaves as it is."""


UNCHANGED = Unchanged()


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A registered server: a Celery worker with its pool, an embedded process, a poller."""

    id: str
    name: str
    machine: str  #: its host name
    pid: int | None
    version: str  #: of flowengine
    state: str
    task_lists: list[str] = field(default_factory=list)  #: that it consumes; empty: all
    started: int = 0
    heartbeat: int = 0  #: when it sent the last one
    tries: int = 0  #: that it holds
    runs: int = 0  #: that it holds tries of
    max_tasks: int | None = None  #: None: any number
    max_workflows: int | None = None
    limits_set_by: str | None = None  #: the actor, if its limits are not those of its settings
    is_drained: bool = False  #: it finishes what it holds, and claims nothing


class Workers:
    """Reads the servers of one database, and sets their limits."""

    def __init__(self, database: Store) -> None:
        self._database = database

    def list(self) -> list[WorkerInfo]:
        """Return the servers that have not deregistered, by name; some of them may be dead."""
        with self._database.read() as session:
            servers = session.servers.alive()
            held = session.worker_limits.held_by({server.boot_id for server in servers})
            stored = session.worker_limits.all()
        found = []
        for server in servers:
            limits, actor = Limits(server.max_tasks, server.max_workflows), None
            if (of_name := stored.get(server.server_name)) is not None:
                limits, actor = _merged(of_name.limits, limits), of_name.actor
            found.append(_info(server, limits, actor, held.get(server.boot_id, (0, 0))))
        return sorted(found, key=lambda info: (info.name, info.started, info.id))

    def set_limits(
        self,
        name: str,
        *,
        tasks: int | Unchanged | None = UNCHANGED,
        workflows: int | Unchanged | None = UNCHANGED,
        actor: Actor | str = "",
        reason: str = "",
    ) -> Limits:
        """Set the limits of all servers of that name, now and after they are started again.

        A limit is a whole number from 1 to 1,000,000; `tasks=0` drains them. None removes one that
        was set: that of the settings of each server applies again. A server obeys within the
        interval of its heartbeat. Returns what is set for the name now. Raises UnknownWorker,
        ValueRefused.
        """
        for option, given, least in (("tasks", tasks, 0), ("workflows", workflows, 1)):
            _check(option, given, least)
        who = named_actor(actor)
        with self._database.write() as session:
            if not session.worker_limits.is_name(name):
                near = get_close_matches(name, session.worker_limits.names())
                raise UnknownWorker(name, tuple(near))
            before = session.worker_limits.get(name)
            limits = Limits(
                before.tasks if isinstance(tasks, Unchanged) else tasks,
                before.workflows if isinstance(workflows, Unchanged) else workflows,
            )
            now = session.now()
            session.worker_limits.put(name, limits, who, now)
            about: dict[str, Any] = {"actor": who, "reason": reason, "now": now}
            set_to = {"tasks": limits.tasks, "workflows": limits.workflows}
            kind = "drain" if limits.tasks == 0 else "undrain" if before.tasks == 0 else "limit"
            session.actions.add(uuid.uuid4().hex, kind, subject=name, options=set_to, **about)
        log.info(
            "limits of worker %s set by %s: %s tries, %s runs",
            name,
            who,
            "-" if limits.tasks is None else limits.tasks,
            "-" if limits.workflows is None else limits.workflows,
            extra={"action": "worker_limits_set"},
        )
        return limits

    def drain(self, name: str, *, actor: Actor | str = "", reason: str = "") -> None:
        """Let all servers of that name finish the tasks that they hold, and claim no others.

        They stay idle then, also after they are started again, until `undrain`. A server obeys
        within the interval of its heartbeat. Raises UnknownWorker.
        """
        self.set_limits(name, tasks=0, actor=actor, reason=reason)

    def undrain(self, name: str, *, actor: Actor | str = "", reason: str = "") -> None:
        """Let drained servers claim again, as many tasks as their settings say.

        Raises ValueRefused if they are not drained, and UnknownWorker.
        """
        with self._database.read() as session:
            is_drained = session.worker_limits.get(name).tasks == 0
        if not is_drained and any(info.name == name for info in self.list()):
            raise ValueRefused(f"worker {clipped(repr(name), 100)} is not drained")
        self.set_limits(name, tasks=None, actor=actor, reason=reason)

    def is_idle(self, name: str) -> bool:
        """Whether the drained servers of that name hold no task."""
        return not any(info.tries for info in self.list() if info.name == name)


def _check(option: str, given: object, least: int) -> None:
    if given is None or isinstance(given, Unchanged):
        return
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= MAX_HELD:
        raise ValueRefused(
            f"{option}={clipped(repr(given), 100)} is no limit of a worker: give a whole number "
            f"from {least} to {MAX_HELD:,}, or None to let its settings apply"
        )


def _merged(of_name: Limits, of_settings: Limits) -> Limits:
    return Limits(
        of_settings.tasks if of_name.tasks is None else of_name.tasks,
        of_settings.workflows if of_name.workflows is None else of_name.workflows,
    )


def _info(
    server: ServerDefinition, limits: Limits, actor: str | None, held: tuple[int, int]
) -> WorkerInfo:
    return WorkerInfo(
        id=server.uuid,
        name=server.server_name,
        machine=server.machine,
        pid=server.pid,
        version=server.version,
        state=server.state,
        task_lists=server.topics,
        started=server.start_time,
        heartbeat=server.ping_time,
        tries=held[0],
        runs=held[1],
        max_tasks=limits.tasks,
        max_workflows=limits.workflows,
        limits_set_by=actor,
        is_drained=server.is_drained,
    )

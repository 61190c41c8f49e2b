"""Servers: the processes that claim tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import Row

from flowengine.store import codec
from flowengine.store.lock_tokens import LockState, LockToken
from flowengine.store.parts import Part, quoted, statement


class ServerState:
    """The state of a server's registration."""

    STARTUP = "startup"
    RUNNING = "running"
    SHUTDOWN = "shutdown"
    ERROR = "error"

    ALIVE = frozenset({STARTUP, RUNNING})
    #: A server that was declared dead and sends a heartbeat is alive; a deregistered one is not.
    CAN_BEAT = ALIVE | {ERROR}
    ENDED = frozenset({SHUTDOWN, ERROR})


#: The `manager` of a poller: no message wakes it, it asks the database for tasks.
POLLER = "poller"


@dataclass(slots=True)
class HandledCount:
    """How many tries of one facet a server has run."""

    handler: str
    handled: int = 0  #: that gave a result
    not_handled: int = 0  #: that failed


@dataclass(slots=True)
class ServerDefinition:
    """A registered worker or poller."""

    uuid: str
    server_group: str
    service_name: str
    server_name: str
    server_ips: list[str] = field(default_factory=list)
    start_time: int = 0
    ping_time: int = 0
    topics: list[str] = field(default_factory=list)  #: task lists it consumes; empty: all
    handlers: list[str] = field(default_factory=list)
    handled: list[HandledCount] = field(default_factory=list)
    state: str = ServerState.STARTUP
    manager: str = ""
    error: dict[str, Any] | None = None
    boot_id: str = ""
    pid: int | None = None
    lock_file: str | None = None  #: held while an embedded process lives
    lock_token: str | None = None  #: of its session lock, on PostgreSQL
    version: str = ""  #: of flowengine
    machine: str = ""  #: its host name
    max_tasks: int | None = None  #: of its settings; None: any number
    max_workflows: int | None = None
    #: Whether somebody has limited the servers of its name to no task at all.
    is_drained: bool = False
    app: str = ""  #: the name of its Celery app; empty: it has none, or is of an older version
    broker: str = ""  #: the fingerprint of its broker, likewise

    @property
    def is_poller(self) -> bool:
        return self.manager == POLLER

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended; its process may be dead."""
        return self.state in ServerState.ALIVE


_UNSTORED = ("handled", "is_drained")
_COLUMNS = [field.name for field in fields(ServerDefinition) if field.name not in _UNSTORED]
_IS_DRAINED = (
    "EXISTS (SELECT 1 FROM flowengine_workerlimit l "
    "WHERE l.name = server_name AND l.max_tasks = 0) AS is_drained"
)
_JSON = ("server_ips", "topics", "handlers", "error")
_SELECT = f"SELECT {', '.join(_COLUMNS)}, {_IS_DRAINED} FROM flowengine_server"
_IS_ALIVE = f"state IN ({quoted(ServerState.ALIVE)})"
_ALIVE = statement(f"{_SELECT} WHERE {_IS_ALIVE}")
_POLLERS = f"SELECT uuid, topics FROM flowengine_server WHERE manager = '{POLLER}' AND {_IS_ALIVE}"
_OF_BOOTS = statement(f"{_SELECT} WHERE boot_id IN :boots", "boots")
_REGISTER = statement(
    f"INSERT INTO flowengine_server ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) ON CONFLICT DO NOTHING"
)
_DEFINE = statement("UPDATE flowengine_server SET definitions = :definitions WHERE uuid = :uuid")
_DEFINED = statement(
    _SELECT.replace(_IS_DRAINED, f"{_IS_DRAINED}, definitions") + " WHERE definitions IS NOT NULL"
)
_HEARTBEAT = statement(
    "UPDATE flowengine_server SET ping_time = :now, handlers = :handlers, topics = :topics, "
    f"lock_token = :lock_token, state = '{ServerState.RUNNING}', error = NULL "
    f"WHERE uuid = :uuid AND state IN ({quoted(ServerState.CAN_BEAT)}) RETURNING {_IS_DRAINED}"
)
# Without its token: its lock is free, and tasks with a spooled report may wait for their delivery.
_DEREGISTER = statement(
    f"UPDATE flowengine_server SET state = '{ServerState.SHUTDOWN}', lock_token = NULL "
    "WHERE uuid = :uuid"
)
# Optimistic: a server that has sent a heartbeat since it was read is alive and keeps its tasks.
_MARK_DEAD = statement(
    f"UPDATE flowengine_server SET state = '{ServerState.ERROR}', error = :error "
    f"WHERE uuid = :uuid AND ping_time = :seen AND {_IS_ALIVE}"
)
_ADD_HANDLED = statement(
    "INSERT INTO flowengine_handled AS h (server_id, handler, handled, not_handled) "
    "VALUES (:server_id, :handler, :handled, :not_handled) "
    "ON CONFLICT (server_id, handler) DO UPDATE SET handled = h.handled + excluded.handled, "
    "not_handled = h.not_handled + excluded.not_handled"
)
_HANDLED = statement(
    "SELECT server_id, handler, handled, not_handled FROM flowengine_handled "
    "WHERE server_id IN :ids",
    "ids",
)


class Servers(Part):
    """Registers servers, and records their heartbeats and counts."""

    def register(self, server: ServerDefinition) -> None:
        row = {
            name: codec.dump(value) if name in _JSON and value is not None else value
            for name in _COLUMNS
            for value in [getattr(server, name)]
        }
        self._session.execute(_REGISTER, row)

    def define(self, server_id: str, definitions: dict[str, Any]) -> None:
        """Store which code a server has for its facets."""
        values = {"uuid": server_id, "definitions": codec.dump(definitions)}
        self._session.execute(_DEFINE, values)

    def defined(self) -> list[tuple[ServerDefinition, dict[str, Any]]]:
        """Return the servers that have stored their code, with it; those that ended, too."""
        return [
            (_server_of(row), codec.load(row.definitions))
            for row in self._session.execute(_DEFINED)
        ]

    def record_heartbeat(self, server: ServerDefinition, now: int) -> bool:
        """Record a heartbeat, with the facets and lists of a server; return if it is drained."""
        values = {"uuid": server.uuid, "now": now, "lock_token": server.lock_token}
        values |= {name: codec.dump(getattr(server, name)) for name in ("handlers", "topics")}
        return bool(self._session.execute(_HEARTBEAT, values).scalar())

    def deregister(self, server_id: str) -> None:
        """Record that a server has shut down."""
        self._session.execute(_DEREGISTER, {"uuid": server_id})

    def mark_dead(self, server: ServerDefinition) -> None:
        """Declare a server dead, unless it has sent a heartbeat since it was read."""
        why = codec.dump({"type": "WorkerLost", "message": "found dead"})
        values = {"uuid": server.uuid, "seen": server.ping_time, "error": why}
        self._session.execute(_MARK_DEAD, values)

    def probe_lock(self, token: str) -> LockState:
        """Return whether the session lock of a token is held."""
        session, parsed = self._session, LockToken.parse(token)
        if parsed is None:
            return LockState.UNKNOWN
        incarnation, is_free = session.dialect.probe_lock(session.executor, parsed.key)
        return parsed.state(incarnation, is_free=is_free)

    def alive(self) -> list[ServerDefinition]:
        """Return the servers that have not deregistered; some of them may be dead."""
        return [_server_of(row) for row in self._session.execute(_ALIVE)]

    def lists_of_pollers(self) -> dict[str, list[str]]:
        """Return the task lists of the pollers that have not deregistered, by server id."""
        return {uuid: codec.load(topics) for uuid, topics in self._session.rows(_POLLERS, ())}

    def by_boot_ids(self, boot_ids: Sequence[str]) -> list[ServerDefinition]:
        """Return the servers with these boot ids, in any state."""
        return [
            _server_of(row) for row in self._session.execute(_OF_BOOTS, {"boots": list(boot_ids)})
        ]

    def add_handled(self, server_id: str, counts: Sequence[HandledCount]) -> None:
        """Add to the counts of a server. Its processes do so concurrently."""
        # Lock order: by facet. Two processes that count the same facets could deadlock.
        ordered = sorted(counts, key=lambda count: count.handler)
        rows = [{"server_id": server_id, **asdict(count)} for count in ordered]
        self._session.execute(_ADD_HANDLED, rows)

    def load_handled(self, found: Sequence[ServerDefinition]) -> None:
        """Fill in the counts of these servers."""
        by_id = {server.uuid: server for server in found}
        for row in self._session.execute(_HANDLED, {"ids": sorted(by_id)}):
            counted = HandledCount(row.handler, row.handled, row.not_handled)
            by_id[row.server_id].handled.append(counted)


def _server_of(row: Row[Any]) -> ServerDefinition:
    values = {name: getattr(row, name) for name in _COLUMNS}
    values |= {name: codec.load(values[name]) for name in _JSON}
    return ServerDefinition(**values, is_drained=bool(row.is_drained))

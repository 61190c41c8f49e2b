"""Servers: the processes that claim tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import Row, and_, bindparam, select, update

from flowengine.store import codec
from flowengine.store.parts import Part
from flowengine.store.tables import HandledRow, ServerRow

_table = ServerRow.__table__  # type: ignore[attr-defined]
_handled = HandledRow.__table__  # type: ignore[attr-defined]


class ServerState:
    """The state of a server's registration."""

    STARTUP = "startup"
    RUNNING = "running"
    SHUTDOWN = "shutdown"
    ERROR = "error"

    ALIVE = frozenset({STARTUP, RUNNING})
    #: A server that was declared dead and sends a heartbeat is alive; a deregistered one is not.
    CAN_BEAT = ALIVE | {ERROR}


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


_COLUMNS = [field.name for field in fields(ServerDefinition) if field.name != "handled"]
_JSON = ("server_ips", "topics", "handlers", "error")
_ALIVE = select(_table).where(_table.c.state.in_(sorted(ServerState.ALIVE)))
_HEARTBEAT = (
    update(_table)
    .where(and_(_table.c.uuid == bindparam("of"), _table.c.state.in_(sorted(ServerState.CAN_BEAT))))
    .values(
        ping_time=bindparam("now"),
        handlers=bindparam("names"),
        topics=bindparam("lists"),
        state=ServerState.RUNNING,
        error=None,
    )
)
_DEREGISTER = (
    update(_table).where(_table.c.uuid == bindparam("of")).values(state=ServerState.SHUTDOWN)
)
# Optimistic: a server that has sent a heartbeat since it was read is alive and keeps its tasks.
_MARK_DEAD = (
    update(_table)
    .where(
        and_(
            _table.c.uuid == bindparam("of"),
            _table.c.ping_time == bindparam("seen"),
            _table.c.state.in_(sorted(ServerState.ALIVE)),
        )
    )
    .values(state=ServerState.ERROR, error=bindparam("why"))
)
_OF_BOOTS = select(_table).where(_table.c.boot_id.in_(bindparam("boots", expanding=True)))
_HANDLED = select(_handled).where(_handled.c.server_id.in_(bindparam("ids", expanding=True)))


class Servers(Part):
    """Registers servers, and records their heartbeats and counts."""

    def register(self, server: ServerDefinition) -> None:
        row = {
            name: codec.dump(value) if name in _JSON and value is not None else value
            for name in _COLUMNS
            for value in [getattr(server, name)]
        }
        self._insert_or_ignore(_table, row)

    def record_heartbeat(self, server: ServerDefinition, now: int) -> None:
        """Record a heartbeat, with the facets and task lists of the server."""
        values = {
            "of": server.uuid,
            "now": now,
            "names": codec.dump(server.handlers),
            "lists": codec.dump(server.topics),
        }
        self._session.execute(_HEARTBEAT, values)

    def deregister(self, server_id: str) -> None:
        """Record that a server has shut down."""
        self._session.execute(_DEREGISTER, {"of": server_id})

    def mark_dead(self, server: ServerDefinition) -> None:
        """Declare a server dead, unless it has sent a heartbeat since it was read."""
        why = codec.dump({"type": "WorkerLost", "message": "found dead"})
        self._session.execute(_MARK_DEAD, {"of": server.uuid, "seen": server.ping_time, "why": why})

    def alive(self) -> list[ServerDefinition]:
        """Return the servers that have not deregistered; some of them may be dead."""
        return [_server_of(row) for row in self._session.execute(_ALIVE)]

    def by_boot_ids(self, boot_ids: Sequence[str]) -> list[ServerDefinition]:
        """Return the servers with these boot ids, in any state."""
        return [
            _server_of(row) for row in self._session.execute(_OF_BOOTS, {"boots": list(boot_ids)})
        ]

    def add_handled(self, server_id: str, counts: Sequence[HandledCount]) -> None:
        """Add to the counts of a server. Its processes do so concurrently."""
        statement = self._upsert(_handled)
        statement = statement.on_conflict_do_update(
            index_elements=["server_id", "handler"],
            set_={
                name: _handled.c[name] + statement.excluded[name]
                for name in ("handled", "not_handled")
            },
        )
        # Lock order: by facet. Two processes that count the same facets could deadlock.
        rows = sorted((c.handler, c.handled, c.not_handled) for c in counts)
        names = ("server_id", "handler", "handled", "not_handled")
        self._session.execute(
            statement, [dict(zip(names, (server_id, *row), strict=True)) for row in rows]
        )

    def load_handled(self, found: Sequence[ServerDefinition]) -> None:
        """Fill in the counts of these servers."""
        by_id = {server.uuid: server for server in found}
        for row in self._session.execute(_HANDLED, {"ids": sorted(by_id)}):
            counted = HandledCount(row.handler, row.handled, row.not_handled)
            by_id[row.server_id].handled.append(counted)


def _server_of(row: Row[Any]) -> ServerDefinition:
    values = {name: getattr(row, name) for name in _COLUMNS}
    return ServerDefinition(**values | {name: codec.load(values[name]) for name in _JSON})

"""Servers: the processes that claim tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, select, update
from sqlalchemy.dialects import postgresql, sqlite

from flowengine.store import codec
from flowengine.store.rows import insert_or_ignore
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
    topics: list[str] = field(default_factory=list)  #: task lists it consumes; none: all
    handlers: list[str] = field(default_factory=list)
    handled: list[HandledCount] = field(default_factory=list)
    state: str = ServerState.STARTUP
    manager: str = ""
    error: dict[str, Any] | None = None
    boot_id: str = ""
    pid: int | None = None
    lock_file: str | None = None  #: held while an embedded process lives


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
# Not if it has sent a heartbeat since: it lives, and nobody would recover its tasks later.
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


def register(connection: Connection, server: ServerDefinition) -> None:
    row = {
        "uuid": server.uuid,
        "boot_id": server.boot_id,
        "server_group": server.server_group,
        "service_name": server.service_name,
        "server_name": server.server_name,
        "server_ips": codec.dump(server.server_ips),
        "start_time": server.start_time,
        "ping_time": server.ping_time,
        "topics": codec.dump(server.topics),
        "handlers": codec.dump(server.handlers),
        "state": server.state,
        "manager": server.manager,
        "error": codec.dump(server.error) if server.error else None,
        "pid": server.pid,
        "lock_file": server.lock_file,
    }
    insert_or_ignore(connection, _table, [row])


def record_heartbeat(connection: Connection, server: ServerDefinition, now: int) -> None:
    """Record that a server lives, with its present handlers and task lists."""
    values = {
        "of": server.uuid,
        "now": now,
        "names": codec.dump(server.handlers),
        "lists": codec.dump(server.topics),
    }
    connection.execute(_HEARTBEAT, values)


def deregister(connection: Connection, server_id: str) -> None:
    connection.execute(_DEREGISTER, {"of": server_id})


def mark_dead(connection: Connection, server: ServerDefinition) -> None:
    """Declare a server dead unless it has sent a heartbeat since it was read."""
    why = codec.dump({"type": "WorkerLost", "message": "found dead"})
    connection.execute(_MARK_DEAD, {"of": server.uuid, "seen": server.ping_time, "why": why})


def alive(connection: Connection) -> list[ServerDefinition]:
    """Return the servers that have not deregistered; some of them may be dead."""
    return [_server_of(row) for row in connection.execute(_ALIVE)]


def by_boot_ids(connection: Connection, boot_ids: Sequence[str]) -> list[ServerDefinition]:
    """Return the servers with these boot ids, whatever became of them."""
    return [_server_of(row) for row in connection.execute(_OF_BOOTS, {"boots": list(boot_ids)})]


_HANDLED = select(_handled).where(_handled.c.server_id.in_(bindparam("ids", expanding=True)))


def count(connection: Connection, server_id: str, counts: Sequence[HandledCount]) -> None:
    """Add to what a server has handled; its processes do so beside each other."""
    build = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = build(_handled)
    statement = statement.on_conflict_do_update(
        index_elements=["server_id", "handler"],
        set_={
            name: _handled.c[name] + statement.excluded[name] for name in ("handled", "not_handled")
        },
    )
    # In one order: two processes that count the same facets must not wait for each other.
    rows = sorted((c.handler, c.handled, c.not_handled) for c in counts)
    names = ("server_id", "handler", "handled", "not_handled")
    connection.execute(
        statement, [dict(zip(names, (server_id, *row), strict=True)) for row in rows]
    )


def add_counts(connection: Connection, found: Sequence[ServerDefinition]) -> None:
    """Fill in what these servers have handled."""
    by_id = {server.uuid: server for server in found}
    for row in connection.execute(_HANDLED, {"ids": sorted(by_id)}):
        counted = HandledCount(row.handler, row.handled, row.not_handled)
        by_id[row.server_id].handled.append(counted)


def _server_of(row: Row[Any]) -> ServerDefinition:
    return ServerDefinition(
        uuid=row.uuid,
        server_group=row.server_group,
        service_name=row.service_name,
        server_name=row.server_name,
        server_ips=codec.load(row.server_ips) or [],
        start_time=row.start_time,
        ping_time=row.ping_time,
        topics=codec.load(row.topics) or [],
        handlers=codec.load(row.handlers) or [],
        state=row.state,
        manager=row.manager,
        error=codec.load(row.error),
        boot_id=row.boot_id,
        pid=row.pid,
        lock_file=row.lock_file,
    )

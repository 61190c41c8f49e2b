"""Servers: the processes that claim tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, select, update

from flowengine.store import codec
from flowengine.store.rows import insert_or_ignore
from flowengine.store.tables import ServerRow

_table = ServerRow.__table__  # type: ignore[attr-defined]


class ServerState:
    """Where a server stands."""

    STARTUP = "startup"
    RUNNING = "running"
    SHUTDOWN = "shutdown"
    ERROR = "error"

    ALIVE = frozenset({STARTUP, RUNNING})
    #: Found dead is not a farewell: whoever beats after it was only thought dead.
    MAY_BEAT = ALIVE | {ERROR}


@dataclass(slots=True)
class HandledCount:
    """How many tasks of one facet a server has handled."""

    handler: str
    handled: int = 0
    not_handled: int = 0


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
    topics: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    handled: list[HandledCount] = field(default_factory=list)
    state: str = ServerState.STARTUP
    manager: str = ""
    error: dict[str, Any] | None = None
    boot_id: str = ""
    pid: int | None = None
    lock_file: str | None = None  #: held while an embedded process lives


_ALIVE = select(_table).where(_table.c.state.in_(sorted(ServerState.ALIVE)))
_BEAT = (
    update(_table)
    .where(and_(_table.c.uuid == bindparam("of"), _table.c.state.in_(sorted(ServerState.MAY_BEAT))))
    .values(
        ping_time=bindparam("now"),
        handlers=bindparam("names"),
        state=ServerState.RUNNING,
        error=None,
    )
)
_LEAVE = (
    update(_table)
    .where(_table.c.uuid == bindparam("of"))
    .values(state=bindparam("to"), error=bindparam("why"))
)


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
        "handled": codec.dump([[c.handler, c.handled, c.not_handled] for c in server.handled]),
        "state": server.state,
        "manager": server.manager,
        "error": codec.dump(server.error) if server.error else None,
        "pid": server.pid,
        "lock_file": server.lock_file,
    }
    insert_or_ignore(connection, _table, [row])


def beat(connection: Connection, server_id: str, handlers: Sequence[str], now: int) -> None:
    values = {"of": server_id, "now": now, "names": codec.dump(list(handlers))}
    connection.execute(_BEAT, values)


def leave(
    connection: Connection, server_id: str, state: str, error: dict[str, Any] | None = None
) -> None:
    why = codec.dump(error) if error else None
    connection.execute(_LEAVE, {"of": server_id, "to": state, "why": why})


def alive(connection: Connection) -> list[ServerDefinition]:
    """Return the servers that have not left; some of them may have died."""
    return [_server_of(row) for row in connection.execute(_ALIVE)]


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
        handled=[HandledCount(*counts) for counts in codec.load(row.handled) or []],
        state=row.state,
        manager=row.manager,
        error=codec.load(row.error),
        boot_id=row.boot_id,
        pid=row.pid,
        lock_file=row.lock_file,
    )

"""The servers that are registered over the wire: agents of other processes and languages.

They are pollers in the registry of servers: a server that sends no heartbeat is declared dead by
recovery like any other, and its tasks run elsewhere.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from flowengine.engine import Engine
from flowengine.engine.recovery import release_dropped, release_unstarted
from flowengine.program.standard import is_built_in
from flowengine.sdk.wire import documents
from flowengine.sdk.wire.access import Caller
from flowengine.sdk.wire.leases import Key, KnownTasks
from flowengine.sdk.wire.refusals import Refused
from flowengine.store import Session
from flowengine.store.claims import WorkerIdentity
from flowengine.store.servers import POLLER, ServerDefinition, ServerState
from flowengine.worker.background import HandledCounters

_CACHED_SECONDS = 30.0  # that the row of a server is not read again
_MAX_CACHED = 10_000
_MAX_SERVERS = 1_000  # of one token that live at once


@dataclass(slots=True)
class WireServer:
    row: ServerDefinition
    token_id: str
    counters: HandledCounters
    read_at: float
    seen_at: float  #: when it last claimed or sent a heartbeat

    @property
    def identity(self) -> WorkerIdentity:
        return WorkerIdentity(self.row.uuid, self.row.boot_id)


class WireServers:
    """Shared by all threads of a process."""

    def __init__(
        self, engine: Engine, known: KnownTasks, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._known, self._clock = engine, known, clock
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, WireServer] = OrderedDict()  #: by boot id

    def ids(self) -> Collection[str]:
        with self._lock:
            return {server.row.uuid for server in self._cached.values()}

    def register(
        self, caller: Caller, wanted: documents.Registration, address: str
    ) -> documents.Registered:
        for task_list in wanted.task_lists:
            caller.need_list(task_list)
        check_facets(wanted.handlers)
        self._check_number(caller)
        server_id = uuid.uuid4().hex
        with self._engine.database.write() as session:
            now = session.now()
            row = ServerDefinition(
                server_id,
                wanted.server_group,
                wanted.service_name,
                wanted.server_name or address,
                [address],
                now,
                now,
                sorted(set(wanted.task_lists)),
                sorted(set(wanted.handlers)),
                state=ServerState.RUNNING,
                manager=POLLER,
                boot_id=caller.token.boot_of(server_id),
            )
            session.servers.register(row)
        self._cache(caller, row)
        settings = self._engine.settings
        return documents.Registered(
            server_id=server_id,
            heartbeat_interval_ms=round(self._interval * 1000),
            server_timeout_ms=round(settings.server_timeout * 1000),
            max_claimed_tasks=settings.max_claimed_tasks,
            max_claim_seconds=settings.max_claim_seconds,
            max_request_bytes=settings.max_request_bytes,
        )

    def get(self, caller: Caller, server_id: str) -> WireServer:
        """Return a server of this token. Raises Refused."""
        boot_id = caller.token.boot_of(server_id)
        found = self._cached.get(boot_id)
        if found is not None and self._clock() - found.read_at < _CACHED_SECONDS:
            return found
        with self._engine.database.read() as session:
            row = self._row(session, server_id, boot_id)
        return self._cache(caller, row)

    def cached(self, caller: Caller, server_id: str) -> WireServer | None:
        """Return a server that needs no query."""
        found = self._cached.get(caller.token.boot_of(server_id))
        is_new = found is not None and self._clock() - found.read_at < _CACHED_SECONDS
        return found if is_new else None

    def heartbeat(
        self, caller: Caller, server_id: str, beat: documents.Heartbeat
    ) -> documents.HeartbeatAnswer:
        settings = self._engine.settings
        with self._engine.database.write() as session:
            row = self._row(session, server_id, caller.token.boot_of(server_id))
            now = session.now()
            session.servers.record_heartbeat(row, now)
            holds = session.recovery.held_by_boots([row.boot_id]) if beat.held is not None else []
        server = self._cache(caller, row)
        self.note(server)
        server.counters.flush()
        listed: set[Key] = {(held.task_id, held.lease) for held in beat.held or ()}
        lost = listed - {(task.task_id, task.lease) for task in holds}
        # The response of a newer claim may be on its way.
        before = now - round(2000 * settings.heartbeat_interval)
        unknown = [
            task
            for task in holds
            if (task.task_id, task.lease) not in listed and task.activity < before
        ]
        keys = [(task.task_id, task.lease) for task in unknown]
        release_unstarted(self._engine, unknown)
        self._known.remove([*keys, *lost])
        return documents.HeartbeatAnswer(lost=_held(sorted(lost)), released=_held(keys))

    def _check_number(self, caller: Caller) -> None:
        since = self._clock() - self._engine.settings.server_timeout
        with self._lock:
            number = sum(
                server.token_id == caller.token.id and server.seen_at > since
                for server in self._cached.values()
            )
        if number >= _MAX_SERVERS:
            message = f"token {caller.token.name!r} has {number} servers that live"
            raise Refused("too_many_servers", message)

    @property
    def _interval(self) -> float:
        """Seconds between two heartbeats of a server, at most."""
        settings = self._engine.settings
        return min(settings.heartbeat_interval, settings.server_timeout / 3)

    def note(self, server: WireServer) -> None:
        """Note a sign of life."""
        server.seen_at = self._clock()

    def is_alive(self, server: WireServer) -> bool:
        """Whether a server has missed no heartbeat; it may send them to another process."""
        longest = 1.5 * self._interval
        asked_at = self._clock()  # before the query: a server that it finds may be dead after it
        if asked_at - server.seen_at < longest:
            return True
        with self._engine.database.read() as session:
            rows, now = session.servers.by_boot_ids([server.row.boot_id]), session.now()
        if not rows or rows[0].state not in ServerState.ALIVE:
            return False
        silent = (now - rows[0].ping_time) / 1000
        server.seen_at = max(server.seen_at, asked_at - silent)
        return silent < longest

    def deregister(self, caller: Caller, server_id: str) -> documents.Deregistered:
        """Give the tasks of a server back, and end its registration. Idempotent."""
        boot_id = caller.token.boot_of(server_id)
        with self._engine.database.read() as session:
            self._row(session, server_id, boot_id, ended=True)
            holds = session.recovery.held_by_boots([boot_id])
        with self._lock:
            left = self._cached.pop(boot_id, None)
        if left is not None:
            left.counters.flush()
        release_dropped(self._engine, holds)
        self._known.remove([(task.task_id, task.lease) for task in holds])
        with self._engine.database.write() as session:
            session.servers.deregister(server_id)
        return documents.Deregistered()

    def flush(self) -> None:
        """Write the counts of all servers."""
        with self._lock:
            servers = list(self._cached.values())
        for server in servers:
            server.counters.flush()

    def _row(
        self, session: Session, server_id: str, boot_id: str, *, ended: bool = False
    ) -> ServerDefinition:
        rows = session.servers.by_boot_ids([boot_id])
        if not rows:
            message = f"no server {server_id} is registered with this token"
            raise Refused("unknown_server", message)
        if rows[0].state == ServerState.SHUTDOWN and not ended:
            raise Refused("server_gone", f"server {server_id} has deregistered")
        return rows[0]

    def _cache(self, caller: Caller, row: ServerDefinition) -> WireServer:
        with self._lock:
            known = self._cached.get(row.boot_id)
            counters = known.counters if known else None
            server = WireServer(
                row,
                caller.token.id,
                counters or HandledCounters(self._engine.database, row.uuid),
                self._clock(),
                known.seen_at if known else self._clock(),
            )
            self._cached[row.boot_id] = server
            self._cached.move_to_end(row.boot_id)
            while len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return server


def check_facets(names: Collection[str]) -> None:
    for name in names:
        if is_built_in(name):
            message = f"{name}: the engine runs the facets of its own namespace"
            raise Refused("bad_request", message)


def _held(keys: Collection[Key]) -> list[documents.Held]:
    return [documents.Held(task_id=task_id, lease=lease) for task_id, lease in keys]

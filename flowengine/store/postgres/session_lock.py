"""The session lock of a server: an advisory lock on a connection of its own.

When a process dies, the kernel closes its sockets, PostgreSQL ends the session, and the lock is
free: other processes learn of the death without waiting for a heartbeat to grow old. The connection
also carries the short heartbeats, so that one statement proves both.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from sqlalchemy import Engine

from flowengine.fork import at_fork
from flowengine.log_filter import safe_logger
from flowengine.store.database import Clock
from flowengine.store.lock_tokens import LockToken
from flowengine.store.parts import quoted
from flowengine.store.postgres.dialect import CLOCK, INCARNATION
from flowengine.store.servers import ServerState

log = safe_logger("flowengine")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 5.0  #: seconds after a failure until the next attempt

# This process gives a dead connection up, and has the lock again on another one, before the server
# frees the lock: 5 seconds, and 3 for the connection, against 14.
_CLIENT: dict[str, Any] = {
    "application_name": "flowengine-lock",
    "connect_timeout": 3,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
}
_CLIENT_TIMEOUT = {"tcp_user_timeout": 5000}  #: since version 12 of libpq
_SERVER = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "14000",
    "idle_session_timeout": "0",
    "synchronous_commit": "off",  # a crash may lose heartbeats: it ends the session, too
}
# Settings that this version of the server does not have are left out.
_SET = (
    "SELECT set_config(name, w.value, false) FROM pg_settings "
    "JOIN unnest(%s::text[], %s::text[]) AS w(name, value) USING (name)"
)
_ACQUIRE = "SELECT pg_try_advisory_lock(%s)"
_VERIFY = (
    f"SELECT pg_backend_pid(), {INCARNATION}, EXISTS (SELECT FROM pg_locks "
    "WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1 "
    "AND classid = %s::bigint::oid AND objid = %s::bigint::oid)"
)
_BEAT = (
    f"UPDATE flowengine_server SET ping_time = coalesce(%s::bigint, {CLOCK}) "
    f"WHERE uuid = %s AND lock_token = %s AND state IN ({quoted(ServerState.ALIVE)}) "
    "RETURNING pg_backend_pid()"
)

#: Sessions of the parent process. They are kept: the end of their objects would end them.
_inherited: list[_Session] = []


class _Session(NamedTuple):
    connection: psycopg.Connection[Any]
    token: LockToken
    socket: tuple[int, int]  #: device and inode, by which a forked child recognises it


class SessionLock:
    """The lock of one server, used by one thread. A forked child has none."""

    def __init__(self, engine: Engine, schema: str, clock: Clock | None) -> None:
        """Without a `clock` the server reads its own for the time of a heartbeat."""
        self._engine, self._schema, self._clock = engine, schema, clock
        self._session: _Session | None = None
        self._is_hidden = False  #: a pooler hides sessions
        self._retry_at, self._pause = 0.0, _FIRST_PAUSE
        self._forks = 0
        at_fork(before=self._count_fork, in_child=self._abandon)

    def hold(self, *, verify: bool = False) -> str | None:
        """Acquire the lock if it is not held; return its token, None without a lock.

        With `verify` the database is asked whether this session still has it.
        """
        session = self._session
        if session is not None:
            is_held = self._is_held(session) if verify else not _is_cut(session.connection)
            if is_held:
                return str(session.token)
            self.release()
        if self._is_hidden or time.monotonic() < self._retry_at:
            return None
        try:
            self._acquire()
        except psycopg.Error as problem:
            self._failed(problem)
        return str(self._session.token) if self._session is not None else None

    def beat(self, server_id: str) -> bool:
        """Record a heartbeat through the lock's own session; False if a full one is needed."""
        session = self._session
        if session is None:
            return False
        now = None if self._clock is None else self._clock()
        values = (now, server_id, str(session.token))
        try:
            row = session.connection.execute(_BEAT, values).fetchone()
        except psycopg.Error as problem:
            log.debug("the session of the lock is lost: %s; it is acquired again", problem)
            self.release()
            return False
        return row is not None and self._is_own(session.connection, row[0])

    def release(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg.Error):
                session.connection.close()

    # --- acquisition ---

    def _acquire(self) -> None:
        forks = self._forks
        connection = self._connect()
        try:
            # Above 2**62: an application that shares the database has smaller keys.
            token = LockToken(1 << 62 | secrets.randbits(62), "")
            connection.execute(_ACQUIRE, (token.key,))
            pid, incarnation, is_held = _verified(connection, token)
            if not self._is_own(connection, pid) or not is_held:
                connection.close()
                self._is_hidden = True
                return
            token = LockToken(token.key, incarnation)
            made = _Session(connection, token, _identity(connection.pgconn.socket))
        except BaseException:
            connection.close()
            raise
        # From here on a child that is forked closes its copy. One that was forked before may have
        # a copy that it does not know of, and would keep the session open.
        self._session = made
        if self._forks != forks:
            self.release()
        self._retry_at, self._pause = 0.0, _FIRST_PAUSE

    def _connect(self) -> psycopg.Connection[Any]:
        args, given = self._engine.dialect.create_connect_args(self._engine.url)
        options = _CLIENT | (_CLIENT_TIMEOUT if pq.version() >= 120_000 else {})
        connection: psycopg.Connection[Any] = psycopg.connect(
            *args, **{**options, **given, "autocommit": True}
        )
        try:
            os.set_inheritable(connection.pgconn.socket, False)
            settings = {**_SERVER, **({"search_path": self._schema} if self._schema else {})}
            connection.execute(_SET, (list(settings), list(settings.values())))
        except BaseException:
            connection.close()
            raise
        return connection

    def _failed(self, problem: Exception) -> None:
        is_first = self._pause == _FIRST_PAUSE
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        log.log(
            logging.INFO if is_first else logging.DEBUG,
            "no session lock: %s; until it is acquired, the death of this process is noticed by "
            "its missing heartbeat",
            problem,
            extra={"action": "session_lock_failed"},
        )

    # --- checks ---

    def _is_held(self, session: _Session) -> bool:
        try:
            pid, incarnation, is_held = _verified(session.connection, session.token)
        except psycopg.Error:
            return False
        return (
            self._is_own(session.connection, pid)
            and is_held
            and incarnation == session.token.incarnation
        )

    def _is_own(self, connection: psycopg.Connection[Any], pid: int) -> bool:
        """Whether the server process is the one that accepted the connection.

        A pooler accepts connections itself, and lends server processes for a transaction. A lock
        would then belong to whichever connection gets that server process next.
        """
        if pid == connection.info.backend_pid:
            return True
        if not self._is_hidden:
            self._is_hidden = True
            log.info(
                "no session lock: a pooler is between this process and PostgreSQL; the death of "
                "this process is noticed by its missing heartbeat",
                extra={"action": "session_lock_hidden"},
            )
        self.release()
        return False

    # --- forks ---

    def _count_fork(self) -> None:
        self._forks += 1

    def _abandon(self) -> None:
        """Close a forked child's copy of the socket; the session stays the parent's.

        As long as any process has the socket open, the session outlives the parent. The descriptor
        is replaced and not closed: its number must not become another file's while libpq has it.
        """
        session, self._session = self._session, None
        self._is_hidden = True  # the child is no server of its own
        if session is None:
            return
        _inherited.append(session)
        with suppress(psycopg.Error, OSError):
            descriptor = session.connection.pgconn.socket
            # A thread of the parent may have closed it, and its number may be another file's.
            if _identity(descriptor) == session.socket:
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, descriptor, inheritable=False)
                os.close(nothing)


def _verified(connection: psycopg.Connection[Any], token: LockToken) -> tuple[int, str, bool]:
    high, low = divmod(token.key, 1 << 32)
    row = connection.execute(_VERIFY, (high, low)).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def _is_cut(connection: psycopg.Connection[Any]) -> bool:
    """Whether the other side has closed the connection; it is not asked."""
    try:
        for _ in range(2):  # the reason first, then the end
            connection.pgconn.consume_input()
    except psycopg.Error:
        return True
    return False


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino

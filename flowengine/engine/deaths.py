"""Deaths: the rules by which a server is dead.

A heartbeat that has grown old is the rule everywhere. On PostgreSQL a server also holds a session
lock, which the database frees when the process dies. A cut connection frees it too, so a free lock
counts only when a heartbeat is missing: a living server acquires the lock anew before that.
"""

from __future__ import annotations

from collections.abc import Callable

from flowengine.engine.liveness import Death, LivenessWindow
from flowengine.settings import Settings
from flowengine.store import Store
from flowengine.store.lock_tokens import LockState
from flowengine.store.servers import ServerDefinition

Probe = Callable[[str], LockState]  #: asks for the lock of a token


def lock_probe(database: Store) -> Probe:
    def probe(token: str) -> LockState:
        with database.read() as session:
            return session.servers.probe_lock(token)

    return probe


def death_rule(settings: Settings, window: LivenessWindow, probe: Probe) -> Death:
    """Return the rule for servers without a lock file; it probes a lock only if it has to."""
    timeout = round(settings.server_timeout * 1000)
    # One heartbeat was due an interval ago, and did not arrive.
    missed = round(2000 * settings.lock_heartbeat_interval)

    def death(server: ServerDefinition) -> str | None:
        if window.is_silent(server.ping_time, timeout):
            return f"missed its heartbeat for {(window.now - server.ping_time) / 1000:.0f} s"
        if server.lock_token is None or not missed:
            return None
        if not window.is_silent(server.ping_time, missed):
            return None
        return "has ended" if probe(server.lock_token) is LockState.FREE else None

    return death

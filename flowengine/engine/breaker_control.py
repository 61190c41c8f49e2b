"""Circuit breakers for people: `engine.breakers`.

The state of a breaker is in Redis, shared by all processes, or in each process alone: the database
knows the tasks that it has parked, and what somebody has set in place of the code.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from flowengine.actors import Actor
from flowengine.circuit_breaker import CircuitBreakerConfig, CircuitSnapshot
from flowengine.engine.control import named_actor
from flowengine.errors import ValueRefused
from flowengine.program.limits import clipped
from flowengine.program.option_checks import MAX_COUNT
from flowengine.store import Store
from flowengine.store.breakers import BreakerOverride

_LONGEST_NAME = 200  # characters
_LONGEST_TIMEOUT = 3_600  # seconds, as in the code


class SharedStates(Protocol):
    """The states of breakers that all processes share; raises if they cannot be reached."""

    def shared_names(self) -> list[str]: ...
    def shared_state(self, name: str) -> CircuitSnapshot: ...
    def close_shared(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class BreakerInfo:
    """A circuit breaker. Times in milliseconds since the epoch."""

    name: str
    #: closed, open, half_open; "held open" by somebody; None: each process has its own state.
    state: str | None
    failures: int | None  #: in a row
    probes: int | None  #: under way
    parked: int  #: tasks that wait for it
    next_try: int | None  #: when the first of them asks it again
    failure_threshold: int | None  #: that somebody has set in place of the code's
    timeout: float | None  #: seconds, the same
    set_by: str | None
    set_reason: str | None
    set_at: int | None


class BreakerControl:
    """Reads the circuit breakers of one database, and overrides them."""

    def __init__(self, database: Store, max_reason: int) -> None:
        self._database, self._max_reason = database, max_reason
        self._shared: Callable[[], SharedStates | None] = lambda: None

    def share(self, states: Callable[[], SharedStates | None]) -> None:
        """Read the states of shared breakers from here; None: they are not shared."""
        self._shared = states

    def overrides(self) -> dict[str, BreakerOverride]:
        """Return what is set, by the name of the breaker."""
        with self._database.autocommit_read() as session:
            return {each.name: each for each in session.breakers.all()}

    def list(self) -> list[BreakerInfo]:
        """Return the breakers that have opened or counted a failure, or that somebody has set."""
        with self._database.read() as session:
            overrides = {each.name: each for each in session.breakers.all()}
            parked = session.breakers.parked(session.now())
        shared = self._shared()
        names = {*overrides, *parked, *(shared.shared_names() if shared else ())}
        return [
            _info(
                name,
                shared.shared_state(name) if shared else None,
                overrides.get(name),
                parked.get(name, (0, None)),
            )
            for name in sorted(names)
        ]

    def hold_open(self, name: str, *, actor: Actor | str = "", reason: str = "") -> None:
        """Permit no call through a breaker until `reset`: its tasks are parked."""
        self._change(name, "open breaker", actor, reason, is_open=True)

    def set(
        self,
        name: str,
        *,
        failure_threshold: int | None = None,
        timeout: timedelta | float | None = None,
        actor: Actor | str = "",
        reason: str = "",
    ) -> None:
        """Set values of a breaker in place of those of the code, until `reset`.

        None leaves what is set. Processes obey within the interval of a heartbeat. Raises
        ValueRefused.
        """
        changes: dict[str, Any] = {}
        if failure_threshold is not None:
            is_number = isinstance(failure_threshold, int) and not isinstance(
                failure_threshold, bool
            )
            if not is_number or not 1 <= failure_threshold <= MAX_COUNT:
                raise ValueRefused(
                    f"failure_threshold={clipped(repr(failure_threshold), 100)} is no number of "
                    f"failures: give a whole number from 1 to {MAX_COUNT:,}"
                )
            changes["failure_threshold"] = failure_threshold
        if timeout is not None:
            seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
            if not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_TIMEOUT:
                raise ValueRefused(
                    f"timeout={clipped(repr(timeout), 100)} is no timeout of a breaker: give "
                    f"seconds above 0, up to {_LONGEST_TIMEOUT:,}"
                )
            changes["timeout_ms"] = max(1, round(seconds * 1000))
        if not changes:
            raise ValueRefused("nothing is set: give failure_threshold, timeout or both")
        self._change(name, "set breaker", actor, reason, **changes)

    def reset(self, name: str, *, actor: Actor | str = "", reason: str = "") -> bool:
        """Let the values of the code count again, and close a shared breaker.

        Returns whether it was closed: the breakers of single processes close by themselves. Raises
        ValueRefused for a breaker that nobody has set and no process shares.
        """
        who, why = named_actor(actor), clipped(reason, self._max_reason)
        shared = self._shared()
        is_shared = shared is not None and name in shared.shared_names()
        with self._database.write() as session:
            if not session.breakers.remove(name) and not is_shared:
                shown = clipped(repr(name), _LONGEST_NAME)
                raise ValueRefused(f"nothing of the circuit breaker {shown} is set or shared")
            about: dict[str, Any] = {"actor": who, "reason": why, "now": session.now()}
            session.actions.add(uuid.uuid4().hex, "reset breaker", subject=name, **about)
        if shared is not None and is_shared:
            shared.close_shared(name)
        return is_shared

    def _change(
        self, name: str, action: str, actor: Actor | str, reason: str, **changes: Any
    ) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise ValueRefused(f"the name of a breaker has 1 to {_LONGEST_NAME} characters")
        who, why = named_actor(actor), clipped(reason, self._max_reason)
        with self._database.write() as session:
            now = session.now()
            before = session.breakers.get(name)
            before = before or BreakerOverride(name, False, None, None, who, why, now)
            session.breakers.put(before._replace(actor=who, reason=why, updated=now, **changes))
            about: dict[str, Any] = {"actor": who, "reason": why, "now": now}
            options = {key: value for key, value in changes.items() if key != "is_open"}
            session.actions.add(uuid.uuid4().hex, action, subject=name, options=options, **about)


def overridden(
    config: CircuitBreakerConfig, override: BreakerOverride | None
) -> CircuitBreakerConfig:
    """Return the values of a breaker that count."""
    if override is None:
        return config
    changes: dict[str, Any] = {}
    if override.failure_threshold is not None:
        changes["failure_threshold"] = override.failure_threshold
    if override.timeout_ms is not None:
        timeout = override.timeout_ms / 1000
        recovery = max(config.recovery_timeout_seconds, timeout)
        changes |= {"timeout_seconds": timeout, "recovery_timeout_seconds": recovery}
        changes["probe_lease_seconds"] = min(timeout, recovery)
    return config.model_copy(update=changes)


def _info(
    name: str,
    state: CircuitSnapshot | None,
    override: BreakerOverride | None,
    parked: tuple[int, int | None],
) -> BreakerInfo:
    is_held = override is not None and override.is_open
    timeout_ms = None if override is None else override.timeout_ms
    return BreakerInfo(
        name=name,
        state="held open" if is_held else None if state is None else state.state.value,
        failures=None if state is None else state.failures,
        probes=None if state is None else state.probes,
        parked=parked[0],
        next_try=parked[1],
        failure_threshold=None if override is None else override.failure_threshold,
        timeout=None if timeout_ms is None else timeout_ms / 1000,
        set_by=None if override is None else override.actor,
        set_reason=None if override is None else override.reason,
        set_at=None if override is None else override.updated,
    )

"""The circuits that tasks go through before they are run.

A task of a facet with a breaker asks its circuit for a passage just before its try. One that
is not let through is not run: its worker parks it. One that is tells how its call ended.

With a Redis, all processes share a circuit (`flowengine.messaging`). Without one, each
process has its own, which does the same.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

from flowengine.authoring import Breaker, breaker_named
from flowengine.errors import InvalidSetting
from flowengine.evaluator import TaskDefinition
from flowengine.settings import Settings
from flowengine.worker.local_circuit import Limits, LocalCircuit, Outcome, Permit

log = logging.getLogger("flowengine")

#: Of all keys of circuits in Redis; a `CircuitBreaker` with this prefix and name is the same.
KEY_PREFIX = "flowengine"

#: Seconds after which a Redis that did not answer is asked again.
_ASK_AGAIN = 1.0
_WITHOUT_REDIS: dict[str, Literal["allow", "refuse"]] = {"run": "allow", "park": "refuse"}


class Circuit(Protocol):
    def permit(self, lease: float) -> Permit:
        """Ask whether a call may be made that takes up to so many seconds. Never raises."""
        ...


class Passage:
    """What a task was told when it asked, and how its circuit hears what became of it."""

    def __init__(self, breaker: Breaker, permit: Permit) -> None:
        self._breaker, self._permit = breaker, permit
        self.granted, self.retry_after = permit.granted, permit.retry_after
        self._is_settled = False

    def succeeded(self) -> None:
        self._settle("success")

    def failed(self, error: BaseException) -> None:
        self._settle("failure" if self._breaker.counts(error) else "neither")

    def release(self) -> None:
        """Nothing is known of how the call ended, or it was not made."""
        self._settle("neither")

    def _settle(self, outcome: Outcome) -> None:
        # What goes wrong after the call, while its result is dealt with, is not the service's.
        if not self._is_settled:
            self._is_settled = True
            self._permit.settle(outcome)


class Circuits:
    """The circuits of one process, made when they are first asked."""

    def __init__(
        self,
        settings: Settings,
        redis_url: str = "",
        *,
        shares: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shares` says that other processes work on the same tasks: it is told if they cannot."""
        _check(settings)
        self._settings, self._shares, self._clock = settings, shares, clock
        self._url = settings.breaker_redis_url or redis_url
        self._known: dict[str, tuple[Breaker, Limits, Circuit]] = {}
        self._lock = threading.Lock()

    def ask(self, task: TaskDefinition) -> Passage:
        """Ask a task's circuit whether it may be run now."""
        breaker, limits, circuit = self._named(task.circuit)
        own = breaker.probe_lease_seconds or (task.timeout_ms or 0) / 1000
        lease = min(own or limits.timeout_seconds, limits.recovery_timeout_seconds)
        return Passage(breaker, circuit.permit(lease))

    def _named(self, name: str) -> tuple[Breaker, Limits, Circuit]:
        with self._lock:
            if name not in self._known:
                breaker = breaker_named(name)
                limits = Limits.of(breaker, self._settings)
                self._known[name] = breaker, limits, self._opened(name, limits)
            return self._known[name]

    def _opened(self, name: str, limits: Limits) -> Circuit:
        if self._url:
            without_redis = _WITHOUT_REDIS[self._settings.breaker_without_redis]
            return _SharedCircuit(self._url, name, limits, without_redis)
        if self._shares:
            log.warning(
                "circuit %r is of each process alone: no Redis is known here, name one in "
                "FLOWENGINE_BREAKER_REDIS_URL",
                name,
                extra={"action": "breaker_not_shared", "circuit": name},
            )
        return LocalCircuit(limits, self._clock)


def _check(settings: Settings) -> None:
    """Refuse at the start what would otherwise stop the first task with a breaker."""
    url = settings.breaker_redis_url
    is_sound = {
        "without_redis": settings.breaker_without_redis in _WITHOUT_REDIS,
        "failure_threshold": settings.breaker_failure_threshold >= 1,
        "timeout_seconds": 0 < settings.breaker_timeout_seconds <= 3600,
        "half_open_max_calls": settings.breaker_half_open_max_calls >= 1,
        "redis_url": not url or url.startswith(("redis://", "rediss://", "unix://")),
    }
    expected = {
        "without_redis": "run or park",
        "failure_threshold": "a whole number, 1 or more",
        "timeout_seconds": "a number of seconds above 0, up to 3600",
        "half_open_max_calls": "a whole number, 1 or more",
        "redis_url": "the address of a Redis: redis://…, rediss://… or unix://…",
    }
    for name, is_fine in is_sound.items():
        if not is_fine:
            value = str(getattr(settings, f"breaker_{name}"))
            raise InvalidSetting(f"FLOWENGINE_BREAKER_{name.upper()}", value, expected[name])
    if url and importlib.util.find_spec("redis") is None:
        needed = "of use without its client: pip install 'flowengine[redis]'"
        raise InvalidSetting("FLOWENGINE_BREAKER_REDIS_URL", url, needed)


class _SharedCircuit:
    """A circuit that all processes share through Redis."""

    def __init__(
        self, url: str, name: str, limits: Limits, without_redis: Literal["allow", "refuse"]
    ) -> None:
        # Here, not above: only who names a Redis needs its client installed.
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        from flowengine.messaging import CircuitBreakerConfig, SyncCircuitBreaker

        # A try waits for the answer, so it must come soon or not at all.
        client = Redis.from_url(
            url, socket_timeout=1.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 1)
        )
        config = CircuitBreakerConfig(
            failure_threshold=limits.failure_threshold,
            timeout_seconds=limits.timeout_seconds,
            half_open_max_calls=limits.half_open_max_calls,
            success_threshold=limits.success_threshold,
            recovery_timeout_seconds=limits.recovery_timeout_seconds,
            # Each permit says its own; this one only has to fit.
            probe_lease_seconds=min(limits.timeout_seconds, limits.recovery_timeout_seconds),
        )
        self._breaker = SyncCircuitBreaker(
            client, name, config, KEY_PREFIX, without_redis=without_redis
        )
        self._alone: Permit | None = None
        self._alone_until = 0.0

    def permit(self, lease: float) -> Permit:
        alone = self._alone
        if alone is not None and time.monotonic() < self._alone_until:
            return alone  # each try would wait for a Redis that does not answer
        found = self._breaker.permit(lease=lease)

        def settle(outcome: Outcome) -> None:
            tell = {
                "success": self._breaker.success,
                "failure": self._breaker.failure,
                "neither": self._breaker.release,
            }
            tell[outcome](found)

        permit = Permit(found.granted, found.retry_after, settle)
        if found.epoch < 0:
            self._alone, self._alone_until = permit, time.monotonic() + _ASK_AGAIN
        else:
            self._alone = None
        return permit

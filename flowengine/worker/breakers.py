"""The circuit breakers that permit tasks before they run.

The worker asks the circuit breaker of a facet for a permit before each try. A denied task is
parked; the outcome of a permitted try is reported to the breaker.

If a Redis is configured, all processes share a breaker (`flowengine.messaging`). Otherwise each
process has its own.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from flowengine import errors
from flowengine.authoring import Breaker, breaker_named
from flowengine.circuit_breaker import (
    Circuit,
    CircuitBreakerConfig,
    CircuitSnapshot,
    Outcome,
    Permit,
    outcome_of,
)
from flowengine.engine.breaker_control import BreakerControl, overridden
from flowengine.evaluator import TaskDefinition
from flowengine.settings import Settings
from flowengine.store.breakers import BreakerOverride
from flowengine.store.failures import is_unavailable
from flowengine.worker.redis_address import redis_address

if TYPE_CHECKING:
    from flowengine.messaging import SyncCircuitBreaker

    _Breaker: TypeAlias = "LocalCircuitBreaker | SyncCircuitBreaker"

log = logging.getLogger("flowengine")

#: Errors of the user's program, which another try would meet again.
PERMANENT = (
    errors.ValueRefused,
    errors.DoesNotFit,
    errors.MissingCode,
    errors.InvalidInputs,
    errors.InvalidProgram,
    errors.UnknownWorkflow,
    errors.LimitReached,
    errors.WaitInsideStep,
    errors.TurnRefused,
    errors.GiveUp,
)
#: Prefix of all keys in Redis; a `CircuitBreaker` with this prefix and the same name is the same.
KEY_PREFIX = "flowengine"

#: After which the tasks of a breaker that somebody holds open ask it again, at the latest.
_HELD_OPEN_SECONDS = 30.0
#: Seconds without another attempt after Redis was unreachable: each attempt delays a try.
_REDIS_RETRY_SECONDS = 1.0
_WITHOUT_REDIS: dict[str, Literal["allow", "refuse"]] = {"run": "allow", "park": "refuse"}


class LocalCircuitBreaker:
    """Permits calls and records their outcomes, like `SyncCircuitBreaker`; threads may share it."""

    def __init__(
        self, declared: Breaker, config: CircuitBreakerConfig, clock: Callable[[], float]
    ) -> None:
        self._declared, self._clock = declared, clock
        self._circuit, self._lock = Circuit(config), threading.Lock()

    def configure(self, config: CircuitBreakerConfig) -> None:
        with self._lock:
            self._circuit.configure(config)

    def permit(self, *, lease: float) -> Permit:
        with self._lock:
            return self._circuit.permit(self._clock(), lease)

    def success(self, permit: Permit) -> None:
        self._settle(permit, "success")

    def failure(self, permit: Permit, error: BaseException) -> None:
        declared = self._declared
        self._settle(permit, outcome_of(error, declared.failure_on, declared.ignore))

    def release(self, permit: Permit) -> None:
        self._settle(permit, "neither")

    def _settle(self, permit: Permit, outcome: Outcome) -> None:
        with self._lock:
            self._circuit.settle(self._clock(), permit, outcome)


@dataclass(frozen=True, slots=True)
class TaskPermit:
    """A task's permit. As a context it reports the outcome of the call to its breaker, once."""

    _breaker: _Breaker
    _permit: Permit

    @property
    def granted(self) -> bool:
        return self._permit.granted

    @property
    def retry_after(self) -> float:
        return self._permit.retry_after

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, errors.RetryAfter):
            error = error.recorded
        if error is None:
            self._breaker.success(self._permit)
        elif isinstance(error, Exception) and not isinstance(error, PERMANENT):
            self._breaker.failure(self._permit, error)
        else:  # the service was not called, or the thread has to end and the result is unknown
            self._breaker.release(self._permit)


class CircuitBreakers:
    """The circuit breakers of one process, created at their first use."""

    def __init__(
        self,
        settings: Settings,
        redis_url: str = "",
        *,
        shares: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shares`: other processes run the same tasks. Warn if they cannot share a breaker."""
        _check(settings)
        self._settings, self._shares, self._clock = settings, shares, clock
        self._url = redis_address(settings.breaker_redis_url) or redis_url
        self._breakers: dict[str, tuple[Breaker, CircuitBreakerConfig, _Breaker]] = {}
        self._lock = threading.Lock()
        self._control: BreakerControl | None = None
        self._overrides: Mapping[str, BreakerOverride] = {}
        self._next_look = -math.inf

    def obey(self, control: BreakerControl) -> None:
        """Read there what somebody has set for breakers, once in a heartbeat's interval.

        Only a process that runs tasks with breakers reads it.
        """
        self._control = control
        control.share(lambda: self if self._url else None)

    def permit(self, task: TaskDefinition) -> TaskPermit:
        """Ask the task's circuit breaker whether the task may run now. Never raises."""
        self._look()
        declared, config, breaker = self._named(task.circuit)
        if (override := self._overrides.get(task.circuit)) is not None and override.is_open:
            again = min(config.timeout_seconds, _HELD_OPEN_SECONDS)
            return TaskPermit(breaker, Permit(granted=False, retry_after=again))
        seconds = declared.probe_lease_seconds or (task.timeout_ms or 0) / 1000
        lease = min(seconds or config.timeout_seconds, config.recovery_timeout_seconds)
        return TaskPermit(breaker, breaker.permit(lease=lease))

    def _look(self) -> None:
        """Read what is set for breakers, if it is time, and apply it to those of this process."""
        if self._control is None or self._clock() < self._next_look:
            return
        self._next_look = self._clock() + self._settings.heartbeat_interval
        try:
            found = self._control.overrides()
        except Exception as problem:
            if not is_unavailable(problem):
                log.warning(
                    "what is set for circuit breakers cannot be read: %s; the last values count",
                    problem,
                    extra={"action": "breakers_unread"},
                )
            return
        with self._lock:
            before, self._overrides = self._overrides, found
            for name, (declared, _, breaker) in self._breakers.items():
                if before.get(name) != found.get(name):
                    config = overridden(_config(declared, self._settings), found.get(name))
                    breaker.configure(config)
                    self._breakers[name] = declared, config, breaker

    # --- shared states, for people ---

    def shared_names(self) -> list[str]:
        names = self._client().smembers(f"{KEY_PREFIX}:cb:registry")
        return sorted(name.decode() for name in names)

    def shared_state(self, name: str) -> CircuitSnapshot:
        return self._shared_named(name).snapshot()

    def close_shared(self, name: str) -> None:
        self._shared_named(name).reset()

    def _shared_named(self, name: str) -> SyncCircuitBreaker:
        declared = breaker_named(name)
        config = _config(declared, self._settings)
        return _shared(self._url, declared, config, self._settings.breaker_without_redis)

    def _client(self) -> Any:
        from redis import Redis

        return Redis.from_url(self._url, socket_timeout=2.0, socket_connect_timeout=2.0)

    def _named(self, name: str) -> tuple[Breaker, CircuitBreakerConfig, _Breaker]:
        with self._lock:
            if name not in self._breakers:
                declared = breaker_named(name)
                config = overridden(_config(declared, self._settings), self._overrides.get(name))
                self._breakers[name] = declared, config, self._create(declared, config)
            return self._breakers[name]

    def _create(self, declared: Breaker, config: CircuitBreakerConfig) -> _Breaker:
        if self._url:
            return _shared(self._url, declared, config, self._settings.breaker_without_redis)
        if self._shares:
            log.warning(
                "circuit breaker %r is local to this process: no Redis is configured; set "
                "FLOWENGINE_BREAKER_REDIS_URL to share it",
                declared.name,
                extra={"action": "breaker_not_shared", "circuit": declared.name},
            )
        return LocalCircuitBreaker(declared, config, self._clock)


def _config(declared: Breaker, settings: Settings) -> CircuitBreakerConfig:
    """The breaker's own values, and the settings for those it leaves out."""
    timeout = declared.timeout_seconds or settings.breaker_timeout_seconds
    recovery = declared.recovery_timeout_seconds or 5 * timeout
    return CircuitBreakerConfig(
        failure_threshold=declared.failure_threshold or settings.breaker_failure_threshold,
        timeout_seconds=timeout,
        recovery_timeout_seconds=recovery,
        half_open_max_calls=declared.half_open_max_calls or settings.breaker_half_open_max_calls,
        success_threshold=declared.success_threshold,
        # Each permit passes its own lease; this one only has to be valid.
        probe_lease_seconds=min(timeout, recovery),
    )


def _shared(
    url: str, declared: Breaker, config: CircuitBreakerConfig, without_redis: str
) -> SyncCircuitBreaker:
    # Imported here: only a process that uses Redis needs its client.
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from flowengine.messaging import SyncCircuitBreaker

    # A try waits for the response, so the timeouts are short.
    client = Redis.from_url(
        url, socket_timeout=1.0, socket_connect_timeout=1.0, retry=Retry(NoBackoff(), 1)
    )
    return SyncCircuitBreaker(
        client,
        declared.name,
        config,
        KEY_PREFIX,
        failure_on=declared.failure_on,
        ignore=declared.ignore,
        without_redis=_WITHOUT_REDIS[without_redis],
        redis_retry_seconds=_REDIS_RETRY_SECONDS,
    )


def _check(settings: Settings) -> None:
    """Refuse invalid settings at the start instead of at the first task with a breaker."""
    url = settings.breaker_redis_url
    is_url = not url or bool(redis_address(url))
    rules = {
        "without_redis": (settings.breaker_without_redis in _WITHOUT_REDIS, "run or park"),
        "failure_threshold": (settings.breaker_failure_threshold >= 1, "a whole number, 1 or more"),
        "timeout_seconds": (
            0 < settings.breaker_timeout_seconds <= 3600,
            "a number of seconds above 0, up to 3600",
        ),
        "half_open_max_calls": (
            settings.breaker_half_open_max_calls >= 1,
            "a whole number, 1 or more",
        ),
        "redis_url": (is_url, "the address of a Redis: redis://…, rediss://… or unix://…"),
    }
    for name, (is_valid, expected) in rules.items():
        if not is_valid:
            value = str(getattr(settings, f"breaker_{name}"))
            raise errors.InvalidSetting(f"FLOWENGINE_BREAKER_{name.upper()}", value, expected)
    if url and importlib.util.find_spec("redis") is None:
        needed = "of use without its client: pip install 'flowengine[redis]'"
        raise errors.InvalidSetting("FLOWENGINE_BREAKER_REDIS_URL", url, needed)

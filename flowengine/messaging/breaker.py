"""Circuit breakers whose state all processes share through Redis.

`flowengine.circuit_breaker` has the states and transitions. Each operation is one Lua script, so
the breaker opens and closes for all processes at once.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from flowengine.circuit_breaker import (
    CircuitBreakerConfig,
    CircuitSnapshot,
    CircuitState,
    Failures,
    Outcome,
    Permit,
    outcome_of,
)
from flowengine.errors import CircuitBreakerOpenError
from flowengine.lazy import lazy
from flowengine.log_filter import safe_logger
from flowengine.messaging.drivers import (
    AsyncClient,
    AsyncDriver,
    Plan,
    RedisErrors,
    SyncClient,
    SyncDriver,
    asynchronous,
    describe,
    synchronous,
)
from flowengine.messaging.keys import Keys, name_of
from flowengine.messaging.lua import Call, Script, microseconds

_PERMIT = Script.load("permit")
_SETTLE = Script.load("settle")
_INSPECT = Script.load("inspect_circuit")
_log = safe_logger(__name__)

#: While Redis is unreachable: permit all calls (fail open), or none (fail closed).
WithoutRedis = Literal["allow", "refuse"]
#: The epoch of a permit that was granted without Redis. Its outcome is never counted.
_NO_EPOCH = -1
T = TypeVar("T")
_Client = TypeVar("_Client")


@dataclass
class _BreakerPlans:
    """The plans of both breakers, and their decisions without Redis."""

    name: str
    config: CircuitBreakerConfig
    keys: tuple[bytes, ...]
    failure_on: Failures
    ignore: Failures
    without_redis: WithoutRedis
    redis_retry_seconds: float
    unreachable_logged: bool = False
    unreachable_until: float = 0.0

    def permit(self, *, lease: float | None = None) -> Plan[Permit]:
        """Ask whether a call may be made; report its outcome with `success` or `failure`.

        `lease` is the longest duration of the call in seconds, if it is a probe.
        """
        if time.monotonic() < self.unreachable_until:
            return self._permit_without_redis()
        token = f"probe_{secrets.token_hex(8)}"
        try:
            granted, state, epoch, wait = yield Call(
                _PERMIT,
                self.keys,
                (
                    self.name,
                    microseconds(self.config.timeout_seconds),
                    microseconds(self.config.recovery_timeout_seconds),
                    self.config.half_open_max_calls,
                    token,
                    microseconds(lease or self.config.probe_lease),
                ),
            )
        except RedisErrors as error:
            self.unreachable_until = time.monotonic() + self.redis_retry_seconds
            self._log_unreachable(error)
            return self._permit_without_redis()
        except asyncio.CancelledError:
            # The caller never sees this permit: if it is a probe, return its slot.
            unseen = Permit(granted=True, token=token, epoch=_NO_EPOCH)
            yield self._settle_call(unseen, "neither")
            raise
        self.unreachable_logged = False
        state = CircuitState(state.decode())
        return Permit(
            granted=bool(granted),
            retry_after=wait / 1_000_000,
            state=state,
            token=token if granted and state is CircuitState.HALF_OPEN else "",
            epoch=epoch,
        )

    def success(self, permit: Permit) -> Plan[None]:
        """The call succeeded."""
        return self._settle(permit, "success")

    def failure(self, permit: Permit, error: BaseException | None = None) -> Plan[None]:
        """The call failed. An `error` outside `failure_on` is not counted."""
        failed = error is None or outcome_of(error, self.failure_on, self.ignore) == "failure"
        return self._settle(permit, "failure" if failed else "neither")

    def release(self, permit: Permit) -> Plan[None]:
        """The call was not made, or its outcome is unknown."""
        return self._settle(permit, "neither")

    def snapshot(self) -> Plan[CircuitSnapshot]:
        """The current state; raises if Redis is unreachable."""
        return self._inspect()

    def reset(self) -> Plan[None]:
        """Close the breaker."""
        yield from self._inspect(CircuitState.CLOSED)

    def trip(self) -> Plan[None]:
        """Open the breaker; it permits probes after `timeout_seconds`."""
        yield from self._inspect(CircuitState.OPEN)

    def refusal(self, permit: Permit) -> CircuitBreakerOpenError:
        reasons = {
            CircuitState.HALF_OPEN: "half open, and all probes are under way",
            CircuitState.OPEN: "Redis is unreachable" if permit.epoch == _NO_EPOCH else "",
        }
        return CircuitBreakerOpenError(self.name, permit.retry_after, reasons.get(permit.state, ""))

    def _settle(self, permit: Permit, outcome: Outcome) -> Plan[None]:
        counts = outcome != "neither" and permit.epoch != _NO_EPOCH
        if not permit.granted or not (counts or permit.token):
            return  # it neither changes a count nor returns a slot
        try:
            yield self._settle_call(permit, outcome)
        except RedisErrors as error:
            _log.warning(
                "circuit breaker %r: the outcome %r of a call is not counted, Redis failed: %s",
                self.name,
                outcome,
                describe(error),
                extra={"action": "breaker_outcome_lost", "breaker": self.name},
            )

    def _settle_call(self, permit: Permit, outcome: Outcome) -> Call:
        return Call(
            _SETTLE,
            self.keys,
            (
                self.name,
                outcome,
                permit.token,
                permit.epoch,
                self.config.failure_threshold,
                self.config.success_threshold,
                microseconds(self.config.recovery_timeout_seconds),
            ),
        )

    def _inspect(self, force: CircuitState | None = None) -> Plan[CircuitSnapshot]:
        timeout = microseconds(self.config.timeout_seconds)
        forced = () if force is None else (force.value,)
        state, failures, successes, probes, epoch, left = yield Call(
            _INSPECT, self.keys, (self.name, timeout, *forced)
        )
        return CircuitSnapshot(
            name=self.name,
            state=CircuitState(state.decode()),
            failures=failures,
            successes=successes,
            probes=probes,
            epoch=epoch,
            retry_after=left / 1_000_000,
        )

    def _permit_without_redis(self) -> Permit:
        granted = self.without_redis == "allow"
        return Permit(
            granted=granted,
            retry_after=0.0 if granted else 1.0,
            state=CircuitState.OPEN,
            epoch=_NO_EPOCH,
        )

    def _log_unreachable(self, error: Exception) -> None:
        if self.unreachable_logged:
            return
        self.unreachable_logged = True
        _log.warning(
            "circuit breaker %r cannot reach Redis, all calls are %s: %s",
            self.name,
            "permitted" if self.without_redis == "allow" else "refused",
            describe(error),
            extra={"action": "breaker_redis_unreachable", "breaker": self.name},
        )


class _Breaker(Generic[_Client]):
    def __init__(
        self,
        redis: _Client,
        name: str,
        config: CircuitBreakerConfig | None = None,
        key_prefix: str = "ao",
        *,
        failure_on: Failures = (Exception,),
        ignore: Failures = (),
        without_redis: WithoutRedis = "allow",
        redis_retry_seconds: float = 0.0,
    ) -> None:
        self.name, self.config = name, config or CircuitBreakerConfig()
        keys = Keys(key_prefix).named(_PERMIT.keys, name_of(name))
        self._plans = _BreakerPlans(
            name, self.config, keys, failure_on, ignore, without_redis, redis_retry_seconds
        )
        self._redis = redis

    def configure(self, config: CircuitBreakerConfig) -> None:
        """Go on with other values; the state is that of Redis."""
        self.config = self._plans.config = config


class CircuitBreaker(_Breaker[AsyncClient]):
    """A circuit breaker for coroutines, over `redis.asyncio`.

    Exceptions in `failure_on` count as failures, except those in `ignore`. `without_redis` decides
    while Redis is unreachable: ``"allow"`` permits all calls (fails open), ``"refuse"`` none (fails
    closed). Redis is not asked again for `redis_retry_seconds` after it was unreachable.
    """

    permit = asynchronous(_BreakerPlans.permit)
    success = asynchronous(_BreakerPlans.success)
    failure = asynchronous(_BreakerPlans.failure)
    release = asynchronous(_BreakerPlans.release)
    snapshot = asynchronous(_BreakerPlans.snapshot)
    reset = asynchronous(_BreakerPlans.reset)
    trip = asynchronous(_BreakerPlans.trip)

    @lazy
    def _driver(self) -> AsyncDriver:
        return AsyncDriver(self._redis)

    async def call(
        self, func: Callable[..., Awaitable[T]] | Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> T:
        """Call and await the function; raise `CircuitBreakerOpenError` if it is not permitted."""
        permit = await self.permit()
        if not permit.granted:
            raise self._plans.refusal(permit)
        try:
            result = func(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            # Shielded: a cancelled call returns its probe's slot, too.
            await asyncio.shield(self.failure(permit, error))
            raise
        await self.success(permit)
        return cast(T, result)


class SyncCircuitBreaker(_Breaker[SyncClient]):
    """`CircuitBreaker` without coroutines, over `redis.Redis`: for Celery tasks and threads."""

    permit = synchronous(_BreakerPlans.permit)
    success = synchronous(_BreakerPlans.success)
    failure = synchronous(_BreakerPlans.failure)
    release = synchronous(_BreakerPlans.release)
    snapshot = synchronous(_BreakerPlans.snapshot)
    reset = synchronous(_BreakerPlans.reset)
    trip = synchronous(_BreakerPlans.trip)

    @lazy
    def _driver(self) -> SyncDriver:
        return SyncDriver(self._redis)

    def call(self, func: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call the function; raise `CircuitBreakerOpenError` if it is not permitted."""
        permit = self.permit()
        if not permit.granted:
            raise self._plans.refusal(permit)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self.failure(permit, error)
            raise
        self.success(permit)
        return result

"""Circuit breakers whose state all processes share through Redis.

`flowengine.circuit_breaker` has the states and transitions. Each operation is one Lua script, so
the breaker opens and closes for all processes at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, cast

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
from flowengine.messaging.drivers import (
    AsyncClient,
    AsyncDriver,
    Call,
    Plan,
    RedisErrors,
    SyncClient,
    SyncDriver,
    describe,
)
from flowengine.messaging.encoder import microseconds
from flowengine.messaging.keys import Keys, name_of
from flowengine.messaging.lua import Script

_PERMIT = Script.load("permit")
_SETTLE = Script.load("settle")
_INSPECT = Script.load("inspect_circuit")
_log = logging.getLogger(__name__)

#: While Redis is unreachable: permit all calls (fail open), or none (fail closed).
WithoutRedis = Literal["allow", "refuse"]
#: The epoch of a permit that was granted without Redis. Its outcome is never counted.
_NO_EPOCH = -1
T = TypeVar("T")


class _BreakerPlans:
    """The plans of both breakers, and their decisions without Redis."""

    def __init__(
        self,
        name: str,
        config: CircuitBreakerConfig | None,
        key_prefix: str,
        failure_on: Failures,
        ignore: Failures,
        without_redis: WithoutRedis,
        redis_retry_seconds: float,
    ) -> None:
        self.name = name
        self.config = config or CircuitBreakerConfig()
        self._failure_on, self._ignore = failure_on, ignore
        self._without_redis = without_redis
        self._redis_retry_seconds = redis_retry_seconds
        self._unreachable_logged = False
        self._unreachable_until = 0.0
        self._keys = Keys(key_prefix).named(_PERMIT.keys, name_of(name))

    def _permit_plan(self, lease: float | None) -> Plan[Permit]:
        if time.monotonic() < self._unreachable_until:
            return self._permit_without_redis()
        token = f"probe_{secrets.token_hex(8)}"
        try:
            granted, state, epoch, wait = yield Call(
                _PERMIT,
                self._keys,
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
            self._unreachable_until = time.monotonic() + self._redis_retry_seconds
            self._log_unreachable(error)
            return self._permit_without_redis()
        except asyncio.CancelledError:
            # The caller never sees this permit: if it is a probe, return its slot.
            unseen = Permit(granted=True, token=token, epoch=_NO_EPOCH)
            yield self._settle_call(unseen, "neither")
            raise
        self._unreachable_logged = False
        state = CircuitState(state.decode())
        return Permit(
            granted=bool(granted),
            retry_after=wait / 1_000_000,
            state=state,
            token=token if granted and state is CircuitState.HALF_OPEN else "",
            epoch=epoch,
        )

    def _settle_plan(self, permit: Permit, outcome: Outcome) -> Plan[None]:
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
                extra={"action": "breaker_not_told", "breaker": self.name},
            )

    def _settle_call(self, permit: Permit, outcome: Outcome) -> Call:
        return Call(
            _SETTLE,
            self._keys,
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

    def _inspect_plan(self, force: CircuitState | None = None) -> Plan[CircuitSnapshot]:
        timeout = microseconds(self.config.timeout_seconds)
        forced = () if force is None else (force.value,)
        state, failures, successes, probes, epoch, left = yield Call(
            _INSPECT, self._keys, (self.name, timeout, *forced)
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

    def _outcome(self, error: BaseException | None) -> Outcome:
        return "failure" if error is None else outcome_of(error, self._failure_on, self._ignore)

    def _permit_without_redis(self) -> Permit:
        granted = self._without_redis == "allow"
        return Permit(
            granted=granted,
            retry_after=0.0 if granted else 1.0,
            state=CircuitState.OPEN,
            epoch=_NO_EPOCH,
        )

    def _log_unreachable(self, error: Exception) -> None:
        if self._unreachable_logged:
            return
        self._unreachable_logged = True
        _log.warning(
            "circuit breaker %r cannot reach Redis, all calls are %s: %s",
            self.name,
            "permitted" if self._without_redis == "allow" else "refused",
            describe(error),
            extra={"action": "breaker_alone", "breaker": self.name},
        )

    def _refusal(self, permit: Permit) -> CircuitBreakerOpenError:
        reasons = {
            CircuitState.HALF_OPEN: "half open, and all probes are under way",
            CircuitState.OPEN: "Redis is unreachable" if permit.epoch == _NO_EPOCH else "",
        }
        return CircuitBreakerOpenError(self.name, permit.retry_after, reasons.get(permit.state, ""))


class CircuitBreaker(_BreakerPlans):
    """A circuit breaker for coroutines, over `redis.asyncio`.

    Exceptions in `failure_on` count as failures, except those in `ignore`. `without_redis` decides
    while Redis is unreachable: ``"allow"`` permits all calls (fails open), ``"refuse"`` none (fails
    closed). Redis is not asked again for `redis_retry_seconds` after it was unreachable.
    """

    def __init__(
        self,
        redis: AsyncClient,
        name: str,
        config: CircuitBreakerConfig | None = None,
        key_prefix: str = "ao",
        *,
        failure_on: Failures = (Exception,),
        ignore: Failures = (),
        without_redis: WithoutRedis = "allow",
        redis_retry_seconds: float = 0.0,
    ) -> None:
        super().__init__(
            name, config, key_prefix, failure_on, ignore, without_redis, redis_retry_seconds
        )
        self._driver = AsyncDriver(redis)

    async def call(
        self, func: Callable[..., Awaitable[T]] | Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:
        """Call and await the function; raise `CircuitBreakerOpenError` if it is not permitted."""
        permit = await self.permit()
        if not permit.granted:
            raise self._refusal(permit)
        try:
            result = func(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            # Shielded: a cancelled call returns its probe's slot, too.
            await asyncio.shield(self._settle(permit, self._outcome(error)))
            raise
        await self._settle(permit, "success")
        return cast(T, result)

    async def permit(self, *, lease: float | None = None) -> Permit:
        """Ask whether a call may be made; report its outcome with `success` or `failure`.

        `lease` is the longest duration of the call in seconds, if it is a probe.
        """
        return await self._driver.run(self._permit_plan(lease))

    async def success(self, permit: Permit) -> None:
        """The call succeeded."""
        await self._settle(permit, "success")

    async def failure(self, permit: Permit, error: BaseException | None = None) -> None:
        """The call failed. An `error` outside `failure_on` is not counted."""
        await self._settle(permit, self._outcome(error))

    async def release(self, permit: Permit) -> None:
        """The call was not made, or its outcome is unknown."""
        await self._settle(permit, "neither")

    async def snapshot(self) -> CircuitSnapshot:
        """The current state; raises if Redis is unreachable."""
        return await self._driver.run(self._inspect_plan())

    async def reset(self) -> None:
        """Close the breaker."""
        await self._driver.run(self._inspect_plan(CircuitState.CLOSED))

    async def trip(self) -> None:
        """Open the breaker; it permits probes after `timeout_seconds`."""
        await self._driver.run(self._inspect_plan(CircuitState.OPEN))

    async def _settle(self, permit: Permit, outcome: Outcome) -> None:
        await self._driver.run(self._settle_plan(permit, outcome))


class SyncCircuitBreaker(_BreakerPlans):
    """`CircuitBreaker` without coroutines, over `redis.Redis`: for Celery tasks and threads."""

    def __init__(
        self,
        redis: SyncClient,
        name: str,
        config: CircuitBreakerConfig | None = None,
        key_prefix: str = "ao",
        *,
        failure_on: Failures = (Exception,),
        ignore: Failures = (),
        without_redis: WithoutRedis = "allow",
        redis_retry_seconds: float = 0.0,
    ) -> None:
        super().__init__(
            name, config, key_prefix, failure_on, ignore, without_redis, redis_retry_seconds
        )
        self._driver = SyncDriver(redis)

    def call(self, func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the function; raise `CircuitBreakerOpenError` if it is not permitted."""
        permit = self.permit()
        if not permit.granted:
            raise self._refusal(permit)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._settle(permit, self._outcome(error))
            raise
        self._settle(permit, "success")
        return result

    def permit(self, *, lease: float | None = None) -> Permit:
        """Ask whether a call may be made; report its outcome with `success` or `failure`.

        `lease` is the longest duration of the call in seconds, if it is a probe.
        """
        return self._driver.run(self._permit_plan(lease))

    def success(self, permit: Permit) -> None:
        """The call succeeded."""
        self._settle(permit, "success")

    def failure(self, permit: Permit, error: BaseException | None = None) -> None:
        """The call failed. An `error` outside `failure_on` is not counted."""
        self._settle(permit, self._outcome(error))

    def release(self, permit: Permit) -> None:
        """The call was not made, or its outcome is unknown."""
        self._settle(permit, "neither")

    def snapshot(self) -> CircuitSnapshot:
        """The current state; raises if Redis is unreachable."""
        return self._driver.run(self._inspect_plan())

    def reset(self) -> None:
        """Close the breaker."""
        self._driver.run(self._inspect_plan(CircuitState.CLOSED))

    def trip(self) -> None:
        """Open the breaker; it permits probes after `timeout_seconds`."""
        self._driver.run(self._inspect_plan(CircuitState.OPEN))

    def _settle(self, permit: Permit, outcome: Outcome) -> None:
        self._driver.run(self._settle_plan(permit, outcome))

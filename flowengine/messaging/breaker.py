"""A circuit breaker that all processes share.

```
            failure_threshold failures in a row
    CLOSED ───────────────────────────────────────► OPEN ◄─────────────┐
       ▲                                             │ timeout_seconds │ a probe fails, or
       │ success_threshold probes succeed            ▼                 │ recovery_timeout_seconds
       └───────────────────────────────────────── HALF_OPEN ───────────┘ are over
```

The state is in Redis and changes there, in one script, so it opens once for all and closes once
for all. A probe is a call through a half-open breaker. It holds one of `half_open_max_calls`
slots under a lease: a probe that is cancelled gives its slot back, and one whose process dies
loses it with the lease.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, cast

from flowengine.errors import CircuitBreakerOpenError
from flowengine.messaging.driving import (
    AsyncClient,
    AsyncDriver,
    Call,
    Plan,
    RedisTrouble,
    SyncClient,
    SyncDriver,
    told,
)
from flowengine.messaging.keys import Keys, name_of
from flowengine.messaging.letters import microseconds
from flowengine.messaging.models import (
    CircuitBreakerConfig,
    CircuitSnapshot,
    CircuitState,
    Permit,
)
from flowengine.messaging.scripting import Script

_PERMIT = Script.load("permit")
_SETTLE = Script.load("settle")
_INSPECT = Script.load("inspect_circuit")
_log = logging.getLogger(__name__)

#: What to do with calls while Redis is away: make them all, or refuse them all.
WithoutRedis = Literal["allow", "refuse"]
Outcome = Literal["success", "failure", "neither"]
Failures = tuple[type[BaseException], ...]
T = TypeVar("T")


class _Circuit:
    """What both breakers do: the plans, and what an exception means."""

    def __init__(
        self,
        name: str,
        config: CircuitBreakerConfig | None,
        key_prefix: str,
        failure_on: Failures,
        ignore: Failures,
        without_redis: WithoutRedis,
    ) -> None:
        self.name = name
        self.config = config or CircuitBreakerConfig()
        self._failure_on, self._ignore = failure_on, ignore
        self._without_redis = without_redis
        self._alone_told = False
        self._keys = Keys(key_prefix).named(_PERMIT.keys, name_of(name))

    def _permit_plan(self, lease: float | None) -> Plan[Permit]:
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
        except asyncio.CancelledError:
            # The caller never sees this permit: if it is a probe, return its slot.
            unseen = Permit(granted=True, token=token, epoch=-1)
            yield from self._settle_plan(unseen, "neither")
            raise
        self._alone_told = False
        found = CircuitState(state.decode())
        return Permit(
            granted=bool(granted),
            retry_after=wait / 1_000_000,
            state=found,
            token=token if granted and found is CircuitState.HALF_OPEN else "",
            epoch=epoch,
        )

    def _settle_plan(self, permit: Permit, outcome: Outcome) -> Plan[None]:
        yield Call(
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

    def _inspect_plan(self, new: CircuitState | None = None) -> Plan[CircuitSnapshot]:
        timeout = microseconds(self.config.timeout_seconds)
        put = () if new is None else (new.value,)
        state, failures, successes, probes, epoch, left = yield Call(
            _INSPECT, self._keys, (self.name, timeout, *put)
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

    def _meaning(self, error: BaseException) -> Outcome:
        """An exception that is no failure says nothing about the service either way."""
        failed = isinstance(error, self._failure_on) and not isinstance(error, self._ignore)
        return "failure" if failed else "neither"

    def _needed(self, permit: Permit, outcome: Outcome) -> bool:
        """Who gives back nothing and counts nothing need not be told of."""
        counts = outcome != "neither" and permit.epoch >= 0
        return permit.granted and (counts or bool(permit.token))

    def _alone(self, error: Exception) -> Permit:
        """The permit while Redis is away. Its epoch is nobody's, so it is never counted."""
        allowed = self._without_redis == "allow"
        if not self._alone_told:
            self._alone_told = True
            _log.warning(
                "circuit breaker %r is without Redis, calls are %s: %s",
                self.name,
                "made" if allowed else "refused",
                told(error),
                extra={"action": "breaker_alone", "breaker": self.name},
            )
        return Permit(
            granted=allowed, retry_after=0.0 if allowed else 1.0, state=CircuitState.OPEN, epoch=-1
        )

    def _refusal(self, permit: Permit) -> CircuitBreakerOpenError:
        reasons = {
            CircuitState.HALF_OPEN: "half open, and all probes are under way",
            CircuitState.OPEN: "Redis is away" if permit.epoch < 0 else "",
        }
        return CircuitBreakerOpenError(self.name, permit.retry_after, reasons.get(permit.state, ""))

    def _not_told(self, outcome: Outcome, error: Exception) -> None:
        _log.warning(
            "circuit breaker %r could not be told of a %s: %s",
            self.name,
            outcome,
            told(error),
            extra={"action": "breaker_not_told", "breaker": self.name},
        )


class CircuitBreaker(_Circuit):
    """A circuit breaker for coroutines, over `redis.asyncio`.

    `failure_on` are the exceptions that count as failures, `ignore` those of them that do not.
    `without_redis` says what happens to calls while Redis is away: ``"allow"`` makes them all
    (fails open), ``"refuse"`` refuses them all (fails closed).
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
    ) -> None:
        super().__init__(name, config, key_prefix, failure_on, ignore, without_redis)
        self._driver = AsyncDriver(redis)

    async def call(
        self, func: Callable[..., Awaitable[T]] | Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:
        """Call and await the function; `CircuitBreakerOpenError` instead, when it is open."""
        permit = await self.permit()
        if not permit.granted:
            raise self._refusal(permit)
        try:
            result = func(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            # Also when we are being cancelled: the slot is given back all the same.
            await asyncio.shield(self._settle(permit, self._meaning(error)))
            raise
        await self._settle(permit, "success")
        return cast(T, result)

    async def permit(self, *, lease: float | None = None) -> Permit:
        """Ask whether a call may be made; tell how it ended with `success` or `failure`.

        `lease` is how many seconds the call may take, if it turns out to be a probe.
        """
        try:
            return await self._driver.run(self._permit_plan(lease))
        except RedisTrouble as error:
            return self._alone(error)

    async def success(self, permit: Permit) -> None:
        """The call was made, and it was well."""
        await self._settle(permit, "success")

    async def failure(self, permit: Permit, error: BaseException | None = None) -> None:
        """The call failed; with an `error` that is no failure, it says nothing."""
        await self._settle(permit, "failure" if error is None else self._meaning(error))

    async def release(self, permit: Permit) -> None:
        """The call was not made, or nothing is known of how it ended."""
        await self._settle(permit, "neither")

    async def snapshot(self) -> CircuitSnapshot:
        """What it is at this moment; raises when Redis is away."""
        return await self._driver.run(self._inspect_plan())

    async def reset(self) -> None:
        """Close it by hand."""
        await self._driver.run(self._inspect_plan(CircuitState.CLOSED))

    async def trip(self) -> None:
        """Open it by hand; it lets probes through after `timeout_seconds`."""
        await self._driver.run(self._inspect_plan(CircuitState.OPEN))

    async def _settle(self, permit: Permit, outcome: Outcome) -> None:
        if not self._needed(permit, outcome):
            return
        try:
            await self._driver.run(self._settle_plan(permit, outcome))
        except RedisTrouble as error:
            self._not_told(outcome, error)


class SyncCircuitBreaker(_Circuit):
    """What `CircuitBreaker` does, over `redis.Redis`: for Celery tasks and threads."""

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
    ) -> None:
        super().__init__(name, config, key_prefix, failure_on, ignore, without_redis)
        self._driver = SyncDriver(redis)

    def call(self, func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call the function; `CircuitBreakerOpenError` instead, when it is open."""
        permit = self.permit()
        if not permit.granted:
            raise self._refusal(permit)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._settle(permit, self._meaning(error))
            raise
        self._settle(permit, "success")
        return result

    def permit(self, *, lease: float | None = None) -> Permit:
        """Ask whether a call may be made; tell how it ended with `success` or `failure`.

        `lease` is how many seconds the call may take, if it turns out to be a probe.
        """
        try:
            return self._driver.run(self._permit_plan(lease))
        except RedisTrouble as error:
            return self._alone(error)

    def success(self, permit: Permit) -> None:
        """The call was made, and it was well."""
        self._settle(permit, "success")

    def failure(self, permit: Permit, error: BaseException | None = None) -> None:
        """The call failed; with an `error` that is no failure, it says nothing."""
        self._settle(permit, "failure" if error is None else self._meaning(error))

    def release(self, permit: Permit) -> None:
        """The call was not made, or nothing is known of how it ended."""
        self._settle(permit, "neither")

    def snapshot(self) -> CircuitSnapshot:
        """What it is at this moment; raises when Redis is away."""
        return self._driver.run(self._inspect_plan())

    def reset(self) -> None:
        """Close it by hand."""
        self._driver.run(self._inspect_plan(CircuitState.CLOSED))

    def trip(self) -> None:
        """Open it by hand; it lets probes through after `timeout_seconds`."""
        self._driver.run(self._inspect_plan(CircuitState.OPEN))

    def _settle(self, permit: Permit, outcome: Outcome) -> None:
        if not self._needed(permit, outcome):
            return
        try:
            self._driver.run(self._settle_plan(permit, outcome))
        except RedisTrouble as error:
            self._not_told(outcome, error)

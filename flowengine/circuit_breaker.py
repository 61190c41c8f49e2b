"""The state machine of circuit breakers.

```
            failure_threshold failures in a row
    CLOSED ───────────────────────────────────────► OPEN ◄─────────────┐
       ▲                                             │ timeout_seconds │ a probe fails, or
       │ success_threshold probes succeed            ▼                 │ recovery_timeout_seconds
       └───────────────────────────────────────── HALF_OPEN ───────────┘ have elapsed
```

A probe is a call through a half-open breaker. It holds one of `half_open_max_calls` slots under a
lease. A probe that is cancelled returns its slot; the slot of a probe whose process died is free
when the lease expires. Each transition starts an epoch: the outcome of a call that was permitted in
an earlier epoch is ignored.

Pure: the caller passes the time. Breakers shared through Redis make the same transitions in Lua
(`flowengine/messaging/scripts/parts/circuit.lua`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: ``neither``: the call was not made, or its error says nothing about the service.
Outcome: TypeAlias = Literal["success", "failure", "neither"]
Failures: TypeAlias = tuple[type[BaseException], ...]


class CircuitState(StrEnum):
    CLOSED = "closed"  #: all calls are permitted
    OPEN = "open"  #: no call is permitted
    HALF_OPEN = "half_open"  #: a limited number of probes is permitted


class CircuitEvent(StrEnum):
    FAILURE_THRESHOLD_REACHED = "failure_threshold_reached"
    TIMEOUT_ELAPSED = "timeout_elapsed"
    PROBE_FAILED = "probe_failed"
    SUCCESS_THRESHOLD_REACHED = "success_threshold_reached"
    RECOVERY_TIMED_OUT = "recovery_timed_out"


#: state x event -> state. Events that cannot occur in a state have no entry.
TRANSITIONS = {
    (CircuitState.CLOSED, CircuitEvent.FAILURE_THRESHOLD_REACHED): CircuitState.OPEN,
    (CircuitState.OPEN, CircuitEvent.TIMEOUT_ELAPSED): CircuitState.HALF_OPEN,
    (CircuitState.HALF_OPEN, CircuitEvent.PROBE_FAILED): CircuitState.OPEN,
    (CircuitState.HALF_OPEN, CircuitEvent.SUCCESS_THRESHOLD_REACHED): CircuitState.CLOSED,
    (CircuitState.HALF_OPEN, CircuitEvent.RECOVERY_TIMED_OUT): CircuitState.OPEN,
}


class CircuitBreakerConfig(BaseModel):
    """When a circuit breaker opens, and when it closes again."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    #: consecutive failures, counted over all processes, that open it
    failure_threshold: int = Field(default=5, ge=1)
    #: seconds in the open state before probes are permitted
    timeout_seconds: float = Field(default=60.0, gt=0, le=3600)
    #: seconds in the half-open state before it opens again
    recovery_timeout_seconds: float = Field(default=300.0, gt=0, le=36_000)
    #: limit of concurrent probes, over all processes
    half_open_max_calls: int = Field(default=3, ge=1)
    #: successful probes that close it
    success_threshold: int = Field(default=2, ge=1)
    #: seconds until the slot of an unreported probe is free; None: `timeout_seconds`
    probe_lease_seconds: float | None = Field(default=None, gt=0)

    @property
    def probe_lease(self) -> float:
        return self.probe_lease_seconds or self.timeout_seconds

    @model_validator(mode="after")
    def _probe_lease_fits_into_recovery(self) -> Self:
        if self.probe_lease > self.recovery_timeout_seconds:
            raise ValueError(
                f"the probe lease of {self.probe_lease:g} s exceeds the recovery timeout of "
                f"{self.recovery_timeout_seconds:g} s: raise recovery_timeout_seconds or lower "
                "probe_lease_seconds"
            )
        return self


class Permit(BaseModel):
    """Whether a call may be made. The outcome of a granted call must be reported."""

    model_config = ConfigDict(frozen=True)

    granted: bool
    retry_after: float = 0.0  #: seconds after which to ask again; 0 if granted
    state: CircuitState = CircuitState.CLOSED
    token: str = ""  #: identifies a probe; empty for calls through a closed breaker
    epoch: int = 0  #: the breaker's number of transitions when the permit was granted


class CircuitSnapshot(BaseModel):
    """A circuit breaker at one moment."""

    name: str
    state: CircuitState
    #: consecutive failures; of a breaker that is not closed those that opened it, with the probes
    failures: int
    successes: int  #: successful probes in the half-open state
    probes: int  #: probes under way
    epoch: int  #: number of transitions
    retry_after: float  #: seconds until probes are permitted; 0 unless open


class Circuit:
    """The state of one circuit breaker. Times are in seconds."""

    def __init__(self, config: CircuitBreakerConfig) -> None:
        self._config = config
        self._state, self._changed = CircuitState.CLOSED, 0.0
        self._failures = self._successes = self._epoch = self._probe_count = 0
        self._probes: dict[str, float] = {}  #: token to the end of its lease

    def configure(self, config: CircuitBreakerConfig) -> None:
        """Go on with other values, in the same state."""
        self._config = config

    def permit(self, now: float, lease: float) -> Permit:
        self._advance(now)
        if self._state is CircuitState.OPEN:
            return self._denied(self._changed + self._config.timeout_seconds - now)
        token = ""
        if self._state is CircuitState.HALF_OPEN:
            if len(self._probes) >= self._config.half_open_max_calls:
                # A slot is free when a probe is reported, at the latest when its lease expires.
                return self._denied(min(1.0, min(self._probes.values()) - now))
            self._probe_count += 1
            token = f"probe_{self._probe_count}"
            self._probes[token] = now + lease
        return Permit(granted=True, state=self._state, token=token, epoch=self._epoch)

    def settle(self, now: float, permit: Permit, outcome: Outcome) -> None:
        lease = self._probes.pop(permit.token, None)
        if not permit.granted or permit.epoch != self._epoch or outcome == "neither":
            return
        if self._state is CircuitState.CLOSED:
            self._failures = self._failures + 1 if outcome == "failure" else 0
            if self._failures >= self._config.failure_threshold:
                self._transition(CircuitEvent.FAILURE_THRESHOLD_REACHED, now)
            return
        if lease is None or lease <= now:
            return  # the slot may belong to another probe by now
        if outcome == "failure":
            self._failures += 1
            self._transition(CircuitEvent.PROBE_FAILED, now)
        elif now < self._changed + self._config.recovery_timeout_seconds:
            self._successes += 1
            if self._successes >= self._config.success_threshold:
                self._transition(CircuitEvent.SUCCESS_THRESHOLD_REACHED, now)

    def _advance(self, now: float) -> None:
        """Make the transitions that depend on time alone."""
        recovery_ends = self._changed + self._config.recovery_timeout_seconds
        if self._state is CircuitState.HALF_OPEN and now >= recovery_ends:
            self._transition(CircuitEvent.RECOVERY_TIMED_OUT, recovery_ends)
        timeout_ends = self._changed + self._config.timeout_seconds
        if self._state is CircuitState.OPEN and now >= timeout_ends:
            self._transition(CircuitEvent.TIMEOUT_ELAPSED, now)
        self._probes = {token: ends for token, ends in self._probes.items() if ends > now}

    def _denied(self, wait: float) -> Permit:
        return Permit(granted=False, retry_after=wait, state=self._state, epoch=self._epoch)

    def _transition(self, event: CircuitEvent, moment: float) -> None:
        self._state, self._changed = TRANSITIONS[self._state, event], moment
        self._successes = 0
        if self._state is CircuitState.CLOSED:
            self._failures = 0
        self._epoch += 1


def outcome_of(error: BaseException, failure_on: Failures, ignore: Failures) -> Outcome:
    failed = isinstance(error, failure_on) and not isinstance(error, ignore)
    return "failure" if failed else "neither"

"""A circuit of one process alone, for those who have no Redis.

It does what the scripts of a shared one do (`flowengine.messaging.breaker` draws it).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from flowengine.authoring import Breaker
from flowengine.settings import Settings

Outcome: TypeAlias = Literal["success", "failure", "neither"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of a circuit: what its breaker says, and the settings where it says nothing."""

    failure_threshold: int
    timeout_seconds: float
    half_open_max_calls: int
    success_threshold: int
    recovery_timeout_seconds: float

    @classmethod
    def of(cls, breaker: Breaker, settings: Settings) -> Limits:
        timeout = breaker.timeout_seconds or settings.breaker_timeout_seconds
        return cls(
            breaker.failure_threshold or settings.breaker_failure_threshold,
            timeout,
            breaker.half_open_max_calls or settings.breaker_half_open_max_calls,
            breaker.success_threshold,
            breaker.recovery_timeout_seconds or 5 * timeout,
        )


@dataclass(frozen=True, slots=True)
class Permit:
    """A circuit's answer, and whom to tell how the call ended."""

    granted: bool
    retry_after: float  #: seconds after which to ask again
    settle: Callable[[Outcome], object]


CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
FAILED_ENOUGH, WAITED, PROBE_FAILED = "failed enough", "waited", "a probe failed"
RECOVERED, TOOK_TOO_LONG = "recovered", "took too long"

#: What a circuit becomes. A state has no row for what cannot happen to it.
TRANSITIONS = {
    CLOSED: {FAILED_ENOUGH: OPEN},
    OPEN: {WAITED: HALF_OPEN},
    HALF_OPEN: {PROBE_FAILED: OPEN, RECOVERED: CLOSED, TOOK_TOO_LONG: OPEN},
}


class LocalCircuit:
    """Lets calls through, or does not; told the time by its clock, in seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._lock = threading.Lock()
        self._state, self._changed = CLOSED, 0.0
        self._failures = self._successes = 0
        self._epoch = 0  #: how often it has changed: how an old call ended says nothing new
        self._probes: dict[object, float] = {}  #: when the lease of each ends

    def permit(self, lease: float) -> Permit:
        with self._lock:
            now = self._clock()
            self._let_time_pass(now)
            if self._state == OPEN:
                return self._denied(self._changed + self._limits.timeout_seconds - now)
            probe: object = None
            if self._state == HALF_OPEN:
                if len(self._probes) >= self._limits.half_open_max_calls:
                    # A probe may end at any moment, and its lease at the latest.
                    return self._denied(min(1.0, min(self._probes.values()) - now))
                probe = object()
                self._probes[probe] = now + lease
            epoch = self._epoch
            return Permit(True, 0.0, lambda outcome: self._settle(probe, epoch, outcome))

    def _denied(self, wait: float) -> Permit:
        return Permit(False, wait, lambda outcome: None)

    def _settle(self, probe: object, epoch: int, outcome: Outcome) -> None:
        with self._lock:
            now = self._clock()
            lease = self._probes.pop(probe, None)
            if epoch != self._epoch or outcome == "neither":
                return
            if self._state == CLOSED:
                self._failures = self._failures + 1 if outcome == "failure" else 0
                if self._failures >= self._limits.failure_threshold:
                    self._become(FAILED_ENOUGH, now)
                return
            # A probe whose lease is over was given up: its slot may be another's.
            if lease is None or lease <= now:
                return
            if outcome == "failure":
                self._become(PROBE_FAILED, now)
            elif now < self._changed + self._limits.recovery_timeout_seconds:
                self._successes += 1
                if self._successes >= self._limits.success_threshold:
                    self._become(RECOVERED, now)

    def _let_time_pass(self, now: float) -> None:
        over = self._changed + self._limits.recovery_timeout_seconds
        if self._state == HALF_OPEN and now >= over:
            self._become(TOOK_TOO_LONG, over)
        if self._state == OPEN and now >= self._changed + self._limits.timeout_seconds:
            self._become(WAITED, now)
        self._probes = {probe: ends for probe, ends in self._probes.items() if ends > now}

    def _become(self, event: str, moment: float) -> None:
        self._state, self._changed = TRANSITIONS[self._state][event], moment
        self._failures = self._successes = 0
        self._epoch += 1

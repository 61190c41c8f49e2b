"""A circuit breaker of one process, used when no Redis is configured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from flowengine.circuit_breaker import (
    Circuit,
    CircuitBreakerConfig,
    Failures,
    Outcome,
    Permit,
    outcome_of,
)


class LocalCircuitBreaker:
    """Permits calls and records their outcomes, like `SyncCircuitBreaker`; threads may share it."""

    def __init__(
        self,
        config: CircuitBreakerConfig,
        clock: Callable[[], float] = time.monotonic,
        *,
        failure_on: Failures = (Exception,),
        ignore: Failures = (),
    ) -> None:
        self._config, self._clock = config, clock
        self._failure_on, self._ignore = failure_on, ignore
        self._circuit, self._lock = Circuit(config), threading.Lock()

    def permit(self, *, lease: float | None = None) -> Permit:
        with self._lock:
            return self._circuit.permit(self._clock(), lease or self._config.probe_lease)

    def success(self, permit: Permit) -> None:
        self._settle(permit, "success")

    def failure(self, permit: Permit, error: BaseException | None = None) -> None:
        outcome = outcome_of(error, self._failure_on, self._ignore) if error else "failure"
        self._settle(permit, outcome)

    def release(self, permit: Permit) -> None:
        self._settle(permit, "neither")

    def _settle(self, permit: Permit, outcome: Outcome) -> None:
        with self._lock:
            self._circuit.settle(self._clock(), permit, outcome)

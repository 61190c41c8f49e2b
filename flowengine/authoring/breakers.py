"""``Breaker(...)``: the circuit breaker of an event facet.

Only its name is part of the program. A deploy may change the rest, also for runs that
are already under way: thresholds describe the service, not the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flowengine.errors import AuthoringError
from flowengine.program.limits import LONGEST_CIRCUIT

Failures = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit breaker that event facets share by name."""

    name: str
    #: Consecutive failures, over all processes, that open it; None: the setting.
    failure_threshold: int | None = None
    #: Seconds it stays open before it admits probes; None: the setting.
    timeout_seconds: float | None = None
    #: Concurrent probes while half-open; None: the setting.
    half_open_max_calls: int | None = None
    #: Successful probes that close it.
    success_threshold: int = 2
    #: Seconds it may stay half-open; None: five times `timeout_seconds`.
    recovery_timeout_seconds: float | None = None
    #: Seconds until a probe without outcome loses its permit; None: the facet's
    #: `timeout`, or `timeout_seconds`.
    probe_lease_seconds: float | None = None
    #: Errors that count as failures, and exceptions to them.
    failure_on: Failures = (Exception,)
    ignore: Failures = ()

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise AuthoringError(f"Breaker({self.name!r}): {'; '.join(problems)}")


def _problems(breaker: Breaker) -> list[str]:
    problems = []
    name = breaker.name
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_CIRCUIT:
        problems.append(f"the name must be text of 1 to {LONGEST_CIRCUIT} characters")
    for field in ("failure_threshold", "half_open_max_calls", "success_threshold"):
        value = getattr(breaker, field)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_whole and value >= 1):
            problems.append(f"{field}={value!r} is not a whole number, 1 or more")
    for field, limit in (
        ("timeout_seconds", 3600),
        ("recovery_timeout_seconds", 36_000),
        ("probe_lease_seconds", 36_000),
    ):
        value = getattr(breaker, field)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and 0 < value <= limit):
            problems.append(f"{field}={value!r} is not a number of seconds up to {limit}")
    for field in ("failure_on", "ignore"):
        value = getattr(breaker, field)
        if not isinstance(value, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
        ):
            problems.append(f"{field}={value!r} is not a tuple of exception classes")
    return problems

"""``Breaker(...)``: when the circuit of an event facet opens, and how it closes again.

Only its name is part of the program. The rest may be changed by a deploy, and then holds for
runs that were started before it too: it is about the service, not about the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flowengine.errors import AuthoringError
from flowengine.program.limits import LONGEST_CIRCUIT

Failures = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Breaker:
    """A circuit that event facets share by its name."""

    name: str
    #: Failures in a row, of all processes together, that open it; None: as the settings say.
    failure_threshold: int | None = None
    #: Seconds for which it lets nothing through before it lets probes; None: as the settings say.
    timeout_seconds: float | None = None
    #: Most probes under way at a time; None: as the settings say.
    half_open_max_calls: int | None = None
    #: Probes that must succeed to close it.
    success_threshold: int = 2
    #: Seconds that probing may take; None: five times `timeout_seconds`.
    recovery_timeout_seconds: float | None = None
    #: Seconds after which a probe that was not heard of is given up; None: the facet's
    #: `timeout`, or `timeout_seconds`.
    probe_lease_seconds: float | None = None
    #: Errors that count as failures, and those of them that do not.
    failure_on: Failures = (Exception,)
    ignore: Failures = ()

    def __post_init__(self) -> None:
        problems = _unsound(self)
        if problems:
            raise AuthoringError(f"Breaker({self.name!r}): {'; '.join(problems)}")


def _unsound(breaker: Breaker) -> list[str]:
    problems = []
    name = breaker.name
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_CIRCUIT:
        problems.append(f"its name is a text of 1 to {LONGEST_CIRCUIT} letters")
    for field in ("failure_threshold", "half_open_max_calls", "success_threshold"):
        value = getattr(breaker, field)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (is_whole and value >= 1):
            problems.append(f"{field}={value!r} is not a whole number, 1 or more")
    for field, most in (
        ("timeout_seconds", 3600),
        ("recovery_timeout_seconds", 36_000),
        ("probe_lease_seconds", 36_000),
    ):
        value = getattr(breaker, field)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and 0 < value <= most):
            problems.append(f"{field}={value!r} is not a number of seconds up to {most}")
    for field in ("failure_on", "ignore"):
        value = getattr(breaker, field)
        if not isinstance(value, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
        ):
            problems.append(f"{field}={value!r} is not a tuple of exceptions")
    return problems

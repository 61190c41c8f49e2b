"""The options of event facets, and ``Breaker(...)``, their circuit breaker.

Only the name of a breaker is part of the program. A deploy may change the rest, also for runs that
are already under way: thresholds describe the service, not the run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowengine.errors import AuthoringError
from flowengine.program.event_options import EventOptions, Limit, Rate, RetryPolicy
from flowengine.program.limits import LONGEST_CIRCUIT
from flowengine.program.option_checks import (
    beyond_numbers,
    cache_problems,
    is_number,
    limit_problems,
    priority_problems,
    retry_problems,
)

#: At which failed tries are logged. Not part of the program: a deploy changes it for all runs.
LOG_LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

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
        problems = _breaker_problems(self)
        if problems:
            raise AuthoringError(f"Breaker({self.name!r}): {'; '.join(problems)}")


def _breaker_problems(breaker: Breaker) -> list[str]:
    problems = []
    name = breaker.name
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_CIRCUIT:
        problems.append(f"the name must be text of 1 to {LONGEST_CIRCUIT} characters")
    for field in ("failure_threshold", "half_open_max_calls", "success_threshold"):
        value = getattr(breaker, field)
        if value is not None and not (isinstance(value, int) and _is_number(value, above=0)):
            problems.append(f"{field}={value!r} is not a whole number, 1 or more")
    for field, limit in (
        ("timeout_seconds", 3600),
        ("recovery_timeout_seconds", 36_000),
        ("probe_lease_seconds", 36_000),
    ):
        value = getattr(breaker, field)
        if value is not None and not (_is_number(value, above=0) and value <= limit):
            problems.append(f"{field}={value!r} is not a number of seconds up to {limit}")
    for field in ("failure_on", "ignore"):
        value = getattr(breaker, field)
        if not isinstance(value, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
        ):
            problems.append(f"{field}={value!r} is not a tuple of exception classes")
    return problems


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """Return every problem of the execution options."""
    problems = []
    task_list = options.get("task_list", "default")
    if not isinstance(task_list, str) or not task_list.strip():
        problems.append(f"task_list={task_list!r} is not the name of a task list")
    timeout = options.get("timeout")
    if timeout is not None and not _is_number(timeout, above=0):
        problems.append(f"timeout={timeout!r} is not a number of seconds above 0")
    max_losses = options.get("max_losses", 0)
    if not _is_number(max_losses) or not isinstance(max_losses, int):
        problems.append(f"max_losses={max_losses!r} is not a whole number, 0 or more")
    if options.get("on_loss", "retry") not in ("retry", "fail"):
        problems.append(f"on_loss={options['on_loss']!r} is neither 'retry' nor 'fail'")
    if not isinstance(options.get("effects", True), bool):
        problems.append(f"effects={options['effects']!r} is neither True nor False")
    breaker = options.get("breaker")
    if breaker is not None and not isinstance(breaker, str | Breaker):
        problems.append(
            f"breaker={breaker!r} is neither the name of a circuit breaker nor a Breaker(…)"
        )
    elif (
        isinstance(breaker, str) and not 0 < len(breaker.strip()) <= len(breaker) <= LONGEST_CIRCUIT
    ):
        problems.append(f"breaker={breaker!r} is not a name of 1 to {LONGEST_CIRCUIT} characters")
    retry = options.get("retry", RetryPolicy())
    if not isinstance(retry, RetryPolicy):
        problems.append(f"retry={retry!r} is not a Retry(attempts=…)")
    else:
        problems += retry_problems(retry)
    problems += limit_problems(options.get("limit", ()), options.get("rate", ()))
    problems += cache_problems(options.get("cache"))
    problems += priority_problems(options.get("priority", 0))
    if not problems:
        names = ("retry", "timeout", "max_losses", "limit")
        given = {name: options[name] for name in names if name in options}
        problems += beyond_numbers(EventOptions(**given))
    return problems


def as_tuple(given: Any) -> Any:
    """Return one limit or rate, or a list of them, as a tuple; anything else is checked later."""
    if given is None:
        return ()
    if isinstance(given, Limit | Rate):
        return (given,)
    return tuple(given) if isinstance(given, list) else given


def _is_number(value: Any, above: float | None = None) -> bool:
    return is_number(value) and (above is None or value > above)

"""Every setting, with its unit, its default and its environment variable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from flowengine.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings; each is read from ``FLOWENGINE_<NAME>`` in capitals."""

    #: Where runs are stored. The default is a SQLite file in the working directory.
    database_url: str = "sqlite:///flowengine.db"
    #: Threads that run facets in an embedded process.
    concurrency: int = 8
    #: Largest JSON text of one input or one reported value, in bytes.
    max_value_bytes: int = 1024 * 1024
    #: Seconds between two looks of the watchdog.
    watchdog_interval: float = 0.5
    #: Seconds between two looks of the in-process broker. Shorter is quicker and busier.
    polling_interval: float = 0.005
    #: Seconds between two heartbeats of a server.
    heartbeat_interval: float = 10.0
    #: Seconds without a heartbeat after which a server is taken for dead.
    server_timeout: float = 30.0
    #: Seconds that one drain of a task list may take before it makes room for others.
    worker_time_slice: float = 0.1
    #: Most tasks that are claimed at once, but for those of one message of a wide loop; they
    #: must be known to be quick. 1: always one.
    batch: int = 50
    #: Average seconds of a try up to which a facet is known to be quick.
    quick_seconds: float = 0.002
    #: Seconds after which what is in one hand with a slow task is taken out of it.
    batch_max_wait: float = 0.05
    #: Whether a worker goes on at once with what its own report made ready.
    continuation: bool = True
    #: Seconds that one batch of a chord may take before it leaves the rest to others.
    chord_time_slice: float = 1.0
    #: Seconds after which the watchdog rings again for tasks that are due and not claimed.
    wakeup_repeat: float = 5.0
    #: Seconds for which bells for one task list are gathered after one was rung at once.
    wakeup_debounce: float = 0.02
    #: Most workers that one bell wakes.
    wakeup_fanout: int = 16
    #: Most calls of facets that call themselves, in one run: recursion without end fails there.
    max_recursive_calls: int = 10_000
    #: Whether programs may hold script blocks: Python text that workers run.
    scripts: bool = False
    #: Seconds that one script may take.
    script_seconds: float = 10.0
    #: Memory that the process of one script may use, in bytes.
    script_bytes: int = 256 * 1024 * 1024
    #: The Redis through which processes share circuit breakers. Empty: the Celery app's own
    #: broker or result backend, where it is one; else each process has its own circuits.
    breaker_redis_url: str = ""
    #: Failures in a row that open a circuit.
    breaker_failure_threshold: int = 5
    #: Seconds for which an open circuit lets nothing through before it lets probes.
    breaker_timeout_seconds: float = 60.0
    #: Most probes under way at a time through a circuit that may have recovered.
    breaker_half_open_max_calls: int = 3
    #: What becomes of tasks with a breaker while its Redis is away: `run` or `park`.
    breaker_without_redis: str = "run"
    #: Where reports wait on disk while the database cannot be reached.
    spool_directory: str = "flowengine-spool"
    #: Modules with facets, imported by `celery -A flowengine`; separated by commas.
    imports: str = ""
    #: The queue of messages that concern no task list: evaluate, execute, watchdog.
    control_queue: str = "flowengine"

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        configured: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read the settings; what is not set keeps its default.

        `configured` is a Celery app's configuration: there the names are ``flowengine_<name>``.
        The environment wins over it.
        """
        environment = os.environ if environment is None else environment
        found: dict[str, Any] = {}
        for field in fields(cls):
            variable = f"FLOWENGINE_{field.name.upper()}"
            if environment.get(variable):
                found[field.name] = _read(variable, environment, field.default)
            elif configured and configured.get(f"flowengine_{field.name}") is not None:
                value = str(configured[f"flowengine_{field.name}"])
                found[field.name] = _read(variable, {variable: value}, field.default)
        return cls(**found)


_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _read(variable: str, environment: Mapping[str, str], default: Any) -> Any:
    value = environment[variable]
    kind = type(default)
    if kind is bool:
        if value.lower() not in _WORDS:
            raise InvalidSetting(variable, value, "on or off")
        return _WORDS[value.lower()]
    try:
        return kind(value)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}.get(kind, "text")
        raise InvalidSetting(variable, value, expected) from None

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
    #: Seconds that one drain of a task list may take before it makes room for others.
    drain_slice: float = 0.1

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the settings; what is not set keeps its default."""
        environment = os.environ if environment is None else environment
        found = {
            field.name: _read(f"FLOWENGINE_{field.name.upper()}", environment, field.default)
            for field in fields(cls)
            if environment.get(f"FLOWENGINE_{field.name.upper()}")
        }
        return cls(**found)


def _read(variable: str, environment: Mapping[str, str], default: Any) -> Any:
    value = environment[variable]
    kind = type(default)
    try:
        return kind(value)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}.get(kind, "text")
        raise InvalidSetting(variable, value, expected) from None

"""The configuration of a poller."""

from __future__ import annotations

import socket
from dataclasses import dataclass, fields

from flowengine.errors import InvalidConfig


@dataclass(frozen=True)
class AgentPollerConfig:
    """How a poller appears in the registry of servers, and how it polls."""

    service_name: str = "afl-agent"  #: the kind of agent
    server_group: str = "default"
    server_name: str = ""  #: for people; empty: the name of the host
    task_list: str = "default"  #: from which it claims tasks
    #: Maximum milliseconds between two polls. On PostgreSQL, which notifies it, an idle poller asks
    #: every 30 seconds instead.
    poll_interval_ms: int = 2000
    max_concurrent: int = 5  #: maximum number of callbacks at once
    heartbeat_interval_ms: int = 10000  #: between two signs of life

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int):
                if type(value) is not int or value <= 0:
                    raise InvalidConfig(field.name, value, "a whole number greater than 0")
            elif not isinstance(value, str):
                raise InvalidConfig(field.name, value, "text")
        if not self.task_list:
            raise InvalidConfig("task_list", "", "the name of a task list")
        if not self.server_name:
            object.__setattr__(self, "server_name", socket.gethostname())

    def check_heartbeat(self, server_timeout: float) -> None:
        """Refuse an interval with which one late heartbeat would count as a death."""
        if 2 * self.heartbeat_interval_ms > 1000 * server_timeout:
            expected = (
                f"at most half of the setting server_timeout ({server_timeout:g} s): "
                "after that time without a heartbeat its tasks run elsewhere"
            )
            raise InvalidConfig("heartbeat_interval_ms", self.heartbeat_interval_ms, expected)

"""The configurations of pollers and runners."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, fields
from typing import Any

from flowengine.errors import InvalidConfig

_MAX_PORT = 65535
_MAX_TOPICS = 1_000
_MAX_LOCK = 86_400_000  # milliseconds: a day


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
        _check_fields(self)


@dataclass(frozen=True)
class RunnerConfig:
    """How a runner service appears in the registry of servers, polls, locks and shows itself."""

    server_group: str = "default"
    service_name: str = "afl-runner"  #: the kind of server
    server_name: str = ""  #: for people; empty: the name of the host
    #: The facets that it serves, as qualified names or globs (``billing.*``); empty: all that its
    #: registry has handlers for.
    topics: list[str] = field(default_factory=list)
    task_list: str = "default"  #: from which it claims tasks
    poll_interval_ms: int = 2000  #: as of `AgentPollerConfig`
    heartbeat_interval_ms: int = 10000  #: between two signs of life
    lock_duration_ms: int = 60000  #: of the lock on a work item, until it is extended
    lock_extend_interval_ms: int = 20000  #: between two extensions of the locks
    max_concurrent: int = 5  #: maximum number of handlers at once
    shutdown_timeout_ms: int = 30000  #: that running handlers get when it stops
    http_port: int = 8080  #: the first port that is tried for HTTP; 0: any free one
    http_max_port_attempts: int = 20  #: ports that are tried; 0: no HTTP server

    def __post_init__(self) -> None:
        topics = self.topics
        if not isinstance(topics, list | tuple):
            raise InvalidConfig("topics", topics, "a list of names of facets, or globs")
        for topic in topics:
            if not isinstance(topic, str) or not topic.strip():
                expected = 'a list of names of facets, or globs as "billing.*"'
                raise InvalidConfig("topics", topic, expected)
        if len(topics) > _MAX_TOPICS:
            raise InvalidConfig("topics", len(topics), f"at most {_MAX_TOPICS:,} names and globs")
        object.__setattr__(self, "topics", list(topics))
        _check_fields(self, may_be_zero=("http_port", "http_max_port_attempts"))
        if self.lock_duration_ms > _MAX_LOCK:
            expected = f"at most {_MAX_LOCK:,} (a day): locks are extended while a handler runs"
            raise InvalidConfig("lock_duration_ms", self.lock_duration_ms, expected)
        if 2 * self.lock_extend_interval_ms > self.lock_duration_ms:
            expected = (
                f"at most half of lock_duration_ms ({self.lock_duration_ms}): a lock must not "
                "expire because one extension is late"
            )
            raise InvalidConfig("lock_extend_interval_ms", self.lock_extend_interval_ms, expected)
        if self.http_port > _MAX_PORT:
            raise InvalidConfig("http_port", self.http_port, f"a port from 0 to {_MAX_PORT}")


def _check_fields(config: Any, may_be_zero: tuple[str, ...] = ()) -> None:
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(each.default, int):
            least = 0 if each.name in may_be_zero else 1
            if type(value) is not int or value < least:
                expected = (
                    "0 or a greater whole number"
                    if least == 0
                    else ("a whole number greater than 0")
                )
                raise InvalidConfig(each.name, value, expected)
        elif isinstance(each.default, str) and not isinstance(value, str):
            raise InvalidConfig(each.name, value, "text")
    if not config.task_list:
        raise InvalidConfig("task_list", "", "the name of a task list")
    if not config.server_name:
        object.__setattr__(config, "server_name", socket.gethostname())


def check_heartbeat(interval_ms: int, server_timeout: float) -> None:
    """Refuse an interval with which one late heartbeat would count as a death."""
    if 2 * interval_ms > 1000 * server_timeout:
        expected = (
            f"at most half of the setting server_timeout ({server_timeout:g} s): "
            "after that time without a heartbeat its tasks run elsewhere"
        )
        raise InvalidConfig("heartbeat_interval_ms", interval_ms, expected)

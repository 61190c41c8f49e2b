"""The status of a server: as JSON, as metrics of Prometheus, and as pages of an HTTP server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Protocol

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Outcome, Succeeded
from flowengine.http import Request, Response, Route
from flowengine.store.servers import HandledCount

TEXT = "text/plain; version=0.0.4; charset=utf-8"
MAX_RUNNING = 1_000  #: work items that a status lists


@dataclass(frozen=True, slots=True)
class RunningItem:
    """A work item whose handler runs."""

    run: str
    step: str
    facet: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ServerStatus:
    server_id: str
    state: str
    uptime_seconds: float
    service_name: str
    server_group: str
    server_name: str
    pid: int
    version: str
    task_lists: list[str]
    handlers: list[str]
    max_concurrent: int
    topics: list[str] = field(default_factory=list)
    handled: list[HandledCount] = field(default_factory=list)
    running: list[RunningItem] = field(default_factory=list)
    problem: str = ""  #: why it is not healthy; empty: it is


class StatusSource(Protocol):
    def status(self) -> ServerStatus: ...

    def problem(self) -> str:
        """Return why the server is not healthy; empty: it runs, and reaches the database."""


class HandledTotals:
    """How many tries of each facet this process has run. Shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, HandledCount] = {}

    def count(self, task: TaskDefinition, outcome: Outcome, seconds: float) -> None:
        with self._lock:
            count = self._counts.setdefault(task.name, HandledCount(task.name))
            if isinstance(outcome, Succeeded):
                count.handled += 1
            else:
                count.not_handled += 1

    def counts(self) -> list[HandledCount]:
        with self._lock:
            return [HandledCount(c.handler, c.handled, c.not_handled) for c in self._in_order()]

    def _in_order(self) -> list[HandledCount]:
        return [self._counts[name] for name in sorted(self._counts)]


class Uptime:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()

    @property
    def seconds(self) -> float:
        return round(self._clock() - self._began, 3)


# --- pages ---


def status_routes(source: StatusSource) -> list[Route]:
    """Return the pages of a server: /health, /status and /metrics."""

    def health(_: Request) -> Response:
        problem = source.problem()
        answer = {"status": "unhealthy", "problem": problem} if problem else {"status": "ok"}
        return Response.of_json(answer, 503 if problem else 200)

    def status(_: Request) -> Response:
        return Response.of_json(asdict(source.status()))

    def metrics(_: Request) -> Response:
        return Response(200, exposition(source.status()).encode(), TEXT)

    pages = {"/health": health, "/status": status, "/metrics": metrics}
    return [Route("GET", path, handler) for path, handler in pages.items()]


# --- metrics ---

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(status: ServerStatus) -> str:
    """Return the metrics of a server in the text format of Prometheus."""
    server = {"server": status.server_id, "service": status.service_name}
    lines = _metric("server_up", "gauge", "Whether the server runs and reaches the database.")
    lines.append(_sample("server_up", server, 0 if status.problem else 1))
    lines += _metric("server_uptime_seconds", "gauge", "Seconds since the server was started.")
    lines.append(_sample("server_uptime_seconds", server, status.uptime_seconds))
    lines += _metric("server_running_items", "gauge", "Work items whose handler runs.")
    lines.append(_sample("server_running_items", server, len(status.running)))
    lines += _metric("server_max_concurrent", "gauge", "Maximum number of handlers at once.")
    lines.append(_sample("server_max_concurrent", server, status.max_concurrent))
    lines += _metric("server_handled_total", "counter", "Tries that have ended, by outcome.")
    for count in status.handled:
        for outcome, number in (("succeeded", count.handled), ("failed", count.not_handled)):
            labels = {**server, "handler": count.handler, "outcome": outcome}
            lines.append(_sample("server_handled_total", labels, number))
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP flowengine_{name} {text}", f"# TYPE flowengine_{name} {kind}"]


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    given = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
    return f"flowengine_{name}{{{given}}} {value}"

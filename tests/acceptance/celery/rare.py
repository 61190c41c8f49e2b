"""Facets and an agent that most workers do not have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flowengine import agent, event_facet, fork_join, workflow
from flowengine.models import ModelRequest
from flowengine.testing import ScriptedModel, calling
from tests.acceptance.celery import graphs


@event_facet
def weigh(grams: int) -> int:
    return grams + 1


@event_facet(task_list="rare")
def measure(metres: int) -> int:
    return metres


@event_facet(name="rare.describe")
def describe(name: str) -> Any:
    (Path(os.environ["TRACES"]) / f"begun-{name}-{os.getpid()}").touch()
    return {"y": [1, 2, 3]}


@workflow
def measuring(metres: int) -> int:
    return measure(metres)


@workflow
def weighing(grams: int) -> int:
    return weigh(grams)


def _clerk(request: ModelRequest) -> Any:
    """Add twice with a tool that every worker has, then answer."""
    (Path(os.environ["TRACES"]) / f"begun-clerk-{os.getpid()}").touch()
    last = max(at for at, m in enumerate(request.messages) if m.role == "user")
    results = [m.results[0].content for m in request.messages[last:] if m.role == "tool"]
    if len(results) < 2:
        return calling("add", a=int(results[0]) if results else 1, b=1)
    return results[-1]


@agent(model=ScriptedModel(_clerk), tools=[graphs.add], name="rare.clerk")
def clerk(task: str) -> str:
    """You add."""
    return task


clerks = fork_join(clerk, name="rare.clerks")


@workflow
def asking(task: str) -> str:
    return clerk(task)

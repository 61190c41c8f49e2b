"""A workflow that a running event facet continues with: a graph chosen at run time."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.program.nodes import Json, Program


@dataclass(frozen=True)
class WorkflowCall:
    """Returned by an event facet: the workflow's result becomes the result of its step."""

    program: Program | None  #: None: the program of the facet's run
    workflow: str
    inputs: dict[str, Json]
    waits: bool = True

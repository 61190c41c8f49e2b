"""A workflow called by a facet that runs: the graph is decided at run time."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.program.nodes import Json, Program


@dataclass(frozen=True)
class WorkflowCall:
    """What an event facet returns to go on with a workflow: that one's result is its own."""

    program: Program | None  #: None: the program of the run that the facet runs in
    workflow: str
    inputs: dict[str, Json]
    waits: bool = True

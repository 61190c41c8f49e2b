"""Check the inputs of a start against the workflow."""

from __future__ import annotations

from collections.abc import Mapping

from flowengine.errors import InvalidInputs
from flowengine.program.names import did_you_mean
from flowengine.program.nodes import Json
from flowengine.program.plan import FacetPlan
from flowengine.program.types import misfits


def check_inputs(workflow: FacetPlan, inputs: Mapping[str, Json]) -> None:
    """Raise `InvalidInputs` with all problems: unknown, missing or of another type."""
    declared = [param.name for param in workflow.params]
    problems = [
        f"unknown input {name!r}{did_you_mean(name, declared)} "
        f"(it takes: {', '.join(declared) or 'nothing'})"
        for name in inputs
        if name not in declared
    ]
    problems += [
        f"input {param.name!r} is missing and has no default"
        for param in workflow.params
        if param.default is None and param.name not in inputs
    ]
    problems += [
        f"input {problem}" for problem in misfits(workflow.params, inputs, workflow.schemas)
    ]
    if problems:
        raise InvalidInputs(workflow.name, problems)

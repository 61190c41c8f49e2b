"""Requests to start a workflow by name: tasks that a runner service claims, without an event.

A request is a run of its own, of the workflow `flowengine.Execute`, with one step. So it is stored,
claimed, fenced, recovered, listed, cancelled and purged like any other run. The run that it starts
has an id derived from that step: a runner that dies between the start and its report, and the one
that repeats it, start the same run.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowengine.errors import InvalidInputs
from flowengine.evaluator.records import derived_id
from flowengine.program import Program, nodes
from flowengine.program.nodes import Json
from flowengine.program.serializer import write_program
from flowengine.program.standard import EXECUTE, NAMESPACE, REQUEST, RESULT, STANDARD

_STEP = "execute"
_MAX_NAME = 255  # characters


def executed_run_id(step_id: str) -> str:
    """Return the id of the run that the step of a request starts."""
    return derived_id(step_id, "executed")


@functools.lru_cache(maxsize=100)
def request_program(task_list: str) -> Program:
    """Return the program of requests whose task is in that list."""
    facet = STANDARD[EXECUTE]
    facet = replace(facet, options=replace(facet.options, task_list=task_list))
    names = [field.name for field in facet.params]
    given = tuple(nodes.Argument(name, nodes.InputRef((name,))) for name in names)
    result = nodes.Argument(RESULT, nodes.StepRef((_STEP, RESULT)))
    short = REQUEST.rpartition(".")[2]
    body = nodes.Block(
        (nodes.StepStatement(_STEP, nodes.Call(EXECUTE, given)),),
        (nodes.YieldStatement(nodes.Call(short, (result,))),),
    )
    workflow = nodes.FacetDeclaration(
        nodes.FacetKind.WORKFLOW, short, params=facet.params, returns=facet.returns, body=(body,)
    )
    return Program((nodes.Namespace(NAMESPACE, declarations=(facet, workflow)),))


def request_inputs(
    workflow: str,
    inputs: Mapping[str, Json],
    program: Program | Mapping[str, Any] | None,
    task_list: str,
    options: Mapping[str, Json],
) -> dict[str, Json]:
    """Return the inputs of a request; raise InvalidInputs for what no request can have."""
    if not isinstance(workflow, str) or not 0 < len(workflow) <= _MAX_NAME:
        problem = f"the name of a workflow is a text of 1 to {_MAX_NAME} characters"
        raise InvalidInputs(repr(workflow)[:200], [problem])
    if not isinstance(inputs, Mapping):
        kind = type(inputs).__name__
        raise InvalidInputs(workflow, [f"the inputs must be a map, not a {kind}"])
    if not isinstance(task_list, str) or not 0 < len(task_list) <= _MAX_NAME:
        problem = f"the task list must be a text of 1 to {_MAX_NAME} characters"
        raise InvalidInputs(workflow, [problem])
    written = write_program(program) if isinstance(program, Program) else program
    return {
        "workflow": workflow,
        "inputs": dict(inputs),
        "program": None if written is None else dict(written),
        "options": dict(options) or None,
    }

"""The tools of a program: its workflows, and its event facets as workflows of one step. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from flowengine.errors import ToolRefused
from flowengine.program import Plan, Program
from flowengine.program.function_options import without_version
from flowengine.program.json_schemas import object_schema
from flowengine.program.nodes import (
    Argument,
    Block,
    Call,
    Declaration,
    FacetDeclaration,
    FacetKind,
    InputRef,
    Namespace,
    StepRef,
    StepStatement,
    YieldStatement,
)
from flowengine.program.plan import FacetPlan
from flowengine.program.standard import is_built_in

KEY = "idempotency_key"  #: the argument with which a call is made once
_MAX_NAME = 64  #: characters, which all clients accept
_MAX_TOOLS = 1_000
_AS_TOOL = "AsTool"


@dataclass(frozen=True, slots=True)
class ProgramTool:
    """A workflow or an event facet that is called as a tool."""

    name: str
    facet: str  #: its qualified name
    workflow: str  #: that a call starts
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    takes_key: bool  #: whether `idempotency_key` is no parameter of its own

    @property
    def description(self) -> str:
        kind = "event facet" if self.workflow != self.facet else "workflow"
        return f"Run the {kind} {self.facet} durably."


def with_tool_workflows(program: Program) -> Program:
    """Return the program with a workflow of one step beside each event facet."""
    return Program(tuple(_with_workflows(program.declarations)))


def _with_workflows(declarations: Iterable[Declaration]) -> Iterable[Declaration]:
    declared = list(declarations)
    names = {one.name for one in declared}
    for one in declared:
        if isinstance(one, Namespace):
            yield replace(one, declarations=tuple(_with_workflows(one.declarations)))
            continue
        yield one
        if isinstance(one, FacetDeclaration) and one.kind is FacetKind.EVENT:
            if one.function is not None and without_version(one.name) in names:
                continue  # a durable function is a tool by its own workflow
            name = one.name + _AS_TOOL
            if name in names:
                reason = f"the program declares {name}, the name of its workflow as a tool"
                raise ToolRefused(one.name, reason)
            yield _workflow_of(one, name)


def _workflow_of(facet: FacetDeclaration, name: str) -> FacetDeclaration:
    given = tuple(Argument(field.name, InputRef((field.name,))) for field in facet.params)
    results = tuple(Argument(f.name, StepRef(("call", f.name))) for f in facet.returns)
    block = Block(
        (StepStatement("call", Call(facet.name, given)),), (YieldStatement(Call(name, results)),)
    )
    return FacetDeclaration(
        FacetKind.WORKFLOW, name, params=facet.params, returns=facet.returns, body=(block,)
    )


def tools_of(plan: Plan) -> dict[str, ProgramTool]:
    """Return the tools of a program that `with_tool_workflows` has made, by their names."""
    found: dict[str, ProgramTool] = {}
    for facet in sorted(plan.facets.values(), key=lambda facet: facet.name):
        if facet.kind is FacetKind.FACET or is_built_in(facet.name):
            continue
        if facet.kind is FacetKind.WORKFLOW and _is_of_event(plan, facet.name):
            continue
        if facet.function is not None and without_version(facet.name) in plan.facets:
            continue
        is_event = facet.kind is FacetKind.EVENT
        tool = _tool(facet, facet.name + _AS_TOOL if is_event else facet.name)
        if tool.name in found:
            reason = f"{found[tool.name].facet} would have the same name as a tool, {tool.name}"
            raise ToolRefused(facet.name, reason)
        found[tool.name] = tool
    if not found:
        raise ToolRefused("the program", "it declares neither a workflow nor an event facet")
    if len(found) > _MAX_TOOLS:
        raise ToolRefused("the program", f"it has {len(found)} tools, {_MAX_TOOLS} are allowed")
    return found


def _is_of_event(plan: Plan, name: str) -> bool:
    event = plan.facets.get(name.removesuffix(_AS_TOOL))
    return name.endswith(_AS_TOOL) and event is not None and event.kind is FacetKind.EVENT


def _tool(facet: FacetPlan, workflow: str) -> ProgramTool:
    name = without_version(facet.name).replace(".", "_")
    if len(name) > _MAX_NAME:
        raise ToolRefused(facet.name, f"the name of a tool has at most {_MAX_NAME} characters")
    inputs: dict[str, Any] = object_schema(facet.params, facet.schemas, nullable=True)
    properties = inputs["properties"]
    takes_key = KEY not in properties
    if takes_key:
        about = "A second call with the same key returns the run of the first."
        properties[KEY] = {"type": "string", "maxLength": 200, "description": about}
    # A default may be of the implementation, and not of the declaration.
    inputs["required"] = [name for name in inputs["required"] if name not in facet.defaults]
    outputs: dict[str, Any] = object_schema(facet.returns, facet.schemas, nullable=True)
    definitions = {"$defs": outputs["$defs"]} if "$defs" in outputs else {}
    return ProgramTool(
        name=name,
        facet=facet.name,
        workflow=workflow,
        input_schema=inputs,
        output_schema={
            "type": "object",
            "properties": {
                "run_id": {"type": "string"},
                "state": {"type": "string"},
                "outputs": {"type": "object", "properties": outputs["properties"]},
                "error": {"type": "object"},
            },
            "required": ["run_id", "state"],
            **definitions,
        },
        takes_key=takes_key,
    )

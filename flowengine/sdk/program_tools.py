"""The tools of a program: its workflows, and its event facets as workflows of one step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flowengine.errors import ToolRefused
from flowengine.program import Plan, Program
from flowengine.program.nodes import (
    Argument,
    ArrayType,
    Block,
    Call,
    Declaration,
    FacetDeclaration,
    FacetKind,
    Field,
    InputRef,
    Json,
    Namespace,
    Schemas,
    StepRef,
    StepStatement,
    Type,
    YieldStatement,
)
from flowengine.program.plan import FacetPlan
from flowengine.program.standard import is_built_in

KEY = "idempotency_key"  #: the argument with which a call is made once
_MAX_NAME = 64  #: characters, which all clients accept
_MAX_TOOLS = 1_000
_MAX_DEPTH = 20  #: of schemas inside each other; a schema may contain itself
_AS_TOOL = "AsTool"
_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("Long", "Int", "Integer"), "integer"),
    **dict.fromkeys(("Double", "Float", "Number"), "number"),
    **dict.fromkeys(("String", "Text"), "string"),
    **dict.fromkeys(("Boolean", "Bool"), "boolean"),
}


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
    name = facet.name.replace(".", "_")
    if len(name) > _MAX_NAME:
        raise ToolRefused(facet.name, f"the name of a tool has at most {_MAX_NAME} characters")
    properties = {field.name: field_schema(field, facet.schemas) for field in facet.params}
    takes_key = KEY not in properties
    if takes_key:
        about = "A second call with the same key returns the run of the first."
        properties[KEY] = {"type": "string", "maxLength": 200, "description": about}
    required = [f.name for f in facet.params if f.default is None and f.name not in facet.defaults]
    results = {field.name: field_schema(field, facet.schemas) for field in facet.returns}
    return ProgramTool(
        name=name,
        facet=facet.name,
        workflow=workflow,
        input_schema={
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {
                "run_id": {"type": "string"},
                "state": {"type": "string"},
                "outputs": {"type": "object", "properties": results},
                "error": {"type": "object"},
            },
            "required": ["run_id", "state"],
        },
        takes_key=takes_key,
    )


def field_schema(field: Field, schemas: Schemas) -> dict[str, Any]:
    """Return the JSON Schema of a parameter or a result."""
    if field.schema is not None:
        return dict(field.schema)
    return _type_schema(field.type, schemas, 0)


def _type_schema(declared: Type, schemas: Schemas, depth: int) -> dict[str, Any]:
    if isinstance(declared, ArrayType):
        items = _type_schema(declared.element, schemas, depth + 1) if depth < _MAX_DEPTH else {}
        return {"type": ["array", "null"], "items": items}
    if declared in schemas:
        if depth >= _MAX_DEPTH:
            return {"type": ["object", "null"]}
        properties: dict[str, Json] = {
            field.name: dict(field.schema)
            if field.schema is not None
            else _type_schema(field.type, schemas, depth + 1)
            for field in schemas[declared]
        }
        required: list[Json] = [f.name for f in schemas[declared] if f.default is None]
        return {"type": ["object", "null"], "properties": properties, "required": required}
    return {"type": [_TYPES[declared], "null"]} if declared in _TYPES else {}

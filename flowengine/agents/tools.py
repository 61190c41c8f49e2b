"""Tools of agents, and the result that a task asks for, as a profile has them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from flowengine.agents.profiles import (
    ResultProfile,
    ToolProfile,
    call_program,
)
from flowengine.authoring import EventFacet, Workflow
from flowengine.authoring.annotations import Annotation
from flowengine.authoring.definitions import Definition
from flowengine.errors import AuthoringError
from flowengine.program.json_schemas import object_schema
from flowengine.program.nodes import FacetKind, Field
from flowengine.program.serializer import write_program
from flowengine.program.standard import RESULT
from flowengine.turns.machine import SUBMIT
from flowengine.turns.states import AfterExecution

AGENT_ID = "agent_id"  #: the parameter of an asked agent that names one with a memory
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_ABOUT = 2_000  #: characters of a description


def is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < cast(float, value) < math.inf


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """A tool with options for its calls by an agent."""

    tool: Any
    approval: bool = False
    timeout: float | None = None
    ends_turn: bool = False
    name: str = ""


def tool(
    used: Any,
    /,
    *,
    approval: bool = False,
    timeout: float | None = None,
    ends_turn: bool = False,
    name: str = "",
) -> ToolOptions:
    """Return a facet, a workflow or an agent as a tool with options.

    With `approval` a person decides about each call before it begins. After `timeout` seconds the
    call counts as failed. With `ends_turn` its result is the result of the turn.
    """
    if timeout is not None and not is_time(timeout):
        raise AuthoringError(f"tool(…) takes a timeout in seconds above 0, not {timeout!r}")
    if name and not _TOOL_NAME.fullmatch(name):
        raise AuthoringError(
            f"tool(…, name={name!r}): a name is 1 to 64 letters, digits, '_' and '-': providers "
            "take no others"
        )
    return ToolOptions(used, approval, timeout, ends_turn, name)


Tool: TypeAlias = "EventFacet[..., Any] | Workflow[..., Any] | ToolOptions"


def result_profile(annotation: Annotation) -> ResultProfile | None:
    """Return the fields that a task asks for; None: its result is text."""
    if annotation.hint is str:
        return None
    field = Field(RESULT, annotation.type, schema=annotation.schema)
    schema = object_schema([field], {}, all_required=True)
    inner = cast("dict[str, Any]", schema["properties"])[RESULT]
    resolved = _resolved(inner, cast("dict[str, Any]", schema.get("$defs") or {}))
    if resolved.get("type") == "object" and resolved.get("properties"):
        whole = {**resolved, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}
        return ResultProfile(whole, tuple(resolved["properties"]), is_object=True)
    return ResultProfile(schema, (RESULT,), is_object=False)


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return dict(definitions.get(reference.rpartition("/")[2], {}))
    return dict(schema)


def tool_profile(title: str, given: Tool) -> ToolProfile:
    options = given if isinstance(given, ToolOptions) else ToolOptions(given)
    used = options.tool
    if not isinstance(used, EventFacet | Workflow):
        raise AuthoringError(
            f"{title}: {used!r} is no tool; tools are event facets, workflows "
            "and agents, or tool(…) of one of them"
        )
    definition: Definition = used.definition
    if definition.kind is FacetKind.WORKFLOW:
        workflow, program = used.name, cast("Workflow[..., Any]", used).program()
    else:
        workflow, program = call_program(definition)
    parameters = [f for f in definition.signature.fields() if f.name != AGENT_ID]
    name = options.name or definition.short_name
    if name == SUBMIT:
        raise AuthoringError(f"{title}: the tool name {SUBMIT!r} is built in")
    about = inspect.getdoc(definition.fn) or definition.short_name
    return ToolProfile(
        name=name,
        description=about[:_LONGEST_ABOUT],
        input_schema=object_schema(parameters, {}),
        workflow=workflow,
        program=write_program(program),
        approval=options.approval,
        timeout=_timeout(title, name, options),
        after_execution=AfterExecution.TERMINATE if options.ends_turn else AfterExecution.SUSPEND,
    )


def _timeout(title: str, name: str, options: ToolOptions) -> float | None:
    """Return the seconds that a call of a tool may take; None: the setting.

    An agent waits longer for a join than the join for its agents. Otherwise the call would time
    out while the agents work on, and the results of those that have ended would be lost.
    """
    least: float | None = getattr(options.tool, "tool_timeout", None)
    if least is None or options.timeout is None:
        return options.timeout or least
    if options.timeout < least:
        raise AuthoringError(
            f"{title}: tool({name}, timeout={options.timeout:g}) is shorter than the deadline of "
            f"the join and a minute: give at least {least:g}, or the join a shorter deadline"
        )
    return options.timeout

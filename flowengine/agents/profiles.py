"""The profile of an agent: instructions, tools, budget and result, as a turn keeps them.

A profile is a JSON value, stored as a card whose id is its content hash. A turn works with the
profile that it was enqueued with: a deploy changes the turns that are enqueued after it. The
programs of its calls are part of it, so any process can start them, without the code of the tools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from flowengine.authoring.definitions import Definition
from flowengine.authoring.tracer import declaration_of
from flowengine.lazy import lazy
from flowengine.program import Program, nodes
from flowengine.program.nodes import Json
from flowengine.program.standard import RESULT
from flowengine.turns.records import Rules
from flowengine.turns.states import AfterExecution

MODEL = "__model"  #: behind the name of an agent: the facet of its model calls
CALL = "__call"  #: behind the name of a facet: the workflow of one call of it
_STEP = "call"


@dataclass(frozen=True, slots=True)
class ToolProfile:
    """A tool as the model sees it, and the run that a call of it is."""

    name: str
    description: str
    input_schema: Mapping[str, Json]
    workflow: str
    program: Mapping[str, Any]
    approval: bool = False
    timeout: float | None = None  #: seconds; None: the setting
    after_execution: str = AfterExecution.SUSPEND


@dataclass(frozen=True, slots=True)
class ResultProfile:
    """The result that the task asks for."""

    schema: Mapping[str, Json]  #: of the fields of `submit_result`
    fields: tuple[str, ...]
    is_object: bool  #: the fields are the result; otherwise its only field is


@dataclass(frozen=True)
class Profile:
    """Everything of an agent's definition that a turn keeps."""

    facet: str  #: the qualified name of the definition
    instructions: str
    model: str
    workflow: str  #: of the model calls
    program: Mapping[str, Any]
    tools: tuple[ToolProfile, ...] = ()
    result: ResultProfile | None = None
    max_steps: int = 8
    max_tokens: int | None = None
    max_seconds: float | None = None
    max_answer_tokens: int | None = None
    #: The step that waits for the turn completes whatever its status is, with the whole outcome.
    tells_outcome: bool = False
    other: Mapping[str, Json] = field(default_factory=dict)  #: of later versions

    def rules(self, tool_timeout: int) -> Rules:
        """Return the limits of a turn; `tool_timeout` are milliseconds."""
        return Rules(self.max_steps, self.max_tokens, self.result is not None, tool_timeout)

    def tool(self, name: str) -> ToolProfile | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        known["tools"] = tuple(ToolProfile(**tool) for tool in value["tools"])
        if (result := value.get("result")) is not None:
            known["result"] = ResultProfile(
                result["schema"], tuple(result["fields"]), result["is_object"]
            )
        return cls(**known)

    @lazy
    def id(self) -> str:
        """The id of its card: the hash of its content."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def call_program(definition: Definition) -> tuple[str, Program]:
    """Return the workflow, and its program, of one call of an event facet."""
    facet, _ = declaration_of(definition)
    namespace, _, short = definition.name.rpartition(".")
    given = [nodes.Argument(p.name, nodes.InputRef((p.name,))) for p in facet.params]
    result = nodes.Argument(RESULT, nodes.StepRef((_STEP, RESULT)))
    name = f"{short}{CALL}"
    body = nodes.Block(
        (nodes.StepStatement(_STEP, nodes.Call(definition.name, tuple(given))),),
        (nodes.YieldStatement(nodes.Call(name, (result,))),),
    )
    workflow = nodes.FacetDeclaration(
        nodes.FacetKind.WORKFLOW, name, params=facet.params, returns=facet.returns, body=(body,)
    )
    program = Program((nodes.Namespace(namespace, (), (facet, workflow)),))
    return f"{namespace}.{name}", program


def duplicate_names(tools: Sequence[ToolProfile]) -> list[str]:
    """Return the names that two tools share."""
    names = [tool.name for tool in tools]
    return sorted({name for name in names if names.count(name) > 1})

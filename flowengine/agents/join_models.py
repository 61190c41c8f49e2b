"""The values of a join: its tasks, and how each of them has ended."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict


class JoinTask(BaseModel):
    """One task of a join, and the agent that gets it."""

    model_config = ConfigDict(extra="forbid")

    instruction: str
    target_ref: str  #: with "new" the name of an agent's definition, otherwise an existing agent
    target_strategy: Literal["new", "reuse", "clone"] = "new"
    context_box_id: str | None = None  #: cards that the agent reads before its instruction


class JoinOutcome(BaseModel):
    """How the turn of one task has ended."""

    task_index: int = 0
    status: str
    result: Any = None
    error_code: str = ""
    error: str = ""
    agent_id: str = ""
    agent_turn_id: str = ""
    output_box_id: str = ""


class JoinResult(BaseModel):
    """The outcomes of all tasks, in the order of the tasks."""

    status: str
    results: list[JoinOutcome]


class OpenTask(BaseModel):
    """A task after its target was found."""

    task_index: int
    facet: str
    agent_id: str
    clone_of: str
    instruction: str
    context_box_id: str


class OpenJoin(BaseModel):
    tasks: list[OpenTask]
    seconds: float


Tasks: TypeAlias = list[JoinTask]

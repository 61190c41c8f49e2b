"""Let a model do one step: each entry of the conversation is recorded, and a new try continues it.

Invariant: an entry is recorded, under the lease of the step's task, before anything follows from
it. So a process that is killed loses at most the request it was waiting for.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from flowengine.authoring import WorkflowCall, event_facet_named
from flowengine.engine import Engine
from flowengine.errors import (
    GiveUp,
    ModelAuthenticationFailed,
    ModelError,
    ModelPackageMissing,
    ModelRequestRefused,
    ModelStreamCut,
)
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed, Outcome, Succeeded
from flowengine.models import (
    Answer,
    Chunk,
    Message,
    Model,
    ModelRequest,
    ModelRetry,
    Tool,
)
from flowengine.models.protocol import MAX_TOKENS, TIMEOUT
from flowengine.program.json_schemas import object_schema
from flowengine.program.nodes import Json
from flowengine.program.plan import FacetPlan
from flowengine.program.prompts import filled
from flowengine.program.types import untyped
from flowengine.sdk.conversation import Ask, Call, Fail, Finish, Reply, Rules, next_move
from flowengine.sdk.journal import Journal
from flowengine.sdk.lease import kept_alive
from flowengine.sdk.model_tools import SUBMIT, ModelTools
from flowengine.secret_keys import without_secrets
from flowengine.worker.step_context import StepContext, current_step

log = logging.getLogger("flowengine")

_SYSTEM = (
    "You carry out one step of a workflow. Use the tools if you need them. When you have the "
    f"result, call {SUBMIT} with it, once. Do not answer with text."
)
_FINAL = (ModelAuthenticationFailed, ModelPackageMissing, ModelRequestRefused)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """The limits of a conversation with a model about one step."""

    max_turns: int = 20  #: answers
    max_tokens: int = MAX_TOKENS  #: of each answer
    timeout: float = TIMEOUT  #: seconds for each answer
    retry: ModelRetry = field(default_factory=ModelRetry)


def prompt_of(facet: FacetPlan, values: Mapping[str, Json]) -> tuple[Message, ...]:
    """Return the first messages: of the prompt block of a facet, or of its name and arguments."""
    shown: dict[str, Json] = without_secrets(dict(values))
    prompt = facet.node.prompt
    system = filled(prompt.system, shown) if prompt else ""
    text = filled(prompt.template, shown) if prompt else ""
    if not text:
        code = event_facet_named(facet.name)
        about = (inspect.getdoc(code.fn) if code is not None else None) or ""
        parts = [f"Carry out the step {facet.name!r}.", about]
        parts += [f"{name}: {_written(value)}" for name, value in shown.items()]
        text = "\n".join(part for part in parts if part)
    joined = f"{system}\n\n{_SYSTEM}" if system else _SYSTEM
    return Message.of("system", joined), Message.of("user", text)


def _written(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def submit_tool(facet: FacetPlan) -> Tool:
    """Return the tool by which a model gives the declared results."""
    schema = object_schema(facet.returns, facet.schemas, all_required=True)
    return Tool(SUBMIT, f"Give the result of the step {facet.name}.", schema)


class ModelSteps:
    """The handler of facets that have none: a model."""

    is_async, validates = False, False
    is_final = staticmethod(lambda problem: isinstance(problem, _FINAL))

    def __init__(
        self,
        engine: Engine,
        model: Model,
        tools: Callable[[TaskDefinition], ModelTools],
        task: Callable[[str], TaskDefinition],
        storable: Callable[[TaskDefinition, Outcome], Outcome],
        limits: ModelLimits,
        only: Collection[str] | None = None,
        on_chunk: Callable[[Chunk], object] | None = None,
    ) -> None:
        """`task` returns the task that this process works on for a step."""
        self._engine, self._model, self._tools, self._task = engine, model, tools, task
        self._storable, self._limits, self._only = storable, limits, only
        self._on_chunk = on_chunk

    def written(self, returned: Mapping[str, Json]) -> dict[str, Json] | WorkflowCall:
        return dict(returned)

    def call(self, data: Mapping[str, Json]) -> Mapping[str, Json]:
        step = current_step()
        task = self._task(step.idempotency_key)
        facet = self._engine.reporter.declared(task.name, task.flow_id)
        if facet is None:  # the program of a durable function has no facets of its calls
            raise GiveUp(
                f"{task.name} is called by a durable function, whose program does not declare it: "
                "no model knows its types; register it in the ToolRegistry of the runner"
            )
        tools = self._tools(task)
        offered = tools.offered(task.name, self._only)
        rules = Rules(
            self._model.provider,
            prompt_of(facet, data),
            offered,
            SUBMIT,
            lambda result: self._misfit(task, result),
            self._limits.max_turns,
        )
        request = ModelRequest(
            (),
            (*offered.values(), submit_tool(facet)),
            facet.node.prompt.model if facet.node.prompt else "",
            "required",
            self._limits.max_tokens,
            self._limits.timeout,
        )
        journal = Journal(self._engine, task)
        while True:
            step.cancel_token.check()
            match next_move(journal.entries, rules):
                case Finish(result):
                    return result
                case Fail(problem):
                    journal.end(problem)
                    raise problem
                case Reply(result):
                    journal.add(result)
                case Call(call):
                    with kept_alive(step, self._every, _seconds(task)):
                        result = tools.call(call, step, journal.number)
                    journal.add(result, tools.handler_of(call), call.arguments)
                case Ask(messages):
                    journal.add(self._asked(replace(request, messages=messages), step))

    def _misfit(self, task: TaskDefinition, result: Mapping[str, Json]) -> str:
        """Return why a result would be refused, as the report of the try would."""
        checked = self._storable(task, Succeeded(dict(result)))
        if isinstance(checked, Failed):
            return str(checked.error["message"])
        # AFL's types allow null. A model that has no result must not get by with it.
        facet = self._engine.reporter.declared(task.name, task.flow_id)
        empty = [
            f"{field.name!r}: expected {field.type}, found null"
            for field in (facet.returns if facet else ())
            if field.schema is None and not untyped(field) and result.get(field.name) is None
        ]
        return "; ".join(empty)

    # --- requests ---

    @property
    def _every(self) -> float:
        return self._engine.settings.server_timeout / 4

    def _asked(self, request: ModelRequest, step: StepContext) -> Answer:
        attempt, retry = 1, self._limits.retry
        with kept_alive(step, self._every, None):
            while True:
                try:
                    return self._once(request, step)
                except ModelError as problem:
                    wait = retry.wait_after(problem, attempt)
                    if wait is None:
                        raise
                    log.warning(
                        "%s: request %d of %d failed; the next one follows in %.1f s: %s",
                        step.path,
                        attempt,
                        retry.attempts,
                        wait,
                        problem,
                        extra={"action": "model_retry", "run": step.run_id, "facet": step.facet},
                    )
                    step.cancel_token.wait(wait)
                    step.cancel_token.check()
                    attempt += 1

    def _once(self, request: ModelRequest, step: StepContext) -> Answer:
        token = step.cancel_token
        for piece in self._model.stream(request):
            if isinstance(piece, Answer):
                return piece
            token.check()
            if self._on_chunk is not None:
                self._on_chunk(piece)
        raise ModelStreamCut(self._model.provider)


def _seconds(task: TaskDefinition) -> float | None:
    return None if task.timeout_ms is None else task.timeout_ms / 1000

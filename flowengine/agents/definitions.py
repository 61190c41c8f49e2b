"""The decorator ``@agent``, tools with options, and budgets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from flowengine.agents.addresses import AgentAddress
from flowengine.agents.profiles import (
    MODEL,
    Profile,
    call_program,
    duplicate_names,
)
from flowengine.agents.tools import AGENT_ID, Tool, is_time, result_profile, tool_profile
from flowengine.agents.turn_call import TurnCall
from flowengine.authoring import EventFacet
from flowengine.authoring.annotations import Annotation
from flowengine.authoring.decorators import EventFacetDecorator
from flowengine.authoring.definitions import Definition
from flowengine.authoring.options import Breaker
from flowengine.authoring.registry import register_event_facet
from flowengine.authoring.signatures import Parameter, Signature
from flowengine.errors import AuthoringError, DoesNotFit
from flowengine.lazy import lazy
from flowengine.models import Model
from flowengine.program.event_options import RetryPolicy
from flowengine.program.nodes import Json, Literal
from flowengine.program.serializer import write_program

if TYPE_CHECKING:
    from flowengine.engine.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")
_RETRY = RetryPolicy(attempts=3, first_wait=2.0, max_wait=60.0)


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one turn: model calls, tokens of all answers, and seconds since its dispatch.

    The seconds are looked at between model calls, and while the turn waits: a model call that is
    under way is not cut off.
    """

    steps: int = 8
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not _is_whole(self.steps):
            raise AuthoringError(
                f"Budget takes steps as a whole number above 0, not {self.steps!r}"
            )
        if self.tokens is not None and not _is_whole(self.tokens):
            shown = f"{self.tokens!r}"
            raise AuthoringError(f"Budget takes tokens as a whole number above 0, not {shown}")
        if self.seconds is not None and not is_time(self.seconds):
            raise AuthoringError(f"Budget takes seconds above 0, not {self.seconds!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class AgentFacet(EventFacet[P, R], Generic[P, R]):
    """An agent. In a workflow its call is a step that waits for a turn."""

    model: Model
    tools: Sequence[Tool] = ()
    budget: Budget = Budget()
    max_answer_tokens: int | None = None

    def plain(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Refuse: an agent works on a message in a turn, which a run or `send` begins."""
        raise AuthoringError(
            f"{self.definition.title} is an agent: outside a workflow send it a message with "
            f'{self.__name__}.at("a name").send(…), or with {self.__name__}.send(…)'
        )

    def call(self, data: Mapping[str, Json]) -> Any:
        given = dict(data)
        agent_id = str(given.pop(AGENT_ID, "") or "")
        return TurnCall(self.profile, self.instruction(given), agent_id)

    def written(self, returned: Any) -> Any:
        return returned

    def at(self, agent_id: str, *, project: str = "") -> AgentAddress[P, R]:
        """Return the agent with a name: one mailbox and one memory for all its messages."""
        return AgentAddress(self, agent_id, project)

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Send a message to a new agent without a name, which has this turn only."""
        return AgentAddress(self, "", "").send(*args, **kwargs)

    def instruction(self, arguments: Mapping[str, Json]) -> str:
        """Return the instruction of a message: the text that the function returns."""
        signature = self.user_signature
        (args, kwargs), problems = signature.read(arguments)
        if problems:
            raise DoesNotFit(self.name, problems, "agent")
        text = self.definition.fn(*args, **kwargs)
        if not isinstance(text, str) or not text.strip():
            raise AuthoringError(
                f"{self.definition.title} must return the text of its task, not {text!r:.100}"
            )
        return text

    @lazy
    def user_signature(self) -> Signature:
        """The parameters that the author wrote."""
        own = self.definition.signature
        return replace(own, parameters=tuple(p for p in own.parameters if p.name != AGENT_ID))

    @lazy
    def profile(self) -> Profile:
        """The profile of the turns that are enqueued by this process."""
        tools = tuple(tool_profile(self.definition.title, given) for given in self.tools)
        if doubled := duplicate_names(tools):
            raise AuthoringError(
                f"{self.definition.title} has two tools of the name {doubled[0]!r}; give one "
                'another name with tool(…, name="…")'
            )
        workflow, program = call_program(self.model_facet.definition)
        return Profile(
            facet=self.name,
            instructions=inspect.getdoc(self.definition.fn) or "",
            model=self.model.model,
            workflow=workflow,
            program=write_program(program),
            tools=tools,
            result=result_profile(self.definition.signature.result),
            max_steps=self.budget.steps,
            max_tokens=self.budget.tokens,
            max_seconds=self.budget.seconds,
            max_answer_tokens=self.max_answer_tokens,
        )

    model_facet: EventFacet[..., Any]


def instruction(text: str) -> R:  # type: ignore[type-var]
    """Return the text of a task as the value of an agent's function.

    The function is annotated with the agent's result, and returns the text of its task: type
    checkers refuse that for a plain text unless the result is one.
    """
    return text  # type: ignore[return-value]


class AgentDecorator:
    """``@agent`` with its options."""

    def __init__(
        self,
        model: Model,
        tools: Sequence[Tool],
        budget: Budget,
        max_answer_tokens: int | None,
        options: Mapping[str, Any],
    ) -> None:
        self._model, self._tools, self._budget = model, tools, budget
        self._max_answer_tokens, self._options = max_answer_tokens, dict(options)

    def __call__(self, fn: Callable[P, R], /) -> AgentFacet[P, R]:
        asked: dict[str, Any] = {
            name: self._options[name] for name in ("task_list", "name") if name in self._options
        }
        plain: EventFacet[P, R] = EventFacetDecorator(asked)(fn)  # checks the name and the options
        definition = plain.definition
        _check(definition)
        facet: AgentFacet[P, R] = AgentFacet(definition)
        _with_agent_id(definition)
        facet.model, facet.tools, facet.budget = self._model, tuple(self._tools), self._budget
        facet.max_answer_tokens = self._max_answer_tokens
        facet.model_facet = _model_facet(facet, self._options)
        register_event_facet(facet)
        return facet


def agent(
    *,
    model: Model,
    tools: Sequence[Tool] = (),
    budget: Budget | None = None,
    task_list: str = "default",
    retry: RetryPolicy = _RETRY,
    timeout: float | None = None,
    breaker: str | Breaker | None = None,
    max_losses: int = 3,
    max_answer_tokens: int | None = None,
    name: str | None = None,
) -> AgentDecorator:
    """Make a function an agent: it works on one message at a time, and delivers once for each.

    The parameters are those of a message, the docstring is the instruction to the model, the text
    that the function returns is the task, and the return annotation the result. `retry`, `timeout`
    and `breaker` are those of a model call. The tools are event facets, workflows and agents.
    """
    if not all(hasattr(model, attribute) for attribute in ("stream", "provider", "model")):
        raise AuthoringError(
            f"@agent(model={model!r}) is no model: give one of flowengine.models, for instance "
            'Anthropic("claude-…"), or a ScriptedModel in tests'
        )
    options: dict[str, Any] = {"task_list": task_list, "retry": retry, "timeout": timeout}
    options |= {"breaker": breaker, "max_losses": max_losses}
    if name is not None:
        options["name"] = name
    return AgentDecorator(model, tools, budget or Budget(), max_answer_tokens, options)


def _check(definition: Definition) -> None:
    signature = definition.signature
    missing = [p.name for p in signature.parameters if p.annotation.hint is Any]
    hints = getattr(inspect.unwrap(definition.fn), "__annotations__", {})
    unannotated = [p.name for p in signature.parameters if p.name not in hints]
    if unannotated or "return" not in hints:
        shown = ", ".join([*unannotated, *([] if "return" in hints else ["return"])])
        raise AuthoringError(
            f"{definition.title} is an agent and has no annotation for: {shown}; its parameters "
            "and its result are checked by their annotations"
        )
    if any(p.name == AGENT_ID for p in signature.parameters) or missing == [AGENT_ID]:
        raise AuthoringError(f"{definition.title}: the parameter {AGENT_ID!r} is the engine's own")


def _with_agent_id(definition: Definition) -> None:
    """Add the parameter that names an agent with a memory to the facet that is asked."""
    own = definition.signature
    annotation = Annotation.of(str, "validation")
    hidden = Parameter(AGENT_ID, inspect.Parameter.KEYWORD_ONLY, annotation, Literal(""))
    definition.__dict__["signature"] = replace(own, parameters=(*own.parameters, hidden))


def _model_facet(facet: AgentFacet[..., Any], options: Mapping[str, Any]) -> EventFacet[..., Any]:
    def model_call(agent: str, turn: str, step: int) -> dict[str, Any]:
        from flowengine.agents.model_calls import call_model

        return call_model(facet.model, _agents, agent, turn, step)

    model_call.__module__ = facet.definition.fn.__module__
    model_call.__qualname__ = f"{facet.definition.fn.__qualname__}{MODEL}"
    given = {**options, "name": f"{facet.name}{MODEL}"}
    made: EventFacet[..., Any] = EventFacetDecorator(given)(model_call)
    return made


def _agents(engine: Engine) -> Any:
    from flowengine.agents.runtime import agents_of

    return agents_of(engine)

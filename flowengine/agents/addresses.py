"""An agent with a name, and the options of its next message."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast, get_args

from flowengine.agents.enqueue import NewTurn, WhenBusy
from flowengine.authoring.current_function import is_in_function, refuse_start
from flowengine.authoring.launcher_slot import launcher
from flowengine.authoring.scopes import current_scope
from flowengine.errors import AuthoringError, InvalidInputs

if TYPE_CHECKING:
    from flowengine.agents.definitions import AgentFacet
    from flowengine.agents.handles import TurnHandle

P = ParamSpec("P")
R = TypeVar("R")
_LONGEST = 200  # characters of an agent's name


class AgentAddress(Generic[P, R]):
    """The receiver of messages: an agent, or without a name a new one for each message."""

    def __init__(self, facet: AgentFacet[P, R], agent_id: str, project: str) -> None:
        if not isinstance(agent_id, str) or len(agent_id) > _LONGEST:
            raise AuthoringError(
                f"the name of an agent is a text of at most {_LONGEST} characters: {agent_id!r:.80}"
            )
        self._facet, self._agent_id, self._project = facet, agent_id, project
        self._key: str | None = None
        self._when_busy: WhenBusy = "queue"
        self._priority = 0
        self._connection: object | None = None

    def options(
        self,
        *,
        key: str | None = None,
        when_busy: WhenBusy = "queue",
        priority: int = 0,
        connection: object | None = None,
    ) -> Self:
        """Return the address with options for the next message.

        A second message with the same `key` returns the turn of the first. If the agent works on
        another message, this one waits ("queue"), raises AgentBusy ("refuse"), or ends the other
        ("interrupt"). With `connection` it is part of the caller's transaction.
        """
        if when_busy not in get_args(WhenBusy):
            raise AuthoringError(
                f"when_busy is 'queue', 'refuse' or 'interrupt', not {when_busy!r}"
            )
        if key is not None and (not isinstance(key, str) or not 0 < len(key) <= _LONGEST):
            raise AuthoringError(
                f"the key of a message is a text of 1 to {_LONGEST} characters: {key!r:.80}"
            )
        changed = copy.copy(self)
        changed._key, changed._when_busy, changed._priority = key, when_busy, priority
        changed._connection = connection
        return changed

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Ask the named agent in a step of the workflow that is traced."""
        self._refuse_elsewhere()
        return cast(R, cast(Any, self._facet)(*args, agent_id=self._agent_id, **kwargs))

    def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Return a call of the named agent, which a durable function awaits."""
        self._refuse_elsewhere()
        asked = cast(Any, self._facet).acall(*args, agent_id=self._agent_id, **kwargs)
        return cast(Coroutine[Any, Any, R], asked)

    def _refuse_elsewhere(self) -> None:
        if (current_scope() is None and not is_in_function()) or self._project:
            raise AuthoringError(
                f"{self._facet.definition.title}: in a workflow call {self._facet.__name__}.at("
                '"a name")(…), without a project; elsewhere use send(…)'
            )

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TurnHandle[R]:
        """Send a message; return the handle of its turn. It is durable when this returns."""
        if current_scope() is not None:
            raise AuthoringError(
                f"{self._facet.definition.title}: a workflow asks an agent by calling it; send(…) "
                "would send a message each time the workflow is read"
            )
        refuse_start(self._facet.definition.title)
        from flowengine.agents.runtime import agents_of

        signature = self._facet.user_signature
        given, problems = signature.bound(args, kwargs)
        arguments, unfit = signature.written(given, f"an argument of agent {self._facet.name!r}")
        if problems or unfit:
            raise InvalidInputs(self._facet.name, problems + unfit)
        profile, instruction = self._facet.profile, self._facet.instruction(arguments)
        new = NewTurn(
            project=self._project,
            agent=self._agent_id,
            profile=profile,
            instruction=instruction,
            key=self._key,
            when_busy=self._when_busy,
            priority=self._priority,
        )
        agents = agents_of(cast(Any, launcher()).engine)
        return agents.send(new, self._facet.definition.signature.result.read, self._connection)

    async def asend(self, /, *args: P.args, **kwargs: P.kwargs) -> TurnHandle[R]:
        """Like `send`, without blocking the event loop."""
        return await asyncio.to_thread(self.send, *args, **kwargs)

"""The handle of a turn, returned by `send`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import pydantic

from flowengine.agents.drafts import Draft
from flowengine.errors import DoesNotFit, TurnFailed
from flowengine.program.nodes import Json
from flowengine.store.agent_lists import CallInfo
from flowengine.store.agent_turns import AgentEvent, TurnInfo
from flowengine.turns.states import TaskStatus

if TYPE_CHECKING:
    from flowengine.agents.runtime import Agents

R = TypeVar("R")
_PAGE = 500  # events of one query
_POLL = 0.25  # seconds between two looks for events of a turn that goes on


class TurnHandle(Generic[R]):
    """One message to an agent. The handle holds the turn's id, not its state."""

    def __init__(
        self,
        agents: Agents,
        project: str,
        turn_id: str,
        read: Callable[[Json], R] | None = None,
        *,
        duplicate: bool = False,
    ) -> None:
        self._agents, self._read = agents, read
        self.project, self.id = project, turn_id
        self.duplicate = duplicate  #: the message was sent before, under the same key
        self._ended: tuple[TurnInfo, Json] | None = None  #: with its result, once it is over

    def __repr__(self) -> str:
        return f"<Turn {self.id}>"

    def info(self) -> TurnInfo:
        """Return the current state of the turn."""
        return self._agents.turn(self.project, self.id)

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end, and return the result, read from the deliverable card.

        Raises TurnFailed if it did not succeed, and TimeoutError.
        """
        self._agents.completions.wait(self.id, self._is_over, timeout)
        return self._result(timeout)

    async def aresult(self, timeout: float | None = None) -> R:
        """Like `result`, without blocking the event loop."""
        await self._agents.completions.await_end(self.id, self._is_over, timeout)
        return await asyncio.to_thread(self._result, timeout)

    def _is_over(self) -> bool:
        if self._ended is None:  # else it does not change any more
            self._ended = self._agents.outcome(self.project, self.id)
        return self._ended is not None

    def _result(self, timeout: float | None) -> R:
        if self._ended is None and not self._is_over():
            raise TimeoutError(f"turn {self.id} has not ended after {timeout:g} s")
        assert self._ended is not None
        info, value = self._ended
        if info.status != TaskStatus.SUCCESS:
            message = info.error or "it has delivered what it had"
            raise TurnFailed(self.id, str(info.status), info.error_code or "", message, value)
        if self._read is None:
            return cast(R, value)
        try:
            return self._read(value)
        except pydantic.ValidationError as problem:
            # Submitted results were checked; that of a tool that ends the turn is the tool's.
            first = problem.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "it"
            reason = f"the result of turn {self.id} does not fit the agent's annotation: "
            problems = [f"{reason}{where}: {first['msg']}"]
            raise DoesNotFit(info.facet, problems, "agent") from None

    def draft(self) -> Draft | None:
        """Return the answer that the model is giving; None while it has not said much.

        Pieces may be missing: the answer itself is a card when it is complete.
        """
        return self._agents.draft(self.project, self.id)

    def stop(self, reason: str = "", *, by: str = "") -> None:
        """End the turn: it delivers as canceled. A turn that waits never runs."""
        self._agents.stop(self.project, self.id, reason, by=by)

    async def astop(self, reason: str = "", *, by: str = "") -> None:
        """Like `stop`, without blocking the event loop."""
        await asyncio.to_thread(self.stop, reason, by=by)

    def approve(self, call_id: str, *, by: str, arguments: Json = None) -> None:
        """Let a call that waits for a person begin, with other arguments if they are given."""
        self._agents.approve(self.project, self.id, call_id, by=by, arguments=arguments)

    def reject(self, call_id: str, *, by: str, reason: str = "") -> None:
        """Refuse a call that waits for a person; the model reads the reason."""
        self._agents.reject(self.project, self.id, call_id, by=by, reason=reason)

    def report(self, call_id: str, result: Json = None, **options: Any) -> bool:
        """Give the result of a call from outside; True: it had one already (duplicate)."""
        return self._agents.report(self.project, self.id, call_id, result, **options)

    def calls(self) -> list[CallInfo]:
        """Return the calls of tools so far, with their runs and the decisions about them."""
        return self._agents.calls(self.project, self.id)

    def events(self, after: int = 0) -> TurnEvents:
        """Return the events of the turn behind a number, to its end: for `for` and `async for`."""
        return TurnEvents(self, after)

    def page(self, after: int) -> tuple[list[AgentEvent], bool]:
        """Return the next events, and whether the turn had ended before they were read."""
        is_over = self._is_over()
        return self._agents.turn_events(self.project, self.id, after, _PAGE), is_over

    def wait_for_events(self) -> None:
        self._agents.completions.wait(self.id, self._is_over, _POLL)

    async def await_events(self) -> None:
        await self._agents.completions.await_end(self.id, self._is_over, _POLL)


class TurnEvents:
    """The events of a turn, resumable by their numbers."""

    def __init__(self, turn: TurnHandle[Any], after: int) -> None:
        self._turn, self._after = turn, after

    def __iter__(self) -> Iterator[AgentEvent]:
        while True:
            page, is_over = self._turn.page(self._after)
            for event in page:
                self._after = event.number
                yield event
            if not page and is_over:
                return
            if not page:
                self._turn.wait_for_events()

    async def __aiter__(self) -> AsyncIterator[AgentEvent]:
        while True:
            page, is_over = await asyncio.to_thread(self._turn.page, self._after)
            for event in page:
                self._after = event.number
                yield event
            if not page and is_over:
                return
            if not page:
                await self._turn.await_events()

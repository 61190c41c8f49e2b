"""The pages of agents and their turns, and their JSON: drawn from rows alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from flowengine.agents.views import (
    AgentPage,
    TurnPage,
    TurnView,
    agent_page,
    find_turn,
    turn_page,
    turn_view,
)
from flowengine.errors import AmbiguousTurn, InvalidFilter, UnknownTurn
from flowengine.secret_keys import without_secrets
from flowengine.store import Session
from flowengine.store.agent_lists import TURN_STATES
from flowengine.turns.states import HeadState
from flowengine.web import agent_styles
from flowengine.web.handlers import (
    MAX_LENGTH,
    Api,
    Page,
    RequestError,
    argument,
    handler,
    query,
    visible_tenant,
)

T = TypeVar("T")
_LIMIT = 50  #: agents, or turns, on a page


@dataclass(frozen=True, slots=True)
class AgentFilter:
    """The filter of a list of agents or turns."""

    project: str | None
    state: str | None
    agent: str | None
    cursor: str | None

    @classmethod
    def of(cls, request: Any) -> AgentFilter:
        project, agent, cursor = (argument(request, n) for n in ("project", "agent", "cursor"))
        state = argument(request, "state").lower()
        return cls(project or None, state or None, agent or None, cursor or None)

    def query(self, **changes: str | None) -> str:
        """Return the URL query of this filter with some parameters changed."""
        parameters = {"state": self.state, "project": self.project, "agent": self.agent, **changes}
        kept = {name: value for name, value in parameters.items() if value}
        return f"?{urlencode(kept)}" if kept else ""


async def _agents(request: Any, wanted: AgentFilter) -> AgentPage:
    project = visible_tenant(request, wanted.project)

    def read(session: Session) -> AgentPage:
        return agent_page(session, project, wanted.state, wanted.cursor, _LIMIT)

    return await _read(request, read)


async def _turns(request: Any, wanted: AgentFilter) -> TurnPage:
    project = visible_tenant(request, wanted.project)

    def read(session: Session) -> TurnPage:
        return turn_page(session, project, wanted.agent, wanted.state, wanted.cursor, _LIMIT)

    return await _read(request, read)


async def _turn(request: Any, turn_id: str) -> TurnView:
    project = visible_tenant(request)
    if len(turn_id) > MAX_LENGTH or "\0" in turn_id:
        raise RequestError(404, "There is no turn of this id in this database.")

    def read(session: Session) -> TurnView:
        return turn_view(session, find_turn(session, turn_id, project))

    return await _read(request, read)


async def _read(request: Any, read: Callable[[Session], T]) -> T:
    try:
        return await query(request, read)
    except InvalidFilter as refused:
        raise RequestError(400, str(refused)) from None
    except UnknownTurn as unknown:
        raise RequestError(404, f"There is no turn {unknown.turn_id!r} in this database.") from None
    except AmbiguousTurn as several:
        raise RequestError(404, str(several)) from None


# --- pages ---


class AgentsPage(Page):
    """The agents, and the newest turns below them."""

    @handler
    async def get(self) -> None:
        wanted = AgentFilter.of(self)
        page = await _agents(self, wanted)
        shown = {"page": page, "wanted": wanted, "states": HeadState.ALL}
        self.show("agents.html", agent_styles=agent_styles, **shown)


class TurnsPage(Page):
    """The newest turns, of one agent or of all."""

    @handler
    async def get(self) -> None:
        wanted = AgentFilter.of(self)
        page = await _turns(self, wanted)
        shown = {"page": page, "wanted": wanted, "states": TURN_STATES}
        self.show("turns.html", agent_styles=agent_styles, **shown)


class OneTurnPage(Page):
    """One turn with its steps, calls and cards."""

    @handler
    async def get(self, turn_id: str) -> None:
        view = await _turn(self, turn_id)
        self.show("turn.html", agent_styles=agent_styles, view=view, turn=view.turn)


# --- JSON API ---


class AgentsApi(Api):
    """Agents by project and name."""

    @handler
    async def get(self) -> None:
        page = await _agents(self, AgentFilter.of(self))
        self.write({"agents": [asdict(one) for one in page.agents], "cursor": page.cursor})


class TurnsApi(Api):
    """The newest turns."""

    @handler
    async def get(self) -> None:
        page = await _turns(self, AgentFilter.of(self))
        self.write({"turns": [turn._asdict() for turn in page.turns], "cursor": page.cursor})


class TurnApi(Api):
    """One turn with everything that the page shows."""

    @handler
    async def get(self, turn_id: str) -> None:
        view = await _turn(self, turn_id)
        cards = [without_secrets(card._asdict()) for card in view.cards]
        self.write(
            {
                **view.turn._asdict(),
                "waits_for": view.waits_for,
                "steps_made": [step._asdict() for step in view.steps],
                "calls": [call._asdict() for call in view.calls],
                "cards": cards,
                "events": [event._asdict() for event in view.events],
                "children": [{"turn": turn, "agent": agent} for turn, agent in view.children],
                "deliverable": without_secrets(view.deliverable),
            }
        )

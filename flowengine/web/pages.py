"""The pages and their JSON, as handlers of Flower.

They are made of Flower's own base classes, so that its login, its prefix and its headers
hold for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

from flower.api import BaseApiHandler
from flower.views import BaseHandler
from sqlalchemy import Connection
from tornado.web import RequestHandler, authenticated, url

from flowengine.engine import queries
from flowengine.engine.results import RunInfo, RunSummary
from flowengine.engine.run_tree import DrawnStep, Outline, outline
from flowengine.errors import FlowengineError, StoreError, UnknownRun
from flowengine.evaluator.states import RunState
from flowengine.store.database import system_clock
from flowengine.store.executors import SqlalchemyExecutor
from flowengine.web import styles
from flowengine.web.async_queries import reader_of

T = TypeVar("T")
STATES = (RunState.RUNNING, RunState.COMPLETED, RunState.FAILED)
_USUAL, _MOST = 50, 500  #: runs on a page


class Refused(FlowengineError):
    """A request that cannot be answered, and why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status, sentence)
        self.status, self.sentence = status, sentence

    def __str__(self) -> str:
        return self.sentence


# --- what was asked for ---


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs are wanted."""

    state: str | None
    workflow: str | None
    before: str | None
    limit: int

    @classmethod
    def of(cls, request: RequestHandler) -> Filter:
        # Not `get_argument`: Flower's escapes what it returns, and our templates do it again.
        def asked(name: str) -> str:
            return request.get_query_argument(name, "")

        state = asked("state").upper()
        if state and state not in STATES:
            raise Refused(400, f"there is no state {state!r}; a run is one of {', '.join(STATES)}")
        limit = asked("limit") or str(_USUAL)
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MOST):
            raise Refused(400, f"limit={limit!r} is not a number from 1 to {_MOST}")
        return cls(state or None, asked("workflow") or None, asked("before") or None, int(limit))

    def query(self, **changes: str | None) -> str:
        """This filter as the query of an address, with some of it changed."""
        limit = str(self.limit) if self.limit != _USUAL else None
        wanted = {"state": self.state, "workflow": self.workflow, "limit": limit, **changes}
        kept = {name: value for name, value in wanted.items() if value}
        return f"?{urlencode(kept)}" if kept else ""


@dataclass(frozen=True, slots=True)
class RunsFound:
    runs: list[RunSummary]
    older: str | None  #: `before` of the next page


@dataclass(frozen=True, slots=True)
class RunFound:
    run: RunInfo
    inputs: dict[str, Any]
    outline: Outline


async def _ask(handler: Any, question: Callable[[Connection], T]) -> T:
    try:
        return await reader_of(handler.application.capp).ask(question)
    except UnknownRun as unknown:
        raise Refused(404, f"There is no run {unknown.run_id!r} in this database.") from None
    except StoreError as problem:
        raise Refused(503, f"Runs cannot be read: {problem}.") from None


async def _runs(handler: Any, wanted: Filter) -> RunsFound:
    def question(connection: Connection) -> list[RunSummary]:
        return queries.run_summaries(
            connection,
            workflow=wanted.workflow,
            state=wanted.state,
            before=wanted.before,
            limit=wanted.limit + 1,  # one more tells whether there are more
        )

    found = await _ask(handler, question)
    shown = found[: wanted.limit]
    return RunsFound(shown, shown[-1].id if len(found) > len(shown) else None)


async def _run(handler: Any, run_id: str) -> RunFound:
    def question(connection: Connection) -> RunFound:
        run = queries.run_info(SqlalchemyExecutor(connection), run_id)
        return RunFound(run, queries.run_inputs(connection, run), outline(connection, run_id))

    return await _ask(handler, question)


# --- pages ---


class _Page(BaseHandler):  # type: ignore[misc]
    """A page; what cannot be answered is a page too."""

    def refuse(self, refused: Refused) -> None:
        self.set_status(refused.status)
        self.render("404.html", message=refused.sentence)


class RunsPage(_Page):
    """The newest runs."""

    @authenticated
    async def get(self) -> None:
        try:
            wanted = Filter.of(self)
            found = await _runs(self, wanted)
        except Refused as refused:
            self.refuse(refused)
            return
        self.render(
            "workflows.html",
            runs=found.runs,
            older=found.older,
            wanted=wanted,
            states=STATES,
            now=system_clock(),
            styles=styles,
        )


class RunPage(_Page):
    """One run with its steps."""

    @authenticated
    async def get(self, run_id: str) -> None:
        try:
            found = await _run(self, run_id)
        except Refused as refused:
            self.refuse(refused)
            return
        self.render(
            "workflow.html",
            run=found.run,
            inputs=found.inputs,
            outline=found.outline,
            is_step=lambda line: isinstance(line, DrawnStep),
            now=system_clock(),
            styles=styles,
        )


# --- the same as JSON ---


class _Api(BaseApiHandler):  # type: ignore[misc]
    """Answers in JSON, refusals too."""

    def refuse(self, refused: Refused) -> None:
        self.set_status(refused.status)
        self.write({"error": refused.sentence})


class RunsApi(_Api):
    """The newest runs."""

    @authenticated
    async def get(self) -> None:
        try:
            found = await _runs(self, Filter.of(self))
        except Refused as refused:
            self.refuse(refused)
            return
        self.write({"runs": [asdict(run) for run in found.runs], "before": found.older})


class RunApi(_Api):
    """One run, with its steps as far as the page shows them."""

    @authenticated
    async def get(self, run_id: str) -> None:
        try:
            found = await _run(self, run_id)
        except Refused as refused:
            self.refuse(refused)
            return
        self.write(_as_json(found))


def _as_json(found: RunFound) -> Mapping[str, Any]:
    drawn = [line for line in found.outline.lines if isinstance(line, DrawnStep)]
    rests = [line for line in found.outline.lines if not isinstance(line, DrawnStep)]
    return {
        **asdict(found.run),
        "inputs": found.inputs,
        "steps_so_far": found.outline.steps,
        "steps_ended": found.outline.steps_ended,
        "steps": [asdict(step) for step in drawn],
        "items_not_listed": sum(sum(rest.counts.values()) for rest in rests),
        "is_cut": found.outline.is_cut,
    }


HANDLERS = [
    url(r"/workflows", RunsPage, name="workflows"),
    url(r"/workflows/([^/]+)", RunPage, name="workflow"),
    url(r"/api/workflows", RunsApi),
    url(r"/api/workflows/([^/]+)", RunApi),
]

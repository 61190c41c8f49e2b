"""The pages and their JSON, as request handlers of Flower.

They inherit from Flower's base classes and so use its authentication, prefix and headers, after
the tokens of `access`. Flower's navigation bar gets one more entry.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from flower.api import BaseApiHandler
from flower.views import BaseHandler
from tornado.template import Loader, Template
from tornado.web import RequestHandler, authenticated, url

from flowengine import answer_links
from flowengine.engine import queries
from flowengine.engine.results import RunInfo, RunSummary
from flowengine.engine.run_tree import HiddenItems, RunTree, StepLine, load_run_tree
from flowengine.errors import FlowengineError, StoreError, TenantRefused, UnknownRun
from flowengine.evaluator.states import RunState
from flowengine.secret_keys import without_secrets
from flowengine.settings import Settings
from flowengine.store import Session
from flowengine.store.database import system_clock
from flowengine.web import metrics, styles
from flowengine.web.access import TenantAccess
from flowengine.web.answer_page import AnswerPage
from flowengine.web.async_queries import queries_of

T = TypeVar("T")
STATES = RunState.ALL
_DEFAULT_LIMIT = 50  #: runs on a page
_MAX_LENGTH = 255  #: characters of a filter: no workflow and no run has a longer name
_TEMPLATES = Path(__file__).parent / "templates"

#: The entry of the Broker page, the last one of Flower.
_BROKER_ENTRY = re.compile(
    r"""[ ]*<li\ class="nav-item">\s*<a\ class="nav-link(?P<classes>[^"]*)"
        (?:(?!</li>).)*?reverse_url\('broker'\)(?:(?!</li>).)*</li>\n?""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(eq=False, repr=False)
class RequestError(FlowengineError):
    """A request that fails, with its HTTP status and message."""

    status: int
    message: str
    _text = "{message}"


# --- queries ---


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter of a list of runs."""

    state: str | None
    workflow: str | None
    before: str | None
    limit: int
    tenant: str | None = None

    @classmethod
    def of(cls, request: RequestHandler) -> Filter:
        # Not `get_argument`: Flower's version escapes the value, and the templates escape it again.
        def argument(name: str) -> str:
            value = request.get_query_argument(name, "")
            if len(value) > _MAX_LENGTH or "\0" in value:
                raise RequestError(400, f"{name} must have {_MAX_LENGTH} characters at most")
            return value

        state = argument("state").upper()
        if state and state not in STATES:
            raise RequestError(400, f"unknown state {state[:30]!r}; use one of {', '.join(STATES)}")
        most = _settings(request).max_page_runs
        limit = argument("limit") or str(min(_DEFAULT_LIMIT, most))
        is_number = limit.isascii() and limit.isdigit() and len(limit) <= 9
        if not is_number or not 1 <= int(limit) <= most:
            raise RequestError(400, f"limit={limit[:30]!r} is not a number from 1 to {most}")
        workflow, before, tenant = map(argument, ("workflow", "before", "tenant"))
        return cls(state or None, workflow or None, before or None, int(limit), tenant or None)

    def query(self, **changes: str | None) -> str:
        """Return the URL query of this filter with some parameters changed."""
        limit = str(self.limit) if self.limit != _DEFAULT_LIMIT else None
        parameters = {"state": self.state, "workflow": self.workflow, "tenant": self.tenant}
        parameters |= {"limit": limit, **changes}
        kept = {name: value for name, value in parameters.items() if value}
        return f"?{urlencode(kept)}" if kept else ""


def _settings(handler: Any) -> Settings:
    return queries_of(handler.application.capp).settings


def _visible_tenant(handler: Any, asked: str | None = None) -> str | None:
    try:
        tenant: str | None = handler.visible_tenant(asked)
    except TenantRefused as refused:
        raise RequestError(403, f"This login does not see tenant {refused.asked!r}.") from None
    return tenant


async def _query(handler: Any, query: Callable[[Session], T]) -> T:
    try:
        return await queries_of(handler.application.capp).run(query)
    except UnknownRun as unknown:
        raise RequestError(404, f"There is no run {unknown.run_id!r} in this database.") from None
    except StoreError as problem:
        raise RequestError(503, f"Runs cannot be read: {problem}.") from None


async def _runs(handler: Any, run_filter: Filter) -> tuple[list[RunSummary], str | None]:
    """Return a page of runs, and `before` of the next page."""
    tenant = _visible_tenant(handler, run_filter.tenant)

    def query(session: Session) -> list[RunSummary]:
        return queries.run_summaries(
            session,
            workflow=run_filter.workflow,
            state=run_filter.state,
            before=run_filter.before,
            tenant=tenant,
            limit=run_filter.limit + 1,  # one more shows whether there is a next page
        )

    runs = await _query(handler, query)
    page = runs[: run_filter.limit]
    return page, page[-1].id if len(runs) > len(page) else None


def shown_values(
    session: Session, run_id: str, tenant: str | None
) -> tuple[RunInfo, dict[str, Any]]:
    """Return a run and its inputs, without secrets."""
    run = queries.run_info(session, run_id, tenant)
    inputs = without_secrets(queries.run_inputs(session, run))
    return replace(run, outputs=without_secrets(run.outputs)), inputs


async def _run(handler: Any, run_id: str) -> tuple[RunInfo, dict[str, Any], RunTree]:
    settings, tenant = _settings(handler), _visible_tenant(handler)
    most = (settings.max_page_steps, settings.max_page_bytes)

    def query(session: Session) -> tuple[RunInfo, dict[str, Any], RunTree]:
        run, inputs = shown_values(session, run_id, tenant)
        return run, inputs, load_run_tree(session, run_id, *most)

    if len(run_id) > _MAX_LENGTH or "\0" in run_id:
        raise RequestError(404, "There is no run of this id in this database.")

    return await _query(handler, query)


def _handler(answer: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    """A handler for authenticated requests; it responds to a `RequestError`."""

    @authenticated
    async def get(self: Any, *arguments: str) -> None:
        try:
            await answer(self, *arguments)
        except RequestError as error:
            self.set_status(error.status)
            self.refuse(error.message)

    return get


# --- pages ---


class _Page(TenantAccess, BaseHandler):  # type: ignore[misc]
    def refuse(self, message: str) -> None:
        self.render("404.html", message=message)

    def show(self, template: str, **values: Any) -> None:
        self.render(template, now=system_clock(), styles=styles, **values)


class RunsPage(_Page):
    """The newest runs."""

    @_handler
    async def get(self) -> None:
        run_filter = Filter.of(self)
        runs, older = await _runs(self, run_filter)
        self.show("workflows.html", runs=runs, older=older, run_filter=run_filter, states=STATES)


class RunPage(_Page):
    """One run with its steps."""

    @_handler
    async def get(self, run_id: str) -> None:
        run, inputs, tree = await _run(self, run_id)
        shown = {"run": run, "inputs": inputs, "tree": tree}
        self.show("workflow.html", is_step=lambda line: isinstance(line, StepLine), **shown)


class Templates(Loader):
    """Loads our templates by name, all others from Flower's directory."""

    def _create_template(self, name: str) -> Template:
        if (_TEMPLATES / name).is_file():
            return Template((_TEMPLATES / name).read_text("utf-8"), name=name, loader=self)
        if name == "navbar.html":
            text = Path(self.root, name).read_text("utf-8")
            return Template(_with_workflows_entry(text), name=name, loader=self)
        return super()._create_template(name)


def _with_workflows_entry(navbar: str) -> str:
    """Return the navigation bar with our entry, a copy of the Broker entry."""
    broker = _BROKER_ENTRY.search(navbar)
    if broker is None:
        raise LookupError("its navigation bar has no entry for the Broker page")
    entry = broker[0].replace("'broker'", "'workflows'").replace(">Broker<", ">Workflows<")
    return navbar[: broker.end()] + entry + navbar[broker.end() :]


# --- JSON API ---


class _Api(TenantAccess, BaseApiHandler):  # type: ignore[misc]
    def refuse(self, message: str) -> None:
        self.write({"error": message})


class RunsApi(_Api):
    """The newest runs."""

    @_handler
    async def get(self) -> None:
        runs, older = await _runs(self, Filter.of(self))
        self.write({"runs": [asdict(run) for run in runs], "before": older})


class RunApi(_Api):
    """One run with the steps that the page shows."""

    @_handler
    async def get(self, run_id: str) -> None:
        run, inputs, tree = await _run(self, run_id)
        steps = [asdict(line) for line in tree.lines if isinstance(line, StepLine)]
        hidden = [line for line in tree.lines if isinstance(line, HiddenItems)]
        counts = [(line.are_rounds, sum(line.counts.values())) for line in hidden]
        self.write(
            {
                **asdict(run),
                "inputs": inputs,
                "steps_so_far": tree.steps,
                "steps_ended": tree.steps_ended,
                "steps": steps,
                "items_not_listed": sum(count for are_rounds, count in counts if not are_rounds),
                "rounds_not_listed": sum(count for are_rounds, count in counts if are_rounds),
                "is_cut": tree.is_cut,
            }
        )


class RunMetricsApi(_Api):
    """The unfinished runs of each tenant, for Prometheus."""

    @_handler
    async def get(self) -> None:
        tenant = _visible_tenant(self, Filter.of(self).tenant)
        rows = await _query(self, lambda session: queries.run_metrics(session, tenant))
        self.set_header("Content-Type", metrics.CONTENT_TYPE)
        self.write(metrics.exposition(rows, system_clock()))


HANDLERS = [
    url(r"/workflows", RunsPage, name="workflows"),
    url(r"/workflows/([^/]+)", RunPage, name="workflow"),
    url(f"{answer_links.PATH}([^/]+)", AnswerPage),
    url(r"/api/workflows", RunsApi),
    url(r"/api/workflows/metrics", RunMetricsApi),  # no run has this id
    url(r"/api/workflows/([^/]+)", RunApi),
]

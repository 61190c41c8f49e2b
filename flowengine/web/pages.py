"""The pages and their JSON, as request handlers of Flower.

They inherit from Flower's base classes and so use its authentication, prefix and headers, after
the tokens of `access`. Flower's navigation bar gets two more entries.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tornado.template import Loader, Template
from tornado.web import RequestHandler, url

from flowengine import answer_links
from flowengine.agents.views import agent_metrics
from flowengine.engine import queries
from flowengine.engine.log_entries import LogEntry, newest_entries
from flowengine.engine.results import RunInfo, RunSummary
from flowengine.engine.run_tree import HiddenItems, RunTree, StepLine, load_run_tree
from flowengine.evaluator.states import RunState
from flowengine.secret_keys import without_secrets
from flowengine.store import Session
from flowengine.store.database import system_clock
from flowengine.web import limit_api, metrics
from flowengine.web.agent_pages import (
    AgentsApi,
    AgentsPage,
    OneTurnPage,
    TurnApi,
    TurnsApi,
    TurnsPage,
)
from flowengine.web.answer_page import AnswerPage
from flowengine.web.handlers import (
    MAX_LENGTH,
    Api,
    Page,
    RequestError,
    argument,
    handler,
    query,
    settings_of,
    visible_tenant,
)

STATES = RunState.ALL
_LINES, _CHUNKS = 200, 20  #: of the log, on the page of a run
_DEFAULT_LIMIT = 50  #: runs on a page
_TEMPLATES = Path(__file__).parent / "templates"

#: The entry of the Broker page, the last one of Flower.
_BROKER_ENTRY = re.compile(
    r"""[ ]*<li\ class="nav-item">\s*<a\ class="nav-link(?P<classes>[^"]*)"
        (?:(?!</li>).)*?reverse_url\('broker'\)(?:(?!</li>).)*</li>\n?""",
    re.VERBOSE | re.DOTALL,
)


# --- queries ---


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter of a list of runs."""

    state: str | None
    workflow: str | None
    before: str | None
    limit: int
    tenant: str | None = None
    agents: bool = False  #: runs of calls of turns

    @classmethod
    def of(cls, request: RequestHandler) -> Filter:
        state = argument(request, "state").upper()
        if state and state not in STATES:
            raise RequestError(400, f"unknown state {state[:30]!r}; use one of {', '.join(STATES)}")
        most = settings_of(request).max_page_runs
        limit = argument(request, "limit") or str(min(_DEFAULT_LIMIT, most))
        is_number = limit.isascii() and limit.isdigit() and len(limit) <= 9
        if not is_number or not 1 <= int(limit) <= most:
            raise RequestError(400, f"limit={limit[:30]!r} is not a number from 1 to {most}")
        workflow, before, tenant, agents = (
            argument(request, name) for name in ("workflow", "before", "tenant", "agents")
        )
        return cls(
            state or None,
            workflow or None,
            before or None,
            int(limit),
            tenant or None,
            bool(agents),
        )

    def query(self, **changes: str | None) -> str:
        """Return the URL query of this filter with some parameters changed."""
        limit = str(self.limit) if self.limit != _DEFAULT_LIMIT else None
        parameters = {"state": self.state, "workflow": self.workflow, "tenant": self.tenant}
        parameters |= {"limit": limit, "agents": "1" if self.agents else None, **changes}
        kept = {name: value for name, value in parameters.items() if value}
        return f"?{urlencode(kept)}" if kept else ""


async def _runs(handler: Any, run_filter: Filter) -> tuple[list[RunSummary], str | None]:
    """Return a page of runs, and `before` of the next page."""
    tenant = visible_tenant(handler, run_filter.tenant)

    def read(session: Session) -> list[RunSummary]:
        return queries.run_summaries(
            session,
            workflow=run_filter.workflow,
            state=run_filter.state,
            before=run_filter.before,
            tenant=tenant,
            agents=run_filter.agents,
            limit=run_filter.limit + 1,  # one more shows whether there is a next page
        )

    runs = await query(handler, read)
    page = runs[: run_filter.limit]
    return page, page[-1].id if len(runs) > len(page) else None


def shown_values(
    session: Session, run_id: str, tenant: str | None
) -> tuple[RunInfo, dict[str, Any]]:
    """Return a run and its inputs, without secrets."""
    run = queries.run_info(session, run_id, tenant)
    inputs = without_secrets(queries.run_inputs(session, run))
    return replace(run, outputs=without_secrets(run.outputs)), inputs


async def _run(
    handler: Any, run_id: str, *, lines: int = 0
) -> tuple[RunInfo, dict[str, Any], RunTree, list[LogEntry]]:
    settings, tenant = settings_of(handler), visible_tenant(handler)
    most = (settings.max_page_steps, settings.max_page_bytes)

    def read(session: Session) -> tuple[RunInfo, dict[str, Any], RunTree, list[LogEntry]]:
        run, inputs = shown_values(session, run_id, tenant)
        log = newest_entries(session, run_id, lines, _CHUNKS) if lines else []
        return run, inputs, load_run_tree(session, run_id, *most), log

    if len(run_id) > MAX_LENGTH or "\0" in run_id:
        raise RequestError(404, "There is no run of this id in this database.")

    return await query(handler, read)


# --- pages ---


class RunsPage(Page):
    """The newest runs."""

    @handler
    async def get(self) -> None:
        run_filter = Filter.of(self)
        runs, older = await _runs(self, run_filter)
        self.show("workflows.html", runs=runs, older=older, run_filter=run_filter, states=STATES)


class RunPage(Page):
    """One run with its steps."""

    @handler
    async def get(self, run_id: str) -> None:
        run, inputs, tree, log = await _run(self, run_id, lines=_LINES)
        shown = {"run": run, "inputs": inputs, "tree": tree, "log": log}
        self.show("workflow.html", is_step=lambda line: isinstance(line, StepLine), **shown)


class Templates(Loader):
    """Loads our templates by name, all others from Flower's directory."""

    def _create_template(self, name: str) -> Template:
        if (_TEMPLATES / name).is_file():
            return Template((_TEMPLATES / name).read_text("utf-8"), name=name, loader=self)
        if name == "navbar.html":
            text = Path(self.root, name).read_text("utf-8")
            return Template(_with_own_entries(text), name=name, loader=self)
        return super()._create_template(name)


def _with_own_entries(navbar: str) -> str:
    """Return the navigation bar with our entries, copies of the Broker entry."""
    broker = _BROKER_ENTRY.search(navbar)
    if broker is None:
        raise LookupError("its navigation bar has no entry for the Broker page")
    entries = "".join(
        broker[0].replace("'broker'", f"'{name}'").replace(">Broker<", f">{name.capitalize()}<")
        for name in ("workflows", "agents")
    )
    return navbar[: broker.end()] + entries + navbar[broker.end() :]


# --- JSON API ---


class RunsApi(Api):
    """The newest runs."""

    @handler
    async def get(self) -> None:
        runs, older = await _runs(self, Filter.of(self))
        self.write({"runs": [asdict(run) for run in runs], "before": older})


class RunApi(Api):
    """One run with the steps that the page shows."""

    @handler
    async def get(self, run_id: str) -> None:
        run, inputs, tree, _ = await _run(self, run_id)
        steps = [asdict(line) for line in tree.lines if isinstance(line, StepLine)]
        hidden = [line for line in tree.lines if isinstance(line, HiddenItems)]
        counts: Counter[str] = Counter()
        for line in hidden:
            counts[line.kind] += sum(line.counts.values())
        self.write(
            {
                **asdict(run),
                "inputs": inputs,
                "steps_so_far": tree.steps,
                "steps_ended": tree.steps_ended,
                "steps": steps,
                "items_not_listed": counts["items"],
                "rounds_not_listed": counts["rounds"],
                "calls_not_listed": counts["calls"],
                "is_cut": tree.is_cut,
            }
        )


class RunMetricsApi(Api):
    """The unfinished runs of each tenant, and its agents, for Prometheus."""

    @handler
    async def get(self) -> None:
        tenant = visible_tenant(self, Filter.of(self).tenant)

        def read(session: Session) -> str:
            now = system_clock()
            runs = metrics.exposition(queries.run_metrics(session, tenant), now)
            return runs + metrics.agent_exposition(agent_metrics(session, tenant, now), now)

        text = await query(self, read)
        self.set_header("Content-Type", metrics.CONTENT_TYPE)
        self.write(text)


HANDLERS = [
    url(r"/workflows", RunsPage, name="workflows"),
    url(r"/workflows/([^/]+)", RunPage, name="workflow"),
    url(f"{answer_links.PATH}([^/]+)", AnswerPage),
    url(r"/agents", AgentsPage, name="agents"),
    url(r"/agents/turns", TurnsPage, name="turns"),
    url(r"/agents/turns/([^/]+)", OneTurnPage, name="turn"),
    url(r"/api/agents", AgentsApi),
    url(r"/api/agents/turns", TurnsApi),
    url(r"/api/agents/turns/([^/]+)", TurnApi),
    url(r"/api/workflows", RunsApi),
    url(r"/api/workflows/metrics", RunMetricsApi),  # no run has this id
    url(r"/api/workflows/([^/]+)", RunApi),
    *limit_api.HANDLERS,
]

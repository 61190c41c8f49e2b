"""Requests to the pages: authentication, arguments, queries, and answers to mistakes.

The handlers inherit from Flower's base classes and so use its authentication, prefix and headers,
after the tokens of `access`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flower.api import BaseApiHandler
from flower.views import BaseHandler
from tornado.web import RequestHandler, authenticated

from flowengine.errors import FlowengineError, StoreError, TenantRefused, UnknownRun
from flowengine.settings import Settings
from flowengine.store import Session
from flowengine.store.database import system_clock
from flowengine.web import styles
from flowengine.web.access import TenantAccess
from flowengine.web.async_queries import queries_of

T = TypeVar("T")
MAX_LENGTH = 255  #: characters of a filter: no workflow, run, agent or turn has a longer name


@dataclass(eq=False, repr=False)
class RequestError(FlowengineError):
    """A request that fails, with its HTTP status and message."""

    status: int
    message: str
    _text = "{message}"


def argument(request: RequestHandler, name: str) -> str:
    """Return an argument of the query; empty without one."""
    # Not `get_argument`: Flower's version escapes the value, and the templates escape it again.
    value = request.get_query_argument(name, "")
    if len(value) > MAX_LENGTH or "\0" in value:
        raise RequestError(400, f"{name} must have {MAX_LENGTH} characters at most")
    return value


def settings_of(handler: Any) -> Settings:
    return queries_of(handler.application.capp).settings


def visible_tenant(handler: Any, asked: str | None = None) -> str | None:
    try:
        tenant: str | None = handler.visible_tenant(asked)
    except TenantRefused as refused:
        raise RequestError(403, f"This login does not see tenant {refused.asked!r}.") from None
    return tenant


async def query(handler: Any, read: Callable[[Session], T]) -> T:
    app = handler.application.capp
    try:
        if plugin := getattr(app, "flowengine", None):
            plugin.require_database()
        return await queries_of(app).run(read)
    except UnknownRun as unknown:
        raise RequestError(404, f"There is no run {unknown.run_id!r} in this database.") from None
    except StoreError as problem:
        raise RequestError(503, f"Runs cannot be read: {problem}.") from None


def handler(answer: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    """A handler for authenticated requests; it responds to a `RequestError`."""

    @authenticated
    async def get(self: Any, *arguments: str) -> None:
        try:
            await answer(self, *arguments)
        except RequestError as error:
            self.set_status(error.status)
            self.refuse(error.message)

    return get


#: No page of another site around ours, and no copy in caches.
_HEADERS = {
    "Content-Security-Policy": (
        "object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
    ),
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class _Uncached(TenantAccess):
    def set_default_headers(self) -> None:
        super().set_default_headers()  # type: ignore[misc]
        for name, value in _HEADERS.items():
            self.set_header(name, value)  # type: ignore[attr-defined]


class Page(_Uncached, BaseHandler):  # type: ignore[misc]
    def refuse(self, message: str) -> None:
        self.render("404.html", message=message)

    def show(self, template: str, **values: Any) -> None:
        zone = self.application.capp.timezone  # as on Flower's page of tasks
        self.render(template, now=system_clock(), zone=zone, styles=styles, **values)


class Api(_Uncached, BaseApiHandler):  # type: ignore[misc]
    def refuse(self, message: str) -> None:
        self.write({"error": message})

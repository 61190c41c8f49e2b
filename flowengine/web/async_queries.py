"""Query the store without blocking Flower's event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from flowengine.errors import StoreError
from flowengine.payload_codecs import codec_of
from flowengine.settings import Settings
from flowengine.store import Database, Session, ensure_schema
from flowengine.store.codec import use_payload_codec
from flowengine.store.failures import DatabaseFailure
from flowengine.tenants import TenantTokens

log = logging.getLogger("flowengine")
T = TypeVar("T")

# A small pool of our own: a hanging database must not block Flower's other pages.
_executor = ThreadPoolExecutor(4, thread_name_prefix="flowengine-web")


class StoreQueries:
    """Read-only queries; the first one opens the database."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tokens = TenantTokens(settings.tenant_tokens)
        self._database = Database(settings.database_url, schema=settings.schema)
        if settings.payload_codec:  # Flower makes no engine, which would have set it
            use_payload_codec(codec_of(settings))
        self._lock = threading.Lock()
        self._is_checked = False

    async def run(self, query: Callable[[Session], T]) -> T:
        """Run a query in a thread; raises `StoreError` if the database does not answer."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_executor, self._run_query, query)

    async def act(self, act: Callable[[], T]) -> T:
        """Call something that opens the database itself in a thread; it is not created."""

        def checked() -> T:
            self._check()
            return act()

        return await asyncio.get_running_loop().run_in_executor(_executor, checked)

    def _run_query(self, query: Callable[[Session], T]) -> T:
        began, most = time.monotonic(), self.settings.max_page_seconds
        try:
            self._check()
            with self._database.limited_read(most) as session:
                return query(session)
        except DatabaseFailure as problem:
            if time.monotonic() - began >= most:
                raise StoreError(
                    f"the query took longer than {most:g} s (setting max_page_seconds): narrow "
                    "the filter, or ask for fewer runs"
                ) from problem
            log.warning(
                "query of database %s for a page of Flower failed; the page says that the database "
                "does not answer",
                self._database.name,
                exc_info=True,
                extra={"action": "page_query_failed"},
            )
            raise StoreError(f"the database {self._database.name} does not answer") from problem

    def _check(self) -> None:
        """Check the schema; a query neither creates nor upgrades a database."""
        with self._lock:
            if self._is_checked:
                return
            if self._database.file is not None and not self._database.file.exists():
                raise StoreError(
                    f"there is no database {self._database.name} yet: the first run creates it, or "
                    "set another in FLOWENGINE_DATABASE_URL"
                )
            ensure_schema(self._database, upgrade=False)
            self._is_checked = True


_queries = cache(StoreQueries)


def queries_of(app: Any) -> StoreQueries:
    """Return the queries on the database of a Celery app's engine."""
    plugin = getattr(app, "flowengine", None)
    settings = plugin.settings if plugin else Settings.from_environment(configured=app.conf)
    return _queries(settings)

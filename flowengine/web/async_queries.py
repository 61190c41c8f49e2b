"""Ask the store without holding up Flower's event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from flowengine.errors import StoreError
from flowengine.settings import Settings
from flowengine.store import Database, ensure_schema

log = logging.getLogger("flowengine")
T = TypeVar("T")

# Few, and not Flower's own: a database that hangs must leave the other pages alone.
_threads = ThreadPoolExecutor(4, thread_name_prefix="flowengine-web")


class Reader:
    """A database that is opened when it is first asked, and only read."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._lock = threading.Lock()
        self._is_checked = False

    async def ask(self, question: Callable[[Connection], T]) -> T:
        """Answer a question in a thread; a database that cannot answer is a `StoreError`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_threads, self._answer, question)

    def _answer(self, question: Callable[[Connection], T]) -> T:
        try:
            self._check()
            with self._database.read() as connection:
                return question(connection)
        except SQLAlchemyError as problem:
            log.warning("could not read %s for a page", self._database.name, exc_info=True)
            raise StoreError(f"the database {self._database.name} does not answer") from problem

    def _check(self) -> None:
        """Looking must neither create nor upgrade a database."""
        with self._lock:
            if self._is_checked:
                return
            file = Path(self._database.url.database or "")
            if self._database.is_sqlite and not file.exists():
                raise StoreError(
                    f"there is no database {self._database.name} yet: the first run makes it, or "
                    "name another in FLOWENGINE_DATABASE_URL"
                )
            ensure_schema(self._database, upgrade=False)
            self._is_checked = True


_reader = cache(Reader)


def reader_of(app: Any) -> Reader:
    """The database of a Celery app's engine."""
    plugin = getattr(app, "flowengine", None)
    settings = plugin.settings if plugin else Settings.from_environment(configured=app.conf)
    return _reader(settings.database_url)

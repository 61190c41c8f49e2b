"""Execute SQL text on the connection of the sqlite3 driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from flowengine.store.executors import Parameters, sqlite_text


class SqliteExecutor:
    """Executes each statement in a transaction of its own, unless one is open."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver

    def rows(self, text: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._driver.execute(
            sqlite_text(text), parameters
        ).fetchall()
        return found

    def many(self, text: str, rows: Sequence[Parameters]) -> None:
        self._driver.executemany(text, rows)

    def atomic(self) -> AbstractContextManager[object]:
        return nullcontext() if self._driver.in_transaction else self.transaction()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._driver.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._driver.execute("COMMIT")
        except BaseException:
            self._driver.rollback()
            raise

"""flowengine as it comes: SQLite and threads in this process, and not one setting."""

from __future__ import annotations

from typing import Any

from benchmarks.contenders.driver import serve
from benchmarks.contenders.flowengine_celery import FlowengineOnCelery


class FlowengineEmbedded(FlowengineOnCelery):
    """Asked for the same workloads; only what it runs on differs."""

    packages: tuple[str, ...] = ("flowengine", "celery", "kombu", "sqlalchemy")

    def open(self) -> None:
        import sqlite3

        from benchmarks.contenders import flowengine_flows
        from flowengine import default_engine

        self._flows: Any = flowengine_flows
        self._engine = default_engine()  # the file flowengine.db, in this contender's directory
        self.settings = {"FLOWENGINE_*": "all by default", "SQLite": sqlite3.sqlite_version}


if __name__ == "__main__":
    serve(FlowengineEmbedded())

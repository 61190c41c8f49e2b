"""Export: everything that is stored of a run, as one JSON document.

A document has the rows of the run in every table, its program and the large values that it has.
`flowengine.testing.replay` evaluates it again. Secrets are masked; other values are not.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import metadata
from typing import Any

from flowengine.engine.history import entries
from flowengine.engine.queries import run_info
from flowengine.program.limits import Limits
from flowengine.secret_keys import HIDDEN, MARK, is_stored_secret
from flowengine.settings import Settings
from flowengine.store import Session, Store
from flowengine.store.migrations import HEAD
from flowengine.tenants import visible_tenant

FORMAT = "flowengine.run/1"
_ENTRIES = 1_000_000


class Exports:
    def __init__(self, database: Store, settings: Settings) -> None:
        self._database, self._settings = database, settings

    def export(self, run_id: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Return a run as a JSON document; one snapshot on SQLite and PostgreSQL."""
        tenant = visible_tenant(self._settings.tenant, tenant)
        with self._database.read() as session:
            session.run_rows.begin_snapshot()
            return export_of(session, run_id, tenant, self._settings)


def export_of(
    session: Session, run_id: str, tenant: str | None, settings: Settings
) -> dict[str, Any]:
    info = run_info(session, run_id, tenant)
    rows = session.run_rows.rows(run_id)
    for table in rows.values():
        table["rows"] = [[_masked(value) for value in row] for row in table["rows"]]
    history = [asdict(entry) for entry in entries(session, run_id, 0, _ENTRIES)]
    return {
        "format": FORMAT,
        "version": metadata.version("flowengine"),
        "schema": HEAD,
        "exported": session.now(),
        "limits": asdict(Limits.of(settings)),
        "run": run_id,
        "workflow": info.workflow,
        "state": info.state,
        "history": history,
        "rows": rows,
    }


def _masked(value: Any) -> Any:
    """Return the value of a column, with asterisks in the place of the tokens of secrets."""
    if not isinstance(value, str) or MARK not in value:
        return value
    try:
        return json.dumps(_without_tokens(json.loads(value)), separators=(",", ":"))
    except ValueError:
        return value  # no JSON: a path, or the text of an alarm


def _without_tokens(value: Any) -> Any:
    # The schema of a secret, in a program, has a map in the place of the token.
    if is_stored_secret(value) and not isinstance(value[MARK], dict):
        return {MARK: HIDDEN}
    if isinstance(value, dict):
        return {name: _without_tokens(item) for name, item in value.items()}
    return [_without_tokens(item) for item in value] if isinstance(value, list) else value

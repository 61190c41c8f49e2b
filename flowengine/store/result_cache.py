"""The result cache: results of event facets that later steps complete with.

Entries are never changed, the newest of a key counts. An entry refers to its large values as a run
does: the reference has the id of the entry in place of a run's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from flowengine.evaluator.records import CachedResult
from flowengine.store import codec
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part, statement

_COLUMNS = ("id", "key", "tenant", "facet", "run_id", "path", "returns", "created", "expires")
_NEWEST = (
    f"SELECT {', '.join(f'c.{name}' for name in _COLUMNS)} FROM {{IDS}} {{JOIN}} "
    "flowengine_cache c "
    "ON c.id = (SELECT n.id FROM flowengine_cache n WHERE n.key = w.value "
    "ORDER BY n.created DESC, n.id LIMIT 1)"
)
_SOURCES = statement(
    "SELECT step_id, source FROM flowengine_event WHERE run_id = :run AND id IN :ids "
    "AND source IS NOT NULL",
    "ids",
)


class CacheHit(NamedTuple):
    """The run and the step whose result another step completed with."""

    run: str
    path: str
    at: int  #: when that step completed, in milliseconds since the epoch


class ResultCache(Part):
    def newest(self, keys: Iterable[str]) -> dict[str, CachedResult | None]:
        """Return the newest result of each key; None: there is none."""
        found: dict[str, CachedResult | None] = dict.fromkeys(sorted(keys))
        text = in_dialect(_NEWEST, self._session.dialect)
        for row in self._session.rows(text, (json.dumps(list(found)),)):
            values = dict(zip(_COLUMNS, row, strict=True))
            values["returns"] = codec.attributes(values["returns"])
            entry = CachedResult(**values)
            found[entry.key] = entry
        return found

    def hits(self, run_id: str, event_ids: list[str]) -> dict[str, CacheHit]:
        """Return by step where the results of these events of a run are from, if from the cache."""
        rows = self._in_portions(_SOURCES, event_ids, run=run_id)
        return {row.step_id: CacheHit(*json.loads(row.source)) for row in rows}

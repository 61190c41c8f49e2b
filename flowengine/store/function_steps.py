"""The steps that are durable functions, of open runs and of those that ended last."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import TextClause

from flowengine.store.parts import Part, statement

_RUNS = 10_000  #: runs that are looked through, the newest first
_FOUND = (
    "SELECT s.run_id, s.key, s.path, s.facet_name FROM ("
    "SELECT id, created FROM flowengine_run WHERE {finished} AND tenant = :tenant "
    f"ORDER BY created DESC, id DESC LIMIT {_RUNS}"
    ") r JOIN flowengine_step s ON s.run_id = r.id "
    # The facet of a function has its version in the name; no other name has the sign.
    "WHERE s.facet_name LIKE '%@%' AND NOT s.superseded "
    "ORDER BY r.created DESC, r.id DESC, s.key LIMIT :most"
)
_OPEN = statement(_FOUND.format(finished="finished IS NULL"))
_ENDED = statement(_FOUND.format(finished="finished IS NOT NULL"))


class FunctionStep(NamedTuple):
    run_id: str
    key: str
    path: str
    facet: str


class FunctionSteps(Part):
    """Finds durable functions, for checks that replay them."""

    def of_open_runs(self, tenant: str, most: int) -> list[FunctionStep]:
        return self._found(_OPEN, tenant, most)

    def of_ended_runs(self, tenant: str, most: int) -> list[FunctionStep]:
        return self._found(_ENDED, tenant, most)

    def _found(self, query: TextClause, tenant: str, most: int) -> list[FunctionStep]:
        rows = self._session.execute(query, {"tenant": tenant, "most": most})
        return [FunctionStep(*row) for row in rows]

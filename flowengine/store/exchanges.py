"""Exchanges: entries of conversations with models, as earlier versions recorded them.

Entries are calls of their step now (`store.calls`). A step that was open during the upgrade goes on
from the exchanges that it has.
"""

from __future__ import annotations

from typing import NamedTuple

from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.parts import Part

_OF_STEP = (
    "SELECT number, kind, content FROM flowengine_exchange "
    "WHERE run_id = %s AND step_id = %s ORDER BY number"
)


class Exchange(NamedTuple):
    number: int
    kind: str
    content: Json


class Exchanges(Part):
    """In a transaction."""

    def of_step(self, run_id: str, step_id: str) -> list[Exchange]:
        rows = self._session.rows(_OF_STEP, (run_id, step_id))
        contents = [codec.attributes(content) for _, _, content in rows]
        self._session.payloads.fill_in(contents)
        return [
            Exchange(number, kind, content["content"])
            for (number, kind, _), content in zip(rows, contents, strict=True)
        ]

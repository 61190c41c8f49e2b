"""Large values and programs: stored once, by their content, and immutable."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowengine.evaluator import PayloadRef
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part

_SAVE_PROGRAM = (
    "INSERT INTO flowengine_program (hash, body, created) VALUES (%s, %s, %s) "
    # The time tells retention that a process uses it; once an hour is enough.
    "ON CONFLICT (hash) DO UPDATE SET created = excluded.created "
    "WHERE flowengine_program.created < excluded.created - 3600000 RETURNING hash"
)
_LOAD_PROGRAM = "SELECT body FROM flowengine_program WHERE hash = %s"
_BODIES = "SELECT p.hash, p.body FROM {IDS} {JOIN} flowengine_payload p ON p.hash = w.value"


class Payloads(Part):
    """Reads large values, and stores programs."""

    def load(self, hashes: Iterable[str]) -> dict[str, Json]:
        wanted = sorted(hashes)
        if not wanted:
            return {}
        text = in_dialect(_BODIES, self._session.dialect)
        rows = self._session.rows(text, (json.dumps(wanted),))
        return {digest: codec.load(body) for digest, body in rows}

    def fill_in(self, several: Sequence[dict[str, Any]]) -> None:
        """Replace the references in several maps of attributes by their values, in place."""
        wanted = {
            value.hash
            for values in several
            for value in values.values()
            if isinstance(value, PayloadRef)
        }
        if not wanted:
            return
        bodies = self.load(wanted)
        for values in several:
            for name, value in values.items():
                if isinstance(value, PayloadRef):
                    values[name] = bodies[value.hash]

    def resolved(self, values: Mapping[str, Any]) -> dict[str, Json]:
        """Return attributes with their references replaced by values."""
        found = dict(values)
        self.fill_in([found])
        return found

    def save_program(self, digest: str, body: str, now: int) -> None:
        self._session.rows(_SAVE_PROGRAM, (digest, body, now))

    def load_program(self, digest: str) -> Json:
        ((body,),) = self._session.rows(_LOAD_PROGRAM, (digest,))
        return codec.load(body)

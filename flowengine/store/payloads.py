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
from flowengine.store.shown_values import Unreadable, shown_value

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

    def shown(self, values: dict[str, Any]) -> dict[str, Json]:
        """Like `resolved`, for a reader: with placeholders of values that cannot be read."""
        return self.all_shown([values])[0]

    def all_shown(self, several: Sequence[dict[str, Any]]) -> list[dict[str, Json]]:
        """Like `shown`, for several maps of attributes: one query."""
        wanted = {
            value.hash
            for values in several
            for value in values.values()
            if isinstance(value, PayloadRef)
        }
        bodies: dict[str, Json] = {}
        if wanted:
            text = in_dialect(_BODIES, self._session.dialect)
            for digest, body in self._session.rows(text, (json.dumps(sorted(wanted)),)):
                bodies[digest] = shown_value(body)
            for digest in wanted - bodies.keys():
                bodies[digest] = Unreadable.because(
                    f"the large value {digest} is not in the database"
                )

        def body_of(value: Any) -> Json:
            return bodies[value.hash] if isinstance(value, PayloadRef) else value

        return [
            values
            if isinstance(values, Unreadable)
            else {name: body_of(value) for name, value in values.items()}
            for values in several
        ]

    def save_program(self, digest: str, body: str, now: int) -> None:
        self._session.rows(_SAVE_PROGRAM, (digest, body, now))

    def load_program(self, digest: str) -> Json:
        ((body,),) = self._session.rows(_LOAD_PROGRAM, (digest,))
        return codec.load(body)

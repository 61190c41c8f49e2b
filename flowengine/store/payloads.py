"""Large values and programs: stored once, by their content, and never changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from flowengine.evaluator import PayloadRef
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.executors import Executor
from flowengine.store.rows import portions
from flowengine.store.tables import PayloadRow

_payload = PayloadRow.__table__  # type: ignore[attr-defined]
_BODIES = select(_payload.c.hash, _payload.c.body).where(
    _payload.c.hash.in_(bindparam("hashes", expanding=True))
)


def load_payloads(connection: Connection, hashes: Iterable[str]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for part in portions(sorted(hashes)):
        for digest, body in connection.execute(_BODIES, {"hashes": list(part)}):
            found[digest] = codec.load(body)
    return found


_POSTGRES_BODIES = (
    "SELECT p.hash, p.body FROM json_array_elements_text(%s::json) AS w(hash) "
    "JOIN flowengine_payload p ON p.hash = w.hash"
)
_SQLITE_BODIES = (
    "SELECT p.hash, p.body FROM json_each(?) w CROSS JOIN flowengine_payload p ON p.hash = w.value"
)


def read_payloads(executor: Executor, hashes: Iterable[str]) -> dict[str, Json]:
    """The same on the hot path."""
    text = _SQLITE_BODIES if executor.is_sqlite else _POSTGRES_BODIES
    found = executor.rows(text, (json.dumps(sorted(hashes)),))
    return {digest: codec.load(body) for digest, body in found}


def fill_in(executor: Executor, several: Sequence[dict[str, Any]]) -> None:
    """Read the large values of several maps of attributes, in place."""
    wanted = {v.hash for values in several for v in values.values() if isinstance(v, PayloadRef)}
    if not wanted:
        return
    bodies = read_payloads(executor, wanted)
    for values in several:
        for name, value in values.items():
            if isinstance(value, PayloadRef):
                values[name] = bodies[value.hash]


def whole(connection: Connection, values: Mapping[str, Any]) -> dict[str, Json]:
    """Return attributes with their large values read."""
    wanted = {value.hash for value in values.values() if isinstance(value, PayloadRef)}
    bodies = load_payloads(connection, wanted) if wanted else {}
    return {
        name: bodies[value.hash] if isinstance(value, PayloadRef) else value
        for name, value in values.items()
    }


_SAVE_PROGRAM = (
    "INSERT INTO flowengine_program (hash, body, created) VALUES ({}) ON CONFLICT DO NOTHING "
    "RETURNING hash"
)


def save_program(executor: Executor, digest: str, body: str, now: int) -> None:
    places = "?, ?, ?" if executor.is_sqlite else "%s, %s, %s"
    executor.rows(_SAVE_PROGRAM.format(places), (digest, body, now))


def load_program(executor: Executor, digest: str) -> Json:
    place = "?" if executor.is_sqlite else "%s"
    text = f"SELECT body FROM flowengine_program WHERE hash = {place}"
    ((body,),) = executor.rows(text, (digest,))
    return codec.load(body)

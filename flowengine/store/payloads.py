"""Large values and programs: stored once, by their content, and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, select

from flowengine.evaluator import PayloadRef
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.rows import insert_or_ignore, portions
from flowengine.store.tables import PayloadRow, ProgramRow

_payload = PayloadRow.__table__  # type: ignore[attr-defined]
_program = ProgramRow.__table__  # type: ignore[attr-defined]
_BODIES = select(_payload.c.hash, _payload.c.body).where(
    _payload.c.hash.in_(bindparam("hashes", expanding=True))
)
_PROGRAM = select(_program.c.body).where(_program.c.hash == bindparam("hash"))


def save_payloads(connection: Connection, bodies: Mapping[str, str], now: int) -> None:
    insert_or_ignore(
        connection,
        _payload,
        # In one order: two writers of the same values must not wait for each other.
        [{"hash": digest, "body": bodies[digest], "created": now} for digest in sorted(bodies)],
    )


def load_payloads(connection: Connection, hashes: Iterable[str]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for part in portions(sorted(hashes)):
        for digest, body in connection.execute(_BODIES, {"hashes": list(part)}):
            found[digest] = codec.load(body)
    return found


def whole(connection: Connection, values: Mapping[str, Any]) -> dict[str, Json]:
    """Return attributes with their large values read."""
    wanted = {value.hash for value in values.values() if isinstance(value, PayloadRef)}
    bodies = load_payloads(connection, wanted) if wanted else {}
    return {
        name: bodies[value.hash] if isinstance(value, PayloadRef) else value
        for name, value in values.items()
    }


def save_program(connection: Connection, digest: str, body: str, now: int) -> None:
    insert_or_ignore(connection, _program, [{"hash": digest, "body": body, "created": now}])


def load_program(connection: Connection, digest: str) -> Json:
    return codec.load(connection.execute(_PROGRAM, {"hash": digest}).scalar_one())

"""Access tokens of the wire protocol."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Row

from flowengine.access_tokens import AccessToken
from flowengine.store import codec
from flowengine.store.parts import Part, statement

_COLUMNS = (
    *("id", "name", "digest", "scopes", "task_lists", "tenant", "created", "expires", "revoked"),
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM flowengine_token"
_BY_DIGEST = statement(f"{_SELECT} WHERE digest = :digest")
_ALL = statement(f"{_SELECT} ORDER BY created, name LIMIT :most")
_INSERT = statement(
    f"INSERT INTO flowengine_token ({', '.join(_COLUMNS)}) "
    f"VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) ON CONFLICT DO NOTHING"
)
_REVOKE = statement(
    "UPDATE flowengine_token SET revoked = COALESCE(revoked, :now) WHERE name = :name"
)


class Tokens(Part):
    def add(self, token: AccessToken) -> bool:
        """Store a token; False if there is one of that name."""
        row = asdict(token)
        row |= {name: codec.dump(list(row[name])) for name in ("scopes", "task_lists")}
        return bool(self._session.execute(_INSERT, row).rowcount)

    def by_digest(self, digest: str) -> AccessToken | None:
        row = self._session.execute(_BY_DIGEST, {"digest": digest}).first()
        return None if row is None else _token_of(row)

    def all(self, most: int) -> list[AccessToken]:
        """Return tokens in the order of their creation, the revoked ones too."""
        return [_token_of(row) for row in self._session.execute(_ALL, {"most": most})]

    def revoke(self, name: str, now: int) -> bool:
        """Revoke a token; idempotent. False if there is none of that name."""
        return bool(self._session.execute(_REVOKE, {"name": name, "now": now}).rowcount)


def _token_of(row: Row[Any]) -> AccessToken:
    values = {name: getattr(row, name) for name in _COLUMNS}
    values |= {name: tuple(codec.load(values[name])) for name in ("scopes", "task_lists")}
    return AccessToken(**values)

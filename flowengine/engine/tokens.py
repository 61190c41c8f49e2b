"""Create, list and revoke access tokens of the wire protocol."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from flowengine.access_tokens import AccessToken, digest_of, new_secret
from flowengine.errors import TokenRefused
from flowengine.store import Store
from flowengine.tenants import visible_tenant

_MAX_LISTED = 10_000


class Tokens:
    def __init__(self, database: Store, bound: str = "") -> None:
        """`bound` is the tenant that the app is bound to: its tokens are bound to it, too."""
        self._database, self._bound = database, bound

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        task_lists: Sequence[str] = (),
        tenant: str = "",
        seconds: float | None = None,
    ) -> tuple[str, AccessToken]:
        """Create a token that is valid for that time; return it, and its row.

        The token itself is not stored: this is the only time that anybody sees it.
        Raises TokenRefused.
        """
        secret, own = new_secret(), visible_tenant(self._bound, tenant or None)
        with self._database.write() as session:
            now = session.now()
            token = AccessToken(
                uuid.uuid4().hex,
                name,
                digest_of(secret),
                tuple(dict.fromkeys(scopes)),
                tuple(dict.fromkeys(task_lists)),
                own or "",
                now,
                None if seconds is None else now + round(seconds * 1000),
            )
            if not session.tokens.add(token):
                raise TokenRefused(name, "there is a token of this name; choose another name")
        return secret, token

    def list(self) -> list[AccessToken]:
        """Return the tokens in the order of their creation; of a bound app, its tenant's."""
        with self._database.read() as session:
            found = session.tokens.all(_MAX_LISTED)
        return [token for token in found if not self._bound or token.tenant == self._bound]

    def revoke(self, name: str) -> None:
        """Revoke a token; servers of the wire protocol notice it within seconds. Idempotent."""
        if name not in {token.name for token in self.list()}:
            raise TokenRefused(name, "there is no token of this name")
        with self._database.write() as session:
            session.tokens.revoke(name, session.now())

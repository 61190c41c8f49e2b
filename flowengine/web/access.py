"""Access to the pages: whose runs a request sees.

A login of Flower (`--basic_auth`, `--auth`) is an operator's and sees the runs of all tenants. A
token of the setting `tenant_tokens` sees the runs of its tenant and no other page of Flower. It is
sent as `Authorization: Bearer <token>`, or as the password of any name, as browsers do. An app that
is bound to a tenant shows the runs of this tenant alone, to everybody.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Any

from tornado.web import HTTPError

from flowengine.tenants import visible_tenant
from flowengine.web.async_queries import queries_of

_NO_LOGIN = (
    "FLOWENGINE_TENANT_TOKENS is set, but Flower has no login, so its other pages show the tasks "
    "of all tenants to everybody: start Flower with --basic_auth or --auth"
)


class TenantAccess:
    """Authenticates the requests of a handler of Flower, before Flower does."""

    application: Any
    request: Any
    _token_tenant: str | None = None

    def get_current_user(self) -> Any:
        tokens = queries_of(self.application.capp).tokens
        if tokens:
            options = self.application.options
            if not (options.basic_auth or options.auth):
                raise HTTPError(403, _NO_LOGIN)
            scheme, token = presented_token(self.request.headers.get("Authorization", ""))
            self._token_tenant = tokens.tenant_of(token) if token else None
            if self._token_tenant is not None:
                return self._token_tenant
            if scheme == "bearer":
                raise HTTPError(401)
        try:
            return super().get_current_user()  # type: ignore[misc]
        except TypeError:  # Flower cannot compare a password that is not ASCII
            raise HTTPError(401) from None

    def visible_tenant(self, asked: str | None) -> str | None:
        """Return the tenant whose runs this request sees; None: all. Raises TenantRefused."""
        bound = queries_of(self.application.capp).settings.tenant
        bound = visible_tenant(bound, self._token_tenant) or ""
        return visible_tenant(bound, asked)


def presented_token(authorization: str) -> tuple[str, str]:
    """Return the scheme of an Authorization header, and its token or password."""
    scheme, _, credentials = authorization.strip().partition(" ")
    scheme, token = scheme.lower(), credentials.strip()
    if scheme == "basic":
        try:
            token = b64decode(token, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            token = ""
    return scheme, token if scheme in ("basic", "bearer") else ""

"""Tenants: whose runs an app or a token starts and sees.

A run belongs to one tenant: the text that its start gave, or the empty one. The setting `tenant`
binds an app to one of them, the setting `tenant_tokens` each token of the pages. Workers and
recovery serve the runs of all tenants.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from flowengine.errors import TenantRefused

MAX_LENGTH = 64
EXPECTED = f"printable text of {MAX_LENGTH} characters at most"
_MIN_TOKEN = 16  #: characters; a shorter one can be guessed
TOKENS_EXPECTED = (
    f"a list of tenant=token, separated by commas: a token has {_MIN_TOKEN} characters or more, or "
    "is sha256: and the 64 hexadecimal digits of its digest, and belongs to one tenant"
)
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


def is_tenant(text: str) -> bool:
    return len(text) <= MAX_LENGTH and text.isprintable()


def visible_tenant(bound: str, asked: str | None) -> str | None:
    """Return the tenant whose runs are seen; None: the runs of all.

    `bound` is the tenant that the app or the token is bound to, empty if it is bound to none.
    Raises TenantRefused if another one is asked for.
    """
    if not bound:
        return asked
    if asked is not None and asked != bound:
        raise TenantRefused(bound, asked)
    return bound


class TenantTokens:
    """The tokens of the setting `tenant_tokens`, as digests."""

    def __init__(self, text: str) -> None:
        """Parse the setting; raise ValueError, without any token, if it is invalid."""
        self._tenants: list[tuple[bytes, str]] = []
        for pair in filter(None, (part.strip() for part in text.split(","))):
            tenant, _, token = pair.partition("=")
            if not tenant or not is_tenant(tenant):
                raise ValueError(TOKENS_EXPECTED)
            self._tenants.append((_stored_digest(token), tenant))
        if len({digest for digest, _ in self._tenants}) < len(self._tenants):
            raise ValueError(TOKENS_EXPECTED)

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def tenant_of(self, token: str) -> str | None:
        """Return the tenant of a token, in a time that does not depend on the token."""
        given = _digest(token)
        found = None
        for digest, tenant in self._tenants:
            if hmac.compare_digest(digest, given):
                found = tenant
        return found


def _stored_digest(token: str) -> bytes:
    if hashed := _DIGEST.fullmatch(token):
        return bytes.fromhex(hashed[1])
    if len(token) < _MIN_TOKEN or token.startswith("sha256:"):
        raise ValueError(TOKENS_EXPECTED)
    return _digest(token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()

"""Access tokens of the wire protocol: what a program that holds one may do. Pure.

A token is 256 random bits. The database stores its SHA-256 digest alone: a reader of the
database cannot use it, and a digest of random bits cannot be searched for.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from enum import StrEnum

from flowengine import tenants
from flowengine.errors import TokenRefused

PREFIX = "fe_"  #: that scanners for leaked credentials recognize
MAX_NAME, MAX_LISTS, MAX_LIST = 100, 100, 255
_BYTES = 32


class Scope(StrEnum):
    CLAIM = "claim"  #: register servers; claim, continue, fail and release tasks
    START = "start"  #: start runs
    READ = "read"  #: read runs and programs
    ADMIN = "admin"  #: answer and cancel runs


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token as it is stored. Times in milliseconds since the epoch."""

    id: str
    name: str
    digest: str
    scopes: tuple[str, ...]
    task_lists: tuple[str, ...] = ()  #: it claims tasks of these lists; empty: of all
    tenant: str = ""  #: it works for runs of this tenant; empty: of all
    created: int = 0
    expires: int | None = None
    revoked: int | None = None

    def __post_init__(self) -> None:
        name = self.name
        if not name.strip() or len(name) > MAX_NAME or not name.isprintable() or ":" in name:
            raise TokenRefused(
                name, f"a name is printable text of {MAX_NAME} characters at most, without a colon"
            )
        if unknown := sorted(set(self.scopes) - set(Scope)):
            known = ", ".join(Scope)
            raise TokenRefused(name, f"there is no scope {unknown[0]!r}; there are {known}")
        if not self.scopes:
            raise TokenRefused(name, f"it needs a scope: {', '.join(Scope)}")
        if len(self.task_lists) > MAX_LISTS or any(
            not text or len(text) > MAX_LIST or not text.isprintable() for text in self.task_lists
        ):
            raise TokenRefused(name, f"it has at most {MAX_LISTS} task lists, each with a name")
        if not tenants.is_tenant(self.tenant):
            raise TokenRefused(name, f"its tenant must be {tenants.EXPECTED}")
        if self.expires is not None and self.expires <= self.created:
            raise TokenRefused(name, "it would have expired already")

    def matches(self, digest: str) -> bool:
        """Compare digests in a time that does not depend on where they differ."""
        return hmac.compare_digest(self.digest, digest)

    def state(self, now: int) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"

    def serves(self, task_list: str) -> bool:
        return not self.task_lists or task_list in self.task_lists

    def boot_of(self, server_id: str) -> str:
        """Return the boot id of a server that is registered with this token.

        It is derived, so that no other token can act for the server, without a query.
        """
        return hashlib.sha256(f"{self.id}:{server_id}".encode()).hexdigest()[:32]


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(_BYTES)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()

"""Access: which token a request has, and what it may do.

Tokens are cached for two seconds: a revoked one is accepted for at most that time, and a busy agent
costs one query in it. Wrong tokens are counted by address: an address that guesses is refused for a
minute.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from flowengine.access_tokens import PREFIX, AccessToken, Scope, digest_of
from flowengine.actors import Actor, ActorKind
from flowengine.errors import TenantRefused
from flowengine.sdk.wire.refusals import Refused
from flowengine.store import Store
from flowengine.tenants import visible_tenant

CACHED_SECONDS = 2.0
_WINDOW = 60.0  # seconds in which wrong tokens are counted
_MAX_CACHED = 1_000
_MAX_LENGTH = 200  # characters of a token that is looked at


@dataclass(frozen=True, slots=True)
class _Cached:
    token: AccessToken
    read_at: float
    expires_at: float | None  #: by the clock of this process


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a token, in one request."""

    token: AccessToken
    bound: str  #: the tenant of the app

    def need(self, *scopes: Scope) -> None:
        """Refuse a token with none of these scopes."""
        if not set(scopes) & set(self.token.scopes):
            has, needed = ", ".join(self.token.scopes), " or ".join(scopes)
            message = f"token {self.token.name!r} has the scopes {has}; this needs {needed}"
            raise Refused("missing_scope", message)

    def need_list(self, task_list: str) -> None:
        if not self.token.serves(task_list):
            lists = ", ".join(self.token.task_lists)
            message = f"token {self.token.name!r} claims from {lists}, not from {task_list!r}"
            raise Refused("foreign_task_list", message)

    def tenant(self, asked: str | None = None) -> str | None:
        """Return the tenant whose runs this request sees; None: all."""
        try:
            own = visible_tenant(self.bound, self.token.tenant or None)
            return visible_tenant(own or "", asked)
        except TenantRefused as refused:
            raise Refused("foreign_tenant", str(refused)) from None

    @property
    def actor(self) -> str:
        return str(Actor(ActorKind.TOKEN, self.token.name))


class Access:
    """Shared by all threads of a server."""

    def __init__(
        self,
        database: Store,
        bound: str,
        max_wrong: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._bound, self._clock = database, bound, clock
        self._max_wrong = max_wrong
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, _Cached] = OrderedDict()
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()  #: by address: their times

    def cached(self, authorization: str) -> Caller | None:
        """Return the holder of a token that needs no query; None: call `caller`."""
        secret = _presented(authorization)
        found = self._cached.get(digest_of(secret)) if secret else None
        now = self._clock()
        if found is None or now - found.read_at >= CACHED_SECONDS:
            return None
        if found.expires_at is not None and now >= found.expires_at:
            return None
        return Caller(found.token, self._bound)

    def caller(self, authorization: str, address: str) -> Caller:
        """Return the holder of the token of a request. Raises Refused."""
        if (known := self.cached(authorization)) is not None:
            return known
        secret = _presented(authorization)
        digest = digest_of(secret) if secret else ""
        # A token that was good before is read again, also of an address that others guess from:
        # behind a proxy all have one.
        if digest not in self._cached:
            self._check_guesses(address)
        if not authorization:
            raise Refused("no_token", "the request has no token")
        found = None
        if digest:
            with self._database.read() as session:
                found, now = session.tokens.by_digest(digest), session.now()
        if found is None or not found.matches(digest):
            self._count_guess(address)
            raise Refused("bad_token", "this token is not known")
        state = found.state(now)
        if state != "valid":
            self._forget(digest)
            self._count_guess(address)
            raise Refused(f"{state}_token", f"token {found.name!r} is {state}")
        read_at = self._clock()
        left = None if found.expires is None else read_at + (found.expires - now) / 1000
        with self._lock:
            self._cached[digest] = _Cached(found, read_at, left)
            self._cached.move_to_end(digest)
            while len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return Caller(found, self._bound)

    def _forget(self, digest: str) -> None:
        with self._lock:
            self._cached.pop(digest, None)

    def _check_guesses(self, address: str) -> None:
        with self._lock:
            since = self._clock() - _WINDOW
            recent = [at for at in self._wrong.get(address, ()) if at > since]
            if recent:
                self._wrong[address] = recent
            else:
                self._wrong.pop(address, None)
        if len(recent) >= self._max_wrong:
            message = f"{len(recent)} requests of {address} had wrong tokens in the last minute"
            raise Refused("too_many_wrong_tokens", message)

    def _count_guess(self, address: str) -> None:
        with self._lock:
            self._wrong.setdefault(address, []).append(self._clock())
            self._wrong.move_to_end(address)
            while len(self._wrong) > _MAX_CACHED:
                self._wrong.popitem(last=False)


def _presented(authorization: str) -> str:
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    is_token = scheme.lower() == "bearer" and token.startswith(PREFIX)
    return token if is_token and len(token) <= _MAX_LENGTH else ""

"""Limits, rates and circuit breakers as JSON: who holds them, who waits, and changes.

They are those of all tenants: a login that sees one tenant alone is refused. Changes obey Flower's
rules for those of workers: its login, `--read_only`, and no requests of other sites.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from tornado.web import url

from flowengine.actors import Actor, ActorKind
from flowengine.engine import Engine
from flowengine.engine.limit_keys import KeyControl, LimitInfo
from flowengine.errors import FlowengineError, InvalidActor, InvalidFilter, StoreError, ValueRefused
from flowengine.printable import is_storable
from flowengine.store.failures import DatabaseFailure
from flowengine.web.async_queries import queries_of
from flowengine.web.engines import engine_of, with_shared_breakers
from flowengine.web.handlers import (
    MAX_LENGTH,
    Api,
    RequestError,
    argument,
    handler,
    settings_of,
    visible_tenant,
)

T = TypeVar("T")
_FLAGS = {"": False, "0": False, "false": False, "1": True, "true": True}


class _ControlApi(Api):
    """Requests about what all tenants share."""

    async def act(self, act: Callable[[Engine], T]) -> T:
        if visible_tenant(self) is not None:
            raise RequestError(403, "This login sees one tenant; limits are those of all tenants.")
        app = self.application.capp
        try:
            if plugin := getattr(app, "flowengine", None):
                plugin.require_database()
            return await queries_of(app).act(lambda: act(engine_of(app)))
        except (ValueRefused, InvalidFilter, InvalidActor) as refused:
            raise RequestError(400, str(refused)) from None
        except (StoreError, DatabaseFailure) as problem:
            raise RequestError(503, f"The database cannot be read: {problem}.") from None

    def body(self, *names: str) -> dict[str, Any]:
        """Return the JSON object of a change, which has no other names than these and `reason`."""
        if self.application.options.read_only:
            raise RequestError(403, "Read only mode is enabled.")
        try:
            given = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise RequestError(400, "the body must be a JSON object")
        reason = given.setdefault("reason", "")
        if not isinstance(reason, str) or not is_storable(reason):
            raise RequestError(400, "reason must be text")
        if unknown := sorted(given.keys() - {*names, "reason"}):
            expected = ", ".join((*names, "reason"))
            raise RequestError(400, f"{unknown[0][:50]!r} is unknown; use {expected}")
        return given

    @property
    def actor(self) -> Actor | str:
        """The login of the request; without one, this server."""
        name = self.current_user if isinstance(self.current_user, str) else ""
        scheme, _, credentials = self.request.headers.get("Authorization", "").partition(" ")
        if not name and scheme.lower() == "basic":
            try:
                name = b64decode(credentials.strip()).decode().partition(":")[0]
            except (binascii.Error, ValueError):
                name = ""
        return Actor(ActorKind.PERSON, name) if name else ""

    def flag(self, name: str) -> bool:
        given = argument(self, name).lower()
        if given not in _FLAGS:
            raise RequestError(400, f"{name}={given[:30]!r} is neither 1 nor 0")
        return _FLAGS[given]

    def number_of_rows(self) -> int:
        most = settings_of(self).max_page_runs
        given = argument(self, "limit") or str(min(50, most))
        is_number = given.isascii() and given.isdigit() and len(given) <= 9
        if not is_number or not 1 <= int(given) <= most:
            raise RequestError(400, f"limit={given[:30]!r} is not a number from 1 to {most}")
        return int(given)


def _name(kind: str, given: str) -> str:
    if len(given) > MAX_LENGTH or not is_storable(given):
        raise RequestError(404, f"There is no {kind} of this name in this database.")
    return given


class _KeyApi(_ControlApi):
    kind: str

    def initialize(self, kind: str) -> None:
        self.kind = kind  #: limit or rate

    def keys_of(self, engine: Engine) -> KeyControl:
        return engine.limits if self.kind == "limit" else engine.rates

    async def of_key(self, key: str, act: Callable[[KeyControl], LimitInfo]) -> LimitInfo:
        key = _name(self.kind, key)

        def on(engine: Engine) -> LimitInfo:
            try:
                self.keys_of(engine).get(key)
            except ValueRefused as unknown:
                raise RequestError(404, str(unknown)) from None
            return act(self.keys_of(engine))

        return await self.act(on)


class KeysApi(_KeyApi):
    """Keys by name."""

    @handler
    async def get(self) -> None:
        chosen: dict[str, Any] = {name: self.flag(name) for name in ("waiting", "overridden")}
        chosen |= {"limit": self.number_of_rows(), "cursor": argument(self, "cursor") or None}
        page = await self.act(lambda engine: self.keys_of(engine).list(**chosen))
        self.write({f"{self.kind}s": [_shown(info) for info in page], "cursor": page.cursor})


class KeyApi(_KeyApi):
    """One key with its holders; POST sets its number."""

    @handler
    async def get(self, key: str) -> None:
        info = await self.of_key(key, lambda keys: keys.get(key))
        self.write({**_shown(info), "holders": [each._asdict() for each in info.holders]})

    @handler
    async def post(self, key: str) -> None:
        given = self.body("number", *(["per"] if self.kind == "rate" else []))
        if "number" not in given:
            raise RequestError(400, "say which number to set: number")
        number = given.pop("number")
        change: dict[str, Any] = {"actor": self.actor, **given}
        self.write(_shown(await self.of_key(key, lambda keys: keys.set(key, number, **change))))


class KeyResetApi(_KeyApi):
    @handler
    async def post(self, key: str) -> None:
        change: dict[str, Any] = {"actor": self.actor, **self.body()}
        self.write(_shown(await self.of_key(key, lambda keys: keys.reset(key, **change))))


class _BreakerApi(_ControlApi):
    async def of_breakers(self, act: Callable[[Engine], T]) -> T:
        app = self.application.capp

        def on(engine: Engine) -> T:
            with_shared_breakers(engine, app)
            try:
                return act(engine)
            except FlowengineError:
                raise
            except Exception as problem:
                # By its module: its package need not be installed.
                if not type(problem).__module__.startswith("redis."):
                    raise
                what = f"The Redis of the circuit breakers cannot be reached: {problem}."
                raise RequestError(503, what) from None

        return await self.act(on)


class BreakersApi(_BreakerApi):
    """The breakers that have counted a failure, parked tasks, or are set by somebody."""

    @handler
    async def get(self) -> None:
        found = await self.of_breakers(lambda engine: engine.breakers.list())
        self.write({"breakers": [asdict(info) for info in found]})


class BreakerApi(_BreakerApi):
    """POST sets values of a breaker, or holds it open."""

    @handler
    async def post(self, name: str) -> None:
        name = _name("circuit breaker", name)
        given = self.body("failure_threshold", "timeout", "open")
        about: dict[str, Any] = {"actor": self.actor, "reason": given.pop("reason")}
        is_open = given.pop("open", False)
        if not isinstance(is_open, bool) or (is_open and given):
            raise RequestError(400, "open must be true, and the only value that is set")

        def change(engine: Engine) -> None:
            if is_open:
                engine.breakers.hold_open(name, **about)
            else:
                engine.breakers.set(name, **given, **about)

        await self.of_breakers(change)
        self.write({"name": name, "obeyed_within": settings_of(self).heartbeat_interval})


class BreakerResetApi(_BreakerApi):
    @handler
    async def post(self, name: str) -> None:
        name, given = _name("circuit breaker", name), self.body()

        def reset(engine: Engine) -> bool:
            try:
                return engine.breakers.reset(name, actor=self.actor, **given)
            except ValueRefused as unknown:
                raise RequestError(404, str(unknown)) from None

        self.write({"name": name, "is_closed": await self.of_breakers(reset)})


def _shown(info: LimitInfo) -> dict[str, Any]:
    """Return a key as JSON; only the answer for one key has its holders."""
    return {name: value for name, value in asdict(info).items() if name != "holders"}


HANDLERS = [
    *(
        url(rf"/api/{kind}s{path}", answers, {"kind": kind})
        for kind in ("limit", "rate")
        for path, answers in (("", KeysApi), ("/([^/]+)", KeyApi), ("/([^/]+)/reset", KeyResetApi))
    ),
    url(r"/api/breakers", BreakersApi),
    url(r"/api/breakers/([^/]+)", BreakerApi),
    url(r"/api/breakers/([^/]+)/reset", BreakerResetApi),
]

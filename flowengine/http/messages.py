"""Requests, responses and routes, without a server: no package but the standard library."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """One request; the header names are lower case."""

    method: str
    path: str
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    arguments: Mapping[str, str] = field(default_factory=dict)  #: of the path's placeholders
    remote: str = ""  #: address of the peer
    #: Set when the peer has closed the connection: nobody reads the response. Of the server's loop.
    gone: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Called in the loop of the server if the connection was closed before this was written to it.
    undelivered: Callable[[], object] | None = None

    @classmethod
    def of_json(cls, content: Any, status: int = 200, **options: Any) -> Response:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        try:
            body = text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair is written as JSON escapes it
            body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        return cls(status, body, **options)


#: A plain function is called in a thread of the server, a coroutine function in its loop.
Handler: TypeAlias = Callable[[Request], Response | Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """A handler of a path; ``{name}`` stands for one segment of it."""

    method: str
    path: str
    handler: Handler

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)  # also of a partial


def problem(
    status: int, code: str, message: str, hint: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response of an error: one shape for all of them."""
    error = {"code": code, "message": message, "hint": hint}
    return Response.of_json({"error": error}, status, headers=headers or {})


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        for route in routes:
            segments = tuple(route.path.split("/"))
            known = self._by_length.setdefault(len(segments), [])
            methods = next((found for path, found in known if path == segments), None)
            if methods is None:
                known.append((segments, methods := {}))
            if route.method in methods:
                raise ValueError(f"two routes of {route.method} {route.path}")
            methods[route.method] = route
        for paths in self._by_length.values():  # literal segments before placeholders
            paths.sort(key=lambda item: [segment.startswith("{") for segment in item[0]])

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | Response:
        """Return the route and the arguments of its path, or the response of an error."""
        given = path.split("/")
        for segments, methods in self._by_length.get(len(given), ()):
            try:
                arguments = _arguments(segments, given)
            except ValueError:
                return problem(400, "bad_path", "the path of the request is not UTF-8")
            if arguments is None:
                continue
            # A HEAD is a GET whose body is not sent.
            route = methods.get("GET" if method == "HEAD" else method)
            if route is not None:
                return route, arguments
            allowed = ", ".join(sorted({*methods, *({"HEAD"} if "GET" in methods else ())}))
            message = f"this path has no {method}; it has {allowed}"
            return problem(405, "method_not_allowed", message, headers={"Allow": allowed})
        return problem(404, "unknown_path", "there is nothing at this path")


def _arguments(segments: Sequence[str], given: Sequence[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for segment, text in zip(segments, given, strict=True):
        if segment.startswith("{"):
            if not text:
                return None
            found[segment[1:-1]] = unquote_to_bytes(text).decode()
        elif segment != text:
            return None
    return found

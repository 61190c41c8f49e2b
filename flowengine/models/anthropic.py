"""Anthropic's models, through the package `anthropic`, which is imported when a model is asked."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from flowengine.errors import (
    ModelAuthenticationFailed,
    ModelError,
    ModelPackageMissing,
    ModelTimedOut,
)
from flowengine.models import failures
from flowengine.models.anthropic_form import PROVIDER, StreamedMessage, answer_from, written
from flowengine.models.clients import Clients
from flowengine.models.messages import Answer
from flowengine.models.protocol import Chunk, ModelRequest

if TYPE_CHECKING:
    import anthropic

_KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


class Anthropic:
    """A model of Anthropic: ``Anthropic("claude-…")``.

    The key is read from ANTHROPIC_API_KEY if none is given. `options` go into each request as they
    are, as ``thinking={…}`` or ``temperature=0``.
    """

    provider = PROVIDER

    def __init__(
        self,
        model: str = "",
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        **options: Any,
    ) -> None:
        self.model, self._options = model, options
        self._given: dict[str, Any] = {"api_key": api_key, "base_url": base_url}
        self._clients: Clients[anthropic.Anthropic, anthropic.AsyncAnthropic] = Clients(
            lambda: _package().Anthropic(**self._arguments()),
            lambda: _package().AsyncAnthropic(**self._arguments()),
        )

    def __repr__(self) -> str:
        return f"Anthropic({self.model!r})"

    def close(self) -> None:
        """Close the connections of blocking calls."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, before it ends."""
        await self._clients.aclose()

    def answer(self, request: ModelRequest) -> Answer:
        body = self._body(request)
        try:
            client = self._clients.sync()
            message = client.messages.create(**body, timeout=request.timeout)
            return answer_from(_plain(message))
        except Exception as problem:
            _raise(problem, has_begun=False)

    def stream(self, request: ModelRequest) -> Iterator[Chunk | Answer]:
        body, streamed = self._body(request), StreamedMessage()
        ends, has_begun = time.monotonic() + request.timeout, False
        try:
            client = self._clients.sync()
            with client.messages.create(**body, stream=True, timeout=request.timeout) as events:
                for event in events:
                    has_begun = True
                    if chunk := streamed.take(_plain(event)):
                        yield chunk
                    _check(ends, request)
            yield streamed.answer()
        except Exception as problem:
            _raise(problem, has_begun=has_begun)

    async def aanswer(self, request: ModelRequest) -> Answer:
        body = self._body(request)
        try:
            client = self._clients.of_loop()
            message = await client.messages.create(**body, timeout=request.timeout)
            return answer_from(_plain(message))
        except Exception as problem:
            _raise(problem, has_begun=False)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Chunk | Answer]:
        body, streamed = self._body(request), StreamedMessage()
        ends, has_begun = time.monotonic() + request.timeout, False
        try:
            client = self._clients.of_loop()
            asked = client.messages.create(**body, stream=True, timeout=request.timeout)
            async with await asked as events:
                async for event in events:
                    has_begun = True
                    if chunk := streamed.take(_plain(event)):
                        yield chunk
                    _check(ends, request)
            yield streamed.answer()
        except Exception as problem:
            _raise(problem, has_begun=has_begun)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        return written(request, self.model, self._options)

    def _arguments(self) -> dict[str, Any]:
        given = {name: value for name, value in self._given.items() if value is not None}
        if "api_key" not in given and not any(os.environ.get(name) for name in _KEYS):
            raise ModelAuthenticationFailed(PROVIDER, f"no API key: {_KEYS[0]} is not set")
        return {**given, "max_retries": 0}  # the caller repeats requests, and counts them


def _package() -> Any:
    try:
        import anthropic
    except ImportError as problem:
        raise ModelPackageMissing(PROVIDER, str(problem)) from problem
    return anthropic


def _plain(message: Any) -> Any:
    """Return a value of the package as JSON; a text where an object should be stays a text."""
    return message.to_dict(mode="json") if hasattr(message, "to_dict") else message


def _check(ends: float, request: ModelRequest) -> None:
    if time.monotonic() > ends:
        raise ModelTimedOut(PROVIDER, f"the answer took longer than {request.timeout:g} s")


def _raise(problem: Exception, *, has_begun: bool) -> NoReturn:
    """Raise an exception of the package, or of its connection, as an error of models."""
    if isinstance(problem, ModelError):
        raise problem
    package = _package()
    if isinstance(problem, package.APIStatusError):
        kinds = (problem.type,)
        message = problem.api_message or str(problem)
        raise failures.refused(
            PROVIDER, problem.status_code, kinds, message, problem.response.headers
        ) from problem
    raise failures.broken(PROVIDER, problem, has_begun=has_begun) from problem

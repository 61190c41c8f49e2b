"""OpenAI's models, and servers with the same API, through the package `openai`.

The package is imported when a model is asked.
"""

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
from flowengine.models.clients import Clients
from flowengine.models.messages import Answer
from flowengine.models.openai_form import PROVIDER, StreamedCompletion, answer_from, written
from flowengine.models.protocol import Chunk, ModelRequest

if TYPE_CHECKING:
    import openai

_KEY = "OPENAI_API_KEY"
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}


class OpenAI:
    """A model behind the chat completions API: ``OpenAI("gpt-…")``.

    With `base_url`, of another server that speaks it. The key is read from OPENAI_API_KEY if none
    is given. `options` go into each request as they are. `limit_name` is the field that limits the
    tokens of an answer: OpenAI's own newer name, the older one for other servers.
    """

    provider = PROVIDER

    def __init__(
        self,
        model: str = "",
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        limit_name: str = "",
        **options: Any,
    ) -> None:
        self.model, self._options = model, options
        self._limit_name = limit_name or ("max_tokens" if base_url else "max_completion_tokens")
        self._given: dict[str, Any] = {"api_key": api_key, "base_url": base_url}
        self._clients: Clients[openai.OpenAI, openai.AsyncOpenAI] = Clients(
            lambda: _package().OpenAI(**self._arguments()),
            lambda: _package().AsyncOpenAI(**self._arguments()),
        )

    def __repr__(self) -> str:
        return f"OpenAI({self.model!r})"

    def close(self) -> None:
        """Close the connections of blocking calls."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, before it ends."""
        await self._clients.aclose()

    def answer(self, request: ModelRequest) -> Answer:
        body = self._body(request)
        try:
            client: Any = self._clients.sync()
            return answer_from(
                _plain(client.chat.completions.create(**body, timeout=request.timeout))
            )
        except Exception as problem:
            _raise(problem, has_begun=False)

    def stream(self, request: ModelRequest) -> Iterator[Chunk | Answer]:
        body, streamed = self._body(request) | _STREAM, StreamedCompletion()
        ends, has_begun = time.monotonic() + request.timeout, False
        try:
            client: Any = self._clients.sync()
            with client.chat.completions.create(**body, timeout=request.timeout) as events:
                for event in events:
                    has_begun = True
                    yield from streamed.take(_plain(event))
                    _check(ends, request)
            yield streamed.answer()
        except Exception as problem:
            _raise(problem, has_begun=has_begun)

    async def aanswer(self, request: ModelRequest) -> Answer:
        body = self._body(request)
        try:
            client: Any = self._clients.of_loop()
            asked = client.chat.completions.create(**body, timeout=request.timeout)
            return answer_from(_plain(await asked))
        except Exception as problem:
            _raise(problem, has_begun=False)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Chunk | Answer]:
        body, streamed = self._body(request) | _STREAM, StreamedCompletion()
        ends, has_begun = time.monotonic() + request.timeout, False
        try:
            client: Any = self._clients.of_loop()
            asked = client.chat.completions.create(**body, timeout=request.timeout)
            async with await asked as events:
                async for event in events:
                    has_begun = True
                    for chunk in streamed.take(_plain(event)):
                        yield chunk
                    _check(ends, request)
            yield streamed.answer()
        except Exception as problem:
            _raise(problem, has_begun=has_begun)

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        return written(request, self.model, self._options, self._limit_name)

    def _arguments(self) -> dict[str, Any]:
        given = {name: value for name, value in self._given.items() if value is not None}
        if "api_key" not in given and not os.environ.get(_KEY):
            raise ModelAuthenticationFailed(PROVIDER, f"no API key: {_KEY} is not set")
        return {**given, "max_retries": 0}  # the caller repeats requests, and counts them


def _package() -> Any:
    try:
        import openai
    except ImportError as problem:
        raise ModelPackageMissing(PROVIDER, str(problem)) from problem
    return openai


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
    package, raised = _package(), problem  # type: Any, Any
    if isinstance(raised, package.APIStatusError):
        kinds = (raised.code, raised.type)
        raise failures.refused(
            PROVIDER, raised.status_code, kinds, raised.message, raised.response.headers
        ) from problem
    if type(raised) is package.APIError:  # an error as an event of the stream
        kinds = (raised.code, raised.type)
        raise failures.refused(PROVIDER, 200, kinds, raised.message, {}) from problem
    raise failures.broken(PROVIDER, problem, has_begun=has_begun) from problem

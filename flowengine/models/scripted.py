"""A model whose answers are written down: for tests and examples, without a network."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TypeAlias

from flowengine.errors import ModelRequestRefused
from flowengine.models.messages import Answer, StopReason, Text, ToolCall, Usage
from flowengine.models.protocol import Chunk, ModelRequest, last_of
from flowengine.program.nodes import Json

#: An answer, a text, an error to raise, or a function of the request that returns one of them.
Scripted: TypeAlias = (
    Answer | str | Exception | Callable[[ModelRequest], "Answer | str | Exception"]
)


def calling(name: str, call_id: str = "", **arguments: Json) -> Answer:
    """Return an answer that calls one tool."""
    call = ToolCall(call_id or f"call_{name}", name, arguments)
    return Answer((call,), StopReason.TOOL_CALLS, Usage(10, 5), "scripted")


class ScriptedModel:
    """Gives these answers, one after the other; `requests` are those that it was asked.

        ScriptedModel([calling("search", query="x"), calling("submit_result", text="y")])

    A function as the only script answers every request, so that a second process goes on where
    the first one ended.
    """

    provider = "scripted"

    def __init__(self, script: Sequence[Scripted] | Scripted, model: str = "scripted") -> None:
        self.model = model
        self.requests: list[ModelRequest] = []
        self._lock = threading.Lock()
        self._always = script if callable(script) else None
        is_list = isinstance(script, Sequence) and not isinstance(script, str)
        self._left: list[Scripted] = list(script) if is_list else [script]  # type: ignore[arg-type,list-item]

    def answer(self, request: ModelRequest) -> Answer:
        return last_of(self.provider, self.stream(request))

    def stream(self, request: ModelRequest) -> Iterator[Chunk | Answer]:
        answer = self._next(request)
        for index, part in enumerate(answer.content):
            if isinstance(part, Text):
                yield Chunk("text", part.text, index)
        yield answer

    async def aanswer(self, request: ModelRequest) -> Answer:
        return self.answer(request)

    async def astream(self, request: ModelRequest) -> AsyncIterator[Chunk | Answer]:
        for piece in self.stream(request):
            yield piece

    def _next(self, request: ModelRequest) -> Answer:
        with self._lock:
            self.requests.append(request)
            if self._always is not None:
                step: Scripted = self._always
            elif self._left:
                step = self._left.pop(0)
            else:
                raise ModelRequestRefused(
                    self.provider,
                    f"the script has ended: this is request {len(self.requests)}",
                )
        given = step(request) if callable(step) else step
        if isinstance(given, Exception):
            raise given
        if isinstance(given, str):
            return Answer((Text(given),), StopReason.END, Usage(10, 5), self.model)
        return given

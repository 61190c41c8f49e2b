"""The protocol of providers: one request, one answer, at once or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from flowengine.errors import ModelRequestRefused, ModelStreamCut
from flowengine.models.messages import Answer, Message, Tool

ToolChoice: TypeAlias = Literal["auto", "required", "none"]
MAX_TOKENS = 8192  #: of an answer, if the request names no other number
TIMEOUT = 600.0  #: seconds


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request. Nothing of it is kept by the provider."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    model: str = ""  #: empty: the one that the provider was made with
    tool_choice: ToolChoice = "auto"  #: "required": the answer calls some tool
    max_tokens: int = MAX_TOKENS
    timeout: float = TIMEOUT  #: seconds for the whole answer

    @property
    def system(self) -> str:
        """The texts of its system messages."""
        return "\n\n".join(m.text for m in self.messages if m.role == "system")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer, for readers who do not want to wait. The answer itself is the truth."""

    kind: Literal["text", "thinking", "arguments"]
    text: str
    index: int = 0  #: of the part of the answer


class Model(Protocol):
    """A provider, with the name of a model. May be shared by threads."""

    @property
    def provider(self) -> str:
        """The provider in errors, e.g. ``anthropic``."""

    @property
    def model(self) -> str:
        """The model of requests that name none; may be empty."""

    def answer(self, request: ModelRequest) -> Answer:
        """Ask, and return the answer. Raises ModelError; does not retry."""

    def stream(self, request: ModelRequest) -> Iterator[Chunk | Answer]:
        """Ask; return the answer in pieces, and as a whole in the end. Raises ModelError."""

    async def aanswer(self, request: ModelRequest) -> Answer:
        """Like `answer`, without blocking the event loop."""

    def astream(self, request: ModelRequest) -> AsyncIterator[Chunk | Answer]:
        """Like `stream`, without blocking the event loop."""


def last_of(provider: str, pieces: Iterator[Chunk | Answer]) -> Answer:
    """Read a stream to its end; return the answer."""
    for piece in pieces:
        if isinstance(piece, Answer):
            return piece
    raise ModelStreamCut(provider)


def model_name(provider: str, own: str, request: ModelRequest) -> str:
    """Return the model that a request is for."""
    if not (name := request.model or own):
        raise ModelRequestRefused(provider, "no model is named")
    return name

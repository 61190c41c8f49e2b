"""Messages to and from a model, with a JSON form that reads back equal.

A part that only its provider understands, as a signed thinking block, is kept as it came and sent
back unchanged (`Opaque`). Other providers leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self, TypeAlias

from flowengine.errors import ValueRefused
from flowengine.program.nodes import Json


@dataclass(frozen=True, slots=True)
class Text:
    text: str

    def to_json(self) -> dict[str, Json]:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model asks for a call of a tool."""

    id: str  #: the provider's; the result names it
    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    unreadable: str = ""  #: arguments that are no JSON object, as the model wrote them

    def to_json(self) -> dict[str, Json]:
        found: dict[str, Json] = {"type": "tool_call", "id": self.id, "name": self.name}
        found["arguments"] = dict(self.arguments)
        return found | ({"unreadable": self.unreadable} if self.unreadable else {})


@dataclass(frozen=True, slots=True)
class ToolResult:
    call_id: str
    content: str
    is_error: bool = False

    def to_json(self) -> dict[str, Json]:
        return {
            "type": "tool_result",
            "call_id": self.call_id,
            "content": self.content,
            "is_error": self.is_error,
        }


@dataclass(frozen=True, slots=True)
class Opaque:
    """A part that only its provider understands."""

    provider: str
    data: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        return {"type": "opaque", "provider": self.provider, "data": dict(self.data)}


Part: TypeAlias = Text | ToolCall | ToolResult | Opaque
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Message:
    """One message. The results of tools have the role `tool`."""

    role: Role
    content: tuple[Part, ...]

    @classmethod
    def of(cls, role: Role, text: str) -> Self:
        return cls(role, (Text(text),))

    @property
    def text(self) -> str:
        return _text_of(self.content)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        """The results of tools among its parts."""
        return tuple(part for part in self.content if isinstance(part, ToolResult))

    def to_json(self) -> dict[str, Json]:
        return {"role": self.role, "content": [part.to_json() for part in self.content]}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the form of `to_json`; raises ValueRefused."""
        found = _mapping(value, "a message")
        if found.get("role") not in _ROLES:
            raise ValueRefused(f"a message has a role of {', '.join(_ROLES)}: {value!r:.200}")
        return cls(found["role"], parts_from(found.get("content")))


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call."""

    name: str
    description: str
    input_schema: Mapping[str, Json]

    def to_json(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": dict(self.input_schema),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the form of `to_json`; raises ValueRefused."""
        found = _mapping(value, "a tool")
        name, about = _text(found, "name"), _text(found, "description")
        return cls(name, about, _mapping(found.get("input_schema"), "an input schema"))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, or of several."""

    input_tokens: int = 0  #: without those of the cache
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def to_json(self) -> dict[str, Json]:
        return {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the form of `to_json`; raises ValueRefused."""
        found = _mapping(value, "a usage")
        return cls(*(_count(found, name) for name in cls.__slots__))


class StopReason(StrEnum):
    """Why a model has ended its answer."""

    END = "end"
    TOOL_CALLS = "tool_calls"
    MAX_TOKENS = "max_tokens"
    DECLINED = "declined"
    PAUSED = "paused"  #: of a tool that the provider runs: send the answer back to go on
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a model to one request."""

    content: tuple[Part, ...]
    stop_reason: StopReason = StopReason.END
    usage: Usage = Usage()
    model: str = ""  #: that has answered, as the provider names it
    id: str = ""  #: of the provider

    @property
    def text(self) -> str:
        return _text_of(self.content)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.content if isinstance(part, ToolCall))

    @property
    def message(self) -> Message:
        return Message("assistant", self.content)

    def to_json(self) -> dict[str, Json]:
        return {
            "content": [part.to_json() for part in self.content],
            "stop_reason": str(self.stop_reason),
            "usage": self.usage.to_json(),
            "model": self.model,
            "id": self.id,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the form of `to_json`; raises ValueRefused."""
        found = _mapping(value, "an answer")
        reason = _text(found, "stop_reason")
        if reason not in set(StopReason):
            raise ValueRefused(f"an answer has an unknown stop_reason: {reason!r:.200}")
        return cls(
            parts_from(found.get("content")),
            StopReason(reason),
            Usage.from_json(found.get("usage")),
            _text(found, "model"),
            _text(found, "id"),
        )


def parts_from(value: Any) -> tuple[Part, ...]:
    """Read the parts of a message; raises ValueRefused."""
    if not isinstance(value, list):
        raise ValueRefused(f"the content of a message is a list of parts: {value!r:.200}")
    return tuple(map(part_from, value))


def part_from(value: Any) -> Part:
    """Read one part; raises ValueRefused."""
    found = _mapping(value, "a part")
    match found.get("type"):
        case "text":
            return Text(_text(found, "text"))
        case "tool_call":
            arguments = _mapping(found.get("arguments"), "arguments")
            unreadable = found.get("unreadable", "")
            return ToolCall(_text(found, "id"), _text(found, "name"), arguments, str(unreadable))
        case "tool_result":
            call_id, content = _text(found, "call_id"), _text(found, "content")
            return ToolResult(call_id, content, found.get("is_error") is True)
        case "opaque":
            return Opaque(_text(found, "provider"), _mapping(found.get("data"), "an opaque part"))
    raise ValueRefused(f"a part of a message has an unknown type: {value!r:.200}")


def _text_of(content: tuple[Part, ...]) -> str:
    return "".join(part.text for part in content if isinstance(part, Text))


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueRefused(f"{what} is a map, not {value!r:.200}")
    return dict(value)


def _text(found: Mapping[str, Any], name: str) -> str:
    if not isinstance(value := found.get(name), str):
        raise ValueRefused(f"{name!r} is text, not {value!r:.200}")
    return value


def _count(found: Mapping[str, Any], name: str) -> int:
    if type(value := found.get(name, 0)) is not int or value < 0:
        raise ValueRefused(f"{name!r} is a number of tokens, not {value!r:.200}")
    return value

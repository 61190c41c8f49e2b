"""Errors of values that are stored or sent."""

from __future__ import annotations

from dataclasses import dataclass

from flowengine.errors.flowengine_error import FlowengineError

_BYTES = frozenset({"bytes", "bytearray", "memoryview"})

_ADDRESS = (
    "write the data to a file or an object store and pass its address: flowengine stores JSON, and "
    "does not pickle"
)


class ValueRefused(FlowengineError, ValueError):
    """A value cannot be stored."""


@dataclass(eq=False, repr=False)
class NotJson(ValueRefused):
    """A value has no JSON form."""

    what: str
    where: str
    type_name: str
    _text = "{what} is not JSON: {where} is of type {type_name}; {cure}"

    @property
    def cure(self) -> str:
        if self.type_name in _BYTES:
            return "annotate it as bytes: then it is stored as base64"
        if self.type_name.startswith("Secret"):
            return "annotate it with this type: then it is stored encrypted"
        if self.type_name.startswith("number "):
            return f"use None for a missing number, or {_ADDRESS}"
        return f"annotate it with a type pydantic can write, as a dataclass, or {_ADDRESS}"

    def __str__(self) -> str:
        return self._text.format_map({**vars(self), "cure": self.cure})


class NotSendable(NotJson):
    """A message or a status contains a value that JSON cannot carry."""

    _text = (
        "{what} cannot be sent: {where} is a {type_name}, which JSON cannot carry; "
        "send text, finite numbers, true, false, null, lists and maps with text as keys"
    )


@dataclass(eq=False, repr=False)
class SecretRefused(ValueRefused):
    """A secret cannot be stored."""

    what: str
    where: str
    why: str
    _text = "{what} cannot be stored: {where} is a secret, and {why}"


@dataclass(eq=False, repr=False)
class TooLarge(ValueRefused):
    """A value exceeds the size limit of one stored value."""

    what: str
    size: int
    limit: int
    _text = (
        "{what} takes {size:,} bytes as JSON, the limit is {limit:,}: put the data in a file or "
        "an object store and pass its address, or raise FLOWENGINE_MAX_VALUE_BYTES"
    )


@dataclass(eq=False, repr=False)
class SecretUnreadable(FlowengineError):
    """A stored secret cannot be decrypted in this process."""

    why: str
    _text = "a stored secret cannot be read: {why}"


class PayloadUnreadable(FlowengineError):
    """A stored value cannot be decoded: its codec or its key is missing, or it was changed."""

    def __str__(self) -> str:
        return f"a stored value cannot be read: {self.args[0]}"

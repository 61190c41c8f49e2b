"""Values as text.

A map of attributes (parameters, returns) is one JSON text. A large attribute is stored in the
payload table by its content hash, and the text has a reference in its place: a list that is passed
from step to step is stored once, and reading a small attribute beside it does not load it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from flowengine.errors import NotJson, PayloadUnreadable, TooLarge
from flowengine.evaluator import PayloadRef
from flowengine.program.compact_json import encoder
from flowengine.program.nodes import Json
from flowengine.settings import Settings

#: Above this many bytes an attribute is stored by its content hash.
INLINE_BYTES = 8 * 1024
#: How deep lists and maps may be nested: the default of the setting `max_json_depth`.
MAX_DEPTH = Settings().max_json_depth
_REFERENCE, _ESCAPED = "$payload", "$escaped"
#: Types whose values are read back as they are written. No float: JSON has no infinity.
_EXACT = frozenset({str, int, bool, type(None)})
_TEXT = frozenset({str})
_CHARACTER_BYTES = 12  #: of one that JSON in ASCII escapes as two halves
_LARGE, _NUMBER_BYTES = 1 << 63, 20  #: bytes of a smaller integer, at most


#: ASCII, because databases refuse a NUL or half a surrogate pair.
dump = encoder(allow_nan=False)


def load(text: str | None) -> Json:
    return None if text is None else json.loads(opened(text))


# --- the payload codec ---


class PayloadCodec(Protocol):
    """Encodes values before they are stored, in the database and in the spool."""

    def encode(self, plain: bytes) -> bytes: ...
    def decode(self, stored: bytes) -> bytes: ...


_codec: PayloadCodec | None = None
#: The first character of an encoded value. No JSON begins with it.
SEAL = "!"


def use_payload_codec(codec: PayloadCodec | None) -> PayloadCodec | None:
    """Set the codec of this process; return the previous one."""
    global _codec
    previous, _codec = _codec, codec
    return previous


def sealed(text: str) -> str:
    """Return a value as it is stored: the text itself without a codec."""
    if _codec is None:
        return text
    return SEAL + base64.b64encode(_codec.encode(text.encode("ascii"))).decode("ascii")


#: In the place of a key's id, of a value whose codec has none.
NO_KEY = ""


def has_keys() -> bool:
    """Whether the codec of this process tells by which key a value was encoded."""
    return callable(getattr(_codec, "key_of", None))


def present_key() -> str:
    """Return the id of the key that encodes values in this process."""
    return str(getattr(_codec, "present_key", NO_KEY))


def known_keys() -> tuple[str, ...]:
    """Return the ids of the keys that this process has, the one that encodes first."""
    return tuple(getattr(_codec, "key_ids", ()))


def longest_beginning() -> int:
    """Return how many characters of a stored value tell its key, whichever known one it is."""
    longest = max((len(key.encode()) for key in known_keys()), default=0)
    return len(SEAL) + 4 * (longest + 3) // 3 + 4


def key_of(text: str) -> str | None:
    """Return the id of the key that encoded a value, of which the beginning suffices.

    None: the value is not encoded.
    """
    if not text.startswith(SEAL):
        return None
    find = getattr(_codec, "key_of", None)
    given = text[len(SEAL) :]
    try:
        # Groups of four characters are three bytes each: a rest of one is left out.
        return str(find(base64.b64decode(given[: len(given) // 4 * 4]))) if find else NO_KEY
    except (ValueError, IndexError):
        return NO_KEY  # damaged


def lacks_key(text: str) -> bool:
    """Whether another process may read a value that this one cannot: it has no codec or key."""
    key = key_of(text)
    return key is not None and (_codec is None or (bool(key) and key not in known_keys()))


def opened(text: str) -> str:
    """Return the JSON of a stored value; raise PayloadUnreadable."""
    if not text.startswith(SEAL):
        return text
    if _codec is None:
        raise PayloadUnreadable(
            "it was encoded by a payload codec, and this process has none: set "
            "FLOWENGINE_PAYLOAD_CODEC to the codec of the other processes"
        )
    try:
        return _codec.decode(base64.b64decode(text[len(SEAL) :])).decode("ascii")
    except PayloadUnreadable:
        raise
    except Exception as problem:
        raise PayloadUnreadable(f"{type(_codec).__name__} cannot decode it: {problem}") from problem


def dump_value(value: Json) -> str:
    """Return a value that is no map of attributes as it is stored: an error, a fact."""
    return sealed(dump(value))


def plain(value: Json) -> Json:
    """Return a value as it will be read back: a tuple becomes a list."""
    if (
        type(value) is dict
        and _EXACT.issuperset(map(type, value.values()))
        and _TEXT.issuperset(map(type, value))
    ):
        return value.copy()
    return json.loads(dump(value))


def check_value(what: str, value: Json, limit: int, depth: int = MAX_DEPTH) -> None:
    """Refuse a value that is not JSON, too large or too deep; `what` names it in the error."""
    kind = type(value)
    # Most results are small scalars: they are valid, and fit, without being encoded.
    if kind is str:
        if len(value) * _CHARACTER_BYTES + 2 <= limit:
            return
    elif kind in _EXACT and limit >= _NUMBER_BYTES and -_LARGE < (value or 0) < _LARGE:
        return
    try:
        size = len(dump(value))
    except (TypeError, ValueError, RecursionError):
        size = 0
    if size > limit:
        raise TooLarge(what, size, limit)
    if not size or not _is_sound(value, depth):
        place, found = _first_invalid(value, what, depth)
        raise NotJson(what, place, found)


def check_names(what: str, values: Mapping[Any, Json]) -> None:
    """Refuse attributes whose names are not text."""
    for name in values:
        if not isinstance(name, str):
            raise NotJson(what, f"{what}, key {name!r}", type(name).__name__)


def _is_sound(value: Json, deepest: int) -> bool:
    """Whether all keys are text and the nesting is not deeper than that.

    `json` writes the key 1 as "1", which is another key when it is read. A deeply nested value
    may be written here and exceed the stack where it is read.
    """
    level = [value]
    for _ in range(deepest + 1):
        level = [part for part in level if isinstance(part, dict | list | tuple)]
        if not level:
            return True
        if any(
            not isinstance(key, str) for part in level if isinstance(part, dict) for key in part
        ):
            return False
        level = [
            item for part in level for item in (part.values() if isinstance(part, dict) else part)
        ]
    return False


def _first_invalid(value: Any, place: str, left: int) -> tuple[str, str]:
    """Find the first part of a value that JSON cannot represent: its place and type.

    `left` is the number of levels that may still follow.
    """
    if left < 0:
        return place[:500], "value nested too deeply (setting max_json_depth), or in itself"
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"{place}, key {key!r}", type(key).__name__
            if not _is_json(item, left - 1):
                return _first_invalid(item, f"{place}[{key!r}]", left - 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            if not _is_json(item, left - 1):
                return _first_invalid(item, f"{place}[{index}]", left - 1)
    elif isinstance(value, float):
        return place, f"number that JSON has no form for ({value})"
    return place, type(value).__name__


def _is_json(value: Any, left: int) -> bool:
    try:
        dump(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return _is_sound(value, left)


class Encoder:
    """Encodes attributes, and collects the payloads that they refer to."""

    def __init__(self) -> None:
        self.payloads: dict[str, str] = {}
        self.references: dict[str, None] = {}  #: to payloads that are stored
        self.written = 0  #: bytes so far

    def attributes(self, values: Mapping[str, Any]) -> str | None:
        """Encode a map of attributes; None for an empty one."""
        if not values:
            return None
        text = self._attributes(values)
        return text if _codec is None else sealed(text)

    def _attributes(self, values: Mapping[str, Any]) -> str:
        if _PLAIN.issuperset(map(type, values.values())):
            text = dump(values)
            if len(text) <= INLINE_BYTES:
                self.written += len(text)
                return text
        parts = [f"{dump(name)}:{self._value(value)}" for name, value in values.items()]
        text = "{" + ",".join(parts) + "}"
        self.written += len(text)
        return text

    def yields(self, entries: list[tuple[int, dict[str, Any]]]) -> str | None:
        if not entries:
            return None
        written = [f"[{levels},{self._attributes(v)}]" for levels, v in entries]
        return sealed("[" + ",".join(written) + "]")

    def _value(self, value: Any) -> str:
        if isinstance(value, PayloadRef):
            self.references[value.hash] = None
            return dump({_REFERENCE: value.hash})
        text = dump(value)
        if len(text) > INLINE_BYTES:
            digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
            self.payloads[digest] = sealed(text)
            self.written += len(text)
            return dump({_REFERENCE: digest})
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _MARKS:
            return dump({_ESCAPED: value})
        return text


_MARKS = frozenset({_REFERENCE, _ESCAPED})
#: Types of values that need no escaping.
_PLAIN = frozenset({str, int, float, bool, type(None), list})


def attributes(text: str | None) -> dict[str, Any]:
    """Decode a map of attributes; large values stay references."""
    return {name: _read(value) for name, value in json.loads(opened(text)).items()} if text else {}


def yields(text: str | None) -> list[tuple[int, dict[str, Any]]]:
    if not text:
        return []
    return [
        (levels, {name: _read(value) for name, value in values.items()})
        for levels, values in json.loads(opened(text))
    ]


def _read(value: Json) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        ((mark, inner),) = value.items()
        if mark == _REFERENCE:
            return PayloadRef(inner)
        if mark == _ESCAPED:
            return inner
    return value

"""The record of a durable function: its calls, their ends, and the result of an activation.

A durable function is run until everything in it waits. Each call that it awaits gets a number, from
0, without gaps. The record is a list of calls in the order of their numbers and the ends of those
that have ended. It is enough to run the function again to the same place, because each call says
which ends the function had heard since the call before: ends are told one at a time, in that order.

Those that are made for each call are not frozen, because that takes three times as long.

These types are shared by the layer that runs functions and the one that decides about their rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from flowengine.program.compact_json import encoder
from flowengine.program.event_options import NO_OPTIONS, EventOptions
from flowengine.program.nodes import Json, Location

_encode = encoder(allow_nan=False)


def arguments_digest(arguments: Mapping[str, Json]) -> str:
    """Return a digest of the arguments of a call, by which a replay sees that they differ."""
    return digest_and_size(arguments)[0]


def digest_and_size(arguments: Mapping[str, Json]) -> tuple[str, int]:
    """Return the digest of the arguments of a call, and their bytes as JSON."""
    written = _encode(arguments).encode()
    return blake2b(written, digest_size=16).hexdigest(), len(written)


class CallKind(StrEnum):
    """How a call is made."""

    EVENT = "event"  #: a worker runs the code of an event facet
    RUN = "run"  #: a workflow, as a run of its own
    WAIT = "wait"  #: `sleep`, `sleep_until` or `wait_for`: a due time or an answer ends it
    STEP = "step"  #: a plain function, which only the process of the activation can run


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The part of a stored call that a replay needs; its number is its place in the record."""

    facet: str
    digest: str  #: of its arguments
    heard: tuple[int, ...] = ()  #: calls whose ends were heard since the call before, in order
    changes: tuple[str, ...] = ()  #: names for which `changed` was first true since then
    is_cancelled: bool = False  #: the function has cancelled it, and that is stored


@dataclass(slots=True)
class FunctionCall:
    """A new call of a durable function, with everything its row needs: no program is read."""

    number: int
    kind: CallKind
    facet: str  #: qualified name
    arguments: dict[str, Json]
    digest: str
    heard: tuple[int, ...] = ()  #: calls whose ends were heard since the call before, in order
    changes: tuple[str, ...] = ()  #: names for which `changed` was first true since then
    options: EventOptions = NO_OPTIONS  #: of the facet, with those of this call
    deadline: float | None = None  #: seconds after its beginning by which it must end
    due: int | None = None  #: of a timer: milliseconds since the epoch
    name: str = ""  #: given by the author; empty: derived from the facet
    group: int | None = None  #: the first of the calls that are awaited together
    version: int | None = None  #: of a durable function that is awaited, if it is not its newest
    location: Location = field(default=Location(0), compare=False)  #: the author's line
    size: int = field(default=0, compare=False)  #: bytes of the arguments as JSON, of a new call

    def recorded(self) -> RecordedCall:
        """Return the part that a replay needs."""
        return RecordedCall(self.facet, self.digest, self.heard, self.changes)


@dataclass(slots=True)
class CallEnd:
    """The recorded end of a call: a result, or the record of an error."""

    number: int
    at: int  #: milliseconds since the epoch
    result: Json = None
    error: Mapping[str, Any] | None = None  #: type, message, path, bases


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """The stored part of a durable function, from which any process replays it."""

    calls: tuple[RecordedCall, ...] = ()  #: by number
    #: In the order in which the function hears those that no call has as heard.
    ends: tuple[CallEnd, ...] = ()


NO_RECORD = FunctionRecord()


@dataclass(frozen=True, slots=True)
class FunctionEnd:
    """The end of a durable function: a result as JSON, or the record of an error."""

    result: Json = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DifferentArguments:
    """A warning: the code gives a recorded call other arguments. The record stands."""

    number: int
    facet: str
    location: Location

    def __str__(self) -> str:
        return (
            f"call {self.number} of {self.facet} ({self.location}) has other arguments than its "
            "record, whose result is used: arguments must follow from inputs, results, now(), "
            "uuid() and random() of flowengine"
        )


@dataclass(slots=True)
class Progress:
    """The place that an activation has reached: everything in the function waits, or it has ended.

    `calls` and `cancelled` are new since the last progress, or since the record. `heard` is a
    state: an activation that was kept and one that was replayed to the same place have the same.
    """

    calls: tuple[FunctionCall, ...] = ()
    heard: tuple[int, ...] = ()  #: calls whose ends were heard since the last call, in order
    #: Open calls that the function does not wait for any more. Their ends are never heard.
    cancelled: tuple[int, ...] = ()
    ended: FunctionEnd | None = None
    warning: DifferentArguments | None = None  #: the first one of a replay

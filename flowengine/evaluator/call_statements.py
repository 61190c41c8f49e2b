"""The statement of a call of a durable function, which its row stores in place of an address.

A call has no place in the program of its run: the code of the function decides which facet it
calls, and with which options. So its row has everything that an evaluation needs, as JSON, and the
evaluator reads no program for it.
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Any

from flowengine.evaluator.records import Step, id_within
from flowengine.program.addresses import ReadSet
from flowengine.program.compact_json import encoder
from flowengine.program.event_options import (
    NO_OPTIONS,
    Cache,
    EventOptions,
    Limit,
    Rate,
    RetryPolicy,
)
from flowengine.program.function_calls import CallKind, FunctionCall
from flowengine.program.nodes import FacetDeclaration, FacetKind, Location
from flowengine.program.plan import BlockPlan, FacetPlan, StatementKind, StatementPlan

_encode = encoder(allow_nan=False)
_BLOCK = BlockPlan("", 0, "")  # the calls of a function stand in no block
_NUMBER = 8  # hex digits of a call's number in its key
#: The end of a call touches its function, and nothing else.
_READS = ReadSet(levels=1, is_last=False)


@functools.lru_cache(maxsize=1_000)
def key_prefix(function_path: str) -> str:
    """Return the beginning of the keys of a function's calls."""
    return blake2b(f"n{function_path}".encode(), digest_size=12).hexdigest()


def call_key(function_path: str, number: int) -> str:
    """Return the key of a call. The keys of a function are adjacent, in the order of numbers.

    So the unique index of keys refuses a second call of a number, and the calls of a function are
    one range of it.
    """
    return f"{key_prefix(function_path)}{number:08x}"  # _NUMBER digits


def call_id(function: Step, number: int) -> str:
    """Return the id of the row of a call: like the keys, those of a function are adjacent."""
    return f"{_id_prefix(function.run_id, function.path, function.generation)}{number:06x}"


@functools.lru_cache(maxsize=1_000)
def _id_prefix(run_id: str, function_path: str, generation: int) -> str:
    return id_within(run_id, key_prefix(function_path), generation)[:-6]


def number_of_call(key: str) -> int:
    """Return the number of a call by its key."""
    return int(key[-_NUMBER:], 16)


def prefix_of_call(key: str) -> str:
    """Return the part of a call's key that it shares with the other calls of its function."""
    return key[:-_NUMBER]


def call_path(function_path: str, call: FunctionCall) -> str:
    """Return the path of a call: ``order.research.ask_model#3``."""
    return f"{function_path}.{call.name or _short(call.facet)}#{call.number}"


@functools.lru_cache(maxsize=1_000)
def _short(facet: str) -> str:
    return facet.rpartition(".")[2].partition("@")[0]


def key_of_path(path: str) -> str | None:
    """Return the key of a call by its path; None if it is the path of another step."""
    function, _, name = path.rpartition(".")
    number = name.rpartition("#")[2]
    is_call = "#" in name and number.isdecimal() and number.isascii()
    return call_key(function, int(number)) if is_call else None


@dataclass(slots=True, eq=False)
class CallPlan(StatementPlan):
    """The plan of a call, made of its row alone."""

    call_kind: CallKind = CallKind.EVENT
    due: int | None = None  #: of a timer: milliseconds since the epoch
    changes: tuple[str, ...] = ()  #: names for which `changed` was first true before it
    group: int | None = None  #: the first of the calls that are awaited together
    version: int | None = None  #: of a durable function, if it is not its newest
    line: str = ""  #: of the author's code


def written(call: FunctionCall) -> str:
    """Return the statement of a call as its row stores it."""
    numbers = (call.deadline, call.due, call.group, call.version)
    if call.changes or numbers != _NO_NUMBERS:
        return _written(call.facet, call.kind, call.options, numbers, call.changes, call.location)
    # A line that makes a call has the same options and location each time: looking these up by
    # identity is quicker than comparing their fields.
    key = (call.facet, call.kind, id(call.options), id(call.location))
    found = _by_identity.get(key)
    if found is None or found[0] is not call.options or found[1] is not call.location:
        text = _written(call.facet, call.kind, call.options, numbers, (), call.location)
        if len(_by_identity) >= _MOST:
            _by_identity.clear()
        found = _by_identity[key] = call.options, call.location, text
    return found[2]


_NUMBERS = ("deadline", "due", "group", "version")
_NO_NUMBERS = (None, None, None, None)
_MOST = 2_000
#: Statements with the options and the location that they were made of.
_by_identity: dict[tuple[str, CallKind, int, int], tuple[EventOptions, Location, str]] = {}


@functools.lru_cache(maxsize=_MOST)  # a line in a loop makes the same call again and again
def _written(
    facet: str,
    kind: CallKind,
    options: EventOptions,
    numbers: tuple[float | None, ...],
    changes: tuple[str, ...],
    location: Location,
) -> str:
    found: dict[str, Any] = {"facet": facet}
    if kind is not CallKind.EVENT:
        found["kind"] = kind.value
    if options is not NO_OPTIONS and (given := _options(options)):
        found["options"] = given
    for name, value in zip(_NUMBERS, numbers, strict=True):
        if value is not None:
            found[name] = value
    if changes:
        found["changes"] = list(changes)
    if location.line:
        found["line"] = str(location)
    return _encode(found)


@functools.lru_cache(maxsize=2_000)
def plan_of_call(statement: str) -> CallPlan:
    """Return the plan of a stored statement."""
    found = json.loads(statement)
    facet = FacetDeclaration(FacetKind.EVENT, found["facet"], options=_read(found.get("options")))
    return CallPlan(
        address=statement,
        index=0,
        name="",
        kind=StatementKind.CALL,
        block=_BLOCK,
        facet=FacetPlan(facet.name, facet),
        deadline=found.get("deadline"),
        read_set=_READS,
        call_kind=CallKind(found.get("kind", CallKind.EVENT)),
        due=found.get("due"),
        changes=tuple(found.get("changes", ())),
        group=found.get("group"),
        version=found.get("version"),
        line=found.get("line", ""),
    )


@functools.lru_cache(maxsize=500)
def _options(options: EventOptions) -> dict[str, Any]:
    """Return the options that differ from the defaults."""
    given = asdict(options)
    usual = asdict(NO_OPTIONS)
    return {name: value for name, value in given.items() if value != usual[name]}


def call_to_json(call: FunctionCall) -> dict[str, Any]:
    """Return a call as JSON, for the report that has it."""
    return {
        "number": call.number,
        "name": call.name,
        "statement": written(call),
        "arguments": call.arguments,
        "digest": call.digest,
        "heard": list(call.heard),
    }


def call_from_json(found: dict[str, Any]) -> FunctionCall:
    """Return the call of a stored report."""
    plan = plan_of_call(found["statement"])
    file, _, line = plan.line.rpartition(":")
    return FunctionCall(
        number=found["number"],
        kind=plan.call_kind,
        facet=plan.target,
        arguments=found["arguments"],
        digest=found["digest"],
        heard=tuple(found["heard"]),
        changes=plan.changes,
        options=plan.options,
        deadline=plan.deadline,
        due=plan.due,
        name=found["name"],
        group=plan.group,
        version=plan.version,
        location=Location(int(line), file=file) if line.isdigit() else Location(0),
    )


def _read(stored: dict[str, Any] | None) -> EventOptions:
    if not stored:
        return NO_OPTIONS
    known = {field.name for field in fields(EventOptions)}  # a later version may store more
    found = {name: value for name, value in stored.items() if name in known}
    if "retry" in found:
        found["retry"] = RetryPolicy(**found["retry"])
    if found.get("cache") is not None:
        found["cache"] = Cache(**found["cache"])
    found["limit"] = tuple(Limit(**one) for one in found.get("limit", ()))
    found["rate"] = tuple(Rate(**one) for one in found.get("rate", ()))
    return EventOptions(**found)

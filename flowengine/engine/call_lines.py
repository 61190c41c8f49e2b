"""The calls of a durable function as lines: which of a long list are shown, and in which words.

A function may make thousands of calls. Of a long list the first and the last ones are shown, those
that failed and those that are open; the others between them are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flowengine.evaluator.states import ObjectType, StepState
from flowengine.program.function_options import function_of, without_version


class CallRow(Protocol):
    """A row of a run's tree."""

    @property
    def object_type(self) -> str: ...
    @property
    def state(self) -> str: ...


T = TypeVar("T", bound=CallRow)


@dataclass(frozen=True, slots=True)
class HiddenCalls(Generic[T]):
    """Neighbouring calls that are not shown."""

    calls: Sequence[T]


def is_call(row: CallRow) -> bool:
    """Whether a row is a call of a durable function."""
    return row.object_type == ObjectType.FUNCTION_CALL


def shown_calls(
    calls: Sequence[T], *, first: int, last: int, most: int
) -> Iterator[T | HiddenCalls[T]]:
    """Yield the calls to show, in their order, and what is hidden between them.

    Up to `most` of those that are open or failed are shown wherever they are.
    """
    hidden: list[T] = []
    for at, call in enumerate(calls):
        is_shown = at < first or at >= len(calls) - last
        if not is_shown and most > 0 and _is_special(call):
            is_shown, most = True, most - 1
        if not is_shown:
            hidden.append(call)
            continue
        if hidden:
            yield HiddenCalls(hidden)
            hidden = []
        yield call
    if hidden:
        yield HiddenCalls(hidden)


def _is_special(call: CallRow) -> bool:
    return call.state not in StepState.FINAL or call.state == StepState.ERROR


def awaited_label(names: Sequence[str]) -> str:
    """Return for which calls a suspended function waits."""
    if not names:
        return "waits for its calls"
    others = len(names) - 1
    more = "" if not others else f" and {others:,} more call{'' if others == 1 else 's'}"
    return f"waits for {names[0]}{more}"


def activation_count(facet: str, tries: int) -> str:
    """Return the number of activations of a durable function; empty if it is none."""
    if function_of(facet) is None:
        return ""
    return "1 activation" if tries == 1 else f"{tries:,} activations"


def is_named_by(facet: str, name: str) -> bool:
    """Whether the name of a line says which facet it calls: ``ask#3`` and ``shop.ask``."""
    short = without_version(facet).rpartition(".")[2]
    return short == name.rpartition(".")[2].partition("#")[0]
